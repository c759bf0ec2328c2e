//! [`Collector`]: finds out what of a dead producer's memory is still leased, so that the rest can
//! be released.
//!
//! A collector does what the producer would do if it freed everything: it prevents new opens, then
//! looks for leases. It cannot retire exports, because importers cannot write the ledger. Instead
//! it sets the table's `dead` word, which openers load after they have counted their lease. Openers
//! believe the word only if the producer's ledger is not locked.
//!
//! Any process that can open the table for writing can be a collector, and several may be at the
//! same time. One that is killed leaves `dead` set, and the next one starts again.

use core::sync::atomic::{Ordering, fence};
use std::os::fd::{AsFd, BorrowedFd};

use rustix::io::Errno;
use umf_sync::failpoint;

use super::layout::{HeaderMapping, ROW_HEADER};
use super::tickets;
use crate::protocol;
use umf_os::{FileIdentity, ReopenedFile, SystemResult};

/// The first byte of the table, whose lock a collector holds while it looks for leases.
const COLLECTOR_BYTE: u64 = 0;
/// Passes over the rows in one collection, if tickets are sent or claimed meanwhile.
const PASSES: u32 = 8;
/// The most bytes of counters that one pass reads. Other processes can fill all rows.
const MAX_READ: u64 = 1 << 30;
/// Bytes of counters that are read at a time.
const STEP: usize = 4096;

/// The slots of a table that are leased: one bit each.
#[derive(Debug)]
pub(crate) struct LeasedSlots {
    bits: Vec<u64>,
}

impl LeasedSlots {
    fn new(slots: u32) -> Option<Self> {
        let words = (slots as usize).div_ceil(64);
        let mut bits = Vec::new();
        bits.try_reserve_exact(words).ok()?;
        bits.resize(words, 0);
        Some(Self { bits })
    }

    fn insert(&mut self, slot: u32) {
        if let Some(word) = self.bits.get_mut(slot as usize / 64) {
            *word |= 1 << (slot % 64);
        }
    }

    /// Returns the leased slots in ascending order.
    pub(crate) fn iter(&self) -> impl Iterator<Item = u32> + '_ {
        let bits_of = |word: &u64| {
            let word = *word;
            (0..64_u32).filter(move |bit| word >> bit & 1 != 0)
        };
        (0..)
            .zip(&self.bits)
            .flat_map(move |(at, word): (u32, _)| bits_of(word).map(move |bit| at * 64 + bit))
    }
}

/// A collection in progress. Holds the lock of [`COLLECTOR_BYTE`]. Forks of this process wait until
/// it is dropped.
#[derive(Debug)]
pub(crate) struct Collector<'t> {
    table: ReopenedFile,
    head: &'t HeaderMapping,
}

impl<'t> Collector<'t> {
    /// Begins a collection. `fd` is the table, whose identity is `file` and whose header is `head`.
    /// The caller has found that the producer has ended. Returns `None` if another process
    /// collects.
    ///
    /// # Errors
    /// Those of opening the table again and of locking it.
    pub(crate) fn begin(
        fd: BorrowedFd<'_>,
        file: FileIdentity,
        head: &'t HeaderMapping,
    ) -> SystemResult<Option<Self>> {
        let table = ReopenedFile::of(fd, file)?;
        let is_locked = table.locks().try_write_lock(COLLECTOR_BYTE)?;
        failpoint!("collect.locked");
        Ok(is_locked.then_some(Self { table, head }))
    }

    /// Sets `dead`, then returns the slots that a row with an owner counts. Returns `None` if
    /// tickets were sent or claimed during each pass, or without memory. Clears rows without an
    /// owner.
    ///
    /// # Errors
    /// Those of reading, locking and clearing rows. Then all memory counts as leased.
    pub(crate) fn leased_slots(&self) -> SystemResult<Option<LeasedSlots>> {
        let header = self.head.header();
        protocol::mark_collected(&header.dead.0);
        failpoint!("collect.marked");
        for _ in 0..PASSES {
            // Orders the system calls that read the rows after the store above.
            fence(Ordering::SeqCst);
            let events = header.events.0.load(Ordering::SeqCst);
            let Some(mut leased) = LeasedSlots::new(self.head.shape().slots) else { return Ok(None) };
            let mut left = MAX_READ;
            // The height after `dead`: an importer that raises it later sees `dead`.
            for row in 0..self.head.height() {
                self.look_at_row(row, &mut leased, &mut left)?;
            }
            fence(Ordering::SeqCst);
            failpoint!("collect.rows_passed");
            if header.events.0.load(Ordering::SeqCst) == events {
                return Ok(Some(leased));
            }
        }
        Ok(None)
    }

    /// Adds the slots that a row counts, if the row has an owner. Clears it otherwise.
    fn look_at_row(&self, row: u32, leased: &mut LeasedSlots, left: &mut u64) -> SystemResult<()> {
        let shape = self.head.shape();
        let mut counts = false;
        self.for_each_counted(row, left, |_| counts = true)?;
        if !counts {
            return Ok(());
        }
        let locks = self.table.locks();
        if !locks.try_write_lock(shape.row(row))? {
            return self.for_each_counted(row, left, |slot| leased.insert(slot));
        }
        failpoint!("collect.row_locked");
        // Tickets first: their sender's leases are counted until then.
        let cleared = tickets::clear_words(&self.table, shape, row);
        failpoint!("collect.tickets_cleared");
        let cleared = cleared
            .and_then(|()| umf_os::file::punch_hole(&self.table, shape.row(row) + ROW_HEADER, shape.words()));
        if cleared.is_ok() {
            self.head.owner(row).importer.store(0, Ordering::Relaxed);
        }
        failpoint!("collect.row_cleared");
        cleared.and(locks.unlock(shape.row(row)))
    }

    /// Calls `f` with each slot that a row counts. Reads the pages of the row that exist, and
    /// allocates none. `left` has the bytes that may still be read.
    fn for_each_counted(&self, row: u32, left: &mut u64, mut f: impl FnMut(u32)) -> SystemResult<()> {
        let shape = self.head.shape();
        let begin = shape.row(row) + ROW_HEADER;
        let end = begin + u64::from(shape.slots) * 8;
        let mut at = begin;
        while at < end {
            // The description is this collector's own, and with it the position.
            let found = match rustix::fs::seek(self.table.as_fd(), rustix::fs::SeekFrom::Data(at)) {
                Ok(found) if found < end => found.max(at),
                Ok(_) | Err(Errno::NXIO) => return Ok(()),
                Err(errno) => return Err(errno),
            };
            let page = found - (found - begin) % STEP as u64;
            *left = left.checked_sub(STEP as u64).ok_or(Errno::TOOBIG)?;
            let mut bytes = [0; STEP];
            let size = STEP.min(usize::try_from(end - page).unwrap_or(STEP));
            umf_os::file::read_at(self.table.as_fd(), &mut bytes[..size], page)?;
            for (word, bytes) in (0..).zip(bytes[..size].chunks_exact(8)) {
                if bytes.iter().any(|&byte| byte != 0) {
                    f(((page - begin) / 8) as u32 + word);
                }
            }
            at = page + STEP as u64;
        }
        Ok(())
    }
}
