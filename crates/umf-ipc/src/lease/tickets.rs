//! Tickets: leases that a sender keeps for a handle in transit, until an opener has claimed it.
//! [`SentTickets`] has those of one sender, [`TicketRows`] the words of other senders' tickets.
//! `docs/tickets.md` has the protocol.

use core::ptr::NonNull;
use core::sync::atomic::{AtomicU64, Ordering};
use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::os::fd::AsFd;
use std::time::Duration;

use umf_os::{SharedMapping, SystemResult};
use umf_sync::{Lock, failpoint};

use super::layout::{ROW_HEADER, TICKET_WORDS, TableShape};
use super::rows::LockedRow;
use crate::handle::Ticket;
use crate::{Error, Result, protocol::ticket, transit};

/// Rows that one sender may take for its tickets.
const MAX_ROWS: usize = 64;
/// Number of unclaimed tickets after which a send polls for the first time.
const FIRST_POLL: usize = 64;

/// The tickets of one sender in one producer's lease table that were not released yet.
///
/// Ticket rows are apart from the rows of opens, because a row with a ticket must not be released.
#[derive(Debug, Default)]
pub(super) struct SentTickets {
    rows: Vec<LockedRow>,
    /// By slot and number.
    sent: BTreeMap<(u32, u64), SentTicket>,
    /// Words that are free again, as index of the row and of the word.
    free: Vec<(u16, u16)>,
    /// Words that were used so far, over all rows.
    used: usize,
    /// [`SentTickets::send`] polls at this number of tickets.
    poll_at: usize,
    /// The bytes of these tickets, which are part of the sum of the process.
    bytes: transit::Bytes,
}

#[derive(Clone, Copy, Debug)]
struct SentTicket {
    row: u16,
    word: u16,
    /// The counter with the sender's lease.
    lease: NonNull<AtomicU64>,
    /// The size of the export. Tickets of one export count once.
    bytes: u64,
    sent_at: Duration,
}

// SAFETY: the counter is an atomic in a mapping that `rows` keeps.
unsafe impl Send for SentTicket {}

impl SentTickets {
    /// Sends a ticket of the export of `bytes` bytes in `slot`, which the caller keeps open
    /// meanwhile. `take_row` locks and clears another row, `mark` sets a row's bit in the slot's
    /// opened bitmap.
    pub(super) fn send(
        &mut self,
        slot: u32,
        bytes: u64,
        readers: u16,
        events: &AtomicU64,
        take_row: impl FnOnce() -> Result<LockedRow>,
        mark: impl FnOnce(u32),
    ) -> Result<Ticket> {
        if self.sent.len() >= self.poll_at.max(FIRST_POLL) {
            self.poll();
            self.poll_at = 2 * self.sent.len();
        }
        let is_counted = self.has_ticket_of(slot);
        if !is_counted {
            self.admit(bytes)?;
        }
        let (index, word) = self.free_word(take_row)?;
        let row = &mut self.rows[usize::from(index)];
        let lease = row.word(slot)?;
        let number_word = row.ticket_word(word)?;
        let row_number = row.number;
        mark(row_number);
        failpoint!("ticket.marked");
        let is_unused = |number| !self.sent.contains_key(&(slot, number));
        // SAFETY: the mapping of the row, which `self` keeps, has both words.
        let number = unsafe {
            crate::protocol::count_lease(lease.as_ref());
            failpoint!("ticket.held");
            ticket::send(number_word.as_ref(), events, readers, is_unused)
        };
        failpoint!("ticket.sent");
        // The word is in use from here on.
        self.free.pop();
        if !is_counted {
            self.bytes.add(bytes);
        }
        let sent_at = umf_os::clock::coarse();
        self.sent.insert((slot, number), SentTicket { row: index, word, lease, bytes, sent_at });
        let row = u16::try_from(row_number).unwrap_or(u16::MAX);
        Ok(Ticket { number, row, word })
    }

    fn has_ticket_of(&self, slot: u32) -> bool {
        self.sent.range((slot, 0)..=(slot, u64::MAX)).next().is_some()
    }

    /// Checks that `bytes` more may be in transit. At the limit, this releases what was claimed,
    /// and cancels tickets that are too old, until that suffices.
    fn admit(&mut self, bytes: u64) -> Result<()> {
        if transit::check(bytes).is_ok() {
            return Ok(());
        }
        self.poll();
        if transit::check(bytes).is_err() {
            self.expire(bytes);
        }
        transit::check(bytes)
    }

    /// Cancels tickets that are older than the limit of their age, the oldest ones first, until
    /// `bytes` more may be in transit.
    #[cold]
    fn expire(&mut self, bytes: u64) {
        let (now, age) = (umf_os::clock::coarse(), transit::limits().expire_after);
        let is_old = |sent: &SentTicket| now.saturating_sub(sent.sent_at) > age;
        let old = self.sent.iter().filter(|(_, sent)| is_old(sent));
        let mut old: Vec<_> = old.map(|(&key, sent)| (sent.sent_at, key)).collect();
        old.sort_unstable();
        let mut expired = 0;
        for (_, (slot, number)) in old {
            if transit::check(bytes).is_ok() {
                break;
            }
            expired += usize::from(self.cancel(slot, number));
        }
        transit::note_expired(expired);
    }

    /// Returns a word that no ticket uses, the last one of `free`.
    fn free_word(&mut self, take_row: impl FnOnce() -> Result<LockedRow>) -> Result<(u16, u16)> {
        if self.free.is_empty() && self.used.is_multiple_of(usize::from(TICKET_WORDS)) {
            // Before another row is taken, and at the limit.
            self.poll();
        }
        if let Some(&free) = self.free.last() {
            return Ok(free);
        }
        let (row, word) = (self.used / usize::from(TICKET_WORDS), self.used % usize::from(TICKET_WORDS));
        if row == self.rows.len() {
            if row == MAX_ROWS {
                return Err(Error::LimitReached {
                    what: "handles in transit",
                    limit: MAX_ROWS as u64 * u64::from(TICKET_WORDS),
                    setting: "let receivers open what was sent to them",
                });
            }
            self.rows.push(take_row()?);
        }
        self.used += 1;
        let free = (row as u16, word as u16);
        self.free.push(free);
        Ok(free)
    }

    /// Releases the leases of tickets of this slot that were claimed.
    pub(super) fn poll_slot(&mut self, slot: u32) {
        self.poll_range((slot, 0)..=(slot, u64::MAX));
    }

    /// Releases the leases of tickets that were claimed. Returns the number of the others.
    pub(super) fn poll(&mut self) -> usize {
        self.poll_range((0, 0)..=(u32::MAX, u64::MAX));
        self.sent.len()
    }

    fn poll_range(&mut self, range: core::ops::RangeInclusive<(u32, u64)>) {
        let is_claimed = |(&(slot, number), sent): (&(u32, u64), &SentTicket)| {
            (!ticket::is_open(self.word(sent), number)).then_some((slot, number))
        };
        let claimed: Vec<_> = self.sent.range(range).filter_map(is_claimed).collect();
        for key in claimed {
            self.release(key);
        }
    }

    /// Returns whether readers have still to claim a ticket.
    pub(super) fn is_in_transit(&self, slot: u32, number: u64) -> bool {
        self.sent.get(&(slot, number)).is_some_and(|sent| ticket::is_open(self.word(sent), number))
    }

    /// Cancels a ticket. Returns whether a reader could have claimed it.
    pub(super) fn cancel(&mut self, slot: u32, number: u64) -> bool {
        let Some(sent) = self.sent.get(&(slot, number)) else { return false };
        let is_cancelled = ticket::cancel(self.word(sent), number);
        failpoint!("ticket.cancelled");
        self.release((slot, number));
        is_cancelled
    }

    fn word(&self, sent: &SentTicket) -> &AtomicU64 {
        let base = self.rows[usize::from(sent.row)].mapping.base().cast::<AtomicU64>();
        // SAFETY: the row's header has `TICKET_WORDS` words, and `word` is below that.
        unsafe { base.add(usize::from(sent.word)).as_ref() }
    }

    /// Releases the lease of a ticket that can be claimed no more.
    fn release(&mut self, key: (u32, u64)) {
        let Some(SentTicket { row, word, lease, bytes, .. }) = self.sent.remove(&key) else { return };
        if !self.has_ticket_of(key.0) {
            self.bytes.subtract(bytes);
        }
        // SAFETY: `self.rows` keeps the row mapped.
        crate::protocol::release_lease(unsafe { lease.as_ref() });
        failpoint!("ticket.released");
        self.free.push((row, word));
    }

    /// Returns the number of tickets that were not released.
    pub(super) fn len(&self) -> usize {
        self.sent.len()
    }

    /// Takes the rows of a sender without tickets.
    pub(super) fn into_rows(mut self) -> Vec<LockedRow> {
        core::mem::take(&mut self.rows)
    }
}

/// Headers of other senders' rows, mapped at the first claim of one of their tickets.
#[derive(Debug, Default)]
pub(super) struct TicketRows(Lock<BTreeMap<u16, SharedMapping>>);

impl TicketRows {
    /// Calls `f` with a ticket's word; `None` if the table has no such word, or its row is not
    /// mapped.
    pub(super) fn with_word<T>(
        &self,
        shape: TableShape,
        named: Ticket,
        f: impl FnOnce(&AtomicU64) -> T,
    ) -> Option<T> {
        if !is_inside(shape, named) {
            return None;
        }
        let rows = self.0.lock();
        let mapping = rows.get(&named.row)?;
        // SAFETY: the header has `TICKET_WORDS` words, and `word` is below that.
        let word = unsafe { mapping.base().cast::<AtomicU64>().add(usize::from(named.word)).as_ref() };
        Some(f(word))
    }

    /// Maps the words of a row. `fd` is the lease table.
    pub(super) fn map(&self, fd: impl AsFd, shape: TableShape, row: u16) -> SystemResult<()> {
        if let Entry::Vacant(new) = self.0.lock().entry(row) {
            new.insert(map_header(fd, shape, u32::from(row))?);
            failpoint!("ticket.row_mapped");
        }
        Ok(())
    }

    /// Forgets the mappings in a forked child, which does not have them.
    pub(super) fn forget(self) {
        core::mem::forget(self.0.into_inner());
    }
}

/// Returns whether a table has the word of a ticket.
pub(super) const fn is_inside(shape: TableShape, named: Ticket) -> bool {
    (named.row as u32) < shape.rows && named.word < TICKET_WORDS
}

fn map_header(fd: impl AsFd, shape: TableShape, row: u32) -> SystemResult<SharedMapping> {
    let mut mapping = SharedMapping::at(fd, shape.row(row), ROW_HEADER as usize, true)?;
    mapping.exclude_from_fork()?;
    mapping.use_small_pages();
    Ok(mapping)
}

/// Clears the ticket words of a row that the caller has locked, before it clears the counters: a
/// ticket that is claimed until then is one whose sender's lease was still counted.
pub(super) fn clear_words(fd: impl AsFd, shape: TableShape, row: u32) -> SystemResult<()> {
    const STEP: usize = 4096;
    let mut bytes = [0; STEP];
    let mut mapping = None;
    for step in 0..ROW_HEADER as usize / STEP {
        // Read and not mapped: most rows have no ticket words, and reading a hole through a mapping
        // would allocate it.
        umf_os::file::read_at(&fd, &mut bytes, shape.row(row) + (step * STEP) as u64)?;
        for (word, bytes) in bytes.chunks_exact(8).enumerate() {
            if bytes.iter().all(|&byte| byte == 0) {
                continue;
            }
            let mapping = match &mapping {
                Some(mapping) => mapping,
                None => mapping.insert(map_header(&fd, shape, row)?),
            };
            let words = mapping.base().cast::<AtomicU64>();
            // SAFETY: the header has a word for each 8 bytes that were read.
            unsafe { words.add(step * STEP / 8 + word).as_ref() }.store(0, Ordering::SeqCst);
        }
    }
    Ok(())
}
