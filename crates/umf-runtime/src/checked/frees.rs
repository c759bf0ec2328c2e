//! [`Frees`]: the blocks that threads are freeing.
//!
//! A pool may free blocks without an atomic exchange. If two threads free a block in the same
//! instant, such a pool may let both frees succeed, and find out later. Here the second one is
//! refused, because the first one is still under way.
//!
//! The pool may hand a block out again before the thread that frees it is done. Then the free is
//! not under way any more: [`Frees::end`].

use allocator_api2::vec::Vec;
use umf_core::Address;
use umf_sync::{Lock, fork};

use crate::metadata::Mapped;

const SHARDS: usize = 16;

/// Some of the addresses.
struct Shard {
    /// Address and number of each free.
    under_way: Vec<(u64, u64), Mapped>,
    next: u64,
    /// The process that added them, as [`fork::generation`] counts. The other threads of the parent
    /// do not end their frees in a forked child.
    process: u32,
}

/// The addresses of blocks that are being freed.
pub(super) struct Frees([Lock<Shard>; SHARDS]);

/// A free that is under way, until this is dropped.
pub(super) struct UnderWay<'a> {
    shard: &'a Lock<Shard>,
    number: u64,
}

impl Frees {
    pub(super) const fn new() -> Self {
        Self([const { Lock::new(Shard { under_way: Vec::new_in(Mapped), next: 0, process: 0 }) }; SHARDS])
    }

    fn shard(&self, address: Address) -> &Lock<Shard> {
        let number = address.to_bits().wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 60;
        &self.0[number as usize % SHARDS]
    }

    /// Begins the free of the block at `address`; `None` if another one is under way. Without
    /// memory the free goes on unnoticed.
    pub(super) fn begin(&self, address: Address) -> Option<UnderWay<'_>> {
        let shard = self.shard(address);
        let mut locked = shard.lock();
        let process = fork::generation();
        if core::mem::replace(&mut locked.process, process) != process {
            locked.under_way.clear();
        }
        if locked.under_way.iter().any(|&(other, _)| other == address.to_bits()) {
            return None;
        }
        locked.next += 1;
        let number = locked.next;
        if locked.under_way.try_reserve(1).is_ok() {
            locked.under_way.push((address.to_bits(), number));
        }
        Some(UnderWay { shard, number })
    }

    /// Ends the free of a block that was handed out again.
    pub(super) fn end(&self, address: Address) {
        self.shard(address).lock().under_way.retain(|&(other, _)| other != address.to_bits());
    }
}

impl Drop for UnderWay<'_> {
    fn drop(&mut self) {
        self.shard.lock().under_way.retain(|&(_, number)| number != self.number);
    }
}
