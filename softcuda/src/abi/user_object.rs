//! User objects.

use super::{CuResult, Handle, Out, boundary};
use crate::callout::HostCall;
use crate::driver::Driver;
use crate::error::{CudaError, Outcome};
use crate::graph::body;
use crate::graph::object::{self, Held};
use std::ffi::{c_uint, c_void};

/// `CU_USER_OBJECT_NO_DESTRUCTOR_SYNC`: must be given, as nobody can wait for a destructor.
const NO_DESTRUCTOR_SYNC: c_uint = 1;
/// `CU_GRAPH_USER_OBJECT_MOVE`: the references are the caller's own; otherwise new ones are made.
const MOVE: c_uint = 1;

#[unsafe(no_mangle)]
extern "C" fn cuUserObjectCreate(
    to: Out<Handle>,
    data: *mut c_void,
    destructor: Option<unsafe extern "C" fn(*mut c_void)>,
    references: c_uint,
    flags: c_uint,
) -> CuResult {
    boundary(|| {
        let driver = Driver::get()?;
        to.check()?;
        let destructor = destructor.filter(|_| flags == NO_DESTRUCTOR_SYNC).ok_or(CudaError::INVALID_VALUE)?;
        // SAFETY: the client's promise to this call.
        to.set(object::create(driver, unsafe { HostCall::new(destructor, data) }, references)?)
    })
}

#[unsafe(no_mangle)]
extern "C" fn cuUserObjectRetain(object: Handle, count: c_uint) -> CuResult {
    boundary(|| object::retain(Driver::get()?, object, count))
}

#[unsafe(no_mangle)]
extern "C" fn cuUserObjectRelease(object: Handle, count: c_uint) -> CuResult {
    boundary(|| object::release(Driver::get()?, object, count))
}

#[unsafe(no_mangle)]
extern "C" fn cuGraphRetainUserObject(graph: Handle, object: Handle, count: c_uint, flags: c_uint) -> CuResult {
    boundary(|| {
        let driver = Driver::get()?;
        body::with(driver, graph, |body| {
            let held = match flags {
                0 => Held::retain(driver, object, count)?,
                MOVE => Held::adopt(driver, object, count)?,
                _ => return Err(CudaError::INVALID_VALUE),
            };
            body.held.push(held);
            Ok(())
        })
    })
}

#[unsafe(no_mangle)]
extern "C" fn cuGraphReleaseUserObject(graph: Handle, object: Handle, count: c_uint) -> CuResult {
    boundary(|| {
        // Dropped after the graph's lock.
        let gone: Vec<Held> = body::with(Driver::get()?, graph, |body| take(&mut body.held, object, count))?;
        drop(gone);
        Ok(())
    })
}

/// Takes references out of those that a graph has.
fn take(held: &mut Vec<Held>, object: Handle, count: u32) -> Outcome<Vec<Held>> {
    let all: u64 = held.iter().filter(|held| held.handle() == object).map(|held| u64::from(held.count())).sum();
    if count == 0 || u64::from(count) > all {
        return Err(CudaError::INVALID_VALUE);
    }
    let (mut left, mut gone) = (count, Vec::new());
    while let Some(place) = held.iter().position(|held| held.handle() == object).filter(|_| left > 0) {
        let taken = if held[place].count() <= left { held.remove(place) } else { held[place].split(left) };
        left -= taken.count();
        gone.push(taken);
    }
    Ok(gone)
}
