//! What Level Zero drivers say of their devices. Asked in a child: a driver starts threads, and some crash.

use std::time::Instant;

use serde::{Deserialize, Serialize};
use umf::level_zero::survey;

use super::bounded_child::BoundedChild;
use super::{Role, TIME};

/// What the child found.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) enum LevelZero {
    Drivers(Vec<Driver>),
    /// There is none, and why, in words that say what to do.
    None(String),
}

/// A driver.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Driver {
    /// The version of the specification that it implements.
    pub(crate) version: Option<String>,
    pub(crate) devices: Vec<Device>,
}

/// A device.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Device {
    pub(crate) name: String,
    /// In bytes.
    pub(crate) memory: u64,
    /// Parts of it that are devices by themselves.
    pub(crate) parts: usize,
}

/// Has a child ask all drivers.
///
/// # Errors
/// Why it told nothing, in a few words.
pub(crate) fn level_zero() -> Result<LevelZero, String> {
    let mut child = BoundedChild::start(&Role::LevelZero, Instant::now() + TIME)?;
    Ok(child.answer()?)
}

/// In the child: asks all drivers.
pub(super) fn ask() -> std::io::Result<()> {
    let found = match survey::survey() {
        Ok(drivers) => LevelZero::Drivers(drivers.into_iter().map(driver).collect()),
        Err(error) => LevelZero::None(error.to_string()),
    };
    super::say(&found)
}

fn driver(found: survey::Driver) -> Driver {
    let device =
        |device: survey::Device| Device { name: device.name, memory: device.memory, parts: device.parts };
    Driver {
        version: found.version.map(|(major, minor)| format!("{major}.{minor}")),
        devices: found.devices.into_iter().map(device).collect(),
    }
}
