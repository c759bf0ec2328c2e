//! What the CUDA driver says of its devices. Asked in a child: it starts threads, and may hang where a device is broken.

use std::time::Instant;

use serde::{Deserialize, Serialize};
use umf::cuda::{DeviceInfo, Driver, survey};

use super::bounded_child::BoundedChild;
use super::{Role, TIME};

/// What the child found.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) enum Cuda {
    Found {
        /// The version of the interface.
        version: String,
        devices: Vec<Device>,
    },
    /// The library cannot be opened, in the linker's words.
    NoLibrary(String),
    /// It does not start, and why, in words that say what to do.
    None(String),
}

/// A device.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Device {
    pub(crate) name: String,
    /// In bytes.
    pub(crate) memory: u64,
    /// What it has of what umf uses: `virtual`, `fds`, `fabric`, `dma-buf`, `managed`.
    pub(crate) has: Vec<String>,
}

/// Has a child ask the driver.
///
/// # Errors
/// Why it told nothing, in a few words.
pub(crate) fn cuda() -> Result<Cuda, String> {
    let mut child = BoundedChild::start(&Role::Cuda, Instant::now() + TIME)?;
    Ok(child.answer()?)
}

/// In the child: asks the driver.
pub(super) fn ask() -> std::io::Result<()> {
    let found = match (Driver::lacks(None), survey::look(None)) {
        (Some(why), _) => Cuda::NoLibrary(why),
        (None, Err(error)) => Cuda::None(error.to_string()),
        (None, Ok(found)) => Cuda::Found {
            version: format!("{}.{}", found.version / 1000, found.version % 1000 / 10),
            devices: found.devices.into_iter().map(device).collect(),
        },
    };
    super::say(&found)
}

fn device(found: DeviceInfo) -> Device {
    let has = [
        ("virtual", found.has_virtual),
        ("fds", found.has_fds),
        ("fabric", found.has_fabric),
        ("dma-buf", found.has_dma_buf),
        ("managed", found.has_managed),
    ];
    let has = has.into_iter().filter(|(_, has)| *has).map(|(what, _)| what.to_owned()).collect();
    Device { name: found.name, memory: found.memory, has }
}
