//! [`Region`]: one coarse allocation.

use core::num::NonZeroU64;
use core::sync::atomic::{AtomicU64, Ordering};

use crate::Address;

/// Identifies a region within this process. Never reused: a region at an address that was used
/// before has another id.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RegionId(NonZeroU64);

impl RegionId {
    /// An id that no region had before.
    fn next() -> Self {
        static NEXT: AtomicU64 = AtomicU64::new(1);
        let id = NEXT.fetch_add(1, Ordering::Relaxed);
        // A counter of 64 bits does not come round to 0.
        Self(NonZeroU64::new(id).unwrap_or(NonZeroU64::MAX))
    }

    /// The id as a number.
    #[must_use]
    pub const fn get(self) -> u64 {
        self.0.get()
    }

    /// The id with this number, which [`RegionId::get`] returned; `None` for 0.
    #[must_use]
    pub const fn from_number(id: u64) -> Option<Self> {
        match NonZeroU64::new(id) {
            Some(id) => Some(Self(id)),
            None => None,
        }
    }
}

/// One coarse allocation of a provider: base address, size in bytes, id.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Region {
    base: Address,
    size: usize,
    id: RegionId,
}

impl Region {
    /// A new region, with an id of its own. For providers.
    #[must_use]
    pub fn new(base: Address, size: usize) -> Self {
        Self { base, size, id: RegionId::next() }
    }

    /// A region that exists already, as a registry recorded it.
    #[must_use]
    pub const fn with_id(base: Address, size: usize, id: RegionId) -> Self {
        Self { base, size, id }
    }

    /// Where it begins.
    #[must_use]
    pub const fn base(&self) -> Address {
        self.base
    }

    /// Its size in bytes.
    #[must_use]
    pub const fn size(&self) -> usize {
        self.size
    }

    /// Its id.
    #[must_use]
    pub const fn id(&self) -> RegionId {
        self.id
    }

    /// Whether `address` lies in it.
    #[inline]
    #[must_use]
    pub const fn contains(&self, address: Address) -> bool {
        match address.offset_from(self.base) {
            Some(offset) => offset < self.size as u64,
            None => false,
        }
    }
}
