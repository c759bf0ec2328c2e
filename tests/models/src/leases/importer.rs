//! The steps of an importer: it takes rows, opens and closes, releases its rows, and is killed.
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
            self.row_steps(state, at, row, next);
        }
        if importer.count(&[Row::Ready]) > 0 && (importer.is_idle() || !self.has(Rule::KeepRowInUse)) {
            let mut after = *state;
            let closed = &mut after.importers[at];
            for row in closed.rows.iter_mut().filter(|row| **row == Row::Ready) {
                *row = Row::Closing;
            }
            if self.has(Rule::MemoEndsWithTable) {
                (closed.memo, closed.memo_stale) = (0, 0);
            }
            next(after, format_args!("importer {at}: closes its lease table"));
        }
        for index in 0..self.threads[at] {
            self.thread_steps(state, at, index, next);
        }
        if *importer != Importer::default() || state.locks.contains(&lock) {
            let mut after = *state;
            after.importers[at] = Importer::default();
            // The kernel drops the locks. The words keep their values.
            for held in after.locks.iter_mut().filter(|held| **held == lock) {
                *held = Lock::Free;
            }
            next(
                after,
                format_args!("importer {at}: is killed or calls exec; a new process takes its place"),
            );
        }
    }

    /// Calls `next` for each step of an importer at a row.
    fn row_steps(&self, state: &State, at: usize, row: usize, next: &mut impl FnMut(State, Arguments<'_>)) {
        let importer = &state.importers[at];
        let lock = Lock::Importer(at as u8);
        let mut after = *state;
        let stage = &mut after.importers[at].rows[row];
        match *stage {
            Row::Foreign => {
                let can_lock = match state.locks[row] {
                    Lock::Free => true,
                    Lock::Importer(_) => !self.has(Rule::OwnDescriptions),
                    Lock::Producer => false,
                };
                let owned = importer.count(&[Row::Locked, Row::Cleared, Row::Ready]);
                if can_lock && owned < self.threads[at] && importer.busy() < self.threads[at] {
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

    /// Returns the step of a thread after `done`, in the order that the rules demand.
    ///
    /// With a memo, the thread does not set the bit again.
    fn after(&self, done: Stage, has_memo: bool) -> Stage {
        let order = if !self.has(Rule::AddBeforeLoad) {
            [Stage::SetBit, Stage::Load, Stage::Add]
        } else if !self.has(Rule::SetBitBeforeLoad) {
            [Stage::Add, Stage::Load, Stage::SetBit]
        } else if !self.has(Rule::SetBitBeforeAdd) {
            [Stage::Add, Stage::SetBit, Stage::Load]
        } else {
            [Stage::SetBit, Stage::Add, Stage::Load]
        };
        let from = order.iter().position(|&stage| stage == done).map_or(0, |at| at + 1);
        order[from..]
            .iter()
            .copied()
            .find(|&stage| stage != Stage::SetBit || !has_memo)
            .unwrap_or(Stage::Open)
    }

    /// Calls `next` for each step of a thread of an importer.
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
        // The state after the thread has added `change` to the word of row `counted`. The thread
        // continues with `stage`.
        let step = |stage, counted: usize, change: i8| {
            let mut after = *state;
            after.words[counted] += change;
            let importer = &mut after.importers[at];
            importer.threads[index] = match stage {
                Stage::Idle => Thread::default(),
                Stage::Open => {
                    let memos = if thread.stale { &mut importer.memo_stale } else { &mut importer.memo };
                    *memos |= 1 << row;
                    Thread { stage, stale: false, ..thread }
                }
                Stage::Subtract => Thread { stage, stale: false, ..thread },
                _ => Thread { stage, ..thread },
            };
            after
        };
        let memos = if thread.stale { importer.memo_stale } else { importer.memo };
        let following = self.after(thread.stage, memos >> row & 1 != 0);
        match thread.stage {
            Stage::Idle => self.begin_steps(state, at, index, next),
            Stage::SetBit => {
                let opened_rows = state.opened_rows | self.bit(row);
                let after = State { opened_rows, ..step(following, row, 0) };
                next(after, format_args!("thread {at}.{index}: sets the bit of row {row}"));
            }
            Stage::Add => {
                if state.words[row] < MAX_WORD {
                    next(step(following, row, 1), format_args!("thread {at}.{index}: adds one to row {row}"));
                }
            }
            Stage::Load if !thread.stale => {
                next(
                    step(following, row, 0),
                    format_args!("thread {at}.{index}: loads the generation, it is current"),
                );
            }
            Stage::Load => {
                let counted = self.has(Rule::AddBeforeLoad);
                let stage = if counted { Stage::Subtract } else { Stage::Idle };
                next(
                    step(stage, row, 0),
                    format_args!("thread {at}.{index}: loads the generation, the handle is stale"),
                );
            }
            Stage::Open => {
                let other = !self.has(Rule::CloseInRowOfMapping);
                for counted in 0..self.rows {
                    let is_allowed = counted == row || other && importer.rows[counted] == Row::Ready;
                    if is_allowed && state.words[counted] > -MAX_WORD {
                        next(
                            step(Stage::Idle, counted, -1),
                            format_args!(
                                "thread {at}.{index}: closes a mapping of row {row}, subtracts in {counted}"
                            ),
                        );
                    }
                }
            }
            Stage::Subtract => {
                if state.words[row] > -MAX_WORD {
                    next(
                        step(Stage::Idle, row, -1),
                        format_args!("thread {at}.{index}: subtracts its count from row {row} again"),
                    );
                }
            }
        }
    }

    /// Calls `next` for each open that a thread without an open or mapping can begin.
    fn begin_steps(
        &self,
        state: &State,
        at: usize,
        index: usize,
        next: &mut impl FnMut(State, Arguments<'_>),
    ) {
        let importer = &state.importers[at];
        if importer.busy() >= self.threads[at] {
            return;
        }
        for row in 0..self.rows {
            let mut begin = |has_memo, stale, text: Arguments<'_>| {
                let mut after = *state;
                let stage = self.after(Stage::Idle, has_memo);
                after.importers[at].threads[index] = Thread { stage, row: row as u8, stale };
                next(after, text);
            };
            let has_memo = |memos: u8| memos >> row & 1 != 0;
            if has_memo(importer.memo) && state.live {
                begin(
                    true,
                    false,
                    format_args!("thread {at}.{index}: opens the current handle again, in row {row}"),
                );
            }
            if has_memo(importer.memo_stale) {
                begin(
                    true,
                    true,
                    format_args!("thread {at}.{index}: opens a stale handle again, in row {row}"),
                );
            }
            if importer.rows[row] != Row::Ready {
                continue;
            }
            if state.live {
                begin(
                    false,
                    false,
                    format_args!("thread {at}.{index}: opens the current handle in row {row}"),
                );
            }
            begin(false, true, format_args!("thread {at}.{index}: opens a stale handle in row {row}"));
        }
    }
}
