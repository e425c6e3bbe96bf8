//! Result codes: what the runtime reports, remembers and calls by name.
//!
//! `cudaError_t` and `CUresult` share their numbers wherever both have the error; the driver's few
//! extra ones become `cudaErrorUnknown`. Numbers and names: `driver_types.h` of CUDA 13.

use std::cell::Cell;
use std::ffi::{CStr, c_char};
use std::mem::MaybeUninit;

use super::driver;

/// A `cudaError_t`.
pub(super) type Code = i32;

pub(super) const SUCCESS: Code = 0;
pub(super) const INVALID_VALUE: Code = 1;
pub(super) const INVALID_MEMCPY_DIRECTION: Code = 21;
pub(super) const MISSING_CONFIGURATION: Code = 52;
pub(super) const INVALID_DEVICE_FUNCTION: Code = 98;
pub(super) const INVALID_DEVICE: Code = 101;
pub(super) const INVALID_RESOURCE_HANDLE: Code = 400;
pub(super) const SYMBOL_NOT_FOUND: Code = 500;
pub(super) const NOT_READY: Code = 600;
pub(super) const NOT_SUPPORTED: Code = 801;
const UNKNOWN: Code = 999;

thread_local! {
    static LAST: Cell<Code> = const { Cell::new(SUCCESS) };
}

/// Turns a `CUresult` into the runtime's result.
pub(super) fn check(status: driver::Status) -> Result<(), Code> {
    match status {
        SUCCESS => Ok(()),
        code if name(code).is_some() => Err(code),
        _ => Err(UNKNOWN),
    }
}

/// The code that a call returns, remembered for `cudaGetLastError`. "Not ready" is an answer, not
/// an error.
pub(super) fn report(result: Result<(), Code>) -> Code {
    let code = result.err().unwrap_or(SUCCESS);
    if code != SUCCESS && code != NOT_READY {
        LAST.set(code);
    }
    code
}

#[unsafe(export_name = "softcudart_cudaGetLastError")]
extern "C" fn get_last_error() -> Code {
    LAST.replace(SUCCESS)
}

#[unsafe(export_name = "softcudart_cudaPeekAtLastError")]
extern "C" fn peek_at_last_error() -> Code {
    LAST.get()
}

#[unsafe(export_name = "softcudart_cudaGetErrorName")]
extern "C" fn get_error_name(code: Code) -> *const c_char {
    name(code).map_or(UNRECOGNIZED.as_ptr(), CStr::as_ptr)
}

#[unsafe(export_name = "softcudart_cudaGetErrorString")]
extern "C" fn get_error_string(code: Code) -> *const c_char {
    if name(code).is_none() {
        return UNRECOGNIZED.as_ptr();
    }
    if let Some(text) = own_text(code) {
        return text.as_ptr();
    }
    let mut text = MaybeUninit::new(std::ptr::null());
    let status = driver::cuGetErrorString(code, Some(&mut text));
    // SAFETY: it was initialised above, and the driver at most replaced it.
    let text = unsafe { text.assume_init() };
    if status == SUCCESS && !text.is_null() { text } else { get_error_name(code) }
}

const UNRECOGNIZED: &CStr = c"unrecognized error code";

/// The texts of errors that the driver does not have or has under another name.
fn own_text(code: Code) -> Option<&'static CStr> {
    Some(match code {
        9 => c"invalid configuration argument",
        10 => c"the libraries of different versions do not fit together",
        12 => c"invalid pitch argument",
        13 => c"invalid device symbol",
        16 => c"invalid host pointer",
        17 => c"invalid device pointer",
        21 => c"invalid copy direction for memcpy",
        31 => c"feature not yet implemented",
        35 => c"CUDA driver version is insufficient for CUDA runtime version",
        49 => c"incompatible driver context",
        52 => c"__global__ function call is not configured",
        53 => c"a launch before this one failed",
        98 => c"invalid device function",
        _ => return None,
    })
}

/// The name of a code that the runtime has.
fn name(code: Code) -> Option<&'static CStr> {
    let at = NAMES.binary_search_by_key(&code, |&(number, _)| number).ok()?;
    Some(NAMES[at].1)
}

/// Every `cudaError_t`, in order.
const NAMES: &[(Code, &CStr)] = &[
    (0, c"cudaSuccess"),
    (1, c"cudaErrorInvalidValue"),
    (2, c"cudaErrorMemoryAllocation"),
    (3, c"cudaErrorInitializationError"),
    (4, c"cudaErrorCudartUnloading"),
    (5, c"cudaErrorProfilerDisabled"),
    (6, c"cudaErrorProfilerNotInitialized"),
    (7, c"cudaErrorProfilerAlreadyStarted"),
    (8, c"cudaErrorProfilerAlreadyStopped"),
    (9, c"cudaErrorInvalidConfiguration"),
    (10, c"cudaErrorVersionTranslation"),
    (12, c"cudaErrorInvalidPitchValue"),
    (13, c"cudaErrorInvalidSymbol"),
    (16, c"cudaErrorInvalidHostPointer"),
    (17, c"cudaErrorInvalidDevicePointer"),
    (18, c"cudaErrorInvalidTexture"),
    (19, c"cudaErrorInvalidTextureBinding"),
    (20, c"cudaErrorInvalidChannelDescriptor"),
    (21, c"cudaErrorInvalidMemcpyDirection"),
    (22, c"cudaErrorAddressOfConstant"),
    (23, c"cudaErrorTextureFetchFailed"),
    (24, c"cudaErrorTextureNotBound"),
    (25, c"cudaErrorSynchronizationError"),
    (26, c"cudaErrorInvalidFilterSetting"),
    (27, c"cudaErrorInvalidNormSetting"),
    (28, c"cudaErrorMixedDeviceExecution"),
    (31, c"cudaErrorNotYetImplemented"),
    (32, c"cudaErrorMemoryValueTooLarge"),
    (34, c"cudaErrorStubLibrary"),
    (35, c"cudaErrorInsufficientDriver"),
    (36, c"cudaErrorCallRequiresNewerDriver"),
    (37, c"cudaErrorInvalidSurface"),
    (43, c"cudaErrorDuplicateVariableName"),
    (44, c"cudaErrorDuplicateTextureName"),
    (45, c"cudaErrorDuplicateSurfaceName"),
    (46, c"cudaErrorDevicesUnavailable"),
    (49, c"cudaErrorIncompatibleDriverContext"),
    (52, c"cudaErrorMissingConfiguration"),
    (53, c"cudaErrorPriorLaunchFailure"),
    (65, c"cudaErrorLaunchMaxDepthExceeded"),
    (66, c"cudaErrorLaunchFileScopedTex"),
    (67, c"cudaErrorLaunchFileScopedSurf"),
    (68, c"cudaErrorSyncDepthExceeded"),
    (69, c"cudaErrorLaunchPendingCountExceeded"),
    (98, c"cudaErrorInvalidDeviceFunction"),
    (100, c"cudaErrorNoDevice"),
    (101, c"cudaErrorInvalidDevice"),
    (102, c"cudaErrorDeviceNotLicensed"),
    (103, c"cudaErrorSoftwareValidityNotEstablished"),
    (127, c"cudaErrorStartupFailure"),
    (200, c"cudaErrorInvalidKernelImage"),
    (201, c"cudaErrorDeviceUninitialized"),
    (205, c"cudaErrorMapBufferObjectFailed"),
    (206, c"cudaErrorUnmapBufferObjectFailed"),
    (207, c"cudaErrorArrayIsMapped"),
    (208, c"cudaErrorAlreadyMapped"),
    (209, c"cudaErrorNoKernelImageForDevice"),
    (210, c"cudaErrorAlreadyAcquired"),
    (211, c"cudaErrorNotMapped"),
    (212, c"cudaErrorNotMappedAsArray"),
    (213, c"cudaErrorNotMappedAsPointer"),
    (214, c"cudaErrorECCUncorrectable"),
    (215, c"cudaErrorUnsupportedLimit"),
    (216, c"cudaErrorDeviceAlreadyInUse"),
    (217, c"cudaErrorPeerAccessUnsupported"),
    (218, c"cudaErrorInvalidPtx"),
    (219, c"cudaErrorInvalidGraphicsContext"),
    (220, c"cudaErrorNvlinkUncorrectable"),
    (221, c"cudaErrorJitCompilerNotFound"),
    (222, c"cudaErrorUnsupportedPtxVersion"),
    (223, c"cudaErrorJitCompilationDisabled"),
    (224, c"cudaErrorUnsupportedExecAffinity"),
    (225, c"cudaErrorUnsupportedDevSideSync"),
    (226, c"cudaErrorContained"),
    (227, c"cudaErrorInsufficientLoaderVersion"),
    (300, c"cudaErrorInvalidSource"),
    (301, c"cudaErrorFileNotFound"),
    (302, c"cudaErrorSharedObjectSymbolNotFound"),
    (303, c"cudaErrorSharedObjectInitFailed"),
    (304, c"cudaErrorOperatingSystem"),
    (400, c"cudaErrorInvalidResourceHandle"),
    (401, c"cudaErrorIllegalState"),
    (402, c"cudaErrorLossyQuery"),
    (500, c"cudaErrorSymbolNotFound"),
    (600, c"cudaErrorNotReady"),
    (700, c"cudaErrorIllegalAddress"),
    (701, c"cudaErrorLaunchOutOfResources"),
    (702, c"cudaErrorLaunchTimeout"),
    (703, c"cudaErrorLaunchIncompatibleTexturing"),
    (704, c"cudaErrorPeerAccessAlreadyEnabled"),
    (705, c"cudaErrorPeerAccessNotEnabled"),
    (708, c"cudaErrorSetOnActiveProcess"),
    (709, c"cudaErrorContextIsDestroyed"),
    (710, c"cudaErrorAssert"),
    (711, c"cudaErrorTooManyPeers"),
    (712, c"cudaErrorHostMemoryAlreadyRegistered"),
    (713, c"cudaErrorHostMemoryNotRegistered"),
    (714, c"cudaErrorHardwareStackError"),
    (715, c"cudaErrorIllegalInstruction"),
    (716, c"cudaErrorMisalignedAddress"),
    (717, c"cudaErrorInvalidAddressSpace"),
    (718, c"cudaErrorInvalidPc"),
    (719, c"cudaErrorLaunchFailure"),
    (720, c"cudaErrorCooperativeLaunchTooLarge"),
    (721, c"cudaErrorTensorMemoryLeak"),
    (800, c"cudaErrorNotPermitted"),
    (801, c"cudaErrorNotSupported"),
    (802, c"cudaErrorSystemNotReady"),
    (803, c"cudaErrorSystemDriverMismatch"),
    (804, c"cudaErrorCompatNotSupportedOnDevice"),
    (805, c"cudaErrorMpsConnectionFailed"),
    (806, c"cudaErrorMpsRpcFailure"),
    (807, c"cudaErrorMpsServerNotReady"),
    (808, c"cudaErrorMpsMaxClientsReached"),
    (809, c"cudaErrorMpsMaxConnectionsReached"),
    (810, c"cudaErrorMpsClientTerminated"),
    (811, c"cudaErrorCdpNotSupported"),
    (812, c"cudaErrorCdpVersionMismatch"),
    (900, c"cudaErrorStreamCaptureUnsupported"),
    (901, c"cudaErrorStreamCaptureInvalidated"),
    (902, c"cudaErrorStreamCaptureMerge"),
    (903, c"cudaErrorStreamCaptureUnmatched"),
    (904, c"cudaErrorStreamCaptureUnjoined"),
    (905, c"cudaErrorStreamCaptureIsolation"),
    (906, c"cudaErrorStreamCaptureImplicit"),
    (907, c"cudaErrorCapturedEvent"),
    (908, c"cudaErrorStreamCaptureWrongThread"),
    (909, c"cudaErrorTimeout"),
    (910, c"cudaErrorGraphExecUpdateFailure"),
    (911, c"cudaErrorExternalDevice"),
    (912, c"cudaErrorInvalidClusterSize"),
    (913, c"cudaErrorFunctionNotLoaded"),
    (914, c"cudaErrorInvalidResourceType"),
    (915, c"cudaErrorInvalidResourceConfiguration"),
    (917, c"cudaErrorStreamDetached"),
    (918, c"cudaErrorGraphRecaptureFailure"),
    (919, c"cudaErrorFabricNotReady"),
    (999, c"cudaErrorUnknown"),
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_in_order_and_found() {
        assert!(NAMES.windows(2).all(|pair| pair[0].0 < pair[1].0));
        assert_eq!(name(0), Some(c"cudaSuccess"));
        assert_eq!(name(999), Some(c"cudaErrorUnknown"));
        assert_eq!(name(202), None);
    }

    #[test]
    fn a_status_that_only_the_driver_has_is_unknown() {
        assert_eq!(check(0), Ok(()));
        assert_eq!(check(2), Err(2));
        // CUDA_ERROR_CONTEXT_ALREADY_CURRENT
        assert_eq!(check(202), Err(UNKNOWN));
    }

    #[test]
    fn the_last_error_is_cleared_by_reading_and_not_ready_is_none() {
        assert_eq!(report(Err(INVALID_VALUE)), INVALID_VALUE);
        assert_eq!(report(Err(NOT_READY)), NOT_READY);
        assert_eq!(report(Ok(())), SUCCESS);
        assert_eq!(peek_at_last_error(), INVALID_VALUE);
        assert_eq!(get_last_error(), INVALID_VALUE);
        assert_eq!(get_last_error(), SUCCESS);
    }
}
