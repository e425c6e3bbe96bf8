//! Shared host memory: a memfd of each rank, which its peers map and register with CUDA.

use std::sync::Arc;

use super::{Given, Made, Need, Offer, PeerFacts, Segment, Transport, wrong_offer};
use crate::device::{Context, RegisteredMemory};
use crate::error::Error;
use crate::sys::{SharedFile, SharedMemory};

/// Ranks of one host, by way of host memory.
pub(super) struct Shm;

/// Mapped host memory, in the end registered for the device. The fields drop in this order.
struct HostSegment {
    registered: Option<RegisteredMemory>,
    memory: SharedMemory,
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

impl Transport for Shm {
    fn label(&self) -> &'static str {
        "SHM/direct"
    }

    fn connection(&self) -> Option<u32> {
        None
    }

    fn is_device_memory(&self) -> bool {
        false
    }

    fn can_connect(&self, a: &PeerFacts, b: &PeerFacts) -> bool {
        !a.shm_disabled && !b.shm_disabled && a.host.can_pass_descriptors(&b.host)
    }

    fn make(&self, _context: &Arc<Context>, need: Need) -> Result<Made, Error> {
        let file = SharedFile::create("oxccl-link", need.bytes)?;
        // Pages belong where their owner is: whoever else touched one first, or registered it, would have it.
        file.reserve(0, need.bytes)?;
        let segment = Box::new(HostSegment { registered: None, memory: file.map()? });
        Ok(Made { segment, offer: Offer::Shared, fd: Some(file.into_descriptor()), bytes: need.bytes })
    }

    fn open(
        &self,
        _context: &Arc<Context>,
        maker: &PeerFacts,
        given: Given,
        bytes: usize,
    ) -> Result<Box<dyn Segment>, Error> {
        let (Offer::Shared, Some(fd)) = (given.offer, given.fd) else { return Err(wrong_offer(maker, self.label())) };
        let memory = SharedFile::adopt(fd, bytes)?.map()?;
        Ok(Box::new(HostSegment { registered: None, memory }))
    }
}
