//! Communicators whose ranks use a plug-in, or cannot.

use std::fs;
use std::path::Path;
use std::time::{Duration, Instant};

use crate::common::abi::{Comm, INVALID_USAGE, REMOTE_ERROR, SUCCESS, UniqueId};
use crate::common::c_program::{Compilation, Folder, Program};
use crate::common::communicators::Communicators;
use crate::common::cuda::Cuda;
use crate::common::hosts::Hosts;
use crate::common::launch::{self, Job, Outcome, Place};
use crate::common::nccl::{Nccl, TEST_KEY};
use crate::common::oracle::{DataType, RedOp};
use crate::fabric;
use crate::plugin::{VERSIONS, compile};

/// Elements of the calls: less than a slot, and more than all slots.
const COUNTS: [usize; 3] = [1, 1000, 700_000];
/// The counts of the plug-in's file, in its order.
const NAMES: [&str; 21] = [
    "init",
    "devices",
    "getProperties",
    "listen",
    "connect",
    "accept",
    "regMr",
    "deregMr",
    "isend",
    "irecv",
    "test",
    "closeSend",
    "closeRecv",
    "closeListen",
    "finalize",
    "connected",
    "accepted",
    "sent",
    "received",
    "misuse",
    "live",
];

/// The libraries, with a device in use.
struct Rank<'a> {
    me: &'a Place,
    nccl: Nccl,
    cuda: Cuda,
}

impl Rank<'_> {
    fn new(me: &Place) -> Rank<'_> {
        let cuda = Cuda::load("libcuda.so.1").expect("libcuda");
        cuda.use_device(me.rank).expect("a device");
        let nccl = Nccl::load("libnccl.so.2").expect("libnccl");
        nccl.encrypt_as_told();
        Rank { me, nccl, cuda }
    }

    /// A communicator of all ranks; `name` is used once.
    fn init(&self, name: &str) -> (i32, Comm) {
        if self.me.rank == 0 {
            self.me.publish(name, &self.nccl.unique_id().expect("an id").0);
        }
        let id = UniqueId(self.me.await_published(name).try_into().expect("an id has 128 bytes"));
        Communicators::load().init((self.me.nranks, self.me.rank), id, None)
    }

    /// Begins an AllReduce of a rank's number and 1; gives what waits for it and checks it.
    fn sum(&self, comm: Comm, count: usize) -> Result<(), String> {
        let stream = self.cuda.stream().map_err(|e| e.to_string())?;
        let input: Vec<u8> = (0..count).flat_map(|at| ((at % 100 + self.me.rank) as f32).to_ne_bytes()).collect();
        let buffer = self.cuda.alloc(input.len()).map_err(|e| e.to_string())?;
        self.cuda.copy_to_device(buffer, &input).map_err(|e| e.to_string())?;
        let (kind, ends) = ((DataType::Float32, RedOp::Sum), (buffer, buffer));
        // SAFETY: the buffer has that many elements, and is not freed.
        unsafe { self.nccl.all_reduce(ends, count, kind, comm, stream.0) }.map_err(|e| e.to_string())?;
        self.cuda.wait(stream).map_err(|e| e.to_string())?;
        let mut output = vec![0; input.len()];
        self.cuda.copy_to_host(&mut output, buffer).map_err(|e| e.to_string())?;
        let n = self.me.nranks;
        for (at, bytes) in output.chunks_exact(4).enumerate() {
            let expected = (n * (at % 100) + n * (n - 1) / 2) as f32;
            let found = f32::from_ne_bytes(bytes.try_into().expect("four bytes"));
            if found.to_bits() != expected.to_bits() {
                return Err(format!("element {at} of {count}: {found} instead of {expected}"));
            }
        }
        Ok(())
    }
}

/// Two hosts by name, so that what is between them is a network.
fn two_hosts(job: Job) -> Job {
    job.env_of(0, "NCCL_HOSTID", "one").env_of(1, "NCCL_HOSTID", "two")
}

/// A rank that gets no communicator: says what it has been told.
fn refused(me: &Place) {
    let rank = Rank::new(me);
    let (code, _) = rank.init("id");
    println!("code {code}: {}", rank.nccl.last_error());
}

/// All ranks were told the same, which begins like this.
fn assert_told(outcome: &Outcome, begin: &str) {
    outcome.assert_ok();
    let told = |rank: usize| outcome.ranks[rank].stdout.lines().find(|line| line.starts_with("code ")).unwrap_or("");
    let begin = format!("code {INVALID_USAGE}: {begin}");
    assert!(told(0).starts_with(&begin), "`{begin}` is not what was said\n{outcome}");
    assert_eq!(told(0), told(1));
}

#[test]
fn a_network_that_nobody_has() {
    if let Some(me) = launch::child() {
        return refused(&me);
    }
    let test = "communicators::a_network_that_nobody_has";
    let outcome = Job::this_test(test, 2).env("NCCL_NET", "nobodys").allow_any_warning().run();
    assert_told(&outcome, "Failed to initialize any NET plugin: NCCL_NET or netName asks for 'nobodys' (");
    // One rank alone has a wish: the other is told, and whose it is.
    let outcome = Job::this_test(test, 2).env_of(1, "NCCL_NET", "IB").allow_any_warning().run();
    assert_told(&outcome, "Failed to initialize any NET plugin: NCCL_NET or netName asks for 'IB' (");
    assert!(outcome.ranks[0].stdout.contains("(rank 1 of "), "{outcome}");
}

#[test]
fn a_plugin_that_works_on_one_rank_alone() {
    if let Some(me) = launch::child() {
        return refused(&me);
    }
    let folder = Folder::new("one-rank");
    let file = folder.join("plugin.so");
    let Some(()) = compile(9, &file, &[]) else { return };
    let job = || {
        let job = Job::this_test("communicators::a_plugin_that_works_on_one_rank_alone", 2).allow_any_warning();
        job.env("NCCL_NET_PLUGIN", &file)
    };
    for fault in ["init:1:2", "devices:1:none", "getProperties:1+1:cuda"] {
        let outcome = two_hosts(job().env_of(1, "PLUGIN_FAULT", fault)).run();
        assert_told(&outcome, "ranks use different networks: Socket on rank 1 of ");
        assert!(outcome.ranks[0].stdout.contains(", Test on rank 0 of "), "{outcome}");
    }
    // Asked for by name, that is the end of it.
    let outcome = two_hosts(job().env("NCCL_NET", "test").env_of(0, "PLUGIN_FAULT", "init:1:2")).run();
    assert_told(&outcome, "Failed to initialize any NET plugin: NCCL_NET or netName asks for 'test' (");
    assert!(outcome.ranks[1].stdout.contains("init fails as it was told: 2; "), "{outcome}");
}

/// What the processes' plug-ins have counted, in all.
fn counted(stats: &Folder, name: &str) -> i64 {
    let at = NAMES.iter().position(|known| *known == name).expect("a name") * 8;
    let files = fs::read_dir(stats.path()).expect("the test's folder");
    let count = |file: &Path| {
        let bytes = fs::read(file).expect("the counts");
        i64::from_ne_bytes(bytes[at..at + 8].try_into().expect("eight bytes"))
    };
    files.map(|file| count(&file.expect("a file").path())).sum()
}

/// Communicators, one after the other, whose ranks add numbers.
fn adds(me: &Place, communicators: usize) {
    let rank = Rank::new(me);
    for round in 0..communicators {
        let (code, comm) = rank.init(&format!("id {round}"));
        assert_eq!(code, SUCCESS, "{}", rank.nccl.last_error());
        COUNTS.iter().for_each(|count| rank.sum(comm, *count).expect("a sum"));
        rank.nccl.finalize(comm).expect("the end");
        rank.nccl.destroy(comm).expect("the end");
    }
}

#[test]
fn data_go_by_plugins_of_every_version() {
    if let Some(me) = launch::child() {
        return adds(&me, 2);
    }
    let Some(hosts) = Hosts::new(2) else { return };
    for version in VERSIONS {
        let (folder, stats) = (Folder::new("by-plugin"), Folder::new("stats"));
        let file = folder.join("plugin.so");
        let Some(()) = compile(version, &file, &[]) else { return };
        let job = Job::this_test("communicators::data_go_by_plugins_of_every_version", 2);
        let job = job.env("NCCL_NET_PLUGIN", &file).env("PLUGIN_STATS", stats.join("of"));
        hosts.place(job, &[0, 1], true).run().assert_ok();
        let sent = counted(&stats, "sent");
        let bytes: usize = COUNTS.iter().sum::<usize>() * 4 * 2;
        assert!(sent >= bytes as i64, "v{version}: {sent} bytes by the plug-in");
        assert_eq!((counted(&stats, "live"), counted(&stats, "misuse")), (0, 0), "v{version}");
        for (one, other) in [("sent", "received"), ("connected", "accepted"), ("regMr", "deregMr")] {
            assert_eq!(counted(&stats, one), counted(&stats, other), "v{version}: {one} and {other}");
        }
        assert_eq!(counted(&stats, "init"), if version < 11 { 2 } else { 4 });
    }
}

/// The key of the user's reaches all but the data, which is told once.
#[test]
fn a_plugin_does_not_encrypt() {
    if let Some(me) = launch::child() {
        return adds(&me, 2);
    }
    let Some(hosts) = Hosts::new(2) else { return };
    let folder = Folder::new("not-encrypted");
    let file = folder.join("plugin.so");
    let Some(()) = compile(12, &file, &[]) else { return };
    let told = "ncclSetEncryption does not reach the data that go by network Test: they are not encrypted";
    let job = Job::this_test("communicators::a_plugin_does_not_encrypt", 2).env("NCCL_NET_PLUGIN", &file);
    let outcome = hosts.place(job.env(TEST_KEY, "k".repeat(32)).allow_warning(told), &[0, 1], true).run();
    outcome.assert_ok();
    assert!(outcome.ranks.iter().all(|rank| rank.warnings().len() == 1), "{outcome}");
}

#[test]
fn data_go_over_libfabric() {
    if let Some(me) = launch::child() {
        return adds(&me, 2);
    }
    let Some(hosts) = Hosts::new(2) else { return };
    let folder = Folder::new("ofi");
    let Some(file) = fabric::compile(&folder) else { return };
    for provider in ["tcp", "udp"] {
        let job = Job::this_test("communicators::data_go_over_libfabric", 2).env("NCCL_NET_PLUGIN", &file);
        let job = job.env("OFI_PROVIDER", provider).env("NCCL_NET", "ofi");
        hosts.place(job, &[0, 1], true).run().assert_ok();
    }
}

#[test]
fn a_plugin_that_is_slow_at_everything() {
    if let Some(me) = launch::child() {
        return adds(&me, 1);
    }
    let folder = Folder::new("slow");
    let file = folder.join("plugin.so");
    let Some(()) = compile(10, &file, &[]) else { return };
    let fault = "connect:1+300:later,accept:1+300:later,isend:1+50:later,irecv:3+50:later,test:5+500:later";
    let job = Job::this_test("communicators::a_plugin_that_is_slow_at_everything", 2);
    two_hosts(job.env("NCCL_NET_PLUGIN", &file).env("PLUGIN_FAULT", fault)).run().assert_ok();
}

/// A rank that calls once, and polls until it is told what has failed.
fn polls(me: &Place) {
    let rank = Rank::new(me);
    let (code, comm) = rank.init("id");
    assert_eq!(code, SUCCESS, "{}", rank.nccl.last_error());
    let (cuda, nccl) = (rank.cuda, rank.nccl);
    let stream = cuda.stream().expect("a stream");
    let buffer = cuda.alloc(4 * COUNTS[2]).expect("memory");
    let kind = (DataType::Float32, RedOp::Sum);
    // SAFETY: the buffer has that many elements, and is not freed.
    let called = unsafe { nccl.all_reduce((buffer, buffer), COUNTS[2], kind, comm, stream.0) };
    let start = Instant::now();
    while called.is_ok() && nccl.async_error(comm) == Ok(SUCCESS) {
        assert!(start.elapsed() < Duration::from_secs(60), "nobody is told");
        std::thread::sleep(Duration::from_millis(1));
    }
    println!("code {:?}: {}", nccl.async_error(comm), nccl.last_error());
    nccl.abort(comm).expect("an abort");
}

/// Runs them with a fault on rank 0, who must name it.
fn blames(test: &str, faults: &[&str]) {
    let folder = Folder::new("failing");
    let file = folder.join("plugin.so");
    let Some(()) = compile(8, &file, &[]) else { return };
    for fault in faults {
        let job = Job::this_test(test, 2);
        let job = job.env("NCCL_NET_PLUGIN", &file).env_of(0, "PLUGIN_FAULT", fault).allow_any_warning();
        let outcome = two_hosts(job).run();
        outcome.assert_ok();
        let function = fault.split(':').next().unwrap_or_default();
        let blamed = format!("NET/Plugin: Test (v8): {function} returned {REMOTE_ERROR} (ncclRemoteError): ");
        assert!(outcome.ranks[0].stdout.contains(&blamed), "`{blamed}` is missing\n{outcome}");
    }
}

/// What fails in a call, with its code, is told to whoever polls.
#[test]
fn what_a_plugin_fails_at_is_an_asynchronous_error() {
    if let Some(me) = launch::child() {
        return polls(&me);
    }
    let faults = ["isend:2:6", "irecv:3:6", "test:5:6", "accept:1:6", "regMr:1:6", "listen:1:6"];
    blames("communicators::what_a_plugin_fails_at_is_an_asynchronous_error", &faults);
}

/// The receiver does not see it, and waits; so does the sender's kernel, for the receiver: both are told.
#[test]
fn a_connection_that_cannot_be_made_is_an_asynchronous_error() {
    if let Some(me) = launch::child() {
        return polls(&me);
    }
    blames("communicators::a_connection_that_cannot_be_made_is_an_asynchronous_error", &["connect:1:6"]);
}

/// A program with a plug-in of its own.
#[test]
fn a_plugin_of_the_program_itself() {
    let source = "tests/plugins/static_plugin.c";
    let exports = ["-std=gnu11", "-D_GNU_SOURCE", "-DVERSION=9", "-rdynamic", "-l:libcuda.so.1"];
    let own = |compilation: Compilation| compilation.nccl(&crate::common::profile_dir()).runtime().args(exports);
    let Some(program) = Program::build_by("cc", source, own) else { return };
    let outcome = Job::program(program.path(), 1).env("NCCL_NET_PLUGIN", "STATIC_PLUGIN").run();
    outcome.assert_ok();
    assert_eq!(outcome.ranks[0].stdout.lines().last(), Some("init 1 devices 1 misuse 0"), "{outcome}");
}
