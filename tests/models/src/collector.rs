//! The collection of a dead producer's memory, at one ledger slot (`docs/leases.md`).
//!
//! A producer has published a block, and may have sent a ticket of it. It is killed at any step.
//! Two importers open the handle and tickets, close, and send tickets of what they have open. Two
//! collectors release the memory of the block if no owned row counts it. Importers and collectors
//! are killed at any step too. The kernel then drops their locks, and a new process takes the place
//! of each.
//!
//! This file has the rules, the invariants and the state. The steps of importers are in `importer`,
//! those of collectors in `steps`.
//!
//! # Abstractions
//!
//! - The block is never freed. The other models have frees of a living producer. A free only makes
//!   plain opens fail, so that leaving it out allows more interleavings.
//! - A collector runs in a process of its own. One in an importer ends when the importer does,
//!   which is a kill of both here.
//! - A cached open is a plain open: it does the same steps in the same order.
//! - A ticket has no number. It is the ticket that its word contains, or gone. It has one reader.
//! - The word `events` is one bit for each collector: whether it has changed since the collector
//!   loaded it.
//! - An importer has one row with one ticket word, which counts its mapping and its hold.
//! - Clearing a taken row is two steps, as in a reset. Steps without an effect are left out.

mod importer;
mod steps;

use std::fmt::Arguments;

use crate::Model;

/// Number of rows. The first one is the producer's at the start, if it has sent a ticket.
pub const ROWS: usize = 3;
const IMPORTERS: usize = 2;
const COLLECTORS: usize = 2;
/// The bound of a word. Steps beyond it are not explored.
const MAX_WORD: i8 = 5;

/// A rule of the protocol.
///
/// [`Rule::LockTable`] is not needed for the invariants, as its test shows: it saves the work of a
/// second collector.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rule {
    /// A collector begins only if the producer's ledger is not locked.
    CollectOnlyDead,
    /// A collector locks the first byte of the table, and begins only if it gets the lock.
    LockTable,
    /// A collector sets `dead` before it looks at the rows. Left out: after it has passed all rows.
    SetDeadBeforeScan,
    /// A collector sets `dead` before it loads the height.
    SetDeadBeforeHeight,
    /// A collector sets `dead` at all.
    SetDead,
    /// A collector keeps memory that an owned row counts.
    KeepOwned,
    /// A collector does not keep memory for a row without an owner.
    ResetUnowned,
    /// A collector locks a row before it clears the row.
    LockBeforeReset,
    /// A collector clears the ticket words of a row without an owner.
    ResetTickets,
    /// A collector clears the ticket words before the lease word.
    ResetTicketsFirst,
    /// A collector looks at all rows again if `events` has changed since it began.
    RescanIfCounted,
    /// A collector loads `events` before it loads the height.
    EventsBeforeHeight,
    /// A collector that looks again loads the height again.
    HeightOnRescan,
    /// An opener loads `dead`, when it compares the generation.
    LoadDead,
    /// An opener adds to the lease word before it loads `dead`.
    AddBeforeDead,
    /// An opener that could not claim its ticket loads `dead` too.
    LoadDeadAfterClaim,
    /// An opener believes `dead` only if the producer's ledger is not locked.
    BelieveIfUnlocked,
    /// An opener that has claimed a ticket does not load `dead`.
    ClaimIsProof,
}

/// An invariant.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// Memory is released while a live process has a mapping of it, or a mapping of released memory
    /// was opened.
    MappingPunched,
    /// Memory is released although an opener can claim a ticket of it, whose sender lives and has
    /// not cancelled it.
    TicketPunched,
    /// An opener could not claim a ticket, although its sender lives and has not cancelled it.
    TicketLost,
    /// Memory of a producer that lives is released.
    LivePunched,
    /// An open of a producer that lives fails.
    LiveRefused,
    /// A lease word is below zero.
    NegativeWord,
    /// Nothing is open, under way or sent, and a collector alone does not release the memory.
    KeptForever,
}

const FAULTS: [Fault; 7] = [
    Fault::MappingPunched,
    Fault::TicketPunched,
    Fault::TicketLost,
    Fault::LivePunched,
    Fault::LiveRefused,
    Fault::NegativeWord,
    Fault::KeptForever,
];

/// The model and its sizes.
#[derive(Clone, Copy, Debug)]
pub struct Collection {
    /// Number of rows, at most [`ROWS`].
    pub rows: usize,
    /// Number of importers, one or two.
    pub importers: usize,
    /// Number of collectors, one or two.
    pub collectors: usize,
    /// Whether the producer has sent a ticket. It then has the first row.
    pub producer_sent: bool,
    /// Whether importers send tickets of what they have open.
    pub forwards: bool,
    /// Whether another process may set `dead` at any time.
    pub hostile: bool,
    /// The rules that are left out.
    pub left_out: &'static [Rule],
    /// The only invariant to check, or `None` for all.
    pub only: Option<Fault>,
}

/// The next step of an importer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
enum Stage {
    /// Without a row.
    #[default]
    New,
    ClearTickets,
    ClearWord,
    Raise,
    /// Has a row, and no mapping.
    Idle,
    /// Adds to its lease word. With a ticket: the row of the ticket.
    Add,
    /// Adds to `events`, before it claims.
    Count,
    Claim,
    LoadDead,
    QueryLedger,
    Open,
    Subtract,
    /// Adds a hold, then adds to `events`, then stores the ticket.
    Hold,
    CountSend,
    Store,
    /// Has failed to open.
    Refused,
    Lost,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
struct Importer {
    stage: Stage,
    row: u8,
    /// The row of the ticket that it opens.
    ticket: Option<u8>,
    /// Whether that ticket is still the one in the word.
    is_in_word: bool,
    /// Whether it loaded `dead` as set. Only without [`Rule::AddBeforeDead`].
    has_seen_dead: bool,
}

/// The next step of a collector.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
enum Collecting {
    #[default]
    Idle,
    SetDead,
    LoadEvents,
    LoadHeight,
    Scan,
    ClearTickets,
    ClearWord,
    UnlockRow,
    CheckEvents,
    /// Sets `dead` late. Only without [`Rule::SetDeadBeforeScan`].
    SetDeadLate,
    Punch,
    Unlock,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
struct Collector {
    stage: Collecting,
    row: u8,
    height: u8,
    is_rescan: bool,
    /// Whether a row counts that has an owner.
    is_leased: bool,
    /// Whether `events` has changed since it was loaded.
    has_moved: bool,
}

/// The owner of the lock of a row.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
enum Owner {
    #[default]
    None,
    Producer,
    Importer(u8),
    Collector(u8),
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
struct Row {
    owner: Owner,
    /// The lease word of the slot.
    count: i8,
    /// Whether the ticket word has a ticket that can be claimed.
    has_ticket: bool,
    /// Whether the owner has sent a ticket here that it has not released.
    is_held: bool,
    /// Whether its sender lives and has neither cancelled it nor seen it claimed.
    is_promised: bool,
}

/// A state of the slot, the table and all processes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct State {
    is_producer_dead: bool,
    is_dead: bool,
    is_punched: bool,
    height: u8,
    table_lock: Option<u8>,
    rows: [Row; ROWS],
    importers: [Importer; IMPORTERS],
    collectors: [Collector; COLLECTORS],
}

impl State {
    /// Records that a process has added to `events`.
    fn count_event(&mut self) {
        for collector in &mut self.collectors {
            let is_scanning = !matches!(
                collector.stage,
                Collecting::Idle | Collecting::SetDead | Collecting::LoadEvents | Collecting::Unlock
            );
            collector.has_moved |= is_scanning;
        }
    }

    /// Lets the importers that open the ticket of this row find another number.
    fn forget(&mut self, row: usize) {
        for importer in &mut self.importers {
            importer.is_in_word &= importer.ticket != Some(row as u8);
        }
    }

    fn clear_ticket(&mut self, row: usize) {
        self.rows[row].has_ticket = false;
        self.forget(row);
    }
}

impl Importer {
    /// Returns whether it has the memory open.
    fn has_mapping(&self) -> bool {
        matches!(self.stage, Stage::Open | Stage::Hold | Stage::CountSend | Stage::Store)
    }
}

impl Collection {
    /// Returns a model with all rules, two importers and two collectors.
    #[must_use]
    pub fn new() -> Self {
        Self {
            rows: 2,
            importers: IMPORTERS,
            collectors: COLLECTORS,
            producer_sent: false,
            forwards: false,
            hostile: false,
            left_out: &[],
            only: None,
        }
    }

    fn has(&self, rule: Rule) -> bool {
        !self.left_out.contains(&rule)
    }

    fn violates(&self, state: &State, fault: Fault) -> bool {
        let stages = || state.importers.iter().map(|importer| importer.stage);
        match fault {
            Fault::MappingPunched => state.is_punched && state.importers.iter().any(Importer::has_mapping),
            Fault::TicketPunched => state.is_punched && state.rows.iter().any(|row| row.is_promised),
            Fault::TicketLost => {
                stages().any(|stage| stage == Stage::Lost)
                    || state.rows.iter().any(|row| row.is_promised && !row.has_ticket)
            }
            Fault::LivePunched => state.is_punched && !state.is_producer_dead,
            Fault::LiveRefused => stages().any(|stage| stage == Stage::Refused),
            Fault::NegativeWord => state.rows.iter().any(|row| row.count < 0),
            Fault::KeptForever => self.is_quiet(state) && !self.can_collect(state),
        }
    }

    /// Returns whether the producer is dead, and nothing is open, under way or sent.
    fn is_quiet(&self, state: &State) -> bool {
        let is_idle = |importer: &Importer| matches!(importer.stage, Stage::New | Stage::Idle);
        state.is_producer_dead
            && !state.is_punched
            && state.importers.iter().all(is_idle)
            && state.rows.iter().all(|row| !row.is_held)
    }
}

impl Default for Collection {
    fn default() -> Self {
        Self::new()
    }
}

impl Model for Collection {
    type State = State;
    type Packed = State;
    type Fault = Fault;

    fn start(&self) -> State {
        let mut state = State::default();
        if self.producer_sent {
            state.rows[0] =
                Row { owner: Owner::Producer, count: 1, has_ticket: true, is_held: true, is_promised: true };
            state.height = 1;
        }
        state
    }

    fn steps(&self, state: &State, next: &mut impl FnMut(State, Arguments<'_>)) {
        if !state.is_producer_dead {
            let mut after = State { is_producer_dead: true, ..*state };
            for row in after.rows.iter_mut().filter(|row| row.owner == Owner::Producer) {
                (row.owner, row.is_held, row.is_promised) = (Owner::None, false, false);
            }
            next(after, format_args!("producer: is killed"));
        }
        if self.hostile && !state.is_dead {
            next(State { is_dead: true, ..*state }, format_args!("another process sets dead"));
        }
        for at in 0..self.importers {
            self.importer_steps(state, at, next);
        }
        for at in 0..self.collectors {
            self.collector_steps(state, at, next);
        }
    }

    fn fault(&self, state: &State) -> Option<Fault> {
        FAULTS
            .into_iter()
            .find(|&fault| self.only.is_none_or(|only| only == fault) && self.violates(state, fault))
    }

    fn pack(&self, state: &State) -> State {
        *state
    }

    fn unpack(&self, packed: State) -> State {
        packed
    }
}
