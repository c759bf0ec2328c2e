//! [`ActiveFrees`]: the blocks that threads are freeing right now.
//!
//! A pool may free blocks without an atomic exchange. If two threads free a block at the same time,
//! such a pool may report success to both and detect the double free later. The checked pool fails
//! the second free, because the first one is still active.
//!
//! A pool may hand out the block again before the thread that frees it has left the checked pool. A
//! new allocation therefore ends the active free of its address ([`ActiveFrees::end`]).

use allocator_api2::vec::Vec;
use umf_core::Address;
use umf_sync::{Lock, fork};

use crate::metadata::Mapped;

const SHARDS: usize = 16;

/// The active frees of the addresses with one hash.
struct Shard {
    /// The address and the number of each free.
    entries: Vec<(u64, u64), Mapped>,
    last_number: u64,
    /// The process that added the entries ([`fork::generation`]). A forked child drops them: the
    /// parent's other threads do not exist there.
    process: u32,
}

/// The addresses of the blocks that are being freed.
pub(super) struct ActiveFrees([Lock<Shard>; SHARDS]);

/// A free that is active until this is dropped.
pub(super) struct ActiveFree<'a> {
    shard: &'a Lock<Shard>,
    number: u64,
}

impl ActiveFrees {
    pub(super) const fn new() -> Self {
        Self(
            [const { Lock::new(Shard { entries: Vec::new_in(Mapped), last_number: 0, process: 0 }) }; SHARDS],
        )
    }

    fn shard(&self, address: Address) -> &Lock<Shard> {
        let number = address.to_bits().wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 60;
        &self.0[number as usize % SHARDS]
    }

    /// Begins the free of the block at `address`. Returns `None` if another free of it is active.
    /// If there is no memory for the entry, the free is not tracked.
    pub(super) fn begin(&self, address: Address) -> Option<ActiveFree<'_>> {
        let shard = self.shard(address);
        let mut locked = shard.lock();
        let process = fork::generation();
        if core::mem::replace(&mut locked.process, process) != process {
            locked.entries.clear();
        }
        if locked.entries.iter().any(|&(other, _)| other == address.to_bits()) {
            return None;
        }
        locked.last_number += 1;
        let number = locked.last_number;
        if locked.entries.try_reserve(1).is_ok() {
            locked.entries.push((address.to_bits(), number));
        }
        Some(ActiveFree { shard, number })
    }

    /// Ends the active free of a block that the pool has handed out again.
    pub(super) fn end(&self, address: Address) {
        self.shard(address).lock().entries.retain(|&(other, _)| other != address.to_bits());
    }
}

impl Drop for ActiveFree<'_> {
    fn drop(&mut self) {
        self.shard.lock().entries.retain(|&(_, number)| number != self.number);
    }
}
