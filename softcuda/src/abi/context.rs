//! Contexts.

use super::{CuResult, Handle, Out, boundary};
use crate::context::{self, Context, Nature};
use crate::driver::Driver;
use crate::error::{CudaError, Outcome};
use crate::stream::PRIORITIES;
use std::ffi::{c_int, c_uint, c_void};

#[unsafe(no_mangle)]
extern "C" fn cuDevicePrimaryCtxRetain(to: Out<Handle>, device: c_int) -> CuResult {
    boundary(|| {
        let driver = Driver::get()?;
        to.check()?;
        let device = driver.device(device)?;
        to.set(driver.primary(device).retain(driver, device.index)?.handle())
    })
}

fn primary_release(device: c_int) -> Outcome {
    let driver = Driver::get()?;
    driver.primary(driver.device(device)?).release(driver)
}

#[unsafe(no_mangle)]
extern "C" fn cuDevicePrimaryCtxRelease(device: c_int) -> CuResult {
    boundary(|| primary_release(device))
}

#[unsafe(no_mangle)]
extern "C" fn cuDevicePrimaryCtxRelease_v2(device: c_int) -> CuResult {
    boundary(|| primary_release(device))
}

fn primary_reset(device: c_int) -> Outcome {
    let driver = Driver::get()?;
    driver.primary(driver.device(device)?).reset(driver)
}

#[unsafe(no_mangle)]
extern "C" fn cuDevicePrimaryCtxReset(device: c_int) -> CuResult {
    boundary(|| primary_reset(device))
}

#[unsafe(no_mangle)]
extern "C" fn cuDevicePrimaryCtxReset_v2(device: c_int) -> CuResult {
    boundary(|| primary_reset(device))
}

fn primary_flags(device: c_int, flags: c_uint) -> Outcome {
    let driver = Driver::get()?;
    driver.primary(driver.device(device)?).set_flags(flags)
}

#[unsafe(no_mangle)]
extern "C" fn cuDevicePrimaryCtxSetFlags(device: c_int, flags: c_uint) -> CuResult {
    boundary(|| primary_flags(device, flags))
}

#[unsafe(no_mangle)]
extern "C" fn cuDevicePrimaryCtxSetFlags_v2(device: c_int, flags: c_uint) -> CuResult {
    boundary(|| primary_flags(device, flags))
}

#[unsafe(no_mangle)]
extern "C" fn cuDevicePrimaryCtxGetState(device: c_int, flags: Out<c_uint>, active: Out<c_int>) -> CuResult {
    boundary(|| {
        let driver = Driver::get()?;
        let state = driver.primary(driver.device(device)?).state();
        flags.set(state.0)?;
        active.set(c_int::from(state.1))
    })
}

fn create(to: Out<Handle>, flags: c_uint, device: c_int) -> Outcome {
    let driver = Driver::get()?;
    to.check()?;
    let device = driver.device(device)?;
    driver.check(device.index)?;
    let made = Context::create(driver, device.index, flags, Nature::Own)?;
    context::push(made.handle())?;
    to.set(made.handle())
}

#[unsafe(no_mangle)]
extern "C" fn cuCtxCreate_v2(to: Out<Handle>, flags: c_uint, device: c_int) -> CuResult {
    boundary(|| create(to, flags, device))
}

#[unsafe(no_mangle)]
extern "C" fn cuCtxCreate_v3(
    to: Out<Handle>,
    _affinity: *mut c_void,
    count: c_int,
    flags: c_uint,
    device: c_int,
) -> CuResult {
    let affine = count != 0;
    boundary(|| if affine { Err(CudaError::UNSUPPORTED_EXEC_AFFINITY) } else { create(to, flags, device) })
}

/// Parameters ask for execution affinity or graphics; without them it is an ordinary context.
#[unsafe(no_mangle)]
extern "C" fn cuCtxCreate_v4(to: Out<Handle>, parameters: *mut c_void, flags: c_uint, device: c_int) -> CuResult {
    let plain = parameters.is_null();
    boundary(|| if plain { create(to, flags, device) } else { Err(CudaError::NOT_SUPPORTED) })
}

#[unsafe(no_mangle)]
extern "C" fn cuCtxDestroy_v2(handle: Handle) -> CuResult {
    boundary(|| Context::destroy(Driver::get()?, handle))
}

#[unsafe(no_mangle)]
extern "C" fn cuCtxPushCurrent_v2(handle: Handle) -> CuResult {
    boundary(|| {
        context::lookup(Driver::get()?, handle)?;
        context::push(handle)
    })
}

#[unsafe(no_mangle)]
extern "C" fn cuCtxPopCurrent_v2(to: Out<Handle>) -> CuResult {
    boundary(|| {
        Driver::get()?;
        to.set_if_wanted(context::pop()?);
        Ok(())
    })
}

#[unsafe(no_mangle)]
extern "C" fn cuCtxSetCurrent(handle: Handle) -> CuResult {
    boundary(|| {
        let driver = Driver::get()?;
        if handle != 0 {
            context::lookup(driver, handle)?;
        }
        context::set(handle);
        Ok(())
    })
}

#[unsafe(no_mangle)]
extern "C" fn cuCtxGetCurrent(to: Out<Handle>) -> CuResult {
    boundary(|| {
        Driver::get()?;
        to.set(context::current_handle())
    })
}

#[unsafe(no_mangle)]
extern "C" fn cuCtxGetDevice(device: Out<c_int>) -> CuResult {
    boundary(|| device.set(context::present(Driver::get()?)?.device() as c_int))
}

/// The given context, or the current one for NULL.
fn given(driver: &'static Driver, handle: Handle) -> Outcome<&'static Context> {
    let context = if handle == 0 { context::present(driver)? } else { context::lookup(driver, handle)? };
    driver.check(context.device())?;
    Ok(context)
}

#[unsafe(no_mangle)]
extern "C" fn cuCtxGetDevice_v2(device: Out<c_int>, handle: Handle) -> CuResult {
    boundary(|| {
        let driver = Driver::get()?;
        let context = if handle == 0 { context::present(driver)? } else { context::lookup(driver, handle)? };
        device.set(context.device() as c_int)
    })
}

#[unsafe(no_mangle)]
extern "C" fn cuCtxGetId(handle: Handle, id: Out<u64>) -> CuResult {
    boundary(|| id.set(given(Driver::get()?, handle)?.id()))
}

#[unsafe(no_mangle)]
extern "C" fn cuCtxGetApiVersion(handle: Handle, version: Out<c_uint>) -> CuResult {
    boundary(|| {
        given(Driver::get()?, handle)?;
        version.set(context::API_VERSION)
    })
}

#[unsafe(no_mangle)]
extern "C" fn cuCtxGetFlags(flags: Out<c_uint>) -> CuResult {
    boundary(|| flags.set(context::current_home(Driver::get()?)?.settings.lock().flags))
}

#[unsafe(no_mangle)]
extern "C" fn cuCtxSetFlags(flags: c_uint) -> CuResult {
    boundary(|| {
        context::check_flags(flags)?;
        context::current_home(Driver::get()?)?.settings.lock().flags = flags;
        Ok(())
    })
}

fn synchronize(context: &'static Context) -> Outcome {
    let driver = Driver::get()?;
    driver.graphs.captures.check_context(context.handle())?;
    driver.graphs.captures.allow_unsafe()?;
    context.synchronize(driver)
}

#[unsafe(no_mangle)]
extern "C" fn cuCtxSynchronize() -> CuResult {
    boundary(|| synchronize(context::current(Driver::get()?)?))
}

#[unsafe(no_mangle)]
extern "C" fn cuCtxSynchronize_v2(handle: Handle) -> CuResult {
    boundary(|| synchronize(given(Driver::get()?, handle)?))
}

#[unsafe(no_mangle)]
extern "C" fn cuCtxGetStreamPriorityRange(least: Out<c_int>, greatest: Out<c_int>) -> CuResult {
    boundary(|| {
        context::current(Driver::get()?)?;
        least.set_if_wanted(PRIORITIES.0);
        greatest.set_if_wanted(PRIORITIES.1);
        Ok(())
    })
}

fn limit_index(limit: c_int) -> Outcome<usize> {
    usize::try_from(limit).ok().filter(|n| *n < context::LIMITS).ok_or(CudaError::UNSUPPORTED_LIMIT)
}

#[unsafe(no_mangle)]
extern "C" fn cuCtxGetLimit(value: Out<usize>, limit: c_int) -> CuResult {
    boundary(|| {
        let context = context::current_home(Driver::get()?)?;
        value.set(context.settings.lock().limits[limit_index(limit)?])
    })
}

#[unsafe(no_mangle)]
extern "C" fn cuCtxSetLimit(limit: c_int, value: usize) -> CuResult {
    boundary(|| {
        let context = context::current_home(Driver::get()?)?;
        context.settings.lock().limits[limit_index(limit)?] = value;
        Ok(())
    })
}

#[unsafe(no_mangle)]
extern "C" fn cuCtxGetCacheConfig(config: Out<c_int>) -> CuResult {
    boundary(|| config.set(context::current_home(Driver::get()?)?.settings.lock().cache))
}

#[unsafe(no_mangle)]
extern "C" fn cuCtxSetCacheConfig(config: c_int) -> CuResult {
    boundary(|| {
        if !(0..=3).contains(&config) {
            return Err(CudaError::INVALID_VALUE);
        }
        context::current_home(Driver::get()?)?.settings.lock().cache = config;
        Ok(())
    })
}

#[unsafe(no_mangle)]
extern "C" fn cuCtxGetSharedMemConfig(config: Out<c_int>) -> CuResult {
    boundary(|| {
        context::current(Driver::get()?)?;
        config.set(0)
    })
}

#[unsafe(no_mangle)]
extern "C" fn cuCtxSetSharedMemConfig(_config: c_int) -> CuResult {
    boundary(|| context::current(Driver::get()?).map(|_| ()))
}

#[unsafe(no_mangle)]
extern "C" fn cuCtxResetPersistingL2Cache() -> CuResult {
    boundary(|| context::current(Driver::get()?).map(|_| ()))
}

#[unsafe(no_mangle)]
extern "C" fn cuCtxEnablePeerAccess(peer: Handle, flags: c_uint) -> CuResult {
    boundary(|| {
        let driver = Driver::get()?;
        let context = context::current_home(driver)?;
        let other = context::lookup(driver, peer)?.home_context(driver)?;
        let peer = other.handle();
        if flags != 0 {
            return Err(CudaError::INVALID_VALUE);
        }
        if other.device() == context.device() {
            let same = peer == context.handle();
            return Err(if same { CudaError::INVALID_CONTEXT } else { CudaError::PEER_ACCESS_UNSUPPORTED });
        }
        if !driver.link(context.device(), driver.devices[other.device()].ordinal).has_access() {
            return Err(CudaError::PEER_ACCESS_UNSUPPORTED);
        }
        if context.settings.lock().peers.contains(&peer) {
            return Err(CudaError::PEER_ACCESS_ALREADY_ENABLED);
        }
        driver.synchronize_device(context.device())?;
        let mut settings = context.settings.lock();
        if settings.peers.contains(&peer) {
            return Err(CudaError::PEER_ACCESS_ALREADY_ENABLED);
        }
        settings.peers.push(peer);
        Ok(())
    })
}

#[unsafe(no_mangle)]
extern "C" fn cuCtxDisablePeerAccess(peer: Handle) -> CuResult {
    boundary(|| {
        let driver = Driver::get()?;
        let peer = context::lookup(driver, peer)?.home();
        let mut settings = context::current_home(driver)?.settings.lock();
        let before = settings.peers.len();
        settings.peers.retain(|handle| *handle != peer);
        if settings.peers.len() == before { Err(CudaError::PEER_ACCESS_NOT_ENABLED) } else { Ok(()) }
    })
}
