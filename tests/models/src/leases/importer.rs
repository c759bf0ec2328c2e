//! An importer: takes rows, opens and closes, gives its rows back, is killed.
//!
//! In traces, thread 0.1 is thread 1 of importer 0.

use std::fmt::Arguments;

use super::{Importer, Leases, Lock, MAX_WORD, Row, Rule, Stage, State, Thread};

impl Leases {
    /// Calls `next` for each step of an importer and of its threads.
    pub(super) fn importer_steps(
        &self,
        state: &State,
        at: usize,
        next: &mut impl FnMut(State, Arguments<'_>),
    ) {
        let importer = &state.importers[at];
        let lock = Lock::Importer(at as u8);
        for row in 0..self.rows {
            let mut after = *state;
            let stage = &mut after.importers[at].rows[row];
            match *stage {
                Row::Foreign => {
                    let can_lock = match state.locks[row] {
                        Lock::Free => true,
                        Lock::Importer(_) => !self.has(Rule::OwnDescriptions),
                        Lock::Producer => false,
                    };
                    let has = importer.count(&[Row::Locked, Row::Cleared, Row::Ready]);
                    if can_lock && has < self.threads[at] && importer.busy() < self.threads[at] {
                        *stage = Row::Locked;
                        after.locks[row] = lock;
                        next(after, format_args!("importer {at}: locks row {row}"));
                    }
                }
                Row::Locked if self.has(Rule::ClearTakenRow) => {
                    *stage = Row::Cleared;
                    after.words[row] = 0;
                    next(after, format_args!("importer {at}: clears row {row}"));
                }
                Row::Cleared | Row::Locked => {
                    *stage = Row::Ready;
                    if self.has(Rule::RaiseBeforeOpen) {
                        after.height = after.height.max(row as u8 + 1);
                        next(after, format_args!("importer {at}: raises the height for row {row}"));
                    } else {
                        next(after, format_args!("importer {at}: starts to use row {row}"));
                    }
                }
                // Only without `Rule::RaiseBeforeOpen`.
                Row::Ready if usize::from(state.height) <= row => {
                    after.height = row as u8 + 1;
                    next(after, format_args!("importer {at}: raises the height for row {row}, late"));
                }
                Row::Ready => {}
                Row::Closing => {
                    *stage = if self.has(Rule::ClearBeforeUnlock) { Row::Foreign } else { Row::Unlocked };
                    if after.locks[row] == lock {
                        after.locks[row] = Lock::Free;
                    }
                    next(after, format_args!("importer {at}: unlocks row {row}"));
                    if state.words[row] != 0 {
                        let mut after = *state;
                        after.words[row] = 0;
                        next(after, format_args!("importer {at}: clears row {row} of its closed table"));
                    }
                }
                Row::Unlocked => {
                    *stage = Row::Foreign;
                    after.words[row] = 0;
                    next(after, format_args!("importer {at}: clears row {row}, which it has unlocked"));
                }
            }
            if !self.has(Rule::LockLasts) && state.locks[row] == lock {
                let mut after = *state;
                after.locks[row] = Lock::Free;
                next(after, format_args!("importer {at}: loses the lock of row {row}"));
            }
        }
        if importer.count(&[Row::Ready]) > 0 && (importer.is_idle() || !self.has(Rule::KeepRowInUse)) {
            let mut after = *state;
            let closed = &mut after.importers[at];
            for row in closed.rows.iter_mut().filter(|row| **row == Row::Ready) {
                *row = Row::Closing;
            }
            if self.has(Rule::NoteEndsWithTable) {
                (closed.noted, closed.noted_stale) = (0, 0);
            }
            next(after, format_args!("importer {at}: closes its lease table"));
        }
        for index in 0..self.threads[at] {
            self.thread_steps(state, at, index, next);
        }
        if *importer != Importer::default() || state.locks.contains(&lock) {
            let mut after = *state;
            after.importers[at] = Importer::default();
            // The kernel drops the locks. The words stay.
            for lock in after.locks.iter_mut().filter(|held| **held == lock) {
                *lock = Lock::Free;
            }
            next(
                after,
                format_args!("importer {at}: is killed or calls exec; a new process takes its place"),
            );
        }
    }

    /// Returns what a thread does after `done`, in the order that the rules demand.
    ///
    /// A thread sets no mark if it has a note.
    fn after(&self, done: Stage, noted: bool) -> Stage {
        let order = if !self.has(Rule::AddBeforeLoad) {
            [Stage::Mark, Stage::Load, Stage::Add]
        } else if !self.has(Rule::MarkBeforeLoad) {
            [Stage::Add, Stage::Load, Stage::Mark]
        } else if !self.has(Rule::MarkBeforeAdd) {
            [Stage::Add, Stage::Mark, Stage::Load]
        } else {
            [Stage::Mark, Stage::Add, Stage::Load]
        };
        let from = order.iter().position(|&stage| stage == done).map_or(0, |at| at + 1);
        order[from..].iter().copied().find(|&stage| stage != Stage::Mark || !noted).unwrap_or(Stage::Open)
    }

    fn thread_steps(
        &self,
        state: &State,
        at: usize,
        index: usize,
        next: &mut impl FnMut(State, Arguments<'_>),
    ) {
        let importer = &state.importers[at];
        let thread = importer.threads[index];
        let row = usize::from(thread.row);
        // The thread goes on with `stage` in its row and adds `change` to the word of `counted`.
        let go = |stage, counted: usize, change: i8| {
            let mut after = *state;
            after.words[counted] += change;
            let importer = &mut after.importers[at];
            importer.threads[index] = match stage {
                Stage::Idle => Thread::default(),
                Stage::Open => {
                    let notes = if thread.stale { &mut importer.noted_stale } else { &mut importer.noted };
                    *notes |= 1 << row;
                    Thread { stage, stale: false, ..thread }
                }
                Stage::TakeBack => Thread { stage, stale: false, ..thread },
                _ => Thread { stage, ..thread },
            };
            after
        };
        let notes = if thread.stale { importer.noted_stale } else { importer.noted };
        let following = self.after(thread.stage, notes >> row & 1 != 0);
        match thread.stage {
            Stage::Idle if importer.busy() >= self.threads[at] => {}
            Stage::Idle => {
                for row in 0..self.rows {
                    let mut begin = |noted, stale, words: Arguments<'_>| {
                        let mut after = *state;
                        let stage = self.after(Stage::Idle, noted);
                        after.importers[at].threads[index] = Thread { stage, row: row as u8, stale };
                        next(after, words);
                    };
                    let is_noted = |notes: u8| notes >> row & 1 != 0;
                    if is_noted(importer.noted) && state.live {
                        begin(
                            true,
                            false,
                            format_args!("thread {at}.{index}: opens the current handle again, in row {row}"),
                        );
                    }
                    if is_noted(importer.noted_stale) {
                        begin(
                            true,
                            true,
                            format_args!("thread {at}.{index}: opens a stale handle again, in row {row}"),
                        );
                    }
                    if importer.rows[row] == Row::Ready {
                        if state.live {
                            begin(
                                false,
                                false,
                                format_args!("thread {at}.{index}: opens the current handle in row {row}"),
                            );
                        }
                        begin(
                            false,
                            true,
                            format_args!("thread {at}.{index}: opens a stale handle in row {row}"),
                        );
                    }
                }
            }
            Stage::Mark => {
                let after = State { marks: state.marks | self.bit(row), ..go(following, row, 0) };
                next(after, format_args!("thread {at}.{index}: sets the mark of row {row}"));
            }
            Stage::Add => {
                if state.words[row] < MAX_WORD {
                    next(go(following, row, 1), format_args!("thread {at}.{index}: adds one to row {row}"));
                }
            }
            Stage::Load if !thread.stale => {
                next(
                    go(following, row, 0),
                    format_args!("thread {at}.{index}: loads the generation, it is current"),
                );
            }
            Stage::Load => {
                let counted = self.has(Rule::AddBeforeLoad);
                let stage = if counted { Stage::TakeBack } else { Stage::Idle };
                next(
                    go(stage, row, 0),
                    format_args!("thread {at}.{index}: loads the generation, the handle is stale"),
                );
            }
            Stage::Open => {
                let other = !self.has(Rule::CloseInRowOfMapping);
                for counted in 0..self.rows {
                    let is_allowed = counted == row || other && importer.rows[counted] == Row::Ready;
                    if is_allowed && state.words[counted] > -MAX_WORD {
                        next(
                            go(Stage::Idle, counted, -1),
                            format_args!(
                                "thread {at}.{index}: closes a mapping of row {row}, subtracts in {counted}"
                            ),
                        );
                    }
                }
            }
            Stage::TakeBack => {
                if state.words[row] > -MAX_WORD {
                    next(
                        go(Stage::Idle, row, -1),
                        format_args!("thread {at}.{index}: takes its count back from row {row}"),
                    );
                }
            }
        }
    }
}
