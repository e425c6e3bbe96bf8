//! Green contexts and the resources that they are made of.

use super::{CuResult, Handle, In, Out, boundary};
use crate::context::green::{self, Green, MAX_SPANS, Resource, Source};
use crate::context::{self, Context};
use crate::driver::Driver;
use crate::error::{CudaError, Outcome};
use crate::event;
use crate::stream::Stream;
use std::ffi::{c_int, c_uint};

/// `CU_DEV_RESOURCE_TYPE_INVALID`, `_SM`
const NONE: c_uint = 0;
const SM: c_uint = 1;
/// `CU_STREAM_NON_BLOCKING`
const NON_BLOCKING: c_uint = 1;
/// Groups that a split is asked for at most; a device has fewer SMs.
const MAX_GROUPS: c_uint = 65_536;
/// Marks what this driver filled in, and where it is from.
const WHOLE: u32 = 0x5343_5741;
const GROUP: u32 = 0x5343_4752;
const REST: u32 = 0x5343_5245;

/// The driver's own part of `CUdevResource`.
#[derive(Clone, Copy)]
#[repr(C)]
struct Private {
    mark: u32,
    split: u32,
    device: u32,
    alignment: u32,
    spans: u32,
    span: [(u32, u32); MAX_SPANS],
}

/// `CUdevSmResource`
#[derive(Clone, Copy)]
#[repr(C)]
struct SmResource {
    count: c_uint,
    least: c_uint,
    alignment: c_uint,
    flags: c_uint,
    locality: c_uint,
}

/// `CUdevResource`
#[derive(Clone, Copy)]
#[repr(C)]
struct DevResource {
    kind: c_uint,
    private: Private,
    sm: SmResource,
    rest: [u32; 5],
    next: u64,
}

const _: () = assert!(size_of::<Private>() == 92 && size_of::<DevResource>() == 144);

impl DevResource {
    /// What is no resource: the rest of a split that leaves nothing.
    const EMPTY: DevResource = DevResource {
        kind: NONE,
        private: Private { mark: 0, split: 0, device: 0, alignment: 0, spans: 0, span: [(0, 0); MAX_SPANS] },
        sm: SmResource { count: 0, least: 0, alignment: 0, flags: 0, locality: 0 },
        rest: [0; 5],
        next: 0,
    };

    /// `INVALID_RESOURCE_CONFIGURATION`: it lies in too many pieces.
    fn of(resource: &Resource) -> Outcome<DevResource> {
        let mut to = DevResource::EMPTY;
        let (mark, split) = match resource.source {
            Source::Whole => (WHOLE, 0),
            Source::Group(number) => (GROUP, number),
            Source::Rest(number) => (REST, number),
        };
        let places =
            to.private.span.get_mut(..resource.spans.len()).ok_or(CudaError::INVALID_RESOURCE_CONFIGURATION)?;
        places.copy_from_slice(&resource.spans);
        (to.private.mark, to.private.split) = (mark, split);
        (to.private.device, to.private.alignment) = (resource.device as u32, resource.alignment);
        to.private.spans = resource.spans.len() as u32;
        if resource.count() > 0 {
            to.kind = SM;
            let alignment = resource.alignment;
            to.sm = SmResource { count: resource.count(), least: alignment, alignment, ..to.sm };
        }
        Ok(to)
    }

    /// `INVALID_RESOURCE_TYPE`: not of SMs; `INVALID_VALUE`: not made by this driver.
    fn read(&self, driver: &Driver) -> Outcome<Resource> {
        if self.kind != SM {
            return Err(CudaError::INVALID_RESOURCE_TYPE);
        }
        let private = &self.private;
        let source = match private.mark {
            WHOLE => Source::Whole,
            GROUP => Source::Group(private.split),
            REST => Source::Rest(private.split),
            _ => return Err(CudaError::INVALID_VALUE),
        };
        let spans = private.span.get(..private.spans as usize).ok_or(CudaError::INVALID_VALUE)?;
        let sms = driver.device(private.device as i32)?.sms.count();
        let sound = |(first, count): &(u32, u32)| first.checked_add(*count).is_some_and(|end| end <= sms);
        if private.alignment == 0 || !spans.iter().all(sound) {
            return Err(CudaError::INVALID_VALUE);
        }
        Ok(Resource { device: private.device as usize, source, alignment: private.alignment, spans: spans.to_vec() })
    }
}

/// Resources other than SMs are not there.
fn tell(to: Out<DevResource>, kind: c_uint, resource: impl FnOnce() -> Outcome<Resource>) -> Outcome {
    to.check()?;
    let resource = resource()?;
    if kind != SM {
        return Err(CudaError::INVALID_RESOURCE_TYPE);
    }
    to.set(DevResource::of(&resource)?)
}

#[unsafe(no_mangle)]
extern "C" fn cuDeviceGetDevResource(device: c_int, to: Out<DevResource>, kind: c_uint) -> CuResult {
    boundary(|| {
        let driver = Driver::get()?;
        tell(to, kind, || Ok(Resource::of_device(driver, driver.device(device)?.index)))
    })
}

#[unsafe(no_mangle)]
extern "C" fn cuCtxGetDevResource(handle: Handle, to: Out<DevResource>, kind: c_uint) -> CuResult {
    boundary(|| {
        let driver = Driver::get()?;
        tell(to, kind, || Ok(Resource::of_context(driver, context::lookup(driver, handle)?)))
    })
}

#[unsafe(no_mangle)]
extern "C" fn cuGreenCtxGetDevResource(handle: Handle, to: Out<DevResource>, kind: c_uint) -> CuResult {
    boundary(|| {
        let driver = Driver::get()?;
        tell(to, kind, || Ok(green::lookup(driver, handle)?.resource()))
    })
}

#[unsafe(no_mangle)]
extern "C" fn cuStreamGetDevResource(stream: Handle, to: Out<DevResource>, kind: c_uint) -> CuResult {
    boundary(|| {
        let driver = Driver::get()?;
        tell(to, kind, || Ok(Resource::of_context(driver, context::of_stream(driver, stream)?)))
    })
}

/// Without a place for the groups only their number is told.
#[unsafe(no_mangle)]
extern "C" fn cuDevSmResourceSplitByCount(
    result: Out<DevResource>,
    groups: Out<c_uint>,
    input: In<DevResource>,
    remainder: Out<DevResource>,
    flags: c_uint,
    least: c_uint,
) -> CuResult {
    boundary(|| {
        let driver = Driver::get()?;
        let input = input.get()?.read(driver)?;
        let asks = result.check().is_err();
        let most = if asks { MAX_GROUPS } else { groups.get()?.min(MAX_GROUPS) };
        groups.check()?;
        if most == 0 {
            return Err(CudaError::INVALID_VALUE);
        }
        let (made, left) = input.split(driver, most as usize, flags, least)?;
        if !asks {
            for (index, group) in made.iter().enumerate() {
                result.set_at(index, DevResource::of(group)?)?;
            }
            remainder.set_if_wanted(DevResource::of(&left)?);
        }
        groups.set(made.len() as c_uint)
    })
}

#[unsafe(no_mangle)]
extern "C" fn cuDevResourceGenerateDesc(to: Out<Handle>, resources: In<DevResource>, count: c_uint) -> CuResult {
    boundary(|| {
        let driver = Driver::get()?;
        to.check()?;
        if count > MAX_GROUPS {
            return Err(CudaError::INVALID_VALUE);
        }
        let parts = resources.list(count as usize)?;
        let parts = parts.iter().map(|part| part.read(driver)).collect::<Outcome<Vec<_>>>()?;
        to.set(green::describe(driver, &parts)?)
    })
}

#[unsafe(no_mangle)]
extern "C" fn cuGreenCtxCreate(to: Out<Handle>, descriptor: Handle, device: c_int, flags: c_uint) -> CuResult {
    boundary(|| {
        let driver = Driver::get()?;
        to.check()?;
        to.set(Green::create(driver, descriptor, driver.device(device)?.index, flags)?)
    })
}

#[unsafe(no_mangle)]
extern "C" fn cuGreenCtxDestroy(handle: Handle) -> CuResult {
    boundary(|| Green::destroy(Driver::get()?, handle))
}

/// The context that stands for a green one, while both and the primary context live.
fn context_of(driver: &'static Driver, handle: Handle) -> Outcome<&'static Context> {
    let context = context::lookup(driver, green::lookup(driver, handle)?.context())?;
    driver.check(context.device())?;
    Ok(context)
}

#[unsafe(no_mangle)]
extern "C" fn cuCtxFromGreenCtx(to: Out<Handle>, handle: Handle) -> CuResult {
    boundary(|| to.set(context_of(Driver::get()?, handle)?.handle()))
}

/// NULL is the green context that is current.
#[unsafe(no_mangle)]
extern "C" fn cuGreenCtxGetId(handle: Handle, to: Out<u64>) -> CuResult {
    boundary(|| {
        let driver = Driver::get()?;
        let current = || context::current(driver)?.as_green().ok_or(CudaError::INVALID_CONTEXT);
        let context = if handle == 0 { current()? } else { context_of(driver, handle)? };
        to.set(context.id())
    })
}

#[unsafe(no_mangle)]
extern "C" fn cuGreenCtxStreamCreate(to: Out<Handle>, handle: Handle, flags: c_uint, priority: c_int) -> CuResult {
    boundary(|| {
        let driver = Driver::get()?;
        let context = context_of(driver, handle)?;
        to.check()?;
        if flags != NON_BLOCKING {
            return Err(CudaError::INVALID_VALUE);
        }
        to.set(Stream::create(driver, &context.streams, flags, priority)?)
    })
}

#[unsafe(no_mangle)]
extern "C" fn cuGreenCtxRecordEvent(handle: Handle, event: Handle) -> CuResult {
    boundary(|| {
        let driver = Driver::get()?;
        let context = context_of(driver, handle)?;
        let event = event::lookup(driver, event)?;
        driver.graphs.captures.check_context(context.handle())?;
        event.record_all(&context.streams)
    })
}

#[unsafe(no_mangle)]
extern "C" fn cuGreenCtxWaitEvent(handle: Handle, event: Handle) -> CuResult {
    boundary(|| {
        let driver = Driver::get()?;
        let context = context_of(driver, handle)?;
        let event = event::lookup(driver, event)?;
        let captures = &driver.graphs.captures;
        captures.check_context(context.handle())?;
        if let Some(captured) = event.captured() {
            captures.disturb_event(&captured);
            return Err(CudaError::STREAM_CAPTURE_UNSUPPORTED);
        }
        event.hold_up_all(&context.streams)
    })
}

#[unsafe(no_mangle)]
extern "C" fn cuStreamGetGreenCtx(stream: Handle, to: Out<Handle>) -> CuResult {
    boundary(|| to.set(context::of_stream(Driver::get()?, stream)?.green()))
}

/// Of a stream in a green context: the primary context and the green one.
#[unsafe(no_mangle)]
extern "C" fn cuStreamGetCtx_v2(stream: Handle, to: Out<Handle>, green: Out<Handle>) -> CuResult {
    boundary(|| {
        let context = context::of_stream(Driver::get()?, stream)?;
        to.check()?;
        green.set_if_wanted(context.green());
        to.set(context.home())
    })
}
