//! [`InstrumentedProvider`]: a provider of this library that counts bytes, sets protections and records errors.

use core::sync::atomic::{AtomicPtr, Ordering};
use std::collections::BTreeMap;
use std::sync::Arc;

use umf_core::statistics::Gauge;
use umf_core::{
    Error, Export, Import, Layout, MemoryKind, NativeExport, Properties, Provider, ProviderKind, Purge,
    Region, Result, Visibility,
};
use umf_sync::Lock;

use super::Provider as ProviderHandle;
use crate::boundary::{Failure, OUT_OF_HOST_MEMORY, Outcome, SUCCESS};
use crate::last_error::{FailedOperation, NativeKind, observe, set_failed_provider};

/// Access rights of memory: bits of `umf_mem_protection_flag_t`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Protection(u32);

impl Protection {
    const NONE: u32 = 1;
    const READ: u32 = 2;
    const WRITE: u32 = 4;
    const EXECUTE: u32 = 8;
    /// Read and write.
    pub(crate) const DEFAULT: Self = Self(Self::READ | Self::WRITE);

    /// Validates the bits that C passed.
    pub(crate) fn new(bits: u32) -> Outcome<Self> {
        Self::check_bits(bits)?;
        if bits & Self::NONE != 0 && bits != Self::NONE {
            return Err(Failure::argument("UMF_PROTECTION_NONE goes with no other"));
        }
        Ok(Self(bits))
    }

    /// Refuses bits that the header does not define, and no bits.
    pub(crate) fn check_bits(bits: u32) -> Outcome<u32> {
        if bits == 0 || bits & !(Self::NONE | Self::READ | Self::WRITE | Self::EXECUTE) != 0 {
            return Err(Failure::argument(
                "a memory protection is none of UMF_PROTECTION_NONE, READ, WRITE, EXEC",
            ));
        }
        Ok(bits)
    }

    pub(crate) const fn bits(self) -> u32 {
        self.0
    }

    fn native(self) -> i32 {
        let flag = |set, flag| if self.0 & set != 0 { flag } else { libc::PROT_NONE };
        flag(Self::READ, libc::PROT_READ)
            | flag(Self::WRITE, libc::PROT_WRITE)
            | flag(Self::EXECUTE, libc::PROT_EXEC)
    }

    const fn is_readable_and_writable(self) -> bool {
        self.0 & Self::DEFAULT.0 == Self::DEFAULT.0
    }
}

/// Wrapper of a provider that counts bytes, sets the protection and records errors.
pub(crate) struct InstrumentedProvider {
    inner: Arc<dyn Provider>,
    flavour: NativeKind,
    protection: Protection,
    pub(super) gauge: Gauge,
    /// The handle of the provider, for the thread's last failed provider; null without one.
    handle: AtomicPtr<ProviderHandle>,
    /// Requested size of each live region that is larger, by the region's address.
    requested: Lock<BTreeMap<u64, usize>>,
}

impl InstrumentedProvider {
    pub(crate) fn new(inner: Arc<dyn Provider>, flavour: NativeKind, protection: Protection) -> Arc<Self> {
        Arc::new(Self {
            inner,
            flavour,
            protection,
            gauge: Gauge::new(),
            handle: AtomicPtr::default(),
            requested: Lock::new(BTreeMap::new()),
        })
    }

    /// Sets the handle of the provider. Null when the handle is destroyed.
    pub(super) fn set_handle(&self, handle: *const ProviderHandle) {
        self.handle.store(handle.cast_mut(), Ordering::Release);
    }

    /// Returns the size that was requested for a region, in bytes.
    pub(super) fn requested_size(&self, region: &Region) -> usize {
        self.requested.lock().get(&region.base().to_bits()).copied().unwrap_or(region.size())
    }

    pub(super) const fn flavour(&self) -> NativeKind {
        self.flavour
    }

    fn failed(&self, what: FailedOperation) -> impl Fn(&Error) + '_ {
        move |error| {
            let handle = self.handle.load(Ordering::Acquire);
            if !handle.is_null() {
                set_failed_provider(handle);
            }
            // A range of the program's that is used up is no native failure.
            let is_used_up = matches!(self.flavour, NativeKind::Fixed | NativeKind::DevDax)
                && matches!(error, Error::OutOfMemory { .. });
            if self.flavour.is_of_device() {
                self.flavour.record_driver_result(error).into_iter().for_each(observe);
            } else if is_used_up {
                observe(OUT_OF_HOST_MEMORY);
            } else if matches!(error, Error::OutOfMemory { .. } | Error::Native { .. }) {
                self.flavour.record_failure(what);
            }
        }
    }

    fn protect(&self, region: &Region) -> Result<()> {
        if self.protection == Protection::DEFAULT {
            return Ok(());
        }
        let Some(start) = region.base().as_ptr() else { return Ok(()) };
        // SAFETY: the region was allocated just now, and is not in use.
        if unsafe { libc::mprotect(start.cast(), region.size(), self.protection.native()) } == 0 {
            return Ok(());
        }
        Err(Error::native("mprotect", std::io::Error::last_os_error().raw_os_error().unwrap_or(0)))
    }
}

// SAFETY: regions are those of `inner`. Memory without read and write access is not reported as
// host-accessible.
unsafe impl Provider for InstrumentedProvider {
    fn kind(&self) -> ProviderKind {
        self.inner.kind()
    }

    fn name(&self) -> &str {
        self.inner.name()
    }

    fn memory_kind(&self) -> MemoryKind {
        if self.protection.is_readable_and_writable() { self.inner.memory_kind() } else { MemoryKind::Device }
    }

    fn visibility(&self) -> Visibility {
        self.inner.visibility()
    }

    fn page_size(&self) -> usize {
        self.inner.page_size()
    }

    fn recommended_page_size(&self, size: usize) -> usize {
        self.inner.recommended_page_size(size)
    }

    fn allocate(&self, layout: Layout) -> Result<Region> {
        let region = self.inner.allocate(layout).inspect_err(self.failed(FailedOperation::Allocation))?;
        if let Err(error) = self.protect(&region) {
            // SAFETY: allocated above, and not in use. The first error is reported.
            let _ = unsafe { self.inner.free(region) };
            self.flavour.record_failure(FailedOperation::Allocation);
            return Err(error);
        }
        observe(SUCCESS);
        self.gauge.add(region.size());
        if layout.size() != region.size() {
            self.requested.lock().insert(region.base().to_bits(), layout.size());
        }
        Ok(region)
    }

    unsafe fn free(&self, region: Region) -> Result<()> {
        // Before the region is freed: afterwards another thread may get the same address.
        let requested = self.requested.lock().remove(&region.base().to_bits());
        // SAFETY: the caller keeps the contract of `free`.
        unsafe { self.inner.free(region) }.inspect_err(self.failed(FailedOperation::Free)).inspect_err(
            |_| {
                requested.map(|size| self.requested.lock().insert(region.base().to_bits(), size));
            },
        )?;
        self.gauge.remove(region.size());
        Ok(())
    }

    fn zeroed(&self) -> bool {
        self.inner.zeroed()
    }

    fn export(&self) -> Option<&dyn Export> {
        let export = self.inner.export()?;
        Some(if self.flavour.is_of_device() { self } else { export })
    }

    fn import(&self) -> Option<&dyn Import> {
        self.inner.import()
    }

    fn purge(&self) -> Option<&dyn Purge> {
        self.inner.purge().map(|_| self as &dyn Purge)
    }

    fn properties(&self) -> Option<&dyn Properties> {
        self.inner.properties()
    }
}

/// Device exports: records the driver's result.
impl Export for InstrumentedProvider {
    fn export(&self, region: &Region) -> Result<NativeExport> {
        let export = self.inner.export().ok_or(UNEXPORTED)?;
        export.export(region).inspect_err(|error| {
            self.flavour.record_driver_result(error);
        })
    }

    fn unexport(&self, region: &Region, given: NativeExport) -> Result<()> {
        self.inner.export().ok_or(UNEXPORTED)?.unexport(region, given)
    }

    fn uses_fd_per_export(&self) -> bool {
        self.inner.export().is_some_and(Export::uses_fd_per_export)
    }

    fn fd_opens_through_procfs(&self) -> bool {
        self.inner.export().is_none_or(Export::fd_opens_through_procfs)
    }
}

const UNEXPORTED: Error = Error::NotSupported { what: "IPC handles", owner: "this provider", native: 0 };

impl Purge for InstrumentedProvider {
    unsafe fn purge_lazy(&self, base: umf_core::Address, size: usize) -> Result<()> {
        let purge = self.inner.purge().ok_or(UNPURGED)?;
        // SAFETY: the caller keeps the contract of `purge_lazy`.
        unsafe { purge.purge_lazy(base, size) }.inspect_err(self.failed(FailedOperation::PurgeLazy))
    }

    unsafe fn purge_forced(&self, base: umf_core::Address, size: usize) -> Result<()> {
        let purge = self.inner.purge().ok_or(UNPURGED)?;
        // SAFETY: the caller keeps the contract of `purge_forced`.
        unsafe { purge.purge_forced(base, size) }.inspect_err(self.failed(FailedOperation::PurgeForce))
    }
}

const UNPURGED: Error = Error::NotSupported { what: "purging", owner: "this provider", native: 0 };
