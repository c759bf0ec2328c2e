//! [`Slab`]: a region that is divided into blocks of one size.

use umf_core::{Address, BlockSpan, Error, Region, Result};

/// The state of a block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum BlockState {
    Free,
    Live,
    /// Live and exported. Its free must be announced to exporters.
    Exported,
    /// Freed by its owner, but not reusable yet: being announced, or held because other processes
    /// have it open.
    Freed,
}

#[derive(Debug)]
pub(crate) struct Slab {
    pub(crate) region: Region,
    pub(crate) block_size: usize,
    states: Vec<BlockState>,
    /// The numbers of the free blocks.
    free: Vec<usize>,
}

impl Slab {
    pub(crate) fn new(region: Region, block_size: usize) -> Self {
        let count = region.size() / block_size;
        Self { region, block_size, states: vec![BlockState::Free; count], free: (0..count).rev().collect() }
    }

    pub(crate) fn is_full(&self) -> bool {
        self.free.is_empty()
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.free.len() == self.states.len()
    }

    /// Allocates a block.
    pub(crate) fn take(&mut self) -> Option<Address> {
        let number = self.free.pop()?;
        self.states[number] = BlockState::Live;
        self.region.base().checked_add((number * self.block_size) as u64)
    }

    fn number_at(&self, address: Address) -> Option<usize> {
        let offset = usize::try_from(address.offset_from(self.region.base())?).ok()?;
        Some(offset / self.block_size).filter(|&number| number < self.states.len())
    }

    /// Returns the live block that contains `address`.
    pub(crate) fn block_at(&self, address: Address) -> Result<BlockSpan> {
        let none = Error::NotAllocated { address };
        let number = self.number_at(address).ok_or(none)?;
        if !matches!(self.states[number], BlockState::Live | BlockState::Exported) {
            return Err(none);
        }
        let start = self.region.base().checked_add((number * self.block_size) as u64).ok_or(none)?;
        Ok(BlockSpan { address: start, size: self.block_size })
    }

    /// Returns the state of the live block that begins at `address`.
    pub(crate) fn state_at(&mut self, address: Address) -> Result<&mut BlockState> {
        if self.block_at(address)?.address != address {
            return Err(Error::InteriorAddress { address });
        }
        let number = self.number_at(address).ok_or(Error::NotAllocated { address })?;
        Ok(&mut self.states[number])
    }

    /// Makes a block that is [`BlockState::Freed`] free, or live again.
    pub(crate) fn set_state(&mut self, address: Address, state: BlockState) {
        if let Some(number) = self.number_at(address) {
            self.states[number] = state;
            if state == BlockState::Free {
                self.free.push(number);
            }
        }
    }

    /// Returns the exported blocks.
    pub(crate) fn exported(&self) -> impl Iterator<Item = Address> {
        let numbers = self.states.iter().enumerate().filter(|(_, state)| **state == BlockState::Exported);
        numbers.filter_map(|(number, _)| self.region.base().checked_add((number * self.block_size) as u64))
    }
}
