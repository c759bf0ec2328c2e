//! The caches of both sides.
//!
//! | part | what it does | cost of a hit |
//! |---|---|---|
//! | [`Memo`] | remembers whole handles that were looked at before | comparing or copying 256 bytes |
//! | [`Pins`] | counts uses, one counter per thread and entry | a store, a fence, a load |
//! | [`Cache`] | owns the entries: hashbrown for look-up, an intrusive LRU list, limits | only on a miss |
//!
//! A hit takes no lock and writes no line that another thread writes. Eviction bears the cost: it
//! invalidates the entry's *stamp*, then sums the pins of all threads. A thread that pins stores its pin first
//! and reads the stamp after a sequentially consistent fence; so either it sees that the stamp is gone and
//! takes its pin back, or the evicting thread sees the pin.

mod entries;
mod limits;
mod memo;
mod pins;

pub(crate) use entries::{Cache, Entry};
pub(crate) use limits::Limits;
pub use limits::{CacheStatistics, LimitPolicy};
pub(crate) use memo::{Memo, WORDS, Words};
pub(crate) use pins::Pins;

#[cfg(test)]
mod tests;
