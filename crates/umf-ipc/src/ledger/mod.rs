//! The ledger: a shared file of a producer with one slot per export.
//!
//! It determines whether a handle is current. A handle has a slot number and the slot's generation
//! at the time of the export. Retiring the export changes the generation, and importers compare it
//! at every open. So a handle never opens a block, an address or a descriptor that was reused.
//!
//! The file is a sparse memfd of its maximum size, sealed against shrinking, growing and writing by
//! other processes. Importers map it read-only. Because another process wrote it, importers copy
//! each value, check the copy and use the copy.

pub(crate) mod layout;
mod reader;
pub(crate) mod ring;
pub(crate) mod statistics;
mod writer;

pub(crate) use layout::{MAX_SLOTS, RetireReason, SlotContent, Survivors};
pub(crate) use reader::{LedgerReader, SlotReader};
pub(crate) use statistics::PublishedCounters;
pub(crate) use writer::LedgerWriter;

#[cfg(test)]
mod tests;
