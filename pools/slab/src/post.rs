//! How a free block gets from the thread that frees it to one that allocates: see `depot`.

use core::sync::atomic::Ordering;

use crate::SlabPool;
use crate::depot::Parcel;
use crate::reach::{UNBIASED, thread_word};
use crate::span::{Entry, Place, Span};
use crate::thread_cache::ThreadCache;

/// A thread fills a parcel with this part of what it may keep, at most.
const PART: usize = 8;

impl SlabPool {
    /// Whether a block of the span is for others rather than for the bins of thread number `index`. (A block that is a region is at
    /// home with nobody.)
    #[inline(always)]
    pub(crate) fn is_for_others(span: &Span, index: u32) -> bool {
        let home = span.owner.load(Ordering::Relaxed);
        home != thread_word(index) && home != 0 && span.bias.load(Ordering::Acquire) == UNBIASED
    }

    /// Puts a block into the thread's parcel, if there is room and `free` succeeds in freeing it. Inside.
    #[inline(always)]
    pub(crate) fn pack(
        &self,
        cache: &ThreadCache,
        (class, entry): (usize, Entry),
        free: impl FnOnce() -> Option<()>,
    ) -> Option<()> {
        let mut parcel = cache.outbox().take()?;
        let (size, is_large) = (self.classes.size(class), self.is_large(class));
        let most = if is_large {
            self.most_kept.load(Ordering::Relaxed) / PART
        } else {
            self.settings.small_cache_size / PART
        };
        let packed = if parcel.fits(size, is_large, most) { free() } else { None };
        if packed.is_some() {
            parcel.push(class, entry, size, is_large);
            cache.bin(class).count_free();
        }
        cache.outbox().replace(Some(parcel));
        packed
    }

    /// Puts a block, which was freed, where others find it, if it is for them; yields whether it was. The caller is not inside.
    pub(crate) fn post(&self, place: Place<'_>, class: usize, entry: Entry) -> bool {
        let Some((index, cache)) = self.equipped(class) else { return false };
        if !Self::is_for_others(place.span, index) {
            return false;
        }
        loop {
            let parcel = {
                let _inside = self.inside(cache);
                if self.pack(cache, (class, entry), || Some(())).is_some() {
                    return true;
                }
                cache.outbox().take()
            };
            let empty = match parcel {
                // The block alone is too much.
                Some(parcel) if parcel.is_empty() => {
                    self.set_outbox(cache, parcel);
                    return false;
                }
                Some(parcel) => self.send(parcel),
                None => self.depot.take_empty(),
            };
            let Some(empty) = empty.or_else(|| self.make_parcel()) else { return false };
            self.set_outbox(cache, empty);
        }
    }

    fn make_parcel(&self) -> Option<Parcel> {
        let (_, place) = self.meta.runs.allocate(Parcel::BYTES).ok()?;
        // SAFETY: the run is of that size, aligned to a cache line, and stays the parcel's.
        Some(unsafe { Parcel::new(place) })
    }

    /// Sets an empty parcel for the thread to fill, unless it has got one meanwhile.
    fn set_outbox(&self, cache: &ThreadCache, parcel: Parcel) {
        let over = {
            let _inside = self.inside(cache);
            match cache.outbox().take() {
                // A provider that allocates from this very pool was called in between.
                Some(other) => {
                    cache.outbox().replace(Some(other));
                    Some(parcel)
                }
                None => cache.outbox().replace(Some(parcel)),
            }
        };
        over.into_iter().for_each(|parcel| self.depot.put_empty(parcel));
    }

    /// Sends a parcel to the depot, or its blocks to the shared store if too much waits there; yields an empty one, if there is one.
    fn send(&self, parcel: Parcel) -> Option<Parcel> {
        let bytes = parcel.bytes();
        let most = self.most_shared().saturating_sub(self.stock_bytes.load(Ordering::Relaxed));
        match self.depot.put(parcel, most, self.reserve.bytes()) {
            Ok(empty) => {
                self.mind_policy(usize::try_from(bytes).unwrap_or(usize::MAX));
                empty
            }
            Err(mut parcel) => {
                parcel.drain(|class, entries| self.give(class, entries));
                Some(parcel)
            }
        }
    }

    /// The calling thread ends: the large blocks that it keeps, and what it has packed, go where others find them.
    pub(crate) fn hand_over(&self, cache: &ThreadCache) {
        let mut parcel = {
            let _inside = self.inside(cache);
            cache.outbox().take()
        };
        let most = self.most_kept.load(Ordering::Relaxed) / PART;
        for class in cache.used().filter(|&class| self.is_large(class)) {
            let size = self.classes.size(class);
            loop {
                let portion = self.leaving(cache, class);
                if portion.entries().is_empty() {
                    break;
                }
                for &entry in portion.entries() {
                    let is_full = |parcel: &mut Parcel| !parcel.is_empty() && !parcel.fits(size, true, most);
                    if let Some(full) = parcel.take_if(is_full) {
                        parcel = self.send(full);
                    }
                    let empty = || self.depot.take_empty().or_else(|| self.make_parcel());
                    parcel = parcel.or_else(empty);
                    match &mut parcel {
                        Some(parcel) if parcel.fits(size, true, most) => {
                            parcel.push(class, entry, size, true)
                        }
                        _ => self.give(class, &[entry]),
                    }
                }
            }
        }
        let last = parcel.and_then(|parcel| if parcel.is_empty() { Some(parcel) } else { self.send(parcel) });
        last.into_iter().for_each(|parcel| self.depot.put_empty(parcel));
    }

    /// Puts the blocks of a parcel from the depot, or of the thread's own one, into its bins; `false` if there is none. The caller is
    /// not inside.
    pub(crate) fn unpack(&self, index: u32, cache: &ThreadCache) -> bool {
        let own = || {
            let _inside = self.inside(cache);
            cache.outbox().take()
        };
        let Some(mut parcel) = self.depot.take().or_else(own) else { return false };
        let is_full = !parcel.is_empty();
        {
            let _inside = self.inside(cache);
            parcel.offer(|class, entry| self.receive(index, cache, class, entry));
        }
        // What finds no room is for all.
        parcel.drain(|class, entries| self.give(class, entries));
        self.depot.put_empty(parcel);
        is_full
    }

    /// Puts a block of a parcel into the thread's bin; yields its size and whether it is a large one, or nothing if there is no room.
    /// Inside.
    fn receive(&self, index: u32, cache: &ThreadCache, class: usize, entry: Entry) -> Option<(usize, bool)> {
        let (bin, size) = (cache.bin(class), self.classes.size(class));
        let is_large = self.is_large(class);
        if is_large {
            let bytes = cache.large_bytes() + size;
            if bin.is_full() || bytes > self.most_kept.load(Ordering::Relaxed) {
                return None;
            }
            cache.set_large_bytes(bytes);
            // SAFETY: the entry is that of a large block, whose state is its span's own.
            let span = unsafe { Span::of_own_state(entry) };
            span.owner.store(thread_word(index), Ordering::Relaxed);
        } else if bin.is_full() {
            if !cache.measure(class).is_equipped() {
                return None;
            }
            self.widen(cache, class);
            if bin.is_full() {
                return None;
            }
        }
        // SAFETY: it is not full.
        unsafe { bin.receive(entry) };
        Some((size, is_large))
    }

    /// Sends what a thread has packed to the shared store, while it is kept out of its cache.
    pub(crate) fn clear_outbox(&self, cache: &ThreadCache) {
        let Some(mut parcel) = cache.outbox().take() else { return };
        self.scatter(&mut parcel, false);
        self.depot.put_empty(parcel);
    }

    /// The same by the thread itself. `release`: what is idle then may go to the provider.
    pub(crate) fn flush_outbox(&self, cache: &ThreadCache, release: bool) {
        let parcel = {
            let _inside = self.inside(cache);
            cache.outbox().take()
        };
        if let Some(mut parcel) = parcel {
            self.scatter(&mut parcel, release);
            self.depot.put_empty(parcel);
        }
    }

    /// The same with what waits in the depot.
    pub(crate) fn clear_depot(&self, release: bool) {
        while let Some(mut parcel) = self.depot.take() {
            self.scatter(&mut parcel, release);
            self.depot.put_empty(parcel);
        }
    }

    /// The same with what nobody took since the last look.
    pub(crate) fn expire_depot(&self) {
        for _ in 0..self.depot.unused() {
            let Some(mut parcel) = self.depot.take() else { return };
            self.scatter(&mut parcel, false);
            self.depot.put_empty(parcel);
        }
    }

    fn scatter(&self, parcel: &mut Parcel, release: bool) {
        parcel.drain(|class, entries| {
            if self.is_large(class) {
                self.give_units(entries, release);
            } else {
                self.centrals[class].lock().put(self.slabs(class), entries);
            }
        });
    }
}
