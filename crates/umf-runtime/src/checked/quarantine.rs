//! [`Quarantine`]: a freed block waits for a while, so that a late write to it is found.
//!
//! The pool holds the block as it holds one that a device uses: it was freed with a completion.
//! That completion is ready once newer blocks have pushed the block out, and wherever everything
//! that is held is looked at ([`crate::deferred`]): when the pool is trimmed or drained, and before
//! an allocation fails.

use core::hash::BuildHasherDefault;
use core::sync::atomic::{AtomicU8, Ordering};
use std::hash::DefaultHasher;
use std::sync::Arc;

use allocator_api2::vec::Vec;
use hashbrown::HashMap;
use umf_sync::{Lock, LockGuard, fork};

use super::{CheckSettings, poison};
use crate::deferred;
use crate::metadata::Mapped;
use umf_core::map::{Piece, PieceState};
use umf_core::{Address, BlockSpan, Completion, DeferredFree, Progress, Result};

/// The pool has the block, and it is being filled.
const ENTERING: u8 = 0;
const WAITING: u8 = 1;
const RELEASED: u8 = 2;

/// The wait of one block.
struct Wait {
    block: BlockSpan,
    state: AtomicU8,
}

impl Completion for Wait {
    fn progress(&self) -> Progress {
        match self.state.load(Ordering::Acquire) {
            RELEASED => Progress::Ready,
            WAITING if deferred::is_polling_all() => Progress::Ready,
            _ => Progress::Pending,
        }
    }

    fn yields_to_leases(&self) -> bool {
        true
    }
}

/// What waits, in the order in which it was freed.
struct Waits {
    /// Appended here.
    back: Vec<Arc<Wait>, Mapped>,
    /// Taken from here, the last first.
    front: Vec<Arc<Wait>, Mapped>,
    /// By address, until the pool has the block back.
    blocks: HashMap<u64, Arc<Wait>, BuildHasherDefault<DefaultHasher>, Mapped>,
    /// Bytes in `blocks`.
    bytes: u64,
    /// Of these, bytes that are not released.
    waiting: u64,
    /// The process, as [`fork::generation`] counts: what waits in the parent never comes back here.
    process: u32,
}

impl Waits {
    fn new() -> Self {
        Self {
            back: Vec::new_in(Mapped),
            front: Vec::new_in(Mapped),
            blocks: HashMap::with_hasher_in(BuildHasherDefault::default(), Mapped),
            bytes: 0,
            waiting: 0,
            process: fork::generation(),
        }
    }

    /// The oldest.
    fn first(&mut self) -> Option<&Arc<Wait>> {
        if self.front.is_empty() {
            core::mem::swap(&mut self.front, &mut self.back);
            self.front.reverse();
        }
        self.front.last()
    }

    fn next(&mut self) -> Option<Arc<Wait>> {
        self.first()?;
        self.front.pop()
    }

    fn release(&mut self, wait: &Wait) {
        if wait.state.swap(RELEASED, Ordering::AcqRel) == WAITING {
            self.waiting -= wait.block.size as u64;
        }
    }

    /// Releases the oldest until at most `most` bytes wait.
    fn release_above(&mut self, most: u64) {
        while self.waiting > most
            && let Some(wait) = self.next()
        {
            self.release(&wait);
        }
    }

    fn push(&mut self, wait: Arc<Wait>) {
        let size = wait.block.size as u64;
        if self.back.try_reserve(1).is_err() || self.blocks.try_reserve(1).is_err() {
            return wait.state.store(RELEASED, Ordering::Release);
        }
        // What was reclaimed before its turn is not kept in the line.
        while self.first().is_some_and(|first| first.state.load(Ordering::Relaxed) == RELEASED) {
            self.front.pop();
        }
        self.blocks.insert(wait.block.address.to_bits(), Arc::clone(&wait));
        (self.bytes, self.waiting) = (self.bytes + size, self.waiting + size);
        // From here on the pool may take the block back.
        wait.state.store(WAITING, Ordering::Release);
        self.back.push(wait);
    }
}

pub(super) struct Quarantine {
    most: u64,
    waits: Lock<Waits>,
}

impl Quarantine {
    pub(super) fn new(most: u64) -> Self {
        Self { most, waits: Lock::new(Waits::new()) }
    }

    pub(super) const fn takes(&self, size: usize) -> bool {
        size as u64 <= self.most
    }

    fn waits(&self) -> LockGuard<'_, Waits> {
        let mut waits = self.waits.lock();
        if waits.process != fork::generation() {
            *waits = Waits::new();
        }
        waits
    }

    /// Frees a block that waits here. A block that other processes have open does not: its lease
    /// holds it.
    ///
    /// # Safety
    /// As [`DeferredFree::free_after`]; if `poisons`, the CPU may write to the block.
    pub(super) unsafe fn free(&self, pool: &dyn DeferredFree, block: BlockSpan, poisons: bool) -> Result<()> {
        let wait = Arc::new(Wait { block, state: AtomicU8::new(ENTERING) });
        let completion: Arc<dyn Completion> = Arc::clone(&wait) as _;
        // SAFETY: passed on to the caller.
        unsafe { pool.free_after(block.address, completion) }?;
        if Arc::strong_count(&wait) == 1 {
            return Ok(());
        }
        if poisons {
            // SAFETY: the pool holds the block until the wait is over, and nothing has it open.
            unsafe { poison::fill(block.address, block.size, CheckSettings::FREED_BYTE) };
        }
        let mut waits = self.waits();
        waits.push(wait);
        waits.release_above(self.most);
        Ok(())
    }

    /// The pool takes the block at `address` back: its size, if it has waited here.
    pub(super) fn end(&self, address: Address) -> Option<usize> {
        let mut waits = self.waits();
        let wait = waits.blocks.remove(&address.to_bits())?;
        waits.bytes -= wait.block.size as u64;
        waits.release(&wait);
        Some(wait.block.size)
    }

    pub(super) fn release_all(&self) {
        self.waits().release_above(0);
    }

    /// Bytes that the pool holds because of this.
    pub(super) fn bytes(&self) -> u64 {
        self.waits().bytes
    }

    /// The pieces of a region at `base`, with the held blocks told from those that wait here.
    pub(super) fn relabelled(&self, base: Address, pieces: &[Piece]) -> std::vec::Vec<Piece> {
        let mut all = std::vec::Vec::with_capacity(pieces.len());
        for piece in pieces {
            if piece.state != PieceState::Held {
                all.push(*piece);
                continue;
            }
            for index in 0..piece.count {
                let offset = piece.offset + index * piece.block_size;
                let is_waiting = self.waits().blocks.contains_key(&(base.to_bits() + offset));
                let state = if is_waiting { PieceState::Quarantined } else { PieceState::Held };
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
    fn line_keeps_no_block_that_was_reclaimed_before_its_turn() {
        let quarantine = Quarantine::new(1 << 30);
        for number in 0..10_000 {
            let address = Address::from_bits(4096 * (number + 1));
            let block = BlockSpan { address, size: 64 };
            quarantine.waits().push(Arc::new(Wait { block, state: AtomicU8::new(ENTERING) }));
            assert_eq!(quarantine.end(address), Some(64));
        }
        let waits = quarantine.waits();
        assert!(waits.back.len() + waits.front.len() <= 2, "{} stay", waits.back.len() + waits.front.len());
        assert_eq!((waits.bytes, waits.waiting, waits.blocks.len()), (0, 0, 0));
    }
}
