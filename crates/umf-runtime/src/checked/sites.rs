//! [`Sites`]: live blocks, and where they were allocated.

use core::cell::Cell;
use core::hash::BuildHasherDefault;
use core::sync::atomic::{AtomicU64, Ordering};
use core::time::Duration;
use std::hash::DefaultHasher;

use allocator_api2::vec::Vec;
use hashbrown::HashMap;
use umf_sync::Lock;

use crate::metadata::Mapped;
use umf_core::Address;
use umf_core::leaks::{LeakSite, LeakSize, Stack};

/// Of a kind that needs no memory for being made.
type Hashing = BuildHasherDefault<DefaultHasher>;

/// The most different sites; what comes from others is not remembered.
const MOST_SITES: usize = 1 << 16;

type Map<K, V> = HashMap<K, V, Hashing, Mapped>;

/// A block that is remembered.
#[derive(Clone, Copy)]
pub(super) struct Remembered {
    /// `None` if its site is not known.
    site: Option<u32>,
    /// What was asked for.
    bytes: u64,
    /// Its size.
    size: u64,
    at: Duration,
}

struct Known {
    numbers: Map<Stack, u32>,
    stacks: Vec<Stack, Mapped>,
    blocks: Map<u64, Remembered>,
}

/// Sites, and the blocks that are live from there. Nothing in it is from the global allocator, nor
/// is what is done under its lock.
pub(super) struct Sites {
    /// The site of one in so many allocations is remembered; 0: of none.
    sample: u32,
    /// Blocks without a site are remembered too, since the pool does not count them.
    all: bool,
    count: AtomicU64,
    known: Lock<Known>,
}

thread_local! {
    /// This thread is finding out where it is: what it allocates for that is not remembered.
    static LOOKS: Cell<bool> = const { Cell::new(false) };
}

impl Sites {
    pub(super) fn new(sample: u32, all: bool) -> Self {
        let known = Known {
            numbers: Map::with_hasher_in(Hashing::default(), Mapped),
            stacks: Vec::new_in(Mapped),
            blocks: Map::with_hasher_in(Hashing::default(), Mapped),
        };
        Self { sample, all, count: AtomicU64::new(0), known: Lock::new(known) }
    }

    pub(super) const fn sample(&self) -> u32 {
        self.sample
    }

    /// Remembers a block that is allocated here, with its site if it is its turn.
    pub(super) fn remember(&self, address: Address, bytes: u64, size: u64, at: Duration) {
        let stack = self.is_turn().then(|| {
            let stack = umf_os::stack::capture();
            LOOKS.set(false);
            stack
        });
        if stack.is_some() || self.all {
            self.known.lock().insert(address, stack, Remembered { site: None, bytes, size, at });
        }
    }

    fn is_turn(&self) -> bool {
        let turn = match self.sample {
            0 => false,
            1 => true,
            sample => self.count.fetch_add(1, Ordering::Relaxed).is_multiple_of(u64::from(sample)),
        };
        turn && !LOOKS.replace(true)
    }

    /// A block is about to be freed.
    pub(super) fn forget(&self, address: Address) -> Option<Remembered> {
        self.known.lock().blocks.remove(&address.to_bits())
    }

    /// It was not freed.
    pub(super) fn put_back(&self, address: Address, block: Remembered) {
        let mut known = self.known.lock();
        if known.blocks.try_reserve(1).is_ok() {
            known.blocks.insert(address.to_bits(), block);
        }
    }

    /// Live blocks by size, the smallest first, and by site, those with most bytes first. What
    /// there is no memory for is left out.
    pub(super) fn live(&self, now: Duration) -> (Vec<LeakSize, Mapped>, Vec<LeakSite, Mapped>) {
        let (mut sizes, mut sites) = (Vec::new_in(Mapped), Vec::new_in(Mapped));
        let known = self.known.lock();
        let (count, blocks) = (known.stacks.len(), known.blocks.len());
        if sites.try_reserve_exact(count).is_err() || sizes.try_reserve_exact(blocks).is_err() {
            return (sizes, sites);
        }
        let none = |&stack: &Stack| LeakSite { stack, blocks: 0, bytes: 0, oldest: Duration::ZERO };
        sites.extend(known.stacks.iter().map(none));
        for block in known.blocks.values() {
            sizes.push(LeakSize { block_size: block.size, blocks: 1 });
            if let Some(site) = block.site.and_then(|site| sites.get_mut(site as usize)) {
                site.blocks += 1;
                site.bytes += block.bytes;
                site.oldest = site.oldest.max(now.saturating_sub(block.at));
            }
        }
        drop(known);
        sites.retain(|site| site.blocks > 0);
        sites.sort_unstable_by_key(|site| core::cmp::Reverse((site.bytes, site.blocks)));
        sizes.sort_unstable_by_key(|size| size.block_size);
        sizes.dedup_by(|next, first| {
            let is_same = next.block_size == first.block_size;
            first.blocks += if is_same { next.blocks } else { 0 };
            is_same
        });
        (sizes, sites)
    }
}

impl Known {
    /// Without memory for it the block is not remembered.
    fn insert(&mut self, address: Address, stack: Option<Stack>, mut block: Remembered) {
        block.site = stack.and_then(|stack| self.number(stack));
        if self.blocks.try_reserve(1).is_ok() {
            self.blocks.insert(address.to_bits(), block);
        }
    }

    fn number(&mut self, stack: Stack) -> Option<u32> {
        if let Some(&site) = self.numbers.get(&stack) {
            return Some(site);
        }
        if self.stacks.len() >= MOST_SITES {
            return None;
        }
        self.numbers.try_reserve(1).ok()?;
        self.stacks.try_reserve(1).ok()?;
        let site = u32::try_from(self.stacks.len()).ok()?;
        self.stacks.push(stack);
        self.numbers.insert(stack, site);
        Some(site)
    }
}
