use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use parking_lot::Mutex;

use super::*;
use crate::sys::{MESSAGE_MAX, Mailbox, Ready, SharedFile};

mod tcp;

/// The thread is the process's: tests that count on it take turns.
pub(crate) static TURN: Mutex<()> = Mutex::new(());
const LIMIT: Duration = Duration::from_secs(60);

/// Keeps what comes, answers every message that begins with `?`, and counts ticks.
#[derive(Default)]
struct RecordingSource {
    messages: Mutex<Vec<(Address, Vec<u8>, bool)>>,
    lost: Mutex<Vec<(Address, Undeliverable)>>,
    streams: Mutex<Vec<(u64, SecureStream)>>,
    ticks: AtomicUsize,
    every: Option<Duration>,
}

impl Source for RecordingSource {
    fn receive(&self, mut message: Message, out: &mut Outbox) {
        let fd = message.take_fd();
        self.messages.lock().push((message.from, message.bytes().to_vec(), fd.is_some()));
        if let [b'?', rest @ ..] = message.bytes() {
            out.add(Message::new(message.destination, message.from, rest.to_vec(), None));
        }
        assert!(message.bytes() != b"panic", "as told");
    }

    fn undeliverable(&self, to: Address, why: Undeliverable) {
        self.lost.lock().push((to, why));
    }

    fn connected(&self, token: u64, stream: SecureStream) {
        self.streams.lock().push((token, stream));
    }

    fn progress(&self, now: Instant, _out: &mut Outbox) -> Progress {
        self.ticks.fetch_add(1, Ordering::Relaxed);
        Progress::at(self.every.map(|every| now + every))
    }
}

fn address(rank: u32) -> Address {
    Address { key: rand::random(), rank }
}

fn register(listener: &Arc<RecordingSource>, address: Address) -> Registration {
    let source: Arc<dyn Source> = listener.clone();
    join(address, Arc::downgrade(&source)).expect("a helper")
}

/// Where a source of this host receives.
fn here(registration: &Registration) -> Destination {
    registration.location().destination(true)
}

fn until(what: &str, mut ready: impl FnMut() -> bool) {
    let limit = Instant::now() + LIMIT;
    while !ready() {
        assert!(Instant::now() < limit, "{what} does not come");
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// How many threads of the event loop there are.
pub(crate) fn helpers() -> usize {
    let tasks = std::fs::read_dir("/proc/self/task").expect("threads");
    let name = |task: std::io::Result<std::fs::DirEntry>| std::fs::read_to_string(task.ok()?.path().join("comm")).ok();
    tasks.filter_map(name).filter(|name| name.trim() == "oxccl-helper").count()
}

#[test]
fn messages_go_from_source_to_source_and_back() {
    let _turn = TURN.lock();
    let (a, b) = (address(0), address(1));
    let first = Arc::new(RecordingSource::default());
    let member = register(&first, a);
    let second = Arc::new(RecordingSource::default());
    let other = register(&second, b);
    assert_eq!(member.location(), other.location());
    let memory = SharedFile::create("test", 4096).expect("memory").into_descriptor();
    let message = |bytes: &[u8], fd| Message::new(here(&other), b, bytes.to_vec(), fd);
    member.send([message(b"memory", Some(Arc::new(memory))), message(b"?question", None)]);
    until("an answer", || !first.messages.lock().is_empty());
    assert_eq!(*second.messages.lock(), [(a, b"memory".to_vec(), true), (a, b"?question".to_vec(), false)]);
    assert_eq!(*first.messages.lock(), [(b, b"question".to_vec(), false)]);
}

#[test]
fn the_last_source_ends_the_thread() {
    let _turn = TURN.lock();
    for _ in 0..20 {
        let listener = Arc::new(RecordingSource::default());
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
    let listener = Arc::new(RecordingSource::default());
    let member = register(&listener, address(0));
    let (nobody, dead) = (address(1), address(2));
    let gone = Mailbox::open().expect("a mailbox").name();
    let message = |destination, to, bytes| Message::new(destination, to, vec![1; bytes], None);
    member.send([message(here(&member), nobody, 1), message(Destination::Unix(gone), dead, 1)]);
    until("the news", || listener.lost.lock().len() == 2);
    let mut lost = listener.lost.lock().clone();
    lost.sort_by_key(|(to, _)| to.rank);
    assert_eq!(lost, [(nobody, Undeliverable::NoSource), (dead, Undeliverable::Died)]);
    member.send([message(here(&member), nobody, MESSAGE_MAX)]);
    until("the news", || listener.lost.lock().len() == 3);
    assert!(matches!(&listener.lost.lock()[2].1, Undeliverable::Failed(crate::error::Error::Internal(_))));
}

#[test]
fn one_address_has_one_source() {
    let _turn = TURN.lock();
    let listener = Arc::new(RecordingSource::default());
    let place = address(0);
    let _member = register(&listener, place);
    let source: Arc<dyn Source> = listener.clone();
    assert!(join(place, Arc::downgrade(&source)).is_err());
}

/// A mailbox that nobody empties takes a few messages; the others go when there is room, each once and in order.
#[test]
fn a_full_mailbox_holds_up_no_other() {
    let _turn = TURN.lock();
    let (a, b) = (address(0), address(1));
    let listener = Arc::new(RecordingSource::default());
    let member = register(&listener, a);
    let full = Mailbox::open().expect("a mailbox");
    let message = |number: u32| Message::new(Destination::Unix(full.name()), b, number.to_le_bytes().to_vec(), None);
    member.send((0..2000).map(message));
    member.send([Message::new(here(&member), a, b"self".to_vec(), None)]);
    until("the message to oneself", || !listener.messages.lock().is_empty());
    for number in 0..2000u32 {
        until("a message", || {
            datagram_of(&full).is_some_and(|bytes| {
                assert_eq!(bytes, number.to_le_bytes());
                true
            })
        });
    }
    assert!(datagram_of(&full).is_none());
}

fn datagram_of(mailbox: &Mailbox) -> Option<Vec<u8>> {
    let datagram = mailbox.take().expect("take")?;
    let message = Message::decode_datagram(&datagram.bytes, datagram.fd, datagram.lost).expect("a message");
    Some(message.bytes().to_vec())
}

#[test]
fn garbage_and_panics_are_survived() {
    let _turn = TURN.lock();
    let (a, stranger) = (address(0), Mailbox::open().expect("a mailbox"));
    let listener = Arc::new(RecordingSource::default());
    let member = register(&listener, a);
    for bytes in [&b""[..], b"hello", &[0; 500], &[255; 1024]] {
        stranger.send(&member.location().mailbox, bytes, None).expect("send");
    }
    let message = |bytes: &[u8]| Message::new(here(&member), a, bytes.to_vec(), None);
    member.send([message(b"panic"), message(b"after")]);
    until("the message after", || listener.messages.lock().len() == 2);
}

#[test]
fn sources_are_called_when_they_want() {
    let _turn = TURN.lock();
    let often = Arc::new(RecordingSource { every: Some(Duration::from_millis(2)), ..RecordingSource::default() });
    let never = Arc::new(RecordingSource::default());
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
        fn messages_survive_their_encoding(
            key: u64,
            rank: u32,
            mailbox: [u8; 16],
            listener: Option<(std::net::SocketAddr, u128)>,
            sealed: bool,
            bytes in prop::collection::vec(any::<u8>(), 0..900),
        ) {
            let (to, from) = (Address { key, rank }, Address { key: !key, rank: rank ^ 1 });
            let reply = Location { mailbox, tcp: listener.map(|(at, key)| TcpAddress::new(at, key, sealed)) };
            let message = Message { from, reply, ..Message::new(Destination::Unix([1; 16]), to, bytes.clone(), None) };
            // What is in front of the content has its share of the room.
            prop_assert!(message.encode().len() <= bytes.len() + 128);
            let decoded = Message::decode(&message.encode(), 3).expect("a message");
            prop_assert_eq!((decoded.to, decoded.from, decoded.reply, decoded.bytes()), (to, from, reply, &bytes[..]));
            prop_assert_eq!(decoded.destination, Destination::Back(3));
            let decoded = Message::decode_datagram(&message.encode(), None, false).expect("a message");
            prop_assert_eq!(decoded.destination, Destination::Unix(mailbox));
            let back = decoded.bounce().expect("a message is answered");
            prop_assert_eq!((back.to, back.from, back.destination), (from, to, Destination::Unix(mailbox)));
            prop_assert!(back.bounce().is_none());
        }

        #[test]
        fn any_bytes_are_read_without_harm(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
            let _ = Message::decode(&bytes, 0);
        }
    }
}

/// Moves something for some turns, reads its descriptor, and counts turns.
#[derive(Default)]
struct Mover {
    left: AtomicUsize,
    turns: AtomicUsize,
    read: Mutex<Vec<(u32, u8)>>,
    input: Option<std::os::unix::net::UnixStream>,
}

impl Source for Mover {
    fn receive(&self, _: Message, _: &mut Outbox) {}

    fn undeliverable(&self, _: Address, _: Undeliverable) {}

    fn ready(&self, token: u32, ready: Ready, _: &mut Outbox) {
        let mut byte = [0];
        let read = self.input.as_ref().map(|mut input| std::io::Read::read(&mut input, &mut byte));
        assert!(ready.readable && matches!(read, Some(Ok(1))), "{ready:?} {read:?}");
        self.read.lock().push((token, byte[0]));
    }

    fn progress(&self, _: Instant, _: &mut Outbox) -> Progress {
        self.turns.fetch_add(1, Ordering::Relaxed);
        let left = self.left.load(Ordering::Relaxed);
        self.left.store(left.saturating_sub(1), Ordering::Relaxed);
        Progress { moved: left > 0, next: None }
    }
}

fn register_mover(mover: &Arc<Mover>) -> Registration {
    let source: Arc<dyn Source> = mover.clone();
    join(address(0), Arc::downgrade(&source)).expect("an event loop")
}

#[test]
fn who_moves_something_has_turn_after_turn_and_nobody_else_without_need() {
    let _turn = TURN.lock();
    let (idle, mover) = (Arc::new(Mover::default()), Arc::new(Mover::default()));
    let idle_registration = register_mover(&idle);
    let registration = register_mover(&mover);
    until("the first turns", || idle.turns.load(Ordering::Relaxed) == 1 && mover.turns.load(Ordering::Relaxed) == 1);
    mover.left.store(1000, Ordering::Relaxed);
    registration.wake();
    until("all turns", || mover.turns.load(Ordering::Relaxed) == 1002);
    std::thread::sleep(Duration::from_millis(20));
    assert_eq!((idle.turns.load(Ordering::Relaxed), mover.turns.load(Ordering::Relaxed)), (1, 1002));
    idle_registration.wake();
    until("a turn", || idle.turns.load(Ordering::Relaxed) == 2);
}

/// Who moves without end holds up neither messages nor descriptors of others, nor times.
#[test]
fn who_moves_holds_up_nobody() {
    let _turn = TURN.lock();
    let (input, mut output) = std::os::unix::net::UnixStream::pair().expect("a pair");
    let busy = Arc::new(Mover { left: AtomicUsize::new(usize::MAX), ..Mover::default() });
    let reader = Arc::new(Mover { input: Some(input), ..Mover::default() });
    let timer = Arc::new(RecordingSource { every: Some(Duration::from_millis(1)), ..RecordingSource::default() });
    let (_busy, registration) = (register_mover(&busy), register_mover(&reader));
    let place = address(2);
    let listener = register(&timer, place);
    let fd = || std::os::fd::AsFd::as_fd(reader.input.as_ref().expect("an input"));
    registration.watch(fd(), 5, crate::sys::Interest::READ).expect("watched");
    std::io::Write::write_all(&mut output, b"ab").expect("written");
    listener.send([Message::new(here(&listener), place, b"x".to_vec(), None)]);
    until("bytes", || *reader.read.lock() == [(5, b'a'), (5, b'b')]);
    until("a message", || !timer.messages.lock().is_empty());
    until("times", || timer.ticks.load(Ordering::Relaxed) > 3);
    registration.unwatch(fd());
    std::io::Write::write_all(&mut output, b"c").expect("written");
    std::thread::sleep(Duration::from_millis(5));
    assert_eq!(reader.read.lock().len(), 2);
}
