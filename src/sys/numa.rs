//! Memory whose pages lie on a NUMA node; [`super::PciPlace`] says which one a device is near.

use std::ffi::c_long;

use super::SharedMemory;

/// `MPOL_PREFERRED` of the kernel's headers: pages of this node while it has some, else of others.
const PREFERRED: c_long = 1;
/// Nodes that a mask has room for, as many as any kernel has.
const NODES: usize = 1024;

impl SharedMemory {
    /// Asks for pages of a node where there are none yet, whoever touches or reserves them first. False where the
    /// kernel does not allow it, as in some containers; nothing depends on it but speed.
    pub fn prefer_node(&self, node: u32) -> bool {
        let mut mask = [0u64; NODES / 64];
        let Some(word) = mask.get_mut(node as usize / 64) else { return false };
        *word = 1 << (node % 64);
        // The kernel takes one bit less than it is told.
        let (bits, flags) = (NODES as c_long + 1, 0 as c_long);
        // SAFETY: the mapping is this object's, the mask is alive and has the bits that are told; no byte changes.
        let code = unsafe {
            libc::syscall(libc::SYS_mbind, self.address(), self.bytes(), PREFERRED, mask.as_ptr(), bits, flags)
        };
        code == 0
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::Ordering;

    use super::*;
    use crate::sys::SharedFile;

    #[test]
    fn memory_of_a_node_is_memory() {
        let file = SharedFile::create("oxccl-numa", 1 << 16).expect("a file");
        let memory = file.map().expect("memory");
        // Node 0 is there wherever there are nodes; a container may forbid to ask for it.
        let asked = memory.prefer_node(0);
        assert!(!memory.prefer_node(NODES as u32) && !memory.prefer_node(u32::MAX));
        file.reserve(0, 1 << 16).expect("pages");
        memory.words()[8191].store(7, Ordering::Relaxed);
        println!("pages of node 0 could be asked for: {asked}");
        assert_eq!(memory.words()[8191].load(Ordering::Relaxed), 7);
    }
}
