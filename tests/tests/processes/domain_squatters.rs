//! Processes that bind the socket names of a domain: of other users, stopped ones, unresponsive
//! ones.

#![allow(clippy::unwrap_used, reason = "a test that cannot continue ends")]

use std::time::{Duration, Instant};

use umf_tests::domain::{name, uid};
use umf_tests::{Actor, ProcessSnapshot, actor, machine};

fn member(domain: &str) -> Actor {
    let mut actor = actor!();
    actor.ok(&format!("join {domain}"));
    actor
}

const OTHER_UID: u32 = 65534;

#[test]
fn name_bound_by_another_user_is_refused() {
    if !machine::is_root() {
        return machine::skip("name_bound_by_another_user_is_refused", "changing the user needs root");
    }
    let domain = name("squatted");
    // The socket names of this user's domain, bound by a process of another user.
    let mut squatter = actor!();
    squatter.ok(&format!("setuid {OTHER_UID}"));
    let place = format!("umf-domain-0-0-{domain}");
    squatter.ok(&format!("bind {place}"));
    // A participant's name: the member binds another name, and does not contact the squatter.
    let mut first = member(&domain);
    let number = first.ok(&format!("create {domain} 4096 1 -> o"));
    let mut second = member(&domain);
    second.ok(&format!("register {domain} {number} 1 -> o"));
    assert_eq!(ProcessSnapshot::of(&first).sockets, [format!("umf-domain-0-1-{domain}")]);
    // The arbiter's name.
    let arbiter = format!("umf-domain-0-arbiter-{domain}");
    squatter.ok(&format!("bind {arbiter}"));
    let mut late = actor!();
    for (actor, command) in
        [(&mut late, format!("join {domain} 5000")), (&mut second, format!("create {domain} 4096 1 -> p"))]
    {
        let began = Instant::now();
        let message = actor.fails(&command, "OtherUser");
        assert!(began.elapsed() < Duration::from_secs(2), "refused without waiting");
        let culprit = format!("process {} of user {OTHER_UID} has bound \"{arbiter}\"", squatter.pid());
        assert!(message.contains(&culprit), "{message}");
    }
    // Existing registrations stay.
    assert_eq!(first.ok("is-registered o"), "true");
    squatter.kill();
    late.ok(&format!("join {domain}"));
    late.ok(&format!("register {domain} {number} 1 -> o"));
}

/// `connect` fails at a socket whose queue is full, without reporting the owner.
#[test]
fn name_bound_by_another_user_with_full_queue_is_refused() {
    if !machine::is_root() {
        return machine::skip(
            "name_bound_by_another_user_with_full_queue_is_refused",
            "changing the user needs root",
        );
    }
    let domain = name("full");
    let mut squatter = actor!();
    squatter.ok(&format!("setuid {OTHER_UID}"));
    let place = format!("umf-domain-0-0-{domain}");
    squatter.ok(&format!("bind {place}"));
    squatter.ok(&format!("connect {place} 9"));
    let first = member(&domain);
    assert_eq!(ProcessSnapshot::of(&first).sockets, [format!("umf-domain-0-1-{domain}")]);
    let arbiter = format!("umf-domain-0-arbiter-{domain}");
    squatter.ok(&format!("bind {arbiter}"));
    squatter.ok(&format!("connect {arbiter} 9"));
    let message = actor!().fails(&format!("join {domain} 5000"), "OtherUser");
    assert!(message.contains(&format!("of user {OTHER_UID} has bound \"{arbiter}\"")), "{message}");
}

/// Equal names of two users are two domains, whose processes do not communicate.
#[test]
fn users_have_separate_domains() {
    if !machine::is_root() {
        return machine::skip("users_have_separate_domains", "changing the user needs root");
    }
    let domain = name("users");
    let mut root = member(&domain);
    let mut other = actor!();
    other.ok(&format!("setuid {OTHER_UID}"));
    other.ok(&format!("join {domain}"));
    let number = root.ok(&format!("create {domain} 4096 1 -> o"));
    let failure = other.ask(&format!("register {domain} {number} 1 -> o")).unwrap_err();
    assert!(["WrongDomain", "NoSuchObject"].contains(&failure.variant.as_str()), "{failure}");
    // Nor over the socket itself.
    let mut stranger = actor!();
    stranger.ok(&format!("setuid {OTHER_UID}"));
    stranger.ok(&format!("connect umf-domain-0-0-{domain} 300"));
    let mut second = member(&domain);
    second.ok(&format!("register {domain} {number} 1 -> o"));
}

/// A process that holds the arbiter: errors of other processes name it, and succeed after its end.
#[test]
fn held_arbiter_causes_timeout_error() {
    let domain = name("held");
    let mut actor = member(&domain);
    let mut holder = actor!();
    holder.ok(&format!("bind umf-domain-{}-arbiter-{domain}", uid()));
    actor.ok(&format!("join {domain}"));
    let mut late = actor!();
    let began = Instant::now();
    let message = late.fails(&format!("join {domain} 300"), "ArbiterHeld");
    assert!(began.elapsed() >= Duration::from_millis(300), "the join waits for the arbiter");
    assert!(message.contains(&holder.pid().to_string()) && message.contains("300 ms"), "{message}");
    actor.fails(&format!("create {domain} 4096 1 -> o"), "ArbiterHeld");
    // The kernel releases the name.
    holder.kill();
    actor.ok(&format!("create {domain} 4096 1 -> o"));
    late.ok(&format!("join {domain}"));
}

/// A process of the same user that binds a participant's name and does not answer.
#[test]
fn unresponsive_member_is_skipped() {
    let domain = name("mute");
    let mut silent = actor!();
    silent.ok(&format!("bind umf-domain-{}-0-{domain}", uid()));
    let mut first = actor!();
    let message = first.fails(&format!("join {domain} 300"), "TimedOut");
    assert!(message.contains(&silent.pid().to_string()), "{message}");
    silent.kill();
    first.ok(&format!("join {domain}"));
    first.ok(&format!("leave {domain}"));
    // If the domain has other members, the process is skipped.
    let mut second = member(&domain);
    let mut third = member(&domain);
    second.ok(&format!("leave {domain}"));
    let mut silent = actor!();
    silent.ok(&format!("bind umf-domain-{}-0-{domain}", uid()));
    let number = third.ok(&format!("create {domain} 4096 1 -> o"));
    first.ok(&format!("join {domain}"));
    first.ok(&format!("register {domain} {number} 1 -> o"));
    assert_eq!(third.ok(&format!("objects {domain}")), format!("{number}:1:4096:2"));
}

/// Two processes wait for the arbiter. The first has the table of a domain whose last member dies
/// meanwhile, and the second found no member. Both must enter one domain, in any order.
#[test]
fn joins_while_last_member_dies_enter_one_domain() {
    for round in 0..8 {
        let domain = name(&format!("dying{round}"));
        let mut last = member(&domain);
        let mut holder = actor!();
        holder.ok(&format!("bind umf-domain-{}-arbiter-{domain}", uid()));
        let (mut early, mut late) = (actor!(), actor!());
        early.send(&format!("join {domain} 20000"));
        // Gives the first process time to fetch the table.
        std::thread::sleep(Duration::from_millis(100));
        last.kill();
        late.send(&format!("join {domain} 20000"));
        std::thread::sleep(Duration::from_millis(100));
        holder.kill();
        for actor in [&mut early, &mut late] {
            actor.answer(Duration::from_secs(30)).unwrap();
        }
        let number = early.ok(&format!("create {domain} 4096 1 -> o"));
        late.ok(&format!("register {domain} {number} 1 -> o"));
        assert_eq!(late.ok(&format!("objects {domain}")), format!("{number}:1:4096:2"), "round {round}");
    }
}
