//! [`Frees`]: the blocks that threads are freeing.
//!
//! A pool may free blocks without an atomic exchange. If two threads free a block in the same instant,
//! such a pool may let both frees succeed, and find out later. Here the second one is refused, because
//! the first one is still under way.

use allocator_api2::vec::Vec;
use umf_core::Address;
use umf_sync::{Lock, fork};

use crate::metadata::Mapped;

const SHARDS: usize = 16;

/// The addresses of a shard.
struct Shard {
    under_way: Vec<u64, Mapped>,
    /// The process that added them, as [`fork::generation`] counts. The other threads of the parent
    /// do not end their frees in a forked child.
    process: u32,
}

/// The addresses of blocks that are being freed.
pub(super) struct Frees([Lock<Shard>; SHARDS]);

/// A free that is under way, until this is dropped.
pub(super) struct UnderWay<'a> {
    shard: &'a Lock<Shard>,
    address: u64,
}

impl Frees {
    pub(super) const fn new() -> Self {
        Self([const { Lock::new(Shard { under_way: Vec::new_in(Mapped), process: 0 }) }; SHARDS])
    }

    /// Begins the free of the block at `address`; `None` if another one is under way. Without memory
    /// the free goes on unnoticed.
    pub(super) fn begin(&self, address: Address) -> Option<UnderWay<'_>> {
        let address = address.to_bits();
        let number = address.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 60;
        let shard = &self.0[number as usize % SHARDS];
        let mut locked = shard.lock();
        let process = fork::generation();
        if core::mem::replace(&mut locked.process, process) != process {
            locked.under_way.clear();
        }
        if locked.under_way.contains(&address) {
            return None;
        }
        if locked.under_way.try_reserve(1).is_ok() {
            locked.under_way.push(address);
        }
        Some(UnderWay { shard, address })
    }
}

impl Drop for UnderWay<'_> {
    fn drop(&mut self) {
        let under_way = &mut self.shard.lock().under_way;
        if let Some(place) = under_way.iter().position(|&address| address == self.address) {
            under_way.swap_remove(place);
        }
    }
}
