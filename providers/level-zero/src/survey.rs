//! What this machine has: loader, drivers, devices.

use std::path::Path;

use level_zero_sys::{LOADER, ze_api_version_t, ze_device_handle_t};
use umf_core::Result;

use crate::context::{drivers, open};
use crate::failure::error;
use crate::native;

/// A driver.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Driver {
    /// The version of the specification that it implements; `None` if it does not tell.
    pub version: Option<(u32, u32)>,
    /// Its devices.
    pub devices: Vec<Device>,
}

/// A device.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Device {
    /// What its driver calls it.
    pub name: String,
    /// Bytes of all of its memories.
    pub memory: u64,
    /// How many parts it has.
    pub parts: usize,
}

/// The drivers that the system's loader finds, in its order. Starts them.
///
/// # Errors
/// [`umf_core::Error::NotSupported`] if there is no loader or no driver; [`umf_core::Error::Driver`].
pub fn survey() -> Result<Vec<Driver>> {
    let api = open(Path::new(LOADER))?;
    let version = |version: ze_api_version_t| (version.0 >> 16, version.0 & 0xffff);
    let device = |device: &ze_device_handle_t| {
        let told = native::device::properties(&api, *device).map_err(error)?;
        let memories = native::device::memories(&api, *device).unwrap_or_default();
        Ok(Device {
            name: native::device::text(&told.name),
            memory: memories.iter().map(|memory| memory.totalSize).sum(),
            parts: native::device::parts(&api, *device).unwrap_or_default().len(),
        })
    };
    drivers(&api)?
        .into_iter()
        .map(|driver| {
            let devices = native::device::devices(&api, driver).map_err(error)?;
            Ok(Driver {
                version: native::device::version(&api, driver).ok().map(version),
                devices: devices.iter().map(device).collect::<Result<_>>()?,
            })
        })
        .collect()
}
