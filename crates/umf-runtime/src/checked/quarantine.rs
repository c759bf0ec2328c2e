//! [`Quarantine`]: a queue of freed blocks that are not reused yet, so that a late write is detected.
//!
//! A quarantined block is a deferred free ([`crate::deferred`]): it was freed with a completion.
//! The completion becomes ready when newer blocks push the block out of the queue. It also counts
//! as ready while all deferred frees are polled: when the pool is trimmed or drained, and before an
//! allocation fails.

use core::hash::BuildHasherDefault;
use core::sync::atomic::{AtomicU8, Ordering};
use std::hash::DefaultHasher;
use std::sync::Arc;

use allocator_api2::vec::Vec;
use hashbrown::HashMap;
use umf_sync::{Lock, LockGuard, fork};

use super::CheckSettings;
use crate::deferred;
use crate::metadata::Mapped;
use umf_core::map::{Piece, PieceState};
use umf_core::{Address, BlockSpan, Completion, DeferredFree, Progress, Result};

/// Poison: filling a freed block with one byte, and finding a byte that was written later. Only
/// these functions touch the memory, and only if the provider's memory is host-accessible.
pub(super) mod poison {
    use umf_core::Address;

    const WORD: usize = size_of::<u64>();

    /// Fills a block.
    ///
    /// # Safety
    /// The caller owns the block, and the CPU may write to it.
    pub(crate) unsafe fn fill(address: Address, size: usize, byte: u8) {
        if let Some(pointer) = address.as_ptr() {
            // SAFETY: passed on to the caller.
            unsafe { pointer.write_bytes(byte, size) };
        }
    }

    /// Returns the offset of the first byte of a block that differs from `byte`.
    ///
    /// # Safety
    /// The block is free or the caller owns it, and the CPU may read it. Other threads may write to
    /// it meanwhile, which is the error that this detects.
    pub(crate) unsafe fn first_difference(address: Address, size: usize, byte: u8) -> Option<usize> {
        let pointer = address.as_ptr()?;
        let differs = |&offset: &usize| {
            // SAFETY: the offset is below the size. Volatile, because other threads may write.
            unsafe { pointer.add(offset).read_volatile() != byte }
        };
        let pattern = u64::from_ne_bytes([byte; WORD]);
        // Pools align blocks to 8 bytes. A block with another alignment is compared bytewise.
        let words = if pointer.addr().is_multiple_of(WORD) { size / WORD } else { 0 };
        let different_word = (0..words).find(|&word| {
            // SAFETY: the word is aligned, and ends below the size.
            unsafe { pointer.cast::<u64>().add(word).read_volatile() != pattern }
        });
        match different_word {
            Some(word) => (word * WORD..size).find(differs),
            None => (words * WORD..size).find(differs),
        }
    }
}

/// The block is freed, and is being filled with poison.
const ENTERING: u8 = 0;
/// The block is in the queue.
const QUEUED: u8 = 1;
/// The pool may reuse the block.
const RELEASED: u8 = 2;

/// A block in quarantine. It is the completion of the deferred free of this block.
struct Entry {
    block: BlockSpan,
    state: AtomicU8,
}

impl Completion for Entry {
    fn progress(&self) -> Progress {
        match self.state.load(Ordering::Acquire) {
            RELEASED => Progress::Ready,
            QUEUED if deferred::is_polling_all() => Progress::Ready,
            _ => Progress::Pending,
        }
    }

    fn yields_to_leases(&self) -> bool {
        true
    }
}

/// The quarantined blocks, in the order of their frees.
struct Queue {
    /// New entries are pushed here.
    back: Vec<Arc<Entry>, Mapped>,
    /// The oldest entry is the last of this. When it is empty, it takes over `back`, reversed.
    front: Vec<Arc<Entry>, Mapped>,
    /// The entries by address, until the pool reclaims the block.
    blocks: HashMap<u64, Arc<Entry>, BuildHasherDefault<DefaultHasher>, Mapped>,
    /// Bytes in `blocks`.
    bytes: u64,
    /// The part of `bytes` that is not released.
    unreleased: u64,
    /// The process of these entries ([`fork::generation`]). A forked child starts with an empty
    /// queue: it never reuses a block that its parent has freed.
    process: u32,
}

impl Queue {
    fn new() -> Self {
        Self {
            back: Vec::new_in(Mapped),
            front: Vec::new_in(Mapped),
            blocks: HashMap::with_hasher_in(BuildHasherDefault::default(), Mapped),
            bytes: 0,
            unreleased: 0,
            process: fork::generation(),
        }
    }

    /// Returns the oldest entry.
    fn oldest(&mut self) -> Option<&Arc<Entry>> {
        if self.front.is_empty() {
            core::mem::swap(&mut self.front, &mut self.back);
            self.front.reverse();
        }
        self.front.last()
    }

    fn pop(&mut self) -> Option<Arc<Entry>> {
        self.oldest()?;
        self.front.pop()
    }

    fn release(&mut self, entry: &Entry) {
        if entry.state.swap(RELEASED, Ordering::AcqRel) == QUEUED {
            self.unreleased -= entry.block.size as u64;
        }
    }

    /// Releases the oldest blocks until at most `limit` bytes are unreleased.
    fn release_down_to(&mut self, limit: u64) {
        while self.unreleased > limit
            && let Some(entry) = self.pop()
        {
            self.release(&entry);
        }
    }

    /// Adds an entry. Without memory for it, the block is released at once.
    fn push(&mut self, entry: Arc<Entry>) {
        let size = entry.block.size as u64;
        if self.back.try_reserve(1).is_err() || self.blocks.try_reserve(1).is_err() {
            return entry.state.store(RELEASED, Ordering::Release);
        }
        // Entries whose block was reclaimed early would otherwise accumulate.
        while self.oldest().is_some_and(|oldest| oldest.state.load(Ordering::Relaxed) == RELEASED) {
            self.front.pop();
        }
        self.blocks.insert(entry.block.address.to_bits(), Arc::clone(&entry));
        (self.bytes, self.unreleased) = (self.bytes + size, self.unreleased + size);
        // From here on the pool may reclaim the block.
        entry.state.store(QUEUED, Ordering::Release);
        self.back.push(entry);
    }
}

/// Up to `capacity` bytes of freed blocks that the pool does not reuse yet.
pub(super) struct Quarantine {
    capacity: u64,
    queue: Lock<Queue>,
}

impl Quarantine {
    pub(super) fn new(capacity: u64) -> Self {
        Self { capacity, queue: Lock::new(Queue::new()) }
    }

    /// Returns whether a block of `size` bytes fits.
    pub(super) const fn fits(&self, size: usize) -> bool {
        size as u64 <= self.capacity
    }

    fn queue(&self) -> LockGuard<'_, Queue> {
        let mut queue = self.queue.lock();
        if queue.process != fork::generation() {
            *queue = Queue::new();
        }
        queue
    }

    /// Frees a block into the quarantine. A block that other processes have open does not enter it,
    /// because its leases hold it.
    ///
    /// # Safety
    /// As [`DeferredFree::free_after`]. If `has_poison`, the CPU may write to the block.
    pub(super) unsafe fn free(
        &self,
        pool: &dyn DeferredFree,
        block: BlockSpan,
        has_poison: bool,
    ) -> Result<()> {
        let entry = Arc::new(Entry { block, state: AtomicU8::new(ENTERING) });
        let completion: Arc<dyn Completion> = Arc::clone(&entry) as _;
        // SAFETY: passed on to the caller.
        unsafe { pool.free_after(block.address, completion) }?;
        // The pool has dropped the completion: the leases of the block hold it.
        if Arc::strong_count(&entry) == 1 {
            return Ok(());
        }
        if has_poison {
            // SAFETY: the pool holds the block until the completion is ready, and no process has it
            // open.
            unsafe { poison::fill(block.address, block.size, CheckSettings::FREED_BYTE) };
        }
        let mut queue = self.queue();
        queue.push(entry);
        queue.release_down_to(self.capacity);
        Ok(())
    }

    /// Removes the block at `address`, which the pool reclaims. Returns its size if it was in
    /// quarantine.
    pub(super) fn remove(&self, address: Address) -> Option<usize> {
        let mut queue = self.queue();
        let entry = queue.blocks.remove(&address.to_bits())?;
        queue.bytes -= entry.block.size as u64;
        queue.release(&entry);
        Some(entry.block.size)
    }

    /// Releases all blocks.
    pub(super) fn release_all(&self) {
        self.queue().release_down_to(0);
    }

    /// Returns the bytes of the quarantined blocks.
    pub(super) fn bytes(&self) -> u64 {
        self.queue().bytes
    }

    /// Returns the pieces of the region at `base`, with quarantined blocks marked as such.
    pub(super) fn relabel(&self, base: Address, pieces: &[Piece]) -> std::vec::Vec<Piece> {
        let mut all = std::vec::Vec::with_capacity(pieces.len());
        for piece in pieces {
            if piece.state != PieceState::Held {
                all.push(*piece);
                continue;
            }
            for index in 0..piece.count {
                let offset = piece.offset + index * piece.block_size;
                let is_quarantined = self.queue().blocks.contains_key(&(base.to_bits() + offset));
                let state = if is_quarantined { PieceState::Quarantined } else { PieceState::Held };
                match all.last_mut() {
                    Some(last) if index > 0 && last.state == state => last.count += 1,
                    _ => all.push(Piece { offset, count: 1, state, ..*piece }),
                }
            }
        }
        all
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn queue_drops_entries_of_blocks_that_were_reclaimed_early() {
        let quarantine = Quarantine::new(1 << 30);
        for number in 0..10_000 {
            let address = Address::from_bits(4096 * (number + 1));
            let block = BlockSpan { address, size: 64 };
            quarantine.queue().push(Arc::new(Entry { block, state: AtomicU8::new(ENTERING) }));
            assert_eq!(quarantine.remove(address), Some(64));
        }
        let queue = quarantine.queue();
        let length = queue.back.len() + queue.front.len();
        assert!(length <= 2, "{length} entries are left");
        assert_eq!((queue.bytes, queue.unreleased, queue.blocks.len()), (0, 0, 0));
    }

    #[test]
    fn first_difference_is_found_at_every_offset_and_alignment() {
        let mut memory = [0_u64; 20];
        let base = Address::from_ptr(memory.as_mut_ptr());
        for (start, size) in [(0, 1), (0, 8), (0, 100), (0, 160), (1, 57), (3, 8)] {
            let address = base.checked_add(start).unwrap();
            // SAFETY: all accesses of this test lie within the array.
            unsafe { poison::fill(address, size, 7) };
            // SAFETY: as above.
            assert_eq!(unsafe { poison::first_difference(address, size, 7) }, None);
            for offset in 0..size {
                // SAFETY: within the array.
                unsafe { address.as_ptr().unwrap().add(offset).write(8) };
                // SAFETY: within the array.
                let found = unsafe { poison::first_difference(address, size, 7) };
                assert_eq!(found, Some(offset), "{size} from {start}");
                // SAFETY: within the array.
                unsafe { address.as_ptr().unwrap().add(offset).write(7) };
            }
        }
    }
}
