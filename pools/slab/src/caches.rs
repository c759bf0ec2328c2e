//! [`Caches`]: the caches of all threads of a pool.

use core::ptr::NonNull;
use core::sync::atomic::Ordering;

use umf_core::Result;
use umf_sync::chunks::Chunks;

use crate::reach::UNBIASED;
use crate::span::Span;
use crate::thread_cache::ThreadCache;

/// Element 0 is nobody's and never holds a block: so the common paths need not ask first whether the thread has a number. The
/// others belong to the thread whose number is one less.
pub(crate) struct Caches(Chunks<ThreadCache, { Self::FIRST as usize }>);

impl Caches {
    /// How many elements [`Caches::first`] has.
    pub(crate) const FIRST: u64 = 64;

    pub(crate) const fn new() -> Self {
        Self(Chunks::new())
    }

    /// Where the first elements are: nobody's, and those of threads with small numbers.
    pub(crate) fn first(&self) -> Result<[NonNull<ThreadCache>; Self::FIRST as usize]> {
        let first = NonNull::from(self.0.get_or_grow(0)?);
        // SAFETY: the first chunk has that many.
        Ok(core::array::from_fn(|element| unsafe { first.add(element) }))
    }

    /// The cache of thread number `index`, if there is one.
    #[inline]
    pub(crate) fn get(&self, index: u32) -> Option<&ThreadCache> {
        self.0.get(index + 1)
    }

    /// From here on a span is nobody's. By its owner, or while that is kept out.
    pub(crate) fn disown(&self, span: &Span) {
        let owner = span.bias.load(Ordering::Relaxed);
        if let Some(cache) = owner.checked_sub(1).and_then(|index| self.get(index)) {
            cache.forget(span);
        }
        span.bias.store(UNBIASED, Ordering::Release);
    }

    /// The cache of thread number `index`.
    pub(crate) fn get_or_grow(&self, index: u32) -> Result<&ThreadCache> {
        self.0.get_or_grow(index + 1)
    }
}
