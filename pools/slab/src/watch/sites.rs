//! [`Sites`]: where live blocks were allocated, or some of them.

use core::cell::Cell;
use core::hash::BuildHasherDefault;
use core::sync::atomic::{AtomicU64, Ordering};
use core::time::Duration;
use std::hash::DefaultHasher;

use allocator_api2::vec::Vec;
use hashbrown::HashMap;
use umf_core::Address;
use umf_core::leaks::{LeakSite, Stack};
use umf_runtime::metadata::Mapped;
use umf_sync::Lock;

/// Of a kind that needs no memory for being made.
type Hashing = BuildHasherDefault<DefaultHasher>;

/// The most different sites; what comes from others is not remembered.
const MOST_SITES: usize = 1 << 16;

type Map<K, V> = HashMap<K, V, Hashing, Mapped>;

/// A block that is remembered.
#[derive(Clone, Copy)]
struct Remembered {
    site: u32,
    /// What was asked for.
    bytes: u64,
    at: Duration,
}

struct Known {
    numbers: Map<Stack, u32>,
    stacks: Vec<Stack, Mapped>,
    blocks: Map<u64, Remembered>,
}

/// Sites, and the blocks that are live from there. Nothing in it is from the global allocator, nor is what is done under its lock.
pub(crate) struct Sites {
    /// One in so many allocations is remembered.
    sample: u32,
    count: AtomicU64,
    known: Lock<Known>,
}

thread_local! {
    /// This thread is finding out where it is: what it allocates for that is not remembered.
    static LOOKS: Cell<bool> = const { Cell::new(false) };
}

impl Sites {
    pub(crate) fn new(sample: u32) -> Self {
        let known = Known {
            numbers: Map::with_hasher_in(Hashing::default(), Mapped),
            stacks: Vec::new_in(Mapped),
            blocks: Map::with_hasher_in(Hashing::default(), Mapped),
        };
        Self { sample, count: AtomicU64::new(0), known: Lock::new(known) }
    }

    pub(crate) const fn sample(&self) -> u32 {
        self.sample
    }

    /// Remembers that a block was allocated here, if it is its turn; whether it is remembered.
    pub(crate) fn remember(&self, address: Address, bytes: u64, at: Duration) -> bool {
        let turn = self.sample <= 1
            || self.count.fetch_add(1, Ordering::Relaxed).is_multiple_of(u64::from(self.sample));
        if !turn || LOOKS.replace(true) {
            return false;
        }
        let stack = umf_os::stack::capture();
        LOOKS.set(false);
        self.known.lock().insert(address, stack, bytes, at).is_some()
    }

    /// A remembered block is free.
    pub(crate) fn forget(&self, address: Address) {
        self.known.lock().blocks.remove(&address.to_bits());
    }

    /// Every site from which blocks are live, those with most bytes first. What there is no memory for is left out.
    pub(crate) fn live(&self, now: Duration) -> Vec<LeakSite, Mapped> {
        let mut sites = Vec::new_in(Mapped);
        let known = self.known.lock();
        if sites.try_reserve_exact(known.stacks.len()).is_err() {
            return sites;
        }
        let none = |&stack: &Stack| LeakSite { stack, blocks: 0, bytes: 0, oldest: Duration::ZERO };
        sites.extend(known.stacks.iter().map(none));
        for block in known.blocks.values() {
            if let Some(site) = sites.get_mut(block.site as usize) {
                site.blocks += 1;
                site.bytes += block.bytes;
                site.oldest = site.oldest.max(now.saturating_sub(block.at));
            }
        }
        drop(known);
        sites.retain(|site| site.blocks > 0);
        sites.sort_unstable_by_key(|site| core::cmp::Reverse((site.bytes, site.blocks)));
        sites
    }
}

impl Known {
    fn insert(&mut self, address: Address, stack: Stack, bytes: u64, at: Duration) -> Option<()> {
        self.blocks.try_reserve(1).ok()?;
        let site = match self.numbers.get(&stack) {
            Some(&site) => site,
            None if self.stacks.len() < MOST_SITES => {
                self.numbers.try_reserve(1).ok()?;
                self.stacks.try_reserve(1).ok()?;
                let site = u32::try_from(self.stacks.len()).ok()?;
                self.stacks.push(stack);
                self.numbers.insert(stack, site);
                site
            }
            None => return None,
        };
        self.blocks.insert(address.to_bits(), Remembered { site, bytes, at });
        Some(())
    }
}
