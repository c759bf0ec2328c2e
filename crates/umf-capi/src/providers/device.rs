//! Shared code of device providers: `umf/memory_provider_gpu.h`, libraries of drivers, and
//! importers that record the driver's result.

use std::ffi::OsStr;
use std::sync::Arc;

use libloading::os::unix::{Library, RTLD_LOCAL, RTLD_NOW};
use umf_core::{Import, ImportRequest, Imported, ProviderKind, Transfer};

use crate::boundary::{Failure, Outcome};
use crate::last_error::NativeKind;

/// Returns whether the program has loaded this library. Never loads one: a program with a context
/// has loaded the driver.
pub(super) fn is_loaded(library: impl AsRef<OsStr>) -> bool {
    // SAFETY: `RTLD_NOLOAD` runs no initialiser.
    unsafe { Library::open(Some(library.as_ref()), RTLD_NOW | RTLD_LOCAL | libc::RTLD_NOLOAD) }.is_ok()
}

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
    /// Validates the type that C set.
    pub(super) fn new(number: u32) -> Outcome<Self> {
        match number {
            1 => Ok(Self::Host),
            2 => Ok(Self::Device),
            3 => Ok(Self::Shared),
            _ => Err(Failure::argument("a provider of a device needs a memory type: host, device or shared")),
        }
    }
}

/// Refuses a number that is no memory type.
pub(super) fn checked(number: u32) -> Outcome<u32> {
    if number == UNKNOWN {
        return Ok(number);
    }
    match MemoryType::new(number) {
        Ok(known) => Ok(known as u32),
        Err(_) => Err(Failure::argument("a memory type is none of umf_usm_memory_type_t")),
    }
}

/// The importer of a provider: opens memory of other processes in the program's context.
pub(super) struct DriverImport<P> {
    pub(super) flavour: NativeKind,
    pub(super) provider: Arc<P>,
    pub(super) importer: fn(&P) -> &dyn Import,
}

impl<P> DriverImport<P> {
    fn importer(&self) -> &dyn Import {
        (self.importer)(&self.provider)
    }
}

// SAFETY: forwards to the provider's importer.
unsafe impl<P: Send + Sync> Import for DriverImport<P> {
    fn kind(&self) -> ProviderKind {
        self.importer().kind()
    }

    fn import(&self, request: ImportRequest) -> umf_core::Result<Imported> {
        self.importer().import(request).inspect_err(|error| {
            self.flavour.record_driver_result(error);
        })
    }

    fn transfer(&self) -> Option<&dyn Transfer> {
        self.importer().transfer()
    }

    unsafe fn release(&self, imported: Imported) -> umf_core::Result<()> {
        // SAFETY: the caller keeps the contract of `release`.
        unsafe { self.importer().release(imported) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_libraries_that_are_loaded_are_found() {
        assert!(is_loaded("libc.so.6"));
        assert!(!is_loaded("libumf-no-such-library.so.1"));
    }
}
