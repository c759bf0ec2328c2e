//! Lists the Level Zero drivers and devices of this machine, for `umf info`.

use std::path::Path;

use level_zero_sys::{LOADER, ze_api_version_t, ze_device_handle_t};
use umf_core::Result;

use crate::context::{drivers, open};
use crate::failure::driver_error;
use crate::native;

/// A driver and its devices.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct DriverInfo {
    /// The version of the specification that it implements; `None` if the driver does not report
    /// it.
    pub version: Option<(u32, u32)>,
    /// Its root devices.
    pub devices: Vec<DeviceInfo>,
}

/// A root device.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct DeviceInfo {
    /// The driver's name for it.
    pub name: String,
    /// Size of all of its memories, in bytes.
    pub memory: u64,
    /// Number of sub-devices.
    pub sub_devices: usize,
}

/// Initializes the drivers that the system's loader finds, and returns them in the loader's order.
///
/// # Errors
/// [`umf_core::Error::NotSupported`] if there is no loader or no driver;
/// [`umf_core::Error::Driver`].
pub fn survey() -> Result<Vec<DriverInfo>> {
    let api = open(Path::new(LOADER))?;
    let version = |version: ze_api_version_t| (version.0 >> 16, version.0 & 0xffff);
    let device = |device: &ze_device_handle_t| {
        let properties = native::properties(&api, *device).map_err(driver_error)?;
        let memories = native::memories(&api, *device).unwrap_or_default();
        Ok(DeviceInfo {
            name: native::text(&properties.name),
            memory: memories.iter().map(|memory| memory.totalSize).sum(),
            sub_devices: native::sub_devices(&api, *device).unwrap_or_default().len(),
        })
    };
    drivers(&api)?
        .into_iter()
        .map(|driver| {
            let devices = native::devices(&api, driver).map_err(driver_error)?;
            Ok(DriverInfo {
                version: native::version(&api, driver).ok().map(version),
                devices: devices.iter().map(device).collect::<Result<_>>()?,
            })
        })
        .collect()
}
