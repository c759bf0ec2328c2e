//! Messages and requests of ranks whose lanes are full (`docs/link.md`, crate `umf-link`).
//!
//! Each rank has a lane of one record to each neighbour and runs a short program. Sends do not
//! block: if the lane is full, the sender queues the record in its own memory. All lanes can be
//! full at the same time and in a cycle, and the ranks must not deadlock.
//!
//! # Abstractions
//!
//! - Writing or consuming a record is one atomic step. The loom model of `umf-link` covers the
//!   loads and stores, and its model of the bell covers sleeping and waking.
//! - A requester has two response entries at each peer. `umf-link` has four.
//! - A rank queues one unexpected message with data, as with `max_unexpected = 1`. Its senders
//!   announce further ones.
//! - The number of announcements is not limited. `umf-link` documents a limit of 4,096 for each
//!   peer.

use std::collections::VecDeque;
use std::fmt::Arguments;

use crate::Model;

/// The maximum number of ranks.
const MAX_RANKS: usize = 3;
/// Response entries of a requester at each peer.
const ENTRIES: u8 = 2;
const MAX_UNEXPECTED: usize = 1;

/// A rule of the protocol.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rule {
    /// A response is written to an entry that the requester has reserved. Left out: it is written
    /// to the lane to the requester.
    RespondInEntry,
    /// A waiting rank consumes records. Left out: it does not while it has queued records.
    ConsumeWhileWaiting,
    /// A rank consumes and queues messages without a matching receive. Left out: at most
    /// `max_unexpected` of them.
    ConsumeUnexpected,
    /// Announcements do not use the entries of requests. Left out: they share the entries.
    SeparateAnnouncements,
    /// A receiver does not limit the announcements. Left out: it has as many entries for them as
    /// for responses.
    UnlimitedAnnouncements,
}

/// An invariant.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// No rank can take a step, although a program has not ended.
    Deadlock,
    /// A rank queues more messages with data than `max_unexpected` plus one per lane.
    QueueOverflow,
}

/// An operation of the program of a rank. Ranks form a ring.
#[derive(Clone, Copy, Debug)]
pub enum Operation {
    /// Sends a request to the next rank.
    RequestNext,
    /// Sends a request to the previous rank.
    RequestPrevious,
    /// Waits for the responses to all requests.
    WaitResponses,
    /// Sends a message with a tag to the next rank.
    Send(u8),
    /// Receives the oldest message with the tag from the previous rank.
    Receive(u8),
}

/// The model: the number of ranks, and the program that all of them run.
#[derive(Clone, Copy, Debug)]
pub struct Lanes {
    /// Number of ranks, 2 or 3.
    pub ranks: usize,
    /// The operations of each rank, in order.
    pub program: &'static [Operation],
    /// The rule that is left out, if any.
    pub left_out: Option<Rule>,
}

/// A record in a lane.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Record {
    Request,
    /// Only if [`Rule::RespondInEntry`] is left out.
    Response,
    Message(u8),
    Announcement(u8),
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
struct Rank {
    /// Number of completed operations.
    done: usize,
    /// Records that wait for a free lane, with their receivers, in order.
    unsent: VecDeque<(usize, Record)>,
    /// Messages and announcements that were consumed and not received yet, with their senders, in
    /// order.
    unexpected: Vec<(usize, Record)>,
    /// Number of requests without a response, by peer.
    requested: [u8; MAX_RANKS],
    /// Number of announcements that were not received yet, by peer.
    announced: [u8; MAX_RANKS],
    /// The record in the lane to each peer.
    lanes: [Option<Record>; MAX_RANKS],
}

impl Rank {
    fn unexpected_messages(&self) -> usize {
        self.unexpected.iter().filter(|(_, record)| matches!(record, Record::Message(_))).count()
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

    /// Calls `next` for the next operation of the rank `at`, if it is possible now.
    fn program_step(&self, state: &State, at: usize, next: &mut impl FnMut(State, Arguments<'_>)) {
        let rank = &state.0[at];
        let (following, previous) = ((at + 1) % self.ranks, (at + self.ranks - 1) % self.ranks);
        let Some(operation) = self.operation(rank) else { return };
        let mut after = state.clone();
        after.0[at].done += 1;
        match operation {
            Operation::RequestNext | Operation::RequestPrevious => {
                let peer = if matches!(operation, Operation::RequestNext) { following } else { previous };
                let shared = if self.has(Rule::SeparateAnnouncements) { 0 } else { rank.announced[peer] };
                if rank.requested[peer] + shared < ENTRIES {
                    after.0[at].unsent.push_back((peer, Record::Request));
                    after.0[at].requested[peer] += 1;
                    next(after, format_args!("{at} requests of {peer}"));
                }
            }
            Operation::WaitResponses => {
                if rank.requested.iter().all(|&requests| requests == 0) {
                    next(after, format_args!("{at} has its responses"));
                }
            }
            Operation::Send(tag) => {
                after.0[at].unsent.push_back((following, Record::Message(tag)));
                next(after, format_args!("{at} sends tag {tag} to {following}"));
            }
            Operation::Receive(tag) => {
                let is_match = |&(from, record): &(usize, Record)| {
                    from == previous
                        && matches!(record, Record::Message(sent) | Record::Announcement(sent) if sent == tag)
                };
                if let Some(index) = rank.unexpected.iter().position(is_match) {
                    // The receiver reads the data of an announced message from the sender, and
                    // tells the sender that it is done.
                    if let (_, Record::Announcement(_)) = after.0[at].unexpected.remove(index) {
                        after.0[previous].announced[at] -= 1;
                    }
                    next(after, format_args!("{at} receives tag {tag} of {previous}"));
                }
            }
        }
    }

    /// Calls `next` for the step in which the rank `at` writes its oldest record for `to`.
    fn write_step(&self, state: &State, at: usize, to: usize, next: &mut impl FnMut(State, Arguments<'_>)) {
        let rank = &state.0[at];
        let Some(index) = rank.unsent.iter().position(|&(receiver, _)| receiver == to) else { return };
        if rank.lanes[to].is_some() {
            return;
        }
        let mut after = state.clone();
        let (_, mut record) = after.0[at].unsent.remove(index).expect("found above");
        if let Record::Message(tag) = record
            && self.has(Rule::ConsumeUnexpected)
            && state.0[to].unexpected_messages() >= MAX_UNEXPECTED
        {
            let entries = match self.left_out {
                Some(Rule::SeparateAnnouncements) => ENTRIES - rank.requested[to],
                Some(Rule::UnlimitedAnnouncements) => ENTRIES,
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

    /// Calls `next` for the step in which the rank `at` consumes the record in its lane from
    /// `from`.
    fn consume_step(
        &self,
        state: &State,
        at: usize,
        from: usize,
        next: &mut impl FnMut(State, Arguments<'_>),
    ) {
        let rank = &state.0[at];
        if !self.has(Rule::ConsumeWhileWaiting) && !rank.unsent.is_empty() {
            return;
        }
        let mut after = state.clone();
        let Some(record) = after.0[from].lanes[at].take() else { return };
        match record {
            Record::Request if self.has(Rule::RespondInEntry) => after.0[from].requested[at] -= 1,
            Record::Request if rank.lanes[from].is_none() => {
                after.0[at].lanes[from] = Some(Record::Response);
            }
            Record::Request => return,
            Record::Response => after.0[at].requested[from] -= 1,
            Record::Message(tag) | Record::Announcement(tag) => {
                let previous = (at + self.ranks - 1) % self.ranks;
                let is_expected = from == previous
                    && matches!(self.operation(rank), Some(Operation::Receive(wanted)) if wanted == tag);
                let is_full = rank.unexpected.len() >= MAX_UNEXPECTED;
                if !self.has(Rule::ConsumeUnexpected) && !is_expected && is_full {
                    return;
                }
                after.0[at].unexpected.push((from, record));
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
        if state.0.iter().any(|rank| rank.unexpected_messages() > most) {
            return Some(Fault::QueueOverflow);
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
