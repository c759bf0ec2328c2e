//! Children of this command: processes of their own for what cannot be learnt, or is too dangerous to try, in this one.

use std::str::FromStr;
use std::time::Duration;

use serde::{Deserialize, Serialize};

mod attempt;
mod bounded_child;
mod cuda;
mod holder;
mod level_zero;
mod reacher;
mod siblings;

pub(crate) use attempt::{Unanswered, attempt};
pub(crate) use cuda::{Cuda, Device as CudaDevice, cuda};
pub(crate) use level_zero::{LevelZero, level_zero};
pub(crate) use siblings::{Reached, Refusal, try_siblings};

/// How long children may take before they are killed.
const TIME: Duration = Duration::from_secs(2);

/// The part that a child plays; travels as JSON in its arguments.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Role {
    /// Makes the attempt of this key.
    Attempt(String),
    /// Asks the CUDA driver for its devices.
    Cuda,
    /// Asks the Level Zero drivers for their devices.
    LevelZero,
    /// Holds a secret until its standard input closes.
    Hold,
    /// Tries one way to get at what the holder holds.
    Reach(siblings::Way, siblings::Target),
}

impl Role {
    /// Plays the part; what it learns goes to standard output as one line of JSON.
    ///
    /// # Errors
    /// Something that the part cannot be played without failed.
    pub(crate) fn play(&self) -> std::io::Result<()> {
        // Even if the parent is killed in between.
        crate::sys::live_no_longer_than(u32::try_from(TIME.as_secs()).unwrap_or(2));
        match self {
            Role::Attempt(key) => attempt::make(key),
            Role::Cuda => cuda::ask(),
            Role::LevelZero => level_zero::ask(),
            Role::Hold => holder::hold(TIME),
            Role::Reach(way, target) => reacher::reach(*way, target, TIME),
        }
    }
}

impl FromStr for Role {
    type Err = String;

    fn from_str(text: &str) -> Result<Role, String> {
        serde_json::from_str(text).map_err(|error| error.to_string())
    }
}

/// Prints one line of JSON.
fn say(value: &impl Serialize) -> std::io::Result<()> {
    let mut line = serde_json::to_string(value)?;
    line.push('\n');
    crate::output::print(&line)
}
