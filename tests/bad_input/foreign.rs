//! NVIDIA's own library on one of the ranks, and visitors that are no ranks at all.

use std::io::{Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpStream};
use std::time::Duration;

use crate::common::abi::{INVALID_USAGE, SUCCESS};
use crate::common::launch::Running;
use crate::common::nccl::UniqueId;
use crate::library::Lib;
use crate::rank::{NRANKS, all_told, answers, ranks, with_id};

/// The address in an id, by NVIDIA's layout: 8 random bytes, then a `sockaddr`.
fn root_of(id: &UniqueId) -> SocketAddr {
    assert_eq!(u16::from_ne_bytes([id.0[8], id.0[9]]), 2, "an IPv4 address");
    let port = u16::from_be_bytes([id.0[10], id.0[11]]);
    (Ipv4Addr::new(id.0[12], id.0[13], id.0[14], id.0[15]), port).into()
}

/// What NVIDIA's library says first: magic, type 1 (bootstrap), then a length and its record, which begins
/// with rank and rank count.
fn nvidia_greeting(id: &UniqueId, rank: i32, nranks: i32) -> Vec<u8> {
    let record = [rank.to_ne_bytes(), nranks.to_ne_bytes(), 0i32.to_ne_bytes(), 1i32.to_ne_bytes()].concat();
    let record = [record, vec![0; 164]].concat();
    let length = (record.len() as i32).to_ne_bytes();
    [&id.0[..8], &1u32.to_ne_bytes(), &length, &record].concat()
}

/// Sends bytes to a root; the connection is kept for as long as the caller wants.
fn visit(id: &UniqueId, bytes: &[u8]) -> TcpStream {
    let mut stream = TcpStream::connect(root_of(id)).expect("the root listens");
    stream.write_all(bytes).expect("the root reads");
    stream
}

/// Waits until all ranks of a job are about to join.
fn await_ready(running: &Running, ranks: usize) {
    let until = std::time::Instant::now() + crate::rank::DEADLINE;
    while (0..ranks).any(|rank| !running.stdout(rank).contains("READY")) {
        assert!(std::time::Instant::now() < until, "the ranks do not come up");
        std::thread::sleep(Duration::from_millis(5));
    }
}

#[test]
fn an_id_of_nvidias_library() {
    let mut id = UniqueId([0; 128]);
    id.0[..8].copy_from_slice(&0x1234_5678_9abc_def0u64.to_ne_bytes());
    id.0[8..10].copy_from_slice(&2u16.to_ne_bytes());
    id.0[10..12].copy_from_slice(&45_678u16.to_be_bytes());
    id.0[12..16].copy_from_slice(&[127, 0, 0, 1]);
    all_told(with_id(2, &id), INVALID_USAGE, &["not made by oxccl", "127.0.0.1<45678>", "LD_PRELOAD"]);
}

#[test]
fn a_rank_that_runs_nvidias_library() {
    let id = Lib::load().id();
    // Before the others come: the root must remember.
    let early = visit(&id, &nvidia_greeting(&id, 2, 3));
    all_told(with_id(2, &id).env(NRANKS, "3"), INVALID_USAGE, &["rank 2 of 3", "NVIDIA", "LD_PRELOAD"]);
    drop(early);
    // While they wait.
    let id = Lib::load().id();
    let running = with_id(2, &id).env(NRANKS, "3").start();
    await_ready(&running, 2);
    std::thread::sleep(Duration::from_millis(100));
    let late = visit(&id, &nvidia_greeting(&id, 0, 3));
    for answer in answers(&running.wait()) {
        answer.is(INVALID_USAGE, &["rank 0 of 3", "NVIDIA", "LD_PRELOAD"]);
    }
    drop(late);
}

#[test]
fn nvidias_library_that_says_no_more_than_hello() {
    let id = Lib::load().id();
    let running = with_id(2, &id).env(NRANKS, "3").start();
    await_ready(&running, 2);
    let _silent = visit(&id, &nvidia_greeting(&id, 2, 3)[..12]);
    for answer in answers(&running.wait()) {
        answer.is(INVALID_USAGE, &["a rank at", "NVIDIA"]);
    }
}

#[test]
fn strangers_do_not_matter() {
    let id = Lib::load().id();
    let mut open = vec![
        visit(&id, b""),
        visit(&id, b"GET / HTTP/1.0\r\n\r\n"),
        visit(&id, &[0x16, 0x03, 0x01, 0, 200, 1, 0, 0, 196, 3, 3]),
        visit(&id, &id.0[..5]),
        visit(&id, &[0; 4096]),
    ];
    let mut wrong = nvidia_greeting(&id, 0, 2);
    wrong[3] ^= 1;
    open.push(visit(&id, &wrong));
    for _ in 0..50 {
        drop(visit(&id, b"x"));
    }
    all_told(with_id(2, &id), SUCCESS, &[]);
    for mut stream in open {
        stream.set_read_timeout(Some(Duration::from_secs(20))).expect("a time limit");
        // Told nothing, and not kept: the root has ended, and every connection to it.
        let end = stream.read(&mut [0; 64]);
        assert!(!matches!(end, Ok(1..)), "an unrelated client was answered");
    }
}

#[test]
fn a_scanner_during_the_rendezvous() {
    let lib = Lib::load();
    let ids: Vec<UniqueId> = (0..3).map(|_| lib.id()).collect();
    for id in &ids {
        let running = with_id(3, id).start();
        while !running.stdout(0).contains("ANSWER") {
            if let Ok(mut stream) = TcpStream::connect_timeout(&root_of(id), Duration::from_millis(200)) {
                let _ = stream.write_all(b"GET /metrics HTTP/1.1\r\n");
            }
            std::thread::sleep(Duration::from_millis(1));
        }
        for answer in answers(&running.wait()) {
            answer.is(SUCCESS, &[]);
        }
    }
    all_told(ranks(2), SUCCESS, &[]);
}
