//! The ticket protocol for handles in transit, at one ledger slot of one producer
//! (`docs/leases.md`).
//!
//! A ticket keeps a block open while its handle is in a queue. The producer publishes blocks at the
//! slot and frees them, in the same memory, without end. It sends tickets of the block that is
//! published. One or two importers open handles and tickets, close, and send tickets of what they
//! have open. They can be killed at any step. The kernel then drops the locks of the process, and a
//! new process takes its place.
//!
//! This file has the rules, the invariants and the state. The steps are in `producer`, `process`
//! and `thread`, and the compact form of a state is in `packing`.
//!
//! # Abstractions
//!
//! - A block is the one that has the memory of the slot, or an *old* one whose memory was reused.
//!   The protocol only compares generations for equality. A state therefore has no generation
//!   numbers, and an exploration covers any number of generations.
//! - A ticket has no number. It is the ticket that its word contains, or its number is in no word
//!   and never returns. An exploration covers any number of tickets, but at most one for each
//!   ticket word exists at a time.
//! - The word `events` is one bit: whether it has changed since the scan loaded it.
//! - A claim is one step. The implementation repeats the load and the compare-exchange if another
//!   reader claims in between.
//! - The producer sends in one step, while its block is live. No scan is in progress then, so that
//!   the parts of the step commute with the steps of all other processes.
//! - An opener or a sender chooses any ready row of its process, and a process takes any free row.
//! - Steps that cannot have an effect are left out: clearing a row that is clear, and raising the
//!   height over a row below it.
//! - One step here is several in the lease model: finding a row without an owner and locking it,
//!   clearing a word and unlocking the row, clearing the bitmap and publishing.
//! - The lease model has the rules of plain opens, of memos and of locks. They are not repeated.
//! - The producer is not killed. A collector for dead producers is not implemented.
//!
//! With these exceptions an abstraction allows more interleavings than the implementation has.

mod packing;
mod process;
mod producer;
mod thread;

use std::fmt::Arguments;

use crate::Model;

/// The maximum number of rows.
pub const MAX_ROWS: usize = 4;
/// The maximum number of ticket words of a row.
pub const MAX_WORDS: usize = 2;
/// The maximum number of readers of a ticket.
pub const MAX_READERS: u8 = 3;
const IMPORTERS: usize = 2;
const MAX_THREADS: usize = 2;
/// The index of the producer among the processes. The importers come before it.
const PRODUCER: usize = IMPORTERS;
const PROCESSES: usize = IMPORTERS + 1;
/// The bound of a lease word, in both directions. Steps beyond it are not explored.
const MAX_COUNT: i8 = 6;

/// A rule of the protocol.
///
/// [`Rule::SetBitBeforeAdd`] is not needed. [`Rule::CountForwards`] is not needed if the ticket is in
/// the row of the mapping. The tests show both.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rule {
    /// A scan starts again if `events` has changed since it began. Left out: it makes
    /// [`Tickets::passes`] passes.
    RescanIfCounted,
    /// A scan loads `events` before the height.
    EventsBeforeHeight,
    /// A scan loads `events` before the opened bitmap.
    EventsBeforeBitmap,
    /// A scan that starts again loads the height again.
    HeightOnRescan,
    /// A scan that starts again loads the opened bitmap again.
    BitmapOnRescan,
    /// The scan locks a row before it clears the row.
    LockBeforeReset,
    /// The scan treats rows of its own process as owned. Left out: it queries their locks through
    /// the description that holds them, and the kernel reports no owner.
    OwnRowIsOwned,
    /// The process that clears a row clears the ticket words too.
    ResetTickets,
    /// The process that clears a row clears the ticket words before the lease word.
    ResetTicketsFirst,

    /// An opener adds to the lease word before it claims. Left out: it claims, adds, counts.
    AddBeforeClaim,
    /// An opener adds to the lease word before it counts in `events`.
    AddBeforeCount,
    /// An opener counts in `events` before it claims.
    CountBeforeClaim,
    /// An opener counts in `events` at all.
    CountClaims,
    /// An opener sets the bit of its row before it counts in `events`.
    SetBitBeforeCount,
    /// An opener sets the bit of its row before it adds to the lease word.
    SetBitBeforeAdd,
    /// An opener claims by a compare-exchange. Left out: by a load and a store.
    ClaimByCompareExchange,
    /// An opener that has claimed does not compare the generation. Left out: it opens only live
    /// blocks.
    OpenRetired,
    /// No two tickets have the same number. Left out: all tickets have the same one.
    DistinctNumbers,

    /// A sender adds one to the lease word of the row of the ticket, the hold.
    HoldTicket,
    /// A sender adds the hold before it stores the ticket.
    HoldBeforeStore,
    /// An importer that sends adds the hold before it counts in `events`.
    HoldBeforeCount,
    /// An importer that sends counts in `events` before it stores the ticket.
    CountBeforeStore,
    /// An importer that sends counts in `events` at all.
    CountForwards,
    /// A sender sets the bit of the row of the ticket.
    SetBitOfHold,
    /// An importer that sends sets the bit of the row of the ticket before it counts in `events`.
    SetBitOfHoldBeforeCount,
    /// An importer that sends keeps its mapping open until it has stored the ticket.
    KeepMapping,
    /// Only the sender releases the hold. Left out: the opener that has claimed does.
    ReleaseBySender,
    /// The sender releases the hold of a ticket that was claimed.
    ReleaseClaimed,
    /// A process releases a row only while no ticket is in it.
    KeepRowWithTickets,
    /// A forked child that drops a ticket of its parent does nothing. Left out: it cancels and
    /// releases the ticket.
    ChildKeepsTickets,
}

/// An invariant.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// Memory is reused while a live process has a mapping of it.
    MemoryReused,
    /// Memory is reused although an opener can claim a ticket of it. The sender lives and has not
    /// cancelled it.
    TicketMemoryReused,
    /// An opener cannot claim a ticket, although it has a reader left. The sender lives and has not
    /// cancelled it.
    TicketLost,
    /// More openers have claimed a ticket than it has readers.
    ClaimedTooOften,
    /// The lease word of an owned row is not the number of its mappings, opens in progress, and
    /// holds.
    WrongCount,
    /// A lease word is below zero.
    NegativeWord,
    /// The producer alone cannot complete a free, although no process has a mapping, a ticket, or
    /// an open in progress.
    HeldForever,
}

const FAULTS: [Fault; 7] = [
    Fault::MemoryReused,
    Fault::TicketMemoryReused,
    Fault::TicketLost,
    Fault::ClaimedTooOften,
    Fault::WrongCount,
    Fault::NegativeWord,
    Fault::HeldForever,
];

/// The model and its sizes.
#[derive(Clone, Copy, Debug)]
pub struct Tickets {
    /// Number of rows of the lease table, at most [`MAX_ROWS`].
    pub rows: usize,
    /// Number of bits of the opened bitmap. Rows that are equal modulo this number share a bit.
    pub bits: usize,
    /// Number of rows that an importer takes.
    pub rows_each: usize,
    /// Number of ticket words of a row, at most [`MAX_WORDS`].
    pub words: usize,
    /// Number of readers of a ticket, at most [`MAX_READERS`].
    pub readers: u8,
    /// Number of threads of each importer, at most two.
    pub threads: [usize; IMPORTERS],
    /// Whether the producer sends. It takes a row for that.
    pub producer_sends: bool,
    /// Whether importers open handles without tickets.
    pub plain: bool,
    /// Number of passes of a scan without [`Rule::RescanIfCounted`], one or two.
    pub passes: u8,
    /// The rules that are left out.
    pub left_out: &'static [Rule],
    /// The only invariant to check, or `None` for all.
    pub only: Option<Fault>,
}

/// What a thread of an importer does. Its next step is a [`Stage`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
enum Operation {
    #[default]
    None,
    /// Opens a handle without a ticket, or has a mapping.
    Handle,
    /// Opens a ticket.
    Ticket,
    /// Sends a ticket of its mapping.
    Send,
}

/// The next step of a thread.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
enum Stage {
    #[default]
    Idle,
    SetBit,
    Add,
    Count,
    Claim,
    Load,
    Store,
    /// Has a mapping.
    Open,
    Subtract,
    /// Stores the ticket word that it has loaded, less one reader. Only without
    /// [`Rule::ClaimByCompareExchange`].
    ClaimStore,
    /// Releases the hold of the sender. Only without [`Rule::ReleaseBySender`].
    Drop,
    /// Closes its mapping before it sends. Only without [`Rule::KeepMapping`].
    Close,
    /// Has failed to open a ticket that has a reader left.
    Refused,
    /// Has claimed a ticket that had no reader left.
    Excess,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
struct Thread {
    operation: Operation,
    stage: Stage,
    /// The row that counts the mapping.
    row: u8,
    /// The row and the ticket word of the ticket that the thread opens or sends.
    ticket: (u8, u8),
    /// Whether that word contains the ticket that the thread opens. If not, its number is gone.
    is_in_word: bool,
    /// Whether the block of the handle is old. For an open that has to compare the generation:
    /// whether the handle is stale.
    is_old: bool,
    /// The readers in the ticket word that the thread has loaded.
    loaded: u8,
}

/// The owner of the lock of a row.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Owner {
    #[default]
    None,
    /// The scan, through a description of its own.
    Scan,
    Process(u8),
}

/// The next step of the owner at its row.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum RowStage {
    #[default]
    Ready,
    ClearTickets,
    ClearWord,
    Raise,
}

/// A ticket word, and what its sender and the invariants know about the ticket.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Word {
    /// The readers that the word contains. Zero: it contains no ticket.
    left: u8,
    /// Whether the sender has a ticket here that it has not released.
    is_held: bool,
    /// The readers that can rely on the ticket: none after it was cancelled, or its sender was
    /// killed.
    promised: u8,
    /// Whether the block of the ticket is old.
    is_old: bool,
    /// Whether a ticket of the block was released here. Only without [`Rule::DistinctNumbers`].
    was_used: bool,
    /// Whether a ticket of an old block was released here. Only without
    /// [`Rule::DistinctNumbers`].
    was_used_old: bool,
}

/// A row of the lease table.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Row {
    owner: Owner,
    stage: RowStage,
    /// The lease word of the slot.
    count: i8,
    words: [Word; MAX_WORDS],
}

/// The next step of the producer's freeing thread. It works on the lowest row of
/// [`State::rows_left`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum FreeStage {
    #[default]
    Live,
    LoadEvents,
    LoadHeight,
    LoadBitmap,
    /// Loads the word of a row, and locks the row if it has no owner. A deferred free stays here.
    Scan,
    ClearTickets,
    ClearWord,
    CheckEvents,
    /// The scan is complete: the memory can be reused.
    Publish,
}

/// A state of the ledger slot, the lease table, and all threads.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct State {
    free: FreeStage,
    /// Whether `events` has changed since the scan loaded it.
    has_moved: bool,
    /// Whether the scan has started again.
    is_rescan: bool,
    /// The height and the opened bitmap as the scan loaded them.
    loaded_height: u8,
    loaded_bitmap: u8,
    /// Rows (as bits) that the scan has not passed yet.
    rows_left: u8,
    opened_rows: u8,
    height: u8,
    rows: [Row; MAX_ROWS],
    threads: [[Thread; MAX_THREADS]; IMPORTERS],
}

impl State {
    fn is_live(&self) -> bool {
        self.free == FreeStage::Live
    }

    /// Returns whether the process `at` owns a row and has set it up.
    fn is_ready(&self, at: usize, row: usize) -> bool {
        self.rows[row].owner == Owner::Process(at as u8) && self.rows[row].stage == RowStage::Ready
    }

    fn word(&self, thread: &Thread) -> &Word {
        let (row, index) = thread.ticket;
        &self.rows[usize::from(row)].words[usize::from(index)]
    }

    fn word_mut(&mut self, thread: &Thread) -> &mut Word {
        let (row, index) = thread.ticket;
        &mut self.rows[usize::from(row)].words[usize::from(index)]
    }

    /// Returns the threads of a process. The producer has none here.
    fn threads_of(&self, at: usize) -> &[Thread] {
        self.threads.get(at).map_or(&[], |threads| threads)
    }

    /// Returns whether a thread of the process is sending with this ticket word.
    fn is_sending(&self, at: usize, row: usize, index: usize) -> bool {
        let is_sending = |thread: &Thread| {
            thread.operation == Operation::Send && thread.ticket == (row as u8, index as u8)
        };
        self.threads_of(at).iter().any(is_sending)
    }
}

impl Tickets {
    /// Returns a model with all rules, two importers of one thread each, and three rows with a bit
    /// each. Each process sends and has one row with one ticket word.
    pub fn new() -> Self {
        Self {
            rows: 3,
            bits: 3,
            rows_each: 1,
            words: 1,
            readers: 1,
            threads: [1, 1],
            producer_sends: true,
            plain: true,
            passes: 1,
            left_out: &[],
            only: None,
        }
    }

    fn has(&self, rule: Rule) -> bool {
        !self.left_out.contains(&rule)
    }

    fn bit(&self, row: usize) -> u8 {
        1 << (row % self.bits)
    }

    /// Returns the ticket words of the table, as pairs of row and index.
    fn places(&self) -> impl Iterator<Item = (usize, usize)> + use<> {
        let words = self.words;
        (0..self.rows).flat_map(move |row| (0..words).map(move |index| (row, index)))
    }

    /// Gives states that no step tells apart the same form.
    fn settle(&self, state: &mut State) {
        let is_live = state.is_live();
        for row in &mut state.rows {
            for word in &mut row.words {
                if word.left == 0 && !word.is_held {
                    let Word { was_used, was_used_old, .. } = *word;
                    *word = Word { was_used, was_used_old, ..Word::default() };
                }
            }
        }
        let rows = state.rows;
        for thread in state.threads.as_flattened_mut() {
            let (row, index) = thread.ticket;
            match thread.operation {
                Operation::Handle if thread.stage != Stage::Open => thread.is_old |= !is_live,
                Operation::Ticket if self.is_unclaimed(thread) => {
                    thread.is_in_word &= rows[usize::from(row)].words[usize::from(index)].left > 0;
                    let is_handle = !thread.is_in_word && self.has(Rule::DistinctNumbers);
                    if is_handle && thread.stage != Stage::ClaimStore {
                        thread.ticket = (0, 0);
                        thread.is_old |= !is_live;
                    }
                }
                _ => {}
            }
            if thread.stage == Stage::Subtract {
                *thread = Thread {
                    operation: Operation::Handle,
                    stage: Stage::Subtract,
                    row: thread.row,
                    ..Thread::default()
                };
            }
        }
    }

    fn violates(&self, state: &State, fault: Fault) -> bool {
        let threads = state.threads.as_flattened();
        let mut words = state.rows.iter().flat_map(|row| row.words);
        match fault {
            Fault::MemoryReused => {
                let is_reused = state.free == FreeStage::Publish;
                threads.iter().any(|thread| self.has_mapping(thread) && (is_reused || thread.is_old))
            }
            Fault::TicketMemoryReused => {
                state.free == FreeStage::Publish && words.any(|word| word.promised > 0)
            }
            Fault::TicketLost => {
                words.any(|word| word.promised > 0 && word.left != word.promised)
                    || threads.iter().any(|thread| thread.stage == Stage::Refused)
            }
            Fault::ClaimedTooOften => threads.iter().any(|thread| thread.stage == Stage::Excess),
            Fault::WrongCount => (0..self.rows).any(|row| {
                let Owner::Process(at) = state.rows[row].owner else { return false };
                let counted = self.expected_count(state, usize::from(at), row);
                state.rows[row].stage == RowStage::Ready && state.rows[row].count != counted
            }),
            Fault::NegativeWord => state.rows.iter().any(|row| row.count < 0),
            Fault::HeldForever => self.is_quiet(state) && !self.can_free(state),
        }
    }

    /// Returns what the lease word of an owned row has to be.
    fn expected_count(&self, state: &State, at: usize, row: usize) -> i8 {
        let held = state.rows[row].words.iter().filter(|word| word.is_held).count();
        let threads = state.threads_of(at).iter();
        let counted: usize = threads
            .map(|thread| {
                let mapping = usize::from(thread.row) == row && self.has_counted_mapping(thread);
                let hold = usize::from(thread.ticket.0) == row && self.has_counted_hold(thread);
                usize::from(mapping) + usize::from(hold)
            })
            .sum();
        (held + counted) as i8
    }

    /// Returns whether no process has a mapping or a ticket, or is at a step of its own.
    fn is_quiet(&self, state: &State) -> bool {
        let is_released =
            |word: &Word| !word.is_held || !self.has(Rule::ReleaseClaimed) && word.promised == 0;
        state.threads.as_flattened().iter().all(|thread| thread.stage == Stage::Idle)
            && state.rows.iter().all(|row| row.stage == RowStage::Ready)
            && state.rows.iter().flat_map(|row| &row.words).all(is_released)
    }
}

impl Default for Tickets {
    fn default() -> Self {
        Self::new()
    }
}

impl Model for Tickets {
    type State = State;
    type Packed = packing::Packed;
    type Fault = Fault;

    fn start(&self) -> State {
        State::default()
    }

    fn steps(&self, state: &State, next: &mut impl FnMut(State, Arguments<'_>)) {
        let mut settled = |mut after: State, text: Arguments<'_>| {
            self.settle(&mut after);
            next(after, text);
        };
        self.producer_steps(state, &mut settled);
        for at in 0..PROCESSES {
            self.process_steps(state, at, &mut settled);
        }
        for at in 0..IMPORTERS {
            for index in 0..self.threads[at] {
                self.thread_steps(state, at, index, &mut settled);
            }
        }
    }

    fn fault(&self, state: &State) -> Option<Fault> {
        FAULTS
            .into_iter()
            .find(|&fault| self.only.is_none_or(|only| only == fault) && self.violates(state, fault))
    }

    fn pack(&self, state: &State) -> packing::Packed {
        packing::pack(state, self.threads[0] == self.threads[1])
    }

    fn unpack(&self, packed: packing::Packed) -> State {
        packing::unpack(packed)
    }
}
