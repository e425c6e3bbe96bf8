use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use parking_lot::Mutex;

use super::letter::{Content, Envelope};
use super::*;
use crate::sys::{Post, SharedFile};

/// The thread is the process's: tests that count on it take turns.
static TURN: Mutex<()> = Mutex::new(());
const LIMIT: Duration = Duration::from_secs(20);

/// Keeps what comes, answers every letter that begins with `?`, and counts ticks.
#[derive(Default)]
struct Listener {
    letters: Mutex<Vec<(Address, Vec<u8>, bool)>>,
    lost: Mutex<Vec<(Address, bool)>>,
    ticks: AtomicUsize,
    every: Option<Duration>,
    /// The post box and address that answers go to.
    answer: Option<([u8; 16], Address)>,
}

impl Source for Listener {
    fn receive(&self, from: Address, bytes: &[u8], fd: Option<OwnedFd>, _lost: bool, out: &mut Outbox) {
        self.letters.lock().push((from, bytes.to_vec(), fd.is_some()));
        if let (Some((post, to)), [b'?', rest @ ..]) = (self.answer, bytes) {
            out.add(Letter { post, to, bytes: rest.to_vec(), fd: None });
        }
        assert!(bytes != b"panic", "as told");
    }

    fn undeliverable(&self, to: Address, died: bool) {
        self.lost.lock().push((to, died));
    }

    fn tick(&self, now: Instant, _out: &mut Outbox) -> Option<Instant> {
        self.ticks.fetch_add(1, Ordering::Relaxed);
        self.every.map(|every| now + every)
    }
}

fn address(rank: u32) -> Address {
    Address { key: rand::random(), rank }
}

fn register(listener: &Arc<Listener>, address: Address) -> Member {
    let source: Arc<dyn Source> = listener.clone();
    join(address, Arc::downgrade(&source)).expect("a helper")
}

fn until(what: &str, ready: impl Fn() -> bool) {
    let limit = Instant::now() + LIMIT;
    while !ready() {
        assert!(Instant::now() < limit, "{what} does not come");
        std::thread::sleep(Duration::from_millis(1));
    }
}

fn helpers() -> usize {
    let tasks = std::fs::read_dir("/proc/self/task").expect("threads");
    let name = |task: std::io::Result<std::fs::DirEntry>| std::fs::read_to_string(task.ok()?.path().join("comm")).ok();
    tasks.filter_map(name).filter(|name| name.trim() == "oxccl-helper").count()
}

#[test]
fn letters_go_from_source_to_source_and_back() {
    let _turn = TURN.lock();
    let (a, b) = (address(0), address(1));
    let first = Arc::new(Listener::default());
    let member = register(&first, a);
    let second = Arc::new(Listener { answer: Some((member.post(), a)), ..Listener::default() });
    let other = register(&second, b);
    assert_eq!(member.post(), other.post());
    let memory = SharedFile::create("test", 4096).expect("memory").into_descriptor();
    let letter = |bytes: &[u8], fd| Letter { post: other.post(), to: b, bytes: bytes.to_vec(), fd };
    member.send([letter(b"memory", Some(Arc::new(memory))), letter(b"?question", None)]);
    until("an answer", || !first.letters.lock().is_empty());
    assert_eq!(*second.letters.lock(), [(a, b"memory".to_vec(), true), (a, b"?question".to_vec(), false)]);
    assert_eq!(*first.letters.lock(), [(b, b"question".to_vec(), false)]);
}

#[test]
fn the_last_source_ends_the_thread() {
    let _turn = TURN.lock();
    for _ in 0..20 {
        let listener = Arc::new(Listener::default());
        let (a, b) = (register(&listener, address(0)), register(&listener, address(1)));
        // A thread names itself when it begins.
        until("the thread", || helpers() == 1);
        drop(a);
        assert_eq!(helpers(), 1);
        drop(b);
        until("the end of the thread", || helpers() == 0);
    }
}

#[test]
fn what_cannot_arrive_is_told() {
    let _turn = TURN.lock();
    let listener = Arc::new(Listener::default());
    let member = register(&listener, address(0));
    let (nobody, dead) = (address(1), address(2));
    let gone = Post::open().expect("a box").name();
    let letter = |post, to| Letter { post, to, bytes: b"x".to_vec(), fd: None };
    member.send([letter(member.post(), nobody), letter(gone, dead)]);
    until("the news", || listener.lost.lock().len() == 2);
    let mut lost = listener.lost.lock().clone();
    lost.sort_by_key(|(to, _)| to.rank);
    assert_eq!(lost, [(nobody, false), (dead, true)]);
}

#[test]
fn one_address_has_one_source() {
    let _turn = TURN.lock();
    let listener = Arc::new(Listener::default());
    let place = address(0);
    let _member = register(&listener, place);
    let source: Arc<dyn Source> = listener.clone();
    assert!(join(place, Arc::downgrade(&source)).is_err());
}

/// A box that nobody empties takes a few letters; the others go when there is room, each once and in order.
#[test]
fn a_full_box_holds_up_no_other() {
    let _turn = TURN.lock();
    let (a, b) = (address(0), address(1));
    let listener = Arc::new(Listener::default());
    let member = register(&listener, a);
    let full = Post::open().expect("a box");
    let letter = |number: u32| Letter { post: full.name(), to: b, bytes: number.to_le_bytes().to_vec(), fd: None };
    member.send((0..2000).map(letter));
    member.send([Letter { post: member.post(), to: a, bytes: b"self".to_vec(), fd: None }]);
    until("the letter to oneself", || !listener.letters.lock().is_empty());
    for number in 0..2000u32 {
        until("a letter", || {
            parcel_of(&full).is_some_and(|bytes| {
                assert_eq!(bytes, number.to_le_bytes());
                true
            })
        });
    }
    assert!(parcel_of(&full).is_none());
}

fn parcel_of(post: &Post) -> Option<Vec<u8>> {
    let parcel = post.take().expect("take")?;
    match Envelope::decode(&parcel.bytes).expect("an envelope").content {
        Content::Bytes(bytes) => Some(bytes),
        Content::NoSource => None,
    }
}

#[test]
fn garbage_and_panics_are_survived() {
    let _turn = TURN.lock();
    let (a, stranger) = (address(0), Post::open().expect("a box"));
    let listener = Arc::new(Listener::default());
    let member = register(&listener, a);
    for bytes in [&b""[..], b"hello", &[0; 500], &[255; 1024]] {
        stranger.send(&member.post(), bytes, None).expect("send");
    }
    let letter = |bytes: &[u8]| Letter { post: member.post(), to: a, bytes: bytes.to_vec(), fd: None };
    member.send([letter(b"panic"), letter(b"after")]);
    until("the letter after", || listener.letters.lock().len() == 2);
}

#[test]
fn sources_are_called_when_they_want() {
    let _turn = TURN.lock();
    let often = Arc::new(Listener { every: Some(Duration::from_millis(2)), ..Listener::default() });
    let never = Arc::new(Listener::default());
    let (_a, b) = (register(&often, address(0)), register(&never, address(1)));
    until("some ticks", || often.ticks.load(Ordering::Relaxed) > 20);
    let before = never.ticks.load(Ordering::Relaxed);
    // Whoever sends wakes the thread.
    b.send([]);
    until("a tick", || never.ticks.load(Ordering::Relaxed) > before);
}

mod properties {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn envelopes_survive_their_encoding(key: u64, rank: u32, reply: [u8; 16], bytes in prop::collection::vec(any::<u8>(), 0..900)) {
            let (to, from) = (Address { key, rank }, Address { key: !key, rank: rank ^ 1 });
            let envelope = Envelope::new(to, from, reply, Content::Bytes(bytes));
            prop_assert_eq!(Envelope::decode(&envelope.encode()), Some(envelope.clone()));
            let back = envelope.bounce([7; 16]).expect("a letter is answered");
            prop_assert_eq!((back.to, back.from), (from, to));
            prop_assert_eq!(back.bounce([8; 16]), None);
        }

        #[test]
        fn any_bytes_are_read_without_harm(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
            let _ = Envelope::decode(&bytes);
        }
    }
}
