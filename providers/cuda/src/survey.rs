//! What this machine has of CUDA, and what is in the way.

use std::path::Path;

use umf_core::Result;

use crate::driver::{DeviceInfo, Driver};

/// What there is.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct CudaFinding {
    /// The version of the interface: 12040 is 12.4.
    pub version: i32,
    /// The devices that the process sees.
    pub devices: Vec<DeviceInfo>,
}

/// Opens and starts the driver (`libcuda.so.1`, or the library at `path`), and looks at each device. No context is made.
///
/// # Errors
/// As [`Driver::open`]; where the library cannot be opened, [`Driver::lacks`] has the linker's words.
pub fn look(path: Option<&Path>) -> Result<CudaFinding> {
    let driver = Driver::open(path)?;
    let devices = (0..driver.devices()?).map(|ordinal| driver.device(ordinal)).collect::<Result<_>>()?;
    Ok(CudaFinding { version: driver.version()?, devices })
}
