//! Leases: use counts of exports, in memory that processes share. Freed memory is not reused while
//! an importer of any process, the producer's included, has it open.
//!
//! A lease lasts from open to close. Beside its ledger a producer has a *lease table*: a file that
//! importers may write. An importer owns a few rows of it. A row has one counter per ledger slot:
//! how often the importer has that export open. An open adds one to the counter and then loads the
//! slot's generation. A free retires the generation and then loads the slot's counters. At least
//! one of the two sees the other.
//!
//! | part of the table | written by | content |
//! |---|---|---|
//! | header | the producer; `height`, `search`, `events`, `dead` and `cleared` by importers | identity of the producer, shape, number of rows that were ever used, where to look for a free one |
//! | owners, one per row | importers; the producer if the owner has ended | which process owns the row; an importer prefers a row that has no owner |
//! | opened bitmap, one word per slot | importers set bits, the producer clears them | rows (modulo 64) in which the slot was ever opened |
//! | rows of counters | their owners; the producer if the owner has ended | how often each slot is open |
//! | headers of rows | their owners; openers that claim a ticket; the producer if the owner has ended | tickets: handles in transit |
//!
//! The kernel tells whether the owner of a row is alive: the owner holds an `fcntl` lock on the
//! row's first byte. The lock belongs to the mapping of the row (`umf_os::OfdLocks`). No count is a
//! sum over rows, and no counter falls below zero.
//!
//! Every process that can open the table can write all of it. The producer trusts it only to say
//! that memory is still in use. `docs/leases.md` and `docs/tickets.md` have the protocol step
//! by step; `tests/models` explores its interleavings.

mod collector;
mod deferred;
mod export_table;
mod kept_ranges;
pub(crate) mod layout;
mod rows;
mod table;
mod tickets;

pub(crate) use collector::{Collector, LeasedSlots};
pub(crate) use export_table::{ExportTable, ExportedRange, RetireOutcome, drop_reclaimed};
pub(crate) use kept_ranges::KeptRanges;
pub(crate) use rows::{ImporterLeases, Lease, LeaseTableId, REOPENING};
pub(crate) use table::{LeaseTable, Scan};

#[cfg(test)]
mod tests;
