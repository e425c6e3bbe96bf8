//! Instantiated graphs.

use super::{CuResult, Handle, In, Out, boundary};
use crate::context::{self, Context};
use crate::driver::Driver;
use crate::error::{CudaError, Outcome};
use crate::graph::{Refusal, exec};
use std::ffi::{c_char, c_int, c_uint, c_void};

fn instantiate(to: Out<Handle>, graph: Handle, flags: u64) -> Outcome {
    to.check()?;
    let driver = Driver::get()?;
    let current = context::current(driver).ok().map(Context::identity);
    to.set(exec::instantiate(driver, graph, flags, current)?)
}

#[unsafe(no_mangle)]
extern "C" fn cuGraphInstantiateWithFlags(to: Out<Handle>, graph: Handle, flags: u64) -> CuResult {
    boundary(|| instantiate(to, graph, flags))
}

/// The form before CUDA 12, with a log, which has nothing to say.
fn instantiate_logged(to: Out<Handle>, graph: Handle, error_node: Out<Handle>, log: (Out<c_char>, usize)) -> Outcome {
    error_node.set_if_wanted(0);
    if log.1 > 0 {
        log.0.set_if_wanted(0);
    }
    instantiate(to, graph, 0)
}

#[unsafe(no_mangle)]
extern "C" fn cuGraphInstantiate_v2(
    to: Out<Handle>,
    graph: Handle,
    error_node: Out<Handle>,
    log: Out<c_char>,
    log_bytes: usize,
) -> CuResult {
    boundary(|| instantiate_logged(to, graph, error_node, (log, log_bytes)))
}

#[unsafe(no_mangle)]
extern "C" fn cuGraphInstantiate(
    to: Out<Handle>,
    graph: Handle,
    error_node: Out<Handle>,
    log: Out<c_char>,
    log_bytes: usize,
) -> CuResult {
    boundary(|| instantiate_logged(to, graph, error_node, (log, log_bytes)))
}

/// `CUDA_GRAPH_INSTANTIATE_PARAMS`
#[derive(Clone, Copy)]
#[repr(C)]
struct Parameters {
    flags: u64,
    upload: Handle,
    error_node: Handle,
    result: c_int,
}

/// `CUgraphInstantiateResult`
fn result_of(outcome: Outcome) -> c_int {
    match outcome {
        Ok(()) => 0,
        Err(CudaError::INVALID_VALUE) => 2,
        Err(CudaError::NOT_SUPPORTED) => 3,
        Err(_) => 1,
    }
}

#[unsafe(no_mangle)]
extern "C" fn cuGraphInstantiateWithParams(to: Out<Handle>, graph: Handle, parameters: *mut c_void) -> CuResult {
    boundary(|| {
        let out = Out(parameters.cast::<Parameters>());
        let given = out.get()?;
        let outcome = instantiate(to, graph, given.flags);
        out.set(Parameters { error_node: 0, result: result_of(outcome), ..given })?;
        outcome
    })
}

#[unsafe(no_mangle)]
extern "C" fn cuGraphUpload(exec: Handle, stream: Handle) -> CuResult {
    boundary(|| {
        let driver = Driver::get()?;
        context::stream(driver, stream)?;
        exec::check(driver, exec)
    })
}

#[unsafe(no_mangle)]
extern "C" fn cuGraphLaunch(exec: Handle, stream: Handle) -> CuResult {
    boundary(|| {
        let driver = Driver::get()?;
        exec::launch(driver, exec, context::stream(driver, stream)?, &|identity| context::is_alive(driver, identity))
    })
}

#[unsafe(no_mangle)]
extern "C" fn cuGraphExecDestroy(exec: Handle) -> CuResult {
    boundary(|| exec::destroy(Driver::get()?, exec))
}

#[unsafe(no_mangle)]
extern "C" fn cuGraphExecGetFlags(exec: Handle, flags: Out<u64>) -> CuResult {
    boundary(|| flags.set(exec::facts(Driver::get()?, exec)?.0))
}

#[unsafe(no_mangle)]
extern "C" fn cuGraphExecGetId(exec: Handle, id: Out<c_uint>) -> CuResult {
    boundary(|| id.set(exec::facts(Driver::get()?, exec)?.1 as c_uint))
}

/// `CUgraphExecUpdateResultInfo`
#[repr(C)]
struct UpdateResult {
    result: c_int,
    error_node: Handle,
    error_from: Handle,
}

/// An update, and what is to be told of it.
fn update(exec: Handle, graph: Handle, tell: impl FnOnce(Refusal)) -> Outcome {
    match exec::update(Driver::get()?, exec, graph) {
        Ok(Ok(())) => {
            tell(Refusal { reason: 0, node: 0 });
            Ok(())
        }
        Ok(Err(refusal)) => {
            tell(refusal);
            Err(CudaError::GRAPH_EXEC_UPDATE_FAILURE)
        }
        Err(error) => {
            tell(Refusal { reason: 1, node: 0 });
            Err(error)
        }
    }
}

#[unsafe(no_mangle)]
extern "C" fn cuGraphExecUpdate(exec: Handle, graph: Handle, error_node: Out<Handle>, result: Out<c_int>) -> CuResult {
    boundary(|| {
        update(exec, graph, |refusal| {
            error_node.set_if_wanted(refusal.node);
            result.set_if_wanted(refusal.reason);
        })
    })
}

#[unsafe(no_mangle)]
extern "C" fn cuGraphExecUpdate_v2(exec: Handle, graph: Handle, result: *mut c_void) -> CuResult {
    boundary(|| {
        let result = Out(result.cast::<UpdateResult>());
        result.check()?;
        update(exec, graph, |refusal| {
            result.set_if_wanted(UpdateResult { result: refusal.reason, error_node: refusal.node, error_from: 0 });
        })
    })
}

/// Attributes of the memory that graphs allocate: they allocate none.
#[unsafe(no_mangle)]
extern "C" fn cuDeviceGetGraphMemAttribute(device: c_int, attribute: c_int, value: *mut c_void) -> CuResult {
    boundary(|| {
        Driver::get()?.device(device)?;
        if !(0..=3).contains(&attribute) {
            return Err(CudaError::INVALID_VALUE);
        }
        Out(value.cast::<u64>()).set(0)
    })
}

/// Only the high-water marks can be set, to 0.
#[unsafe(no_mangle)]
extern "C" fn cuDeviceSetGraphMemAttribute(device: c_int, attribute: c_int, value: *const c_void) -> CuResult {
    boundary(|| {
        Driver::get()?.device(device)?;
        let sound = matches!(attribute, 1 | 3) && In(value.cast::<u64>()).get()? == 0;
        if sound { Ok(()) } else { Err(CudaError::INVALID_VALUE) }
    })
}

#[unsafe(no_mangle)]
extern "C" fn cuDeviceGraphMemTrim(device: c_int) -> CuResult {
    boundary(|| Driver::get()?.device(device).map(drop))
}
