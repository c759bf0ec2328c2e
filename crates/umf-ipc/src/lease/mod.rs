//! Leases: who has what open, so that freed memory is not used again while another process uses it.
//!
//! A lease is held from open to close. Beside its ledger a producer has a *door*: a file that importers may write. Each
//! thread of an importing process has a row there, one word per ledger slot, which it alone writes: how often it has that
//! export open. Opening is a store in the row, a fence, and a look at the generation in the ledger; whoever frees changes
//! the generation, and after a fence adds up the words of the slot. One of both sees the other.
//!
//! | in the door | written by | says |
//! |---|---|---|
//! | header | the producer | whose door it is, and its shape |
//! | entries, one per row | whoever claims the row | which process's row it is |
//! | marks, one word per slot | importers, when they first open a slot | which rows (modulo 64) to look at: what nobody ever opened costs one load |
//! | rows | one thread each | how often the slot is open |
//!
//! An importer that dies need not say so: whoever frees something that it has open asks the kernel about it. An entry names
//! the process by pid, pidfs inode and start time; one in another pid namespace, which the producer cannot ask for by
//! number, announces itself on the producer's socket.
//!
//! Everything in the door can be written by any process that may open it, so the producer believes none of it further than
//! this: that memory is still in use. `docs/leases.md` says what follows from that.

mod door;
mod exports;
mod front;
mod layout;
mod left;
mod owner;
mod row;
mod table;

pub(crate) use door::Door;
pub(crate) use exports::{Exported, Exports, Quick};
pub(crate) use row::{Lease, Ranges};
pub(crate) use table::{LeaseTable, Producer};

#[cfg(test)]
mod tests;
