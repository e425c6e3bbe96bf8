//! What goes wrong in real runs, over real sockets: every rank that is there gets a clear error, in time.

use std::io::{Read, Write};
use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use nccl::bootstrap::{Bootstrap, Cancel, Join, NetConfig, UniqueId, create_id};
use nccl::error::{Code, Error};

use crate::ranks::{Plan, VERSION, join_of, start, start_all};

/// The bound for news to reach everybody is 2 s; the rest is for a machine that does other things too.
const SOON_MS: u64 = 8_000;

fn id() -> UniqueId {
    create_id(&NetConfig::default()).unwrap()
}

/// Where the root of an id listens (the layout is in the documentation of the id).
fn root_of(id: &UniqueId) -> SocketAddr {
    let b = &id.0[8..];
    assert_eq!(b[0], 2, "IPv4");
    SocketAddr::new(IpAddr::V4(Ipv4Addr::new(b[4], b[5], b[6], b[7])), u16::from_be_bytes([b[2], b[3]]))
}

#[test]
fn a_missing_rank_is_named() {
    let id = id();
    let plans: Vec<Plan> = (0..3).map(|rank| Plan::new(&id, rank, 4, "join").set("timeout_ms=700")).collect();
    for rank in &start(&plans) {
        let (code, _, text) = rank.error();
        assert_eq!(code, "Timeout");
        assert!(text.contains("3 of 4 ranks have joined, missing: rank 3"), "{text}");
    }
}

#[test]
fn a_rank_that_dies_in_an_exchange_is_named() {
    for victim in [0, 2, 5] {
        let id = id();
        let plans: Vec<Plan> =
            (0..6).map(|rank| Plan::new(&id, rank, 6, if rank == victim { "exit" } else { "gather" })).collect();
        let ranks = start(&plans);
        for (rank, process) in ranks.iter().enumerate().filter(|(rank, _)| *rank != victim as usize) {
            let (code, time, text) = process.error();
            assert_eq!(code, "Remote", "rank {rank}: {text}");
            assert!(text.contains(&format!("rank {victim} (")) && text.contains("is gone"), "rank {rank}: {text}");
            assert!(time < SOON_MS, "{time}");
        }
    }
}

#[test]
fn a_rank_that_is_killed_while_others_wait_is_named() {
    let id = id();
    let plans: Vec<Plan> = (0..3).map(|rank| Plan::new(&id, rank, 4, "join")).collect();
    let mut ranks = start(&plans);
    std::thread::sleep(Duration::from_millis(300));
    ranks[1].kill();
    for rank in [0, 2] {
        let (code, _, text) = ranks[rank].error();
        assert_eq!(code, "Remote");
        assert!(text.contains("rank 1 (") && text.contains("its process has probably died"), "{text}");
    }
    // The one that was late hears it too.
    let late = start(&[Plan::new(&id, 3, 4, "join")]);
    let (code, _, text) = late[0].error();
    assert!(code == "Remote" && text.contains("rank 1 ("), "{code} {text}");
}

#[test]
fn a_rank_that_fails_is_named() {
    for task in ["error", "report"] {
        let id = id();
        let plans: Vec<Plan> =
            (0..4).map(|rank| Plan::new(&id, rank, 4, if rank == 2 { task } else { "gather" })).collect();
        let ranks = start(&plans);
        for (rank, process) in ranks.iter().enumerate() {
            let (code, time, text) = process.error();
            assert_eq!(code, if rank == 2 { "System" } else { "Remote" }, "rank {rank}: {text}");
            assert!(
                text.contains("no memory left") && (rank == 2 || text.contains("rank 2 failed")),
                "rank {rank}: {text}"
            );
            assert!(time < SOON_MS, "{time}");
        }
    }
}

/// A rank dies after the communicator was made: who is connected with it knows, without a call in progress.
#[test]
fn a_death_is_noticed_while_nobody_waits() {
    let id = id();
    let mut other = Plan::new(&id, 1, 2, "stay").start();
    assert_eq!(other.line(), "ready");
    other.go();
    let bootstrap = Bootstrap::join(&NetConfig::default(), &id, join_of(0, 2)).unwrap();
    bootstrap.complete();
    other.succeeds();
    assert_eq!(bootstrap.why_gone(1), None);
    other.kill();
    let end = Instant::now() + Duration::from_millis(SOON_MS);
    let error = loop {
        match bootstrap.why_gone(1) {
            Some(error) => break error,
            None => assert!(Instant::now() < end, "nobody notices"),
        }
        std::thread::sleep(Duration::from_millis(1));
    };
    let named = matches!(&error, Error::Remote { rank: Some(1), text } if text.contains("has probably died"));
    assert!(named, "{error}");
}

/// A forked child answers at once, and what it does and drops is no affair of its parent's.
#[test]
fn a_forked_child_is_inert() {
    let id = &id();
    let config = &NetConfig::default();
    std::thread::scope(|scope| {
        let other = scope.spawn(move || {
            let bootstrap = Bootstrap::join(config, id, join_of(1, 2)).unwrap();
            bootstrap.complete();
            bootstrap.barrier()
        });
        let cancel = Cancel::new();
        let join = Join { cancel: Some(cancel.clone()), ..join_of(0, 2) };
        let bootstrap = Bootstrap::join(config, id, join).unwrap();
        bootstrap.complete();
        // SAFETY: the child calls what is tested, and ends without a return.
        let child = unsafe { libc::fork() };
        if child == 0 {
            let inert = bootstrap.barrier().is_err_and(|error| error.code() == Code::InvalidUsage);
            cancel.fire();
            drop(bootstrap);
            // SAFETY: exit handlers are not wanted.
            unsafe { libc::_exit(i32::from(!inert)) }
        }
        let mut status = -1;
        // SAFETY: the status lives.
        assert_eq!(unsafe { libc::waitpid(child, &mut status, 0) }, child);
        assert_eq!(status, 0);
        assert_eq!(bootstrap.barrier(), Ok(()));
        assert_eq!(other.join().unwrap(), Ok(()));
    });
}

/// A message is awaited from a rank that this one has no other connection with, and it dies.
#[test]
fn a_dead_sender_is_named() {
    let id = id();
    let plans: Vec<Plan> =
        (0..3).map(|rank| Plan::new(&id, rank, 3, ["join", "receive", "stay"][rank as usize])).collect();
    let mut ranks = start(&plans);
    ranks[0].succeeds();
    ranks[2].succeeds();
    std::thread::sleep(Duration::from_millis(200));
    ranks[2].kill();
    let (code, _, text) = ranks[1].error();
    assert!(code == "Remote" && text.contains("rank 2 ("), "{code} {text}");
}

#[test]
fn ranks_that_do_not_fit_are_named() {
    let cases: [([(u32, u32); 3], &str); 3] = [
        ([(0, 4), (1, 4), (1, 4)], "rank 1 has joined twice"),
        ([(0, 4), (1, 4), (2, 3)], "do not agree how many they are"),
        ([(0, 2), (1, 2), (1, 3)], "do not agree how many they are"),
    ];
    for (members, words) in cases {
        let id = id();
        let plans: Vec<Plan> = members.iter().map(|(rank, nranks)| Plan::new(&id, *rank, *nranks, "join")).collect();
        let ranks = start(&plans);
        let errors: Vec<String> = ranks.iter().map(|rank| rank.line()).collect();
        // In the third case two ranks may have met before the third came: then it alone is turned away.
        let met = errors.iter().filter(|line| line.starts_with("ok ")).count();
        assert!(met == 0 || (members[0].1 == 2 && met == 2), "{errors:?}");
        for line in errors.iter().filter(|line| !line.starts_with("ok ")) {
            assert!(line.contains(words) || met == 2, "{line}");
        }
    }
}

#[test]
fn an_id_serves_once() {
    let id = id();
    for rank in &start_all(&id, 2, "gather", "") {
        rank.succeeds();
    }
    for rank in &start_all(&id, 2, "gather", "") {
        let (code, time, text) = rank.error();
        assert_eq!(code, "Remote");
        assert!(text.contains("an id is for one communicator only"), "{text}");
        assert!(time < SOON_MS, "{time}");
    }
}

#[test]
fn the_id_of_a_dead_process_is_told_soon() {
    let maker = start(&[Plan::new(&UniqueId([0; 128]), 0, 1, "id")]);
    let text = maker[0].line();
    let mut id = UniqueId([0; 128]);
    for (i, byte) in id.0.iter_mut().enumerate() {
        *byte = u8::from_str_radix(&text[2 * i..2 * i + 2], 16).unwrap();
    }
    drop(maker);
    let begin = Instant::now();
    let error = Bootstrap::join(&NetConfig::default(), &id, join_of(0, 2)).err().unwrap();
    assert!(begin.elapsed() < Duration::from_millis(SOON_MS));
    assert_eq!(error.code(), Code::Remote);
    let root = nccl::bootstrap::id::show(root_of(&id));
    assert!(error.to_string().contains(&root) && error.to_string().contains("has ended"), "{error}");
}

#[test]
fn bad_arguments_are_told_at_once() {
    let id = id();
    let join =
        |id: &UniqueId, rank, nranks| Bootstrap::join(&NetConfig::default(), id, join_of(rank, nranks)).err().unwrap();
    assert_eq!(join(&id, 4, 4).code(), Code::InvalidArgument);
    assert_eq!(join(&id, 0, 0).code(), Code::InvalidArgument);
    assert_eq!(join(&UniqueId([0; 128]), 0, 1).code(), Code::InvalidArgument);
    let mut nvidia = id;
    nvidia.0[40..].fill(0);
    assert_eq!(join(&nvidia, 0, 1).code(), Code::InvalidUsage);
}

/// Connects, says something (or nothing), and closes, resets or stays.
fn unrelated_client(to: SocketAddr, kind: usize, kept: &mut Vec<TcpStream>) {
    let Ok(mut stream) = TcpStream::connect_timeout(&to, Duration::from_secs(1)) else {
        return;
    };
    let _ = match kind % 5 {
        0 => Ok(()),
        1 => stream.write_all(b"GET / HTTP/1.1\r\n\r\n"),
        2 => stream.write_all(&[0x5a; 300]),
        3 => stream.write_all(&[1, 2, 3]),
        _ => socket2::SockRef::from(&stream).set_linger(Some(Duration::ZERO)),
    };
    if kind.is_multiple_of(3) && kept.len() < 50 {
        kept.push(stream);
    }
}

/// A port scan sweeps over root and members while they meet.
#[test]
fn a_port_scan_does_no_harm() {
    let stop = &AtomicBool::new(false);
    std::thread::scope(|scope| {
        for round in 0..10 {
            let id = id();
            let root = root_of(&id);
            stop.store(false, Ordering::Relaxed);
            let scanner = scope.spawn(move || {
                let mut kept = Vec::new();
                for kind in 0.. {
                    if stop.load(Ordering::Relaxed) {
                        return;
                    }
                    unrelated_client(root, kind + round, &mut kept);
                    std::thread::sleep(Duration::from_millis(1));
                }
            });
            std::thread::sleep(Duration::from_millis(20));
            for rank in &start_all(&id, 4, "gather", "") {
                rank.succeeds();
            }
            stop.store(true, Ordering::Relaxed);
            scanner.join().unwrap();
        }
    });
}

/// A rank with NVIDIA's library: its first bytes are magic, type, the length of a record, the record.
#[test]
fn nvidias_library_is_recognised() {
    let id = id();
    let plans: Vec<Plan> = (0..2).map(|rank| Plan::new(&id, rank, 3, "join")).collect();
    let ranks = start(&plans);
    let mut stream = TcpStream::connect(root_of(&id)).unwrap();
    stream.write_all(&id.0[0..8]).unwrap();
    for word in [1u32, 180, 2, 3] {
        stream.write_all(&word.to_le_bytes()).unwrap();
    }
    stream.write_all(&[0; 172]).unwrap();
    for rank in &ranks {
        let (code, _, text) = rank.error();
        assert_eq!(code, "InvalidUsage");
        assert!(text.contains("rank 2 of 3 at") && text.contains("LD_PRELOAD"), "{text}");
    }
    assert_eq!(stream.read(&mut [0; 8]).unwrap_or(0), 0, "the connection is closed");
}

/// Somebody else has the port and answers something.
#[test]
fn a_wrong_listener_is_an_error() {
    let thief = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = thief.local_addr().unwrap().port();
    let mut id = id();
    id.0[10..16].copy_from_slice(&[(port >> 8) as u8, port as u8, 127, 0, 0, 1]);
    let answer = std::thread::spawn(move || {
        let (mut stream, _) = thief.accept().unwrap();
        let _ = stream.write_all(b"HTTP/1.1 400 Bad Request\r\n\r\n");
        let _ = stream.read(&mut [0; 16]);
    });
    let error = Bootstrap::join(&NetConfig::default(), &id, join_of(0, 2)).err().unwrap();
    assert!(
        error.code() == Code::Remote && error.to_string().contains("something that is not oxccl answers"),
        "{error}"
    );
    answer.join().unwrap();
}

#[test]
fn a_join_can_be_cancelled() {
    let id = &id();
    let cancel = &Cancel::new();
    let config = &NetConfig::default();
    std::thread::scope(|scope| {
        let other = scope.spawn(move || Bootstrap::join(config, id, join_of(1, 3)).err().unwrap());
        let waiting = scope.spawn(move || {
            Bootstrap::join(config, id, Join { cancel: Some(cancel.clone()), ..join_of(0, 3) }).err().unwrap()
        });
        std::thread::sleep(Duration::from_millis(200));
        let fired = Instant::now();
        cancel.fire();
        assert_eq!(waiting.join().unwrap(), Error::Aborted);
        assert!(fired.elapsed() < Duration::from_millis(SOON_MS));
        let error = other.join().unwrap();
        assert_eq!(error, Error::Remote { rank: Some(0), text: "rank 0 aborted its initialisation".to_string() });
    });
}

#[test]
fn a_receive_can_be_cancelled() {
    let id = &id();
    let cancel = &Cancel::new();
    let config = &NetConfig::default();
    std::thread::scope(|scope| {
        let waiting = scope.spawn(move || {
            let bootstrap =
                Bootstrap::join(config, id, Join { cancel: Some(cancel.clone()), ..join_of(0, 2) }).unwrap();
            (bootstrap.recv(1, 9), bootstrap.barrier())
        });
        let _other = Bootstrap::join(config, id, join_of(1, 2)).unwrap();
        std::thread::sleep(Duration::from_millis(100));
        cancel.fire();
        assert_eq!(waiting.join().unwrap(), (Err(Error::Aborted), Err(Error::Aborted)));
    });
}

#[test]
fn versions_must_match() {
    let id = &id();
    std::thread::scope(|scope| {
        let threads: Vec<_> = [VERSION, VERSION + 1]
            .into_iter()
            .enumerate()
            .map(|(rank, version)| {
                scope.spawn(move || {
                    Bootstrap::join(&NetConfig::default(), id, Join { version, ..join_of(rank as u32, 2) })
                        .err()
                        .unwrap()
                })
            })
            .collect();
        for thread in threads {
            let error = thread.join().unwrap();
            assert!(
                error.code() == Code::InvalidUsage && error.to_string().contains("Mismatched NCCL version detected"),
                "{error}"
            );
        }
    });
}

fn free_port() -> u16 {
    TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port()
}

#[test]
fn a_fixed_address_serves_many_runs() {
    let settings = format!("comm_id=127.0.0.1:{}", free_port());
    let nothing = UniqueId([0; 128]);
    for round in 0..6 {
        let plans: Vec<Plan> = (0..3).map(|rank| Plan::new(&nothing, rank, 3, "gather").set(&settings)).collect();
        let mut ranks: Vec<_> = plans.iter().map(Plan::start).collect();
        // Rank 0, which has the root, comes first or last.
        for rank in [round % 3, (round + 1) % 3, (round + 2) % 3] {
            assert_eq!(ranks[rank].line(), "ready");
            ranks[rank].go();
            std::thread::sleep(Duration::from_millis(30));
        }
        for rank in &ranks {
            rank.succeeds();
        }
    }
}

/// The same address again and again, with a rank killed in the middle each time.
#[test]
fn a_fixed_address_survives_kills() {
    let settings = format!("comm_id=127.0.0.1:{}", free_port());
    let nothing = UniqueId([0; 128]);
    for round in 0..10usize {
        let plans: Vec<Plan> = (0..2).map(|rank| Plan::new(&nothing, rank, 3, "gather").set(&settings)).collect();
        let mut ranks = start(&plans);
        std::thread::sleep(Duration::from_millis(5 * round as u64));
        ranks[round % 2].kill();
        if round % 4 > 1 {
            // Time for the others to see it; else they all end together.
            std::thread::sleep(Duration::from_millis(50));
        }
        drop(ranks);
        for rank in &start_all(&nothing, 3, "gather", &settings) {
            rank.succeeds();
        }
    }
}

#[test]
fn a_fixed_address_of_another_host_is_told() {
    let settings = crate::ranks::config("comm_id=192.0.2.77:4000");
    let id = create_id(&settings).unwrap();
    let error = Bootstrap::join(&settings, &id, join_of(0, 2)).err().unwrap();
    assert!(error.code() == Code::InvalidUsage && error.to_string().contains("192.0.2.77<4000>"), "{error}");
}

#[test]
fn listeners_keep_to_the_port_range() {
    let settings = crate::ranks::config("first_port=28500");
    let id = create_id(&settings).unwrap();
    assert!((28500..28532).contains(&root_of(&id).port()));
    for rank in &start_all(&id, 4, "gather", "first_port=28500") {
        rank.succeeds();
    }
}
