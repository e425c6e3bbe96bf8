//! The models.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Instant;

use shuttle::thread;

use super::event_loop::{EventLoops, Registration};
use super::message::{Address, Destination, Message, Undeliverable};
use super::outbox::Outbox;
use super::source::{Progress, Source};
use crate::explore;
use crate::sys::sync::{Condvar, Mutex};

/// Keeps what it hears, and tells whoever waits for it.
#[derive(Default)]
struct Listener {
    heard: Mutex<Heard>,
    news: Condvar,
    /// Answers every message with the same one.
    answers: bool,
    ticks: AtomicUsize,
}

#[derive(Default)]
struct Heard {
    messages: Vec<(u32, u8)>,
    lost: Vec<(u32, Undeliverable)>,
}

impl Listener {
    fn wait(&self, ready: impl Fn(&Heard) -> bool) {
        let mut heard = self.heard.lock();
        while !ready(&heard) {
            self.news.wait(&mut heard);
        }
    }
}

impl Source for Listener {
    fn receive(&self, message: Message, out: &mut Outbox) {
        self.heard.lock().messages.push((message.from.rank, message.bytes()[0]));
        self.news.notify_all();
        if self.answers {
            out.add(Message::new(message.destination, message.from, message.bytes().to_vec(), None));
        }
        if message.bytes() == b"panic" {
            std::panic::resume_unwind(Box::new("a panic of the model"));
        }
    }

    fn undeliverable(&self, to: Address, why: Undeliverable) {
        self.heard.lock().lost.push((to.rank, why));
        self.news.notify_all();
    }

    fn progress(&self, _: Instant, _: &mut Outbox) -> Progress {
        self.ticks.fetch_add(1, Ordering::SeqCst);
        let _held = self.heard.lock();
        self.news.notify_all();
        Progress::default()
    }
}

fn address(rank: u32) -> Address {
    Address { key: 7, rank }
}

fn process() -> Arc<EventLoops> {
    Arc::new(EventLoops::new())
}

fn join(process: &Arc<EventLoops>, rank: u32, listener: &Arc<Listener>) -> Registration {
    let source: Arc<dyn Source> = listener.clone();
    process.join(address(rank), Arc::downgrade(&source)).expect("a helper")
}

fn message(destination: Destination, to: u32, bytes: &[u8]) -> Message {
    Message::new(destination, address(to), bytes.to_vec(), None)
}

fn at(registration: &Registration) -> Destination {
    registration.location().destination(true)
}

/// Sources come and go in three threads: each hears its own message, whether it was the first one, the last one or
/// neither, and after the last one there is no thread; one left behind would keep the model from its end.
#[test]
fn sources_come_and_go() {
    explore(|| {
        let process = process();
        let threads: Vec<_> = (0..3)
            .map(|rank| {
                let process = process.clone();
                thread::spawn(move || {
                    for round in 0..2 {
                        let listener = Arc::new(Listener::default());
                        let member = join(&process, rank, &listener);
                        member.send([message(at(&member), rank, &[round])]);
                        listener.wait(|heard| heard.messages == [(rank, round)]);
                        drop(member);
                    }
                })
            })
            .collect();
        threads.into_iter().for_each(|thread| thread.join().expect("no panic"));
        assert!(process.is_empty());
    });
}

/// Who has joined is called, with no message for anybody.
#[test]
fn who_joins_is_called() {
    explore(|| {
        let process = process();
        let listeners = [Arc::new(Listener::default()), Arc::new(Listener::default())];
        let members = [join(&process, 0, &listeners[0]), join(&process, 1, &listeners[1])];
        for listener in &listeners {
            listener.wait(|_| listener.ticks.load(Ordering::SeqCst) > 0);
        }
        drop(members);
        assert!(process.is_empty());
    });
}

/// Messages to another process arrive once and in order, though its mailbox is small, and so do those to a neighbour,
/// and answers.
#[test]
fn messages_arrive_in_order() {
    const MESSAGES: u8 = 5;
    explore(|| {
        let (here, there) = (process(), process());
        let own = Arc::new(Listener::default());
        let me = join(&here, 0, &own);
        let other = Arc::new(Listener { answers: true, ..Listener::default() });
        let member = join(&there, 1, &other);
        let there_at = at(&member);
        let sender = thread::spawn(move || {
            (0..MESSAGES).for_each(|number| me.send([message(there_at, 1, &[number]), message(at(&me), 0, &[number])]));
            me
        });
        let all = |from: u32, heard: &Heard| {
            let numbers: Vec<u8> =
                heard.messages.iter().filter(|(rank, _)| *rank == from).map(|(_, number)| *number).collect();
            assert!(numbers.iter().copied().eq(0..numbers.len() as u8), "{numbers:?}");
            numbers.len() == MESSAGES as usize
        };
        other.wait(|heard| all(0, heard));
        own.wait(|heard| all(0, heard) && all(1, heard));
        drop(sender.join().expect("no panic"));
        drop(member);
        assert!(own.heard.lock().lost.is_empty() && here.is_empty() && there.is_empty());
    });
}

/// A rank ends while another one writes to it again and again, as who waits for links does: it hears an answer, or that
/// nobody is there, in the end.
#[test]
fn nobody_waits_for_a_rank_that_ends() {
    explore(|| {
        let (here, there) = (process(), process());
        let own = Arc::new(Listener::default());
        let me = join(&here, 0, &own);
        let other = Arc::new(Listener { answers: true, ..Listener::default() });
        let (member, neighbour) = (join(&there, 1, &other), join(&there, 2, &Arc::new(Listener::default())));
        let there_at = at(&member);
        let ender = thread::spawn(move || drop(member));
        let over = Arc::new(AtomicBool::new(false));
        let asker = {
            let over = over.clone();
            thread::spawn(move || {
                while !over.load(Ordering::SeqCst) {
                    me.send([message(there_at, 1, b"?")]);
                    thread::yield_now();
                }
                me
            })
        };
        own.wait(|heard| !heard.messages.is_empty() || !heard.lost.is_empty());
        ender.join().expect("no panic");
        own.wait(|heard| !heard.lost.is_empty());
        over.store(true, Ordering::SeqCst);
        assert!(
            own.heard.lock().lost.iter().all(|(rank, why)| *rank == 1 && *why == Undeliverable::NoSource),
            "its process lives on"
        );
        drop((asker.join().expect("no panic"), neighbour));
        assert!(here.is_empty() && there.is_empty());
    });
}

/// A process ends, with what lies in its mailbox: whoever writes on hears of it.
#[test]
fn nobody_waits_for_a_process_that_ends() {
    explore(|| {
        let (here, there) = (process(), process());
        let own = Arc::new(Listener::default());
        let me = join(&here, 0, &own);
        let member = join(&there, 1, &Arc::new(Listener::default()));
        let there_at = at(&member);
        let ender = thread::spawn(move || drop(member));
        while own.heard.lock().lost.is_empty() {
            me.send([message(there_at, 1, b"?")]);
            thread::yield_now();
        }
        ender.join().expect("no panic");
        me.send([message(there_at, 1, b"again")]);
        own.wait(|heard| heard.lost.contains(&(1, Undeliverable::Died)));
        drop(me);
        assert!(here.is_empty());
    });
}

/// A source that panics is no reason for others to wait; and one may end from within the thread.
#[test]
fn sources_panic_and_end_each_other() {
    explore(|| {
        let process = process();
        let listener = Arc::new(Listener::default());
        let (first, second) = (join(&process, 0, &listener), join(&process, 1, &listener));
        let ended = Arc::new(AtomicUsize::new(0));
        let ender = Arc::new(Ender { member: Mutex::new(Some(second)), ended: ended.clone() });
        let third = {
            let source: Arc<dyn Source> = ender.clone();
            process.join(address(2), Arc::downgrade(&source)).expect("a helper")
        };
        first.send([message(at(&first), 0, b"panic"), message(at(&first), 2, b"end"), message(at(&first), 0, b"x")]);
        listener.wait(|heard| heard.messages.len() == 2);
        assert_eq!(ended.load(Ordering::SeqCst), 1);
        drop((first, third));
        assert!(process.is_empty());
    });
}

/// Ends another source when a message comes.
struct Ender {
    member: Mutex<Option<Registration>>,
    ended: Arc<AtomicUsize>,
}

impl Source for Ender {
    fn receive(&self, _: Message, _: &mut Outbox) {
        let member = self.member.lock().take();
        self.ended.fetch_add(usize::from(member.is_some()), Ordering::SeqCst);
    }

    fn undeliverable(&self, _: Address, _: Undeliverable) {}

    fn progress(&self, _: Instant, _: &mut Outbox) -> Progress {
        Progress::default()
    }
}
