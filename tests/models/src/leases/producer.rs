//! The producer: retires a generation, looks for leases, clears rows without an owner, publishes.

use std::fmt::Arguments;

use super::{Free, Leases, Lock, Other, Rule, State};

impl Leases {
    /// Calls `next` for the step of the thread that frees and publishes at the slot. There is one.
    pub(super) fn producer_steps(&self, state: &State, next: &mut impl FnMut(State, Arguments<'_>)) {
        let to = |free| State { free, ..*state };
        // The scan leaves the rows in `mask` behind.
        let pass = |after: State, mask: u8| {
            let rows_left = after.rows_left & !mask;
            let free = match rows_left {
                0 if self.has(Rule::ClearMarksBeforePublish) => Free::ClearMarks,
                0 => Free::Publish,
                _ => Free::Scan,
            };
            State { free, rows_left, ..after }
        };
        let scan = |after: State, height, marks| {
            let rows_left = self.rows_to_scan(height, marks);
            pass(State { rows_left, loaded_height: 0, loaded_marks: 0, ..after }, 0)
        };
        let retired = |free| {
            let mut after = State { free, live: false, ..*state };
            after.retire(!self.has(Rule::NoteEndsWithGeneration));
            after
        };
        let row = state.rows_left.trailing_zeros() as usize;
        match state.free {
            Free::Live if !self.has(Rule::RetireBeforeScan) => {
                next(to(Free::LoadHeight), format_args!("producer: looks for leases without retiring"));
            }
            Free::Live if !self.has(Rule::HeightAfterRetire) => next(
                State { loaded_height: state.height, ..to(Free::RetireLate) },
                format_args!("producer: loads the height {} before it retires", state.height),
            ),
            Free::Live if !self.has(Rule::MarksAfterRetire) => next(
                State { loaded_marks: state.marks, ..to(Free::RetireAfterMarks) },
                format_args!("producer: loads the marks {:b} before it retires", state.marks),
            ),
            Free::Live => {
                next(retired(Free::LoadHeight), format_args!("producer: retires the generation"));
            }
            Free::RetireLate => {
                next(retired(Free::LoadMarks), format_args!("producer: retires the generation"));
            }
            Free::RetireAfterMarks => {
                next(retired(Free::LoadHeightLate), format_args!("producer: retires the generation"));
            }
            Free::LoadHeight => next(
                State { loaded_height: state.height, ..to(Free::LoadMarks) },
                format_args!("producer: loads the height {}", state.height),
            ),
            Free::LoadHeightLate => next(
                scan(*state, state.height, state.loaded_marks),
                format_args!("producer: loads the height {}", state.height),
            ),
            Free::LoadMarks => next(
                scan(*state, state.loaded_height, state.marks),
                format_args!("producer: loads the marks {:b}", state.marks),
            ),
            Free::Scan => {
                let judged = self.judged_with(state, row);
                let in_judged = (0..self.rows).filter(|&row| judged >> row & 1 != 0);
                let sum: i8 = in_judged.map(|row| state.words[row]).sum();
                if sum == 0 {
                    next(pass(*state, judged), format_args!("producer: row {row} is zero"));
                } else if !self.has(Rule::WaitForOwner) {
                    next(
                        pass(*state, judged),
                        format_args!("producer: passes row {row}, which counts {sum}"),
                    );
                } else {
                    next(to(Free::Ask), format_args!("producer: row {row} counts {sum}"));
                }
            }
            Free::Ask => match state.locks[row] {
                // The kernel does not report a lock of the same description. A mutex has to.
                Lock::Producer if !self.has(Rule::ReapInTurn) => {
                    next(to(Free::Lock), format_args!("producer: row {row} has no other owner"));
                }
                Lock::Free if !self.has(Rule::LockBeforeReap) => {
                    next(to(Free::Reap), format_args!("producer: row {row} has no owner"));
                }
                Lock::Free => next(to(Free::Lock), format_args!("producer: row {row} has no owner")),
                _ if !self.has(Rule::CursorStays) => next(
                    pass(*state, 1 << row),
                    format_args!("producer: row {row} has an owner, the free is deferred to the next row"),
                ),
                _ => next(
                    to(Free::Scan),
                    format_args!("producer: row {row} has an owner, the free is deferred"),
                ),
            },
            Free::Lock => {
                let is_free = match state.locks[row] {
                    Lock::Free => true,
                    Lock::Producer => !self.has(Rule::ReapInTurn),
                    Lock::Importer(_) => false,
                };
                let mut after = to(Free::Reap);
                if is_free {
                    after.locks[row] = Lock::Producer;
                    next(after, format_args!("producer: locks row {row}"));
                } else if !self.has(Rule::NoReapWithoutLock) {
                    next(after, format_args!("producer: fails to lock row {row} and goes on"));
                } else {
                    next(to(Free::Scan), format_args!("producer: fails to lock row {row}"));
                }
            }
            Free::Reap => {
                let mut after = to(Free::Unlock);
                after.words[row] = 0;
                if !self.has(Rule::LockBeforeReap) {
                    after = pass(after, 1 << row);
                }
                next(after, format_args!("producer: clears row {row}"));
            }
            Free::Unlock => {
                let mut after = pass(*state, 1 << row);
                if after.locks[row] == Lock::Producer {
                    after.locks[row] = Lock::Free;
                }
                next(after, format_args!("producer: unlocks row {row}"));
            }
            Free::ClearMarks => {
                next(State { marks: 0, ..to(Free::Publish) }, format_args!("producer: clears the marks"));
            }
            Free::ClearMarksLate => {
                next(State { marks: 0, ..to(Free::Live) }, format_args!("producer: clears the marks late"));
            }
            Free::Publish => {
                let late = !self.has(Rule::ClearMarksBeforePublish);
                let mut after = retired(if late { Free::ClearMarksLate } else { Free::Live });
                after.live = true;
                next(after, format_args!("producer: publishes a new block in the same memory"));
            }
        }
    }

    /// Calls `next` for each step of a scan for another slot.
    ///
    /// The words of that slot are not modelled. Any row without an owner can be found nonzero.
    pub(super) fn other_scan_steps(&self, state: &State, next: &mut impl FnMut(State, Arguments<'_>)) {
        let mut after = *state;
        match state.other {
            Other::Idle => {
                for row in 0..self.rows {
                    let is_free = match state.locks[row] {
                        Lock::Free => true,
                        Lock::Producer => !self.has(Rule::ReapInTurn),
                        Lock::Importer(_) => false,
                    };
                    if is_free {
                        let mut after = State { other: Other::Reap(row as u8), ..*state };
                        after.locks[row] = Lock::Producer;
                        next(after, format_args!("another free of the producer: locks row {row}"));
                    }
                }
            }
            Other::Reap(row) => {
                after.words[usize::from(row)] = 0;
                after.other = Other::Unlock(row);
                next(after, format_args!("another free of the producer: clears row {row}"));
            }
            Other::Unlock(row) => {
                if after.locks[usize::from(row)] == Lock::Producer {
                    after.locks[usize::from(row)] = Lock::Free;
                }
                after.other = Other::Idle;
                next(after, format_args!("another free of the producer: unlocks row {row}"));
            }
        }
    }

    /// Returns whether the producer alone completes its free, or the next one.
    pub(super) fn can_free(&self, state: &State) -> bool {
        let mut state = *state;
        while state.other != Other::Idle {
            let mut after = state;
            self.other_scan_steps(&state, &mut |following, _| after = following);
            state = after;
        }
        // A scan takes at most five steps for each row.
        for _ in 0..16 + 5 * self.rows {
            if state.free == Free::Publish {
                return true;
            }
            let mut after = state;
            self.producer_steps(&state, &mut |following, _| after = following);
            state = after;
        }
        false
    }

    /// Returns the rows that a scan has to look at.
    fn rows_to_scan(&self, height: u8, marks: u8) -> u8 {
        let all = if self.has(Rule::ScanAllRowsOfMark) { self.rows } else { self.bits };
        (0..all.min(usize::from(height))).filter(|&row| marks & self.bit(row) != 0).map(|row| 1 << row).sum()
    }

    /// Returns the rows that the producer judges together with `row`.
    fn judged_with(&self, state: &State, row: usize) -> u8 {
        let lock = state.locks[row];
        if self.has(Rule::RowsApart) || !matches!(lock, Lock::Importer(_)) {
            return 1 << row;
        }
        (0..self.rows)
            .filter(|&other| state.rows_left >> other & 1 != 0 && state.locks[other] == lock)
            .map(|other| 1 << other)
            .sum()
    }
}
