//! Leases: which exports importers have open, so that freed memory is not used again while another
//! process uses it.
//!
//! A lease lasts from open to close. Beside its ledger a producer has a *lease table*: a file that
//! importers may write. An importer owns one or a few rows of it, each with one word per ledger
//! slot, which counts how often the importer has that export open. To open is to add one to the
//! word and then to load the slot's generation in the ledger. To free is to retire the generation
//! and then to load the words of the slot. Of the two at least one sees the other.
//!
//! | part of the table | written by | says |
//! |---|---|---|
//! | header | the producer; `height` by importers | which producer's it is, its shape, how many rows have counted |
//! | owners, one per row | importers | for people: which process owns the row |
//! | marks, one word per slot | importers set bits, the producer clears them | in which rows (modulo 64) the slot was opened |
//! | rows | their owners; the producer if the owner has ended | how often each slot is open |
//!
//! The kernel says whether the owner of a row lives: the owner holds a lock on the row's first
//! byte, which belongs to its mapping of the row (`sys/locks.rs`). No count is a sum over rows, and
//! no word goes below zero.
//!
//! Every process that can open the table can write all of it. The producer believes no more of it
//! than that memory is still in use. `docs/leases.md` has the protocol step by step; `tests/models`
//! explores its interleavings.

mod deferred;
mod export_table;
pub(crate) mod layout;
mod rows;
mod table;

pub(crate) use export_table::{ExportTable, ExportedRange, RetireOutcome};
pub(crate) use rows::{ImporterLeases, Lease, LeaseTableId, REOPENING};
pub(crate) use table::{LeaseTable, Scan};

#[cfg(test)]
mod tests;
