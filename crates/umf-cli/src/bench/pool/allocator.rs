//! [`Allocator`]: what is measured, and what it is asked for.

use std::fmt::Display;

const PAGE: usize = 4096;

/// Somebody who allocates.
pub(in crate::bench) trait Allocator: Sync {
    /// A block.
    type Block: Copy + Send + Sync;

    /// What it says when it cannot; small, so that saying nothing costs nothing.
    type Error: Display + Send;

    /// Allocates `size` bytes.
    fn allocate(&self, size: usize) -> Result<Self::Block, Self::Error>;

    /// Frees a block.
    ///
    /// # Safety
    /// It came from `allocate(size)` of this allocator, was not freed since, and is not used any more.
    unsafe fn free(&self, block: Self::Block, size: usize) -> Result<(), Self::Error>;

    /// Where a live block can be written to; `None` if it has no memory.
    fn pointer(&self, block: Self::Block) -> Option<*mut u8>;

    /// Bytes that it has from the system or a provider, as it says itself; `None` if it does not.
    fn reserved(&self) -> Option<u64> {
        None
    }
}

/// The same allocator, used by somebody who writes to each page of each block that he gets.
pub(super) struct Touched<'a, A>(pub &'a A);

impl<A: Allocator> Allocator for Touched<'_, A> {
    type Block = A::Block;
    type Error = A::Error;

    #[inline]
    fn allocate(&self, size: usize) -> Result<A::Block, A::Error> {
        let block = self.0.allocate(size)?;
        if let Some(pointer) = self.0.pointer(block) {
            for offset in (0..size).step_by(PAGE) {
                // SAFETY: the block was just allocated, with more than `offset` bytes.
                unsafe { pointer.add(offset).write_volatile(1) };
            }
        }
        Ok(block)
    }

    #[inline]
    unsafe fn free(&self, block: A::Block, size: usize) -> Result<(), A::Error> {
        // SAFETY: the caller's contract.
        unsafe { self.0.free(block, size) }
    }

    fn pointer(&self, block: A::Block) -> Option<*mut u8> {
        self.0.pointer(block)
    }
}
