//! The paths of allocating and freeing, from the most common one on.

use core::ptr::NonNull;
use core::sync::atomic::Ordering;

use umf_core::{Address, Error, Layout, Result, thread, tracker};

use crate::SlabPool;
use crate::pool::{CLOSING, FENCED, OWNER, Route, SHARED, SPANS, TRACED};
use crate::reach::{SHARED_LIFE, life_of};
use crate::span::{Mark, Place, Span};
use crate::state::{Entry, LIVE};
use crate::thread_cache::ThreadCache;

/// How far the common path of a free came.
enum Freeing<'a> {
    Done,
    /// Nothing has changed.
    NotBegun,
    /// The state of the block was taken; it was not simply live.
    Begun(Place<'a>, u8),
}

impl SlabPool {
    /// The most common path: what lies in the thread's bin, found without a call. So nothing has to be saved.
    #[inline(always)]
    pub(crate) fn allocate_at_once(&self, layout: Layout) -> Option<Address> {
        let class = self.classes.at_once(layout)?;
        let cache = self.first_cache(thread::known())?;
        let _inside = cache.enter(false)?;
        let bin = cache.bin(class);
        let entry = cache.pop(class)?;
        if bin.weight() != 0 {
            cache.set_large_bytes(cache.large_bytes() - bin.weight());
        }
        bin.count_allocation();
        // SAFETY: entries of this pool's caches name states in its own metadata, and a popped one is ours.
        Some(Address::from_bits(unsafe { entry.hand_out() }))
    }

    /// The calling thread's cache, if it is one of the first, and there is no gate to pass.
    #[inline(always)]
    fn first_cache(&self, index: u32) -> Option<&ThreadCache> {
        // SAFETY: a static, or a word of this pool.
        let first_threads = unsafe { &*self.first_threads.load(Ordering::Relaxed) };
        let is_first = index < first_threads.load(Ordering::Relaxed);
        // SAFETY: the first chunk of caches has that many.
        is_first.then(|| unsafe { self.first_caches.add(index as usize).as_ref() })
    }

    /// The same for a free, of a block that this thread took; `None` if it is not so, or there is no room.
    #[inline(always)]
    pub(crate) fn free_at_once(&self, address: Address) -> Option<()> {
        let index = thread::known();
        let cache = self.first_cache(index)?;
        let _inside = cache.enter(false)?;
        // Read inside: what says that the span is this thread's says that the mark is of that span too.
        let mark = Mark::from_bits(tracker::span_at_once(address)?);
        if mark.number() as usize >= SPANS {
            return None;
        }
        // SAFETY: the first chunk of spans has that many.
        let span = unsafe { self.first_spans.add(mark.number() as usize).as_ref() };
        if span.owner.load(Ordering::Acquire) != life_of(index) {
            return None;
        }
        // SAFETY: what belongs to this thread stays as it is while the thread is inside (see `reach`).
        let state = unsafe { span.state_of(address)? };
        // SAFETY: a state of this pool.
        let life = unsafe { state.as_ref() };
        let class = mark.class();
        let bin = cache.bin(class);
        if life.load(Ordering::Relaxed) != LIVE || bin.is_full() {
            return None;
        }
        if bin.weight() != 0 {
            let bytes = cache.large_bytes() + bin.weight();
            if bytes > self.most_kept.load(Ordering::Relaxed) {
                return None;
            }
            cache.set_large_bytes(bytes);
        }
        life.store(0, Ordering::Release);
        bin.count_free();
        // SAFETY: it is not full.
        unsafe { bin.push(Entry::new(address.to_bits(), state)) };
        Some(())
    }

    #[inline(never)]
    pub(crate) fn allocate_else(&self, layout: Layout) -> Result<Address> {
        let gates = self.gates.load(Ordering::Relaxed);
        if gates != 0 {
            self.gate_allocation(gates)?;
            if gates & TRACED != 0 {
                return self.allocate_slow(layout);
            }
        }
        let class = self.classes.of_layout(layout);
        if class < self.cacheable(layout.align())
            && let Some((_, cache)) = self.cache()
            && let Some(_inside) = cache.enter(gates & FENCED != 0)
            && let Some((class, entry)) = self.pop_near(cache, class)
        {
            cache.bin(class).count_allocation();
            // SAFETY: entries of this pool's caches name states in its own metadata, and a popped one is ours.
            return Ok(Address::from_bits(unsafe { entry.hand_out() }));
        }
        self.allocate_slow(layout)
    }

    #[inline(never)]
    pub(crate) fn free_else(&self, address: Address) -> Result<()> {
        let gates = self.gates.load(Ordering::Relaxed);
        if gates != 0 {
            if gates & SHARED != 0 && self.upstream.is_frozen() {
                return Ok(());
            }
            if gates & TRACED != 0 {
                self.trace_block("free", 0, Some(&address));
            }
        }
        match self.free_cached(address, gates) {
            Freeing::Done => Ok(()),
            Freeing::NotBegun => self.free_slow(address),
            Freeing::Begun(place, old) => self.free_begun(place, old, address),
        }
    }

    fn gate_allocation(&self, gates: u8) -> Result<()> {
        if gates & SHARED != 0 && self.upstream.is_frozen() {
            return Err(Error::Frozen { what: "shared memory" });
        }
        if gates & CLOSING != 0 {
            return Err(Error::NotSupported {
                what: "allocating while it is dropped",
                owner: OWNER,
                native: 0,
            });
        }
        Ok(())
    }

    #[cold]
    fn allocate_slow(&self, layout: Layout) -> Result<Address> {
        let address = match self.route(layout) {
            Route::Cached(class) => self.allocate_cached(class),
            Route::Aligned(class) => self.allocate_aligned(class, layout.align()),
            Route::Direct => self.allocate_direct(layout),
        };
        if let Ok(address) = address {
            self.note_asked(layout.size(), address);
        }
        if self.gates.load(Ordering::Relaxed) & TRACED != 0 {
            self.trace_block("allocate", layout.size(), address.as_ref().ok());
        }
        address
    }

    /// The common path of a free: of a block that goes into this thread's cache.
    #[inline(always)]
    fn free_cached(&self, address: Address, gates: u8) -> Freeing<'_> {
        let Some((index, cache)) = self.cache() else { return Freeing::NotBegun };
        let Some(_inside) = cache.enter(gates & FENCED != 0) else { return Freeing::NotBegun };
        let Some(place) = self.locate(address).filter(|place| place.rest == 0) else {
            return Freeing::NotBegun;
        };
        let span = place.span;
        let class = span.class();
        let bin = cache.bin(class);
        let bytes = if bin.weight() != 0 { cache.large_bytes() + bin.weight() } else { 0 };
        if bin.is_full() {
            cache.turn(class);
        }
        if bin.is_full() || bytes > self.most_kept.load(Ordering::Relaxed) {
            return Freeing::NotBegun;
        }
        let owner = span.owner.load(Ordering::Acquire);
        if owner == life_of(index) {
            // Nobody else takes a life in this span as long as this thread is inside (see `reach`).
            if place.state.load(Ordering::Relaxed) != LIVE {
                return Freeing::NotBegun;
            }
            place.state.store(0, Ordering::Release);
        } else if owner == SHARED_LIFE && !span.is_direct() {
            let old = place.state.swap(0, Ordering::AcqRel);
            if old != LIVE || !place.is_current() {
                return Freeing::Begun(place, old);
            }
        } else {
            return Freeing::NotBegun;
        }
        if bin.weight() != 0 {
            cache.set_large_bytes(bytes);
        }
        bin.count_free();
        // SAFETY: it is not full.
        unsafe { bin.push(Entry::new(address.to_bits(), NonNull::from(place.state))) };
        Freeing::Done
    }

    /// A free that is not of the common kind.
    #[cold]
    #[inline(never)]
    fn free_slow(&self, address: Address) -> Result<()> {
        let Some(place) = self.locate(address).filter(|place| place.rest == 0) else {
            return Err(self.why_not(address));
        };
        self.share_with_caller(place.span);
        let old = place.state.swap(0, Ordering::AcqRel);
        self.free_begun(place, old, address)
    }

    /// The rest of a free that took `old` for the state of the block.
    #[cold]
    fn free_begun(&self, place: Place<'_>, old: u8, address: Address) -> Result<()> {
        if !place.is_current() {
            // A second free met a span that was made anew; the block that it hit is someone else's.
            place.state.fetch_or(old, Ordering::AcqRel);
            return Err(Error::NotAllocated { address });
        }
        if old & LIVE == 0 {
            // It is held, perhaps, and remains so.
            place.state.fetch_or(old, Ordering::AcqRel);
            return Err(self.why_not(address));
        }
        if old != LIVE {
            return self.free_exported(place, address);
        }
        self.put(place, address)
    }

    /// Sees to it that the calling thread may take lives in the span by atomic exchange. It is not inside.
    pub(crate) fn share_with_caller(&self, span: &Span) {
        let owner = span.owner.load(Ordering::Acquire);
        if owner != SHARED_LIFE && thread::current().is_none_or(|own| life_of(own.get()) != owner) {
            self.share_life(span);
        }
    }
}
