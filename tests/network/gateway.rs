//! A gateway that publishes the ports of two hosts at addresses of its own, and keeps what goes through it.

use std::io::{Read, Write};
use std::net::{Ipv4Addr, Shutdown, SocketAddr, TcpListener, TcpStream};
use std::ops::RangeInclusive;
use std::sync::{Arc, Mutex};
use std::thread;

use crate::common::hosts::Hosts;
use crate::common::launch::{Job, Place};

/// What it publishes: one for a fixed rendezvous, and those for listeners.
pub const PORTS: RangeInclusive<u16> = 42_999..=43_011;

/// The number of the host that a connection went to, and all bytes of one of its directions.
pub type Carried = Arc<Mutex<Vec<(u8, Arc<Mutex<Vec<u8>>>)>>>;

/// Three hosts, of which the first two do not reach each other but by addresses of the third.
pub fn hosts() -> Option<Hosts> {
    let setup = (1..=3).map(|host| format!("ip -n h{host} addr add 10.9.0.{host}/24 dev eth0; ")).collect::<String>()
        + "ip -n h3 addr add 10.77.0.1/24 dev eth0; ip -n h3 addr add 10.77.0.2/24 dev eth0; \
           ip -n h1 route add 10.77.0.0/24 dev eth0; ip -n h2 route add 10.77.0.0/24 dev eth0; \
           ip -n h1 route add unreachable 10.9.0.2; ip -n h2 route add unreachable 10.9.0.1; ";
    Hosts::with(3, &setup)
}

/// A job of two ranks and the gateway, which is the last process.
pub fn place(hosts: &Hosts, job: Job) -> Job {
    let ports = format!("{}-{}", PORTS.start() + 1, PORTS.end());
    let job = (0..2).fold(job.env("OXCCL_PORT_RANGE", ports), |job, rank| {
        job.env_of(rank, "OXCCL_ADVERTISE", format!("10.77.0.{}", rank + 1))
    });
    hosts.place(job, &[0, 1, 2], true)
}

/// Carries bytes between two connections, until both ways are through, and keeps them.
fn join(a: TcpStream, b: TcpStream, keep: impl Fn() -> Arc<Mutex<Vec<u8>>>) {
    let one_way = |mut from: TcpStream, mut to: TcpStream, kept: Arc<Mutex<Vec<u8>>>| {
        let mut buffer = vec![0; 64 << 10];
        while let Ok(n @ 1..) = from.read(&mut buffer) {
            kept.lock().expect("no panic").extend_from_slice(&buffer[..n]);
            if to.write_all(&buffer[..n]).is_err() {
                break;
            }
        }
        let _ = to.shutdown(Shutdown::Write);
    };
    let (Ok(a2), Ok(b2)) = (a.try_clone(), b.try_clone()) else { return };
    let kept = [keep(), keep()];
    let [there, back] = kept;
    thread::spawn(move || one_way(a2, b2, there));
    thread::spawn(move || one_way(b, a, back));
}

/// The gateway's part of a job, until both ranks say that they are through.
pub fn publish_ports(me: &Place) -> Carried {
    let carried = Carried::default();
    for (host, port) in (1..=2u8).flat_map(|host| PORTS.map(move |port| (host, port))) {
        let listener = TcpListener::bind((Ipv4Addr::new(10, 77, 0, host), port)).expect("the gateway's address");
        let carried = carried.clone();
        thread::spawn(move || {
            for near in listener.incoming().flatten() {
                let inner = SocketAddr::from(([10, 9, 0, host], port));
                // Nobody listens: the connection ends at once.
                if let Ok(far) = TcpStream::connect(inner) {
                    let keep = || {
                        let kept = Arc::default();
                        carried.lock().expect("no panic").push((host, Arc::clone(&kept)));
                        kept
                    };
                    join(near, far, keep);
                }
            }
        });
    }
    me.publish("gateway", b"");
    (0..2).for_each(|rank| drop(me.await_published(&format!("over.{rank}"))));
    let hosts: Vec<u8> = carried.lock().expect("no panic").iter().map(|(host, _)| *host).collect();
    assert!(hosts.contains(&1) && hosts.contains(&2), "{hosts:?}");
    carried
}
