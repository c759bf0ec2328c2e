//! Messages and requests of ranks whose lanes are full (`docs/link.md`, crate `umf-link`).
//!
//! Each rank has a lane of one record to each neighbour and runs a short program. Sends do not
//! block: what finds no room waits in the memory of the sender. All lanes can be full at once and
//! in a cycle, and the ranks have to get on all the same.
//!
//! # Abstractions
//!
//! - A step is whole: a record is written or consumed at once. The loom model of `umf-link` covers
//!   the loads and stores, and its model of the bell covers sleeping and waking.
//! - An asker has two entries for answers at each peer; `umf-link` has four.
//! - A rank keeps one message with data before its senders announce, as with `max_unexpected = 1`.
//! - The number of announcements is not limited. `umf-link` limits them to 4,096 for each peer, and
//!   a program that needs more of them waiting at once is beyond that documented limit.

use std::collections::VecDeque;
use std::fmt::Arguments;

use crate::Model;

/// The most ranks of a model.
const MAX_RANKS: usize = 3;
const ANSWERS: u8 = 2;
const MAX_UNEXPECTED: usize = 1;

/// A rule of the protocol.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rule {
    /// The answer to a request goes to an entry that the asker has reserved. Left out: into the
    /// lane to the asker.
    AnswerInEntry,
    /// A rank that waits for anything consumes what comes. Left out: not while it waits for room.
    ConsumeWhileWaiting,
    /// A message for which there is no receive yet can be consumed, and is kept. Left out: only
    /// `max_unexpected` of them.
    ConsumeUnwanted,
    /// Announcements do not take the entries of requests. Left out: they share them.
    AnnouncementsApart,
    /// A receiver does not limit the announcements. Left out: it has as many entries for them as
    /// for answers.
    AnnounceFreely,
}

/// An invariant.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// No rank can take a step, and a program has not ended.
    Deadlock,
    /// A rank keeps more messages with data than `max_unexpected` and those that were in its lanes.
    KeepsTooMuch,
}

/// What the program of a rank does next. Ranks form a ring.
#[derive(Clone, Copy, Debug)]
pub enum Operation {
    /// Makes a request to the next rank.
    AskNext,
    /// Makes a request to the rank before.
    AskLast,
    /// Waits for all answers.
    Answers,
    /// Sends a message with a tag to the next rank.
    Send(u8),
    /// Receives the oldest message of the rank before that has the tag.
    Receive(u8),
}

/// The model: the number of ranks, and the program of all of them.
#[derive(Clone, Copy, Debug)]
pub struct Lanes {
    /// Number of ranks, 2 or 3.
    pub ranks: usize,
    /// What each rank does, in order.
    pub program: &'static [Operation],
    /// The rule that is left out, if any.
    pub left_out: Option<Rule>,
}

/// What a lane carries.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Record {
    Request,
    /// Only if [`Rule::AnswerInEntry`] is left out.
    Answer,
    Message(u8),
    Announcement(u8),
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
struct Rank {
    /// Operations that are done.
    done: usize,
    /// What waits for room in a lane, with its receiver, in order.
    waiting: VecDeque<(usize, Record)>,
    /// Messages and announcements that were consumed and not received, with their senders, in
    /// order.
    kept: Vec<(usize, Record)>,
    /// Requests without an answer, by peer.
    asked: [u8; MAX_RANKS],
    /// Announcements that were not received, by peer.
    announced: [u8; MAX_RANKS],
    /// What is in the lane to each peer: one record at most.
    lanes: [Option<Record>; MAX_RANKS],
}

impl Rank {
    fn kept_messages(&self) -> usize {
        self.kept.iter().filter(|(_, record)| matches!(record, Record::Message(_))).count()
    }
}

/// The state of all ranks.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct State(Vec<Rank>);

impl Lanes {
    fn has(&self, rule: Rule) -> bool {
        self.left_out != Some(rule)
    }

    fn operation(&self, rank: &Rank) -> Option<Operation> {
        self.program.get(rank.done).copied()
    }

    /// The next operation of the program of the rank `at`, if it can be done now.
    fn program_step(&self, state: &State, at: usize, next: &mut impl FnMut(State, Arguments<'_>)) {
        let rank = &state.0[at];
        let (following, last) = ((at + 1) % self.ranks, (at + self.ranks - 1) % self.ranks);
        let Some(operation) = self.operation(rank) else { return };
        let mut after = state.clone();
        after.0[at].done += 1;
        match operation {
            Operation::AskNext | Operation::AskLast => {
                let peer = if matches!(operation, Operation::AskNext) { following } else { last };
                let shared = if self.has(Rule::AnnouncementsApart) { 0 } else { rank.announced[peer] };
                if rank.asked[peer] + shared < ANSWERS {
                    after.0[at].waiting.push_back((peer, Record::Request));
                    after.0[at].asked[peer] += 1;
                    next(after, format_args!("{at} asks {peer}"));
                }
            }
            Operation::Answers => {
                if rank.asked.iter().all(|&asked| asked == 0) {
                    next(after, format_args!("{at} has its answers"));
                }
            }
            Operation::Send(tag) => {
                after.0[at].waiting.push_back((following, Record::Message(tag)));
                next(after, format_args!("{at} sends tag {tag} to {following}"));
            }
            Operation::Receive(tag) => {
                let is_wanted = |&(from, record): &(usize, Record)| {
                    from == last
                        && matches!(record, Record::Message(its) | Record::Announcement(its) if its == tag)
                };
                if let Some(place) = rank.kept.iter().position(is_wanted) {
                    // The data of an announced message are read from the sender, which learns of
                    // it.
                    if let (_, Record::Announcement(_)) = after.0[at].kept.remove(place) {
                        after.0[last].announced[at] -= 1;
                    }
                    next(after, format_args!("{at} receives tag {tag} of {last}"));
                }
            }
        }
    }

    /// The rank `at` writes the oldest record that waits for `to`.
    fn write_step(&self, state: &State, at: usize, to: usize, next: &mut impl FnMut(State, Arguments<'_>)) {
        let rank = &state.0[at];
        let Some(place) = rank.waiting.iter().position(|&(receiver, _)| receiver == to) else { return };
        if rank.lanes[to].is_some() {
            return;
        }
        let mut after = state.clone();
        let (_, mut record) = after.0[at].waiting.remove(place).expect("found above");
        if let Record::Message(tag) = record
            && self.has(Rule::ConsumeUnwanted)
            && state.0[to].kept_messages() >= MAX_UNEXPECTED
        {
            let entries = match self.left_out {
                Some(Rule::AnnouncementsApart) => ANSWERS - rank.asked[to],
                Some(Rule::AnnounceFreely) => ANSWERS,
                _ => u8::MAX,
            };
            if rank.announced[to] >= entries {
                return;
            }
            record = Record::Announcement(tag);
            after.0[at].announced[to] += 1;
        }
        after.0[at].lanes[to] = Some(record);
        next(after, format_args!("{at} writes {record:?} to {to}"));
    }

    /// The rank `at` consumes the oldest record in its lane from `from`.
    fn consume_step(
        &self,
        state: &State,
        at: usize,
        from: usize,
        next: &mut impl FnMut(State, Arguments<'_>),
    ) {
        let rank = &state.0[at];
        if !self.has(Rule::ConsumeWhileWaiting) && !rank.waiting.is_empty() {
            return;
        }
        let mut after = state.clone();
        let Some(record) = after.0[from].lanes[at].take() else { return };
        match record {
            Record::Request if self.has(Rule::AnswerInEntry) => after.0[from].asked[at] -= 1,
            Record::Request if rank.lanes[from].is_none() => {
                after.0[at].lanes[from] = Some(Record::Answer);
            }
            Record::Request => return,
            Record::Answer => after.0[at].asked[from] -= 1,
            Record::Message(tag) | Record::Announcement(tag) => {
                let last = (at + self.ranks - 1) % self.ranks;
                let is_wanted = from == last
                    && matches!(self.operation(rank), Some(Operation::Receive(wanted)) if wanted == tag);
                if !self.has(Rule::ConsumeUnwanted) && !is_wanted && rank.kept.len() >= MAX_UNEXPECTED {
                    return;
                }
                after.0[at].kept.push((from, record));
            }
        }
        next(after, format_args!("{at} consumes {record:?} of {from}"));
    }
}

impl Model for Lanes {
    type State = State;
    type Packed = State;
    type Fault = Fault;

    fn start(&self) -> State {
        State(vec![Rank::default(); self.ranks])
    }

    fn steps(&self, state: &State, next: &mut impl FnMut(State, Arguments<'_>)) {
        for at in 0..self.ranks {
            self.program_step(state, at, next);
            for peer in 0..self.ranks {
                self.write_step(state, at, peer, next);
                self.consume_step(state, at, peer, next);
            }
        }
    }

    fn fault(&self, state: &State) -> Option<Fault> {
        let most = MAX_UNEXPECTED + self.ranks - 1;
        if state.0.iter().any(|rank| rank.kept_messages() > most) {
            return Some(Fault::KeepsTooMuch);
        }
        if state.0.iter().all(|rank| self.operation(rank).is_none()) {
            return None;
        }
        let mut can_step = false;
        self.steps(state, &mut |_, _| can_step = true);
        (!can_step).then_some(Fault::Deadlock)
    }

    fn pack(&self, state: &State) -> State {
        state.clone()
    }

    fn unpack(&self, packed: State) -> State {
        packed
    }
}
