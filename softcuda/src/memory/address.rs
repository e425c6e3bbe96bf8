//! What is known of an address range.

use super::Mapping;
use super::block::Piece;
use super::vmm::Backing;
use crate::device::{Owner, State};
use crate::error::Outcome;
use std::os::fd::OwnedFd;
use std::sync::atomic::AtomicBool;

/// What a range is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// `cuMemAlloc`
    Device,
    /// `cuMemAllocManaged`
    Managed,
    /// `cuMemAllocAsync`, with the pool's handle.
    Pooled(u64),
    /// `cuIpcOpenMemHandle`
    Imported,
    /// `cuMemMap`
    Mapped {
        /// Of memory on the host.
        host: bool,
    },
    /// `cuMemHostAlloc` with its flags.
    Pinned(u32),
    /// `cuMemHostRegister` with its flags.
    Registered(u32),
}

impl Kind {
    /// Device memory, as far as a client can tell.
    pub fn is_device(self) -> bool {
        !matches!(self, Kind::Pinned(_) | Kind::Registered(_) | Kind::Mapped { host: true })
    }

    /// What `cuMemFree` frees.
    pub fn is_allocated_device(self) -> bool {
        matches!(self, Kind::Device | Kind::Managed | Kind::Pooled(_))
    }
}

/// A range of addresses that the driver knows.
pub struct Range {
    /// First address.
    pub base: usize,
    /// Bytes that the client asked for.
    pub size: usize,
    /// `CU_POINTER_ATTRIBUTE_BUFFER_ID`
    pub id: u64,
    /// Handle of the context it belongs to.
    pub context: u64,
    /// Index of the device it belongs to.
    pub device: usize,
    /// Number on the machine of the device that has the memory, if one has it.
    pub home: u32,
    /// What it is.
    pub kind: Kind,
    /// Identifies the allocation in all processes; 0 where it cannot be exported.
    pub tag: u128,
    /// `CU_POINTER_ATTRIBUTE_SYNC_MEMOPS`
    pub sync_operations: AtomicBool,
    /// The memory itself, unless the client owns it.
    pub mapping: Option<Mapping>,
    /// The same for a part of a block.
    pub piece: Option<Piece>,
    /// Another process was told how to open it.
    pub exported: AtomicBool,
    /// The same for what `cuMemMap` mapped.
    pub backing: Option<Backing>,
}

impl Range {
    /// Error: its device is lost.
    pub fn check(&self, driver: &State) -> Outcome {
        driver.check(self.device)
    }

    /// The file behind an allocation.
    pub fn file(&self) -> Option<&OwnedFd> {
        let piece = self.piece.as_ref().map(|piece| &piece.block.mapping);
        self.mapping.as_ref().or(piece)?.file()
    }

    /// A range that cannot be exported.
    pub fn of(driver: &State, owner: Owner, base: usize, size: usize, kind: Kind, mapping: Option<Mapping>) -> Range {
        Range {
            base,
            size,
            id: driver.unique(),
            context: owner.context,
            device: owner.device,
            home: driver.devices[owner.device].ordinal,
            kind,
            tag: 0,
            sync_operations: AtomicBool::new(false),
            mapping,
            piece: None,
            exported: AtomicBool::new(false),
            backing: None,
        }
    }
}
