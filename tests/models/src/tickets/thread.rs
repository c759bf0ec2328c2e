//! The steps of a thread of an importer: it opens handles and tickets, closes, and sends.
//!
//! In traces, thread 0.1 is thread 1 of importer 0, and ticket 2.0 is the one that was stored in
//! ticket word 0 of row 2.

use std::fmt::Arguments;

use super::{MAX_COUNT, Operation, Rule, Stage, State, Thread, Tickets};

impl Tickets {
    /// Returns the steps of an operation, in the order that the rules demand.
    fn order(&self, operation: Operation) -> &'static [Stage] {
        use Stage::{Add, Claim, Close, Count, Load, SetBit, Store};
        let out = |rule| !self.has(rule);
        match operation {
            Operation::None => &[],
            Operation::Handle => &[SetBit, Add, Load],
            Operation::Ticket if out(Rule::AddBeforeClaim) => &[SetBit, Claim, Add, Count],
            Operation::Ticket if out(Rule::AddBeforeCount) => &[SetBit, Count, Add, Claim],
            Operation::Ticket if out(Rule::CountBeforeClaim) => &[SetBit, Add, Claim, Count],
            Operation::Ticket if out(Rule::CountClaims) => &[SetBit, Add, Claim],
            Operation::Ticket if out(Rule::SetBitBeforeCount) => &[Add, Count, SetBit, Claim],
            Operation::Ticket if out(Rule::SetBitBeforeAdd) => &[Add, SetBit, Count, Claim],
            Operation::Ticket => &[SetBit, Add, Count, Claim],
            Operation::Send if out(Rule::HoldTicket) => &[SetBit, Count, Store],
            Operation::Send if out(Rule::HoldBeforeStore) => &[SetBit, Store, Add, Count],
            Operation::Send if out(Rule::HoldBeforeCount) => &[SetBit, Count, Add, Store],
            Operation::Send if out(Rule::CountBeforeStore) => &[SetBit, Add, Store, Count],
            Operation::Send if out(Rule::CountForwards) => &[SetBit, Add, Store],
            Operation::Send if out(Rule::SetBitOfHold) => &[Add, Count, Store],
            Operation::Send if out(Rule::SetBitOfHoldBeforeCount) => &[Add, Count, SetBit, Store],
            Operation::Send if out(Rule::KeepMapping) => &[Close, SetBit, Add, Count, Store],
            Operation::Send => &[SetBit, Add, Count, Store],
        }
    }

    /// Returns whether the thread has done a step of its operation.
    fn is_done(&self, thread: &Thread, step: Stage) -> bool {
        let order = self.order(thread.operation);
        let position = |stage| order.iter().position(|&found| found == stage);
        match (position(step), position(thread.stage)) {
            (Some(step), Some(stage)) => step < stage,
            (Some(_), None) => {
                let claim = Thread { stage: Stage::Claim, ..*thread };
                match thread.stage {
                    // Both end with the claim.
                    Stage::ClaimStore | Stage::Refused => self.is_done(&claim, step),
                    _ => true,
                }
            }
            (None, _) => false,
        }
    }

    /// Returns whether a thread that opens a ticket has not claimed it.
    pub(super) fn is_unclaimed(&self, thread: &Thread) -> bool {
        thread.stage != Stage::Drop && !self.is_done(thread, Stage::Claim)
    }

    pub(super) fn has_mapping(&self, thread: &Thread) -> bool {
        match thread.operation {
            Operation::Handle => thread.stage == Stage::Open,
            Operation::Send => self.has(Rule::KeepMapping) || thread.stage == Stage::Close,
            _ => false,
        }
    }

    /// Returns whether the lease word of `thread.row` counts the mapping, or the open.
    pub(super) fn has_counted_mapping(&self, thread: &Thread) -> bool {
        match thread.operation {
            Operation::None => false,
            Operation::Send => self.has_mapping(thread),
            _ => self.is_done(thread, Stage::Add),
        }
    }

    /// Returns whether a lease word counts the hold of a ticket that the thread will store.
    pub(super) fn has_counted_hold(&self, thread: &Thread) -> bool {
        thread.operation == Operation::Send
            && self.is_done(thread, Stage::Add)
            && !self.is_done(thread, Stage::Store)
    }

    /// Returns the thread after its step.
    fn advance(&self, thread: &Thread) -> Thread {
        let mut following = self.order(thread.operation).iter().skip_while(|&&stage| stage != thread.stage);
        match following.nth(1) {
            Some(&stage) => Thread { stage, ..*thread },
            None if thread.operation == Operation::Send && !self.has(Rule::KeepMapping) => Thread::default(),
            None => self.opened(thread),
        }
    }

    /// Returns the thread after its open, with a mapping.
    fn opened(&self, thread: &Thread) -> Thread {
        let Thread { row, is_old, .. } = *thread;
        Thread { operation: Operation::Handle, stage: Stage::Open, row, is_old, ..Thread::default() }
    }

    /// Calls `next` for each step of a thread of an importer.
    pub(super) fn thread_steps(
        &self,
        state: &State,
        at: usize,
        index: usize,
        next: &mut impl FnMut(State, Arguments<'_>),
    ) {
        let thread = state.threads[at][index];
        let is_send = thread.operation == Operation::Send;
        let target = usize::from(if is_send { thread.ticket.0 } else { thread.row });
        let row = usize::from(thread.row);
        // The state in which the thread continues as `following`.
        let to = |following| {
            let mut after = *state;
            after.threads[at][index] = following;
            after
        };
        let mut after = to(self.advance(&thread));
        match thread.stage {
            Stage::Idle => self.begin_steps(state, at, index, next),
            Stage::SetBit => {
                after.opened_rows |= self.bit(target);
                next(after, format_args!("thread {at}.{index}: sets the bit of row {target}"));
            }
            Stage::Add => {
                if state.rows[target].count < MAX_COUNT {
                    after.rows[target].count += 1;
                    let what = if is_send { "the hold" } else { "one" };
                    next(after, format_args!("thread {at}.{index}: adds {what} to row {target}"));
                }
            }
            Stage::Count => {
                self.count(&mut after);
                next(after, format_args!("thread {at}.{index}: counts in events"));
            }
            Stage::Claim | Stage::ClaimStore => self.claim_steps(state, at, index, next),
            Stage::Load => {
                if thread.is_old {
                    let stage = Stage::Subtract;
                    next(
                        to(Thread { stage, ..thread }),
                        format_args!("thread {at}.{index}: loads the generation, the handle is stale"),
                    );
                } else {
                    next(
                        to(self.opened(&thread)),
                        format_args!("thread {at}.{index}: loads the generation, it is current"),
                    );
                }
            }
            Stage::Store => {
                self.store(after.word_mut(&thread), thread.is_old);
                let (row, word) = thread.ticket;
                self.forget(&mut after, row.into(), word.into());
                next(after, format_args!("thread {at}.{index}: stores the ticket {row}.{word}"));
            }
            Stage::Open => {
                self.close_step(state, (at, index), Thread::default(), next);
                self.forward_steps(state, at, index, next);
            }
            Stage::Close => self.close_step(state, (at, index), self.advance(&thread), next),
            Stage::Subtract => {
                let mut after = to(Thread::default());
                after.rows[row].count -= 1;
                next(after, format_args!("thread {at}.{index}: subtracts its count from row {row} again"));
            }
            Stage::Drop => {
                let mut after = to(self.opened(&thread));
                let sender = usize::from(thread.ticket.0);
                after.rows[sender].count -= 1;
                next(after, format_args!("thread {at}.{index}: releases the hold in row {sender}"));
            }
            Stage::Refused | Stage::Excess => {}
        }
    }

    fn close_step(
        &self,
        state: &State,
        (at, index): (usize, usize),
        following: Thread,
        next: &mut impl FnMut(State, Arguments<'_>),
    ) {
        let row = usize::from(state.threads[at][index].row);
        if state.rows[row].count > -MAX_COUNT {
            let mut after = *state;
            after.rows[row].count -= 1;
            after.threads[at][index] = following;
            next(after, format_args!("thread {at}.{index}: closes its mapping in row {row}"));
        }
    }

    /// Calls `next` for each claim of a thread that opens a ticket.
    fn claim_steps(
        &self,
        state: &State,
        at: usize,
        index: usize,
        next: &mut impl FnMut(State, Arguments<'_>),
    ) {
        let thread = state.threads[at][index];
        let (row, word) = thread.ticket;
        let left = state.word(&thread).left;
        let mut after = *state;
        let following = &mut after.threads[at][index];
        if thread.stage == Stage::Claim {
            let is_claimable = thread.is_in_word || !self.has(Rule::DistinctNumbers) && left > 0;
            if !is_claimable {
                // The ticket is an ordinary handle from here on.
                *following = if self.is_done(&thread, Stage::Add) {
                    let Thread { row, is_old, .. } = thread;
                    Thread {
                        operation: Operation::Handle,
                        stage: Stage::Load,
                        row,
                        is_old,
                        ..Thread::default()
                    }
                } else {
                    Thread::default()
                };
                next(after, format_args!("thread {at}.{index}: finds that its ticket is claimed"));
                return;
            }
            if !self.has(Rule::OpenRetired) && (!state.is_live() || thread.is_old) {
                following.stage = Stage::Refused;
                next(
                    after,
                    format_args!("thread {at}.{index}: does not claim ticket {row}.{word}, it is stale"),
                );
                return;
            }
            if !self.has(Rule::ClaimByCompareExchange) {
                *following = Thread { stage: Stage::ClaimStore, loaded: left, ..thread };
                next(after, format_args!("thread {at}.{index}: loads ticket {row}.{word}"));
                return;
            }
        }
        let is_excess = thread.stage == Stage::ClaimStore && !thread.is_in_word;
        let claimed = Thread { stage: Stage::Claim, loaded: 0, is_in_word: false, ..thread };
        *following = if is_excess {
            Thread { stage: Stage::Excess, ..claimed }
        } else if !self.has(Rule::ReleaseBySender) {
            Thread { stage: Stage::Drop, ..claimed }
        } else {
            self.advance(&claimed)
        };
        let in_table = after.word_mut(&thread);
        in_table.left = if thread.stage == Stage::Claim { left } else { thread.loaded } - 1;
        in_table.promised = in_table.promised.saturating_sub(u8::from(thread.is_in_word));
        next(after, format_args!("thread {at}.{index}: claims ticket {row}.{word}"));
    }

    /// Calls `next` for each ticket that a thread with a mapping can begin to send.
    fn forward_steps(
        &self,
        state: &State,
        at: usize,
        index: usize,
        next: &mut impl FnMut(State, Arguments<'_>),
    ) {
        if !self.has_free_thread(state, at) {
            return;
        }
        for row in (0..self.rows).filter(|&row| state.is_ready(at, row)) {
            let is_free =
                |&word: &usize| !state.rows[row].words[word].is_held && !state.is_sending(at, row, word);
            let Some(word) = (0..self.words).find(is_free) else { continue };
            let mut after = *state;
            let thread = &mut after.threads[at][index];
            (thread.operation, thread.ticket) = (Operation::Send, (row as u8, word as u8));
            thread.stage = self.order(Operation::Send)[0];
            next(after, format_args!("thread {at}.{index}: begins to send a ticket {row}.{word}"));
        }
    }

    /// Calls `next` for each open that a thread without a mapping can begin.
    fn begin_steps(
        &self,
        state: &State,
        at: usize,
        index: usize,
        next: &mut impl FnMut(State, Arguments<'_>),
    ) {
        if !self.has_free_thread(state, at) {
            return;
        }
        for row in (0..self.rows).filter(|&row| state.is_ready(at, row)) {
            let mut begin = |operation, ticket: (usize, usize), is_in_word, is_old, text: Arguments<'_>| {
                let mut after = *state;
                after.threads[at][index] = Thread {
                    operation,
                    stage: self.order(operation)[0],
                    row: row as u8,
                    ticket: (ticket.0 as u8, ticket.1 as u8),
                    is_in_word,
                    is_old,
                    loaded: 0,
                };
                next(after, format_args!("thread {at}.{index}: opens {text} in row {row}"));
            };
            if self.plain && state.is_live() {
                begin(Operation::Handle, (0, 0), false, false, format_args!("the current handle"));
            }
            if self.plain {
                begin(Operation::Handle, (0, 0), false, true, format_args!("a stale handle"));
            }
            for (of, word) in self.places() {
                let found = state.rows[of].words[word];
                if found.left == 0 {
                    continue;
                }
                let text = format_args!("ticket {of}.{word}");
                begin(Operation::Ticket, (of, word), true, found.is_old, text);
                if found.was_used {
                    let text = format_args!("an earlier ticket {of}.{word} of the block");
                    begin(Operation::Ticket, (of, word), false, false, text);
                }
                if found.was_used_old {
                    let text = format_args!("an earlier ticket {of}.{word} of an old block");
                    begin(Operation::Ticket, (of, word), false, true, text);
                }
            }
        }
    }
}
