//! From an address to a block, where it is not the start of a live one.

use core::sync::atomic::Ordering;

use umf_core::{Address, BlockSpan, Error, Result};
use umf_runtime::tracker;

use crate::SlabPool;
use crate::extents::{UNIT, extent_around};
use crate::pool::OWNER;
use crate::span::{Kind, LIVE, Place};

impl SlabPool {
    /// Why an address is not the start of a live block.
    #[cold]
    pub(crate) fn why_not(&self, address: Address) -> Error {
        match self.find_block(address) {
            Ok((block, _)) if block.address != address => Error::InteriorAddress { address },
            Ok(_) => Error::NotAllocated { address },
            Err(error) => error,
        }
    }

    /// The live block that holds `address`, and its place.
    pub(crate) fn find_block(&self, address: Address) -> Result<(BlockSpan, Place<'_>)> {
        if let Some(place) = self.meta.locate(address).or_else(|| self.locate_around(address)) {
            let size = place.span.block() as usize;
            let live = place.state.load(Ordering::Acquire) & LIVE != 0 && place.is_current();
            return live
                .then(|| (BlockSpan { address: place.start(), size }, place))
                .ok_or(Error::NotAllocated { address });
        }
        // Not a block, but perhaps ours: free units, or the tail of a slab.
        match tracker::find(address) {
            Some(found) if found.owner == self.upstream.id() => Err(Error::NotAllocated { address }),
            _ => Err(Error::ForeignAddress { address, owner: OWNER }),
        }
    }

    /// The large block that `address` lies in, and that begins in another granule.
    fn locate_around(&self, address: Address) -> Option<Place<'_>> {
        let number = self.meta.span_number(address)?;
        let span = self.meta.span(number)?;
        let region = if span.kind() == Kind::Region { number } else { span.region() };
        let around = self.meta.span(region).filter(|span| span.kind() == Kind::Region)?;
        let offset = address.offset_from(around.base()).filter(|&offset| offset < around.block())?;
        let (_, _, holder) = extent_around(&self.meta, region, u32::try_from(offset / UNIT as u64).ok()?)?;
        self.meta.span(holder).filter(|_| holder != 0)?.locate(holder, address)
    }
}
