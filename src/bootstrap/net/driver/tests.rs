//! Ranks in the event loop, over real sockets.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};

use super::super::secure_layer::{ConnectionSecurity, SecureLayer};
use super::super::socket::Buffers;
use super::*;
use crate::bootstrap::id::IdParts;
use crate::bootstrap::protocol::wire::{Preamble, Service};
use crate::bootstrap::protocol::{Action, Conn, ConnectError};
use crate::bootstrap::{Bootstrap, Join, NetConfig, UniqueId, create_id};
use crate::proxy::tests::{TURN, helpers};
use crate::secure::Secret;

const LIMIT: Duration = Duration::from_secs(20);

fn join(id: &UniqueId, rank: u32, cancel: Option<Cancel>) -> Bootstrap {
    let join =
        Join { rank, nranks: 2, version: 1, settings: Vec::new(), facts: vec![rank as u8], common: Vec::new(), cancel };
    Bootstrap::join(&NetConfig::default(), id, join).expect("a rank")
}

/// Two ranks that have met; the cancel is that of the first.
fn pair(cancel: Option<Cancel>) -> [Bootstrap; 2] {
    let id = &create_id(&NetConfig::default()).expect("an id");
    std::thread::scope(|scope| {
        let other = scope.spawn(move || join(id, 1, None));
        [join(id, 0, cancel), other.join().expect("no panic")]
    })
}

fn complete_pair() -> [Bootstrap; 2] {
    pair(None).map(|bootstrap| {
        bootstrap.complete();
        bootstrap
    })
}

fn barrier(ranks: &[Bootstrap; 2]) {
    std::thread::scope(|scope| {
        let other = scope.spawn(|| ranks[1].barrier());
        assert_eq!((ranks[0].barrier(), other.join().expect("no panic")), (Ok(()), Ok(())));
    });
}

fn listener_of(bootstrap: &Bootstrap) -> SocketAddr {
    bootstrap.driver.with(|member, _| member.entry(bootstrap.rank)).expect("an entry").address
}

fn until<T>(what: &str, mut look: impl FnMut() -> Option<T>) -> T {
    let limit = Instant::now() + LIMIT;
    loop {
        if let Some(found) = look() {
            return found;
        }
        assert!(Instant::now() < limit, "{what} does not come");
        std::thread::sleep(Duration::from_millis(1));
    }
}

#[test]
fn a_stranger_is_turned_away_while_nobody_waits() {
    let _turn = TURN.lock();
    let ranks = complete_pair();
    for words in [&b"GET / HTTP/1.1\r\n\r\n"[..], &[0x5a; 300]] {
        let mut stream = TcpStream::connect(listener_of(&ranks[0])).expect("a connection");
        stream.set_read_timeout(Some(LIMIT)).expect("a limit");
        stream.write_all(words).expect("written");
        let answer = stream.read(&mut [0; 16]);
        // A reset, where something of it was not read.
        assert!(answer.as_ref().map_or_else(|error| error.kind() != std::io::ErrorKind::WouldBlock, |n| *n == 0));
    }
    barrier(&ranks);
}

/// Whoever answers in the root's place, with all of the id but the secret, is no root: the rank says so, and ends.
#[test]
fn an_impostor_is_no_root() {
    let _turn = TURN.lock();
    let listener = std::net::TcpListener::bind("127.0.0.1:0").expect("a listener");
    let (magic, root) = (sys::random(), listener.local_addr().expect("an address"));
    let id = IdParts { magic, root, fixed: false, token: 7, grow: None, secret: Secret::new([2; 32]) }.encode();
    let security = ConnectionSecurity::new(Secret::new([1; 32]), None);
    let preamble = Preamble::new(magic, Service::Root);
    let answered = Arc::new(AtomicBool::new(false));
    let done = answered.clone();
    let impostor = std::thread::spawn(move || {
        listener.set_nonblocking(true).expect("a mode");
        while !done.load(Ordering::Relaxed) {
            let Ok((mut stream, _)) = listener.accept() else {
                std::thread::sleep(Duration::from_millis(1));
                continue;
            };
            stream.set_nonblocking(false).expect("a mode");
            let (mut layer, mut bytes, mut plain) = (SecureLayer::accepted(), [0; 500], Vec::new());
            let n = stream.read(&mut bytes).expect("a first message");
            let heard = layer.receive(&bytes[..n], (&security, Some(preamble)), sys::random_bytes, &mut plain);
            assert!(heard.is_err() && plain.is_empty());
            // A proof that is none.
            let answer = Preamble::new(preamble.magic, Service::RootAnswer).encode();
            stream.write_all(&[&answer[..], &[2; 200]].concat()).expect("written");
        }
    });
    let join = Join::without_facts((0, 2), 1);
    let error = Bootstrap::join(&NetConfig::default(), &id, join).err().expect("no rank");
    answered.store(true, Ordering::Relaxed);
    impostor.join().expect("no panic");
    assert!(matches!(error, Error::Remote { .. }), "{error}");
    assert!(error.to_string().contains("it does not know the secret of this ncclUniqueId"), "{error}");
}

#[test]
fn a_rank_that_leaves_is_noticed_while_nobody_waits() {
    let _turn = TURN.lock();
    let [first, second] = complete_pair();
    assert_eq!(first.why_gone(1), None);
    drop(second);
    let error = until("the news", || first.why_gone(1));
    assert!(matches!(&error, Error::Remote { rank: Some(1), text } if text.contains("has left")), "{error}");
    assert_eq!(first.why_gone(0), None);
}

#[test]
fn a_rank_alone_needs_no_thread_once_it_is_complete() {
    let _turn = TURN.lock();
    let id = create_id(&NetConfig::default()).expect("an id");
    let join =
        Join { rank: 0, nranks: 1, version: 1, settings: Vec::new(), facts: vec![5], common: Vec::new(), cancel: None };
    let alone = Bootstrap::join(&NetConfig::default(), &id, join).expect("a rank");
    alone.complete();
    until("the end of the thread", || (helpers() == 0).then_some(()));
    assert_eq!(alone.all_gather(b"own"), Ok(vec![b"own".to_vec()]));
    assert_eq!((alone.send(0, 3, b"x"), alone.recv(0, 3)), (Ok(()), Ok(b"x".to_vec())));
    assert_eq!(alone.facts(0), [5]);
}

/// Does something in the event loop's thread, once.
struct Once<F: FnOnce() + Send>(Mutex<Option<F>>);

impl<F: FnOnce() + Send> Source for Once<F> {
    fn receive(&self, _: Message, _: &mut Outbox) {}

    fn undeliverable(&self, _: Address, _: Undeliverable) {}

    fn progress(&self, _: Instant, _: &mut Outbox) -> Progress {
        let act = self.0.lock().take();
        act.into_iter().for_each(|act| act());
        Progress::default()
    }
}

fn in_the_loop(act: impl FnOnce() + Send + 'static) -> (proxy::Registration, Arc<dyn Source>) {
    let source: Arc<dyn Source> = Arc::new(Once(Mutex::new(Some(act))));
    let address = Address { key: sys::random(), rank: 0 };
    (proxy::join(address, Arc::downgrade(&source)).expect("an event loop"), source)
}

#[test]
fn a_cancel_ends_a_wait_though_the_loop_is_held_up() {
    let _turn = TURN.lock();
    let cancel = Cancel::new();
    let [first, second] = pair(Some(cancel.clone()));
    let (reached, held) = (Arc::new(AtomicBool::new(false)), Arc::new(Mutex::new(())));
    let release = held.lock();
    let _source = {
        let (reached, held) = (reached.clone(), held.clone());
        in_the_loop(move || {
            reached.store(true, Ordering::Release);
            drop(held.lock());
        })
    };
    until("the loop", || reached.load(Ordering::Acquire).then_some(()));
    std::thread::scope(|scope| {
        let receiving = scope.spawn(|| first.recv(1, 9));
        std::thread::sleep(Duration::from_millis(20));
        cancel.fire();
        assert_eq!(receiving.join().expect("no panic"), Err(Error::Aborted));
    });
    drop(release);
    let error = second.barrier().expect_err("rank 0 has failed");
    assert!(matches!(error, Error::Remote { rank: Some(0), .. }), "{error}");
}

#[test]
fn the_loops_thread_lets_go_without_a_wait() {
    let _turn = TURN.lock();
    let [first, second] = complete_pair();
    let (_registration, _source) = in_the_loop(move || drop(first));
    let error = until("the goodbye", || second.why_gone(0));
    assert!(error.to_string().contains("has left"), "{error}");
}

/// What must reach others first does so: the root, which lives in the same thread, tells them before the rank goes.
#[test]
fn a_failed_rank_that_the_loops_thread_drops_is_named() {
    let _turn = TURN.lock();
    let [first, second] = pair(None);
    let (_registration, _source) = in_the_loop(move || {
        first.fail(&Error::Resource("no memory left".to_string()));
        drop(first);
    });
    let error = second.barrier().expect_err("rank 0 has failed");
    let named = matches!(&error, Error::Remote { rank: Some(0), text } if text.contains("no memory left"));
    assert!(named, "{error}");
}

#[test]
fn the_loops_thread_does_not_wait_for_itself() {
    let _turn = TURN.lock();
    let ranks = complete_pair();
    let (answer, kept) = (Arc::new(Mutex::new(None)), Arc::new(ranks));
    let _source = {
        let (answer, ranks) = (answer.clone(), kept.clone());
        in_the_loop(move || *answer.lock() = Some(ranks[0].recv(1, 9)))
    };
    let answer = until("an answer", || answer.lock().take());
    assert!(matches!(answer, Err(Error::Internal(_))), "{answer:?}");
}

/// A machine that wants to be called at once, and counts or panics.
struct TickingMachine {
    ticks: u32,
    most: u32,
    panics: bool,
}

impl Machine for TickingMachine {
    fn accepted(&mut self, _: Duration, _: SocketAddr) -> Conn {
        0
    }

    fn connected(&mut self, _: Duration, _: Conn, _: Result<(), ConnectError>) {}

    fn received(&mut self, _: Duration, _: Conn, _: &[u8]) {}

    fn closed(&mut self, _: Duration, _: Conn, _: Option<String>) {}

    fn tick(&mut self, _: Duration) {
        assert!(!self.panics, "as told");
        self.ticks += 1;
    }

    fn deadline(&self) -> Option<Duration> {
        (self.ticks < self.most).then_some(Duration::ZERO)
    }

    fn action(&mut self) -> Option<Action> {
        None
    }
}

fn ticking(most: u32, panics: bool) -> MachineDriver<TickingMachine> {
    let machine = |_| TickingMachine { ticks: 0, most, panics };
    let security = ConnectionSecurity::new(Secret::new([0; 32]), None);
    let wire = WireSettings { buffers: Buffers::default(), security };
    MachineDriver::new(machine, None, None, wire).expect("a driver")
}

#[test]
fn a_panic_leaves_nobody_waiting() {
    let _turn = TURN.lock();
    let stop = ticking(1, true).run(None, |_| None::<()>).expect_err("a panic");
    assert!(matches!(stop, Stop::System(Error::Internal(_))), "{stop:?}");
}

#[test]
fn a_machine_is_called_when_it_wants_and_not_again() {
    let _turn = TURN.lock();
    let driver = ticking(3, false);
    assert_eq!(driver.run(None, |machine| (machine.ticks == 3).then_some(7)).expect("ticks"), 7);
    let late = driver.run(Some(Instant::now() + Duration::from_millis(5)), |machine| (machine.ticks > 3).then_some(()));
    assert!(matches!(late, Err(Stop::Late)), "{late:?}");
    // Who asks for something new is heard at once.
    driver.with(|machine, _| machine.most = 4);
    driver.run(None, |machine| (machine.ticks == 4).then_some(())).expect("another tick");
}
