//! The steps of a collector: it sets `dead`, looks at all rows, clears rows without an owner,
//! releases the memory, and is killed.

use std::fmt::Arguments;

use super::{COLLECTORS, Collecting, Collection, Collector, Owner, Rule, State};

impl Collection {
    /// Calls `next` for each step of a collector.
    pub(super) fn collector_steps(
        &self,
        state: &State,
        at: usize,
        next: &mut impl FnMut(State, Arguments<'_>),
    ) {
        self.collect_step(state, at, next);
        if state.collectors[at] != Collector::default() {
            let mut after = *state;
            after.collectors[at] = Collector::default();
            release(&mut after, at);
            next(after, format_args!("collector {at}: is killed; a new process takes its place"));
        }
    }

    /// The step that follows. Each state has at most one.
    fn collect_step(&self, state: &State, at: usize, next: &mut impl FnMut(State, Arguments<'_>)) {
        let collector = state.collectors[at];
        let row = usize::from(collector.row);
        let mut after = *state;
        let mut done = |mut after: State, stage: Collecting, text: &str| {
            after.collectors[at].stage = stage;
            next(after, format_args!("collector {at}: {text}"));
        };
        let is_early = !self.has(Rule::SetDeadBeforeHeight);
        match collector.stage {
            Collecting::Idle => {
                let may = state.is_producer_dead || !self.has(Rule::CollectOnlyDead);
                if !may || state.is_punched || state.table_lock.is_some() && self.has(Rule::LockTable) {
                    return;
                }
                if self.has(Rule::LockTable) {
                    after.table_lock = Some(at as u8);
                }
                after.collectors[at] = Collector::default();
                if is_early {
                    after.collectors[at].height = state.height;
                }
                let late = !self.has(Rule::SetDeadBeforeScan) || !self.has(Rule::SetDead);
                let stage = if late { Collecting::LoadEvents } else { Collecting::SetDead };
                done(after, stage, "begins");
            }
            Collecting::SetDead => {
                after.is_dead = true;
                done(after, self.first_load(), "sets dead");
            }
            Collecting::LoadEvents => {
                after.collectors[at].has_moved = false;
                let stage =
                    if self.has(Rule::EventsBeforeHeight) && !self.keeps_height(&collector) && !is_early {
                        Collecting::LoadHeight
                    } else {
                        self.first_row(&after.collectors[at])
                    };
                done(after, stage, "loads events");
            }
            Collecting::LoadHeight => {
                after.collectors[at].height = state.height;
                let stage = if self.has(Rule::EventsBeforeHeight) {
                    self.first_row(&after.collectors[at])
                } else {
                    Collecting::LoadEvents
                };
                done(after, stage, "loads the height");
            }
            Collecting::Scan => {
                let found = state.rows[row];
                let is_mine = found.owner == Owner::None;
                if found.count == 0 {
                    self.pass(&mut after, at);
                    let stage = after.collectors[at].stage;
                    done(after, stage, "finds a row that is zero");
                } else if is_mine && self.has(Rule::ResetUnowned) {
                    if self.has(Rule::LockBeforeReset) {
                        after.rows[row].owner = Owner::Collector(at as u8);
                    }
                    done(after, self.first_clear(), "finds a row without an owner, and locks it");
                } else {
                    after.collectors[at].is_leased |= self.has(Rule::KeepOwned) || is_mine;
                    self.pass(&mut after, at);
                    let stage = after.collectors[at].stage;
                    done(after, stage, "finds a row that counts");
                }
            }
            Collecting::ClearTickets => {
                after.clear_ticket(row);
                let is_first = self.has(Rule::ResetTicketsFirst);
                let stage = if is_first { Collecting::ClearWord } else { Collecting::UnlockRow };
                done(after, stage, "clears the tickets of a row");
            }
            Collecting::ClearWord => {
                after.rows[row].count = 0;
                let is_last = self.has(Rule::ResetTicketsFirst) || !self.has(Rule::ResetTickets);
                let stage = if is_last { Collecting::UnlockRow } else { Collecting::ClearTickets };
                done(after, stage, "clears the word of a row");
            }
            Collecting::UnlockRow => {
                if after.rows[row].owner == Owner::Collector(at as u8) {
                    after.rows[row].owner = Owner::None;
                }
                self.pass(&mut after, at);
                let stage = after.collectors[at].stage;
                done(after, stage, "unlocks a row");
            }
            Collecting::CheckEvents => {
                let Collector { has_moved, is_leased, .. } = collector;
                if has_moved && self.has(Rule::RescanIfCounted) {
                    let again = &mut after.collectors[at];
                    *again = Collector { height: again.height, is_rescan: true, ..Collector::default() };
                    let first =
                        if self.keeps_height(again) { Collecting::LoadEvents } else { self.first_load() };
                    done(after, first, "begins again, since events has changed");
                } else if is_leased {
                    done(after, Collecting::Unlock, "keeps the memory");
                } else if !self.has(Rule::SetDeadBeforeScan) {
                    done(after, Collecting::SetDeadLate, "has passed all rows");
                } else {
                    done(after, Collecting::Punch, "has passed all rows");
                }
            }
            Collecting::SetDeadLate => {
                after.is_dead = true;
                done(after, Collecting::Punch, "sets dead");
            }
            Collecting::Punch => {
                after.is_punched = true;
                done(after, Collecting::Unlock, "releases the memory");
            }
            Collecting::Unlock => {
                after.collectors[at] = Collector::default();
                release(&mut after, at);
                done(after, Collecting::Idle, "ends");
            }
        }
    }

    fn first_load(&self) -> Collecting {
        let is_early = !self.has(Rule::SetDeadBeforeHeight);
        if self.has(Rule::EventsBeforeHeight) || is_early {
            Collecting::LoadEvents
        } else {
            Collecting::LoadHeight
        }
    }

    /// Returns whether a collector that looks again uses the height that it has.
    fn keeps_height(&self, collector: &Collector) -> bool {
        collector.is_rescan && !self.has(Rule::HeightOnRescan)
    }

    fn first_row(&self, collector: &Collector) -> Collecting {
        if collector.height == 0 { Collecting::CheckEvents } else { Collecting::Scan }
    }

    fn first_clear(&self) -> Collecting {
        if self.has(Rule::ResetTickets) && self.has(Rule::ResetTicketsFirst) {
            Collecting::ClearTickets
        } else {
            Collecting::ClearWord
        }
    }

    fn pass(&self, after: &mut State, at: usize) {
        let collector = &mut after.collectors[at];
        collector.row += 1;
        let is_last = usize::from(collector.row) >= self.rows || collector.row >= collector.height;
        collector.stage = if is_last { Collecting::CheckEvents } else { Collecting::Scan };
    }

    /// Returns whether the collectors alone release the memory.
    pub(super) fn can_collect(&self, state: &State) -> bool {
        let mut state = *state;
        for at in (0..COLLECTORS).rev().chain([0]) {
            // Two rounds, with at most five steps for each row.
            for _ in 0..40 {
                if state.is_punched {
                    return true;
                }
                let mut after = state;
                self.collect_step(&state, at, &mut |following, _| after = following);
                state = after;
                if state.collectors[at].stage == Collecting::Idle {
                    break;
                }
            }
        }
        state.is_punched
    }
}

/// Drops the locks of a collector.
fn release(after: &mut State, at: usize) {
    if after.table_lock == Some(at as u8) {
        after.table_lock = None;
    }
    for row in after.rows.iter_mut().filter(|row| row.owner == Owner::Collector(at as u8)) {
        row.owner = Owner::None;
    }
}
