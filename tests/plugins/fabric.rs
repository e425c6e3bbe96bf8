//! A real network underneath: libfabric, whose providers others have written, behind the plug-in `ofi_plugin.c`.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use nccl::plugin::net::{NetSelection, choose};
use nccl::plugin::network::{NetListener, Network};

use crate::common::c_program::{Compilation, Folder};
use crate::common::hosts::Hosts;
use crate::common::launch::{self, Job, Place};
use crate::common::need;
use crate::traffic::{Receiving, Sending, connect, exchange, lengths, until};

/// Where Debian's libfabric-dev has its headers.
const HEADERS: &str = "/usr/include/rdma/fabric.h";
/// Where a job's ranks find the plug-in.
const FILE: &str = "OXCCL_TEST_PLUGIN";

/// Compiles the plug-in, where libfabric is there.
pub fn compile(folder: &Folder) -> Option<PathBuf> {
    let compiler = need::tool("cc")?;
    need::need("libfabric's headers (Debian: libfabric-dev)", Path::new(HEADERS).exists().then_some(()))?;
    let file = folder.join("ofi.so");
    let compilation = Compilation::bare(&compiler, "tests/plugins/ofi_plugin.c", &file);
    compilation.shared().args(["-std=gnu11", "-D_GNU_SOURCE", "-lfabric"]).run();
    Some(file)
}

fn network(file: &str) -> Arc<dyn Network> {
    let selection = NetSelection { name: Some("OFI"), plugins: Some(file), ..NetSelection::default() };
    choose(&selection).expect("libfabric works").expect("it is chosen")
}

#[test]
fn messages_of_a_process_to_itself() {
    let folder = Folder::new("ofi");
    let Some(file) = compile(&folder) else { return };
    let network = network(file.to_str().expect("UTF-8"));
    for _ in 0..3 {
        exchange(connect(&*network, (0, 0)).unwrap(), &lengths(), 8).unwrap();
    }
}

/// Receives from the other rank, or sends to it.
fn one_way(me: &Place, network: &dyn Network, receives: bool, name: &str) {
    let lengths = lengths();
    if receives {
        let mut listener: Box<dyn NetListener> = network.listen(0).unwrap();
        me.publish(name, listener.handle());
        let end = until("accepting", || listener.accept().unwrap());
        let mut receiving = Receiving::new(end, &lengths, 8).unwrap();
        until("receiving", || receiving.step().unwrap().then_some(()));
        me.publish(&format!("{name} arrived"), b"");
    } else {
        let mut connecting = network.connect(0, &me.await_published(name)).unwrap();
        let end = until("connecting", || connecting.connect().unwrap());
        let mut sending = Sending::new(end, &lengths, 8).unwrap();
        until("sending", || sending.step().unwrap().then_some(()));
        // What was sent may need this end until it has arrived: nobody but the process itself lets libfabric work.
        let arrived = me.dir.join(format!("{name} arrived"));
        until("the other end", || {
            sending.step().unwrap();
            arrived.exists().then_some(())
        });
    }
}

#[test]
fn messages_between_hosts() {
    if let Some(me) = launch::child() {
        let network = network(&std::env::var(FILE).expect("the plug-in"));
        one_way(&me, &*network, me.rank == 0, "forth");
        one_way(&me, &*network, me.rank == 1, "back");
        return me.barrier("end");
    }
    let Some(hosts) = Hosts::new(2) else { return };
    let folder = Folder::new("ofi");
    let Some(file) = compile(&folder) else { return };
    // Both are there in every build of Debian's.
    for provider in ["tcp", "udp"] {
        let job = Job::this_test("fabric::messages_between_hosts", 2).env(FILE, &file).env("OFI_PROVIDER", provider);
        hosts.place(job, &[0, 1], true).run().assert_ok();
    }
}
