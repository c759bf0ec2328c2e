//! Processes that sit on the names of a domain: of other users, stopped ones, ones that answer nobody.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on ends")]

use std::time::{Duration, Instant};

use umf_tests::domain::{name, uid};
use umf_tests::{Actor, ProcessSnapshot, actor, machine};

fn member(domain: &str) -> Actor {
    let mut actor = actor!();
    actor.ok(&format!("join {domain}"));
    actor
}

const NOBODY: u32 = 65534;

#[test]
fn name_bound_by_another_user_is_refused() {
    if !machine::is_root() {
        return machine::skip("name_bound_by_another_user_is_refused", "changing the user needs root");
    }
    let domain = name("squatted");
    // The names of this user's domain, bound by somebody else's process.
    let mut squatter = actor!();
    squatter.ok(&format!("setuid {NOBODY}"));
    let place = format!("umf-domain-0-0-{domain}");
    squatter.ok(&format!("bind {place}"));
    // A participant's place: another one is taken, and the squatter asked nothing.
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
        assert!(began.elapsed() < Duration::from_secs(2), "refused, not waited for");
        let who = format!("process {} of user {NOBODY} has bound \"{arbiter}\"", squatter.pid());
        assert!(message.contains(&who), "{message}");
    }
    // What was there stays.
    assert_eq!(first.ok("is-registered o"), "true");
    squatter.kill();
    late.ok(&format!("join {domain}"));
    late.ok(&format!("register {domain} {number} 1 -> o"));
}

/// `connect` fails at a socket whose queue is full, and does not say whose it is.
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
    squatter.ok(&format!("setuid {NOBODY}"));
    let place = format!("umf-domain-0-0-{domain}");
    squatter.ok(&format!("bind {place}"));
    squatter.ok(&format!("connect {place} 9"));
    let first = member(&domain);
    assert_eq!(ProcessSnapshot::of(&first).sockets, [format!("umf-domain-0-1-{domain}")]);
    let arbiter = format!("umf-domain-0-arbiter-{domain}");
    squatter.ok(&format!("bind {arbiter}"));
    squatter.ok(&format!("connect {arbiter} 9"));
    let message = actor!().fails(&format!("join {domain} 5000"), "OtherUser");
    assert!(message.contains(&format!("of user {NOBODY} has bound \"{arbiter}\"")), "{message}");
}

/// Equal names of two users are two domains; neither is asked by, nor answers, the other's processes.
#[test]
fn users_have_separate_domains() {
    if !machine::is_root() {
        return machine::skip("users_have_separate_domains", "changing the user needs root");
    }
    let domain = name("users");
    let mut root = member(&domain);
    let mut other = actor!();
    other.ok(&format!("setuid {NOBODY}"));
    other.ok(&format!("join {domain}"));
    let number = root.ok(&format!("create {domain} 4096 1 -> o"));
    let failure = other.ask(&format!("register {domain} {number} 1 -> o")).unwrap_err();
    assert!(["WrongDomain", "NoSuchObject"].contains(&failure.variant.as_str()), "{failure}");
    // Nor over the socket itself.
    let mut stranger = actor!();
    stranger.ok(&format!("setuid {NOBODY}"));
    stranger.ok(&format!("connect umf-domain-0-0-{domain} 300"));
    let mut second = member(&domain);
    second.ok(&format!("register {domain} {number} 1 -> o"));
}

/// A process that was stopped while it had the arbiter: others say who it is, and go on when it does.
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
    assert!(began.elapsed() >= Duration::from_millis(300), "a turn is waited for");
    assert!(message.contains(&holder.pid().to_string()) && message.contains("300 ms"), "{message}");
    actor.fails(&format!("create {domain} 4096 1 -> o"), "ArbiterHeld");
    // The kernel takes the name back.
    holder.kill();
    actor.ok(&format!("create {domain} 4096 1 -> o"));
    late.ok(&format!("join {domain}"));
}

/// A process of the same user that has a participant's name, and answers nobody.
#[test]
fn unresponsive_member_is_skipped() {
    let domain = name("mute");
    let mut mute = actor!();
    mute.ok(&format!("bind umf-domain-{}-0-{domain}", uid()));
    let mut first = actor!();
    let message = first.fails(&format!("join {domain} 300"), "TimedOut");
    assert!(message.contains(&mute.pid().to_string()), "{message}");
    mute.kill();
    first.ok(&format!("join {domain}"));
    first.ok(&format!("leave {domain}"));
    // With others in the domain it is passed over.
    let mut second = member(&domain);
    let mut third = member(&domain);
    second.ok(&format!("leave {domain}"));
    let mut mute = actor!();
    mute.ok(&format!("bind umf-domain-{}-0-{domain}", uid()));
    let number = third.ok(&format!("create {domain} 4096 1 -> o"));
    first.ok(&format!("join {domain}"));
    first.ok(&format!("register {domain} {number} 1 -> o"));
    assert_eq!(third.ok(&format!("objects {domain}")), format!("{number}:1:4096:2"));
}

/// Two wait for the arbiter: one has the table of a domain that dies out meanwhile, the other one found nobody. Whoever is
/// first, they are in one domain.
#[test]
fn joins_while_last_member_dies_enter_one_domain() {
    for round in 0..8 {
        let domain = name(&format!("dying{round}"));
        let mut last = member(&domain);
        let mut holder = actor!();
        holder.ok(&format!("bind umf-domain-{}-arbiter-{domain}", uid()));
        let (mut early, mut late) = (actor!(), actor!());
        early.send(&format!("join {domain} 20000"));
        // Long enough for it to have the table.
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
