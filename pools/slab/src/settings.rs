//! [`SlabSettings`]: the knobs, named as users of the field know them.

use core::fmt;
use core::time::Duration;
use std::sync::Arc;

use umf_core::held::OnFree;
use umf_core::shortage::OutOfMemory;
use umf_core::{Error, Result};

use umf_core::limit::SharedLimitRef;

const NAME: usize = 48;

/// A name without heap memory, cut to 48 bytes.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) struct Name {
    bytes: [u8; NAME],
    len: usize,
}

impl Name {
    fn new(name: &str) -> Self {
        let mut len = name.len().min(NAME);
        while !name.is_char_boundary(len) {
            len -= 1;
        }
        let mut bytes = [0; NAME];
        bytes[..len].copy_from_slice(&name.as_bytes()[..len]);
        Self { bytes, len }
    }

    pub(crate) fn as_str(&self) -> &str {
        str::from_utf8(&self.bytes[..self.len]).unwrap_or_default()
    }
}

impl fmt::Debug for Name {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(self.as_str(), f)
    }
}

/// What can be set of a [`crate::SlabPool`]. Sizes are in bytes.
///
/// ```
/// use umf_pool_slab::SlabSettings;
///
/// let settings = SlabSettings::new().name("tensors").max_poolable_size(16 << 20).memory_limit(1 << 30);
/// # let _ = settings;
/// ```
#[derive(Clone, Debug)]
pub struct SlabSettings {
    pub(crate) name: Name,
    pub(crate) slab_min_size: usize,
    pub(crate) max_poolable_size: usize,
    pub(crate) capacity: u32,
    pub(crate) min_block_size: usize,
    pub(crate) memory_limit: u64,
    pub(crate) shared_limit: Option<SharedLimitRef>,
    pub(crate) thread_cache_size: usize,
    pub(crate) trace: u32,
    pub(crate) on_free: OnFree,
    pub(crate) max_held: u64,
    pub(crate) thread_cache_blocks: u32,
    pub(crate) small_cache_size: usize,
    pub(crate) shared_cache_size: usize,
    /// That becomes more with what the pool has.
    pub(crate) shared_cache_grows: bool,
    pub(crate) shared_cache_blocks: u32,
    pub(crate) max_cached: u64,
    pub(crate) release_after: Duration,
    pub(crate) background: bool,
    pub(crate) reserve: u64,
    pub(crate) out_of_memory: Option<Arc<dyn OutOfMemory>>,
}

impl Default for SlabSettings {
    fn default() -> Self {
        Self::new()
    }
}

impl SlabSettings {
    /// The smallest `min_block_size` that has an effect.
    pub const SMALLEST_BLOCK: usize = 8;
    /// The largest `max_poolable_size`.
    pub const LARGEST_POOLABLE: usize = 16 << 30;
    /// The largest `slab_min_size`.
    pub const LARGEST_SLAB: usize = 1 << 30;
    /// The largest `min_block_size`.
    pub const LARGEST_MIN_BLOCK: usize = 64 << 10;

    /// The defaults.
    #[must_use]
    pub fn new() -> Self {
        Self {
            name: Name::new("slab"),
            slab_min_size: 64 << 10,
            max_poolable_size: 8 << 20,
            capacity: 4,
            min_block_size: Self::SMALLEST_BLOCK,
            memory_limit: 0,
            shared_limit: None,
            thread_cache_size: 256 << 20,
            trace: 0,
            on_free: OnFree::Hold,
            max_held: 0,
            thread_cache_blocks: 128,
            small_cache_size: 2 << 20,
            shared_cache_size: 256 << 20,
            shared_cache_grows: true,
            shared_cache_blocks: 64,
            max_cached: 0,
            release_after: Duration::ZERO,
            background: false,
            reserve: 0,
            out_of_memory: None,
        }
    }

    /// The name of the pool, for people; cut to 48 bytes. Default: `slab`.
    #[must_use]
    pub fn name(mut self, name: &str) -> Self {
        self.name = Name::new(name);
        self
    }

    /// The smallest slab; rounded up to 64 KiB, at most 1 GiB. Default: 64 KiB.
    #[must_use]
    pub const fn slab_min_size(mut self, bytes: usize) -> Self {
        self.slab_min_size = bytes;
        self
    }

    /// The largest request that is pooled; larger ones go to the provider. At most 16 GiB; 0 pools nothing.
    /// Default: 8 MiB.
    #[must_use]
    pub const fn max_poolable_size(mut self, bytes: usize) -> Self {
        self.max_poolable_size = bytes;
        self
    }

    /// How many empty slabs are kept per size class. Default: 4.
    #[must_use]
    pub const fn capacity(mut self, slabs: u32) -> Self {
        self.capacity = slabs;
        self
    }

    /// The smallest block: a power of two up to 64 KiB; below 8 it acts as 8. Default: 8.
    #[must_use]
    pub const fn min_block_size(mut self, bytes: usize) -> Self {
        self.min_block_size = bytes;
        self
    }

    /// The most that the pool may take from its provider; 0 is unlimited. Default: 0.
    #[must_use]
    pub const fn memory_limit(mut self, bytes: u64) -> Self {
        self.memory_limit = bytes;
        self
    }

    /// A limit that this pool shares with others: an `Arc<SharedLimit>` or a `&'static SharedLimit`. Default:
    /// none.
    #[must_use]
    pub fn shared_limit(mut self, limit: impl Into<SharedLimitRef>) -> Self {
        self.shared_limit = Some(limit.into());
        self
    }

    /// The most that one thread keeps in blocks of 64 KiB and above. (Of smaller ones: [`SlabSettings::small_cache_size`].)
    /// What threads keep is used before the pool takes more from its provider than it should need, and goes back when
    /// the pool is trimmed or short of memory, whatever thread keeps it. Default: 256 MiB.
    #[must_use]
    pub const fn thread_cache_size(mut self, bytes: usize) -> Self {
        self.thread_cache_size = bytes;
        self
    }

    /// The most free blocks of one size class of 64 KiB and above that a thread keeps; at least 4. Default: 128.
    #[must_use]
    pub const fn thread_cache_blocks(mut self, blocks: u32) -> Self {
        self.thread_cache_blocks = blocks;
        self
    }

    /// The most that one thread keeps in blocks below 64 KiB, beyond a few of each size class. Default: 2 MiB.
    #[must_use]
    pub const fn small_cache_size(mut self, bytes: usize) -> Self {
        self.small_cache_size = bytes;
        self
    }

    /// The most that is kept for all threads in blocks of 64 KiB and above that no thread keeps, before they are merged with what
    /// is free around them. Default: 256 MiB, or a quarter of what the pool has from its provider where that is more.
    #[must_use]
    pub const fn shared_cache_size(mut self, bytes: usize) -> Self {
        self.shared_cache_size = bytes;
        self.shared_cache_grows = false;
        self
    }

    /// The most blocks of one size class that are kept like that. Default: 64.
    #[must_use]
    pub const fn shared_cache_blocks(mut self, blocks: u32) -> Self {
        self.shared_cache_blocks = blocks;
        self
    }

    /// The most bytes that are free in the pool, in caches of threads, in slabs and in regions, before memory goes back to the
    /// provider unasked; 0 is unlimited. What is reserved ([`SlabSettings::reserve`]) stays anyhow, and so does a region with a live
    /// block in it. Default: 0.
    ///
    /// It is looked at when blocks leave the caches of threads, so that the common paths pay nothing. Each thread's caches for small
    /// and for large blocks, and the shared cache, are bounded at a quarter of this then.
    #[must_use]
    pub const fn max_cached(mut self, bytes: u64) -> Self {
        self.max_cached = bytes;
        self
    }

    /// How long memory may lie unused before it goes back to the provider unasked, by whole regions; zero is for ever. It goes
    /// between once and twice that time after its last use; beside blocks that a thread goes on using, by halves. Default: zero.
    ///
    /// It is looked at where threads are on slow paths, at most once in that time: an application in which nothing happens asks
    /// for [`umf_core::Reserve::purge`] now and then, or for [`SlabSettings::background`].
    #[must_use]
    pub const fn release_after(mut self, age: Duration) -> Self {
        self.release_after = age;
        self
    }

    /// Whether a thread in the background, one for all pools of the process that ask for it, sees to
    /// [`SlabSettings::max_cached`] and [`SlabSettings::release_after`] too. Default: no.
    #[must_use]
    pub const fn background(mut self, yes: bool) -> Self {
        self.background = yes;
        self
    }

    /// How much is told through `tracing`: 0 nothing, 1 the pool's end, 2 regions and slabs, 3 each block. A
    /// pool that is the global allocator ignores it. Default: 0.
    #[must_use]
    pub const fn trace(mut self, level: u32) -> Self {
        self.trace = level;
        self
    }

    /// What becomes of the contents of a block that is freed while other processes have it open. Its address is not handed out
    /// again before they have closed it, either way. Default: [`OnFree::Hold`].
    #[must_use]
    pub const fn on_free(mut self, on_free: OnFree) -> Self {
        self.on_free = on_free;
        self
    }

    /// The most bytes of freed memory that may be held because other processes have it open, before allocating more fails as
    /// [`Error::HeldLimit`]; 0 is unlimited. What is held counts against [`SlabSettings::memory_limit`] too. Default: 0.
    #[must_use]
    pub const fn max_held(mut self, bytes: u64) -> Self {
        self.max_held = bytes;
        self
    }

    /// Bytes that the pool takes from its provider at the beginning, for blocks that are pooled, and keeps: [`umf_core::Reserve::reserve`].
    /// Default: 0.
    #[must_use]
    pub const fn reserve(mut self, bytes: u64) -> Self {
        self.reserve = bytes;
        self
    }

    /// Who is asked when an allocation would fail for lack of memory ([`umf_core::shortage`]); any closure. Default: nobody.
    #[must_use]
    pub fn out_of_memory(mut self, callback: impl OutOfMemory + 'static) -> Self {
        self.out_of_memory = Some(Arc::new(callback));
        self
    }

    /// The settings with everything in its range, or what is out of it.
    pub(crate) fn checked(mut self) -> Result<Self> {
        let invalid = |what, why| Err(Error::InvalidArgument { what, why });
        if self.slab_min_size == 0 || self.slab_min_size > Self::LARGEST_SLAB {
            return invalid("slab_min_size", "1 byte to 1 GiB");
        }
        if !self.min_block_size.is_power_of_two() || self.min_block_size > Self::LARGEST_MIN_BLOCK {
            return invalid("min_block_size", "a power of two up to 64 KiB");
        }
        if self.max_poolable_size > Self::LARGEST_POOLABLE {
            return invalid("max_poolable_size", "at most 16 GiB");
        }
        self.min_block_size = self.min_block_size.max(Self::SMALLEST_BLOCK);
        if let Some(part) = usize::try_from(self.max_cached / 4).ok().filter(|_| self.max_cached != 0) {
            self.thread_cache_size = self.thread_cache_size.min(part);
            self.small_cache_size = self.small_cache_size.min(part);
            self.shared_cache_size = self.shared_cache_size.min(part);
            self.shared_cache_grows = false;
        }
        // Nothing to see to needs nobody.
        self.background &= self.max_cached != 0 || !self.release_after.is_zero();
        Ok(self)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_out_of_range_are_named() {
        assert!(SlabSettings::new().checked().is_ok());
        for bad in [
            SlabSettings::new().slab_min_size(0),
            SlabSettings::new().slab_min_size(2 << 30),
            SlabSettings::new().min_block_size(24),
            SlabSettings::new().min_block_size(0),
            SlabSettings::new().max_poolable_size(1 << 40),
        ] {
            assert!(matches!(bad.checked(), Err(Error::InvalidArgument { .. })));
        }
        let long = "ä".repeat(100);
        assert_eq!(SlabSettings::new().name(&long).name.as_str().len(), 48);
    }
}
