//! [`SlabSettings`]: the settings of the pool, and the factory of the pool kind `slab`.

use core::fmt;
use core::time::Duration;
use std::sync::Arc;

use umf_core::settings::{ByteSize, Milliseconds};
use umf_core::{Error, FactoryError, Pool, PoolFactory, PoolRequest, Result};

use crate::SlabPool;

const NAME: usize = 48;

/// A name without heap memory, cut to 48 bytes.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) struct Name {
    bytes: [u8; NAME],
    len: usize,
}

impl From<&str> for Name {
    fn from(name: &str) -> Self {
        let mut len = name.len().min(NAME);
        while !name.is_char_boundary(len) {
            len -= 1;
        }
        let mut bytes = [0; NAME];
        bytes[..len].copy_from_slice(&name.as_bytes()[..len]);
        Self { bytes, len }
    }
}

impl Name {
    pub(crate) fn as_str(&self) -> &str {
        str::from_utf8(&self.bytes[..self.len]).unwrap_or_default()
    }
}

impl fmt::Debug for Name {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(self.as_str(), f)
    }
}

umf_core::pool_settings! {
    /// The settings of a [`crate::SlabPool`]. Sizes are in bytes. A name is cut to 48 bytes.
    ///
    /// ```
    /// use umf_pool_slab::SlabSettings;
    ///
    /// let settings = SlabSettings::new().name("tensors").max_poolable_size(16 << 20).memory_limit(1 << 30);
    /// # let _ = settings;
    /// ```
    pub struct SlabSettings {
        /// Smallest slab that is taken from the provider; at least 64 KiB, at most 1 GiB.
        pub(crate) slab_min_size: usize as ByteSize = 64 << 10,
            "a number of bytes from 1 to \"1GiB\"" if |bytes| (1..=SlabSettings::LARGEST_SLAB).contains(bytes);
        /// Largest request that is pooled; larger ones go to the provider. At most 16 GiB; 0 pools
        /// nothing.
        pub(crate) max_poolable_size: usize as ByteSize = 8 << 20,
            "a number of bytes up to \"16GiB\"" if |bytes| *bytes <= SlabSettings::LARGEST_POOLABLE;
        /// Empty slabs that are kept per size class.
        pub(crate) capacity: u32 = 4;
        /// Smallest block: a power of two up to 64 KiB; below 8 it acts as 8.
        pub(crate) min_block_size | "min_bucket_size": usize as ByteSize = SlabSettings::SMALLEST_BLOCK,
            "a power of two of bytes up to \"64KiB\", such as 8 or \"1KiB\""
            if |bytes| bytes.is_power_of_two() && *bytes <= SlabSettings::LARGEST_MIN_BLOCK;
        /// Most bytes that may be free in the pool before memory goes back to the provider
        /// automatically; 0 is unlimited. Reserved memory stays, and a region with a live block in
        /// it. Each thread's cache for small and for large blocks, and the shared cache, are
        /// bounded at a quarter of it. The pool checks it when blocks leave the caches of threads.
        pub(crate) max_cached: u64 as ByteSize = 0;
        /// How long memory may be unused before it goes back to the provider automatically, by
        /// whole regions, in milliseconds; 0 is unlimited. It goes back after once to twice that
        /// time. Threads check it on slow paths, so an idle application purges now and then, or
        /// sets release_thread.
        pub(crate) release_after("release_after_ms"): Duration as Milliseconds = Duration::ZERO;
        /// Whether a background thread, one for all pools of the process with this setting, checks
        /// max_cached and release_after_ms too.
        pub(crate) background("release_thread"): bool = false;
        /// Most bytes that one thread keeps in free blocks of 64 KiB and above. The pool uses these
        /// blocks before it takes more from its provider than it should need. When it is trimmed or
        /// short of memory, it returns those of all threads.
        pub(crate) thread_cache_size: usize as ByteSize = 256 << 20;
        /// Most free blocks of one size class of 64 KiB and above that a thread keeps; at least 4.
        pub(crate) thread_cache_blocks: u32 = 128;
        /// Most bytes that one thread keeps in smaller free blocks, beyond a few of each size
        /// class.
        pub(crate) small_cache_size: usize as ByteSize = 2 << 20;
        /// Most bytes of free blocks of 64 KiB and above that are kept for all threads together,
        /// before they are merged with the free memory around them. The default is a quarter of the
        /// bytes of the pool, if that is more; another size is a fixed limit.
        pub(crate) shared_cache_size: usize as ByteSize = SlabSettings::SHARED_CACHE;
        /// Most blocks of one size class that are kept for all threads together.
        pub(crate) shared_cache_blocks: u32 = 64;
        /// How much is logged about allocations: 0 nothing, 1 the pool's end, 2 regions and slabs,
        /// 3 each block. A pool that is the global allocator ignores it.
        pub(crate) trace: u32 = 0, "a whole number from 0 to 3" if |level| *level <= 3;
    }
    name: Name = "slab"
    values {
        /// Bytes that the pool takes from its provider at the beginning, for blocks that are
        /// pooled, and keeps: [`umf_core::Reserve::reserve`]. Default: 0.
        pub(crate) reserve: u64 = 0;
        /// Whether `capacity` bounds the free memory of the pool, too, as in UMF's disjoint pool.
        /// The pool then keeps, beyond as many free bytes as are live: `capacity` blocks of each
        /// size class of 64 KiB and above that was used, or 7 MiB times `capacity` if smaller
        /// blocks were used, whichever is more. Default: false.
        pub(crate) capacity_bounds_cache: bool = false;
    }
    parts {
        /// Whether `shared_cache_size` grows with the bytes of the pool.
        pub(crate) shared_cache_grows: bool = true;
        /// Whether misuse is reported. Not by a pool that may be the global allocator, which
        /// subscribers use.
        pub(crate) reports: bool = true;
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
    /// The default of `shared_cache_size`.
    const SHARED_CACHE: usize = 256 << 20;

    /// Returns the settings, adjusted to each other.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] for the first setting that is out of range.
    pub(crate) fn checked(mut self) -> Result<Self> {
        if let Some((what, why)) = self.invalid() {
            return Err(Error::InvalidArgument { what, why });
        }
        self.min_block_size = self.min_block_size.max(Self::SMALLEST_BLOCK);
        self.shared_cache_grows = self.shared_cache_size == Self::SHARED_CACHE;
        if let Some(part) = usize::try_from(self.max_cached / 4).ok().filter(|_| self.max_cached != 0) {
            self.thread_cache_size = self.thread_cache_size.min(part);
            self.small_cache_size = self.small_cache_size.min(part);
            self.shared_cache_size = self.shared_cache_size.min(part);
            self.shared_cache_grows = false;
        }
        if self.capacity_bounds_cache {
            let part = usize::try_from(self.capacity_bound() / 16).unwrap_or(usize::MAX);
            self.thread_cache_size = self.thread_cache_size.min(part);
            self.shared_cache_size = self.shared_cache_size.min(part);
            self.shared_cache_grows = false;
        }
        // Without a limit the background thread has nothing to do.
        self.background &= self.max_cached != 0 || !self.release_after.is_zero();
        Ok(self)
    }
}

/// Bytes of small blocks that a pool keeps for each empty slab of `capacity`, under
/// `capacity_bounds_cache`.
pub(crate) const SMALL_PER_CAPACITY: u64 = 7 << 20;

impl SlabSettings {
    /// Returns the most bytes that `capacity_bounds_cache` keeps beyond as many as are live.
    pub(crate) fn capacity_bound(&self) -> u64 {
        let per_slab = SMALL_PER_CAPACITY.max(self.max_poolable_size as u64);
        u64::from(self.capacity).saturating_mul(per_slab)
    }
}

impl PoolFactory for SlabPool {
    const KIND: &'static str = "slab";
    type Settings = SlabSettings;

    fn build(request: PoolRequest<'_>, settings: SlabSettings) -> Result<Arc<dyn Pool>, FactoryError> {
        let settings = settings.requested(&request);
        Ok(Self::new(request.provider, settings)?)
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
