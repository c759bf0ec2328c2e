//! The caches of both sides.
//!
//! | part | what it does | cost of a hit |
//! |---|---|---|
//! | [`Memo`] | remembers, per thread, what it looked up before: whole handles, windows | comparing or copying 256 bytes |
//! | [`Pins`] | counts uses, one counter per thread and entry | an atomic add on a line of its own, a load |
//! | [`Cache`] | owns the entries: hashbrown for look-up, an intrusive LRU list, limits | only on a miss |
//!
//! A hit takes no lock and writes no line that another thread writes. Eviction bears the cost: it
//! invalidates the entry's *stamp*, then sums the pins of all threads. A thread that pins adds its pin first
//! and reads the stamp after; so either it sees that the stamp is gone and takes its pin back, or the evicting
//! thread sees the pin.

mod entries;
mod limits;
mod memo;
mod pins;

pub(crate) use entries::{Cache, Cached, Entry, Pinned};
pub(crate) use limits::Limits;
pub use limits::{CacheStatistics, LimitPolicy};
pub(crate) use memo::{Known, Memo, Note};
pub(crate) use pins::{Pin, Pins};

#[cfg(test)]
mod tests;
