//! Ranks with full lanes do not deadlock, and each rule is needed for that.
//!
//! Run with `--nocapture` to read the traces.

use umf_models::explore;
use umf_models::lanes::Operation::{Answers, AskLast, AskNext, Receive, Send};
use umf_models::lanes::{Fault, Lanes, Operation, Rule};

/// Both directions are full of requests.
const ASKS: &[Operation] = &[AskNext, AskNext, AskLast, AskLast, Answers];

/// A request behind messages that are wanted later.
const REQUEST_BEHIND_MESSAGES: &[Operation] =
    &[Send(0), Send(0), Send(0), AskNext, Answers, Receive(0), Receive(0), Receive(0)];

/// What was sent last is wanted first.
const LAST_FIRST: &[Operation] = &[
    Send(0),
    Send(0),
    Send(0),
    Send(0),
    Send(1),
    Receive(1),
    Receive(0),
    Receive(0),
    Receive(0),
    Receive(0),
];

/// The same, with a request in between.
const LAST_FIRST_BEHIND_REQUEST: &[Operation] = &[
    Send(0),
    Send(0),
    Send(0),
    Send(0),
    AskNext,
    Answers,
    Send(1),
    Receive(1),
    Receive(0),
    Receive(0),
    Receive(0),
    Receive(0),
];

/// More requests than entries, before messages.
const MANY_REQUESTS: &[Operation] =
    &[AskNext, AskNext, AskNext, AskNext, Send(0), Send(0), Answers, Receive(0), Receive(0)];

fn three(program: &'static [Operation]) -> Lanes {
    Lanes { ranks: 3, program, left_out: None }
}

fn two(program: &'static [Operation]) -> Lanes {
    Lanes { ranks: 2, program, left_out: None }
}

/// Explores `model` whole.
fn assert_holds(model: Lanes) {
    let explored = explore(&model);
    println!("{model:?}\n{explored}");
    assert!(explored.found.is_none(), "{explored}");
}

/// Leaves a rule out and looks for a deadlock.
fn assert_needed(model: Lanes, rule: Rule) {
    let explored = explore(&Lanes { left_out: Some(rule), ..model });
    println!("without {rule:?}: {explored}");
    assert_eq!(explored.found.map(|violation| violation.fault), Some(Fault::Deadlock), "{rule:?}");
}

#[test]
fn three_ranks_in_a_cycle_end() {
    for program in [ASKS, REQUEST_BEHIND_MESSAGES, LAST_FIRST, LAST_FIRST_BEHIND_REQUEST] {
        assert_holds(three(program));
    }
}

#[test]
fn two_ranks_end() {
    for program in [ASKS, REQUEST_BEHIND_MESSAGES, LAST_FIRST, LAST_FIRST_BEHIND_REQUEST, MANY_REQUESTS] {
        assert_holds(two(program));
    }
}

#[test]
fn answers_in_lanes_deadlock() {
    assert_needed(three(ASKS), Rule::AnswerInEntry);
    assert_needed(two(MANY_REQUESTS), Rule::AnswerInEntry);
}

#[test]
fn waits_for_room_that_do_not_consume_deadlock() {
    for program in [ASKS, REQUEST_BEHIND_MESSAGES, LAST_FIRST, LAST_FIRST_BEHIND_REQUEST] {
        assert_needed(three(program), Rule::ConsumeWhileWaiting);
    }
}

#[test]
fn unwanted_messages_left_in_the_lane_deadlock() {
    for program in [REQUEST_BEHIND_MESSAGES, LAST_FIRST, LAST_FIRST_BEHIND_REQUEST] {
        assert_needed(three(program), Rule::ConsumeUnwanted);
    }
}

#[test]
fn announcements_in_the_entries_of_requests_deadlock() {
    for program in [REQUEST_BEHIND_MESSAGES, LAST_FIRST, LAST_FIRST_BEHIND_REQUEST] {
        assert_needed(three(program), Rule::AnnouncementsApart);
    }
}

#[test]
fn announcements_limited_by_the_receiver_deadlock() {
    for program in [LAST_FIRST, LAST_FIRST_BEHIND_REQUEST] {
        assert_needed(three(program), Rule::AnnounceFreely);
    }
}
