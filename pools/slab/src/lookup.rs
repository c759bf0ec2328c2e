//! From an address to a block, where it is not the start of a live one.

use core::sync::atomic::{AtomicU8, Ordering};

use umf_core::{Address, BlockSpan, Error, Result, tracker};

use crate::SlabPool;
use crate::large::{Range, UNIT};
use crate::pool::OWNER;
use crate::span::{Kind, Place};
use crate::state::LIVE;

impl SlabPool {
    /// Why an address lies in no span: not ours, or ours and never a block (the tail of a slab).
    #[cold]
    pub(crate) fn why_nowhere(&self, address: Address) -> Error {
        match tracker::find(address) {
            Some(found) if found.owner == self.upstream.id() => Error::NotAllocated { address },
            _ => Error::ForeignAddress { address, owner: OWNER },
        }
    }

    /// Why a place in a span is not the start of a live block.
    #[cold]
    pub(crate) fn why_not(&self, address: Address) -> Error {
        match self.find_block(address) {
            Ok((block, _)) if block.address != address => Error::InteriorAddress { address },
            _ => Error::NotAllocated { address },
        }
    }

    /// The live block that holds `address`, and its state.
    pub(crate) fn find_block(&self, address: Address) -> Result<(BlockSpan, &AtomicU8)> {
        let place = self.locate(address)?;
        self.block_of(place).ok_or(Error::NotAllocated { address })
    }

    fn block_of<'a>(&self, place: Place<'a>) -> Option<(BlockSpan, &'a AtomicU8)> {
        let (block, state) = if place.span.kind() == Kind::Region {
            let unit = u32::try_from(place.index).ok()?;
            let (first, units, class) = self.tables().block_around(place.number, unit)?;
            if class as usize >= self.classes.count() {
                return None;
            }
            let start = place.span.base().checked_add(u64::from(first) * UNIT as u64)?;
            // SAFETY: the region is in use, and `first` one of its units.
            let state = unsafe { place.span.state(u64::from(first)).as_ref() };
            (BlockSpan { address: start, size: units as usize * UNIT }, state)
        } else {
            let size = place.span.block() as usize;
            (BlockSpan { address: place.start(), size }, place.state)
        };
        let live = state.load(Ordering::Acquire) & LIVE != 0 && place.is_current();
        live.then_some((block, state))
    }

    /// The units that begin at `address`, which lies in a region and in no slab.
    pub(crate) fn range_of(&self, address: Address) -> Option<Range> {
        let (_, region) = tracker::span(address)?;
        let place = self.spans.get(region)?.locate(region, address).filter(|place| place.rest == 0)?;
        Some(Range { region, first: u32::try_from(place.index).ok()? })
    }
}
