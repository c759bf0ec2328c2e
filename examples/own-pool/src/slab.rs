//! [`Slab`]: a region cut into blocks of one size.

use umf_core::{Address, BlockSpan, Error, Region, Result};

/// What a block is at present.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum State {
    Free,
    Live,
    /// Live, and somebody is to be told before it is free.
    Exported,
    /// Given back; being announced, or held because other processes have it open.
    Leaving,
}

#[derive(Debug)]
pub(crate) struct Slab {
    pub(crate) region: Region,
    pub(crate) block_size: usize,
    states: Vec<State>,
    /// The numbers of the free blocks.
    free: Vec<usize>,
}

impl Slab {
    pub(crate) fn new(region: Region, block_size: usize) -> Self {
        let count = region.size() / block_size;
        Self { region, block_size, states: vec![State::Free; count], free: (0..count).rev().collect() }
    }

    pub(crate) fn is_full(&self) -> bool {
        self.free.is_empty()
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.free.len() == self.states.len()
    }

    /// Hands out a block.
    pub(crate) fn take(&mut self) -> Option<Address> {
        let number = self.free.pop()?;
        self.states[number] = State::Live;
        self.region.base().checked_add((number * self.block_size) as u64)
    }

    fn number_at(&self, address: Address) -> Option<usize> {
        let offset = usize::try_from(address.offset_from(self.region.base())?).ok()?;
        Some(offset / self.block_size).filter(|&number| number < self.states.len())
    }

    /// The live block that holds `address`.
    pub(crate) fn block_at(&self, address: Address) -> Result<BlockSpan> {
        let none = Error::NotAllocated { address };
        let number = self.number_at(address).ok_or(none)?;
        if !matches!(self.states[number], State::Live | State::Exported) {
            return Err(none);
        }
        let start = self.region.base().checked_add((number * self.block_size) as u64).ok_or(none)?;
        Ok(BlockSpan { address: start, size: self.block_size })
    }

    /// The state of the live block that begins at `address`.
    pub(crate) fn state_at(&mut self, address: Address) -> Result<&mut State> {
        if self.block_at(address)?.address != address {
            return Err(Error::InteriorAddress { address });
        }
        let number = self.number_at(address).ok_or(Error::NotAllocated { address })?;
        Ok(&mut self.states[number])
    }

    /// Makes a block that is [`State::Leaving`] free, or live again.
    pub(crate) fn settle(&mut self, address: Address, state: State) {
        if let Some(number) = self.number_at(address) {
            self.states[number] = state;
            if state == State::Free {
                self.free.push(number);
            }
        }
    }

    /// The blocks that are exported.
    pub(crate) fn exported(&self) -> impl Iterator<Item = Address> {
        let numbers = self.states.iter().enumerate().filter(|(_, state)| **state == State::Exported);
        numbers.filter_map(|(number, _)| self.region.base().checked_add((number * self.block_size) as u64))
    }
}
