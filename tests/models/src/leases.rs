//! The lease protocol at one ledger slot of one producer (`docs/leases.md`).
//!
//! The producer publishes blocks at the slot and frees them, in the same memory, without end. One
//! or two importers open and close handles, and can be killed at any step. The kernel then drops
//! the locks of the process, and a new process takes its place. A call of `exec` has the same
//! effect.
//!
//! This file has the rules, the invariants and the state. The steps are in `producer` and
//! `importer`, and the compact form of a state is in `packing`.
//!
//! # Abstractions
//!
//! - A handle is *current*, or *stale* if its generation was retired. The protocol only compares
//!   generations for equality, and a retired generation does not return. A state therefore has no
//!   generation numbers, and an exploration covers any number of generations.
//! - A thread has at most one mapping. A thread with two mappings is two threads here. Closing is
//!   one step of the importer, so it stands for a close by any of its threads.
//! - An opener chooses any ready row of its importer. The implementation chooses by thread.
//! - An importer can take any free row. The implementation starts its search at a counter.
//! - The comparison of generations before the first write of an open is left out. It rejects only
//!   opens that the later comparison rejects too.
//! - The threads of an importer share the memos of cached opens.
//! - An importer can set up a new table while it still unlocks the rows of the last one.
//!
//! At the same sizes, every abstraction allows more interleavings than the implementation has. An
//! invariant that holds in the model holds in the implementation.

mod importer;
mod packing;
mod producer;

use std::fmt::Arguments;

use crate::Model;

/// The maximum number of rows.
pub const MAX_ROWS: usize = 4;
const IMPORTERS: usize = 2;
const MAX_THREADS: usize = 2;
/// The bound of a word, in both directions. Steps beyond it are not explored. Words stay far below
/// it if all rules hold.
const MAX_WORD: i8 = 6;

/// A rule of the protocol, or a property of the kernel that the protocol relies on.
///
/// Two rules are not needed on their own, as their tests show: [`Rule::SetBitBeforeAdd`] and
/// [`Rule::JudgeRowsSeparately`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rule {
    /// The producer retires the generation before it looks for leases.
    RetireBeforeScan,
    /// The producer loads the height after it has retired the generation. Rows from the height on
    /// were never used.
    HeightAfterRetire,
    /// The producer loads the opened bitmap after it has retired the generation.
    BitmapAfterRetire,
    /// The scan visits row `r` if bit `r % bits` of the opened bitmap is set. Left out: it visits
    /// only rows below the number of bits.
    ScanAllRowsOfBit,
    /// The scan waits at a row with a nonzero word and an owner. Left out: it skips the row.
    WaitForOwner,
    /// A deferred scan continues at the row that it waits for. Left out: at the row after it.
    CursorStays,
    /// The scan judges each row by its own word. Left out: it judges the sum over the rows of an
    /// importer.
    JudgeRowsSeparately,
    /// The producer locks a row before it clears the row.
    LockBeforeReap,
    /// A producer that fails to lock a row does not clear the row.
    NoReapWithoutLock,
    /// Threads of the producer clear rows one at a time. Their locks do not exclude each other,
    /// because they share an open file description. Matters only with [`Leases::other_scan`].
    SerializeReaps,
    /// The producer clears the opened bitmap before it publishes the slot again.
    ClearBitmapBeforePublish,
    /// An importer clears a row after it has locked the row.
    ClearTakenRow,
    /// An importer raises the height before it opens in a row.
    RaiseBeforeOpen,
    /// An opener sets the bit of its row before it adds to the word.
    SetBitBeforeAdd,
    /// An opener sets the bit of its row before it loads the generation.
    SetBitBeforeLoad,
    /// An opener adds to the word before it loads the generation.
    AddBeforeLoad,
    /// A close subtracts in the row of the mapping. Left out: in any row of the importer.
    CloseInRowOfMapping,
    /// An importer releases rows only while it has no mapping and no open in progress.
    KeepRowInUse,
    /// The memo of a cached open ends with the importer's lease table.
    MemoEndsWithTable,
    /// The memo of a cached open ends with the generation. Left out: it is valid for any handle of
    /// the slot.
    MemoEndsWithGeneration,
    /// An importer that releases a row clears it before the unlock. Left out: after the unlock.
    ClearBeforeUnlock,
    /// A lock lasts until its owner drops it or ends.
    LockLasts,
    /// Each importer locks rows through its own open file description.
    OwnDescriptions,
}

/// An invariant.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// Memory is reused while a live process has a mapping of it that was opened as current.
    MemoryReused,
    /// A word is below zero.
    NegativeWord,
    /// The word of a row is not zero, although its owner has no mapping and no open in progress.
    IdleRowCounts,
    /// The producer alone cannot complete a free, although no importer has a mapping or an open in
    /// progress.
    ///
    /// The protocol does not promise that every scan ends: a thread that repeatedly opens a stale
    /// handle can be in progress at every check of the scan.
    HeldForever,
}

/// The model and its sizes.
#[derive(Clone, Copy, Debug)]
pub struct Leases {
    /// Number of rows of the lease table, at most [`MAX_ROWS`].
    pub rows: usize,
    /// Number of bits of the opened bitmap. Rows that are equal modulo this number share a bit.
    pub bits: usize,
    /// Number of threads of each importer, at most two. An importer takes up to one row per thread.
    pub threads: [usize; IMPORTERS],
    /// Whether another thread of the producer frees at another slot, and clears rows without an
    /// owner.
    pub other_scan: bool,
    /// The rules that are left out.
    pub left_out: &'static [Rule],
    /// The only invariant to check, or `None` for all.
    pub only: Option<Fault>,
}

/// The next step of a thread of an importer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
enum Stage {
    #[default]
    Idle,
    SetBit,
    Add,
    Load,
    Open,
    Subtract,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
struct Thread {
    stage: Stage,
    row: u8,
    /// Whether the handle that the thread opens is stale.
    stale: bool,
}

/// The state of a row as its importer knows it. The lock in the kernel is separate.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Row {
    #[default]
    Foreign,
    Locked,
    Cleared,
    Ready,
    /// The importer closes its table. It may clear the row, and unlocks it.
    Closing,
    /// Unlocked and about to be cleared. Only without [`Rule::ClearBeforeUnlock`].
    Unlocked,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Importer {
    rows: [Row; MAX_ROWS],
    /// Rows (as bits) with a memo: a mapping of the current handle was opened in the row.
    memo: u8,
    /// Rows (as bits) with a memo of a stale handle.
    memo_stale: u8,
    threads: [Thread; MAX_THREADS],
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Lock {
    #[default]
    Free,
    Importer(u8),
    Producer,
}

/// The next step of the producer's freeing thread. It works on the lowest row of
/// [`State::rows_left`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum FreeStage {
    #[default]
    Live,
    LoadHeight,
    LoadBitmap,
    /// Loads the word of a row. A deferred free stays at this step.
    Scan,
    QueryLock,
    Lock,
    Reap,
    Unlock,
    /// The scan is complete: the memory can be reused.
    ClearBitmap,
    Publish,
    /// Retires after it has loaded the height. Only without [`Rule::HeightAfterRetire`].
    RetireLate,
    /// Retires after it has loaded the bitmap. Only without [`Rule::BitmapAfterRetire`].
    RetireAfterBitmap,
    LoadHeightLate,
    /// Clears the bitmap of a published slot. Only without [`Rule::ClearBitmapBeforePublish`].
    ClearBitmapLate,
}

/// The next step of a scan for another slot.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum OtherScan {
    #[default]
    Idle,
    Reap(u8),
    Unlock(u8),
}

/// A state of the ledger slot, the lease table, and all threads.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct State {
    /// Whether the generation in the ledger is live.
    live: bool,
    free: FreeStage,
    /// The height as the producer loaded it.
    loaded_height: u8,
    /// The opened bitmap as the producer loaded it.
    loaded_bitmap: u8,
    /// Rows (as bits) that the scan has not passed yet.
    rows_left: u8,
    other: OtherScan,
    words: [i8; MAX_ROWS],
    opened_rows: u8,
    height: u8,
    locks: [Lock; MAX_ROWS],
    importers: [Importer; IMPORTERS],
}

impl State {
    /// Makes the current handle stale, and its memos too unless `keep_memos`.
    fn retire(&mut self, keep_memos: bool) {
        for importer in &mut self.importers {
            importer.memo_stale |= importer.memo;
            importer.memo &= u8::from(keep_memos).wrapping_neg();
            for thread in &mut importer.threads {
                thread.stale |= matches!(thread.stage, Stage::SetBit | Stage::Add | Stage::Load);
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

    /// Returns whether no mapping is open and no open is in progress.
    fn is_idle(&self) -> bool {
        self.busy() == 0 && self.threads.iter().all(|thread| thread.stage == Stage::Idle)
    }
}

impl Leases {
    /// Returns a model with all rules and two rows with a bit each. `threads` has the number of
    /// threads of each importer.
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
        // Without `Rule::JudgeRowsSeparately`, only the sum over the rows of an importer is
        // meaningful.
        let sum_of = |at: usize| -> i8 {
            let owned = (0..self.rows).filter(|&row| state.locks[row] == Lock::Importer(at as u8));
            owned.map(|row| state.words[row]).sum()
        };
        let separate = self.has(Rule::JudgeRowsSeparately);
        match fault {
            Fault::MemoryReused => {
                matches!(state.free, FreeStage::ClearBitmap | FreeStage::Publish) && state.any_open()
            }
            Fault::NegativeWord if separate => state.words.iter().any(|&word| word < 0),
            Fault::NegativeWord => (0..IMPORTERS).any(|at| sum_of(at) < 0),
            Fault::IdleRowCounts => (0..IMPORTERS).any(|at| {
                let importer = &state.importers[at];
                let counts = |row: usize| importer.rows[row] == Row::Ready && state.words[row] != 0;
                importer.is_idle() && if separate { (0..self.rows).any(counts) } else { sum_of(at) != 0 }
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
