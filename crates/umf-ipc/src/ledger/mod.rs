//! The ledger: a small shared page set that a process publishes, one slot per export.
//!
//! It decides whether a handle is current. A handle names a slot and the generation that the slot
//! had when the export was made; retiring the export changes the generation, and the importer
//! compares at every open. So an address, a block or an fd number that is used again cannot be
//! taken for the old one.
//!
//! The file is a memfd of its largest size, of which only touched pages exist; it is sealed against
//! shrinking, growing and writing by others. Importers map it read-only. Its content is of another
//! process, and is read once, checked, and then used.

pub(crate) mod layout;
mod reader;
pub(crate) mod ring;
pub(crate) mod statistics;
mod writer;

pub(crate) use layout::{MAX_SLOTS, RetireReason, SlotContent};
pub(crate) use reader::{LedgerReader, SlotReader};
pub(crate) use statistics::PublishedCounters;
pub(crate) use writer::LedgerWriter;

#[cfg(test)]
mod tests;
