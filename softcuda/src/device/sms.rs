//! The multiprocessors of a device: how many blocks run at once, and in which order they start.

use parking_lot::{Condvar, Mutex};

#[derive(Default)]
struct State {
    busy: u32,
    /// Launches that have asked to start blocks, and those of them that have started all.
    arrived: u64,
    served: u64,
    waiting: u32,
}

/// One block per SM; blocks start in the order of their launches, as on a GPU, where a launch that finds no free SM
/// also keeps later ones waiting.
pub struct Sms {
    count: u32,
    state: Mutex<State>,
    changed: Condvar,
}

impl Sms {
    /// `count` SMs, at least one.
    pub fn new(count: u32) -> Sms {
        Sms { count: count.max(1), state: Mutex::default(), changed: Condvar::new() }
    }

    /// How many there are.
    pub fn count(&self) -> u32 {
        self.count
    }

    /// Waits for this launch's turn; blocks are then started with [`Turn::start_block`].
    pub fn turn(&self) -> Turn<'_> {
        let mut state = self.state.lock();
        let mine = state.arrived;
        state.arrived += 1;
        while state.served != mine {
            self.wait(&mut state);
        }
        Turn { sms: self }
    }

    /// Takes one SM in turn: the launch of a single block.
    pub fn start_single(&self) {
        let mut state = self.state.lock();
        if state.arrived == state.served && state.busy < self.count {
            state.busy += 1;
            return;
        }
        drop(state);
        self.turn().start_block();
    }

    /// A block has ended.
    pub fn end_block(&self) {
        let mut state = self.state.lock();
        state.busy -= 1;
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

/// The right to start blocks before any later launch does; dropped when all are started.
pub struct Turn<'a> {
    sms: &'a Sms,
}

impl Turn<'_> {
    /// Waits for a free SM and takes it.
    pub fn start_block(&self) {
        let mut state = self.sms.state.lock();
        while state.busy >= self.sms.count {
            self.sms.wait(&mut state);
        }
        state.busy += 1;
    }
}

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        let mut state = self.sms.state.lock();
        state.served += 1;
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

    #[test]
    fn no_more_than_there_are() {
        let sms = Arc::new(Sms::new(2));
        let running = Arc::new(AtomicU32::new(0));
        let launches: Vec<_> = (0..8)
            .map(|_| {
                let (sms, running) = (sms.clone(), running.clone());
                std::thread::spawn(move || {
                    sms.start_single();
                    assert!(running.fetch_add(1, Ordering::SeqCst) < 2);
                    std::thread::yield_now();
                    running.fetch_sub(1, Ordering::SeqCst);
                    sms.end_block();
                })
            })
            .collect();
        for launch in launches {
            launch.join().expect("no panic");
        }
    }
}
