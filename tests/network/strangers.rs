//! Strangers at all listeners, at any time: they cost nobody anything but a few lines of the log.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

use nccl::bootstrap::protocol::wire::{Preamble, Service};
use nccl::secure::{HandshakeProgress, Protection, RANDOM_BYTES, Secret, SecureHandshake, UserKey};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use socket2::{Domain, SockAddr, Socket, Type};

use crate::common::launch::{self, Running};
use crate::logged::{job, texts};
use crate::member::{Member, await_that};

/// How many connect at once.
const CROWD: usize = 1000;
/// The most lines of a rank about strangers. Each listener has its own limit.
const LINES: usize = 200;

/// The ranks' part: the test says when they go on, so that it knows what they are doing.
fn body() {
    let me = launch::child().expect("a rank");
    if me.rank == 1 {
        // Rank 0 is in its initialisation meanwhile.
        me.await_published("join");
    }
    let member = Member::join(&me, "id").unwrap_or_else(|failure| panic!("{failure:?}"));
    println!("joined");
    let rounds = member.sum_until(&me, "enough");
    println!("idle after {rounds} calls");
    me.await_published("go on");
    member.sum_until(&me, "end");
    member.end();
}

/// All connections that somebody has made and does not close.
#[derive(Default)]
struct Crowd(Vec<Socket>);

impl Crowd {
    /// Comes to a listener in every way that strangers do; some know how a message of this run begins.
    fn visit(&mut self, at: SocketAddr, id: &[u8]) {
        let begin = &id[..8];
        for bytes in [
            begin,
            &begin[..5],
            &[begin, &[0xff; 100]].concat(),
            &b"GET /metrics HTTP/1.1\r\nHost: a\r\n\r\n"[..],
            &[0x16, 0x03, 0x01, 0, 200, 1, 0, 0, 196, 3, 3],
            &[0; 5],
            &[0xff; 4096],
            b"oxccl",
            b"",
        ] {
            // Half of a message, and no more: the connection stays.
            let Ok(mut stream) = TcpStream::connect_timeout(&at, Duration::from_secs(5)) else { return };
            let _ = stream.write_all(bytes);
            self.0.push(stream.into());
        }
        self.impostors(at, id);
        scan(at);
        for _ in 0..CROWD {
            let Ok(socket) = Socket::new(Domain::for_address(at), Type::STREAM.nonblocking().cloexec(), None) else {
                return;
            };
            let _ = socket.connect(&SockAddr::from(at));
            self.0.push(socket);
        }
    }
}

impl Crowd {
    /// Speaks the library's own protocols without the id's secret, but with all else that is in it.
    fn impostors(&mut self, at: SocketAddr, id: &[u8]) {
        let secret = Secret::new([7; 32]);
        let magic = u64::from_ne_bytes(id[..8].try_into().expect("eight bytes"));
        let root = Preamble::new(magic, Service::Root).encode().to_vec();
        // What it would be without a handshake: an event loop's connection for messages, and a stream.
        let messages = 0x6f78_7464u32.to_le_bytes().to_vec();
        let stream = [&0x6f78_7374u32.to_le_bytes()[..], &[1; 20]].concat();
        for hello in [root, messages, stream] {
            for protection in [Protection::Plain, Protection::Sealed, Protection::Encrypted(UserKey::new(&[1; 32]))] {
                let mut handshake = SecureHandshake::connect(&hello, &secret, protection, [9; RANDOM_BYTES]);
                let Ok(mut stream) = TcpStream::connect_timeout(&at, Duration::from_secs(5)) else { return };
                let first = [&hello[..], &handshake.output()].concat();
                let _ = stream.set_read_timeout(Some(Duration::from_millis(20)));
                let (_, mut answer) = (stream.write_all(&first), vec![0; 500]);
                if let Ok(n @ 16..) = stream.read(&mut answer) {
                    // It answers to show that it knows the secret, which this one cannot tell.
                    let answer = &mut &answer[if hello.len() == 16 { 16 } else { 0 }..n];
                    assert!(!matches!(handshake.receive(answer), Ok(HandshakeProgress::Met(_))));
                    let _ = stream.write_all(&[&[3; 48][..], &[5; 200]].concat());
                }
                self.0.push(stream.into());
            }
        }
    }
}

/// A scan of ports: nothing is said, the end is orderly or a reset.
fn scan(at: SocketAddr) {
    for at_once in (0..10).map(|i| i % 2 == 0) {
        let Ok(stream) = TcpStream::connect_timeout(&at, Duration::from_secs(5)) else { return };
        let _ = Socket::from(stream).set_linger(at_once.then_some(Duration::ZERO));
    }
}

/// The addresses that ranks listen at, as they have logged them: of the root, of a rank's rendezvous, for messages.
fn listeners(running: &Running, rank: usize) -> Vec<SocketAddr> {
    let address = |line: &str| {
        if let Some((_, at)) = line.split_once("listening for other ranks at ") {
            return at.split_once(',')?.0.parse().ok();
        }
        let (_, at) = line.split_once("Bootstrap: listening for ")?.1.rsplit_once(" on ")?;
        let (ip, port) = at.strip_suffix('>')?.split_once('<')?;
        Some(SocketAddr::new(ip.parse().ok()?, port.parse().ok()?))
    };
    running.stdout(rank).lines().filter_map(address).collect()
}

fn says(running: &Running, rank: usize, text: &str) -> bool {
    running.stdout(rank).lines().any(|line| line.contains(text))
}

/// Many descriptors for the crowd.
fn raise_limit() {
    let Rlimit { maximum, .. } = getrlimit(Resource::Nofile);
    let current = Some(maximum.map_or(20_000, |most| most.min(20_000)));
    setrlimit(Resource::Nofile, Rlimit { current, maximum }).expect("a limit may be raised");
}

#[test]
fn cost_nothing_at_any_time() {
    if launch::child().is_some() {
        return body();
    }
    raise_limit();
    // Names of hosts keep ranks from sharing memory.
    let names = |job: launch::Job| job.env_of(0, "NCCL_HOSTID", "a").env_of(1, "NCCL_HOSTID", "b");
    let running = names(job("strangers::cost_nothing_at_any_time", 2)).start();
    let publish = |name: &str| std::fs::write(running.dir().join(name), b"").expect("the job's folder can be written");
    let mut crowd = Crowd::default();

    // Rank 0 waits for rank 1: its root, its listener of the rendezvous, its listener for messages.
    await_that("rank 0 listens", || listeners(&running, 0).len() >= 3);
    let id = std::fs::read(running.dir().join("id")).expect("rank 0 has published the id");
    let mut visit = |ranks: &[usize]| {
        ranks.iter().flat_map(|rank| listeners(&running, *rank)).for_each(|at| crowd.visit(at, &id));
    };
    visit(&[0]);
    publish("join");
    // Both join, between strangers.
    await_that("both have joined", || {
        [0, 1].iter().flat_map(|rank| listeners(&running, *rank)).for_each(scan);
        [0, 1].iter().all(|rank| says(&running, *rank, "joined"))
    });
    // In the middle of calls, at what listens then.
    visit(&[0, 1]);
    publish("enough");
    await_that("the ranks are idle", || [0, 1].iter().all(|rank| says(&running, *rank, "idle after")));
    visit(&[0, 1]);
    publish("go on");
    visit(&[0, 1]);
    publish("end");
    let outcome = running.wait();
    outcome.assert_ok();
    for rank in 0..2 {
        let about =
            |line: &&String| ["a connection from", "not of this library"].iter().any(|part| line.contains(part));
        let lines = texts(&outcome, rank);
        let count = lines.iter().filter(about).count();
        assert!((1..=LINES).contains(&count), "rank {rank} has {count} lines about strangers\n{outcome}");
        assert!(lines.iter().any(|line| line.contains("not of this library")), "{outcome}");
    }
    assert!(texts(&outcome, 0).iter().any(|line| line.contains("lines like the last ones were left out")), "{outcome}");
    println!("{} connections", crowd.0.len());
}
