//! `umf/memory_provider_gpu.h`: whose memory it is.

use crate::boundary::{Failure, Outcome};

/// A `umf_usm_memory_type_t`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum MemoryType {
    Host = 1,
    Device = 2,
    Shared = 3,
}

/// `UMF_MEMORY_TYPE_UNKNOWN`.
pub(super) const UNKNOWN: u32 = 0;

impl MemoryType {
    /// The type that C set.
    pub(super) fn new(number: u32) -> Outcome<Self> {
        match number {
            1 => Ok(Self::Host),
            2 => Ok(Self::Device),
            3 => Ok(Self::Shared),
            _ => Err(Failure::argument("a provider of a device needs a memory type: host, device or shared")),
        }
    }
}

/// Refuses what is no memory type at all.
pub(super) fn checked(number: u32) -> Outcome<u32> {
    if number == UNKNOWN {
        return Ok(number);
    }
    match MemoryType::new(number) {
        Ok(known) => Ok(known as u32),
        Err(_) => Err(Failure::argument("a memory type is none of umf_usm_memory_type_t")),
    }
}
