//! Opening a handle: bytes, memo, or else decoding, producer, ledger, fd, mapping.

use core::mem::MaybeUninit;
use core::ptr::NonNull;
use core::sync::atomic::Ordering;
use std::sync::Arc;

use umf_core::{Access, Address};
use umf_sync::failpoint;

use super::ImporterInner;
use super::mapping::{HOST_ACCESSIBLE, Mapping, OpenBlock, READ_ONLY};
use super::producer::Producer;
use super::region::{Extent, ImportedRegion, Key, PinnedMapping, Window};
use crate::cache::{CacheStatistics, Memo, MemoEntry, Pin};
use crate::handle::{Handle, SIZE};
use crate::identity;
use crate::ledger::PublishedCounters;
use crate::{Error, Result, protocol};

/// Producers without an open region that are remembered beyond this number are forgotten, and found
/// again when they are needed.
const IDLE_PRODUCERS: usize = 64;

impl ImporterInner {
    #[inline]
    pub(super) fn open(&self, handle: &Handle, access: Access) -> Result<Mapping<'_>> {
        match self.open_fast(handle.as_bytes(), access) {
            Some(mapping) => Ok(mapping),
            None => self.open_slow(handle, access),
        }
    }

    #[inline]
    pub(super) fn open_bytes(&self, bytes: &[u8; SIZE], access: Access) -> Result<Mapping<'_>> {
        match self.open_fast(bytes, access) {
            Some(mapping) => Ok(mapping),
            None => self.open_slow(&Handle::from_bytes(bytes)?, access),
        }
    }

    /// Opens what this thread opened before.
    #[inline]
    fn open_fast(&self, bytes: &[u8; SIZE], access: Access) -> Option<Mapping<'_>> {
        let mut mapping = MaybeUninit::uninit();
        let is_open = self.open_fast_into(bytes, access, |_, _| Some(&mut mapping));
        // SAFETY: it was written if there is one.
        is_open.then(|| unsafe { mapping.assume_init() })
    }

    /// The same, into the place that `place` yields for the address and length of the block: the
    /// mapping is written there at once, and not moved. Says whether there is one.
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
        if let Some(memo) = self.memo[access as usize].current()
            && let Some(note) = memo.by_bytes(hash(bytes), bytes)
            && let known = &note.value
            && let Some(into) = place(known.base, known.length)
            // SAFETY: the note was made in this thread's table for the pins of this importer.
            && unsafe { note.pin.pin_stamped(note.stamp) }
        {
            let pin = Pin::new(memo.thread(), note.pin);
            // A stale handle that is opened again and again must not count each time: its block
            // would be held for ever. SAFETY: the note was stored by `finish` for the entry with
            // this stamp. The pin keeps that entry, which keeps region and ledger mapped, and the
            // producer with the rows that the lease is counted in.
            if unsafe { known.word.as_ref() }.load(Ordering::Relaxed) != known.generation {
                self.pins().give_back(pin, Some(memo.thread()));
                return false;
            }
            if let Some(lease) = known.lease {
                // SAFETY: as above.
                protocol::count_lease(unsafe { lease.word().as_ref() });
                failpoint!("lease.counted_again");
            }
            // SAFETY: as above.
            let mapping = unsafe { Mapping::new(self, pin, *known) };
            // (Otherwise dropping it takes lease and pin back.)
            if mapping.is_current_since_lease() {
                into.write(mapping);
                memo.count_hit();
                return true;
            }
        }
        false
    }

    #[cold]
    fn open_slow(&self, handle: &Handle, access: Access) -> Result<Mapping<'_>> {
        let opened = self.retry_after_eviction(|| self.open_checked(handle, access));
        if opened.is_err() {
            self.statistics_ledger.note_refused();
        }
        match &opened {
            Ok(_) => {}
            Err(Error::Stale { .. }) => {
                self.cache.counters().stale.fetch_add(1, Ordering::Relaxed);
                // A mapping of a region that was freed as a whole is of no use.
                let window = self.window_size(handle).ok().flatten();
                let window =
                    window.and_then(|size| Window::of(handle, size)).map(|window| window.extent(handle));
                for extent in [Some(Extent::Region(handle.region_id())), window].into_iter().flatten() {
                    for access in [Access::ReadOnly, Access::ReadWrite] {
                        let key = Key { producer: handle.producer(), extent, access };
                        self.cache.evict_if(&key, ImportedRegion::is_gone);
                    }
                }
            }
            Err(Error::ProducerGone { .. } | Error::ProducerReplaced { .. }) => {
                self.forget_producer(handle);
            }
            Err(error) => tracing::debug!(?handle, %error, "open failed"),
        }
        self.statistics_ledger.publish(|| PublishedCounters {
            importer: Some(self.statistics()),
            ..PublishedCounters::default()
        });
        opened
    }

    fn open_checked(&self, handle: &Handle, access: Access) -> Result<Mapping<'_>> {
        if identity::boot_id().half().contradicts(handle.boot()) {
            return Err(Error::OtherBoot);
        }
        if access == Access::ReadWrite && handle.is_read_only() {
            return Err(Error::ReadOnly);
        }
        if let Some(pinned_mapping) = self.known_window(handle, access) {
            return self.finish(handle, access, pinned_mapping);
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
        let pinned_mapping = PinnedMapping::new(self, pinned);
        self.remember_window(handle, access, &pinned_mapping);
        self.finish(handle, access, pinned_mapping)
    }

    /// Opens what a handle names in a mapping that holds it.
    fn finish<'i>(
        &'i self,
        handle: &Handle,
        access: Access,
        pinned_mapping: PinnedMapping<'i>,
    ) -> Result<Mapping<'i>> {
        let region = pinned_mapping.region();
        // The mapping's own producer: another object for the same process may go at any time.
        let producer = &region.producer;
        let content = producer.content(handle)?;
        region.note(content.region_slot, content.region_generation);
        let imported = &region.imported;
        let place = pinned_mapping.place(handle).filter(|place| {
            let end = place.checked_add(handle.length());
            end.is_some_and(|end| end <= imported.size as u64)
        });
        let Some(base) = place.and_then(|place| imported.base.checked_add(place)) else {
            return Err(Error::Misbehaved { pid: producer.pid(), what: "the block reaches past its region" });
        };
        let word = producer.slot(handle)?.generation_word();
        let length = usize::try_from(handle.requested()).unwrap_or(0);
        let is_read_only = imported.read_only || access == Access::ReadOnly;
        let flags = if imported.host_accessible { HOST_ACCESSIBLE } else { 0 }
            | if is_read_only { READ_ONLY } else { 0 };
        let needs_region = region.import.host_access().is_some() || region.import.transfer().is_some();
        let access_region = needs_region.then(|| NonNull::from(region));
        let lease = if self.settings.leases {
            Some(producer.lease(handle.slot(), &self.settings.exchange)?)
        } else {
            None
        };
        let (stamp, number) = (pinned_mapping.stamp, pinned_mapping.number);
        let block = OpenBlock {
            lease,
            base,
            length,
            generation: handle.generation(),
            word,
            flags,
            access_region,
            pid: handle.pid(),
            slot: handle.slot(),
        };
        // SAFETY: the pin keeps the entry, and with it region and ledger; `word` is the generation
        // of its slot, and `access_region` the entry's value.
        let mapping = unsafe { Mapping::new(self, pinned_mapping.into_pin(), block) };
        // It is leased now; if it was retired before that, this sees it.
        if !mapping.is_current_since_lease() {
            failpoint!("lease.too_late");
            let (pid, slot, generation) = (handle.pid(), handle.slot(), handle.generation());
            return Err(Error::Stale { pid, slot, generation, now: mapping.generation_now() });
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

    /// The producer of a handle, found if it is not known.
    fn producer(&self, handle: &Handle) -> Result<Arc<Producer>> {
        if let Some(producer) = self.producers.lock().get(&handle.producer()) {
            return Ok(Arc::clone(producer));
        }
        let found = Arc::new(Producer::connect(handle, &self.settings.exchange, self.settings.open_timeout)?);
        let mut forgotten = Vec::new();
        let mut producers = self.producers.lock();
        // Removes unused producers: ended ones always, others when there are many.
        let many = producers.len() >= IDLE_PRODUCERS;
        producers.retain(|_, producer| {
            let idle = Arc::strong_count(producer) == 1;
            let keep = !idle || !(many || producer.has_ended());
            if !keep {
                forgotten.push(Arc::clone(producer));
            }
            keep
        });
        let producer = Arc::clone(producers.entry(handle.producer()).or_insert(found));
        drop(producers);
        drop(forgotten);
        Ok(producer)
    }

    fn forget_producer(&self, handle: &Handle) {
        let known = self.producers.lock().remove(&handle.producer());
        if let Some(producer) = known {
            self.cache.evict_idle(|entry| Arc::ptr_eq(&entry.value.producer, &producer));
        }
    }

    pub(super) fn evict_idle(&self) -> usize {
        let evicted = self.cache.evict_idle(|_| true);
        let mut forgotten = Vec::new();
        self.producers.lock().retain(|_, producer| {
            let keep = Arc::strong_count(producer) > 1;
            if !keep {
                forgotten.push(Arc::clone(producer));
            }
            keep
        });
        if self.producers.lock().is_empty() {
            self.statistics_ledger.close();
        }
        evicted
    }

    pub(super) fn statistics(&self) -> CacheStatistics {
        let fds = self.producers.lock().values().map(|producer| producer.fds()).sum::<u64>()
            + self.statistics_ledger.fds();
        let hits = self.memo.iter().map(Memo::hits).sum();
        CacheStatistics { fds, hits, ..self.cache.statistics() }
    }

    pub(super) const fn pins(&self) -> &crate::cache::Pins {
        self.cache.pins()
    }
}

/// The checksum is as good a hash as any. (That it is right was checked when the handle was
/// remembered.)
#[inline]
fn hash(bytes: &[u8; SIZE]) -> u64 {
    u64::from(u32::from_le_bytes([bytes[SIZE - 4], bytes[SIZE - 3], bytes[SIZE - 2], bytes[SIZE - 1]]))
}
