//! Who this host is, and which of its namespaces the process lives in.

use std::ffi::{CStr, c_void};
use std::fs;
use std::mem::MaybeUninit;
use std::os::unix::fs::MetadataExt;

use serde::{Deserialize, Serialize};

/// What decides whether two processes can share memory: the host and the namespaces.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct HostFacts {
    /// The full host name, or the text of `NCCL_HOSTID`.
    pub name: String,
    /// The kernel's boot id: two machines with one name differ in it.
    pub boot_id: String,
    /// Inode of the network namespace: abstract socket names are local to it.
    pub network_namespace: u64,
    /// Inode of the process-id namespace: process ids mean nothing outside it.
    pub pid_namespace: u64,
    /// The process.
    pub pid: u32,
}

impl HostFacts {
    /// Reads the facts of this process. `host_id` replaces the name where the user set it.
    pub fn read(host_id: Option<&str>) -> HostFacts {
        HostFacts {
            name: host_id.map_or_else(host_name, str::to_string),
            // Also where the user says that two hosts are one: they share no memory for that.
            boot_id: boot_id(),
            network_namespace: namespace("net"),
            pid_namespace: namespace("pid"),
            pid: std::process::id(),
        }
    }

    /// Whether two processes run under one kernel, as far as names tell.
    pub fn same_host(&self, other: &HostFacts) -> bool {
        self.name == other.name && self.boot_id == other.boot_id
    }

    /// Whether two processes can hand descriptors to each other.
    pub fn can_pass_descriptors(&self, other: &HostFacts) -> bool {
        self.same_host(other) && self.network_namespace == other.network_namespace
    }

    /// Whether two processes can look each other up by process id.
    pub fn can_see_process(&self, other: &HostFacts) -> bool {
        self.same_host(other) && self.pid_namespace == other.pid_namespace
    }
}

fn host_name() -> String {
    rustix::system::uname().nodename().to_string_lossy().into_owned()
}

/// The boot id; empty where `/proc` does not tell, so that the name alone decides.
fn boot_id() -> String {
    fs::read_to_string("/proc/sys/kernel/random/boot_id").map(|text| text.trim().to_string()).unwrap_or_default()
}

/// The inode of a namespace of this process; 0 where `/proc` does not tell.
fn namespace(kind: &str) -> u64 {
    fs::metadata(format!("/proc/self/ns/{kind}")).map(|data| data.ino()).unwrap_or(0)
}

/// The number of processors that this thread may run on; at least 1.
pub fn allowed_cpus() -> usize {
    rustix::thread::sched_getaffinity(None).map(|set| set.count() as usize).unwrap_or(1).max(1)
}

/// The file that the code or data at an address was loaded from, as the loader names it; none where nothing was.
pub fn loaded_file(address: usize) -> Option<String> {
    let mut info = MaybeUninit::<libc::Dl_info>::zeroed();
    // SAFETY: any address may be asked about, and `info` is valid for writing.
    let found = unsafe { libc::dladdr(std::ptr::without_provenance::<c_void>(address), info.as_mut_ptr()) } != 0;
    // SAFETY: zeroes are a valid Dl_info.
    let name = unsafe { info.assume_init() }.dli_fname;
    // SAFETY: the loader's name of a loaded object is NUL-terminated and stays while the object is loaded.
    (found && !name.is_null()).then(|| unsafe { CStr::from_ptr(name) }.to_string_lossy().into_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_host_id_replaces_the_name_alone() {
        let (own, a, b) = (HostFacts::read(None), HostFacts::read(Some("a")), HostFacts::read(Some("b")));
        assert_eq!((a.name.as_str(), &a.boot_id), ("a", &own.boot_id));
        assert!(a.same_host(&HostFacts::read(Some("a"))) && !a.same_host(&b) && !a.same_host(&own));
        // Another kernel, whatever the user calls it, and names that differ behind a dot.
        assert!(!a.same_host(&HostFacts { boot_id: "another".into(), ..a.clone() }));
        assert!(!HostFacts::read(Some("n1.east")).same_host(&HostFacts::read(Some("n1.west"))));
    }
}
