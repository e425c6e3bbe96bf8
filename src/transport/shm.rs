//! Shared host memory: a memfd of each rank, which its peers map and register with CUDA.

use std::os::fd::OwnedFd;
use std::sync::Arc;

use super::memory::{Made, Maker, Need, Offer, Segment, Sharing};
use super::{PeerFacts, TransportId, wrong_info};
use crate::device::{Context, RegisteredMemory};
use crate::error::Error;
use crate::sys::{SharedFile, SharedMemory};

/// Ranks of one host, by way of host memory.
#[derive(Clone, Copy)]
pub(super) struct Shm;

/// Mapped host memory, in the end registered for the device. The fields drop in this order.
pub(super) struct HostSegment {
    registered: Option<RegisteredMemory>,
    memory: Arc<SharedMemory>,
}

impl Drop for HostSegment {
    fn drop(&mut self) {
        self.registered.iter().for_each(|registered| registered.keep_if_lost(&self.memory));
    }
}

impl HostSegment {
    /// Memory that is not registered yet.
    pub fn new(memory: SharedMemory) -> HostSegment {
        HostSegment { registered: None, memory: Arc::new(memory) }
    }

    /// Where the host has it.
    pub fn host_address(&self) -> u64 {
        self.memory.address() as u64
    }
}

impl Segment for HostSegment {
    fn address(&self) -> u64 {
        self.registered.as_ref().map_or(0, RegisteredMemory::address)
    }

    fn register(&mut self, context: &Arc<Context>) -> Result<(), Error> {
        if self.registered.is_none() {
            // SAFETY: this object owns the mapping and drops the registration first.
            let registered = unsafe { RegisteredMemory::register(context, self.memory.address(), self.memory.bytes()) };
            self.registered = Some(registered?);
        }
        Ok(())
    }
}

impl Sharing for Shm {
    const ID: TransportId = TransportId::Shm;
    const LABEL: &'static str = "SHM/direct";
    const CONNECTION: Option<u32> = None;
    const DEVICE_MEMORY: bool = false;

    fn can_connect(&self, a: &PeerFacts, b: &PeerFacts) -> bool {
        a.host.can_pass_descriptors(&b.host)
    }

    fn make(&self, maker: Maker<'_>, need: Need) -> Result<Made, Error> {
        let file = SharedFile::create("oxccl-link", need.bytes)?;
        let memory = file.map()?;
        // The device polls them, and not every processor that this thread may run on is near it.
        maker.node.map(|node| memory.prefer_node(node));
        // Pages belong where their owner is: whoever else touched one first, or registered it, would have it.
        file.reserve(0, need.bytes)?;
        let segment = Box::new(HostSegment::new(memory));
        Ok(Made { segment, offer: Offer::Shared, fd: Some(file.into_descriptor()), bytes: need.bytes })
    }

    fn open(
        &self,
        _context: &Arc<Context>,
        maker: &PeerFacts,
        offer: Offer,
        fd: Option<OwnedFd>,
        bytes: usize,
    ) -> Result<Box<dyn Segment>, Error> {
        let (Offer::Shared, Some(fd)) = (offer, fd) else { return Err(wrong_info(maker, Self::LABEL)) };
        let memory = SharedFile::adopt(fd, bytes)?.map()?;
        Ok(Box::new(HostSegment::new(memory)))
    }
}
