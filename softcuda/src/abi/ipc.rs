//! Memory and events of other processes.

use super::{CuResult, DevicePointer, Handle, Out, boundary};
use crate::context;
use crate::driver::Driver;
use crate::error::CudaError;
use crate::event::{self, Event};
use crate::memory::Kind;
use crate::memory::ipc::{HANDLE_BYTES, MemoryHandle, Purpose};
use crate::memory::shared::SharedEvent;
use crate::os;
use std::ffi::c_uint;
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// `CUipcMemHandle`, `CUipcEventHandle`: passed by value.
#[derive(Clone, Copy)]
#[repr(C)]
struct IpcHandle {
    bytes: [u8; HANDLE_BYTES],
}

/// `CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS`
const LAZY_ENABLE_PEER_ACCESS: c_uint = 1;
/// `CU_EVENT_INTERPROCESS | CU_EVENT_DISABLE_TIMING`
const OPENED_EVENT: c_uint = 6;

#[unsafe(no_mangle)]
extern "C" fn cuIpcGetMemHandle(to: *mut IpcHandle, pointer: DevicePointer) -> CuResult {
    boundary(|| {
        let range = Driver::get()?.memory.find(pointer as usize).filter(|range| range.kind == Kind::Device);
        let range = range.ok_or(CudaError::INVALID_VALUE)?;
        let driver = Driver::get()?;
        range.check(driver)?;
        let handle = MemoryHandle::of_range(&range, driver.devices[range.device].ordinal)?;
        range.exported.store(true, Ordering::Release);
        if let Some(piece) = &range.piece {
            let (size, others) = (range.size, piece.block.pieces() - 1);
            os::say(&format!("cuIpcGetMemHandle shares the block of {size} bytes, with {others} other allocations"));
        }
        Out(to).set(IpcHandle { bytes: handle.encode(Purpose::Memory) })
    })
}

/// The allocation's first address, whatever address the handle was made from. Not in the process that made it.
#[unsafe(no_mangle)]
extern "C" fn cuIpcOpenMemHandle_v2(to: Out<DevicePointer>, handle: IpcHandle, flags: c_uint) -> CuResult {
    boundary(|| {
        let driver = Driver::get()?;
        let context = context::current(driver)?;
        to.check()?;
        let handle = MemoryHandle::decode(&handle.bytes, Purpose::Memory)?;
        if flags != LAZY_ENABLE_PEER_ACCESS {
            return Err(CudaError::INVALID_VALUE);
        }
        if handle.is_own() {
            return Err(CudaError::INVALID_CONTEXT);
        }
        to.set(driver.memory.open(driver, context.owner(), &handle)? as DevicePointer)
    })
}

#[unsafe(no_mangle)]
extern "C" fn cuIpcCloseMemHandle(pointer: DevicePointer) -> CuResult {
    boundary(|| {
        let driver = Driver::get()?;
        context::current(driver)?;
        driver.memory.close(pointer as usize, &|device| driver.synchronize_device(device))
    })
}

#[unsafe(no_mangle)]
extern "C" fn cuIpcGetEventHandle(to: *mut IpcHandle, event: Handle) -> CuResult {
    boundary(|| {
        let shared = event::lookup(Driver::get()?, event)?.shared()?;
        Out(to).set(IpcHandle { bytes: shared.handle()?.encode(Purpose::Event) })
    })
}

#[unsafe(no_mangle)]
extern "C" fn cuIpcOpenEventHandle(to: Out<Handle>, handle: IpcHandle) -> CuResult {
    boundary(|| {
        let driver = Driver::get()?;
        let context = context::current(driver)?;
        to.check()?;
        let handle = MemoryHandle::decode(&handle.bytes, Purpose::Event)?;
        if handle.is_own() {
            return Err(CudaError::INVALID_CONTEXT);
        }
        let shared = Arc::new(SharedEvent::open(&handle)?);
        to.set(Event::create(driver, context.owner(), OPENED_EVENT, Some(shared))?)
    })
}
