//! The paths of allocating and freeing, from the most common one on.

use core::ptr::NonNull;
use core::sync::atomic::{AtomicU8, Ordering};

use umf_core::{Address, Error, Layout, Result};
use umf_sync::thread;

use crate::SlabPool;
use crate::pool::{CLOSING, FENCED, OWNER, Route, SHARED, TRACED};
use crate::reach::{Inside, UNBIASED, thread_word};
use crate::span::{EXPORTED, Entry, LIVE, Place, Span};
use crate::thread_cache::{Bin, BinPlace, ThreadCache};

/// A block whose life is nobody's, as far as it was found on the most common path, by a thread that is inside its cache still.
pub(crate) struct Found<'a> {
    inside: Inside<'a>,
    span: &'a Span,
    number: u32,
    /// Of the thread.
    life: u64,
}

impl SlabPool {
    /// The most common path: what lies in the thread's bin, found without a call. So nothing has to be saved.
    #[inline(always)]
    pub(crate) fn take_at_once(&self, layout: Layout) -> Option<Address> {
        let entry = match self.classes.small_bin(layout) {
            Some(place) => self.enter_at_once(thread::known_life())?.cache().bin_at(place).pop()?,
            None => {
                let class = self.classes.larger_class(layout)?;
                let inside = self.enter_at_once(thread::known_life())?;
                let (cache, bin) = (inside.cache(), inside.cache().bin_at(BinPlace::of(class)));
                match bin.pop() {
                    Some(entry) => {
                        // (Of a small class it is 0.)
                        cache.set_large_bytes(cache.large_bytes() - bin.weight());
                        entry
                    }
                    None => return self.take_above(inside, class),
                }
            }
        };
        // SAFETY: entries of this pool's caches name states in its own metadata, and a popped one is ours.
        Some(unsafe { entry.hand_out() })
    }

    /// What remains of [`SlabPool::take_at_once`] where the bin of a class that is not small has nothing. (By a jump: nothing is saved.)
    #[inline(never)]
    fn take_above(&self, inside: Inside<'_>, class: usize) -> Option<Address> {
        let entry = self.pop_above(inside.cache(), class)?;
        // SAFETY: entries of this pool's caches name states in its own metadata, and a popped one is ours.
        Some(unsafe { entry.hand_out() })
    }

    /// Enters the calling thread's cache, if it is one of the first, and there is no gate to pass.
    #[inline(always)]
    fn enter_at_once(&self, life: u64) -> Option<Inside<'_>> {
        // SAFETY: the elements of the first chunk are there as long as the pool.
        let cache = unsafe { self.first_caches.get(life as usize)?.as_ref() };
        if life != 0 {
            cache.debug_outside();
        }
        cache.enter_if(false, || self.is_gate_open())
    }

    /// The same for a free, of a block that this thread took. If it is not so, what was found of it; or nothing.
    #[inline(always)]
    pub(crate) fn put_at_once(&self, address: Address) -> Result<(), Option<Found<'_>>> {
        let life = thread::known_life();
        let inside = self.enter_at_once(life).ok_or(None)?;
        let cache = inside.cache();
        if let Some((state, place)) = cache.near(address).find(address) {
            // SAFETY: what is remembered is this thread's.
            return unsafe { self.put_own(cache, cache.bin_at(place), state, address) }.ok_or(None);
        }
        let (number, span) = self.meta.first_span_at(address).ok_or(None)?;
        // Read inside: if the span is this thread's, it is still the one that the tracker named.
        let owner = span.bias.load(Ordering::Acquire);
        if u64::from(owner) != life {
            return Err((owner == UNBIASED).then_some(Found { inside, span, number, life }));
        }
        // SAFETY: what belongs to this thread stays as it is while the thread is inside (see `reach`).
        unsafe {
            let state = span.state_of(address).ok_or(None)?;
            self.put_own(cache, cache.bin_at(span.bin()), state, address).ok_or(None)
        }
    }

    /// Frees a block into its bin, if it is live and there is room; `None` if not, and nothing has changed. Inside. (Where it is called
    /// it is compiled twice: the bin is known before the state is.)
    ///
    /// # Safety
    /// The state is that of the block that begins at `address`, of which nobody else takes the life meanwhile.
    #[inline(always)]
    unsafe fn put_own(
        &self,
        cache: &ThreadCache,
        bin: &Bin,
        state: NonNull<AtomicU8>,
        address: Address,
    ) -> Option<()> {
        let top = bin.top();
        // SAFETY: a state of this pool, which nobody else writes meanwhile.
        let (life, old) = unsafe { (state.as_ref(), *state.as_ref().as_ptr()) };
        if old != LIVE {
            return None;
        }
        if bin.takes_no_small(top) {
            let bytes = cache.large_bytes() + bin.weight();
            if bin.is_full_at(top) || bytes > self.most_kept.load(Ordering::Relaxed) {
                return None;
            }
            cache.set_large_bytes(bytes);
        }
        life.store(0, Ordering::Release);
        // SAFETY: it is not full.
        unsafe { bin.push_at(top, Entry::new(address.to_bits(), state)) };
        Some(())
    }

    /// What remains of [`SlabPool::put_at_once`] where the life of the block is nobody's; `None` if it does not go into this thread's
    /// cache, and nothing has changed.
    #[inline(never)]
    pub(crate) fn put_found(
        &self,
        Found { inside, span, number, life }: Found<'_>,
        address: Address,
    ) -> Option<()> {
        // (A thread without a number has life 0, and never gets here: it is that of what is nobody's.)
        let index = (life as u32).wrapping_sub(1);
        self.free_located(index, inside.cache(), span.locate_start(number, address)?, address)
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
            && let Some(entry) = self.pop_near(cache, class)
        {
            // SAFETY: entries of this pool's caches name states in its own metadata, and a popped one is ours.
            return Ok(unsafe { entry.hand_out() });
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
        if self.free_cached(address, gates).is_some() { Ok(()) } else { self.free_slow(address) }
    }

    /// A free of a block that goes into this thread's cache, whoever took it; `None` if it does not, and nothing has changed. Where there
    /// is no gate to pass.
    #[inline(never)]
    pub(crate) fn free_shared(&self, address: Address) -> Option<()> {
        match self.gates.load(Ordering::Relaxed) {
            0 => self.free_cached(address, 0),
            _ => None,
        }
    }

    /// Whether memory may be taken, on slow paths.
    pub(crate) fn check_usable(&self) -> Result<()> {
        self.gate_allocation(self.gates.load(Ordering::Relaxed))
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
        let address = self.upstream.relieving(self, layout, || match self.route(layout) {
            Route::Cached(class) => self.allocate_cached(class),
            Route::Aligned(class) => self.allocate_aligned(class, layout.align()),
            Route::Direct => self.allocate_direct(layout),
        });
        if let Ok(address) = address {
            self.note_asked(layout.size(), address);
        }
        let gates = self.gates.load(Ordering::Relaxed);
        if gates & TRACED != 0 {
            self.trace_block("allocate", layout.size(), address.as_ref().ok());
        }
        address
    }

    /// The common path of a free: of a block that goes into this thread's cache.
    #[inline(always)]
    fn free_cached(&self, address: Address, gates: u8) -> Option<()> {
        let (index, cache) = self.cache()?;
        let _inside = cache.enter(gates & FENCED != 0)?;
        self.free_located(index, cache, self.meta.locate_start(address)?, address)
    }

    /// The same of a block that was found. Inside.
    #[inline(always)]
    fn free_located(
        &self,
        index: u32,
        cache: &ThreadCache,
        place: Place<'_>,
        address: Address,
    ) -> Option<()> {
        let span = place.span;
        if Self::is_for_others(span, index) {
            let entry = place.entry(address);
            return self.pack(cache, (span.class(), entry), || Self::take_shared_life(&place));
        }
        let bin = cache.bin(span.class());
        let bytes = if bin.weight() != 0 { cache.large_bytes() + bin.weight() } else { 0 };
        if bin.is_full() || bytes > self.most_kept.load(Ordering::Relaxed) {
            return None;
        }
        let owner = span.bias.load(Ordering::Acquire);
        if owner == thread_word(index) {
            // Nobody else takes a life in this span as long as this thread is inside (see `reach`).
            if place.state.load(Ordering::Relaxed) != LIVE {
                return None;
            }
            place.state.store(0, Ordering::Release);
            cache.remember(address, span);
        } else if owner == UNBIASED && !span.is_direct() {
            Self::take_shared_life(&place)?;
            if bin.weight() != 0 {
                Self::take_home(index, cache, span);
            } else if span.owner.load(Ordering::Relaxed) == 0 {
                // Who had it ended.
                span.owner.store(thread_word(index), Ordering::Relaxed);
            }
        } else {
            return None;
        }
        if bin.weight() != 0 {
            cache.set_large_bytes(bytes);
        }
        // SAFETY: it is not full.
        unsafe { bin.push(place.entry(address)) };
        Some(())
    }

    /// Takes the life of a block in a span whose lives are nobody's, if it is live and nothing else.
    #[inline(always)]
    fn take_shared_life(place: &Place<'_>) -> Option<()> {
        place.state.compare_exchange(LIVE, 0, Ordering::AcqRel, Ordering::Relaxed).ok()?;
        if place.is_current() {
            return Some(());
        }
        // A second free met a span that was made anew; the block that it hit is someone else's.
        place.state.fetch_or(LIVE, Ordering::AcqRel);
        None
    }

    /// A free that is not of the common kind.
    #[cold]
    #[inline(never)]
    pub(crate) fn free_slow(&self, address: Address) -> Result<()> {
        let Some(place) = self.meta.locate_start(address) else {
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
        if old & EXPORTED != 0 {
            return self.free_exported(place, address);
        }
        self.put(place, address)
    }

    /// Sees to it that the calling thread may take lives in the span by atomic exchange. It is not inside.
    pub(crate) fn share_with_caller(&self, span: &Span) {
        let owner = span.bias.load(Ordering::Acquire);
        if owner != UNBIASED && thread::current().is_none_or(|own| thread_word(own.get()) != owner) {
            self.share_life(span);
        }
    }
}
