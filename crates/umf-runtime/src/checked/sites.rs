//! [`Sites`]: the live blocks of a pool, and the stacks that allocated them.

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

/// A hasher whose construction needs no memory.
type Hashing = BuildHasherDefault<DefaultHasher>;

/// The limit of the number of sites. Blocks from further sites are recorded without one.
const MAX_SITES: usize = 1 << 16;

type Map<K, V> = HashMap<K, V, Hashing, Mapped>;

/// A live block.
#[derive(Clone, Copy)]
pub(super) struct LiveBlock {
    /// The index of the site in [`Table::stacks`]; `None` if it was not sampled.
    site: Option<u32>,
    /// The requested size in bytes.
    requested: u64,
    /// The size of the block in bytes.
    size: u64,
    /// The time of the allocation, since the pool was made.
    at: Duration,
}

struct Table {
    stacks: Vec<Stack, Mapped>,
    /// The index of each stack in `stacks`.
    indices: Map<Stack, u32>,
    blocks: Map<u64, LiveBlock>,
}

/// Allocation sites and live blocks. Neither this nor the code under its lock uses the global
/// allocator.
pub(super) struct Sites {
    /// One in `sample` allocations records its site; 0 is none.
    sample: u32,
    /// Blocks without a site are recorded too, because the pool does not count its blocks.
    records_all: bool,
    /// Allocations so far, to select the sample.
    allocations: AtomicU64,
    table: Lock<Table>,
}

thread_local! {
    /// The thread is capturing its stack. Allocations of the capture itself are not sampled.
    static IS_CAPTURING: Cell<bool> = const { Cell::new(false) };
}

impl Sites {
    pub(super) fn new(sample: u32, records_all: bool) -> Self {
        let table = Table {
            stacks: Vec::new_in(Mapped),
            indices: Map::with_hasher_in(Hashing::default(), Mapped),
            blocks: Map::with_hasher_in(Hashing::default(), Mapped),
        };
        Self { sample, records_all, allocations: AtomicU64::new(0), table: Lock::new(table) }
    }

    /// Returns how many allocations there are for each one that records its site; 0 is none.
    pub(super) const fn sample(&self) -> u32 {
        self.sample
    }

    /// Records an allocation of the calling thread, with its site if it is in the sample.
    pub(super) fn insert(&self, address: Address, requested: u64, size: u64, at: Duration) {
        let stack = self.is_sampled().then(|| {
            let stack = umf_os::stack::capture();
            IS_CAPTURING.set(false);
            stack
        });
        if stack.is_some() || self.records_all {
            self.table.lock().insert(address, stack, LiveBlock { site: None, requested, size, at });
        }
    }

    /// Returns whether this allocation is in the sample. If so, sets [`IS_CAPTURING`].
    fn is_sampled(&self) -> bool {
        let is_in_sample = match self.sample {
            0 => false,
            1 => true,
            sample => self.allocations.fetch_add(1, Ordering::Relaxed).is_multiple_of(u64::from(sample)),
        };
        is_in_sample && !IS_CAPTURING.replace(true)
    }

    /// Removes a block, before it is freed.
    pub(super) fn remove(&self, address: Address) -> Option<LiveBlock> {
        self.table.lock().blocks.remove(&address.to_bits())
    }

    /// Inserts a removed block again, because its free failed.
    pub(super) fn restore(&self, address: Address, block: LiveBlock) {
        let mut table = self.table.lock();
        if table.blocks.try_reserve(1).is_ok() {
            table.blocks.insert(address.to_bits(), block);
        }
    }

    /// Returns the live blocks by size, smallest first, and by site, most bytes first. Returns
    /// empty lists without memory for them.
    pub(super) fn live(&self, now: Duration) -> (Vec<LeakSize, Mapped>, Vec<LeakSite, Mapped>) {
        let (mut sizes, mut sites) = (Vec::new_in(Mapped), Vec::new_in(Mapped));
        let table = self.table.lock();
        let (stacks, blocks) = (table.stacks.len(), table.blocks.len());
        if sites.try_reserve_exact(stacks).is_err() || sizes.try_reserve_exact(blocks).is_err() {
            return (sizes, sites);
        }
        let empty = |&stack: &Stack| LeakSite { stack, blocks: 0, bytes: 0, oldest: Duration::ZERO };
        sites.extend(table.stacks.iter().map(empty));
        for block in table.blocks.values() {
            sizes.push(LeakSize { block_size: block.size, blocks: 1 });
            if let Some(site) = block.site.and_then(|site| sites.get_mut(site as usize)) {
                site.blocks += 1;
                site.bytes += block.requested;
                site.oldest = site.oldest.max(now.saturating_sub(block.at));
            }
        }
        drop(table);
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

impl Table {
    /// Inserts a block. Without memory for it, it is left out.
    fn insert(&mut self, address: Address, stack: Option<Stack>, mut block: LiveBlock) {
        block.site = stack.and_then(|stack| self.site(stack));
        if self.blocks.try_reserve(1).is_ok() {
            self.blocks.insert(address.to_bits(), block);
        }
    }

    /// Returns the index of a site, and adds it if it is new. `None` at the limit or without
    /// memory.
    fn site(&mut self, stack: Stack) -> Option<u32> {
        if let Some(&site) = self.indices.get(&stack) {
            return Some(site);
        }
        if self.stacks.len() >= MAX_SITES {
            return None;
        }
        self.indices.try_reserve(1).ok()?;
        self.stacks.try_reserve(1).ok()?;
        let site = u32::try_from(self.stacks.len()).ok()?;
        self.stacks.push(stack);
        self.indices.insert(stack, site);
        Some(site)
    }
}
