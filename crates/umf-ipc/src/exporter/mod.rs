//! The producer's side: making blocks and regions visible, and retiring them in time.

mod export;
mod fd_source;
mod region_export;
mod settings;
mod state;

pub(crate) use region_export::NativeGuard;

pub use export::Export;
pub use settings::{ExporterSettings, Ptracer};

use core::ptr::NonNull;
use core::sync::atomic::{AtomicPtr, AtomicU32, Ordering};
use std::sync::Arc;

use umf_core::fork::{self, ForkAware};
use umf_core::lock::Lock;
use umf_core::observer::{self, ExportObserver, Freed, Leases, Observing};
use umf_core::{Address, Region};

use crate::Result;
use crate::cache::CacheStatistics;
use crate::handle::Handle;
use crate::identity::Nonce;
use crate::sys;
use state::State;

/// Makes memory visible to other processes, and keeps one native export per region in a bounded cache.
///
/// A process normally has one. Each has a ledger of its own: the first export makes it (and starts the socket
/// thread, if the exchange settings call for one). All methods may be called from several threads at once; an
/// export that is already there costs no lock and no system call.
///
/// # What happens to an export
/// - The block is freed, or its region: retired before the memory goes. Every later open fails as stale.
/// - It is idle (nobody holds an [`Export`] of its region and none was kept) and the cache is over its
///   limit: the region's exports are retired, so that handles that are still around fail as stale.
/// - The exporter is dropped: all are retired.
/// - The process forks: the child starts anew, with a ledger of its own. Handles made by the parent still name
///   the parent's memory.
#[derive(Debug)]
pub struct Exporter {
    inner: Arc<Inner>,
    _observing: Observing,
}

#[derive(Debug)]
pub(crate) struct Inner {
    settings: ExporterSettings,
    /// Made by the first export, in each process: null until then. Replaced states are those of a parent
    /// process; they are leaked, because nothing of them may be touched here.
    state: AtomicPtr<State>,
    making: Lock<()>,
    /// How many forks that are going on, each begun amid the one before, were told to the state.
    prepared: AtomicU32,
}

impl Exporter {
    /// An exporter. Nothing is made until the first export.
    ///
    /// # Errors
    /// [`crate::Error::Memory`] if there are too many exporters in this process (4096).
    pub fn new(settings: ExporterSettings) -> Result<Self> {
        sys::register_reopening()?;
        let inner = Arc::new(Inner {
            settings,
            state: AtomicPtr::new(core::ptr::null_mut()),
            making: Lock::new(()),
            prepared: AtomicU32::new(0),
        });
        let observing = observer::observe(Arc::clone(&inner) as _)?;
        // SAFETY: the object is in an Arc that `self` holds, and is unregistered in `drop`.
        unsafe { fork::register(inner.fork_aware()) }?;
        Ok(Self { inner, _observing: observing })
    }

    /// Exports the block that holds `address` (or the region, if it belongs to no pool), until the guard is
    /// dropped. Handles stay valid after that as long as the export stays cached: see [`Exporter`].
    ///
    /// # Errors
    /// [`crate::Error::NotTracked`], [`crate::Error::NotExportable`], [`crate::Error::LimitReached`] over a hard limit,
    /// [`crate::Error::Memory`] if the address is not in a live block, [`crate::Error::System`].
    ///
    /// # Safety
    /// Whoever opens the handle, in this process too, may write the block at any time: while it is exported and could
    /// be opened writable, nothing in this process holds a Rust reference into it. (Blocks of the crate `umf`, which give
    /// out no such references, export safely.)
    #[inline]
    pub unsafe fn get(&self, address: Address) -> Result<Export<'_>> {
        if let Some(state) = self.inner.current()
            && let Some((bytes, pin)) = state.hit(address)
        {
            return Ok(Export::new(state, address, Handle::from_known(bytes), pin));
        }
        self.inner.state(address)?.export(address)
    }

    /// As [`Exporter::get`], until the block is freed: its region is not evicted before.
    ///
    /// # Errors
    /// As [`Exporter::get`].
    ///
    /// # Safety
    /// As [`Exporter::get`].
    pub unsafe fn handle(&self, address: Address) -> Result<Handle> {
        if let Some(handle) = self.inner.current().and_then(|state| state.kept(address)) {
            return Ok(handle);
        }
        // SAFETY: passed on to the caller.
        Ok(unsafe { self.get(address) }?.keep())
    }

    /// The settings in force.
    #[must_use]
    pub fn settings(&self) -> &ExporterSettings {
        &self.inner.settings
    }

    /// The nonce that handles of this exporter carry, once something was exported.
    #[must_use]
    pub fn nonce(&self) -> Option<Nonce> {
        self.inner.current().map(State::nonce)
    }

    /// What the cache of native exports holds and has done.
    #[must_use]
    pub fn statistics(&self) -> CacheStatistics {
        self.inner.current().map_or_else(CacheStatistics::default, State::statistics)
    }

    /// Whether this process answers on a socket (the exchange mode `socket`).
    #[must_use]
    pub fn is_served(&self) -> bool {
        self.inner.current().is_some_and(State::is_served)
    }

    /// Retires the exports of regions that nobody holds, and returns how many regions there were.
    pub fn evict_idle(&self) -> usize {
        self.inner.current().map_or(0, State::evict_idle)
    }
}

impl Drop for Exporter {
    fn drop(&mut self) {
        // While the observer can still be told of what is freed meanwhile. (No export is made any more: that takes a
        // reference to `self`.)
        if let Some(state) = self.inner.current() {
            state.close();
        }
        fork::unregister(self.inner.fork_aware());
    }
}

impl Inner {
    fn fork_aware(self: &Arc<Self>) -> NonNull<dyn ForkAware + 'static> {
        let object: &dyn ForkAware = &**self;
        NonNull::from(object)
    }

    /// The state, if it was made, and in this process.
    #[inline]
    fn current(&self) -> Option<&State> {
        let state = NonNull::new(self.state.load(Ordering::Acquire))?;
        // SAFETY: a published state is freed only when `self` is dropped.
        let state = unsafe { state.as_ref() };
        state.belongs_here().then_some(state)
    }

    /// Whether the state was told of the fork that is over.
    fn was_prepared(&self) -> bool {
        let less = |forks: u32| forks.checked_sub(1);
        self.prepared.fetch_update(Ordering::Relaxed, Ordering::Relaxed, less).is_ok()
    }

    /// The state; made if this is the first export of this process, which is that of `first`.
    #[cold]
    fn state(&self, first: Address) -> Result<&State> {
        let _making = self.making.lock();
        if let Some(state) = self.current() {
            return Ok(state);
        }
        let procfs = umf_core::tracker::find(first)
            .and_then(|found| found.owner.guard())
            .and_then(|owner| owner.provider()?.export().map(umf_core::Export::fd_opens_through_procfs));
        let state = State::new(&self.settings, procfs.unwrap_or(true))?;
        // The old one is a parent's, or null.
        self.state.store(Arc::into_raw(state).cast_mut(), Ordering::Release);
        self.current().ok_or(crate::Error::Memory(umf_core::Error::Frozen { what: "the exporter" }))
    }
}

impl ExportObserver for Inner {
    fn before_free(&self, freed: Freed) -> Option<Arc<dyn Leases>> {
        let state = self.current()?;
        match freed {
            Freed::Block { address } => state.retire_block(address),
            Freed::Region(region) => state.retire_region(&region),
            _ => None,
        }
    }
}

impl ForkAware for Inner {
    fn prepare(&self) {
        self.making.lock_for_fork();
        if let Some(state) = self.current() {
            state.lock_for_fork();
            self.prepared.fetch_add(1, Ordering::Relaxed);
        }
    }

    fn parent(&self) {
        if self.was_prepared()
            && let Some(state) = self.current()
        {
            // SAFETY: `prepare` took the locks.
            unsafe { state.unlock_after_fork() };
        }
        // SAFETY: as above.
        unsafe { self.making.unlock_after_fork() };
    }

    fn child(&self) {
        // Leaked from here on. Once only: the child may fork again before it exports anything.
        let state = self.state.swap(core::ptr::null_mut(), Ordering::AcqRel);
        if self.was_prepared()
            && let Some(state) = NonNull::new(state)
        {
            // SAFETY: a published state is freed only when `self` is dropped; `prepare` took its locks.
            unsafe { state.as_ref().abandon_in_child() };
        }
        // SAFETY: `prepare` took it.
        unsafe { self.making.unlock_after_fork() };
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        let state = *self.state.get_mut();
        if state.is_null() {
            return;
        }
        // SAFETY: the pointer came from Arc::into_raw and is taken back once.
        let state = unsafe { Arc::from_raw(state) };
        if !state.belongs_here() {
            // A parent's: its ledger is not mapped here, its thread does not run here.
            core::mem::forget(state);
        }
    }
}

/// The region that an address belongs to, and what of it is exported.
#[derive(Clone, Copy, Debug)]
struct Target {
    region: Region,
    start: Address,
    size: usize,
    is_region: bool,
}

impl Target {
    /// A region as a whole.
    const fn whole(region: Region) -> Self {
        Self { region, start: region.base(), size: region.size(), is_region: true }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]

    use super::*;

    /// In a process of one thread: whether a fork amid a fork leaves the state's locks to the first one.
    fn locks_are_the_first_forks(exporter: &Exporter) -> bool {
        let inner = &*exporter.inner;
        let Ok(state) = inner.state(Address::from_bits(0x1000)) else { return false };
        inner.prepare();
        inner.prepare();
        inner.parent();
        let between = state.is_free();
        inner.parent();
        !between && state.is_free()
    }

    #[test]
    fn descriptor_of_another_file_is_neither_sent_nor_closed() {
        use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
        use umf_core::{Layout, Upstream, Visibility};

        let host = umf_provider_host::HostProvider::builder().visibility(Visibility::Shared);
        let upstream = Upstream::new(host.isolate(true).build().unwrap()).unwrap();
        let (region, _) = upstream.allocate(Layout::new(4096, 1).unwrap()).unwrap();
        let exporter = Exporter::new(ExporterSettings::default()).unwrap();
        // SAFETY: the test does not touch the memory.
        let handle = unsafe { exporter.handle(region.base()) }.unwrap();
        let state = exporter.inner.current().unwrap();
        let fd = state.fd_of(handle.slot(), handle.generation()).unwrap();
        let number = fd.as_raw_fd();
        drop(fd);
        let own = std::fs::File::open("/dev/null").unwrap();
        // SAFETY: closes the exported file, as a program may, and puts the test's under its number.
        assert_eq!(unsafe { libc::dup2(own.as_raw_fd(), number) }, number);
        assert_eq!(state.fd_of(handle.slot(), handle.generation()).unwrap_err(), 0);
        // SAFETY: the test's own region, which nothing uses.
        unsafe { upstream.free(region) }.unwrap();
        drop((exporter, upstream));
        // SAFETY: open since `dup2`, and closed by nothing else.
        let number = unsafe { OwnedFd::from_raw_fd(number) };
        assert_eq!(sys::identity(&number), sys::identity(&own));
    }

    #[test]
    fn a_fork_amid_a_fork_leaves_the_locks_to_the_first() {
        let exporter = Exporter::new(ExporterSettings::default()).unwrap();
        // SAFETY: the child uses umf and ends within a bounded time.
        let pid = unsafe { libc::fork() };
        if pid == 0 {
            // SAFETY: sets an alarm for this child.
            unsafe { libc::alarm(20) };
            let went_well = locks_are_the_first_forks(&exporter);
            // SAFETY: ends the child at once.
            unsafe { libc::_exit(i32::from(!went_well)) };
        }
        let mut status = 0;
        // SAFETY: waits for the child made above.
        assert_eq!(unsafe { libc::waitpid(pid, &raw mut status, 0) }, pid);
        assert_eq!(status, 0);
    }
}
