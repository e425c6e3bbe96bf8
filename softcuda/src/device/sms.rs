//! The multiprocessors of a device: how many blocks run at once, and in which order they start.

use parking_lot::{Condvar, Mutex};

/// SMs by number: the first of some, and how many.
pub type Span = (u32, u32);

/// The group that is the whole device.
pub const ALL: usize = 0;

/// SMs that some launches may use: all, or those of a green context.
struct Group {
    /// Which; none for all.
    spans: Vec<Span>,
    count: u32,
    busy: u32,
    /// Launches that have asked to start blocks, and those of them that have started all.
    arrived: u64,
    served: u64,
}

impl Group {
    fn new(spans: &[Span], count: u32) -> Group {
        Group { spans: spans.to_vec(), count, busy: 0, arrived: 0, served: 0 }
    }
}

struct State {
    /// Of all groups together.
    busy: u32,
    waiting: u32,
    groups: Vec<Group>,
}

/// One block per SM; blocks start in the order of their launches, as on a GPU, where a launch that finds no free SM
/// also keeps later ones waiting. Launches of different groups are in no order; each group has its own SMs, and all
/// together no more than the device. Groups that overlap without being the same are counted apart.
pub struct Sms {
    count: u32,
    state: Mutex<State>,
    changed: Condvar,
}

impl State {
    /// Takes one SM of the group, if one is free.
    fn take(&mut self, count: u32, group: usize) -> bool {
        let own = &mut self.groups[group];
        let free = self.busy < count && own.busy < own.count;
        if free {
            own.busy += 1;
            self.busy += 1;
        }
        free
    }
}

impl Sms {
    /// `count` SMs, at least one.
    pub fn new(count: u32) -> Sms {
        let count = count.max(1);
        let state = State { busy: 0, waiting: 0, groups: vec![Group::new(&[], count)] };
        Sms { count, state: Mutex::new(state), changed: Condvar::new() }
    }

    /// How many there are.
    pub fn count(&self) -> u32 {
        self.count
    }

    /// How many a group has.
    pub fn count_of(&self, group: usize) -> u32 {
        if group == ALL { self.count } else { self.state.lock().groups[group].count }
    }

    /// The group of these SMs, the same for the same ones.
    pub fn group(&self, spans: &[Span]) -> usize {
        let mut state = self.state.lock();
        let known = state.groups.iter().position(|group| group.spans == spans);
        known.unwrap_or_else(|| {
            state.groups.push(Group::new(spans, spans.iter().map(|(_, count)| count).sum()));
            state.groups.len() - 1
        })
    }

    /// Waits for this launch's turn; blocks are then started with [`Turn::start_block`].
    pub fn turn(&self, group: usize) -> Turn<'_> {
        let mut state = self.state.lock();
        let mine = state.groups[group].arrived;
        state.groups[group].arrived += 1;
        while state.groups[group].served != mine {
            self.wait(&mut state);
        }
        Turn { sms: self, group }
    }

    /// Takes one SM in turn: the launch of a single block.
    pub fn start_single(&self, group: usize) {
        let mut state = self.state.lock();
        let in_turn = state.groups[group].arrived == state.groups[group].served;
        if in_turn && state.take(self.count, group) {
            return;
        }
        drop(state);
        self.turn(group).start_block();
    }

    /// A block has ended.
    pub fn end_block(&self, group: usize) {
        let mut state = self.state.lock();
        state.busy -= 1;
        state.groups[group].busy -= 1;
        if state.waiting > 0 {
            self.changed.notify_all();
        }
    }

    fn wait(&self, state: &mut parking_lot::MutexGuard<'_, State>) {
        state.waiting += 1;
        self.changed.wait(state);
        state.waiting -= 1;
    }
}

/// The right to start blocks before any later launch of the group does; dropped when all are started.
pub struct Turn<'a> {
    sms: &'a Sms,
    group: usize,
}

impl Turn<'_> {
    /// Waits for a free SM and takes it.
    pub fn start_block(&self) {
        let mut state = self.sms.state.lock();
        while !state.take(self.sms.count, self.group) {
            self.sms.wait(&mut state);
        }
    }
}

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        let mut state = self.sms.state.lock();
        state.groups[self.group].served += 1;
        if state.waiting > 0 {
            self.sms.changed.notify_all();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Arc;
    use std::sync::atomic::{AtomicU32, Ordering};

    /// Eight launches of one block in each of these groups, of which no more than so many run at once.
    fn oversubscribe(sms: &Arc<Sms>, groups: &[(usize, u32)]) {
        let running: Arc<Vec<AtomicU32>> = Arc::new(groups.iter().map(|_| AtomicU32::new(0)).collect());
        let launches = (0..8 * groups.len()).map(|n| {
            let (sms, running, (group, most)) = (sms.clone(), running.clone(), groups[n % groups.len()]);
            std::thread::spawn(move || {
                let own = &running[n % running.len()];
                sms.start_single(group);
                assert!(own.fetch_add(1, Ordering::SeqCst) < most);
                assert!(running.iter().map(|n| n.load(Ordering::SeqCst)).sum::<u32>() <= sms.count());
                std::thread::yield_now();
                own.fetch_sub(1, Ordering::SeqCst);
                sms.end_block(group);
            })
        });
        launches.collect::<Vec<_>>().into_iter().for_each(|launch| launch.join().expect("no panic"));
    }

    #[test]
    fn no_more_than_there_are() {
        let sms = Arc::new(Sms::new(4));
        oversubscribe(&sms, &[(ALL, 4)]);
        let (one, three) = (sms.group(&[(0, 1)]), sms.group(&[(1, 2), (3, 1)]));
        assert_eq!((one, three), (sms.group(&[(0, 1)]), sms.group(&[(1, 2), (3, 1)])));
        assert_eq!([sms.count_of(ALL), sms.count_of(one), sms.count_of(three)], [4, 1, 3]);
        oversubscribe(&sms, &[(one, 1), (three, 3), (ALL, 4)]);
    }

    #[test]
    fn a_full_group_keeps_no_other_waiting() {
        let sms = Sms::new(4);
        let (one, other) = (sms.group(&[(0, 2)]), sms.group(&[(2, 2)]));
        (0..2).for_each(|_| sms.start_single(one));
        std::thread::scope(|scope| {
            let waiting = scope.spawn(|| sms.start_single(one));
            (0..2).for_each(|_| sms.start_single(other));
            sms.end_block(one);
            waiting.join().expect("no panic");
        });
    }
}
