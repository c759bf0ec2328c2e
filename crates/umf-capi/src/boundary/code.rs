//! `umf_result_t`.

/// A result code.
pub(crate) type Code = i32;

pub(crate) const SUCCESS: Code = 0;
pub(crate) const OUT_OF_HOST_MEMORY: Code = 1;
pub(crate) const PROVIDER_SPECIFIC: Code = 2;
pub(crate) const INVALID_ARGUMENT: Code = 3;
pub(crate) const INVALID_ALIGNMENT: Code = 4;
pub(crate) const NOT_SUPPORTED: Code = 5;
pub(crate) const DEPENDENCY_UNAVAILABLE: Code = 7;
pub(crate) const OUT_OF_RESOURCES: Code = 8;
pub(crate) const INVALID_CTL_PATH: Code = 9;
pub(crate) const UNKNOWN: Code = 0x7fff_fffe;
