//! Opening a handle: bytes, memo, or else decoding, producer, ledger, fd, mapping.

use core::sync::atomic::Ordering;
use std::sync::Arc;

use umf_core::step::{Step, step};
use umf_core::{Access, Address, ImportRequest};

use super::Inner;
use super::mapping::{Mapping, Place};
use super::producer::Producer;
use super::region::{ImportedRegion, RegionKey};
use crate::cache::{CacheStatistics, Note, Pin};
use crate::handle::{Handle, SIZE};
use crate::identity;
use crate::{Error, Result};

/// Producers without an open region that are remembered beyond this number are forgotten, and found again when
/// they are needed.
const IDLE_PRODUCERS: usize = 64;

/// Flags among the notes of a remembered handle.
const HOST_ACCESSIBLE: u64 = 1;
const READ_ONLY: u64 = 2;

impl Inner {
    #[inline]
    pub(super) fn open(&self, bytes: &[u8; SIZE], access: Access) -> Result<Mapping<'_>> {
        if let Some(memo) = self.memo[access as usize].current()
            && let Some(note) = memo.by_bytes(hash(bytes), bytes)
            // SAFETY: the note was made in this thread's table for the pins of this importer.
            && unsafe { note.pin.pin_stamped(note.stamp) }
        {
            let place = Place {
                pin: Pin::new(memo.thread(), note.pin),
                base: Address::from_bits(note.base),
                length: note.length as usize,
                generation: note.generation,
                word: note.word,
                host_accessible: note.flags & HOST_ACCESSIBLE != 0,
                read_only: note.flags & READ_ONLY != 0,
            };
            // SAFETY: the note was stored by `remember` for an entry with this stamp; the pin keeps that entry, which
            // keeps region and ledger mapped.
            let mapping = unsafe { Mapping::new(self, place) };
            if mapping.is_current() {
                memo.count_hit();
                return Ok(mapping);
            }
        }
        self.open_anew(bytes, access)
    }

    #[cold]
    fn open_anew(&self, bytes: &[u8; SIZE], access: Access) -> Result<Mapping<'_>> {
        let handle = Handle::from_bytes(bytes)?;
        let opened = self.open_checked(&handle, access);
        match &opened {
            Ok(_) => {}
            Err(Error::Stale { .. }) => {
                self.cache.counters().stale.fetch_add(1, Ordering::Relaxed);
                // A mapping of a region that is gone as a whole is of no use to anybody.
                for access in [Access::ReadOnly, Access::ReadWrite] {
                    let key = RegionKey { nonce: handle.nonce(), region: handle.region_id(), access };
                    self.cache.evict_if(&key, ImportedRegion::is_gone);
                }
            }
            Err(Error::ProducerGone { .. } | Error::ProducerReplaced { .. }) => {
                self.forget_producer(&handle);
            }
            Err(error) => tracing::debug!(?handle, %error, "open failed"),
        }
        opened
    }

    fn open_checked(&self, handle: &Handle, access: Access) -> Result<Mapping<'_>> {
        if identity::boot_id().contradicts(handle.boot_id()) {
            return Err(Error::OtherBoot);
        }
        let kind = handle.provider_kind();
        let import = self.imports.lock().get(&kind).cloned().ok_or(Error::UnknownProvider { kind })?;
        if access == Access::ReadWrite && handle.is_read_only() {
            return Err(Error::ReadOnly);
        }
        let producer = self.producer(handle)?;
        let slot = producer.slot(handle)?;
        let content = slot.read(handle.generation()).map_err(|now| producer.stale(handle, now))?;
        let same = content.fd == handle.data_fd().unwrap_or(-1)
            && (content.device, content.inode) == handle.data_identity()
            && content.region_id == handle.region_id()
            && content.region_size == handle.region_size()
            && content.offset == handle.data_offset();
        if !same {
            let what = "the handle and its ledger disagree about the memory (one of them was forged)";
            return Err(Error::Misbehaved { pid: producer.pid(), what });
        }
        let key = RegionKey { nonce: handle.nonce(), region: content.region_id, access };
        let pinned = self.cache.get_or_make(&key, handle.region_size(), || {
            let fd = producer.fetch(handle, &self.settings.exchange)?;
            let size = usize::try_from(handle.region_size()).unwrap_or(usize::MAX);
            let mut request = ImportRequest::new(fd, handle.data_offset(), size, access);
            let native = handle.native();
            request.native[..native.len()].copy_from_slice(native);
            request.native_len = native.len();
            request.allocation_id = handle.allocation_id();
            step(Step::ImportFetched);
            let imported = import.import(request)?;
            step(Step::ImportMapped);
            Ok(ImportedRegion {
                producer: Arc::clone(&producer),
                imported,
                import: Arc::clone(&import),
                slot: content.region_slot,
                generation: content.region_generation,
            })
        })?;
        let entry = pinned.entry();
        let imported = &entry.value.imported;
        let end = handle.offset() + handle.length();
        let base = imported.base.checked_add(handle.offset()).filter(|_| end <= imported.size as u64);
        let Some(base) = base else {
            return Err(Error::Misbehaved { pid: producer.pid(), what: "the block reaches past its region" });
        };
        // The entry's own producer: the one found above may be another object for the same process, and go.
        let word = entry.value.producer.slot(handle)?.generation_word();
        let length = usize::try_from(handle.length()).unwrap_or(0);
        let flags = if imported.host_accessible { HOST_ACCESSIBLE } else { 0 }
            | if imported.read_only || access == Access::ReadOnly { READ_ONLY } else { 0 };
        let (stamp, number) = (entry.stamp(), entry.number());
        let place = Place {
            pin: pinned.into_pin(),
            base,
            length,
            generation: handle.generation(),
            word,
            host_accessible: flags & HOST_ACCESSIBLE != 0,
            read_only: flags & READ_ONLY != 0,
        };
        // SAFETY: the pin keeps the entry, and with it region and ledger; `word` is the generation of its slot.
        let mapping = unsafe { Mapping::new(self, place) };
        // It is held now; if it was retired before that, this sees it.
        if !mapping.is_current() {
            return Err(producer.stale(handle, mapping.generation_now()));
        }
        if let Some(memo) = self.memo[access as usize].current_or_new()
            && let Some((_, pin)) = self.cache.pins().cell(number)
        {
            let note = Note {
                key: u64::from(handle.slot()) << 32 | u64::from(number),
                pin,
                stamp,
                word,
                generation: handle.generation(),
                base: base.to_bits(),
                length: length as u64,
                flags,
            };
            memo.store(hash(handle.as_bytes()), handle.as_bytes(), note);
        }
        step(Step::ImportOpened);
        Ok(mapping)
    }

    /// The producer of a handle, found if it is not known.
    fn producer(&self, handle: &Handle) -> Result<Arc<Producer>> {
        if let Some(producer) = self.producers.lock().get(&handle.nonce()) {
            return Ok(Arc::clone(producer));
        }
        let found = Arc::new(Producer::contact(handle, &self.settings.exchange, self.settings.open_timeout)?);
        let mut forgotten = Vec::new();
        let mut producers = self.producers.lock();
        // Those that nobody uses any more: ended ones always, others when they are many.
        let many = producers.len() >= IDLE_PRODUCERS;
        producers.retain(|_, producer| {
            let idle = Arc::strong_count(producer) == 1;
            let keep = !idle || !(many || producer.has_ended());
            if !keep {
                forgotten.push(Arc::clone(producer));
            }
            keep
        });
        let producer = Arc::clone(producers.entry(handle.nonce()).or_insert(found));
        drop(producers);
        drop(forgotten);
        Ok(producer)
    }

    fn forget_producer(&self, handle: &Handle) {
        let known = self.producers.lock().remove(&handle.nonce());
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
        evicted
    }

    pub(super) fn statistics(&self) -> CacheStatistics {
        let fds = self.producers.lock().values().map(|producer| producer.fds()).sum();
        let hits = self.memo.iter().map(crate::cache::Memo::hits).sum();
        CacheStatistics { fds, hits, ..self.cache.statistics() }
    }

    pub(super) const fn pins(&self) -> &crate::cache::Pins {
        self.cache.pins()
    }
}

/// The checksum is as good a hash as any. (That it is right was checked when the handle was remembered.)
#[inline]
fn hash(bytes: &[u8; SIZE]) -> u64 {
    u64::from(u32::from_le_bytes([bytes[SIZE - 4], bytes[SIZE - 3], bytes[SIZE - 2], bytes[SIZE - 1]]))
}
