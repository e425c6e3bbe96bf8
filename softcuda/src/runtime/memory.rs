//! Memory: allocation, registration, what a pointer is, and memory of other processes.

use std::ffi::{c_int, c_uint, c_void};

use super::context::{call, in_context};
use super::driver::{self, IpcHandle};
use super::error::{Code, INVALID_VALUE, check};
use super::{Address, Handle, Out};

#[unsafe(export_name = "softcudart_cudaMalloc")]
extern "C" fn malloc(ptr: Out<Address>, size: usize) -> Code {
    in_context(|| allocate(ptr, size, |ptr, size| driver::cuMemAlloc_v2(ptr, size)))
}

/// The runtime allows a size of 0: success and a NULL pointer. The driver does not.
pub(super) fn allocate(
    ptr: Out<Address>,
    size: usize,
    driver_call: impl FnOnce(Out<Address>, usize) -> driver::Status,
) -> Result<(), Code> {
    let ptr = ptr.ok_or(INVALID_VALUE)?;
    ptr.write(0);
    if size == 0 { Ok(()) } else { check(driver_call(Some(ptr), size)) }
}

/// Rows are aligned for elements of any size.
#[unsafe(export_name = "softcudart_cudaMallocPitch")]
extern "C" fn malloc_pitch(ptr: Out<Address>, pitch: Out<usize>, width: usize, height: usize) -> Code {
    const WIDEST_ELEMENT: c_uint = 16;
    call(|| driver::cuMemAllocPitch_v2(ptr, pitch, width, height, WIDEST_ELEMENT))
}

#[unsafe(export_name = "softcudart_cudaFree")]
extern "C" fn free(ptr: Address) -> Code {
    in_context(|| if ptr == 0 { Ok(()) } else { check(driver::cuMemFree_v2(ptr)) })
}

#[unsafe(export_name = "softcudart_cudaMallocHost")]
extern "C" fn malloc_host(ptr: Out<Address>, size: usize) -> Code {
    host_alloc(ptr, size, 0)
}

#[unsafe(export_name = "softcudart_cudaHostAlloc")]
extern "C" fn host_alloc(ptr: Out<Address>, size: usize, flags: c_uint) -> Code {
    in_context(|| allocate(ptr, size, |ptr, size| driver::cuMemHostAlloc(ptr, size, flags)))
}

#[unsafe(export_name = "softcudart_cudaFreeHost")]
extern "C" fn free_host(ptr: Address) -> Code {
    in_context(|| if ptr == 0 { Ok(()) } else { check(driver::cuMemFreeHost(ptr)) })
}

#[unsafe(export_name = "softcudart_cudaMallocManaged")]
extern "C" fn malloc_managed(ptr: Out<Address>, size: usize, flags: c_uint) -> Code {
    call(|| driver::cuMemAllocManaged(ptr, size, flags))
}

#[unsafe(export_name = "softcudart_cudaMallocAsync")]
extern "C" fn malloc_async(ptr: Out<Address>, size: usize, stream: Handle) -> Code {
    in_context(|| allocate(ptr, size, |ptr, size| driver::cuMemAllocAsync(ptr, size, stream)))
}

#[unsafe(export_name = "softcudart_cudaFreeAsync")]
extern "C" fn free_async(ptr: Address, stream: Handle) -> Code {
    in_context(|| if ptr == 0 { Ok(()) } else { check(driver::cuMemFreeAsync(ptr, stream)) })
}

#[unsafe(export_name = "softcudart_cudaHostRegister")]
extern "C" fn host_register(ptr: Address, size: usize, flags: c_uint) -> Code {
    call(|| driver::cuMemHostRegister_v2(ptr, size, flags))
}

#[unsafe(export_name = "softcudart_cudaHostUnregister")]
extern "C" fn host_unregister(ptr: Address) -> Code {
    call(|| driver::cuMemHostUnregister(ptr))
}

#[unsafe(export_name = "softcudart_cudaHostGetDevicePointer")]
extern "C" fn host_get_device_pointer(device: Out<Address>, host: Address, flags: c_uint) -> Code {
    call(|| driver::cuMemHostGetDevicePointer_v2(device, host, flags))
}

#[unsafe(export_name = "softcudart_cudaHostGetFlags")]
extern "C" fn host_get_flags(flags: Out<c_uint>, host: Address) -> Code {
    call(|| driver::cuMemHostGetFlags(flags, host))
}

#[unsafe(export_name = "softcudart_cudaMemGetInfo")]
extern "C" fn mem_get_info(free: Out<usize>, total: Out<usize>) -> Code {
    call(|| driver::cuMemGetInfo_v2(free, total))
}

#[unsafe(export_name = "softcudart_cudaIpcGetMemHandle")]
extern "C" fn ipc_get_mem_handle(handle: Out<IpcHandle>, ptr: Address) -> Code {
    call(|| driver::cuIpcGetMemHandle(handle, ptr))
}

#[unsafe(export_name = "softcudart_cudaIpcOpenMemHandle")]
extern "C" fn ipc_open_mem_handle(ptr: Out<Address>, handle: IpcHandle, flags: c_uint) -> Code {
    call(|| driver::cuIpcOpenMemHandle_v2(ptr, handle, flags))
}

#[unsafe(export_name = "softcudart_cudaIpcCloseMemHandle")]
extern "C" fn ipc_close_mem_handle(ptr: Address) -> Code {
    call(|| driver::cuIpcCloseMemHandle(ptr))
}

/// `struct cudaPointerAttributes`.
#[repr(C)]
#[derive(Default)]
struct PointerAttributes {
    kind: c_int,
    device: c_int,
    device_pointer: Address,
    host_pointer: Address,
    reserved: [u64; 8],
}

/// `enum cudaMemoryType`.
const UNREGISTERED: c_int = 0;
const HOST: c_int = 1;
const DEVICE: c_int = 2;
const MANAGED: c_int = 3;
/// `cudaInvalidDeviceId`.
const NO_DEVICE: c_int = -2;

#[unsafe(export_name = "softcudart_cudaPointerGetAttributes")]
extern "C" fn pointer_get_attributes(attributes: Out<PointerAttributes>, ptr: Address) -> Code {
    in_context(|| {
        attributes.ok_or(INVALID_VALUE)?.write(describe(ptr)?);
        Ok(())
    })
}

/// What the driver knows about an address. Memory that it does not know is no error.
fn describe(ptr: Address) -> Result<PointerAttributes, Code> {
    // CU_POINTER_ATTRIBUTE_MEMORY_TYPE, …DEVICE_POINTER, …HOST_POINTER, …IS_MANAGED, …DEVICE_ORDINAL
    const WANTED: [c_uint; 5] = [2, 3, 4, 8, 9];
    // CU_MEMORYTYPE_HOST
    const DRIVER_HOST: c_int = 1;
    let (mut kind, mut managed, mut ordinal) = (0, 0, NO_DEVICE);
    let (mut device_pointer, mut host_pointer): (Address, Address) = (0, 0);
    let data: [*mut c_void; 5] = [
        (&raw mut kind).cast(),
        (&raw mut device_pointer).cast(),
        (&raw mut host_pointer).cast(),
        (&raw mut managed).cast(),
        (&raw mut ordinal).cast(),
    ];
    // SAFETY: each pointer leads to a local of the attribute's type (cuda.h: u32, two pointers, u32, i32).
    check(unsafe { driver::cuPointerGetAttributes(5, WANTED.as_ptr(), data.as_ptr(), ptr) })?;
    Ok(match (kind, managed) {
        (0, _) => PointerAttributes { kind: UNREGISTERED, device: NO_DEVICE, host_pointer: ptr, ..Default::default() },
        (_, 1) => PointerAttributes {
            kind: MANAGED,
            device: ordinal,
            device_pointer: ptr,
            host_pointer: ptr,
            ..Default::default()
        },
        (DRIVER_HOST, _) => {
            PointerAttributes { kind: HOST, device: ordinal, device_pointer, host_pointer, ..Default::default() }
        }
        _ => PointerAttributes { kind: DEVICE, device: ordinal, device_pointer, ..Default::default() },
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_struct_has_the_size_of_cudas() {
        assert_eq!(size_of::<PointerAttributes>(), 88);
        assert_eq!(size_of::<IpcHandle>(), 64);
    }
}
