//! Inspection of the ledgers of running and killed processes, without a daemon and without their
//! cooperation.
//!
//! [`find`] searches `/proc` for the ledgers of all processes that this one may inspect. The ledger
//! of a killed process is found as long as an importer has it open. Other processes wrote the
//! contents. So they are copied, not mapped, and checked before use. Producers in other containers
//! are asked over their directory ([`Search::add_directory`]).

mod dead_memory;
mod directory;
mod find;
mod ledger;

pub use crate::ledger::layout::{ExportEnd, OwnerIdentity, RetireReason, Slot, SlotContent, Survivors};
pub use crate::ledger::statistics::{PoolFigures, Statistics, plain};
pub use dead_memory::{DeadMemory, KeptReason};
pub use find::{FoundLedger, OwnerStatus, Search, find};
pub use ledger::{LeaseRow, Ledger};

/// Returns the current time of `CLOCK_BOOTTIME`, in nanoseconds. Times in ledgers are of that
/// clock.
#[must_use]
pub fn now() -> u64 {
    umf_os::clock::boot()
}

/// Returns whether a handle can be of this boot of this machine. Returns `true` if that is unknown.
#[must_use]
pub fn is_of_this_boot(handle: &crate::Handle) -> bool {
    !crate::identity::boot_id().half().contradicts(handle.boot())
}

#[cfg(test)]
mod tests;
