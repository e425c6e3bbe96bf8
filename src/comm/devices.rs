//! The devices of `ncclCommInitAll`.

use crate::device;
use crate::error::Error;
use crate::params;

/// The devices 0 to `count` - 1, which stand for no list in `ncclCommInitAll`.
///
/// # Errors
/// [`Error::InvalidArgument`] for more devices than there are.
pub fn first_devices(count: i32) -> Result<Vec<i32>, Error> {
    let there = device::device_count()?;
    match (0..=there).contains(&count) {
        true => Ok((0..count).collect()),
        false => Err(Error::InvalidArgument(format!("Invalid device count requested : {count} (totalnDev={there})"))),
    }
}

/// Checks the devices of `ncclCommInitAll`.
///
/// # Errors
/// [`Error::InvalidArgument`] for an ordinal that does not exist or an empty list,
/// [`Error::InvalidUsage`] for one that is named twice.
pub fn check_device_list(devices: &[i32]) -> Result<(), Error> {
    let count = device::device_count()?;
    if devices.is_empty() {
        return Err(Error::InvalidArgument("Invalid device count requested : 0".to_string()));
    }
    let twice_allowed = params::snapshot().flag(params::MULTI_RANK_GPU_ENABLE);
    for (place, device) in devices.iter().enumerate() {
        if !(0..count).contains(device) {
            return Err(Error::InvalidArgument(format!("Invalid device {device} (totalnDev={count})")));
        }
        if !twice_allowed && devices[..place].contains(device) {
            return Err(Error::InvalidUsage(format!(
                "ncclCommInitAll: device {device} is named twice; set NCCL_MULTI_RANK_GPU_ENABLE=1 to allow it"
            )));
        }
    }
    Ok(())
}
