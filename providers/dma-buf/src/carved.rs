//! [`Carved`]: regions out of one buffer that is there already.

use std::collections::BTreeMap;

use umf_core::{Error, Layout, NativeExport, Region, Result};
use umf_os::{Mapping, page_size};
use umf_sync::Lock;

use crate::buffer::DmaBuf;
use crate::live;

struct State {
    /// Offset and size of what is free; neighbours are joined.
    free: BTreeMap<usize, usize>,
    /// Offset and region of what is taken.
    taken: BTreeMap<usize, Region>,
}

/// One buffer, mapped once, and which parts of it are taken.
pub(crate) struct Carved {
    buffer: DmaBuf,
    mapping: core::mem::ManuallyDrop<Mapping>,
    state: Lock<State>,
}

impl core::fmt::Debug for Carved {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        write!(f, "{:?}", self.buffer)
    }
}

impl Carved {
    /// Maps the whole pages of a buffer.
    pub(crate) fn new(buffer: DmaBuf) -> Result<Self> {
        let page = page_size();
        let size = usize::try_from(buffer.size()).unwrap_or(usize::MAX) / page * page;
        if size == 0 {
            return Err(Error::InvalidArgument { what: "dma-buf", why: "must have at least one page" });
        }
        // A start that has the alignment of huge pages, where buffer and addresses have room for it.
        let align = if size >= 2 << 20 { 2 << 20 } else { page };
        let mapping = buffer.map(0, size, align, true)?;
        live::add(mapping.address(), size, buffer.clone(), true);
        let state = State { free: BTreeMap::from([(0, size)]), taken: BTreeMap::new() };
        Ok(Self { buffer, mapping: core::mem::ManuallyDrop::new(mapping), state: Lock::new(state) })
    }

    pub(crate) fn allocate(&self, layout: Layout) -> Result<Region> {
        let size = layout.pad_to(page_size())?.size();
        let align = layout.align().max(page_size());
        let full = Error::OutOfMemory { size, owner: "the dma-buf that was given, which is full", native: 0 };
        let start = self.mapping.address();
        let mut state = self.state.lock();
        // First fit: regions are few and large.
        let found = state.free.iter().find_map(|(&offset, &length)| {
            let aligned = start.checked_add(offset as u64)?.align_up(align)?;
            let begin = usize::try_from(aligned.offset_from(start)?).ok()?;
            (begin.checked_add(size)? <= offset + length).then_some((offset, length, begin, aligned))
        });
        let (offset, length, begin, aligned) = found.ok_or(full)?;
        state.free.remove(&offset);
        if begin > offset {
            state.free.insert(offset, begin - offset);
        }
        let (end, all) = (begin + size, offset + length);
        if end < all {
            state.free.insert(end, all - end);
        }
        let region = Region::new(aligned, size);
        state.taken.insert(begin, region);
        Ok(region)
    }

    pub(crate) fn free(&self, region: &Region) -> Result<()> {
        let mut state = self.state.lock();
        let mut begin = self.offset_of(&state, region)?;
        state.taken.remove(&begin);
        let mut end = begin + region.size();
        let before = state.free.range(..begin).next_back().map(|(&offset, &length)| (offset, length));
        if let Some((offset, length)) = before
            && offset + length == begin
        {
            begin = offset;
        }
        if let Some(length) = state.free.remove(&end) {
            end += length;
        }
        state.free.insert(begin, end - begin);
        Ok(())
    }

    pub(crate) fn check(&self, region: &Region) -> Result<()> {
        self.offset_of(&self.state.lock(), region).map(drop)
    }

    pub(crate) fn export(&self, region: &Region) -> Result<NativeExport> {
        let offset = self.offset_of(&self.state.lock(), region)?;
        let mut export = NativeExport::from_fd(self.buffer.checked_fd()?, offset as u64);
        export.isolated = region.size() == self.mapping.size();
        Ok(export)
    }

    fn offset_of(&self, state: &State, region: &Region) -> Result<usize> {
        let address = region.base();
        let foreign = Error::ForeignAddress { address, owner: "this dma-buf provider" };
        let offset = address.offset_from(self.mapping.address()).ok_or(foreign)?;
        let offset = usize::try_from(offset).map_err(|_| foreign)?;
        match state.taken.get(&offset) {
            Some(taken) if taken == region => Ok(offset),
            Some(_) => Err(Error::NotAllocated { address }),
            None => Err(foreign),
        }
    }
}

impl Drop for Carved {
    fn drop(&mut self) {
        // With regions that were not freed it stays mapped: whoever has one may still use it.
        if self.state.lock().taken.is_empty() {
            live::remove(self.mapping.address());
            // SAFETY: dropped once, here, and not used after.
            unsafe { core::mem::ManuallyDrop::drop(&mut self.mapping) };
        }
    }
}
