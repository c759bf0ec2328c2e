//! Synchronisation for umf: what needs no allocator and survives a fork.
//!
//! - [`Lock`]: a lock for a `static` or a field; forks find it free
//! - [`fork`]: the gates that locks pass, [`fork::generation`], and what a child does first
//! - [`thread`]: dense thread indices
//! - [`fence`]: fences of which one side costs nothing
//! - [`in_flight`]: how many threads are inside of something
//! - [`chunks`]: an array that grows without moving its elements
//! - [`SequenceLock`]: words that change while others read them without a lock
//! - [`words`]: the words of lock-free protocols, for which those of a model can stand in
//! - [`failpoint!`]: points at which tests kill processes
//! - [`BlockedSignals`]: signals wait for a moment
//! - `gate`: how a fork waits until no other thread is inside of a lock, as loom models it

pub mod chunks;
#[cfg(feature = "failpoints")]
pub mod failpoint;
pub mod fence;
pub mod fork;
mod gate;
mod generation;
pub mod in_flight;
mod lock;
#[cfg(any(test, feature = "model"))]
pub mod model;
pub mod sequence;
mod sys;
pub mod table;
pub mod thread;
mod wipe_on_fork;
mod word;
pub mod words;

pub use lock::{Lock, LockGuard};
pub use sequence::SequenceLock;
pub use sys::BlockedSignals;
pub use wipe_on_fork::WipeOnForkWord;

/// A point at which tests end, stop or delay the process: `failpoint!("ledger.published")`. Compiles
/// to nothing without the feature `failpoints`.
#[cfg(not(feature = "failpoints"))]
#[macro_export]
macro_rules! failpoint {
    ($name:literal) => {};
}

/// A point at which tests end, stop or delay the process: see [`failpoint`](mod@failpoint).
#[cfg(feature = "failpoints")]
#[macro_export]
macro_rules! failpoint {
    ($name:literal) => {{
        #[$crate::failpoint::linkme::distributed_slice($crate::failpoint::FAILPOINTS)]
        #[linkme(crate = $crate::failpoint::linkme)]
        static FAILPOINT: $crate::failpoint::Failpoint = $crate::failpoint::Failpoint::new($name);
        FAILPOINT.reach();
    }};
}
