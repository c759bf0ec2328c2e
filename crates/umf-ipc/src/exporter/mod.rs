//! [`Exporter`]: exports blocks and regions, and retires the exports before the memory is freed.
//! This file has the public types, `state` the exporter's state in one process, `region_export` the
//! exports of one region.

mod region_export;
mod state;

pub(crate) use region_export::NativeGuard;

use core::fmt;
use core::num::NonZeroU16;
use core::ops::Deref;
use core::ptr::NonNull;
use core::str::FromStr;
use core::sync::atomic::{AtomicPtr, Ordering};
use std::path::PathBuf;
use std::sync::Arc;

use umf_core::Freed;
use umf_core::{Address, Provider, Region};
use umf_os::socket::Allow;
use umf_runtime::observer::{self, ExportObserver, Leases, ObserverGuard};
use umf_sync::Lock;

use crate::Result;
use crate::cache::{CacheStatistics, LimitPolicy, Pin};
use crate::handle::Handle;
use crate::identity::Nonce;
use crate::transfer::Exchange;
use state::ExporterState;

/// Makes memory visible to other processes, and keeps one native export per region in a bounded
/// cache.
///
/// A process normally has one. Each has a ledger of its own, which the first export creates. If the
/// exchange settings need a socket, the first export also starts its thread. All methods may be
/// called from several threads at once. Getting an export that the calling thread got before takes
/// no lock and makes no system call.
///
/// # How an export ends
/// - The block or its region is freed: the export is retired before the memory is freed. Every
///   later open fails as stale.
/// - It is idle (no [`Export`] of its region exists and none was kept) and the cache is over its
///   limit: the region's exports are retired, and their handles fail as stale.
/// - The exporter is dropped: all exports are retired.
/// - The process forks: the child has no exports, and creates a ledger of its own. Handles of the
///   parent still name the parent's memory.
#[derive(Debug)]
pub struct Exporter {
    inner: Arc<ExporterInner>,
    _observing: ObserverGuard,
}

/// Settings and per-process state of an exporter, and its observer of frees.
#[derive(Debug)]
pub(crate) struct ExporterInner {
    settings: ExporterSettings,
    /// Null until the first export of this process. A forked child replaces and leaks its parent's
    /// state, because it must not touch anything in it.
    state: AtomicPtr<ExporterState>,
    making: Lock<()>,
}

impl Exporter {
    /// Creates an exporter. The first export creates its ledger.
    ///
    /// # Errors
    /// [`crate::Error::Memory`] if there is no memory to register the observer of frees.
    pub fn new(settings: ExporterSettings) -> Result<Self> {
        let inner = Arc::new(ExporterInner {
            settings,
            state: AtomicPtr::new(core::ptr::null_mut()),
            making: Lock::new(()),
        });
        let observing = observer::register(Arc::clone(&inner) as _)?;
        Ok(Self { inner, _observing: observing })
    }

    /// Exports the block that contains `address`, or the region if it belongs to no pool, and keeps
    /// it in use until the guard is dropped. After that, handles stay valid as long as the export
    /// stays in the cache: see [`Exporter`].
    ///
    /// # Errors
    /// [`crate::Error::NotTracked`], [`crate::Error::NotExportable`],
    /// [`crate::Error::LimitReached`] over a hard limit, [`crate::Error::Memory`] if the address is
    /// not in a live block, [`crate::Error::System`].
    ///
    /// # Safety
    /// Any process that opens the handle, including this one, may write the block at any time.
    /// While the block is exported writable, this process must hold no Rust reference into it.
    /// (Blocks of the crate `umf` give out no such references, and export safely.)
    #[inline]
    pub unsafe fn get(&self, address: Address) -> Result<Export<'_>> {
        self.export(address, None)
    }

    /// As [`Exporter::get`], for a block of which `len` bytes were requested. Importers see that
    /// length ([`crate::Mapping::len`]), not the size that its pool rounded up to. The first export
    /// of a block sets the length.
    ///
    /// # Errors
    /// As [`Exporter::get`].
    ///
    /// # Safety
    /// As [`Exporter::get`].
    #[inline]
    pub unsafe fn get_with_len(&self, address: Address, len: usize) -> Result<Export<'_>> {
        self.export(address, Some(len))
    }

    /// As [`Exporter::get`], but keeps the export in use until the block is freed: its region is
    /// not evicted before.
    ///
    /// # Errors
    /// As [`Exporter::get`].
    ///
    /// # Safety
    /// As [`Exporter::get`].
    pub unsafe fn handle(&self, address: Address) -> Result<Handle> {
        self.export_kept(address, None)
    }

    /// Calls `copy` with the bytes of the handle of the block that begins at `address`, if this
    /// thread called [`Exporter::handle`] for it before and the block was not freed since. Returns
    /// `None` otherwise: then use [`Exporter::handle`].
    #[inline(always)]
    pub fn copy_kept<T>(
        &self,
        address: Address,
        copy: impl FnOnce(&[u8; crate::HANDLE_SIZE]) -> T,
    ) -> Option<T> {
        self.inner.current()?.kept_bytes(address).map(copy)
    }

    /// As [`Exporter::handle`], with the length of [`Exporter::get_with_len`].
    ///
    /// # Errors
    /// As [`Exporter::get`].
    ///
    /// # Safety
    /// As [`Exporter::get`].
    pub unsafe fn handle_with_len(&self, address: Address, len: usize) -> Result<Handle> {
        self.export_kept(address, Some(len))
    }

    /// As [`Exporter::get_with_len`], but returns a handle for a message: the memory is kept until
    /// `readers` openers have claimed it, even if the block is freed meanwhile. Each of them opens
    /// the handle as usual, and then has the lease of an opener. A plain handle of a freed block is
    /// stale.
    ///
    /// The memory is also released by [`Exporter::cancel`], and when this process ends. While none
    /// of its methods is called, the exporter does not notice that a handle was claimed: it does
    /// when the block is freed, in `umf_runtime::deferred::poll` and in [`Exporter::poll_tickets`].
    ///
    /// # Errors
    /// As [`Exporter::get`]; those of opening a lease table; [`crate::Error::LimitReached`] for
    /// more than 524,288 handles in transit; [`crate::Error::TransitFull`].
    ///
    /// # Safety
    /// As [`Exporter::get`]. The block is not freed during the call.
    pub unsafe fn send_handle(&self, address: Address, len: usize, readers: NonZeroU16) -> Result<Handle> {
        let export = self.export(address, Some(len))?;
        export.state.send(export.handle(), readers.get())
    }

    /// Cancels a handle of [`Exporter::send_handle`]: it becomes a plain handle. Returns `false` if
    /// all readers have claimed it, or if it is not of this exporter.
    pub fn cancel(&self, handle: &Handle) -> bool {
        let state = self.inner.current().filter(|state| state.nonce() == handle.nonce());
        state.is_some_and(|state| state.cancel(handle))
    }

    /// Returns whether readers have still to claim a handle of [`Exporter::send_handle`].
    #[must_use]
    pub fn is_in_transit(&self, handle: &Handle) -> bool {
        let state = self.inner.current().filter(|state| state.nonce() == handle.nonce());
        state.is_some_and(|state| state.is_in_transit(handle))
    }

    /// Releases the memory of handles that were claimed. Returns the number of handles of
    /// [`Exporter::send_handle`] that are in transit.
    pub fn poll_tickets(&self) -> usize {
        self.inner.current().map_or(0, ExporterState::poll_tickets)
    }

    /// Exports as a whole the innermost region of `provider` that holds `address`, until the region
    /// is freed. The blocks of a pool in the region, and regions of other providers that nest with
    /// it, do not matter.
    ///
    /// # Errors
    /// As [`Exporter::get`]; [`crate::Error::NotTracked`] if no live region of the provider holds
    /// the address.
    ///
    /// # Safety
    /// As [`Exporter::get`], for the whole region.
    pub unsafe fn region_handle(&self, address: Address, provider: &dyn Provider) -> Result<Handle> {
        self.inner.state(address)?.region_handle(address, provider)
    }

    #[inline]
    fn export(&self, address: Address, len: Option<usize>) -> Result<Export<'_>> {
        if let Some(state) = self.inner.current()
            && let Some((bytes, pin)) = state.find_memoized(address)
        {
            return Ok(Export::new(state, address, Handle::from_known(bytes), pin));
        }
        self.inner.state(address)?.export(address, len)
    }

    fn export_kept(&self, address: Address, len: Option<usize>) -> Result<Handle> {
        match self.inner.current().and_then(|state| state.kept_bytes(address)) {
            Some(bytes) => Ok(Handle::from_known(bytes)),
            None => Ok(self.export(address, len)?.keep()),
        }
    }

    /// Returns the settings in force.
    #[must_use]
    pub fn settings(&self) -> &ExporterSettings {
        &self.inner.settings
    }

    /// Returns the nonce in the handles of this exporter; `None` before the first export.
    #[must_use]
    pub fn nonce(&self) -> Option<Nonce> {
        self.inner.current().map(ExporterState::nonce)
    }

    /// Returns the counters of the cache of native exports.
    #[must_use]
    pub fn statistics(&self) -> CacheStatistics {
        self.inner.current().map_or_else(CacheStatistics::default, ExporterState::statistics)
    }

    /// Returns whether this process answers on a socket (the exchange modes `socket` and
    /// `directory`).
    #[must_use]
    pub fn is_served(&self) -> bool {
        self.inner.current().is_some_and(ExporterState::is_served)
    }

    /// Retires the exports of regions without an [`Export`] in use. Returns the number of these
    /// regions.
    pub fn evict_idle(&self) -> usize {
        self.inner.current().map_or(0, ExporterState::evict_idle)
    }
}

impl Drop for Exporter {
    fn drop(&mut self) {
        // Before the observer is unregistered, because other threads may free exported memory
        // meanwhile. No thread can export: that borrows `self`.
        if let Some(state) = self.inner.current() {
            state.close();
        }
    }
}

impl ExporterInner {
    /// Returns the state of this process, if it has one.
    #[inline]
    fn current(&self) -> Option<&ExporterState> {
        let state = NonNull::new(self.state.load(Ordering::Acquire))?;
        // SAFETY: a published state is freed only when `self` is dropped.
        let state = unsafe { state.as_ref() };
        state.is_of_this_process().then_some(state)
    }

    /// Returns the state of this process. Creates it at the first export, which is that of `first`.
    #[cold]
    fn state(&self, first: Address) -> Result<&ExporterState> {
        let _making = self.making.lock();
        if let Some(state) = self.current() {
            return Ok(state);
        }
        let procfs = umf_runtime::tracker::find(first)
            .and_then(|found| found.owner.guard())
            .and_then(|owner| owner.provider()?.export().map(umf_core::Export::fd_opens_through_procfs));
        let state = ExporterState::new(&self.settings, procfs.unwrap_or(true))?;
        // The old value is null, or the state of the parent process.
        self.state.store(Arc::into_raw(state).cast_mut(), Ordering::Release);
        self.current().ok_or(crate::Error::Memory(umf_core::Error::Frozen { what: "the exporter" }))
    }
}

impl ExportObserver for ExporterInner {
    fn before_free(&self, freed: Freed) -> Option<Arc<dyn Leases>> {
        let state = self.current()?;
        match freed {
            Freed::Block { address } => state.retire_block(address),
            Freed::Region(region) => state.retire_region(&region),
        }
    }
}

impl Drop for ExporterInner {
    fn drop(&mut self) {
        let state = *self.state.get_mut();
        if state.is_null() {
            return;
        }
        // SAFETY: the pointer came from Arc::into_raw, and this is its only conversion back.
        let state = unsafe { Arc::from_raw(state) };
        if !state.is_of_this_process() {
            // The parent's state: its ledger is not mapped in this process, and its thread does not
            // run here.
            core::mem::forget(state);
        }
    }
}

/// The range to export: a block or a whole region.
#[derive(Clone, Copy, Debug)]
struct ExportTarget {
    region: Region,
    start: Address,
    size: usize,
    /// The bytes that its owner requested: 1 to `size`.
    requested: usize,
    is_region: bool,
}

impl ExportTarget {
    /// Returns the target for a whole region.
    const fn whole(region: Region) -> Self {
        let size = region.size();
        Self { region, start: region.base(), size, requested: size, is_region: true }
    }
}

/// An export in use. Dropping it ends the use ("put" in other libraries). The handle may be copied
/// out and used after that.
pub struct Export<'e> {
    state: &'e ExporterState,
    /// Where the block begins.
    address: Address,
    handle: Handle,
    pin: Pin,
}

// SAFETY: its pin points to atomics that live as long as the state, and any thread may release it.
unsafe impl Send for Export<'_> {}
// SAFETY: shared references only read it, and the pin's atomics live as long as the state.
unsafe impl Sync for Export<'_> {}

impl<'e> Export<'e> {
    /// Creates the guard. Takes ownership of a pin on the handle's region.
    #[inline]
    const fn new(state: &'e ExporterState, address: Address, handle: Handle, pin: Pin) -> Self {
        Self { state, address, handle, pin }
    }

    /// Returns the handle.
    #[must_use]
    pub const fn handle(&self) -> &Handle {
        &self.handle
    }

    /// Keeps the export in use until its block is freed, and returns the handle.
    #[must_use]
    pub fn keep(self) -> Handle {
        let handle = self.handle;
        // If the block was freed meanwhile, dropping `self` ends the use.
        if self.state.keep(self.address, &handle) {
            core::mem::forget(self);
        }
        handle
    }
}

impl Deref for Export<'_> {
    type Target = Handle;

    fn deref(&self) -> &Handle {
        &self.handle
    }
}

impl Drop for Export<'_> {
    #[inline]
    fn drop(&mut self) {
        self.state.put(self.pin);
    }
}

impl fmt::Debug for Export<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Export").field(&self.handle).finish()
    }
}

/// The process that may attach to this one in spite of yama (`PR_SET_PTRACER`, `prctl(2)`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Ptracer {
    /// Do not call `prctl`.
    #[default]
    None,
    /// Any process of the same user.
    Any,
    /// The process with this id, and its descendants.
    Process(u32),
}

impl fmt::Display for Ptracer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::None => f.write_str("none"),
            Self::Any => f.write_str("any"),
            Self::Process(pid) => pid.fmt(f),
        }
    }
}

impl FromStr for Ptracer {
    type Err = ();

    fn from_str(text: &str) -> Result<Self, ()> {
        match text {
            "none" => Ok(Self::None),
            "any" => Ok(Self::Any),
            number => number
                .parse::<i32>()
                .ok()
                .filter(|pid| *pid > 0)
                .map(|pid| Self::Process(pid.unsigned_abs()))
                .ok_or(()),
        }
    }
}

umf_core::text_form!(Ptracer, "\"none\", \"any\" or a process id");

/// Settings of an [`crate::Exporter`].
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct ExporterSettings {
    /// The exchange modes for importers. They determine whether the socket is started. Default:
    /// auto.
    pub exchange: Exchange,
    /// The directory in which the process answers on a socket, for importers in other containers.
    /// Default: none. `UMF_IPC_DIR`.
    pub directory: Option<PathBuf>,
    /// Which importers the sockets answer. Default: those of the same user.
    pub allow: Allow,
    /// `PR_SET_PTRACER` at the first export. Default: none.
    pub ptracer: Ptracer,
    /// The most native exports (one per region) in the cache. Without a limit (0), half of
    /// `RLIMIT_NOFILE` is the limit for providers that hold a descriptor for each. Default: 0.
    /// `UMF_MAX_CREATED_IPC_HANDLES`.
    pub max_created_handles: u64,
    /// The policy above that limit if all exports are in use. Default: soft.
    pub limit: LimitPolicy,
    /// The most exports at one time. The ledger has 128 bytes of sparse file for each. Default:
    /// 4,194,304.
    pub slots: u32,
}

impl Default for ExporterSettings {
    fn default() -> Self {
        Self {
            exchange: Exchange::Auto,
            directory: None,
            allow: Allow::SameUser,
            ptracer: Ptracer::None,
            max_created_handles: 0,
            limit: LimitPolicy::Soft,
            slots: crate::ledger::MAX_SLOTS,
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]

    use super::*;
    use umf_core::{Layout, Visibility};
    use umf_runtime::Upstream;

    /// Returns a region with a file of its own.
    fn region_of_its_own() -> (Upstream, Region) {
        let host = umf_provider_host::HostProvider::builder().visibility(Visibility::Shared);
        let upstream = Upstream::new(host.isolate(true).build().unwrap()).unwrap();
        let (region, _) = upstream.allocate(Layout::new(4096, 1).unwrap()).unwrap();
        (upstream, region)
    }

    #[test]
    fn descriptor_of_another_file_is_neither_sent_nor_closed() {
        use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};

        let (upstream, region) = region_of_its_own();
        let exporter = Exporter::new(ExporterSettings::default()).unwrap();
        // SAFETY: the test does not touch the memory.
        let handle = unsafe { exporter.handle(region.base()) }.unwrap();
        let state = exporter.inner.current().unwrap();
        let fd = state.fd_of(handle.slot(), handle.generation()).unwrap();
        let number = fd.as_raw_fd();
        drop(fd);
        let other = std::fs::File::open("/dev/null").unwrap();
        // SAFETY: replaces the exported file under its number by one of the test, as a faulty
        // program may.
        assert_eq!(unsafe { libc::dup2(other.as_raw_fd(), number) }, number);
        assert_eq!(state.fd_of(handle.slot(), handle.generation()).unwrap_err(), 0);
        // SAFETY: the test's own region, which nothing uses.
        unsafe { upstream.free(region) }.unwrap();
        drop((exporter, upstream));
        // SAFETY: open since `dup2`, and closed by nothing else.
        let number = unsafe { OwnedFd::from_raw_fd(number) };
        assert_eq!(umf_os::file::identity(&number), umf_os::file::identity(&other));
    }

    /// A peer sends any slot and generation.
    #[test]
    fn file_of_an_export_that_never_was_is_refused() {
        let (upstream, region) = region_of_its_own();
        let exporter = Exporter::new(ExporterSettings::default()).unwrap();
        // SAFETY: the test does not touch the memory.
        let handle = unsafe { exporter.handle(region.base()) }.unwrap();
        let state = exporter.inner.current().unwrap();
        for generation in [0, handle.generation() + 1, handle.generation() + 2, u64::MAX] {
            assert_eq!(state.fd_of(handle.slot(), generation).unwrap_err(), handle.generation());
        }
        assert_eq!(state.fd_of(u32::MAX, u64::MAX).unwrap_err(), 0);
        // SAFETY: the test's own region, which nothing uses.
        unsafe { upstream.free(region) }.unwrap();
        for generation in [u64::MAX, handle.generation() + 2] {
            assert_eq!(state.fd_of(handle.slot(), generation).unwrap_err(), handle.generation() + 1);
        }
    }

    /// Exporters of one process have equal slots and generations.
    #[test]
    fn handle_of_another_exporter_is_not_passed_on() {
        let (upstream, region) = region_of_its_own();
        let exporters = [(); 2].map(|()| Exporter::new(ExporterSettings::default()).unwrap());
        // SAFETY: the test does not touch the memory.
        let handles = exporters.each_ref().map(|one| unsafe { one.handle(region.base()) }.unwrap());
        assert_eq!(handles[0].slot(), handles[1].slot());
        let importer = crate::Importer::builder().import(Arc::new(umf_provider_host::HostImport::new()));
        let importer = importer.build().unwrap();
        let mapping = importer.open(&handles[0]).unwrap();
        let passed_on = mapping.send_handle(&handles[1], NonZeroU16::MIN);
        assert!(matches!(passed_on, Err(crate::Error::OtherHandle)), "{passed_on:?}");
        mapping.send_handle(&handles[0], NonZeroU16::MIN).unwrap();
        drop(mapping);
        drop(exporters);
        // SAFETY: the test's own region, which nothing uses.
        let _ = unsafe { upstream.free(region) };
    }

    #[test]
    fn region_handle_names_the_region_whatever_lies_in_it() {
        use umf_core::Pool;

        let host = umf_provider_host::HostProvider::builder().visibility(Visibility::Shared);
        let provider = host.build().unwrap();
        let settings = umf_pool_slab::SlabSettings::new();
        let pool = umf_pool_slab::SlabPool::new(Arc::clone(&provider), settings).unwrap();
        let exporter = Exporter::new(ExporterSettings::default()).unwrap();
        let importer = crate::Importer::builder().import(Arc::new(umf_provider_host::HostImport::new()));
        let importer = importer.build().unwrap();
        let address = pool.allocate(Layout::new(100, 8).unwrap()).unwrap();
        // SAFETY: the test does not touch the memory.
        let (block, region) = unsafe {
            (exporter.handle(address).unwrap(), exporter.region_handle(address, &*provider).unwrap())
        };
        assert!(!block.is_region() && region.is_region());
        assert_eq!(block.region_id(), region.region_id());
        let opened = importer.open(&region).unwrap();
        assert_eq!(opened.len() as u64, region.length());
        assert!(opened.len() > 100);
        drop(opened);
        // The region outlives the block.
        // SAFETY: nothing uses the block.
        unsafe { pool.free(address) }.unwrap();
        assert!(matches!(importer.open(&block), Err(crate::Error::Stale { .. })));
        drop(importer.open(&region).unwrap());
        let other = umf_provider_host::HostProvider::builder().build().unwrap();
        // SAFETY: it fails.
        let foreign = unsafe { exporter.region_handle(address, &*other) };
        assert!(matches!(foreign, Err(crate::Error::NotTracked { .. })), "{foreign:?}");
        drop(pool);
        assert!(matches!(importer.open(&region), Err(crate::Error::Stale { .. })));
        assert_eq!(exporter.statistics().in_use, 0);
    }
}
