//! Which blocks are live: jemalloc frees what it is given without a look, so this pool looks before.
//!
//! Where a block begins stands in the record of its granule (64 KiB, the tracker's unit), which an address finds in constant time. A
//! small block has a byte there, one for each 16 bytes; a large one a word, one for each page: no two begin in one. Byte and
//! word say the block's size, and are what a free takes away, once.
//!
//! Records are never given back while the pool lives. So whoever looks up an address that somebody else just freed reads, at worst,
//! a record of something newer, and notices: the record names its granule.

use core::sync::atomic::{AtomicU8, AtomicU16, AtomicU32, AtomicU64, Ordering};

use umf_core::{Address, Error, Result};
use umf_runtime::tracker::{self, GRANULE, OwnerId};
use umf_sync::chunks::{Chunks, Zeroable};
use umf_sync::table::Table;

use crate::classes::{Class, Classes, QUANTUM};
use crate::je::PAGE;
use crate::pool::OWNER;

const PAGES: usize = GRANULE / PAGE;
/// Large blocks begin at multiples of it.
const LINE: u64 = 64;
/// Numbers of granules; the tracker has room for more.
const LIMIT: u32 = 1 << 30;

/// A byte: the class plus one, and two flags. 0: no block begins there.
const SMALL_CLASS: u8 = 0x3f;
const SMALL_EXPORTED: u8 = 0x40;
const SMALL_HELD: u8 = 0x80;

/// A word: the class plus one, the line of the page, and two flags.
const LARGE_CLASS: u16 = 0xff;
const LARGE_LINE: u32 = 8;
const LARGE_EXPORTED: u16 = 0x4000;
const LARGE_HELD: u16 = 0x8000;

/// What is known of 64 KiB of a region.
#[derive(Debug)]
pub(crate) struct Granule {
    /// Where it begins, plus 1; 0: it is no region's.
    begin: AtomicU64,
    /// The region's number, shifted by one; the lowest bit says that jemalloc knows it by other addresses.
    region: AtomicU32,
    /// The region's next one.
    pub(crate) next: AtomicU32,
    large: [AtomicU16; PAGES],
}

// SAFETY: all fields are atomics, and a zeroed record is a free one.
unsafe impl Zeroable for Granule {}

struct Starts([AtomicU8; GRANULE / QUANTUM]);

// SAFETY: as above.
unsafe impl Zeroable for Starts {}

/// Where it says that a block begins.
#[derive(Clone, Copy)]
enum Mark<'a> {
    Small(&'a AtomicU8),
    Large(&'a AtomicU16),
}

/// A block that was found.
#[derive(Clone, Copy)]
pub(crate) struct Block<'a> {
    pub(crate) address: Address,
    pub(crate) class: Class,
    pub(crate) granule: &'a Granule,
    mark: Mark<'a>,
}

/// What a block was whose life was taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Life {
    Plain,
    Exported,
}

/// The records of a pool.
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
    /// The region's number, and whether jemalloc knows it by other addresses.
    pub(crate) fn region(&self) -> (u32, bool) {
        let word = self.region.load(Ordering::Relaxed);
        (word >> 1, word & 1 != 0)
    }

    /// Where it begins, if it is a region's.
    pub(crate) fn begin(&self) -> Option<Address> {
        self.begin.load(Ordering::Acquire).checked_sub(1).map(Address::from_bits)
    }

    fn is_of(&self, address: Address) -> bool {
        self.begin.load(Ordering::Acquire) == begin_of(address) + 1
    }
}

impl Block<'_> {
    /// Takes the block's life, once: `None` if it has none.
    pub(crate) fn end(&self) -> Option<Life> {
        let life = match self.mark {
            Mark::Small(byte) => {
                let live = |byte: u8| (byte & !SMALL_EXPORTED == self.class.number() + 1).then_some(0);
                let old = byte.fetch_update(Ordering::AcqRel, Ordering::Relaxed, live).ok()?;
                if old & SMALL_EXPORTED == 0 { Life::Plain } else { Life::Exported }
            }
            Mark::Large(word) => {
                let live = |found: u16| (found & !LARGE_EXPORTED == self.large_word()).then_some(0);
                let old = word.fetch_update(Ordering::AcqRel, Ordering::Relaxed, live).ok()?;
                if old & LARGE_EXPORTED == 0 { Life::Plain } else { Life::Exported }
            }
        };
        if self.granule.is_of(self.address) {
            return Some(life);
        }
        // The record is another granule's by now, and so was the life.
        self.begin(life);
        None
    }

    fn large_word(&self) -> u16 {
        large_word(self.address, self.class)
    }

    /// The block is live.
    pub(crate) fn begin(&self, life: Life) {
        let is_exported = life == Life::Exported;
        match self.mark {
            Mark::Small(byte) => {
                let flag = if is_exported { SMALL_EXPORTED } else { 0 };
                byte.store((self.class.number() + 1) | flag, Ordering::Release);
            }
            Mark::Large(word) => {
                let flag = if is_exported { LARGE_EXPORTED } else { 0 };
                word.store(self.large_word() | flag, Ordering::Release);
            }
        }
    }

    /// The block, whose life was taken, is held.
    pub(crate) fn hold(&self) {
        match self.mark {
            Mark::Small(byte) => byte.store((self.class.number() + 1) | SMALL_HELD, Ordering::Release),
            Mark::Large(word) => word.store(self.large_word() | LARGE_HELD, Ordering::Release),
        }
    }

    /// Ends what [`Block::hold`] began, once; `false` if the block was not held.
    pub(crate) fn end_hold(&self) -> bool {
        let (order, other) = (Ordering::AcqRel, Ordering::Relaxed);
        match self.mark {
            Mark::Small(byte) => {
                byte.compare_exchange((self.class.number() + 1) | SMALL_HELD, 0, order, other).is_ok()
            }
            Mark::Large(word) => {
                word.compare_exchange(self.large_word() | LARGE_HELD, 0, order, other).is_ok()
            }
        }
    }

    pub(crate) fn is_held(&self) -> bool {
        match self.mark {
            Mark::Small(byte) => byte.load(Ordering::Acquire) & SMALL_HELD != 0,
            Mark::Large(word) => word.load(Ordering::Acquire) & LARGE_HELD != 0,
        }
    }

    pub(crate) fn is_exported(&self) -> bool {
        match self.mark {
            Mark::Small(byte) => byte.load(Ordering::Acquire) & SMALL_EXPORTED != 0,
            Mark::Large(word) => word.load(Ordering::Acquire) & LARGE_EXPORTED != 0,
        }
    }

    /// Flags a live block; `false` if it is not live.
    pub(crate) fn mark_exported(&self) -> bool {
        let (order, other) = (Ordering::AcqRel, Ordering::Relaxed);
        match self.mark {
            Mark::Small(byte) => {
                let live = self.class.number() + 1;
                let flagged = |byte: u8| (byte & !SMALL_EXPORTED == live).then_some(byte | SMALL_EXPORTED);
                byte.fetch_update(order, other, flagged).is_ok()
            }
            Mark::Large(word) => {
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

    /// A record for the granule around `address`, of a region.
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

    /// Ends what [`Blocks::add`] began; nothing in the granule is live.
    pub(crate) fn remove(&self, number: u32) {
        if let Some(granule) = self.granules.get(number) {
            granule.begin.store(0, Ordering::Release);
            self.granules.release(number);
        }
    }

    /// The record for an address of this pool's memory.
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

    /// The same where several regions share the granule, and where there is none.
    #[cold]
    fn granule_among_others(&self, owner: OwnerId, address: Address) -> Option<(u32, &Granule)> {
        let found = tracker::find(address).filter(|found| found.owner == owner)?;
        let granule = self.granules.get(found.span)?;
        granule.is_of(address).then_some((found.span, granule))
    }

    /// A block begins: what jemalloc just gave. `None` if the address is not in the granule's pages.
    #[inline]
    pub(crate) fn enter(&self, number: u32, granule: &Granule, address: Address, class: Class) -> Option<()> {
        if self.classes.is_small(class) {
            let byte = &self.starts.get(number)?.0[offset_of(address) / QUANTUM];
            byte.store(class.number() + 1, Ordering::Release);
        } else {
            granule.large[offset_of(address) / PAGE].store(large_word(address, class), Ordering::Release);
        }
        Some(())
    }

    /// The live or held block that begins at an address.
    #[inline]
    fn at<'a>(&'a self, number: u32, granule: &'a Granule, address: Address) -> Option<Block<'a>> {
        let offset = offset_of(address);
        let word = &granule.large[offset / PAGE];
        let found = word.load(Ordering::Acquire);
        if let Some(class) = (found & LARGE_CLASS).checked_sub(1) {
            let class = Class::new(class as u8);
            if found & !(LARGE_HELD | LARGE_EXPORTED) == large_word(address, class)
                && address.is_aligned_to(LINE as usize)
            {
                return Some(Block { address, class, granule, mark: Mark::Large(word) });
            }
        }
        if !offset.is_multiple_of(QUANTUM) {
            return None;
        }
        let byte = &self.starts.get(number)?.0[offset / QUANTUM];
        let class = Class::new((byte.load(Ordering::Acquire) & SMALL_CLASS).checked_sub(1)?);
        Some(Block { address, class, granule, mark: Mark::Small(byte) })
    }

    /// The live block that begins at an address.
    ///
    /// # Errors
    /// [`Error::ForeignAddress`], [`Error::InteriorAddress`], [`Error::NotAllocated`].
    #[inline]
    pub(crate) fn find_start(&self, owner: OwnerId, address: Address) -> Result<Block<'_>> {
        if let Some((number, granule)) = self.granule_at(owner, address)
            && let Some(block) = self.at(number, granule, address)
            && !block.is_held()
        {
            return Ok(block);
        }
        Err(self.no_start(owner, address))
    }

    /// Why no live block begins at an address.
    #[cold]
    fn no_start(&self, owner: OwnerId, address: Address) -> Error {
        match self.find(owner, address) {
            Ok(block) if block.address != address => Error::InteriorAddress { address },
            Ok(_) => Error::NotAllocated { address },
            Err(error) => error,
        }
    }

    /// The block that begins at an address and is held.
    pub(crate) fn find_held(&self, owner: OwnerId, address: Address) -> Option<Block<'_>> {
        let (number, granule) = self.granule_at(owner, address)?;
        self.at(number, granule, address).filter(Block::is_held)
    }

    /// The live block that holds an address.
    ///
    /// # Errors
    /// [`Error::ForeignAddress`], [`Error::NotAllocated`].
    pub(crate) fn find(&self, owner: OwnerId, address: Address) -> Result<Block<'_>> {
        let foreign = Error::ForeignAddress { address, owner: OWNER };
        let (number, granule) = self.granule_at(owner, address).ok_or(foreign)?;
        let block = self
            .small_around(owner, (number, granule), address)
            .or_else(|| self.large_around(owner, (number, granule), address));
        block.filter(|block| !block.is_held()).ok_or(Error::NotAllocated { address })
    }

    fn holds(&self, block: &Block<'_>, address: Address) -> bool {
        address
            .offset_from(block.address)
            .is_some_and(|offset| offset < self.classes.size(block.class) as u64)
    }

    /// The granule before one, of the same region.
    fn before(&self, owner: OwnerId, granule: &Granule, address: Address) -> Option<(u32, &Granule)> {
        let last = Address::from_bits(begin_of(address).checked_sub(1)?);
        let (number, before) = self.granule_at(owner, last)?;
        (before.region.load(Ordering::Relaxed) == granule.region.load(Ordering::Relaxed))
            .then_some((number, before))
    }

    fn small_around(&self, owner: OwnerId, at: (u32, &Granule), address: Address) -> Option<Block<'_>> {
        let reach = self.classes.largest_small().div_ceil(QUANTUM);
        let mut bits = address.to_bits() / QUANTUM as u64 * QUANTUM as u64;
        let (mut number, mut granule) = self.granules.get(at.0).map(|granule| (at.0, granule))?;
        for _ in 0..=reach {
            let place = Address::from_bits(bits);
            let byte = &self.starts.get(number)?.0[offset_of(place) / QUANTUM];
            if let Some(class) = (byte.load(Ordering::Acquire) & SMALL_CLASS).checked_sub(1) {
                let block =
                    Block { address: place, class: Class::new(class), granule, mark: Mark::Small(byte) };
                return Some(block).filter(|block| self.holds(block, address));
            }
            if offset_of(place) == 0 {
                (number, granule) = self.before(owner, granule, place)?;
            }
            bits = bits.checked_sub(QUANTUM as u64)?;
        }
        None
    }

    fn large_around(&self, owner: OwnerId, at: (u32, &Granule), address: Address) -> Option<Block<'_>> {
        let mut granule = self.granules.get(at.0)?;
        let mut begin = begin_of(address);
        let mut pages = offset_of(address) / PAGE + 1;
        loop {
            for page in (0..pages).rev() {
                let word = &granule.large[page];
                let found = word.load(Ordering::Acquire);
                let Some(class) = (found & LARGE_CLASS).checked_sub(1) else { continue };
                let line = u64::from(found & !(LARGE_HELD | LARGE_EXPORTED)) >> LARGE_LINE;
                let place = Address::from_bits(begin + (page * PAGE) as u64 + line * LINE);
                if place > address {
                    continue;
                }
                let class = Class::new(class as u8);
                let block = Block { address: place, class, granule, mark: Mark::Large(word) };
                return Some(block).filter(|block| self.holds(block, address));
            }
            granule = self.before(owner, granule, Address::from_bits(begin))?.1;
            begin -= GRANULE as u64;
            pages = PAGES;
        }
    }

    /// Shows each block of the granule that is live or held.
    pub(crate) fn each_in(&self, number: u32, mut look: impl FnMut(Block<'_>)) {
        let (Some(granule), Some(starts)) = (self.granules.get(number), self.starts.get(number)) else {
            return;
        };
        let Some(begin) = granule.begin.load(Ordering::Acquire).checked_sub(1) else { return };
        for (word, page) in granule.large.iter().zip(0_u64..) {
            let found = word.load(Ordering::Acquire);
            if let Some(class) = (found & LARGE_CLASS).checked_sub(1) {
                let line = u64::from(found & !(LARGE_HELD | LARGE_EXPORTED)) >> LARGE_LINE;
                let address = Address::from_bits(begin + page * PAGE as u64 + line * LINE);
                look(Block { address, class: Class::new(class as u8), granule, mark: Mark::Large(word) });
            }
        }
        for (byte, place) in starts.0.iter().zip(0_u64..) {
            if let Some(class) = (byte.load(Ordering::Acquire) & SMALL_CLASS).checked_sub(1) {
                let address = Address::from_bits(begin + place * QUANTUM as u64);
                look(Block { address, class: Class::new(class), granule, mark: Mark::Small(byte) });
            }
        }
    }
}
