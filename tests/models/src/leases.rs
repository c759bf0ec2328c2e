//! The lease protocol at one ledger slot of one producer (`docs/leases.md`).
//!
//! The producer publishes blocks at the slot and frees them, in the same memory, without end. One
//! or two importers open and close handles and are killed at any step. The kernel then drops the
//! locks of the process, and a new process takes its place. A call of `exec` has the same effect.
//!
//! The chapters: the rules, the invariants and the state are here, the steps in `producer` and
//! `importer`, and the compact form of a state in `packing`.
//!
//! # Abstractions
//!
//! - A handle is *current*, or *stale*: its generation was retired. The protocol compares
//!   generations for equality only, and a retired one does not return. Numbers of generations are
//!   therefore not part of a state, and an exploration covers any number of them.
//! - A thread has at most one mapping. A thread with two mappings is two threads here. Closing is
//!   one step of the importer, so it stands for a close by any of its threads.
//! - An opener chooses any ready row of its table. The implementation chooses by thread.
//! - Any row that is free can be taken. The implementation starts its search at a counter.
//! - The comparison of generations before the first write of an open is left out. It refuses an
//!   open that the later comparison refuses too.
//! - A note of a cached open is shared by the threads of an importer.
//! - A new table can be set up while the rows of the last one are still being unlocked.
//!
//! At the same sizes, every abstraction allows more interleavings than the implementation has. An
//! invariant that holds here holds there.

mod importer;
mod packing;
mod producer;

use std::fmt::Arguments;

use crate::Model;

/// The most rows of a model.
pub const MAX_ROWS: usize = 4;
const IMPORTERS: usize = 2;
const MAX_THREADS: usize = 2;
/// A word beyond this, in either direction, is explored no further. Words stay far below if all
/// rules hold.
const MAX_WORD: i8 = 6;

/// A rule of the protocol, or a fact about the kernel that it relies on.
///
/// Two of them are not needed alone, and their tests say so: [`Rule::MarkBeforeAdd`] and
/// [`Rule::RowsApart`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rule {
    /// The producer retires the generation before it looks for leases.
    RetireBeforeScan,
    /// The producer loads the height after it has retired the generation.
    HeightAfterRetire,
    /// The producer loads the marks after it has retired the generation.
    MarksAfterRetire,
    /// The scan looks at row `r` if bit `r % bits` of the marks is set. Left out: at rows below
    /// the number of bits only.
    ScanAllRowsOfMark,
    /// The scan waits at a row with a nonzero word and an owner. Left out: it passes the row.
    WaitForOwner,
    /// A deferred scan continues at the row that it waits for. Left out: at the row after it.
    CursorStays,
    /// The scan judges each row. Left out: it judges the sum over the rows of an importer.
    RowsApart,
    /// The producer locks a row before it clears the row.
    LockBeforeReap,
    /// A producer that fails to lock a row does not clear the row.
    NoReapWithoutLock,
    /// Threads of the producer clear rows one at a time. Their locks do not exclude each other,
    /// because they share an open file description. Seen with [`Leases::other_scan`] only.
    ReapInTurn,
    /// The producer clears the marks before it publishes the slot again.
    ClearMarksBeforePublish,
    /// An importer clears a row that it has locked.
    ClearTakenRow,
    /// An importer raises the height before it opens in a row.
    RaiseBeforeOpen,
    /// An opener sets the mark of its row before it adds to the word.
    MarkBeforeAdd,
    /// An opener sets the mark of its row before it loads the generation.
    MarkBeforeLoad,
    /// An opener adds to the word before it loads the generation.
    AddBeforeLoad,
    /// A close subtracts in the row of the mapping. Left out: in any row of the importer.
    CloseInRowOfMapping,
    /// An importer gives rows back only if nothing is open or under way.
    KeepRowInUse,
    /// A note of a cached open ends with the lease table.
    NoteEndsWithTable,
    /// A note of a cached open ends with the generation. Left out: it holds for any handle of the
    /// slot.
    NoteEndsWithGeneration,
    /// An importer that gives a row back does not clear it after the unlock.
    ClearBeforeUnlock,
    /// A lock lasts until its owner drops it or ends.
    LockLasts,
    /// Importers lock rows through open file descriptions of their own.
    OwnDescriptions,
}

/// An invariant.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// A mapping is open in a living process, was current when it was opened, and its memory is
    /// used again.
    MemoryReused,
    /// A word is below zero.
    NegativeWord,
    /// The word of a row is not zero, and its owner has nothing open or under way.
    IdleRowCounts,
    /// No importer has anything open or under way, and the producer alone cannot complete a free.
    ///
    /// A weaker promise than an end of every scan: a thread that opens a stale handle again and
    /// again can be under way each time the scan looks.
    HeldForever,
}

/// The model and its sizes.
#[derive(Clone, Copy, Debug)]
pub struct Leases {
    /// Rows of the lease table, at most [`MAX_ROWS`].
    pub rows: usize,
    /// Bits of the word of marks. Rows that are equal modulo this number share a bit.
    pub bits: usize,
    /// Threads of each importer, at most two. An importer with two threads takes up to two rows.
    pub threads: [usize; IMPORTERS],
    /// The producer frees at another slot at the same time and clears rows without an owner.
    pub other_scan: bool,
    /// The rules that are left out.
    pub left_out: &'static [Rule],
    /// The only invariant to check, or all.
    pub only: Option<Fault>,
}

/// What a thread of an importer does next.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
enum Stage {
    #[default]
    Idle,
    Mark,
    Add,
    Load,
    Open,
    TakeBack,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
struct Thread {
    stage: Stage,
    row: u8,
    /// The handle that the thread opens is stale.
    stale: bool,
}

/// What an importer believes about a row. The kernel lock is a separate fact.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Row {
    #[default]
    Foreign,
    Locked,
    Cleared,
    Ready,
    /// The table is closed. The row is cleared, or not, and unlocked.
    Closing,
    /// Unlocked and about to be cleared. Only without [`Rule::ClearBeforeUnlock`].
    Unlocked,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Importer {
    rows: [Row; MAX_ROWS],
    /// Rows (as bits) with a note: a mapping of the current handle was opened in the row.
    noted: u8,
    /// Rows with a note of a stale handle.
    noted_stale: u8,
    threads: [Thread; MAX_THREADS],
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Lock {
    #[default]
    Free,
    Importer(u8),
    Producer,
}

/// What the freeing thread of the producer does next. It works on the lowest row
/// of [`State::rows_left`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Free {
    #[default]
    Live,
    LoadHeight,
    LoadMarks,
    /// Loads the word of a row. A deferred free stays here.
    Scan,
    Ask,
    Lock,
    Reap,
    Unlock,
    /// The scan is complete: the memory can be used again.
    ClearMarks,
    Publish,
    /// Retires after it has loaded the height. Only without [`Rule::HeightAfterRetire`].
    RetireLate,
    /// Retires after it has loaded the marks. Only without [`Rule::MarksAfterRetire`].
    RetireAfterMarks,
    LoadHeightLate,
    /// Clears the marks of a published slot. Only without [`Rule::ClearMarksBeforePublish`].
    ClearMarksLate,
}

/// What a scan for another slot does next.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Other {
    #[default]
    Idle,
    Reap(u8),
    Unlock(u8),
}

/// A state of the ledger slot, the lease table, and all threads.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct State {
    /// The generation in the ledger is live.
    live: bool,
    free: Free,
    /// The height as the producer loaded it.
    loaded_height: u8,
    /// The marks as the producer loaded them.
    loaded_marks: u8,
    /// Rows (as bits) that the scan has still to look at.
    rows_left: u8,
    other: Other,
    words: [i8; MAX_ROWS],
    marks: u8,
    height: u8,
    locks: [Lock; MAX_ROWS],
    importers: [Importer; IMPORTERS],
}

impl State {
    /// Makes the current handle stale, and the notes of it unless `keep_notes`.
    fn retire(&mut self, keep_notes: bool) {
        for importer in &mut self.importers {
            importer.noted_stale |= importer.noted;
            importer.noted &= u8::from(keep_notes).wrapping_neg();
            for thread in &mut importer.threads {
                thread.stale |= matches!(thread.stage, Stage::Mark | Stage::Add | Stage::Load);
            }
        }
    }

    fn any_open(&self) -> bool {
        self.importers.iter().flat_map(|importer| importer.threads).any(|thread| thread.stage == Stage::Open)
    }
}

impl Importer {
    fn count(&self, stages: &[Row]) -> usize {
        self.rows.iter().filter(|row| stages.contains(row)).count()
    }

    /// Returns the number of threads that open, close, or set up a row.
    fn busy(&self) -> usize {
        let opening = self.threads.iter().filter(|thread| !matches!(thread.stage, Stage::Idle | Stage::Open));
        opening.count() + self.count(&[Row::Locked, Row::Cleared])
    }

    /// Nothing is open and nothing is under way.
    fn is_idle(&self) -> bool {
        self.busy() == 0 && self.threads.iter().all(|thread| thread.stage == Stage::Idle)
    }
}

impl Leases {
    /// Returns a model with all rules, two rows, a bit for each, and an importer for each number of
    /// threads.
    pub fn new(threads: [usize; IMPORTERS]) -> Self {
        Self { rows: 2, bits: 2, threads, other_scan: false, left_out: &[], only: None }
    }

    fn has(&self, rule: Rule) -> bool {
        !self.left_out.contains(&rule)
    }

    fn bit(&self, row: usize) -> u8 {
        1 << (row % self.bits)
    }

    fn violates(&self, state: &State, fault: Fault) -> bool {
        // Without `Rule::RowsApart` the rows of an importer mean something only together.
        let sum_of = |at: usize| -> i8 {
            let owned = (0..self.rows).filter(|&row| state.locks[row] == Lock::Importer(at as u8));
            owned.map(|row| state.words[row]).sum()
        };
        let apart = self.has(Rule::RowsApart);
        match fault {
            Fault::MemoryReused => matches!(state.free, Free::ClearMarks | Free::Publish) && state.any_open(),
            Fault::NegativeWord if apart => state.words.iter().any(|&word| word < 0),
            Fault::NegativeWord => (0..IMPORTERS).any(|at| sum_of(at) < 0),
            Fault::IdleRowCounts => (0..IMPORTERS).any(|at| {
                let importer = &state.importers[at];
                let counts = |row: usize| importer.rows[row] == Row::Ready && state.words[row] != 0;
                importer.is_idle() && if apart { (0..self.rows).any(counts) } else { sum_of(at) != 0 }
            }),
            Fault::HeldForever => state.importers.iter().all(Importer::is_idle) && !self.can_free(state),
        }
    }
}

impl Model for Leases {
    type State = State;
    type Packed = u128;
    type Fault = Fault;

    fn start(&self) -> State {
        State { live: true, ..State::default() }
    }

    fn steps(&self, state: &State, next: &mut impl FnMut(State, Arguments<'_>)) {
        self.producer_steps(state, next);
        if self.other_scan {
            self.other_scan_steps(state, next);
        }
        for at in 0..IMPORTERS {
            self.importer_steps(state, at, next);
        }
    }

    fn fault(&self, state: &State) -> Option<Fault> {
        [Fault::MemoryReused, Fault::NegativeWord, Fault::IdleRowCounts, Fault::HeldForever]
            .into_iter()
            .find(|&fault| self.only.is_none_or(|only| only == fault) && self.violates(state, fault))
    }

    fn pack(&self, state: &State) -> u128 {
        packing::pack(state, self.threads[0] == self.threads[1])
    }

    fn unpack(&self, packed: u128) -> State {
        packing::unpack(packed)
    }
}
