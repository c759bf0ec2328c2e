//! Which memory of the CUDA driver lies at an address of this process, and in which context: for copies. And which
//! handles are of memory of this process.

use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Weak};

use umf_core::{Address, Error, Result};
use umf_sync::Lock;

use crate::allocated::Raw;
use crate::context::Context;

struct Live {
    end: u64,
    /// How often: a handle that is opened twice has one address.
    count: usize,
    context: Arc<Context>,
}

/// How it came to be in this process. Memory of this very process that is opened by its handle is both.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Origin {
    Allocated,
    Imported,
}

static LIVE: [Lock<BTreeMap<u64, Live>>; 2] = [const { Lock::new(BTreeMap::new()) }; 2];

/// Notes memory.
pub(crate) fn add(origin: Origin, base: Address, size: usize, context: &Arc<Context>) {
    let (start, context) = (base.to_bits(), Arc::clone(context));
    let end = start.saturating_add(size as u64);
    let mut live = LIVE[origin as usize].lock();
    let known = live.entry(start).or_insert(Live { end, count: 0, context });
    known.count += 1;
    known.end = known.end.max(end);
}

/// Forgets it, before it goes.
pub(crate) fn remove(origin: Origin, base: Address) {
    let start = base.to_bits();
    let removed = {
        let mut live = LIVE[origin as usize].lock();
        match live.get_mut(&start) {
            Some(known) if known.count > 1 => {
                known.count -= 1;
                None
            }
            _ => live.remove(&start),
        }
    };
    // Without the lock: it may be the last to have its context.
    drop(removed);
}

/// The context of the memory in which all of the range lies.
pub(crate) fn find(origins: &[Origin], base: Address, size: usize) -> Result<Arc<Context>> {
    let foreign = Error::ForeignAddress { address: base, owner: "the CUDA driver's memory" };
    let start = base.to_bits();
    let end = start.checked_add(size as u64).ok_or(foreign)?;
    let found = origins.iter().find_map(|origin| {
        let live = LIVE[*origin as usize].lock();
        let (_, found) = live.range(..=start).next_back()?;
        (end <= found.end && start < found.end).then(|| Arc::clone(&found.context))
    });
    found.ok_or(foreign)
}

/// Where an allocation is, and what keeps it.
type Known = (u64, Weak<Raw>);

/// Which 64-byte handles are of memory of this process: its own driver refuses to open those.
static OWN: Lock<Option<HashMap<[u8; 64], Known>>> = Lock::new(None);

/// Notes the handle of an allocation.
pub(crate) fn add_handle(handle: [u8; 64], raw: &Arc<Raw>) {
    OWN.lock().get_or_insert_default().insert(handle, (raw.address, Arc::downgrade(raw)));
}

/// The allocation that a handle is of, if that is one of this process.
pub(crate) fn find_handle(handle: &[u8; 64]) -> Option<Arc<Raw>> {
    OWN.lock().as_ref()?.get(handle)?.1.upgrade()
}

/// An allocation is freed.
pub(crate) fn forget_handle(address: u64) {
    if let Some(own) = &mut *OWN.lock() {
        own.retain(|_, (known, _)| *known != address);
    }
}
