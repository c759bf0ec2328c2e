//! Steps: the named points at which a process can be made to end, stop or wait, all of them in one list.
//!
//! What a process leaves behind when it is killed depends on what it did last. So every change of state that another
//! process or the kernel sees (an fd, a mapping, a slot of the ledger, a message) is followed or preceded by a [`step`],
//! and a test kills real processes at each.
//!
//! Without the feature `fail-points` a step compiles to nothing. With it, processes obey the variable `UMF_STEP`:
//!
//! ```text
//! UMF_STEP="LedgerPublished:3=kill,UpstreamAllocated=sleep:20"
//! ```
//!
//! kills the process with SIGKILL the third time that it gets to `LedgerPublished`, and lets it wait 20 ms the first time
//! that it gets to `UpstreamAllocated`. `stop` sends SIGSTOP; `:*` means each time.

mod list;
#[cfg(feature = "fail-points")]
mod plan;

pub use list::Step;
#[cfg(feature = "fail-points")]
pub use plan::{Action, BadPlan, arm, disarm, reached};

/// Does here what was planned for this step: nothing, unless the feature `fail-points` is on.
///
/// Safe in any thread, under any lock, in a forked child and in a pool that is the global allocator: it allocates nothing.
#[cfg(not(feature = "fail-points"))]
#[inline(always)]
pub const fn step(_: Step) {}

#[cfg(feature = "fail-points")]
pub use plan::step;
