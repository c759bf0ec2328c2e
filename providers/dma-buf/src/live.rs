//! Which dma-buf lies at an address of this process: what is told when the CPU touches it.

use std::collections::BTreeMap;

use umf_core::{Address, Error, Result};
use umf_sync::Lock;

use crate::buffer::DmaBuf;

struct Live {
    end: u64,
    buffer: DmaBuf,
    writable: bool,
}

static LIVE: Lock<BTreeMap<u64, Live>> = Lock::new(BTreeMap::new());

/// Notes a mapping of a buffer.
pub(crate) fn add(base: Address, size: usize, buffer: DmaBuf, writable: bool) {
    let start = base.to_bits();
    let end = start.saturating_add(size as u64);
    LIVE.lock().insert(start, Live { end, buffer, writable });
}

/// Forgets it, before it is unmapped.
pub(crate) fn remove(base: Address) -> Option<DmaBuf> {
    let removed = LIVE.lock().remove(&base.to_bits());
    removed.map(|live| live.buffer)
}

/// The buffer in which all of the range lies, and whether it can be written.
pub(crate) fn find(base: Address, size: usize) -> Result<(DmaBuf, bool)> {
    let foreign = Error::ForeignAddress { address: base, owner: "a dma-buf that is mapped here" };
    let start = base.to_bits();
    let end = start.checked_add(size as u64).ok_or(foreign)?;
    let live = LIVE.lock();
    let (_, found) = live.range(..=start).next_back().ok_or(foreign)?;
    if start >= found.end {
        return Err(foreign);
    }
    if end > found.end {
        return Err(Error::InvalidArgument { what: "range", why: "must lie inside one mapped dma-buf" });
    }
    Ok((found.buffer.clone(), found.writable))
}
