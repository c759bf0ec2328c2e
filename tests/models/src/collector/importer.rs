//! The steps of an importer: it takes a row, opens the handle and tickets, closes, sends, releases
//! its row, and is killed.

use std::fmt::Arguments;

use super::{Collection, Importer, MAX_WORD, Owner, Rule, Stage, State};

impl Collection {
    /// Calls `next` for each step of an importer.
    pub(super) fn importer_steps(
        &self,
        state: &State,
        at: usize,
        next: &mut impl FnMut(State, Arguments<'_>),
    ) {
        let importer = state.importers[at];
        let row = usize::from(importer.row);
        match importer.stage {
            Stage::New => self.take_steps(state, at, next),
            Stage::ClearTickets | Stage::ClearWord | Stage::Raise => self.set_up_step(state, at, next),
            Stage::Idle => self.begin_steps(state, at, next),
            Stage::Open => self.mapped_steps(state, at, next),
            Stage::Hold | Stage::CountSend | Stage::Store => self.send_step(state, at, next),
            Stage::Refused | Stage::Lost => {}
            _ => self.open_step(state, at, next),
        }
        // The sender polls its ticket.
        if !matches!(importer.stage, Stage::New | Stage::ClearTickets | Stage::ClearWord | Stage::Raise)
            && state.rows[row].is_held
        {
            let mut after = *state;
            if state.rows[row].has_ticket {
                after.clear_ticket(row);
                after.rows[row].is_promised = false;
                next(after, format_args!("importer {at}: cancels its ticket"));
            } else {
                after.rows[row].is_held = false;
                after.rows[row].count -= 1;
                next(after, format_args!("importer {at}: releases its hold"));
            }
        }
        if importer != Importer::default() {
            let mut after = *state;
            after.importers[at] = Importer::default();
            for row in after.rows.iter_mut().filter(|row| row.owner == Owner::Importer(at as u8)) {
                (row.owner, row.is_held, row.is_promised) = (Owner::None, false, false);
            }
            next(after, format_args!("importer {at}: is killed; a new process takes its place"));
        }
    }

    fn take_steps(&self, state: &State, at: usize, next: &mut impl FnMut(State, Arguments<'_>)) {
        for row in (0..self.rows).filter(|&row| state.rows[row].owner == Owner::None) {
            let mut after = *state;
            after.rows[row].owner = Owner::Importer(at as u8);
            let found = state.rows[row];
            let is_clear = found.count == 0 && !found.has_ticket;
            let stage = if is_clear { self.after_clear(state, row) } else { Stage::ClearTickets };
            after.importers[at] = Importer { stage, row: row as u8, ..Importer::default() };
            next(after, format_args!("importer {at}: locks row {row}"));
        }
    }

    fn after_clear(&self, state: &State, row: usize) -> Stage {
        if usize::from(state.height) > row { Stage::Idle } else { Stage::Raise }
    }

    fn set_up_step(&self, state: &State, at: usize, next: &mut impl FnMut(State, Arguments<'_>)) {
        let row = usize::from(state.importers[at].row);
        let mut after = *state;
        let (stage, what) = match state.importers[at].stage {
            Stage::ClearTickets => {
                after.clear_ticket(row);
                (Stage::ClearWord, "clears the tickets of")
            }
            Stage::ClearWord => {
                after.rows[row].count = 0;
                (self.after_clear(state, row), "clears the word of")
            }
            _ => {
                after.height = state.height.max(row as u8 + 1);
                (Stage::Idle, "raises the height for")
            }
        };
        after.importers[at].stage = stage;
        next(after, format_args!("importer {at}: {what} row {row}"));
    }

    /// An importer without a mapping begins to open, or releases its row.
    fn begin_steps(&self, state: &State, at: usize, next: &mut impl FnMut(State, Arguments<'_>)) {
        let row = state.importers[at].row;
        let mut begin = |ticket: Option<u8>, text: Arguments<'_>| {
            let mut after = *state;
            let early = !self.has(Rule::AddBeforeDead) && ticket.is_none();
            let stage = if early { Stage::LoadDead } else { Stage::Add };
            after.importers[at] =
                Importer { stage, row, ticket, is_in_word: ticket.is_some(), has_seen_dead: false };
            next(after, text);
        };
        begin(None, format_args!("importer {at}: opens the handle"));
        for of in 0..self.rows {
            if state.rows[of].has_ticket {
                begin(Some(of as u8), format_args!("importer {at}: opens the ticket of row {of}"));
            }
        }
        if !state.rows[usize::from(row)].is_held {
            let mut after = *state;
            after.rows[usize::from(row)].owner = Owner::None;
            after.importers[at] = Importer::default();
            next(after, format_args!("importer {at}: releases row {row}"));
        }
    }

    fn open_step(&self, state: &State, at: usize, next: &mut impl FnMut(State, Arguments<'_>)) {
        let importer = state.importers[at];
        let row = usize::from(importer.row);
        let mut after = *state;
        let follow = &mut after.importers[at];
        let mut done = |mut after: State, stage: Stage, text: &str| {
            after.importers[at].stage = stage;
            if matches!(stage, Stage::Open | Stage::Idle | Stage::Subtract) {
                let Importer { row, .. } = importer;
                after.importers[at] = Importer { stage, row, ..Importer::default() };
            }
            next(after, format_args!("importer {at}: {text}"));
        };
        match importer.stage {
            Stage::Add => {
                if state.rows[row].count >= MAX_WORD {
                    return;
                }
                after.rows[row].count += 1;
                let stage = match importer.ticket {
                    Some(_) => Stage::Count,
                    None if !self.has(Rule::AddBeforeDead) || !self.has(Rule::LoadDead) => Stage::Open,
                    None => Stage::LoadDead,
                };
                done(after, stage, "adds to its lease word");
            }
            Stage::Count => {
                after.count_event();
                done(after, Stage::Claim, "adds to events");
            }
            Stage::Claim => {
                let of = usize::from(importer.ticket.unwrap_or_default());
                if importer.is_in_word {
                    after.clear_ticket(of);
                    after.rows[of].is_promised = false;
                    let stage = if self.has(Rule::ClaimIsProof) { Stage::Open } else { Stage::LoadDead };
                    after.importers[at].has_seen_dead = true;
                    done(after, stage, "claims the ticket");
                } else {
                    follow.ticket = None;
                    let loads = self.has(Rule::LoadDeadAfterClaim);
                    done(
                        after,
                        if loads { Stage::LoadDead } else { Stage::Open },
                        "finds that its ticket is gone",
                    );
                }
            }
            Stage::LoadDead => {
                let early = !self.has(Rule::AddBeforeDead) && importer.ticket.is_none();
                if !state.is_dead {
                    let stage = if early && !importer.has_seen_dead { Stage::Add } else { Stage::Open };
                    done(after, stage, "loads dead, which is not set");
                } else if !self.has(Rule::ClaimIsProof) && importer.has_seen_dead {
                    done(after, Stage::Lost, "has claimed its ticket, and finds dead set");
                } else {
                    done(after, Stage::QueryLedger, "loads dead, which is set");
                }
            }
            Stage::QueryLedger => {
                let early = !self.has(Rule::AddBeforeDead);
                if state.is_producer_dead || !self.has(Rule::BelieveIfUnlocked) {
                    let refused = if early { Stage::Idle } else { Stage::Subtract };
                    let stage = if state.is_producer_dead { refused } else { Stage::Refused };
                    done(after, stage, "believes dead");
                } else {
                    let stage = if early { Stage::Add } else { Stage::Open };
                    done(after, stage, "finds the ledger locked, and does not believe dead");
                }
            }
            _ => {
                after.rows[row].count -= 1;
                done(after, Stage::Idle, "subtracts its count again");
            }
        }
    }

    /// An importer with a mapping closes it, or begins to send a ticket.
    fn mapped_steps(&self, state: &State, at: usize, next: &mut impl FnMut(State, Arguments<'_>)) {
        let row = usize::from(state.importers[at].row);
        let mut after = *state;
        after.rows[row].count -= 1;
        after.importers[at].stage = Stage::Idle;
        next(after, format_args!("importer {at}: closes its mapping"));
        if self.forwards && !state.rows[row].is_held && state.rows[row].count < MAX_WORD {
            let mut after = *state;
            after.importers[at].stage = Stage::Hold;
            next(after, format_args!("importer {at}: begins to send"));
        }
    }

    fn send_step(&self, state: &State, at: usize, next: &mut impl FnMut(State, Arguments<'_>)) {
        let row = usize::from(state.importers[at].row);
        let mut after = *state;
        let (stage, what) = match state.importers[at].stage {
            Stage::Hold => {
                after.rows[row].count += 1;
                (Stage::CountSend, "adds the hold")
            }
            Stage::CountSend => {
                after.count_event();
                (Stage::Store, "adds to events for its ticket")
            }
            _ => {
                after.forget(row);
                let sent = &mut after.rows[row];
                (sent.has_ticket, sent.is_held, sent.is_promised) = (true, true, true);
                (Stage::Open, "stores its ticket")
            }
        };
        after.importers[at].stage = stage;
        next(after, format_args!("importer {at}: {what}"));
    }
}
