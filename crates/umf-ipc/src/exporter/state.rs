//! [`ExporterState`]: the state of an exporter in one process: ledger, lease table, cache of native
//! exports, memo and socket.

mod descriptors;
mod retire;

use core::ptr::NonNull;
use core::sync::atomic::{AtomicU64, Ordering};
use std::os::fd::AsRawFd;
use std::sync::Arc;

use umf_core::pool::{Pool, missing};
use umf_core::{Address, Provider, Region};
use umf_runtime::observer::Leases;
use umf_runtime::tracker::{self, OwnerGuard, TrackedRegion};
use umf_sync::{Lock, failpoint, fork, thread};

use super::region_export::{BlockExport, Blocks, NativeGuard, PendingUnexports, RegionExport};
use super::{Export, ExportTarget, ExporterSettings};
use crate::cache::{Cache, CacheStatistics, Entry, Limits, Memo, MemoEntry, MemoValue, Pin, Pinned};
use crate::handle::{
    FLAG_DIRECTORY, FLAG_ISOLATED, FLAG_PROCFS, FLAG_READ_ONLY, FLAG_REGION, FLAG_SOCKET, Fields, Handle,
    SIZE as HANDLE_SIZE,
};
use crate::identity::Nonce;
use crate::lease::{ExportTable, ExportedRange, RetireOutcome};
use crate::ledger::{PublishedCounters, RetireReason, SlotContent};
use crate::rendezvous::Directory;
use crate::transfer::socket::proof::Key;
use crate::transfer::socket::server::{Listeners, Server, ServerRule};
use crate::transfer::{Exchange, Mode, yama_scope};
use crate::{Error, Result};
use umf_os::socket::Allow;

type RegionEntry = Entry<u64, RegionExport>;

/// An export in a thread's memo, by the block's address.
#[derive(Clone, Copy, Debug)]
struct MemoizedExport {
    slot: u32,
    generation: u64,
    /// The slot's generation in the ledger.
    word: NonNull<AtomicU64>,
    region: u64,
    /// Whether the export is kept in use until the block is freed.
    is_kept: bool,
    /// Whether a device may import the memory.
    is_device: bool,
}

// SAFETY: any thread may use the atomic that it points to.
unsafe impl MemoValue for MemoizedExport {}

/// State of an exporter in one process.
#[derive(Debug)]
pub(crate) struct ExporterState {
    /// [`fork::generation`] of the process that made this.
    generation: u32,
    exports: Arc<ExportTable>,
    cache: Cache<u64, RegionExport>,
    pending_unexports: Arc<PendingUnexports>,
    memo: Memo<MemoizedExport>,
    server: Lock<Option<Server>>,
    sockets: Sockets,
    /// The most native exports without a set limit, for providers that hold a descriptor for each.
    fd_limit: u64,
    settings: ExporterSettings,
    /// A secret, which only handles contain.
    key: Key,
}

/// Which sockets of an exporter importers may use.
#[derive(Clone, Copy, Debug)]
pub(super) struct Sockets {
    pub(super) is_abstract: bool,
    pub(super) is_in_directory: bool,
}

impl ExporterState {
    /// Creates the state. `procfs` is whether the memory of the first export can be opened through
    /// `/proc`.
    pub(super) fn new(settings: &ExporterSettings, procfs: bool) -> Result<Arc<Self>> {
        let sockets = Sockets::of(settings, procfs)?;
        let exports = ExportTable::new(settings.slots, sockets.is_abstract || sockets.is_in_directory)?;
        let set = match settings.ptracer {
            super::Ptracer::None => Ok(()),
            super::Ptracer::Any => umf_os::process::set_ptracer(None),
            super::Ptracer::Process(pid) => umf_os::process::set_ptracer(Some(pid)),
        };
        match set {
            Ok(()) => {}
            // Without yama no exception is needed.
            Err(rustix::io::Errno::INVAL) => tracing::debug!("PR_SET_PTRACER: this kernel has no yama"),
            Err(errno) => return Err(Error::system("prctl(PR_SET_PTRACER)", errno)),
        }
        failpoint!("exporter.permitted");
        let limits = Limits {
            entries: settings.max_created_handles,
            bytes: 0,
            policy: settings.limit,
            what: "exported regions",
            setting: "UMF_MAX_CREATED_IPC_HANDLES",
        };
        let nonce = exports.ledger.nonce();
        let mut listeners = Listeners::default();
        if sockets.is_abstract {
            listeners.bind_abstract(nonce)?;
        }
        if let Some(directory) = settings.directory.as_ref().filter(|_| sockets.is_in_directory) {
            listeners.bind_in(&Directory::new(directory), nonce, settings.allow)?;
        }
        let key = umf_os::process::random().map_err(|errno| Error::system("getrandom", errno))?;
        let state = Arc::new(Self {
            generation: fork::generation(),
            exports,
            cache: Cache::new(limits, 8),
            pending_unexports: Arc::default(),
            memo: Memo::new(),
            server: Lock::new(None),
            sockets,
            fd_limit: umf_os::process::descriptor_limit() / 2,
            settings: settings.clone(),
            key: Key::new(key),
        });
        if state.is_served() {
            let source = Arc::new(descriptors::ExporterFdSource::new(&state));
            let rule = ServerRule { nonce, allow: settings.allow, key: Some(state.key) };
            *state.server.lock() = Some(Server::serve(listeners, rule, source)?);
        }
        tracing::debug!(nonce = %state.nonce(), ?sockets, "ledger made");
        Ok(state)
    }

    /// Returns whether this process made it, and not a process that this one was forked from.
    #[inline]
    pub(super) fn is_of_this_process(&self) -> bool {
        self.generation == fork::generation()
    }

    pub(super) fn nonce(&self) -> Nonce {
        self.exports.ledger.nonce()
    }

    pub(super) const fn is_served(&self) -> bool {
        self.sockets.is_abstract || self.sockets.is_in_directory
    }

    const fn hash(address: Address) -> u64 {
        // Blocks are at least 8 bytes apart. The multiplication spreads the remaining bits.
        (address.to_bits() >> 3).wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 40
    }

    /// Returns the handle of a block that is in this thread's memo and was not freed since, with a
    /// pin on its region. The handle is borrowed, so that its 256 bytes are copied only once, to
    /// the caller's destination.
    #[inline]
    pub(super) fn find_memoized(&self, address: Address) -> Option<(&[u8; HANDLE_SIZE], Pin)> {
        let memo = self.memo.current()?;
        let (bytes, note) = memo.by_key(Self::hash(address), address.to_bits())?;
        // SAFETY: the note was made in this thread's table for the pins of this state.
        if !unsafe { note.pin.pin_stamped(note.stamp) } {
            return None;
        }
        let pin = Pin::new(memo.thread(), note.pin);
        // SAFETY: `word` is a generation in the ledger, which stays mapped as long as this state.
        if unsafe { note.value.word.as_ref() }.load(Ordering::Acquire) != note.value.generation {
            self.cache.pins().give_back(pin, Some(memo.thread()));
            return None;
        }
        memo.count_hit();
        Some((bytes, pin))
    }

    /// Adds an export to this thread's memo.
    fn memoize(&self, entry: &RegionEntry, address: Address, block: &BlockExport) {
        let Some(memo) = self.memo.current_or_new() else { return };
        let Some((_, pin)) = self.cache.pins().cell(entry.number()) else { return };
        let value = MemoizedExport {
            slot: block.slot,
            generation: block.generation,
            word: self.exports.ledger.generation_word(block.slot),
            region: entry.value.region.id().get(),
            is_kept: block.is_kept,
            is_device: block.handle.may_be_imported_by_device(),
        };
        let note = MemoEntry { key: address.to_bits(), pin, stamp: entry.stamp(), value };
        memo.store(Self::hash(address), block.handle.as_bytes(), note);
    }

    /// Ends a use of an export.
    #[inline]
    pub(super) fn put(&self, pin: Pin) {
        self.cache.pins().give_back(pin, thread::current());
    }

    /// Exports the block or region that contains `address`. `requested` is the number of bytes that
    /// the caller requested from the pool, if it is known.
    #[cold]
    pub(super) fn export(&self, address: Address, requested: Option<usize>) -> Result<Export<'_>> {
        let found = tracker::find(address).ok_or(Error::NotTracked { address })?;
        let owner = found.owner.guard().ok_or(Error::NotTracked { address })?;
        let target = match owner.pool() {
            Some(pool) => {
                let block = pool.block_at(address)?;
                let requested = requested.unwrap_or(block.size).clamp(1, block.size.max(1));
                let (start, size) = (block.address, block.size);
                ExportTarget { region: found.region, start, size, requested, is_region: false }
            }
            None => ExportTarget::whole(found.region),
        };
        loop {
            let pinned = self.exported_region(&found, &owner)?;
            // `None`: the region was evicted after the look-up. Export it again.
            if let Some(handle) = self.find_or_publish(pinned.entry(), &target, owner.pool())? {
                self.exports.ledger.publish_statistics(true, || self.counters());
                failpoint!("export.ready");
                return Ok(Export::new(self, target.start, handle, pinned.into_pin()));
            }
        }
    }

    /// Returns the handle of the target's export in a region of the cache. Publishes the export if
    /// there is none. Returns `None` if the region is being removed from the cache.
    fn find_or_publish(
        &self,
        entry: &RegionEntry,
        target: &ExportTarget,
        pool: Option<&dyn Pool>,
    ) -> Result<Option<Handle>> {
        let mut blocks = entry.value.blocks.lock();
        if blocks.closed {
            return Ok(None);
        }
        let key = target.start.to_bits();
        let handle = match blocks.get_mut(key, &self.exports) {
            Some(block) => block.handle,
            None => {
                // Allocates before the export is published, so that nothing fails afterwards.
                blocks.reserve(&self.exports)?;
                let block = self.publish(entry, target)?;
                let (handle, slot, generation) = (block.handle, block.slot, block.generation);
                self.memoize(entry, target.start, &block);
                blocks.insert(key, block);
                let marked = pool.map_or(Ok(()), |pool| {
                    let deferred = pool.deferred_free().ok_or(missing("exporting blocks"))?;
                    deferred.mark_exported(target.start)
                });
                // If the caller freed the block meanwhile (a bug), the export is withdrawn.
                if let Err(error) = marked {
                    blocks.remove(key);
                    // No other thread has its handle.
                    if self.exports.ledger.retire(slot, generation) {
                        self.exports.ledger.free_slot(slot);
                    }
                    return Err(error.into());
                }
                handle
            }
        };
        if let Some(block) = blocks.get_mut(key, &self.exports) {
            self.memoize(entry, target.start, block);
        }
        Ok(Some(handle))
    }

    /// Exports as a whole the innermost region of `provider` that holds `address`, until the region
    /// is freed.
    #[cold]
    pub(super) fn region_handle(&self, address: Address, provider: &dyn Provider) -> Result<Handle> {
        let is_of_provider = |found: &TrackedRegion| {
            let owner = found.owner.guard();
            owner.as_ref().and_then(OwnerGuard::provider).is_some_and(|owner| owner.is(provider))
        };
        let not_tracked = Error::NotTracked { address };
        let found = tracker::find_where(address, is_of_provider).ok_or(not_tracked)?;
        let owner = found.owner.guard().ok_or(Error::NotTracked { address })?;
        loop {
            let pinned = self.exported_region(&found, &owner)?;
            let export = &pinned.entry().value;
            let mut blocks = export.blocks.lock();
            if blocks.closed {
                // Evicted between the look-up and here: make it again.
                drop(blocks);
                continue;
            }
            let target = ExportTarget::whole(export.region);
            let handle = self.encode(export, &target, export.slot, export.generation);
            let was_kept = core::mem::replace(&mut blocks.whole_is_kept, true);
            drop(blocks);
            if !was_kept {
                // The pin ends when the entry leaves the cache.
                let _ = pinned.into_pin();
            }
            self.exports.ledger.publish_statistics(true, || self.counters());
            return Ok(handle);
        }
    }

    /// Returns the cached native export of a region, made if there is none. The observer finds it
    /// when the region is freed.
    fn exported_region(
        &self,
        found: &TrackedRegion,
        owner: &OwnerGuard,
    ) -> Result<Pinned<'_, u64, RegionExport>> {
        let pinned =
            self.cache.get_or_insert_with(&found.region.id().get(), found.region.size() as u64, || {
                let none = Error::NotTracked { address: found.region.base() };
                self.export_region(found, owner.provider().ok_or(none)?)
            })?;
        if let Err(error) = tracker::mark_exported(found.number, found.region) {
            drop(pinned);
            self.retire_region(&found.region);
            return Err(error.into());
        }
        Ok(pinned)
    }

    /// Exports a region with its provider, and publishes the export of the whole region.
    fn export_region(&self, found: &TrackedRegion, provider: &umf_core::ProviderRef) -> Result<RegionExport> {
        let region = found.region;
        let not_exportable =
            |why| Error::NotExportable { kind: provider.kind(), name: provider.name().to_owned(), why };
        let ability = provider.export().ok_or_else(|| {
            not_exportable("it has no memory that other processes can map; use shared memory")
        })?;
        if ability.uses_fd_per_export()
            && self.settings.max_created_handles == 0
            && self.cache.counters().entries.load(Ordering::Relaxed) > self.fd_limit
        {
            // Without a set limit: evict idle exports before the process runs out of descriptors.
            self.cache.evict_idle(|_| true);
        }
        // A region has one native export at a time.
        self.pending_unexports.wait_for(region.id().get());
        let native = match self.exports.native_of(region.id().get()) {
            // Its exports were evicted while an importer had one open, and deferred frees hold it.
            Some(native) => native,
            None => {
                let provider = provider.clone();
                let native = Some(ability.export(&region)?);
                failpoint!("export.made");
                let mut native = NativeGuard { region, provider, native, identity: None };
                if let Some(fd) = native.fd() {
                    let identity = umf_os::file::identity(fd);
                    let identity =
                        identity.map_err(|errno| Error::system("fstat of the exported fd", errno))?;
                    native.identity = Some(identity);
                }
                Arc::new(native)
            }
        };
        let slot = self.exports.allocate_slot()?;
        let mut export = RegionExport {
            region,
            kind: provider.kind(),
            native: Some(native),
            opens_through_procfs: ability.fd_opens_through_procfs(),
            exports: Arc::clone(&self.exports),
            slot,
            generation: self.exports.ledger.next_generation(slot),
            retire_reason: Lock::new(RetireReason::Evicted),
            blocks: Lock::new(Blocks::default()),
            pending_unexports: Arc::clone(&self.pending_unexports),
        };
        export.generation =
            self.exports.ledger.publish(slot, &content(&export, &ExportTarget::whole(region)));
        Ok(export)
    }

    /// Publishes an export in the ledger.
    fn publish(&self, entry: &RegionEntry, target: &ExportTarget) -> Result<BlockExport> {
        let export = &entry.value;
        let slot = self.exports.allocate_slot()?;
        let generation = self.exports.ledger.publish(slot, &content(export, target));
        let handle = self.encode(export, target, slot, generation);
        Ok(BlockExport { slot, generation, handle, is_kept: false })
    }

    /// Takes over a use of the handle's block until the block is freed. Returns `false`, and leaves
    /// the use to the caller, if the block is kept already or was freed.
    pub(super) fn keep(&self, address: Address, handle: &Handle) -> bool {
        if !self.is_of_this_process() {
            // The parent's state: its locks may be held for ever in this process, and its blocks
            // are not freed here.
            return false;
        }
        let was_kept = self.cache.peek(&handle.region_id(), |entry| {
            let mut blocks = entry.value.blocks.lock();
            let block = blocks.get_mut(address.to_bits(), &self.exports)?;
            let is_same = block.generation == handle.generation() && block.slot == handle.slot();
            is_same.then(|| core::mem::replace(&mut block.is_kept, true))
        });
        let was_kept = was_kept.flatten();
        // `None`: another block may be exported at this address, and is not kept.
        if was_kept.is_some()
            && let Some(memo) = self.memo.current()
        {
            // The memo may have the export of a nested region at the same address.
            let region = handle.region_id();
            memo.change(Self::hash(address), address.to_bits(), |known| {
                known.is_kept |= known.region == region;
            });
        }
        was_kept == Some(false)
    }

    /// Returns the handle's bytes of a block that is kept according to this thread's memo and was
    /// not freed since. They change at the thread's next export.
    #[inline]
    pub(super) fn kept_bytes(&self, address: Address) -> Option<&[u8; HANDLE_SIZE]> {
        let memo = self.memo.current()?;
        let (bytes, note) = memo.by_key(Self::hash(address), address.to_bits())?;
        // SAFETY: `word` is a generation in the ledger, which stays mapped as long as this state.
        let current = unsafe { note.value.word.as_ref() }.load(Ordering::Acquire) == note.value.generation;
        (current && note.value.is_kept).then(|| {
            memo.count_hit();
            bytes
        })
    }

    /// Sends a ticket of the export that a handle of this process names.
    ///
    /// # Errors
    /// Those of taking a row; [`Error::Stale`] if the export is not current.
    pub(super) fn send(&self, handle: &Handle, readers: u16) -> Result<Handle> {
        let (slot, generation) = (handle.slot(), handle.generation());
        let ticket = self.exports.send(slot, handle.requested(), readers)?;
        // The caller has freed the block meanwhile (a bug): the lease may have come too late.
        if !self.exports.ledger.is_current(slot, generation) {
            self.exports.cancel(slot, ticket);
            let now = self.exports.ledger.generation_of(slot).unwrap_or(0);
            return Err(Error::Stale { pid: handle.pid(), slot, generation, now });
        }
        self.exports.ledger.note_change();
        self.exports.ledger.publish_statistics(true, || self.counters());
        Ok(handle.with_ticket(Some(ticket)))
    }

    /// Cancels the ticket of a handle of this process.
    pub(super) fn cancel(&self, handle: &Handle) -> bool {
        handle.ticket().is_some_and(|ticket| self.exports.cancel(handle.slot(), ticket))
    }

    /// Returns whether readers have still to claim the ticket of a handle of this process.
    pub(super) fn is_in_transit(&self, handle: &Handle) -> bool {
        handle.ticket().is_some_and(|ticket| self.exports.is_in_transit(handle.slot(), ticket))
    }

    pub(super) fn poll_tickets(&self) -> usize {
        self.exports.poll_tickets()
    }

    pub(super) fn evict_idle(&self) -> usize {
        self.cache.evict_idle(|_| true)
    }

    pub(super) fn statistics(&self) -> CacheStatistics {
        // The descriptors of the ledger and of the lease table.
        let mut fds = 2;
        self.cache.for_each(|entry| {
            fds += u64::from(entry.value.native.as_ref().is_some_and(|native| native.fd().is_some()));
        });
        CacheStatistics { fds, hits: self.memo.hits(), ..self.cache.statistics() }
    }

    /// Returns the counters that the ledger publishes.
    fn counters(&self) -> PublishedCounters {
        let (leases, held_bytes) = self.exports.deferred_size();
        let importers = self.exports.leases.importers() as u64;
        PublishedCounters {
            exporter: Some(self.statistics()),
            leases,
            held_bytes,
            importers,
            in_transit: self.exports.sent_tickets(),
            ..PublishedCounters::default()
        }
    }

    /// Retires all exports and stops the socket, because the exporter is being dropped.
    pub(super) fn close(&self) {
        let mut regions = Vec::new();
        self.cache.for_each(|entry| regions.push(entry.value.region));
        for region in regions {
            self.remove_region(&region, RetireReason::ExporterDropped);
        }
        self.exports.outlive_exporter();
        let server = self.server.lock().take();
        drop(server);
    }
}

impl Sockets {
    /// Returns the sockets that importers will probably need, from what is known at the first
    /// export.
    ///
    /// `procfs` works for the same user at every yama scope. So yama is a reason for an abstract
    /// socket only for memory that cannot be opened through `/proc`. `pidfd` and `procfs` do not
    /// work with an undumpable process, from outside of a pid namespace, or for other users.
    fn of(settings: &ExporterSettings, procfs: bool) -> Result<Self> {
        let has_directory = settings.directory.is_some();
        Ok(match &settings.exchange {
            Exchange::Order(modes) if modes.contains(&Mode::Directory) && !has_directory => {
                return Err(Error::NoDirectory);
            }
            Exchange::Order(modes) => Self {
                is_abstract: modes.contains(&Mode::Socket),
                is_in_directory: modes.contains(&Mode::Directory),
            },
            Exchange::Auto => Self {
                is_abstract: !umf_os::process::is_dumpable()
                    || (!procfs && yama_scope() > 0)
                    || !crate::identity::ProcessIdentity::current().is_in_initial_pid_namespace()
                    || settings.allow != Allow::SameUser,
                is_in_directory: has_directory,
            },
        })
    }
}

// The description of an export for other processes: in its handle, its ledger slot and over the
// socket.

impl ExporterState {
    /// Returns the handle of an export with this slot and generation.
    fn encode(&self, export: &RegionExport, target: &ExportTarget, slot: u32, generation: u64) -> Handle {
        let identity = self.exports.ledger.identity();
        let native = export.native.as_ref().and_then(|native| native.native.as_ref());
        let flag = |condition, flag| if condition { flag } else { 0 };
        let content = content(export, target);
        Fields {
            flags: flag(native.is_some_and(|native| native.isolated), FLAG_ISOLATED)
                | flag(native.is_some_and(|native| native.read_only), FLAG_READ_ONLY)
                | flag(self.sockets.is_abstract, FLAG_SOCKET)
                | flag(self.sockets.is_in_directory, FLAG_DIRECTORY)
                | flag(target.is_region, FLAG_REGION)
                | flag(export.opens_through_procfs, FLAG_PROCFS),
            boot: identity.boot_id.half(),
            nonce: self.exports.ledger.nonce(),
            pid: identity.pid,
            ledger_fd: self.exports.ledger.raw_fd(),
            pid_namespace: identity.pid_namespace,
            pidfs_inode: identity.pidfs_inode,
            data_fd: content.fd,
            slot,
            generation,
            data_device: content.device,
            data_inode: content.inode,
            data_offset: content.data_offset,
            region_size: target.region.size() as u64,
            region_id: target.region.id().get(),
            key: self.key,
            offset: content.offset,
            length: content.length,
            requested: content.requested,
            kind: export.kind,
            allocation_id: native.map_or(0, |native| native.allocation_id),
            native: native.map_or(umf_core::NativeBytes::EMPTY, |native| native.native),
        }
        .encode()
    }
}

/// Returns the content of an export's ledger slot.
fn content(export: &RegionExport, target: &ExportTarget) -> SlotContent {
    let guard = export.native.as_ref();
    let identity = guard.and_then(|guard| guard.identity);
    let native = guard.and_then(|guard| guard.native.as_ref());
    SlotContent {
        offset: target.start.offset_from(target.region.base()).unwrap_or(0),
        length: target.size as u64,
        requested: target.requested as u64,
        device: identity.map_or(0, |identity| identity.device),
        inode: identity.map_or(0, |identity| identity.inode),
        fd: native.and_then(|native| native.fd.as_ref()).map_or(-1, |fd| fd.as_raw_fd()),
        region_slot: export.slot,
        region_generation: export.generation,
        region_id: export.region.id().get(),
        region_size: export.region.size() as u64,
        data_offset: native.map_or(0, |native| native.offset),
    }
}
