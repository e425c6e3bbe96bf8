//! A gateway that publishes the ports of all hosts at addresses of its own, and does harm to what goes through it.

use std::io::{Read, Write};
use std::net::{Ipv4Addr, Shutdown, SocketAddr, TcpListener, TcpStream};
use std::ops::RangeInclusive;
use std::path::PathBuf;
use std::process;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread;
use std::time::Duration;

use rand::rngs::SmallRng;
use rand::{RngExt, SeedableRng};
use rustix::net::connect_unspec;

use crate::common::hosts::Hosts;
use crate::common::launch::{self, Job};
use crate::plan::{Harm, MOST_HOSTS, Place, Plan};

/// What it publishes of each host: two ports for each rank, and some more for communicators that are made.
const PORTS: RangeInclusive<u16> = 43_000..=43_011;
/// How a connection for data begins, and how much of it is not data where nothing is encrypted: from who connects, and
/// from who accepts.
const STREAM: [u8; 4] = 0x6f78_7374u32.to_le_bytes();
const PLAIN_HANDSHAKE: [usize; 2] = [40, 40];
/// Most that a piece is held up where everything is.
const MOST_DELAY_US: u64 = 2000;

/// Hosts of runs, and one for the gateway.
pub fn hosts() -> Option<Hosts> {
    let gateway = MOST_HOSTS + 1;
    let host = |host| {
        let routes = (host != gateway).then(|| format!("ip -n h{host} route add 10.77.0.0/24 dev eth0; "));
        let own = (host != gateway).then(|| format!("ip -n h{gateway} addr add 10.77.0.{host}/24 dev eth0; "));
        let address = format!("ip -n h{host} addr add 10.9.0.{host}/24 dev eth0; ");
        address + &own.unwrap_or_default() + &routes.unwrap_or_default()
    };
    Hosts::with(gateway, &(1..=gateway).map(host).collect::<String>())
}

/// Has ranks tell others the gateway's addresses in place of their own.
pub fn publish(plan: &Plan, job: Job) -> Job {
    let job = job.env("OXCCL_PORT_RANGE", format!("{}-{}", PORTS.start(), PORTS.end()));
    plan.places
        .iter()
        .enumerate()
        .fold(job, |job, (rank, host)| job.env_of(rank, "OXCCL_ADVERTISE", format!("10.77.0.{}", host + 1)))
}

/// What the gateway's threads share.
struct Gateway {
    harm: Harm,
    place: Place,
    encrypted: bool,
    seed: u64,
    /// What it is counted from: before, ranks make communicators of their own.
    begins: PathBuf,
    connections: AtomicUsize,
    /// It was done: once is enough.
    done: AtomicBool,
}

/// One direction of a connection.
struct Direction {
    gateway: Arc<Gateway>,
    connection: usize,
    forth: bool,
    /// It is for data that are not encrypted.
    plain: Arc<AtomicBool>,
    from: TcpStream,
    to: TcpStream,
    at: usize,
    random: SmallRng,
}

/// The gateway's part of a run, until it is told that all ranks have ended.
pub fn live(me: &launch::Place, plan: &Plan, harm: Harm, place: Place) {
    let (connections, done) = (AtomicUsize::new(0), AtomicBool::new(false));
    let (encrypted, seed, begins) = (plan.encrypted, plan.seed, me.dir.join("id"));
    let gateway = Arc::new(Gateway { harm, place, encrypted, seed, begins, connections, done });
    for (host, port) in (1..=plan.hosts() as u8).flat_map(|host| PORTS.map(move |port| (host, port))) {
        let listener = TcpListener::bind((Ipv4Addr::new(10, 77, 0, host), port)).expect("the gateway's address");
        let gateway = Arc::clone(&gateway);
        thread::spawn(move || {
            for near in listener.incoming().flatten() {
                // Where nobody listens, the connection ends at once.
                if let Ok(far) = TcpStream::connect(SocketAddr::from(([10, 9, 0, host], port))) {
                    gateway.carry(&near, &far);
                }
            }
        });
    }
    me.publish("gateway", b"");
    me.await_published("over");
    println!("{} connections", gateway.connections.load(Ordering::Relaxed));
}

impl Gateway {
    /// Carries bytes between two connections.
    fn carry(self: &Arc<Gateway>, near: &TcpStream, far: &TcpStream) {
        let counts = self.begins.exists();
        let connection = if counts { self.connections.fetch_add(1, Ordering::Relaxed) } else { usize::MAX };
        let plain = Arc::new(AtomicBool::new(false));
        for forth in [true, false] {
            let (from, to) = if forth { (near, far) } else { (far, near) };
            let (Ok(from), Ok(to)) = (from.try_clone(), to.try_clone()) else { return };
            let _ = to.set_nodelay(true);
            let random = SmallRng::seed_from_u64(self.seed ^ (connection as u64) << 1 ^ u64::from(forth));
            let (gateway, plain) = (Arc::clone(self), Arc::clone(&plain));
            let direction = Direction { gateway, connection, forth, plain, from, to, at: 0, random };
            thread::spawn(move || direction.carry());
        }
    }
}

impl Direction {
    fn carry(mut self) {
        let mut buffer = vec![0; 64 << 10];
        while let Ok(n @ 1..) = self.from.read(&mut buffer) {
            if self.at == 0 && self.forth {
                let plain = !self.gateway.encrypted && buffer[..n].starts_with(&STREAM);
                self.plain.store(plain, Ordering::Relaxed);
            }
            let piece = &mut buffer[..n];
            if !self.harm(piece) || self.to.write_all(piece).is_err() {
                break;
            }
            self.at += n;
        }
        let _ = self.to.shutdown(Shutdown::Write);
    }

    /// Does its harm if this is the place. Whether the direction goes on.
    fn harm(&mut self, piece: &mut [u8]) -> bool {
        let Gateway { harm, place, .. } = *self.gateway;
        if harm == Harm::Delay {
            thread::sleep(Duration::from_micros(self.random.random_range(0..MOST_DELAY_US)));
            return true;
        }
        let here = self.connection == place.connection && self.forth == place.forth;
        let covers = place.byte >= self.at && place.byte < self.at + piece.len();
        if !here || !covers || self.gateway.done.load(Ordering::Relaxed) {
            return true;
        }
        if harm == Harm::Corrupt && self.is_plain_data(place.byte) {
            return true;
        }
        self.gateway.done.store(true, Ordering::Relaxed);
        println!("HARM {harm:?} to {place:?}, {}", if self.plain.load(Ordering::Relaxed) { "plain" } else { "sealed" });
        match harm {
            Harm::Delay => {}
            Harm::Corrupt => piece[place.byte - self.at] ^= 1 << self.random.random_range(0..8u32),
            Harm::Stall => loop {
                thread::park();
            },
            Harm::Reset => {
                for end in [&self.from, &self.to] {
                    reset(end);
                }
                return false;
            }
            Harm::Close => {
                let _ = self.from.shutdown(Shutdown::Both);
                let _ = self.to.shutdown(Shutdown::Both);
                return false;
            }
            Harm::HalfClose => return false,
            Harm::Gone => process::exit(0),
        }
        true
    }

    /// Nothing protects plain data from who changes them on their way.
    fn is_plain_data(&self, byte: usize) -> bool {
        self.plain.load(Ordering::Relaxed) && byte >= PLAIN_HANDSHAKE[usize::from(!self.forth)]
    }
}

/// Ends a connection by a reset. Other handles of it are in use: the system is told to forget what it is connected to.
fn reset(end: &TcpStream) {
    let _ = connect_unspec(end);
}
