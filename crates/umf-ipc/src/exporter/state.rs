//! What an exporter has in one process: its ledger, its cache, its socket.

mod describe;
mod retire;

use core::sync::atomic::{AtomicU64, Ordering};
use std::os::fd::OwnedFd;
use std::sync::Arc;

use umf_core::Address;
use umf_core::pool::missing;
use umf_core::tracker::{self, Found};
use umf_sync::{Lock, chunks::Chunks, failpoint, fork, thread};

use super::fd_source::Source;
use super::region_export::{BlockExport, Blocks, Closing, NativeGuard, RegionExport};
use super::settings::ExporterSettings;
use super::{Export, Target};
use crate::cache::{Cache, CacheStatistics, Entry, Limits, Memo, Note, Pin};
use crate::handle::{Handle, SIZE as HANDLE_SIZE};
use crate::identity::Nonce;
use crate::lease::Exports;
use crate::ledger::event::RetireReason;
use crate::ledger::{Event, Figures};
use crate::sys;
use crate::transfer::socket::server::Server;
use crate::transfer::{Exchange, Mode, yama_scope};
use crate::{Error, Result};

use describe::content;

type RegionEntry = Entry<u64, RegionExport>;

/// A note's flag: the block is in use until it is freed.
const KEPT: u64 = 1;
/// A note's flag: a device may import the memory.
const DEVICE: u64 = 2;

/// All that the exporter has in one process.
#[derive(Debug)]
pub(crate) struct State {
    /// The process that made it, as [`fork::generation`] counts.
    generation: u32,
    exports: Arc<Exports>,
    cache: Cache<u64, RegionExport>,
    closing: Arc<Closing>,
    memo: Memo,
    /// By ledger slot: the id of its region.
    regions: Chunks<AtomicU64>,
    server: Lock<Option<Server>>,
    served: bool,
    fd_limit: u64,
    settings: ExporterSettings,
    /// A secret of 128 bits that only handles contain.
    key: [u8; 16],
}

impl State {
    /// `procfs` says whether the memory that is exported first can be opened through `/proc`.
    pub(super) fn new(settings: &ExporterSettings, procfs: bool) -> Result<Arc<Self>> {
        let served = wants_socket(&settings.exchange, procfs);
        let exports = Exports::new(settings.slots, served)?;
        match sys::set_ptracer(settings.ptracer) {
            Ok(()) => {}
            // There is no yama, so nothing to be excepted from.
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
        let listener = if served { Some(Server::bind(exports.ledger.nonce())?) } else { None };
        let state = Arc::new(Self {
            generation: fork::generation(),
            exports,
            cache: Cache::new(limits, 8),
            closing: Arc::default(),
            memo: Memo::new(),
            regions: Chunks::new(),
            server: Lock::new(None),
            served,
            fd_limit: sys::descriptor_limit() / 2,
            settings: settings.clone(),
            key: sys::random().map_err(|errno| Error::system("getrandom", errno))?,
        });
        if let Some(listener) = listener {
            let source = Source { exports: Arc::clone(&state.exports), state: Arc::downgrade(&state) };
            *state.server.lock() = Some(Server::serve(listener, state.nonce(), Arc::new(source))?);
        }
        tracing::debug!(nonce = %state.nonce(), served, "ledger made");
        Ok(state)
    }

    /// Whether this process made it.
    #[inline]
    pub(super) fn belongs_here(&self) -> bool {
        self.generation == fork::generation()
    }

    pub(super) fn nonce(&self) -> Nonce {
        self.exports.ledger.nonce()
    }

    pub(super) const fn is_served(&self) -> bool {
        self.served
    }

    const fn hash(address: Address) -> u64 {
        // Blocks are at least 8 bytes apart; the multiplication spreads what is left.
        (address.to_bits() >> 3).wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 40
    }

    /// The handle of a block that this thread exported before and that was not freed since, with a pin on its region.
    /// Borrowed, so that the 256 bytes are copied once, to where the caller wants them.
    #[inline]
    pub(super) fn hit(&self, address: Address) -> Option<(&[u8; HANDLE_SIZE], Pin)> {
        let memo = self.memo.current()?;
        let (bytes, note) = memo.by_key(Self::hash(address), address.to_bits())?;
        // SAFETY: the note was made in this thread's table for the pins of this state.
        if !unsafe { note.pin.pin_stamped(note.stamp) } {
            return None;
        }
        let pin = Pin::new(memo.thread(), note.pin);
        // SAFETY: `word` is a generation in the ledger, which stays mapped as long as this state.
        if unsafe { note.word.as_ref() }.load(Ordering::Acquire) != note.generation {
            self.cache.pins().give_back(pin, Some(memo.thread()));
            return None;
        }
        memo.count_hit();
        Some((bytes, pin))
    }

    fn remember(&self, entry: &RegionEntry, address: Address, block: &BlockExport) {
        let Some(memo) = self.memo.current_or_new() else { return };
        let Some((_, pin)) = self.cache.pins().cell(entry.number()) else { return };
        let note = Note {
            key: address.to_bits(),
            pin,
            stamp: entry.stamp(),
            word: self.exports.ledger.generation_word(block.slot),
            generation: block.generation,
            lease: None,
            base: u64::from(block.slot),
            length: entry.value.region.id().get(),
            flags: if block.kept { KEPT } else { 0 }
                | if block.handle.may_be_imported_by_device() { DEVICE } else { 0 },
            object: None,
        };
        memo.store(Self::hash(address), block.handle.as_bytes(), note);
    }

    #[inline]
    pub(super) fn put(&self, pin: Pin) {
        self.cache.pins().give_back(pin, thread::current());
    }

    /// Exports what holds `address`.
    #[cold]
    pub(super) fn export(&self, address: Address) -> Result<Export<'_>> {
        let found = tracker::find(address).ok_or(Error::NotTracked { address })?;
        let owner = found.owner.guard().ok_or(Error::NotTracked { address })?;
        let target = match owner.pool() {
            Some(pool) => {
                let block = pool.block_at(address)?;
                Target { region: found.region, start: block.address, size: block.size, is_region: false }
            }
            None => Target::whole(found.region),
        };
        loop {
            let pinned =
                self.cache.get_or_make(&found.region.id().get(), found.region.size() as u64, || {
                    let provider = owner.provider().ok_or(Error::NotTracked { address })?;
                    self.export_region(&found, provider)
                })?;
            let entry = pinned.entry();
            // From here on the observer finds the entry when the region is freed.
            if let Err(error) = tracker::mark_exported(found.number, found.region) {
                drop(pinned);
                self.retire_region(&found.region);
                return Err(error.into());
            }
            let mut blocks = entry.value.blocks.lock();
            if blocks.closed {
                // Evicted between the look-up and here: make it again.
                drop(blocks);
                continue;
            }
            let key = target.start.to_bits();
            let handle = match blocks.get_mut(key, &self.exports) {
                Some(block) => block.handle,
                None => {
                    // What can fail does so before anything is published.
                    blocks.reserve(&self.exports)?;
                    let block = self.publish(entry, &target)?;
                    let handle = block.handle;
                    let slot = (block.slot, block.generation);
                    self.remember(entry, target.start, &block);
                    blocks.insert(key, block);
                    // The block may have been freed by somebody who should not have; then it is not exported.
                    let marked = owner.pool().map_or(Ok(()), |pool| {
                        let deferred = pool.deferred_free().ok_or(missing("exporting blocks"))?;
                        deferred.mark_exported(target.start)
                    });
                    if let Err(error) = marked {
                        blocks.remove(key);
                        // Nobody has seen its handle.
                        if self.exports.ledger.retire(slot.0, slot.1) {
                            self.exports.ledger.give_back(slot.0);
                        }
                        return Err(error.into());
                    }
                    handle
                }
            };
            if let Some(block) = blocks.get_mut(key, &self.exports) {
                self.remember(entry, target.start, block);
            }
            drop(blocks);
            self.exports.ledger.publish_statistics(true, || self.figures());
            failpoint!("export.ready");
            return Ok(Export::new(self, target.start, handle, pinned.into_pin()));
        }
    }

    fn export_region(&self, found: &Found, provider: &umf_core::ProviderRef) -> Result<RegionExport> {
        let region = found.region;
        let refuse =
            |why| Error::NotExportable { kind: provider.kind(), name: provider.name().to_owned(), why };
        let ability = provider
            .export()
            .ok_or_else(|| refuse("it has no memory that other processes can map; use shared memory"))?;
        if ability.uses_fd_per_export()
            && self.settings.max_created_handles == 0
            && self.cache.counters().entries.load(Ordering::Relaxed) > self.fd_limit
        {
            // No limit was set, but the process's own is near: idle exports make room.
            self.cache.evict_idle(|_| true);
        }
        // One native export of a region at a time.
        self.closing.wait_for(region.id().get());
        let native = match self.exports.native_of(region.id().get()) {
            // Evicted while others had it open, and so still with the others.
            Some(native) => native,
            None => {
                let provider = provider.clone();
                let native = Some(ability.export(&region)?);
                failpoint!("export.made");
                let mut native = NativeGuard { region, provider, native, identity: None };
                if let Some(fd) = native.fd() {
                    let identity = sys::identity(fd);
                    let identity =
                        identity.map_err(|errno| Error::system("fstat of the exported fd", errno))?;
                    native.identity = Some(identity);
                }
                Arc::new(native)
            }
        };
        let slot = self.exports.take()?;
        // What can fail does so before anything is published.
        let known = self.regions.get_or_grow(slot).inspect_err(|_| self.exports.ledger.give_back(slot))?;
        known.store(region.id().get(), Ordering::Release);
        let mut export = RegionExport {
            region,
            kind: provider.kind(),
            native: Some(native),
            opens_through_procfs: ability.fd_opens_through_procfs(),
            exports: Arc::clone(&self.exports),
            slot,
            generation: self.exports.ledger.next_generation(slot),
            leaving: Lock::new(RetireReason::Evicted),
            blocks: Lock::new(Blocks::default()),
            closing: Arc::clone(&self.closing),
        };
        export.generation = self.exports.ledger.publish(slot, &content(&export, &Target::whole(region)));
        Ok(export)
    }

    fn publish(&self, entry: &RegionEntry, target: &Target) -> Result<BlockExport> {
        let export = &entry.value;
        let slot = self.exports.take()?;
        match self.regions.get_or_grow(slot) {
            Ok(word) => word.store(export.region.id().get(), Ordering::Release),
            Err(error) => {
                self.exports.ledger.give_back(slot);
                return Err(error.into());
            }
        }
        let generation = self.exports.ledger.publish(slot, &content(export, target));
        let (region, bytes) = (export.region.id().get(), target.size as u64);
        self.exports.ledger.record(Event::Export { slot, generation, region, bytes });
        let handle = self.encode(export, target, slot, generation);
        Ok(BlockExport { slot, generation, handle, kept: false })
    }

    /// Takes over a use of the handle's block until the block is freed: `false` if it is not wanted, because the block has
    /// such a use already or was freed.
    pub(super) fn keep(&self, address: Address, handle: &Handle) -> bool {
        if !self.belongs_here() {
            // A parent's: its locks are taken for ever here, and its blocks are not freed here.
            return false;
        }
        // Whether it was kept before.
        let before = self.cache.peek(&handle.region_id(), |entry| {
            let mut blocks = entry.value.blocks.lock();
            let block = blocks.get_mut(address.to_bits(), &self.exports)?;
            let is_same = block.generation == handle.generation() && block.slot == handle.slot();
            is_same.then(|| core::mem::replace(&mut block.kept, true))
        });
        let before = before.flatten();
        // (Not of what is exported at this address by now, which nobody keeps: it would be let go when it is freed.)
        if before.is_some()
            && let Some(memo) = self.memo.current()
        {
            memo.flag(Self::hash(address), address.to_bits(), KEPT);
        }
        before == Some(false)
    }

    /// The handle of a block that this thread found to be kept before and that was not freed since.
    pub(super) fn kept(&self, address: Address) -> Option<Handle> {
        let memo = self.memo.current()?;
        let (bytes, note) = memo.by_key(Self::hash(address), address.to_bits())?;
        // SAFETY: `word` is a generation in the ledger, which stays mapped as long as this state.
        let current = unsafe { note.word.as_ref() }.load(Ordering::Acquire) == note.generation;
        (current && note.flags & KEPT != 0).then(|| {
            memo.count_hit();
            Handle::from_known(bytes)
        })
    }

    /// The fd behind a current export.
    pub(super) fn fd_of(&self, slot: u32, generation: u64) -> core::result::Result<Arc<OwnedFd>, u64> {
        let now = || self.exports.ledger.generation_of(slot).unwrap_or(0);
        let region = self.regions.get(slot).map_or(0, |word| word.load(Ordering::Acquire));
        let fd = self
            .cache
            .peek(&region, |entry| entry.value.native.as_ref().and_then(|native| native.checked_fd()))
            .flatten();
        match fd {
            // Read after the fd was taken: it was the right one then.
            Some(Ok(fd)) if now() == generation => Ok(fd),
            Some(Err(error)) => {
                tracing::warn!(slot, %error, "cannot send an exported file to an importer");
                Err(0)
            }
            _ => Err(now()),
        }
    }

    pub(super) fn evict_idle(&self) -> usize {
        self.cache.evict_idle(|_| true)
    }

    pub(super) fn statistics(&self) -> CacheStatistics {
        // The ledger and the lease table.
        let mut fds = 2;
        self.cache.for_each(|entry| {
            fds += u64::from(entry.value.native.as_ref().is_some_and(|native| native.fd().is_some()));
        });
        CacheStatistics { fds, hits: self.memo.hits(), ..self.cache.statistics() }
    }

    /// What the ledger publishes about this exporter.
    fn figures(&self) -> Figures {
        let (leases, held_bytes) = self.exports.left();
        let importers = self.exports.leases.importers() as u64;
        Figures { exporter: Some(self.statistics()), leases, held_bytes, importers, ..Figures::default() }
    }

    /// Retires everything and stops the socket. The exporter is being dropped.
    pub(super) fn close(&self) {
        let mut regions = Vec::new();
        self.cache.for_each(|entry| regions.push(entry.value.region));
        for region in regions {
            self.end_region(&region, RetireReason::ExporterDropped);
        }
        self.exports.outlive_exporter();
        let server = self.server.lock().take();
        drop(server);
    }
}

/// Whether importers will need the socket, as far as can be told at the first export.
///
/// `procfs` serves the same user at every yama scope, so yama alone is a reason only for memory that cannot be opened
/// that way. An undumpable process and one in a pid namespace of its own cannot be reached by number.
fn wants_socket(exchange: &Exchange, procfs: bool) -> bool {
    match exchange {
        Exchange::Order(modes) => modes.contains(&Mode::Socket),
        Exchange::Auto => {
            !sys::is_dumpable()
                || (!procfs && yama_scope() > 0)
                || !crate::identity::ProcessIdentity::current().is_in_initial_pid_namespace()
        }
    }
}
