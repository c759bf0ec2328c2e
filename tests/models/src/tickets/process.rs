//! The steps of a process that its threads share: it takes and releases rows, releases and cancels
//! tickets, and is killed. The producer also sends here.

use std::fmt::{self, Arguments};

use super::{
    FreeStage, IMPORTERS, MAX_COUNT, MAX_THREADS, Operation, Owner, PRODUCER, RowStage, Rule, Stage, State,
    Thread, Tickets, Word,
};

/// A process in the words of a step.
struct Name(usize);

impl fmt::Display for Name {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.0 == PRODUCER { out.write_str("producer") } else { write!(out, "importer {}", self.0) }
    }
}

impl Tickets {
    /// Calls `next` for each step of a process outside of the steps of its threads.
    pub(super) fn process_steps(
        &self,
        state: &State,
        at: usize,
        next: &mut impl FnMut(State, Arguments<'_>),
    ) {
        let owner = Owner::Process(at as u8);
        for row in 0..self.rows {
            match state.rows[row].owner {
                Owner::None if self.wants_row(state, at) => self.take_step(state, at, row, next),
                found if found == owner => self.own_row_steps(state, at, row, next),
                _ => {}
            }
        }
        for (row, index) in self.places() {
            if state.is_ready(at, row) && !state.is_sending(at, row, index) {
                self.sender_steps(state, at, (row, index), next);
            }
        }
        let is_started = state.threads_of(at) != [Thread::default(); MAX_THREADS]
            || state.rows.iter().any(|row| row.owner == owner);
        if at < IMPORTERS && is_started {
            self.kill_step(state, at, next);
        }
    }

    /// Returns the number of rows that a process has, and whether it sets one up.
    fn rows_of(&self, state: &State, at: usize) -> (usize, bool) {
        let owned = state.rows.iter().filter(|row| row.owner == Owner::Process(at as u8));
        (owned.clone().count(), owned.into_iter().any(|row| row.stage != RowStage::Ready))
    }

    /// Returns whether a thread of the importer can begin an operation, or set up a row.
    pub(super) fn has_free_thread(&self, state: &State, at: usize) -> bool {
        let is_busy = |thread: &&Thread| !matches!(thread.stage, Stage::Idle | Stage::Open);
        let busy = state.threads[at].iter().filter(is_busy).count();
        busy + usize::from(self.rows_of(state, at).1) < self.threads[at]
    }

    fn wants_row(&self, state: &State, at: usize) -> bool {
        let (rows, is_busy) = self.rows_of(state, at);
        if at == PRODUCER {
            self.producer_sends && rows == 0
        } else {
            rows < self.rows_each && !is_busy && self.has_free_thread(state, at)
        }
    }

    fn take_step(&self, state: &State, at: usize, row: usize, next: &mut impl FnMut(State, Arguments<'_>)) {
        let mut after = *state;
        let taken = &mut after.rows[row];
        taken.owner = Owner::Process(at as u8);
        let is_clear = taken.count == 0 && taken.words.iter().all(|word| word.left == 0);
        taken.stage = if is_clear { self.after_clear(state, row) } else { self.first_clear() };
        next(after, format_args!("{}: locks row {row}", Name(at)));
    }

    /// Returns the step of an owner after its row is clear.
    fn after_clear(&self, state: &State, row: usize) -> RowStage {
        if usize::from(state.height) > row { RowStage::Ready } else { RowStage::Raise }
    }

    /// Calls `next` for each step of the owner at its row: it sets the row up, or releases it.
    fn own_row_steps(
        &self,
        state: &State,
        at: usize,
        row: usize,
        next: &mut impl FnMut(State, Arguments<'_>),
    ) {
        let mut after = *state;
        match state.rows[row].stage {
            RowStage::Raise => {
                after.rows[row].stage = RowStage::Ready;
                after.height = state.height.max(row as u8 + 1);
                next(after, format_args!("{}: raises the height for row {row}", Name(at)));
            }
            RowStage::Ready => {
                let is_row = |used: u8| usize::from(used) == row;
                let is_used = |thread: &Thread| {
                    thread.stage != Stage::Idle && is_row(thread.row)
                        || thread.operation == Operation::Send && is_row(thread.ticket.0)
                };
                let has_tickets = state.rows[row].words.iter().any(|word| word.is_held);
                let keeps = has_tickets && self.has(Rule::KeepRowWithTickets);
                if at != PRODUCER && !keeps && !state.threads_of(at).iter().any(is_used) {
                    after.rows[row].owner = Owner::None;
                    next(after, format_args!("{}: releases row {row}", Name(at)));
                }
            }
            stage => self.clear_steps(state, row, stage, &mut |mut after, stage, text| {
                after.rows[row].stage = stage.unwrap_or(self.after_clear(&after, row));
                next(after, format_args!("{}: {text}", Name(at)));
            }),
        }
    }

    /// Calls `next` for each step of a sender at one of its ticket words.
    fn sender_steps(
        &self,
        state: &State,
        at: usize,
        (row, index): (usize, usize),
        next: &mut impl FnMut(State, Arguments<'_>),
    ) {
        let word = &state.rows[row].words[index];
        let by_sender = self.has(Rule::ReleaseBySender);
        let hold = i8::from(self.has(Rule::HoldTicket));
        let mut after = *state;
        let word_after = &mut after.rows[row].words[index];
        if !word.is_held {
            let can_send = state.free == FreeStage::Live && state.rows[row].count < MAX_COUNT;
            if at == PRODUCER && can_send {
                self.store(word_after, false);
                after.rows[row].count += hold;
                if self.has(Rule::SetBitOfHold) {
                    after.opened_rows |= self.bit(row);
                }
                self.forget(&mut after, row, index);
                next(after, format_args!("producer: sends the ticket {row}.{index}"));
            }
            return;
        }
        let released = Word {
            was_used: word.was_used | !word.is_old & !self.has(Rule::DistinctNumbers),
            was_used_old: word.was_used_old | word.is_old & !self.has(Rule::DistinctNumbers),
            ..Word::default()
        };
        if word.left > 0 {
            (word_after.left, word_after.promised) = (0, 0);
            if !by_sender {
                *word_after = released;
                after.rows[row].count -= hold;
            }
            next(after, format_args!("{}: cancels the ticket {row}.{index}", Name(at)));
        } else if self.has(Rule::ReleaseClaimed) {
            *word_after = released;
            if by_sender {
                after.rows[row].count -= hold;
            }
            next(after, format_args!("{}: releases the ticket {row}.{index}", Name(at)));
        }
        if !self.has(Rule::ChildKeepsTickets) && state.rows[row].count > -MAX_COUNT {
            let mut after = *state;
            after.rows[row].words[index].left = 0;
            after.rows[row].count -= hold;
            next(after, format_args!("child of {}: drops the ticket {row}.{index}", Name(at)));
        }
    }

    /// Stores a new ticket.
    pub(super) fn store(&self, word: &mut Word, is_old: bool) {
        (word.left, word.promised, word.is_held, word.is_old) = (self.readers, self.readers, true, is_old);
    }

    /// Lets the threads that open an earlier ticket of this word find another number.
    pub(super) fn forget(&self, after: &mut State, row: usize, index: usize) {
        for thread in after.threads.as_flattened_mut() {
            if thread.operation == Operation::Ticket && thread.ticket == (row as u8, index as u8) {
                thread.is_in_word = false;
            }
        }
    }

    /// The kernel drops the locks of the process. The words keep their values.
    fn kill_step(&self, state: &State, at: usize, next: &mut impl FnMut(State, Arguments<'_>)) {
        let mut after = *state;
        after.threads[at] = Default::default();
        for row in after.rows.iter_mut().filter(|row| row.owner == Owner::Process(at as u8)) {
            (row.owner, row.stage) = (Owner::None, RowStage::Ready);
            for word in &mut row.words {
                (word.is_held, word.promised) = (false, 0);
            }
        }
        next(after, format_args!("importer {at}: is killed; a new process takes its place"));
    }
}
