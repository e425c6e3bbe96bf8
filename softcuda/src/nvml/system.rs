//! The library itself, and the driver.

use super::error::NOT_SUPPORTED;
use super::{Return, STATE, boundary, count, init, put, put_text, release};
use crate::abi::{DRIVER_VERSION, Out};
use std::ffi::{c_char, c_int, c_uint};

/// The branch of NVIDIA's drivers that speaks this version of CUDA.
const DRIVER: &str = "580.0.0";
const LIBRARY: &str = "13.580.0";
/// `NVML_INIT_FLAG_NO_GPUS`, `_NO_ATTACH`, `_FORCE_INIT`
const INIT_FLAGS: c_uint = 7;

#[unsafe(export_name = "softnvml_nvmlInit")]
extern "C" fn nvmlInit() -> Return {
    boundary(|| {
        init();
        Ok(())
    })
}

#[unsafe(export_name = "softnvml_nvmlInit_v2")]
extern "C" fn nvmlInit_v2() -> Return {
    boundary(|| {
        init();
        Ok(())
    })
}

#[unsafe(export_name = "softnvml_nvmlInitWithFlags")]
extern "C" fn nvmlInitWithFlags(flags: c_uint) -> Return {
    boundary(|| {
        if flags & !INIT_FLAGS != 0 {
            return Err(NOT_SUPPORTED);
        }
        init();
        Ok(())
    })
}

#[unsafe(export_name = "softnvml_nvmlShutdown")]
extern "C" fn nvmlShutdown() -> Return {
    boundary(|| release(&mut STATE.lock()))
}

#[unsafe(export_name = "softnvml_nvmlSystemGetDriverVersion")]
extern "C" fn nvmlSystemGetDriverVersion(version: Out<c_char>, length: c_uint) -> Return {
    boundary(|| {
        count()?;
        put_text(version, length, DRIVER)
    })
}

#[unsafe(export_name = "softnvml_nvmlSystemGetNVMLVersion")]
extern "C" fn nvmlSystemGetNVMLVersion(version: Out<c_char>, length: c_uint) -> Return {
    boundary(|| {
        count()?;
        put_text(version, length, LIBRARY)
    })
}

#[unsafe(export_name = "softnvml_nvmlSystemGetCudaDriverVersion")]
extern "C" fn nvmlSystemGetCudaDriverVersion(version: Out<c_int>) -> Return {
    boundary(|| put(version, DRIVER_VERSION))
}

#[unsafe(export_name = "softnvml_nvmlSystemGetCudaDriverVersion_v2")]
extern "C" fn nvmlSystemGetCudaDriverVersion_v2(version: Out<c_int>) -> Return {
    boundary(|| put(version, DRIVER_VERSION))
}
