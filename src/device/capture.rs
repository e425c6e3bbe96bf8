//! Stream captures: the graph that a stream's work becomes a part of, and what lives as long as that graph.

use std::ffi::{c_int, c_uint, c_void};
use std::ptr::null_mut;
use std::sync::Arc;

use cudarc::driver::sys::{CUgraph, CUresult, CUstreamCaptureStatus, CUuserObject_flags, CUuserObjectRetain_flags};

use super::context::Context;
use super::driver::{Driver, GraphTable};
use super::image::Stream;
use crate::error::Error;

/// What the stream is given is carried out.
const NOT_CAPTURING: c_uint = CUstreamCaptureStatus::CU_STREAM_CAPTURE_STATUS_NONE as c_uint;
/// Nothing will come of the capture.
const INVALIDATED: c_uint = CUstreamCaptureStatus::CU_STREAM_CAPTURE_STATUS_INVALIDATED as c_uint;
/// What calls give that would add to such a capture.
const CAPTURE_INVALIDATED: c_int = CUresult::CUDA_ERROR_STREAM_CAPTURE_INVALIDATED as c_int;
/// The only way there is: nobody may wait for the destructor by CUDA's means.
const NO_DESTRUCTOR_SYNC: c_uint = CUuserObject_flags::CU_USER_OBJECT_NO_DESTRUCTOR_SYNC as c_uint;
/// The graph takes over the reference that its maker has.
const MOVE_REFERENCE: c_uint = CUuserObjectRetain_flags::CU_GRAPH_USER_OBJECT_MOVE as c_uint;

/// What a graph keeps alive.
pub trait Kept: Send + Sync + 'static {
    /// The graph, its copies and everything made of them are gone, and nothing of them runs any more. Called once, on
    /// any thread, perhaps inside a call of the driver: it must not call CUDA, and must not wait for who may be inside
    /// CUDA.
    fn graph_gone(self: Arc<Self>);
}

/// An active capture that a stream belongs to. While the capture lasts, its graph does.
pub struct Capture {
    driver: &'static Driver,
    id: u64,
    graph: CUgraph,
}

impl Capture {
    /// The capture of a stream of the context; none where the stream carries out what it is given. The context must be
    /// current.
    ///
    /// # Errors
    /// [`Error::Cuda`] for no stream at all, for a capture that was invalidated, and for the legacy stream while it may
    /// not be used; [`Error::InvalidUsage`] where the driver is too old.
    pub fn of(context: &Context, stream: Stream) -> Result<Option<Capture>, Error> {
        let driver = context.driver();
        let mut status = NOT_CAPTURING;
        // SAFETY: the pointer is to a live integer; the driver checks the stream.
        let code = unsafe { (driver.table.stream_capturing)(stream.raw(), &mut status) };
        driver.check("cuStreamIsCapturing", code)?;
        match status {
            NOT_CAPTURING => Ok(None),
            INVALIDATED => driver.check("cuStreamIsCapturing", CAPTURE_INVALIDATED).map(|()| None),
            _ => Capture::active(driver, stream).map(Some),
        }
    }

    fn active(driver: &'static Driver, stream: Stream) -> Result<Capture, Error> {
        let table = table(driver)?;
        let (mut status, mut id, mut graph) = (NOT_CAPTURING, 0, null_mut());
        // SAFETY: the pointers are to live variables; NULL asks for no dependencies.
        let code =
            unsafe { (table.capture_info)(stream.raw(), &mut status, &mut id, &mut graph, null_mut(), null_mut()) };
        driver.check("cuStreamGetCaptureInfo", code)?;
        if graph.is_null() {
            // It has been invalidated meanwhile.
            driver.check("cuStreamGetCaptureInfo", CAPTURE_INVALIDATED)?;
        }
        Ok(Capture { driver, id, graph })
    }

    /// The capture's number; no other capture of the process ever has the same.
    pub fn id(&self) -> u64 {
        self.id
    }

    /// Makes the graph keep a thing until it is gone.
    ///
    /// # Errors
    /// What the driver gives. The thing may then be told all the same that its graph is gone.
    pub fn keep<T: Kept>(&self, thing: Arc<T>) -> Result<(), Error> {
        let table = table(self.driver)?;
        let data = Arc::into_raw(thing).cast_mut().cast::<c_void>();
        let mut object = null_mut();
        // SAFETY: the pointer is to a live variable; the destructor takes what `into_raw` has given, once.
        let code = unsafe { (table.object_create)(&mut object, data, Some(gone::<T>), 1, NO_DESTRUCTOR_SYNC) };
        self.driver.check("cuUserObjectCreate", code).inspect_err(|_| {
            // SAFETY: there is no object that would ever call the destructor.
            drop(unsafe { Arc::from_raw(data.cast::<T>()) });
        })?;
        // SAFETY: the capture is active, so its graph is alive; the reference is the one that we have.
        let code = unsafe { (table.graph_retain)(self.graph, object, 1, MOVE_REFERENCE) };
        self.driver.check("cuGraphRetainUserObject", code).inspect_err(|_| {
            // SAFETY: the reference is still ours; this is its end.
            unsafe { (table.object_release)(object, 1) };
        })
    }
}

/// What the driver calls when the last graph is gone.
///
/// # Safety
/// `data` is what `Arc::<T>::into_raw` gave, and nobody uses it again.
unsafe extern "C" fn gone<T: Kept>(data: *mut c_void) {
    // SAFETY: the caller vouches for the pointer: the driver calls a destructor once.
    unsafe { Arc::from_raw(data.cast::<T>()) }.graph_gone();
}

/// The functions for captures.
///
/// # Errors
/// [`Error::InvalidUsage`] where the driver lacks them: it is older than CUDA 11.3.
pub(super) fn table(driver: &Driver) -> Result<&GraphTable, Error> {
    driver.graphs.as_ref().ok_or_else(|| {
        let version = driver.version();
        Error::InvalidUsage(format!(
            "calls in CUDA graphs need a driver of CUDA 11.3 or newer; this one says {version}"
        ))
    })
}
