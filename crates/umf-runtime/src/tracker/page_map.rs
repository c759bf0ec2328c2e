//! [`PageMap`]: the two-level table from granule to entry.

use core::ptr::{self, NonNull};
use core::sync::atomic::{AtomicPtr, AtomicU64, Ordering};

use super::overflow::{self, OVERFLOW_LISTS};
use umf_core::{Address, AddressSpace, Error, Result};

/// Bytes of address space under one entry of the tracker.
pub const GRANULE: usize = 1 << GRANULE_BITS;

const GRANULE_BITS: u32 = 16;
const LEAF_BITS: u32 = 21;
const ROOT_BITS: u32 = Address::BITS - GRANULE_BITS - LEAF_BITS;
const LEAF: usize = 1 << LEAF_BITS;
const ROOT: usize = 1 << ROOT_BITS;

type Leaf = [MapSlot; LEAF];
type Root = [AtomicPtr<Leaf>; ROOT];

/// An entry of the map.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Entry {
    Empty,
    /// One region, and the span that its pool set.
    Region {
        number: u32,
        span: u32,
    },
    /// Several regions: the number of their list.
    Overflow(u32),
}

/// Stands in an entry in place of a region number, if the entry is [`Entry::Overflow`].
const OVERFLOW: u32 = u32::MAX;

impl Entry {
    #[inline]
    const fn unpack(bits: u64) -> Self {
        let (number, low) = ((bits >> 32) as u32, bits as u32);
        match number {
            0 => Self::Empty,
            OVERFLOW => Self::Overflow(low),
            number => Self::Region { number, span: low },
        }
    }

    const fn pack(self) -> u64 {
        match self {
            Self::Empty => 0,
            Self::Region { number, span } => ((number as u64) << 32) | span as u64,
            Self::Overflow(number) => ((OVERFLOW as u64) << 32) | number as u64,
        }
    }
}

/// The slot of an entry. All changes but `set_span_of_single` happen under the tracker's writer
/// lock.
#[derive(Debug)]
#[repr(transparent)]
pub(super) struct MapSlot(AtomicU64);

impl MapSlot {
    #[inline]
    pub(super) fn load(&self) -> Entry {
        Entry::unpack(self.0.load(Ordering::Acquire))
    }

    /// Returns the number of the granule's region, if it has exactly one.
    #[inline(always)]
    pub(super) fn single(&self) -> Option<u32> {
        let number = (self.0.load(Ordering::Acquire) >> 32) as u32;
        (number != 0 && number != OVERFLOW).then_some(number)
    }

    /// Returns the span of a granule with at most one region, if it is below `limit`, a power of
    /// two. The span of a granule without a region is 0. `None` for an overflow list.
    #[inline(always)]
    pub(super) fn span_below(&self, limit: u32) -> Option<u32> {
        let bits = self.0.load(Ordering::Acquire);
        // Bit 63 is set for an overflow list, and for no region number.
        const { assert!(OVERFLOW >> 31 == 1) };
        let excluded = 1 << 63 | u64::from(0_u32.wrapping_sub(limit));
        (bits & excluded == 0).then_some(bits as u32)
    }

    fn exchange(&self, old: Entry, new: Entry) -> bool {
        self.0.compare_exchange(old.pack(), new.pack(), Ordering::AcqRel, Ordering::Relaxed).is_ok()
    }

    /// Adds a region to the granule.
    pub(super) fn insert(&self, number: u32) -> Result<()> {
        loop {
            let old = self.load();
            match old {
                Entry::Empty => {
                    if self.exchange(old, Entry::Region { number, span: 0 }) {
                        return Ok(());
                    }
                }
                Entry::Region { number: first, span } => {
                    let overflow = overflow::create(first, span, number)?;
                    if self.exchange(old, Entry::Overflow(overflow)) {
                        return Ok(());
                    }
                    // The pool of the first region has set a span meanwhile.
                    overflow::release(overflow);
                }
                Entry::Overflow(overflow) => return overflow::add(overflow, number),
            }
        }
    }

    /// Removes a region from the granule, if it is there.
    pub(super) fn remove(&self, number: u32) {
        loop {
            let old = self.load();
            match old {
                Entry::Region { number: only, .. } if only == number => {
                    if self.exchange(old, Entry::Empty) {
                        return;
                    }
                }
                Entry::Overflow(overflow) => {
                    if let Some((last, span)) = overflow::remove(overflow, number) {
                        self.0.store(Entry::Region { number: last, span }.pack(), Ordering::Release);
                        overflow::release(overflow);
                    }
                    return;
                }
                _ => return,
            }
        }
    }

    /// Sets the span of the granule's only region. Returns `false` if that is not region `number`,
    /// or there are several. Takes no lock.
    pub(super) fn set_span_of_single(&self, number: u32, span: u32) -> bool {
        loop {
            let old = self.load();
            match old {
                Entry::Region { number: only, .. } if only == number => {
                    if self.exchange(old, Entry::Region { number, span }) {
                        return true;
                    }
                }
                _ => return false,
            }
        }
    }

    /// Sets the span of region `number`. Returns `false` if the granule does not have it.
    pub(super) fn set_span(&self, number: u32, span: u32) -> bool {
        match self.load() {
            Entry::Overflow(overflow) => {
                OVERFLOW_LISTS.get(overflow).is_some_and(|overflow| overflow.set_span(number, span))
            }
            _ => self.set_span_of_single(number, span),
        }
    }
}

/// The table. The root of the process's address space is static (8 MiB, of which pages are
/// allocated on first use). The roots of other spaces are mapped when first used. A leaf covers 128
/// GiB and has 16 MiB, of which only used pages are allocated.
pub(super) struct PageMap {
    process: Root,
    others: [AtomicPtr<Root>; AddressSpace::COUNT],
}

impl PageMap {
    pub(super) const fn new() -> Self {
        Self {
            process: [const { AtomicPtr::new(ptr::null_mut()) }; ROOT],
            others: [const { AtomicPtr::new(ptr::null_mut()) }; AddressSpace::COUNT],
        }
    }

    #[inline]
    const fn locate(address: Address) -> (usize, usize) {
        let granule = (address.value() >> GRANULE_BITS) as usize;
        (granule >> LEAF_BITS, granule & (LEAF - 1))
    }

    #[inline]
    fn root(&self, space: AddressSpace) -> Option<&Root> {
        if space == AddressSpace::PROCESS {
            return Some(&self.process);
        }
        let root = NonNull::new(self.others[usize::from(space.number())].load(Ordering::Acquire))?;
        // SAFETY: published roots are zero-initialised mappings of this size, never unmapped.
        Some(unsafe { root.as_ref() })
    }

    /// Returns the slot of the granule of `address`; `None` if no region was ever tracked near it.
    #[inline]
    pub(super) fn get(&self, address: Address) -> Option<&MapSlot> {
        let (root, leaf) = Self::locate(address);
        let found = NonNull::new(self.root(address.space())?[root].load(Ordering::Acquire))?;
        // SAFETY: published leaves are zero-initialised mappings of this size, never unmapped.
        Some(&unsafe { found.as_ref() }[leaf])
    }

    /// Returns the slot as [`PageMap::get`] does; `None` for addresses of other spaces.
    #[inline(always)]
    pub(super) fn get_in_process(&self, address: Address) -> Option<&MapSlot> {
        let granule = (address.to_bits() >> GRANULE_BITS) as usize;
        let root = granule >> LEAF_BITS;
        if root >= ROOT {
            return None;
        }
        let found = NonNull::new(self.process[root].load(Ordering::Acquire))?;
        // SAFETY: published leaves are zero-initialised mappings of this size, never unmapped.
        Some(&unsafe { found.as_ref() }[granule & (LEAF - 1)])
    }

    /// Returns the slot of the granule of `address`, and maps its tables as needed.
    pub(super) fn get_or_grow(&self, address: Address) -> Result<&MapSlot> {
        if self.root(address.space()).is_none() {
            grow(&self.others[usize::from(address.space().number())])?;
        }
        let missing = Error::OutOfMemory { size: size_of::<Leaf>(), owner: "metadata", native: 0 };
        let (root, _) = Self::locate(address);
        let slot = &self.root(address.space()).ok_or(missing)?[root];
        if slot.load(Ordering::Acquire).is_null() {
            grow(slot)?;
        }
        self.get(address).ok_or(missing)
    }
}

/// Maps a zeroed table for an empty slot of a root. The caller holds the tracker's writer lock.
fn grow<T>(slot: &AtomicPtr<T>) -> Result<()> {
    let table = umf_os::metadata::map(size_of::<T>())?;
    slot.store(table.as_ptr().cast(), Ordering::Release);
    Ok(())
}
