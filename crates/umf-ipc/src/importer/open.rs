//! Steps of an open. The fast path finds the handle's bytes in the thread's memo. The slow path
//! finds the producer, compares its ledger with the handle, and finds or maps the region.

use core::mem::MaybeUninit;
use core::ptr::NonNull;
use core::sync::atomic::Ordering;
use std::sync::Arc;

use umf_core::{Access, Address};
use umf_sync::failpoint;

use super::ImporterInner;
use super::mapping::{Mapping, OpenBlock};
use super::producer::{self, Producer};
use super::region::{Extent, ImportedRegion, Key, PinnedMapping, Window};
use crate::cache::{CacheStatistics, Memo, MemoEntry, Pin};
use crate::handle::{Handle, SIZE};
use crate::identity;
use crate::ledger::PublishedCounters;
use crate::transfer::Exchange;
use crate::{Error, Result, protocol};

/// The number of producers above which those without a cached mapping are disconnected.
const IDLE_PRODUCERS: usize = 64;

impl ImporterInner {
    #[inline]
    pub(super) fn open(&self, handle: &Handle, access: Access) -> Result<Mapping<'_>> {
        match self.open_fast(handle.as_bytes(), access, |_, _| Some(())) {
            // SAFETY: `open_fast` returns a pin and a lease of the block.
            Some(((), pin, block)) => Ok(unsafe { Mapping::new(self, pin, *block) }),
            None => self.open_slow(handle, access),
        }
    }

    #[inline]
    pub(super) fn open_bytes(&self, bytes: &[u8; SIZE], access: Access) -> Result<Mapping<'_>> {
        match self.open_fast(bytes, access, |_, _| Some(())) {
            // SAFETY: as above.
            Some(((), pin, block)) => Ok(unsafe { Mapping::new(self, pin, *block) }),
            None => self.open_slow(&Handle::from_bytes(bytes)?, access),
        }
    }

    /// As [`Self::open_bytes`] for a handle in this thread's memo, but writes the mapping into the
    /// memory that `place` returns for the block's address and length. Returns whether it was
    /// written.
    #[inline(always)]
    pub(super) fn open_fast_into<'i, 'p>(
        &'i self,
        bytes: &[u8; SIZE],
        access: Access,
        place: impl FnOnce(Address, usize) -> Option<&'p mut MaybeUninit<Mapping<'i>>>,
    ) -> bool
    where
        'i: 'p,
    {
        let opened = self.open_fast(bytes, access, place);
        // SAFETY: `open_fast` returns a pin and a lease of the block.
        let is_open = opened.map(|(into, pin, block)| into.write(unsafe { Mapping::new(self, pin, *block) }));
        is_open.is_some()
    }

    /// Opens a handle that is in this thread's memo. Returns the pin and the block, of which a
    /// lease was counted, and what `admit` returns for the block's address and length. The caller
    /// builds the mapping where it stays: to copy one, a processor has to wait for the stores of
    /// its fields.
    #[inline(always)]
    fn open_fast<T>(
        &self,
        bytes: &[u8; SIZE],
        access: Access,
        admit: impl FnOnce(Address, usize) -> Option<T>,
    ) -> Option<(T, Pin, &OpenBlock)> {
        let memo = self.memo[access as usize].current()?;
        let note = memo.by_bytes(hash(bytes), bytes)?;
        let known = &note.value;
        let admitted = admit(known.base, known.length)?;
        // SAFETY: the note was made in this thread's table for the pins of this importer.
        if !unsafe { note.pin.pin_stamped(note.stamp) } {
            return None;
        }
        let pin = Pin::new(memo.thread(), note.pin);
        // Checked before the lease is counted: otherwise an importer that opens a stale handle
        // repeatedly would keep its block from being reclaimed. SAFETY: the note was stored by
        // `open_in` for the entry with this stamp. The pin keeps that entry, which keeps the region
        // and the ledger mapped, and the producer with its lease rows.
        if unsafe { known.word.as_ref() }.load(Ordering::Relaxed) != known.generation {
            self.pins().give_back(pin, Some(memo.thread()));
            return None;
        }
        if let Some(lease) = known.lease {
            // SAFETY: the pinned entry keeps the lease rows mapped.
            protocol::count_lease(unsafe { lease.word().as_ref() });
            failpoint!("lease.counted_again");
        }
        // SAFETY: the pinned entry keeps the ledger mapped.
        let is_current = protocol::is_current(unsafe { known.word.as_ref() }, known.generation);
        // SAFETY: the pinned entry keeps the lease table mapped.
        let is_collected =
            known.lease.is_some_and(|lease| protocol::is_collected(unsafe { lease.dead().as_ref() }));
        if is_current && !is_collected {
            memo.count_hit();
            return Some((admitted, pin, known));
        }
        // Releases the lease and the pin. SAFETY: the pin is this call's, the lease was counted
        // above, and `known` is of the pinned entry.
        drop(unsafe { Mapping::new(self, pin, *known) });
        None
    }

    /// Opens a handle that is not in this thread's memo, or that is stale.
    #[cold]
    fn open_slow(&self, handle: &Handle, access: Access) -> Result<Mapping<'_>> {
        self.sweep_if_due();
        let opened = self.retry_after_eviction(|| self.open_checked(handle, access));
        let opened = opened.map_err(|error| match error {
            Error::Stale { .. } if handle.has_ticket() && !self.settings.leases => Error::LeasesOff,
            Error::Stale { pid, slot, .. } if handle.has_ticket() => self.ticket_error(handle, pid, slot),
            error => error,
        });
        if let Err(error) = &opened {
            self.statistics_ledger.note_refused();
            self.clean_up_after(error, handle);
        }
        self.statistics_ledger.publish(|| PublishedCounters {
            importer: Some(self.statistics()),
            in_transit: producer::passed_on(),
            ..PublishedCounters::default()
        });
        opened
    }

    /// Returns the error of a handle with a ticket that cannot be claimed, and whose block was
    /// freed.
    fn ticket_error(&self, handle: &Handle, pid: u32, slot: u32) -> Error {
        let is_cancelled = || {
            let producer = self.producer(handle).ok()?;
            producer.is_cancelled(handle.ticket()?, &self.settings.exchange).ok()
        };
        if is_cancelled() == Some(true) {
            Error::TicketExpired { pid, slot }
        } else {
            Error::TicketClaimed { pid, slot }
        }
    }

    /// Removes the cached mappings and the producer that are useless after this error.
    fn clean_up_after(&self, error: &Error, handle: &Handle) {
        match error {
            Error::Stale { .. }
            | Error::TicketClaimed { .. }
            | Error::TicketExpired { .. }
            | Error::LeasesOff => {
                self.cache.counters().stale.fetch_add(1, Ordering::Relaxed);
                // The whole region may have been freed.
                let window = self.window_size(handle).ok().flatten();
                let window = window.and_then(|size| Window::of(handle, size));
                let extents =
                    [Some(Extent::Region(handle.region_id())), window.map(|window| window.extent(handle))];
                for extent in extents.into_iter().flatten() {
                    for access in [Access::ReadOnly, Access::ReadWrite] {
                        let key = Key { producer: handle.producer(), extent, access };
                        self.cache.evict_if(&key, ImportedRegion::is_gone);
                    }
                }
            }
            Error::ProducerGone { .. } | Error::ProducerReplaced { .. } => self.disconnect(handle),
            error => tracing::debug!(?handle, %error, "open failed"),
        }
    }

    /// Checks a handle against its producer's ledger, then finds or maps its region and opens its
    /// block.
    fn open_checked(&self, handle: &Handle, access: Access) -> Result<Mapping<'_>> {
        if identity::boot_id().half().contradicts(handle.boot()) {
            return Err(Error::OtherBoot);
        }
        if access == Access::ReadWrite && handle.is_read_only() {
            return Err(Error::ReadOnly);
        }
        if let Some(pinned) = self.find_memoized_window(handle, access) {
            return self.open_in(pinned, handle, access);
        }
        let window = self.window_size(handle)?;
        let producer = self.producer(handle)?;
        producer.content(handle)?;
        let window =
            window.filter(|_| producer.has_windows(handle)).and_then(|size| Window::of(handle, size));
        let pinned = match window {
            Some(window) => match self.open_window(&producer, handle, window, access)? {
                Some(pinned) => pinned,
                None => self.open_region(&producer, handle, access)?,
            },
            None => self.open_region(&producer, handle, access)?,
        };
        let pinned = PinnedMapping::new(self, pinned);
        self.memoize_window(handle, access, &pinned);
        self.open_in(pinned, handle, access)
    }

    /// Opens a handle's block in a mapping that contains its region: acquires a lease, checks that
    /// the handle is current, and adds the open block to this thread's memo.
    fn open_in<'i>(
        &'i self,
        pinned: PinnedMapping<'i>,
        handle: &Handle,
        access: Access,
    ) -> Result<Mapping<'i>> {
        let region = pinned.region();
        // The object that the pin keeps. `self.producers` may have another one for the same
        // process.
        let producer = &region.producer;
        let content = producer.content(handle)?;
        region.note_recent(content.region_slot, content.region_generation);
        let past_region =
            Error::Misbehaved { pid: producer.pid(), what: "the block reaches past its region" };
        let base = pinned.address_of(handle).ok_or(past_region)?;
        let word = producer.slot(handle)?.generation_word();
        let lease = if self.settings.leases {
            Some(producer.lease(handle.slot(), &self.settings.exchange)?)
        } else {
            None
        };
        let block = OpenBlock {
            lease,
            base,
            length: usize::try_from(handle.requested()).unwrap_or(0),
            generation: handle.generation(),
            word,
            flags: region.flags(access),
            region: NonNull::from(region),
        };
        let (stamp, number) = (pinned.stamp, pinned.number);
        let ticket = handle.ticket().filter(|_| lease.is_some());
        let ticket = ticket.map(|ticket| (ticket, Arc::clone(producer)));
        // SAFETY: the pin keeps the entry, and with it region and ledger; `word` is the generation
        // of its slot, and `region` the entry's value.
        let mapping = unsafe { Mapping::new(self, pinned.into_pin(), block) };
        if let Some((ticket, producer)) = ticket
            && producer.claim(ticket, &self.settings.exchange)?
        {
            // What was read before may have been of a slot that was being reused.
            producer.content(handle)?;
            return Ok(mapping.with_claimed_ticket());
        }
        // If the producer retired the export before it could see the lease, this sees that.
        if !mapping.is_current_since_lease() {
            failpoint!("lease.too_late");
            let (pid, slot, generation) = (handle.pid(), handle.slot(), handle.generation());
            return Err(Error::Stale { pid, slot, generation, now: mapping.generation_now() });
        }
        // The memory may be released, unless the producer was still alive.
        if mapping.is_collected() {
            return Err(Error::ProducerGone { pid: handle.pid() });
        }
        if handle.has_ticket() {
            return Ok(mapping);
        }
        if let Some(memo) = self.memo[access as usize].current_or_new()
            && let Some((_, pin)) = self.cache.pins().cell(number)
        {
            let key = u64::from(handle.slot()) << 32 | u64::from(number);
            let note = MemoEntry { key, pin, stamp, value: block };
            memo.store(hash(handle.as_bytes()), handle.as_bytes(), note);
        }
        failpoint!("import.opened");
        Ok(mapping)
    }

    pub(super) const fn exchange(&self) -> &Exchange {
        &self.settings.exchange
    }

    /// Returns the producer of a handle. Connects to it if it is not known.
    fn producer(&self, handle: &Handle) -> Result<Arc<Producer>> {
        if let Some(producer) = self.producers.lock().get(&handle.producer()) {
            return Ok(Arc::clone(producer));
        }
        // What is mapped of it can be opened, if it was sent with a ticket or is not collected.
        if let Some(producer) = self.dead.find(handle) {
            return Ok(producer);
        }
        let found = Arc::new(Producer::connect(handle, &self.settings.exchange, &self.settings.channel())?);
        // Dropped without the lock.
        let mut disconnected = Vec::new();
        let mut producers = self.producers.lock();
        // Disconnects from producers without a cached mapping: ended ones always, others if there
        // are many.
        let are_many = producers.len() >= IDLE_PRODUCERS;
        producers.retain(|_, producer| {
            let is_idle = Arc::strong_count(producer) == 1;
            let retains = !is_idle || !(are_many || producer.has_ended());
            if !retains {
                disconnected.push(Arc::clone(producer));
            }
            retains
        });
        let producer = Arc::clone(producers.entry(handle.producer()).or_insert(found));
        drop(producers);
        drop(disconnected);
        Ok(producer)
    }

    /// Disconnects from the producer of a handle, which is gone, and closes its idle mappings.
    fn disconnect(&self, handle: &Handle) {
        let known = self.producers.lock().remove(&handle.producer());
        if let Some(producer) = known {
            self.dead.add(producer);
        }
        self.sweep(true);
    }

    pub(super) fn evict_idle(&self) -> usize {
        self.sweep(true);
        let evicted = self.cache.evict_idle(|_| true);
        self.dead.prune();
        // Dropped without the lock.
        let mut disconnected = Vec::new();
        self.producers.lock().retain(|_, producer| {
            let is_in_use = Arc::strong_count(producer) > 1;
            if !is_in_use {
                disconnected.push(Arc::clone(producer));
            }
            is_in_use
        });
        if self.producers.lock().is_empty() {
            self.statistics_ledger.close();
        }
        evicted
    }

    pub(super) fn statistics(&self) -> CacheStatistics {
        let fds = self.producers.lock().values().map(|producer| producer.fds()).sum::<u64>()
            + self.dead.fds()
            + self.statistics_ledger.fds();
        let hits = self.memo.iter().map(Memo::hits).sum();
        CacheStatistics { fds, hits, ..self.cache.statistics() }
    }

    pub(super) const fn pins(&self) -> &crate::cache::Pins {
        self.cache.pins()
    }
}

/// Returns the handle's checksum as its hash. The memo has only handles whose checksum is right.
#[inline]
fn hash(bytes: &[u8; SIZE]) -> u64 {
    u64::from(u32::from_le_bytes([bytes[SIZE - 4], bytes[SIZE - 3], bytes[SIZE - 2], bytes[SIZE - 1]]))
}
