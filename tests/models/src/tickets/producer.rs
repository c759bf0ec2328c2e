//! The steps of the producer: it retires a generation, scans the rows, clears rows without an
//! owner, and publishes. Its tickets are in `process`.

use std::fmt::Arguments;

use super::{FreeStage, MAX_ROWS, Owner, PRODUCER, Row, RowStage, Rule, State, Thread, Tickets};

impl Tickets {
    /// Calls `next` for each step of the thread that frees and publishes at the slot.
    pub(super) fn producer_steps(&self, state: &State, next: &mut impl FnMut(State, Arguments<'_>)) {
        match state.free {
            FreeStage::Live => next(
                State { free: self.first_load(), ..*state },
                format_args!("producer: retires the generation"),
            ),
            FreeStage::LoadEvents => next(
                self.after_load(State { has_moved: false, ..*state }),
                format_args!("scan: loads events"),
            ),
            FreeStage::LoadHeight => next(
                self.after_load(State { loaded_height: state.height, ..*state }),
                format_args!("scan: loads the height {}", state.height),
            ),
            FreeStage::LoadBitmap => next(
                self.after_load(State { loaded_bitmap: state.opened_rows, ..*state }),
                format_args!("scan: loads the bitmap {:b}", state.opened_rows),
            ),
            FreeStage::Scan => self.scan_step(state, next),
            FreeStage::ClearTickets | FreeStage::ClearWord => {
                let row = state.rows_left.trailing_zeros() as usize;
                let stage = match state.free {
                    FreeStage::ClearTickets => RowStage::ClearTickets,
                    _ => RowStage::ClearWord,
                };
                self.clear_steps(state, row, stage, &mut |mut after, stage, text| {
                    match stage {
                        Some(RowStage::ClearTickets) => after.free = FreeStage::ClearTickets,
                        Some(_) => after.free = FreeStage::ClearWord,
                        None => {
                            let is_own = after.rows[row].owner == Owner::Process(PRODUCER as u8);
                            if after.rows[row].owner == Owner::Scan || is_own {
                                after.rows[row].owner = Owner::None;
                            }
                            after = self.pass(after, row);
                        }
                    }
                    next(after, format_args!("scan: {text}"));
                });
            }
            FreeStage::CheckEvents => self.check_step(state, next),
            FreeStage::Publish => {
                let mut after = State { free: FreeStage::Live, opened_rows: 0, ..*state };
                for thread in after.threads.as_flattened_mut() {
                    thread.is_old = *thread != Thread::default();
                }
                for word in after.rows.iter_mut().flat_map(|row| &mut row.words) {
                    word.is_old = true;
                    word.was_used_old |= word.was_used;
                    word.was_used = false;
                }
                next(
                    after,
                    format_args!("producer: clears the bitmap and publishes a new block in the same memory"),
                );
            }
        }
    }

    /// The scan loads the lease word of a row. It locks the row if it counts and has no owner.
    fn scan_step(&self, state: &State, next: &mut impl FnMut(State, Arguments<'_>)) {
        let row = state.rows_left.trailing_zeros() as usize;
        let Row { owner, count, .. } = state.rows[row];
        if count == 0 {
            next(self.pass(*state, row), format_args!("scan: row {row} is zero"));
            return;
        }
        let is_own = owner == Owner::Process(PRODUCER as u8) && !self.has(Rule::OwnRowIsOwned);
        if owner != Owner::None && !is_own {
            // The free is deferred. A later poll loads the word again, which changes nothing here.
            return;
        }
        let mut after = *state;
        if self.has(Rule::LockBeforeReset) && !is_own {
            after.rows[row].owner = Owner::Scan;
        }
        after.free = match self.first_clear() {
            RowStage::ClearTickets => FreeStage::ClearTickets,
            _ => FreeStage::ClearWord,
        };
        next(after, format_args!("scan: row {row} counts {count} and has no owner"));
    }

    /// The scan has passed all rows and loads `events` again.
    fn check_step(&self, state: &State, next: &mut impl FnMut(State, Arguments<'_>)) {
        if state.has_moved || !self.has(Rule::RescanIfCounted) && self.passes > 1 && !state.is_rescan {
            let first = self.first_load();
            let is_kept = first == FreeStage::LoadHeight && !self.has(Rule::HeightOnRescan)
                || first == FreeStage::LoadBitmap && !self.has(Rule::BitmapOnRescan);
            let matters = [Rule::RescanIfCounted, Rule::HeightOnRescan, Rule::BitmapOnRescan];
            let is_rescan = matters.iter().any(|&rule| !self.has(rule));
            let mut after = State { free: first, is_rescan, ..*state };
            if first != FreeStage::LoadEvents {
                after.has_moved = false;
            }
            if is_kept {
                after = self.after_load(after);
            }
            next(after, format_args!("scan: starts again"));
        } else {
            let after = State {
                free: FreeStage::Publish,
                is_rescan: false,
                loaded_height: 0,
                loaded_bitmap: 0,
                ..*state
            };
            next(after, format_args!("scan: completes, the memory can be reused"));
        }
    }

    /// Returns the loads of a scan in the order that the rules demand.
    fn loads(&self) -> [FreeStage; 3] {
        if !self.has(Rule::EventsBeforeHeight) {
            [FreeStage::LoadHeight, FreeStage::LoadEvents, FreeStage::LoadBitmap]
        } else if !self.has(Rule::EventsBeforeBitmap) {
            [FreeStage::LoadBitmap, FreeStage::LoadEvents, FreeStage::LoadHeight]
        } else {
            [FreeStage::LoadEvents, FreeStage::LoadHeight, FreeStage::LoadBitmap]
        }
    }

    fn first_load(&self) -> FreeStage {
        self.loads()[0]
    }

    /// Returns the state after the load `state.free`.
    fn after_load(&self, state: State) -> State {
        let is_kept = |load: &FreeStage| match load {
            FreeStage::LoadHeight => state.is_rescan && !self.has(Rule::HeightOnRescan),
            FreeStage::LoadBitmap => state.is_rescan && !self.has(Rule::BitmapOnRescan),
            _ => false,
        };
        let mut following = self.loads().into_iter().skip_while(|&load| load != state.free).skip(1);
        if let Some(free) = following.find(|load| !is_kept(load)) {
            return State { free, ..state };
        }
        let State { loaded_height, loaded_bitmap, .. } = state;
        let is_visited = |&row: &usize| loaded_bitmap & self.bit(row) != 0;
        let rows_left = (0..self.rows.min(loaded_height.into())).filter(is_visited).map(|row| 1 << row).sum();
        State {
            free: if rows_left == 0 { FreeStage::CheckEvents } else { FreeStage::Scan },
            rows_left,
            loaded_height: if self.has(Rule::HeightOnRescan) { 0 } else { loaded_height },
            loaded_bitmap: if self.has(Rule::BitmapOnRescan) { 0 } else { loaded_bitmap },
            ..state
        }
    }

    /// Returns the state after the scan has passed a row.
    fn pass(&self, after: State, row: usize) -> State {
        let rows_left = after.rows_left & !(1 << row);
        let free = if rows_left == 0 { FreeStage::CheckEvents } else { FreeStage::Scan };
        State { free, rows_left, ..after }
    }

    /// Records that a process has added to `events`.
    pub(super) fn count(&self, after: &mut State) {
        let is_scanning = !matches!(after.free, FreeStage::Live | FreeStage::LoadEvents | FreeStage::Publish);
        after.has_moved |= is_scanning && self.has(Rule::RescanIfCounted);
    }

    /// Returns the first step of clearing a row.
    pub(super) fn first_clear(&self) -> RowStage {
        if self.has(Rule::ResetTickets) && self.has(Rule::ResetTicketsFirst) {
            RowStage::ClearTickets
        } else {
            RowStage::ClearWord
        }
    }

    /// Calls `next` for each step of clearing a row, with the step that follows. `None`: the row is
    /// clear.
    pub(super) fn clear_steps(
        &self,
        state: &State,
        row: usize,
        stage: RowStage,
        next: &mut impl FnMut(State, Option<RowStage>, Arguments<'_>),
    ) {
        let is_first = self.has(Rule::ResetTicketsFirst);
        let mut in_words = (0..self.words).filter(|&index| state.rows[row].words[index].left > 0).peekable();
        if stage == RowStage::ClearTickets && in_words.peek().is_some() {
            for index in in_words {
                let mut after = *state;
                after.rows[row].words[index].left = 0;
                next(
                    after,
                    Some(RowStage::ClearTickets),
                    format_args!("clears the ticket word {row}.{index}"),
                );
            }
        } else if stage == RowStage::ClearWord || is_first {
            let mut after = *state;
            after.rows[row].count = 0;
            let has_more = !is_first && self.has(Rule::ResetTickets) && in_words.peek().is_some();
            let following = has_more.then_some(RowStage::ClearTickets);
            next(after, following, format_args!("clears the lease word of row {row}"));
        } else {
            next(*state, None, format_args!("has cleared row {row}"));
        }
    }

    /// Returns whether the producer completes its free, or the next one, without steps of
    /// importers.
    pub(super) fn can_free(&self, state: &State) -> bool {
        let mut state = *state;
        // Two scans, with at most three steps for each row and one for each ticket word.
        for _ in 0..16 + 10 * MAX_ROWS {
            if state.free == FreeStage::Publish {
                return true;
            }
            let mut after = state;
            self.producer_steps(&state, &mut |following, _| after = following);
            state = after;
        }
        false
    }
}
