//! Synchronisation primitives that need no allocator and survive a fork.
//!
//! | module or type | content |
//! |---|---|
//! | [`Lock`] | a futex lock for a `static` or a field; a forked child finds it free |
//! | [`fork`] | the gates that locks pass, [`fork::generation`], hooks around a fork |
//! | `gate` | the protocol of a gate: a fork waits until no other thread holds a lock; modelled in loom |
//! | [`thread`] | dense thread indices, and hooks at thread exit |
//! | [`fence`] | asymmetric fences (`membarrier(2)`) |
//! | [`SequenceLock`] | seqlocks: readers copy a record without a lock and detect a concurrent write |
//! | [`in_flight`] | a count of the threads in a section, to wait for |
//! | [`chunks`], [`table`] | arrays and numbered records that grow without moving an element |
//! | [`words`] | the atomics that protocols are generic over, so that loom's can replace them |
//! | [`WipeOnForkWord`] | a word that the kernel zeroes in a forked child |
//! | [`failpoint!`] | points at which tests kill, stop or delay a process |
//! | [`BlockedSignals`] | a scope in which the calling thread receives no signals |

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
mod thread_word;
pub mod words;

pub use generation::WipeOnForkWord;
pub use lock::{Lock, LockGuard};
pub use sequence::SequenceLock;
pub use sys::BlockedSignals;

/// A point at which tests end, stop or delay the process: `failpoint!("ledger.published")`.
/// Compiles to nothing without the feature `failpoints`.
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
