//! [`Own`]: what a provider of a device has beside those of the host.

use core::any::Any;
use core::ffi::c_void;

use crate::boundary::Outcome;
use crate::ctl::{Asked, no_such_path};

/// What C is told of a property of memory.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Told {
    /// An `int`.
    Int(i32),
    /// A handle of the driver's.
    Handle(*mut c_void),
}

impl Told {
    /// Bytes of it.
    pub(crate) const fn size(self) -> usize {
        match self {
            Self::Int(_) => size_of::<i32>(),
            Self::Handle(_) => size_of::<*mut c_void>(),
        }
    }
}

/// What one kind of provider has beside the rest.
pub(crate) trait Own: Any + Send + Sync {
    /// A property of all of its memory, by its number in `umf_memory_property_id_t`.
    fn property(&self, property: i32) -> Option<Told>;

    /// A cache line of the device, in bytes.
    fn cache_line(&self) -> usize;

    /// What the control tree has below the provider for this kind alone.
    ///
    /// # Errors
    /// The path is none of its own.
    fn answer(&self, _asked: &Asked<'_>) -> Outcome<()> {
        Err(no_such_path())
    }
}
