//! Ranks with full lanes do not deadlock. Without any one of the rules they do.
//!
//! Run with `--nocapture` to read the traces.

use umf_models::explore;
use umf_models::lanes::Operation::{Receive, RequestNext, RequestPrevious, Send, WaitResponses};
use umf_models::lanes::{Fault, Lanes, Operation, Rule};

/// Fills the lanes of both directions with requests.
const REQUESTS: &[Operation] = &[RequestNext, RequestNext, RequestPrevious, RequestPrevious, WaitResponses];

/// A request behind messages that are received later.
const REQUEST_BEHIND_MESSAGES: &[Operation] =
    &[Send(0), Send(0), Send(0), RequestNext, WaitResponses, Receive(0), Receive(0), Receive(0)];

/// The message that is sent last is received first.
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

/// As [`LAST_FIRST`], with a request before the last message.
const LAST_FIRST_BEHIND_REQUEST: &[Operation] = &[
    Send(0),
    Send(0),
    Send(0),
    Send(0),
    RequestNext,
    WaitResponses,
    Send(1),
    Receive(1),
    Receive(0),
    Receive(0),
    Receive(0),
    Receive(0),
];

/// More requests than entries, before messages.
const MANY_REQUESTS: &[Operation] = &[
    RequestNext,
    RequestNext,
    RequestNext,
    RequestNext,
    Send(0),
    Send(0),
    WaitResponses,
    Receive(0),
    Receive(0),
];

fn three(program: &'static [Operation]) -> Lanes {
    Lanes { ranks: 3, program, left_out: None }
}

fn two(program: &'static [Operation]) -> Lanes {
    Lanes { ranks: 2, program, left_out: None }
}

/// Explores all states of `model`, and asserts that no invariant fails.
fn assert_holds(model: Lanes) {
    let explored = explore(&model);
    println!("{model:?}\n{explored}");
    assert!(explored.found.is_none(), "{explored}");
}

/// Asserts that `model` can deadlock without `rule`.
fn assert_needed(model: Lanes, rule: Rule) {
    let explored = explore(&Lanes { left_out: Some(rule), ..model });
    println!("without {rule:?}: {explored}");
    assert_eq!(explored.found.map(|violation| violation.fault), Some(Fault::Deadlock), "{rule:?}");
}

#[test]
fn three_ranks_do_not_deadlock() {
    for program in [REQUESTS, REQUEST_BEHIND_MESSAGES, LAST_FIRST, LAST_FIRST_BEHIND_REQUEST] {
        assert_holds(three(program));
    }
}

#[test]
fn two_ranks_do_not_deadlock() {
    for program in [REQUESTS, REQUEST_BEHIND_MESSAGES, LAST_FIRST, LAST_FIRST_BEHIND_REQUEST, MANY_REQUESTS] {
        assert_holds(two(program));
    }
}

#[test]
fn responses_in_lanes_deadlock() {
    assert_needed(three(REQUESTS), Rule::RespondInEntry);
    assert_needed(two(MANY_REQUESTS), Rule::RespondInEntry);
}

#[test]
fn waits_that_do_not_consume_deadlock() {
    for program in [REQUESTS, REQUEST_BEHIND_MESSAGES, LAST_FIRST, LAST_FIRST_BEHIND_REQUEST] {
        assert_needed(three(program), Rule::ConsumeWhileWaiting);
    }
}

#[test]
fn unexpected_messages_left_in_lane_deadlock() {
    for program in [REQUEST_BEHIND_MESSAGES, LAST_FIRST, LAST_FIRST_BEHIND_REQUEST] {
        assert_needed(three(program), Rule::ConsumeUnexpected);
    }
}

#[test]
fn announcements_in_entries_of_requests_deadlock() {
    for program in [REQUEST_BEHIND_MESSAGES, LAST_FIRST, LAST_FIRST_BEHIND_REQUEST] {
        assert_needed(three(program), Rule::SeparateAnnouncements);
    }
}

#[test]
fn announcements_limited_by_receiver_deadlock() {
    for program in [LAST_FIRST, LAST_FIRST_BEHIND_REQUEST] {
        assert_needed(three(program), Rule::UnlimitedAnnouncements);
    }
}
