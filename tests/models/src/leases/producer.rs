//! The steps of the producer: it retires a generation, scans for leases, clears rows without an
//! owner, and publishes.

use std::fmt::Arguments;

use super::{FreeStage, Leases, Lock, OtherScan, Rule, State};

impl Leases {
    /// Calls `next` for the step of the thread that frees and publishes at the slot. Each state has
    /// one.
    pub(super) fn producer_steps(&self, state: &State, next: &mut impl FnMut(State, Arguments<'_>)) {
        match state.free {
            FreeStage::Live
            | FreeStage::RetireLate
            | FreeStage::RetireAfterBitmap
            | FreeStage::LoadHeight
            | FreeStage::LoadHeightLate
            | FreeStage::LoadBitmap => self.retire_step(state, next),
            FreeStage::Scan | FreeStage::QueryLock => self.scan_step(state, next),
            FreeStage::Lock | FreeStage::Reap | FreeStage::Unlock => self.reap_step(state, next),
            FreeStage::ClearBitmap | FreeStage::ClearBitmapLate | FreeStage::Publish => {
                self.publish_step(state, next);
            }
        }
    }

    /// The producer retires the generation, and loads the height and the bitmap.
    fn retire_step(&self, state: &State, next: &mut impl FnMut(State, Arguments<'_>)) {
        let to = |free| State { free, ..*state };
        let scan = |height, bitmap| {
            let rows_left = self.rows_to_scan(height, bitmap);
            self.pass(State { rows_left, loaded_height: 0, loaded_bitmap: 0, ..*state }, 0)
        };
        match state.free {
            FreeStage::Live if !self.has(Rule::RetireBeforeScan) => {
                next(to(FreeStage::LoadHeight), format_args!("producer: scans for leases without retiring"));
            }
            FreeStage::Live if !self.has(Rule::HeightAfterRetire) => next(
                State { loaded_height: state.height, ..to(FreeStage::RetireLate) },
                format_args!("producer: loads the height {} before it retires", state.height),
            ),
            FreeStage::Live if !self.has(Rule::BitmapAfterRetire) => next(
                State { loaded_bitmap: state.opened_rows, ..to(FreeStage::RetireAfterBitmap) },
                format_args!("producer: loads the bitmap {:b} before it retires", state.opened_rows),
            ),
            FreeStage::Live => {
                next(
                    self.retired(state, FreeStage::LoadHeight),
                    format_args!("producer: retires the generation"),
                );
            }
            FreeStage::RetireLate => {
                next(
                    self.retired(state, FreeStage::LoadBitmap),
                    format_args!("producer: retires the generation"),
                );
            }
            FreeStage::RetireAfterBitmap => {
                next(
                    self.retired(state, FreeStage::LoadHeightLate),
                    format_args!("producer: retires the generation"),
                );
            }
            FreeStage::LoadHeight => next(
                State { loaded_height: state.height, ..to(FreeStage::LoadBitmap) },
                format_args!("producer: loads the height {}", state.height),
            ),
            FreeStage::LoadHeightLate => next(
                scan(state.height, state.loaded_bitmap),
                format_args!("producer: loads the height {}", state.height),
            ),
            _ => next(
                scan(state.loaded_height, state.opened_rows),
                format_args!("producer: loads the bitmap {:b}", state.opened_rows),
            ),
        }
    }

    /// The producer loads the word of a row, or queries the row's lock.
    fn scan_step(&self, state: &State, next: &mut impl FnMut(State, Arguments<'_>)) {
        let to = |free| State { free, ..*state };
        let row = state.rows_left.trailing_zeros() as usize;
        if state.free == FreeStage::Scan {
            let judged = self.judged_with(state, row);
            let in_judged = (0..self.rows).filter(|&row| judged >> row & 1 != 0);
            let sum: i8 = in_judged.map(|row| state.words[row]).sum();
            if sum == 0 {
                next(self.pass(*state, judged), format_args!("producer: row {row} is zero"));
            } else if !self.has(Rule::WaitForOwner) {
                next(
                    self.pass(*state, judged),
                    format_args!("producer: passes row {row}, which counts {sum}"),
                );
            } else {
                next(to(FreeStage::QueryLock), format_args!("producer: row {row} counts {sum}"));
            }
            return;
        }
        match state.locks[row] {
            // The kernel does not report a lock of the same description, only a mutex excludes it.
            Lock::Producer if !self.has(Rule::SerializeReaps) => {
                next(to(FreeStage::Lock), format_args!("producer: row {row} has no other owner"));
            }
            Lock::Free if !self.has(Rule::LockBeforeReap) => {
                next(to(FreeStage::Reap), format_args!("producer: row {row} has no owner"));
            }
            Lock::Free => next(to(FreeStage::Lock), format_args!("producer: row {row} has no owner")),
            _ if !self.has(Rule::CursorStays) => next(
                self.pass(*state, 1 << row),
                format_args!("producer: row {row} has an owner, the free is deferred to the next row"),
            ),
            _ => next(
                to(FreeStage::Scan),
                format_args!("producer: row {row} has an owner, the free is deferred"),
            ),
        }
    }

    /// The producer locks, clears and unlocks a row without an owner.
    fn reap_step(&self, state: &State, next: &mut impl FnMut(State, Arguments<'_>)) {
        let to = |free| State { free, ..*state };
        let row = state.rows_left.trailing_zeros() as usize;
        match state.free {
            FreeStage::Lock => {
                let mut after = to(FreeStage::Reap);
                if self.can_producer_lock(state.locks[row]) {
                    after.locks[row] = Lock::Producer;
                    next(after, format_args!("producer: locks row {row}"));
                } else if !self.has(Rule::NoReapWithoutLock) {
                    next(after, format_args!("producer: fails to lock row {row} and continues"));
                } else {
                    next(to(FreeStage::Scan), format_args!("producer: fails to lock row {row}"));
                }
            }
            FreeStage::Reap => {
                let mut after = to(FreeStage::Unlock);
                after.words[row] = 0;
                if !self.has(Rule::LockBeforeReap) {
                    after = self.pass(after, 1 << row);
                }
                next(after, format_args!("producer: clears row {row}"));
            }
            _ => {
                let mut after = self.pass(*state, 1 << row);
                if after.locks[row] == Lock::Producer {
                    after.locks[row] = Lock::Free;
                }
                next(after, format_args!("producer: unlocks row {row}"));
            }
        }
    }

    /// The producer clears the bitmap and publishes the slot again.
    fn publish_step(&self, state: &State, next: &mut impl FnMut(State, Arguments<'_>)) {
        let cleared = |free| State { opened_rows: 0, free, ..*state };
        match state.free {
            FreeStage::ClearBitmap => {
                next(cleared(FreeStage::Publish), format_args!("producer: clears the bitmap"));
            }
            FreeStage::ClearBitmapLate => {
                next(cleared(FreeStage::Live), format_args!("producer: clears the bitmap late"));
            }
            _ => {
                let late = !self.has(Rule::ClearBitmapBeforePublish);
                let free = if late { FreeStage::ClearBitmapLate } else { FreeStage::Live };
                let after = State { live: true, ..self.retired(state, free) };
                next(after, format_args!("producer: publishes a new block in the same memory"));
            }
        }
    }

    /// Returns the state after the generation was retired.
    fn retired(&self, state: &State, free: FreeStage) -> State {
        let mut after = State { free, live: false, ..*state };
        after.retire(!self.has(Rule::MemoEndsWithGeneration));
        after
    }

    /// Returns the state after the scan has passed the rows in `mask`.
    fn pass(&self, after: State, mask: u8) -> State {
        let rows_left = after.rows_left & !mask;
        let free = match rows_left {
            0 if self.has(Rule::ClearBitmapBeforePublish) => FreeStage::ClearBitmap,
            0 => FreeStage::Publish,
            _ => FreeStage::Scan,
        };
        State { free, rows_left, ..after }
    }

    /// Returns whether the producer can lock a row with this lock.
    fn can_producer_lock(&self, lock: Lock) -> bool {
        match lock {
            Lock::Free => true,
            Lock::Producer => !self.has(Rule::SerializeReaps),
            Lock::Importer(_) => false,
        }
    }

    /// Calls `next` for each step of a scan for another slot.
    ///
    /// The words of the other slot are not modelled. The scan may find any row without an owner
    /// nonzero.
    pub(super) fn other_scan_steps(&self, state: &State, next: &mut impl FnMut(State, Arguments<'_>)) {
        let mut after = *state;
        match state.other {
            OtherScan::Idle => {
                for row in 0..self.rows {
                    if self.can_producer_lock(state.locks[row]) {
                        let mut after = State { other: OtherScan::Reap(row as u8), ..*state };
                        after.locks[row] = Lock::Producer;
                        next(after, format_args!("another free of the producer: locks row {row}"));
                    }
                }
            }
            OtherScan::Reap(row) => {
                after.words[usize::from(row)] = 0;
                after.other = OtherScan::Unlock(row);
                next(after, format_args!("another free of the producer: clears row {row}"));
            }
            OtherScan::Unlock(row) => {
                if after.locks[usize::from(row)] == Lock::Producer {
                    after.locks[usize::from(row)] = Lock::Free;
                }
                after.other = OtherScan::Idle;
                next(after, format_args!("another free of the producer: unlocks row {row}"));
            }
        }
    }

    /// Returns whether the producer completes its free, or the next one, without steps of
    /// importers.
    pub(super) fn can_free(&self, state: &State) -> bool {
        let mut state = *state;
        while state.other != OtherScan::Idle {
            let mut after = state;
            self.other_scan_steps(&state, &mut |following, _| after = following);
            state = after;
        }
        // A scan takes at most five steps for each row.
        for _ in 0..16 + 5 * self.rows {
            if state.free == FreeStage::Publish {
                return true;
            }
            let mut after = state;
            self.producer_steps(&state, &mut |following, _| after = following);
            state = after;
        }
        false
    }

    /// Returns the rows that a scan visits, as bits.
    fn rows_to_scan(&self, height: u8, bitmap: u8) -> u8 {
        let all = if self.has(Rule::ScanAllRowsOfBit) { self.rows } else { self.bits };
        (0..all.min(usize::from(height))).filter(|&row| bitmap & self.bit(row) != 0).map(|row| 1 << row).sum()
    }

    /// Returns the rows that the producer judges together with `row`, as bits.
    fn judged_with(&self, state: &State, row: usize) -> u8 {
        let lock = state.locks[row];
        if self.has(Rule::JudgeRowsSeparately) || !matches!(lock, Lock::Importer(_)) {
            return 1 << row;
        }
        (0..self.rows)
            .filter(|&other| state.rows_left >> other & 1 != 0 && state.locks[other] == lock)
            .map(|other| 1 << other)
            .sum()
    }
}
