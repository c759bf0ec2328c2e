//! Looking at what running processes do with umf, and what killed ones did: from their ledgers,
//! without a daemon and without asking them.
//!
//! [`find`] goes through `/proc` and finds every ledger that any process has open which this one
//! may look into. A process that was killed is found as long as an importer has its ledger open.
//! What is read was written by others: it is copied out, with no mapping that could fault, and
//! nothing of it is believed before it was checked.

mod find;
mod ledger;

pub use crate::ledger::layout::{ExportEnd, OwnerIdentity, RetireReason, Slot, SlotContent};
pub use crate::ledger::statistics::{PoolFigures, Statistics, plain};
pub use find::{FoundLedger, OwnerStatus, Search, find};
pub use ledger::{LeaseRow, Ledger};

/// Now, on the clock that ends and statistics are timed with (`CLOCK_BOOTTIME`), in nanoseconds.
#[must_use]
pub fn now() -> u64 {
    umf_os::clock::boot()
}

/// Whether a handle can be of this machine and this boot of it. (Where that is not known, it can.)
#[must_use]
pub fn is_of_this_boot(handle: &crate::Handle) -> bool {
    !crate::identity::boot_id().half().contradicts(handle.boot())
}

#[cfg(test)]
mod tests;
