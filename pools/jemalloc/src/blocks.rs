//! Block states: which addresses are the starts of live blocks. jemalloc frees any address without
//! a check, so the pool checks first.
//!
//! The states of the blocks of one granule (64 KiB, the unit of the tracker) are in one record,
//! found from an address in constant time. A granule has a byte for every 16 bytes, for small
//! blocks, and a word for every page, for large ones: at most one large block begins in a page.
//! The byte or word holds the size class of the block that begins there. A free clears it, once.
//!
//! Records are not unmapped while the pool lives. A thread that looks up an address while another
//! thread frees it may read the record of another granule. It detects that, since a record holds
//! the address of its granule.

use core::sync::atomic::{AtomicU8, AtomicU16, AtomicU32, AtomicU64, Ordering};

use umf_core::{Address, Error, Result};
use umf_runtime::tracker::{self, GRANULE, OwnerId};
use umf_sync::chunks::{Chunks, Zeroable};
use umf_sync::table::Table;

use crate::classes::{Class, Classes, QUANTUM};
use crate::je::PAGE;
use crate::pool::OWNER;

const PAGES: usize = GRANULE / PAGE;
/// The least alignment of large blocks.
const LINE: u64 = 64;
/// The most granules; the tracker has room for more.
const LIMIT: u32 = 1 << 30;

/// The state of a small block: its class plus one, and two flags. 0 if no block begins there.
const SMALL_CLASS: u8 = 0x3f;
const SMALL_EXPORTED: u8 = 0x40;
const SMALL_DEFERRED: u8 = 0x80;

/// The state of a large block: its class plus one, the line of the page in which it begins, and two
/// flags.
const LARGE_CLASS: u16 = 0xff;
const LARGE_LINE: u32 = 8;
const LARGE_EXPORTED: u16 = 0x4000;
const LARGE_DEFERRED: u16 = 0x8000;

/// The record of one granule of a region.
#[derive(Debug)]
pub(crate) struct Granule {
    /// The address of the granule plus 1; 0 while the record is not in use.
    begin: AtomicU64,
    /// The number of the region, shifted by one. The lowest bit says whether the region has a
    /// shadow.
    region: AtomicU32,
    /// The next granule of the region.
    pub(crate) next: AtomicU32,
    large: [AtomicU16; PAGES],
}

// SAFETY: all fields are atomics, and a zeroed record is a free one.
unsafe impl Zeroable for Granule {}

/// The states of the small blocks of a granule.
struct Starts([AtomicU8; GRANULE / QUANTUM]);

// SAFETY: as above.
unsafe impl Zeroable for Starts {}

/// The state of a block.
#[derive(Clone, Copy)]
enum StateRef<'a> {
    Small(&'a AtomicU8),
    Large(&'a AtomicU16),
}

/// A block that was found from an address.
#[derive(Clone, Copy)]
pub(crate) struct Block<'a> {
    pub(crate) address: Address,
    pub(crate) class: Class,
    pub(crate) granule: &'a Granule,
    state: StateRef<'a>,
}

/// The state of a live block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum LiveState {
    Plain,
    Exported,
}

/// The block states of a pool.
pub(crate) struct Blocks {
    granules: Table<Granule>,
    starts: Chunks<Starts, 16>,
    classes: &'static Classes,
}

const fn begin_of(address: Address) -> u64 {
    address.to_bits() & !(GRANULE as u64 - 1)
}

fn offset_of(address: Address) -> usize {
    (address.to_bits() % GRANULE as u64) as usize
}

impl Granule {
    /// Returns the number of the region, and whether it has a shadow.
    pub(crate) fn region(&self) -> (u32, bool) {
        let word = self.region.load(Ordering::Relaxed);
        (word >> 1, word & 1 != 0)
    }

    /// Returns the address of the granule, if the record is in use.
    pub(crate) fn begin(&self) -> Option<Address> {
        self.begin.load(Ordering::Acquire).checked_sub(1).map(Address::from_bits)
    }

    fn is_of(&self, address: Address) -> bool {
        self.begin.load(Ordering::Acquire) == begin_of(address) + 1
    }
}

impl Block<'_> {
    /// Clears the state of a live block, once. Returns the state before; `None` if the block is not
    /// live.
    pub(crate) fn clear_live(&self) -> Option<LiveState> {
        let live_state = match self.state {
            StateRef::Small(byte) => {
                let live = |byte: u8| (byte & !SMALL_EXPORTED == self.class.number() + 1).then_some(0);
                let old = byte.fetch_update(Ordering::AcqRel, Ordering::Relaxed, live).ok()?;
                if old & SMALL_EXPORTED == 0 { LiveState::Plain } else { LiveState::Exported }
            }
            StateRef::Large(word) => {
                let live = |found: u16| (found & !LARGE_EXPORTED == self.large_word()).then_some(0);
                let old = word.fetch_update(Ordering::AcqRel, Ordering::Relaxed, live).ok()?;
                if old & LARGE_EXPORTED == 0 { LiveState::Plain } else { LiveState::Exported }
            }
        };
        if self.granule.is_of(self.address) {
            return Some(live_state);
        }
        // The record now belongs to another granule, whose block this call cleared.
        self.set_live(live_state);
        None
    }

    fn large_word(&self) -> u16 {
        large_word(self.address, self.class)
    }

    /// Makes the block live.
    pub(crate) fn set_live(&self, live_state: LiveState) {
        let is_exported = live_state == LiveState::Exported;
        match self.state {
            StateRef::Small(byte) => {
                let flag = if is_exported { SMALL_EXPORTED } else { 0 };
                byte.store((self.class.number() + 1) | flag, Ordering::Release);
            }
            StateRef::Large(word) => {
                let flag = if is_exported { LARGE_EXPORTED } else { 0 };
                word.store(self.large_word() | flag, Ordering::Release);
            }
        }
    }

    /// Marks a block whose live state was cleared as deferred.
    pub(crate) fn set_deferred(&self) {
        match self.state {
            StateRef::Small(byte) => {
                byte.store((self.class.number() + 1) | SMALL_DEFERRED, Ordering::Release)
            }
            StateRef::Large(word) => word.store(self.large_word() | LARGE_DEFERRED, Ordering::Release),
        }
    }

    /// Clears the state of a deferred block, once; returns `false` if the block is not deferred.
    pub(crate) fn clear_deferred(&self) -> bool {
        let (order, other) = (Ordering::AcqRel, Ordering::Relaxed);
        match self.state {
            StateRef::Small(byte) => {
                byte.compare_exchange((self.class.number() + 1) | SMALL_DEFERRED, 0, order, other).is_ok()
            }
            StateRef::Large(word) => {
                word.compare_exchange(self.large_word() | LARGE_DEFERRED, 0, order, other).is_ok()
            }
        }
    }

    pub(crate) fn is_deferred(&self) -> bool {
        match self.state {
            StateRef::Small(byte) => byte.load(Ordering::Acquire) & SMALL_DEFERRED != 0,
            StateRef::Large(word) => word.load(Ordering::Acquire) & LARGE_DEFERRED != 0,
        }
    }

    pub(crate) fn is_exported(&self) -> bool {
        match self.state {
            StateRef::Small(byte) => byte.load(Ordering::Acquire) & SMALL_EXPORTED != 0,
            StateRef::Large(word) => word.load(Ordering::Acquire) & LARGE_EXPORTED != 0,
        }
    }

    /// Flags a live block as exported; returns `false` if it is not live.
    pub(crate) fn mark_exported(&self) -> bool {
        let (order, other) = (Ordering::AcqRel, Ordering::Relaxed);
        match self.state {
            StateRef::Small(byte) => {
                let live = self.class.number() + 1;
                let flagged = |byte: u8| (byte & !SMALL_EXPORTED == live).then_some(byte | SMALL_EXPORTED);
                byte.fetch_update(order, other, flagged).is_ok()
            }
            StateRef::Large(word) => {
                let live = self.large_word();
                let flagged = |word: u16| (word & !LARGE_EXPORTED == live).then_some(word | LARGE_EXPORTED);
                word.fetch_update(order, other, flagged).is_ok()
            }
        }
    }
}

fn large_word(address: Address, class: Class) -> u16 {
    let line = (address.to_bits() % PAGE as u64 / LINE) as u16;
    (u16::from(class.number()) + 1) | (line << LARGE_LINE)
}

impl Blocks {
    pub(crate) const fn new(classes: &'static Classes) -> Self {
        Self { granules: Table::new(LIMIT - 1), starts: Chunks::new(), classes }
    }

    pub(crate) const fn table(&self) -> &Table<Granule> {
        &self.granules
    }

    /// Adds a record for the granule that contains `address`, and returns its number.
    pub(crate) fn add(&self, address: Address, region: u32, is_shadowed: bool) -> Result<u32> {
        let (number, granule) = self.granules.allocate()?;
        if let Err(error) = self.starts.get_or_grow(number) {
            self.granules.release(number);
            return Err(error);
        }
        granule.region.store((region << 1) | u32::from(is_shadowed), Ordering::Relaxed);
        granule.next.store(0, Ordering::Relaxed);
        granule.begin.store(begin_of(address) + 1, Ordering::Release);
        Ok(number)
    }

    /// Removes the record of a granule without live blocks.
    pub(crate) fn remove(&self, number: u32) {
        if let Some(granule) = self.granules.get(number) {
            granule.begin.store(0, Ordering::Release);
            self.granules.release(number);
        }
    }

    /// Returns the record for an address in memory of this pool.
    #[inline]
    pub(crate) fn granule_at(&self, owner: OwnerId, address: Address) -> Option<(u32, &Granule)> {
        if let Some(number) = tracker::span_below(address, LIMIT)
            && let Some(granule) = self.granules.get(number)
            && granule.is_of(address)
        {
            return Some((number, granule));
        }
        self.granule_among_others(owner, address)
    }

    /// Does the same if several regions, or none, are in the granule.
    #[cold]
    fn granule_among_others(&self, owner: OwnerId, address: Address) -> Option<(u32, &Granule)> {
        let found = tracker::find(address).filter(|found| found.owner == owner)?;
        let granule = self.granules.get(found.span)?;
        granule.is_of(address).then_some((found.span, granule))
    }

    /// Marks a block that jemalloc allocated as live. Returns `None` if the granule has no states.
    #[inline]
    pub(crate) fn publish(
        &self,
        number: u32,
        granule: &Granule,
        address: Address,
        class: Class,
    ) -> Option<()> {
        if self.classes.is_small(class) {
            let byte = &self.starts.get(number)?.0[offset_of(address) / QUANTUM];
            byte.store(class.number() + 1, Ordering::Release);
        } else {
            granule.large[offset_of(address) / PAGE].store(large_word(address, class), Ordering::Release);
        }
        Some(())
    }

    /// Returns the live or deferred block that begins at an address.
    #[inline]
    fn at<'a>(&'a self, number: u32, granule: &'a Granule, address: Address) -> Option<Block<'a>> {
        let offset = offset_of(address);
        let word = &granule.large[offset / PAGE];
        let found = word.load(Ordering::Acquire);
        if let Some(class) = (found & LARGE_CLASS).checked_sub(1) {
            let class = Class::new(class as u8);
            if found & !(LARGE_DEFERRED | LARGE_EXPORTED) == large_word(address, class)
                && address.is_aligned_to(LINE as usize)
            {
                return Some(Block { address, class, granule, state: StateRef::Large(word) });
            }
        }
        if !offset.is_multiple_of(QUANTUM) {
            return None;
        }
        let byte = &self.starts.get(number)?.0[offset / QUANTUM];
        let class = Class::new((byte.load(Ordering::Acquire) & SMALL_CLASS).checked_sub(1)?);
        Some(Block { address, class, granule, state: StateRef::Small(byte) })
    }

    /// Returns the live block that begins at an address.
    ///
    /// # Errors
    /// [`Error::ForeignAddress`], [`Error::InteriorAddress`], [`Error::NotAllocated`].
    #[inline]
    pub(crate) fn find_start(&self, owner: OwnerId, address: Address) -> Result<Block<'_>> {
        if let Some((number, granule)) = self.granule_at(owner, address)
            && let Some(block) = self.at(number, granule, address)
            && !block.is_deferred()
        {
            return Ok(block);
        }
        Err(self.why_not_live(owner, address))
    }

    /// Returns why no live block begins at an address.
    #[cold]
    fn why_not_live(&self, owner: OwnerId, address: Address) -> Error {
        match self.find(owner, address) {
            Ok(block) if block.address != address => Error::InteriorAddress { address },
            Ok(_) => Error::NotAllocated { address },
            Err(error) => error,
        }
    }

    /// Returns the deferred block that begins at an address.
    pub(crate) fn find_deferred(&self, owner: OwnerId, address: Address) -> Option<Block<'_>> {
        let (number, granule) = self.granule_at(owner, address)?;
        self.at(number, granule, address).filter(Block::is_deferred)
    }

    /// Returns the live block that contains an address.
    ///
    /// # Errors
    /// [`Error::ForeignAddress`], [`Error::NotAllocated`].
    pub(crate) fn find(&self, owner: OwnerId, address: Address) -> Result<Block<'_>> {
        let foreign = Error::ForeignAddress { address, owner: OWNER };
        let (number, granule) = self.granule_at(owner, address).ok_or(foreign)?;
        let block = self
            .small_around(owner, (number, granule), address)
            .or_else(|| self.large_around(owner, (number, granule), address));
        block.filter(|block| !block.is_deferred()).ok_or(Error::NotAllocated { address })
    }

    fn contains(&self, block: &Block<'_>, address: Address) -> bool {
        address
            .offset_from(block.address)
            .is_some_and(|offset| offset < self.classes.size(block.class) as u64)
    }

    /// Returns the granule before another one of the same region.
    fn before(&self, owner: OwnerId, granule: &Granule, address: Address) -> Option<(u32, &Granule)> {
        let last = Address::from_bits(begin_of(address).checked_sub(1)?);
        let (number, before) = self.granule_at(owner, last)?;
        (before.region.load(Ordering::Relaxed) == granule.region.load(Ordering::Relaxed))
            .then_some((number, before))
    }

    /// Returns the small block that contains an address.
    fn small_around(&self, owner: OwnerId, at: (u32, &Granule), address: Address) -> Option<Block<'_>> {
        let reach = self.classes.largest_small().div_ceil(QUANTUM);
        let mut bits = address.to_bits() / QUANTUM as u64 * QUANTUM as u64;
        let (mut number, mut granule) = self.granules.get(at.0).map(|granule| (at.0, granule))?;
        for _ in 0..=reach {
            let place = Address::from_bits(bits);
            let byte = &self.starts.get(number)?.0[offset_of(place) / QUANTUM];
            if let Some(class) = (byte.load(Ordering::Acquire) & SMALL_CLASS).checked_sub(1) {
                let block =
                    Block { address: place, class: Class::new(class), granule, state: StateRef::Small(byte) };
                return Some(block).filter(|block| self.contains(block, address));
            }
            if offset_of(place) == 0 {
                (number, granule) = self.before(owner, granule, place)?;
            }
            bits = bits.checked_sub(QUANTUM as u64)?;
        }
        None
    }

    /// Returns the large block that contains an address.
    fn large_around(&self, owner: OwnerId, at: (u32, &Granule), address: Address) -> Option<Block<'_>> {
        let mut granule = self.granules.get(at.0)?;
        let mut begin = begin_of(address);
        let mut pages = offset_of(address) / PAGE + 1;
        loop {
            for page in (0..pages).rev() {
                let word = &granule.large[page];
                let found = word.load(Ordering::Acquire);
                let Some(class) = (found & LARGE_CLASS).checked_sub(1) else { continue };
                let line = u64::from(found & !(LARGE_DEFERRED | LARGE_EXPORTED)) >> LARGE_LINE;
                let place = Address::from_bits(begin + (page * PAGE) as u64 + line * LINE);
                if place > address {
                    continue;
                }
                let class = Class::new(class as u8);
                let block = Block { address: place, class, granule, state: StateRef::Large(word) };
                return Some(block).filter(|block| self.contains(block, address));
            }
            granule = self.before(owner, granule, Address::from_bits(begin))?.1;
            begin -= GRANULE as u64;
            pages = PAGES;
        }
    }

    /// Passes each live or deferred block of a granule to `visit`.
    pub(crate) fn each_in(&self, number: u32, mut visit: impl FnMut(Block<'_>)) {
        let (Some(granule), Some(starts)) = (self.granules.get(number), self.starts.get(number)) else {
            return;
        };
        let Some(begin) = granule.begin.load(Ordering::Acquire).checked_sub(1) else { return };
        for (word, page) in granule.large.iter().zip(0_u64..) {
            let found = word.load(Ordering::Acquire);
            if let Some(class) = (found & LARGE_CLASS).checked_sub(1) {
                let line = u64::from(found & !(LARGE_DEFERRED | LARGE_EXPORTED)) >> LARGE_LINE;
                let address = Address::from_bits(begin + page * PAGE as u64 + line * LINE);
                visit(Block {
                    address,
                    class: Class::new(class as u8),
                    granule,
                    state: StateRef::Large(word),
                });
            }
        }
        for (byte, place) in starts.0.iter().zip(0_u64..) {
            if let Some(class) = (byte.load(Ordering::Acquire) & SMALL_CLASS).checked_sub(1) {
                let address = Address::from_bits(begin + place * QUANTUM as u64);
                visit(Block { address, class: Class::new(class), granule, state: StateRef::Small(byte) });
            }
        }
    }
}
