//! Domains between real processes: the registration rules, deaths, races, squatters, forks.

#![allow(clippy::unwrap_used, reason = "a test that cannot continue ends")]

use std::time::{Duration, Instant};

use umf_tests::domain::{assert_nothing_left, name, uid};
use umf_tests::{Actor, ProcessSnapshot, actor, machine, spawn};

fn member(domain: &str) -> Actor {
    let mut actor = actor!();
    actor.ok(&format!("join {domain}"));
    actor
}

#[test]
fn object_lives_until_last_registrant_ends() {
    let domain = name("outlive");
    let (mut creator, mut second) = (member(&domain), member(&domain));
    let clean = ProcessSnapshot::of(&second);
    let number = creator.ok(&format!("create {domain} 100000 7 -> o"));
    creator.ok("fill-object o 5");
    assert_eq!(second.ok(&format!("register {domain} {number} 7 -> o")), "102400");
    assert_eq!(second.ok(&format!("objects {domain}")), format!("{number}:7:102400:2"));
    creator.kill();
    assert_eq!(second.ok("check-object o 5"), "same");
    assert_eq!(second.ok(&format!("objects {domain}")), format!("{number}:7:102400:1"));
    // A new member gets the object from the remaining one.
    let mut third = member(&domain);
    third.ok(&format!("register {domain} {number} 7 -> o"));
    assert_eq!(third.ok("check-object o 5"), "same");
    third.ok("fill-object o 6");
    assert_eq!(second.ok("check-object o 6"), "same");
    second.ok("unregister-object o");
    clean.assert_restored(&second);
    assert_eq!(third.ok("check-object o 6"), "same");
    // The last unregistration destroys the object.
    third.ok("drop-object o");
    for actor in [&mut second, &mut third] {
        let message = actor.fails(&format!("register {domain} {number} 7 -> o"), "NoSuchObject");
        assert!(message.contains(&number) && message.contains("last registered process"), "{message}");
        assert_eq!(actor.ok(&format!("objects {domain}")), "");
    }
    second.finish();
    third.finish();
    assert_nothing_left(&domain);
}

#[test]
fn death_of_last_registrant_destroys_object() {
    let domain = name("last-dead");
    let (mut first, mut second, mut witness) = (member(&domain), member(&domain), member(&domain));
    let clean = ProcessSnapshot::of(&witness);
    let number = first.ok(&format!("create {domain} 4096 1 -> o"));
    second.ok(&format!("register {domain} {number} 1 -> o"));
    first.kill_unreaped();
    // A zombie is dead.
    assert_eq!(witness.ok(&format!("objects {domain}")), format!("{number}:1:4096:1"));
    second.kill();
    witness.fails(&format!("register {domain} {number} 1 -> o"), "NoSuchObject");
    assert_eq!(witness.ok(&format!("objects {domain}")), "");
    // The slot is reused with another id.
    let next = witness.ok(&format!("create {domain} 4096 1 -> p"));
    assert_ne!(next, number);
    witness.fails(&format!("register {domain} {number} 1 -> o"), "NoSuchObject");
    witness.ok("drop-object p");
    clean.assert_restored(&witness);
    witness.kill();
    first.reap();
    assert_nothing_left(&domain);
}

#[test]
fn process_registers_object_once() {
    let domain = name("once");
    let (mut creator, mut other) = (member(&domain), member(&domain));
    let number = creator.ok(&format!("create {domain} 4096 1 -> a"));
    creator.ok(&format!("register {domain} {number} 1 -> b"));
    other.ok(&format!("register {domain} {number} 1 -> a"));
    let before = ProcessSnapshot::of(&other);
    for again in ["b", "c"] {
        other.ok(&format!("register {domain} {number} 1 -> {again}"));
    }
    // A second join changes nothing.
    other.ok(&format!("join {domain}"));
    before.assert_restored(&other);
    assert_eq!(other.ok(&format!("objects {domain}")), format!("{number}:1:4096:2"));
    // One unregistration suffices, however often the process registered.
    other.ok(&format!("unregister {domain} {number}"));
    for handle in ["a", "b", "c"] {
        assert_eq!(other.ok(&format!("is-registered {handle}")), "false");
        // The mapping stays valid.
        other.ok(&format!("check-object {handle} 0"));
    }
    assert_eq!(creator.ok(&format!("objects {domain}")), format!("{number}:1:4096:1"));
    other.fails(&format!("unregister {domain} {number}"), "NotRegistered");
    other.fails("unregister-object a", "NotRegistered");
    // The process can register again while old handles exist.
    other.ok(&format!("register {domain} {number} 1 -> d"));
    other.ok("drop-object b");
    other.ok("drop-object c");
    assert_eq!(other.ok("is-registered d"), "true");
    assert_eq!(other.ok(&format!("objects {domain}")), format!("{number}:1:4096:2"));
    // Dropping one of two handles of a process changes nothing; dropping the last unregisters.
    creator.ok("drop-object a");
    assert_eq!(other.ok(&format!("objects {domain}")), format!("{number}:1:4096:2"));
    creator.ok("drop-object b");
    assert_eq!(other.ok(&format!("objects {domain}")), format!("{number}:1:4096:1"));
    other.finish();
    creator.fails(&format!("register {domain} {number} 1 -> a"), "NoSuchObject");
}

#[test]
fn wrong_kind_domain_or_id_is_an_error() {
    let (domain, elsewhere) = (name("errors"), name("elsewhere"));
    let mut actor = member(&domain);
    actor.ok(&format!("join {elsewhere}"));
    let number = actor.ok(&format!("create {domain} 4096 1 -> o"));
    let mut other = member(&domain);
    other.ok(&format!("join {elsewhere}"));
    for actor in [&mut actor, &mut other] {
        let message = actor.fails(&format!("register {domain} {number} 2 -> x"), "WrongKind");
        assert!(message.contains("kind 1, not of kind 2"), "{message}");
        let message = actor.fails(&format!("register {elsewhere} {number} 1 -> x"), "WrongDomain");
        assert!(message.contains(&elsewhere), "{message}");
        actor.fails(&format!("unregister {elsewhere} {number}"), "WrongDomain");
        // Ids that were never assigned: another slot, another reuse count.
        let bits = u64::from_str_radix(&number[2..], 16).unwrap();
        for never in [bits + 1, bits ^ 1 << 28, bits ^ 1 << 63] {
            actor.fails(&format!("register {domain} {never} 1 -> x"), "NoSuchObject");
            actor.fails(&format!("unregister {domain} {never}"), "NoSuchObject");
        }
        actor.fails(&format!("register {domain} 0 1 -> x"), "WrongDomain");
    }
    other.fails(&format!("unregister {domain} {number}"), "NotRegistered");
    other.fails("join a/name\u{e4}", "BadName");
    actor.fails(&format!("create {domain} 0 1 -> x"), "BadSize");
    actor.fails(&format!("create {domain} {} 1 -> x", usize::MAX), "BadSize");
}

#[test]
fn domain_without_members_starts_empty() {
    let domain = name("anew");
    let mut numbers = std::collections::HashSet::new();
    for round in 0..20 {
        let mut actor = member(&domain);
        for old in &numbers {
            actor.fails(&format!("register {domain} {old} 1 -> x"), "NoSuchObject");
        }
        assert!(numbers.insert(actor.ok(&format!("create {domain} 4096 1 -> o"))), "round {round}");
        match round % 3 {
            0 => actor.kill(),
            1 => actor.finish(),
            _ => {
                actor.ok("drop-object o");
                actor.ok(&format!("leave {domain}"));
            }
        }
        assert_nothing_left(&domain);
    }
}

#[test]
fn racing_joins_create_one_domain() {
    for round in 0..10 {
        let domain = name(&format!("race{round}"));
        let mut actors: Vec<Actor> = (0..8).map(|_| actor!()).collect();
        for actor in &mut actors {
            actor.send(&format!("join {domain} 20000"));
        }
        for actor in &mut actors {
            actor.answer(Duration::from_secs(30)).unwrap();
        }
        for (kind, actor) in actors.iter_mut().enumerate() {
            actor.send(&format!("create {domain} 4096 {kind} -> own"));
        }
        let numbers: Vec<String> =
            actors.iter_mut().map(|actor| actor.answer(Duration::from_secs(30)).unwrap()).collect();
        for (kind, number) in numbers.iter().enumerate() {
            for actor in &mut actors {
                actor.send(&format!("register {domain} {number} {kind} -> o{kind}"));
            }
            for actor in &mut actors {
                actor.answer(Duration::from_secs(30)).unwrap();
            }
        }
        let listed = actors[0].ok(&format!("objects {domain}"));
        assert_eq!(listed.split(' ').filter(|object| object.ends_with(":8")).count(), 8, "{listed}");
        drop(actors);
        assert_nothing_left(&domain);
    }
}

#[test]
fn stopped_members_cause_timeout_naming_them() {
    let domain = name("stopped");
    let (mut first, mut second) = (member(&domain), member(&domain));
    let number = first.ok(&format!("create {domain} 4096 1 -> o"));
    second.ok(&format!("register {domain} {number} 1 -> o"));
    second.ok("fill-object o 3");
    first.stop();
    // The other member serves table and memory.
    let mut third = actor!();
    third.ok(&format!("join {domain} 3000"));
    third.ok(&format!("register {domain} {number} 1 -> o"));
    assert_eq!(third.ok("check-object o 3"), "same");
    third.ok("unregister-object o");
    second.stop();
    // All members with the object are stopped.
    let began = Instant::now();
    let message = third.fails(&format!("register {domain} {number} 1 -> o"), "TimedOut");
    assert!(began.elapsed() < Duration::from_secs(9));
    for stopped in [&first, &second] {
        assert!(message.contains(&stopped.pid().to_string()), "{message}");
    }
    // Stopped members are alive and keep their registrations.
    assert_eq!(third.ok(&format!("objects {domain}")), format!("{number}:1:4096:2"));
    third.finish();
    let mut late = actor!();
    let message = late.fails(&format!("join {domain} 300"), "TimedOut");
    assert!(message.contains(&first.pid().to_string()) && message.contains("300 ms"), "{message}");
    first.signal(libc::SIGCONT);
    second.signal(libc::SIGCONT);
    late.ok(&format!("join {domain} 20000"));
    late.ok(&format!("register {domain} {number} 1 -> o"));
    assert_eq!(late.ok("check-object o 3"), "same");
}

/// If another process holds the arbiter while the last handle of an object is dropped, the next
/// call unregisters the object.
#[test]
fn failed_unregister_completes_at_next_call() {
    let domain = name("leftover");
    let mut actor = actor!();
    actor.ok(&format!("join {domain} 100"));
    let mut other = member(&domain);
    let number = actor.ok(&format!("create {domain} 4096 1 -> o"));
    let mut holder = actor!();
    holder.ok(&format!("bind umf-domain-{}-arbiter-{domain}", uid()));
    actor.ok("drop-object o");
    holder.kill();
    // The process stays registered until its next call, and serves the object.
    other.ok(&format!("register {domain} {number} 1 -> o"));
    other.ok("drop-object o");
    let next = actor.ok(&format!("create {domain} 4096 1 -> p"));
    assert_eq!(other.ok(&format!("objects {domain}")), format!("{next}:1:4096:1"));
    other.fails(&format!("register {domain} {number} 1 -> o"), "NoSuchObject");
    actor.finish();
    other.finish();
    assert_nothing_left(&domain);
}

#[test]
fn forked_child_keeps_memory_but_no_registration() {
    let domain = name("fork");
    let mut parent = member(&domain);
    let number = parent.ok(&format!("create {domain} 4096 1 -> o"));
    parent.ok("fill-object o 1");
    let child = parent.fork();
    // The child has neither sockets nor the table after the fork.
    parent.ok("child ping");
    let snapshot = ProcessSnapshot::of_pid(child);
    assert_eq!(snapshot.sockets, Vec::<String>::new());
    assert!(!snapshot.mappings.keys().any(|name| name.contains("umf-domain-table")), "{snapshot:?}");
    parent.ok("child fill-object o 2");
    assert_eq!(parent.ok("check-object o 2"), "same");
    assert_eq!(parent.ok("child is-registered o"), "false");
    for command in [
        format!("create {domain} 4096 1 -> p"),
        format!("register {domain} {number} 1 -> p"),
        format!("unregister {domain} {number}"),
        format!("objects {domain}"),
    ] {
        let message = parent.fails(&format!("child {command}"), "Forked");
        assert!(message.contains("join the domain in this process"), "{message}");
    }
    assert_eq!(parent.ok(&format!("objects {domain}")), format!("{number}:1:4096:1"));
    // Dropping in the child unregisters nothing, and closes its copies.
    parent.ok("child drop-object o");
    parent.ok(&format!("child leave {domain}"));
    let snapshot = ProcessSnapshot::of_pid(child);
    assert!(
        !snapshot.fds.keys().chain(snapshot.mappings.keys()).any(|name| name.contains("umf-domain")),
        "{snapshot:?}"
    );
    assert_eq!(parent.ok("is-registered o"), "true");
    // The child can join as a member of its own.
    parent.ok(&format!("child join {domain}"));
    parent.ok(&format!("child register {domain} {number} 1 -> o"));
    assert_eq!(parent.ok("child check-object o 2"), "same");
    let mut other = member(&domain);
    assert_eq!(other.ok(&format!("objects {domain}")), format!("{number}:1:4096:2"));
    parent.ok("child linger");
    parent.kill();
    // The child and the domain outlive the parent.
    assert_eq!(other.ok(&format!("objects {domain}")), format!("{number}:1:4096:1"));
    other.ok(&format!("register {domain} {number} 1 -> o"));
    assert_eq!(other.ok("check-object o 2"), "same");
    drop(parent);
    other.finish();
    assert_nothing_left(&domain);
}

/// A live child does not make its dead parent look alive.
#[test]
fn forked_child_does_not_keep_dead_parent_registered() {
    let domain = name("orphan");
    let mut parent = member(&domain);
    let number = parent.ok(&format!("create {domain} 4096 1 -> o"));
    parent.fork();
    parent.ok("child linger");
    let mut other = member(&domain);
    parent.kill();
    other.fails(&format!("register {domain} {number} 1 -> o"), "NoSuchObject");
    assert_eq!(other.ok(&format!("objects {domain}")), "");
}

/// Domains do not depend on pids, which differ between pid namespaces.
#[test]
fn members_in_different_pid_namespaces_share_objects() {
    let domain = name("namespaces");
    let test = "members_in_different_pid_namespaces_share_objects";
    let Some(mut inner) = machine::in_namespaces(test, spawn!(), libc::CLONE_NEWPID) else { return };
    let mut outer = member(&domain);
    inner.ok(&format!("join {domain}"));
    let number = inner.ok(&format!("create {domain} 4096 1 -> o"));
    inner.ok("fill-object o 4");
    outer.ok(&format!("register {domain} {number} 1 -> o"));
    assert_eq!(outer.ok("check-object o 4"), "same");
    inner.kill();
    assert_eq!(outer.ok(&format!("objects {domain}")), format!("{number}:1:4096:1"));
    let mut late = spawn!().namespaces(libc::CLONE_NEWPID).start();
    late.ok(&format!("join {domain}"));
    late.ok(&format!("register {domain} {number} 1 -> o"));
    outer.kill();
    assert_eq!(late.ok("check-object o 4"), "same");
    assert_eq!(late.ok(&format!("objects {domain}")), format!("{number}:1:4096:1"));
    late.finish();
    assert_nothing_left(&domain);
}

/// As many members as an MPI job has on one node.
#[test]
fn hundred_processes_share_one_object() {
    let domain = name("node");
    let mut actors: Vec<Actor> = (0..100).map(|_| actor!()).collect();
    let patience = Duration::from_secs(60);
    for actor in &mut actors {
        actor.send(&format!("join {domain} 50000"));
    }
    for actor in &mut actors {
        actor.answer(patience).unwrap();
    }
    let number = actors[0].ok(&format!("create {domain} 4096 1 -> o"));
    actors[0].ok("fill-object o 8");
    for actor in &mut actors {
        actor.send(&format!("register {domain} {number} 1 -> p"));
    }
    for actor in &mut actors {
        actor.answer(patience).unwrap();
        assert_eq!(actor.ok("check-object p 8"), "same");
    }
    assert_eq!(actors[99].ok(&format!("objects {domain}")), format!("{number}:1:4096:100"));
    let mut last = actors.pop().unwrap();
    drop(actors);
    assert_eq!(last.ok(&format!("objects {domain}")), format!("{number}:1:4096:1"));
    assert_eq!(last.ok("check-object p 8"), "same");
    last.finish();
    assert_nothing_left(&domain);
}

#[test]
fn exec_ends_membership() {
    let domain = name("exec");
    let mut actor = actor!();
    let clean = ProcessSnapshot::of(&actor);
    actor.ok(&format!("join {domain}"));
    let number = actor.ok(&format!("create {domain} 4096 1 -> o"));
    let mut other = member(&domain);
    other.ok(&format!("register {domain} {number} 1 -> o"));
    actor.ok("exec");
    actor.ok("ping");
    clean.assert_restored(&actor);
    assert_eq!(other.ok(&format!("objects {domain}")), format!("{number}:1:4096:1"));
    actor.ok(&format!("join {domain}"));
    actor.ok(&format!("register {domain} {number} 1 -> o"));
}

#[test]
fn limits_are_errors_and_dead_objects_are_reclaimed() {
    let domain = name("limits");
    let mut actor = actor!();
    actor.ok(&format!("join {domain} max 3"));
    let mut other = member(&domain);
    for kind in 0..3 {
        other.ok(&format!("create {domain} 4096 {kind} -> o{kind}"));
    }
    let message = actor.fails(&format!("create {domain} 4096 1 -> o"), "Full");
    assert!(message.contains("3 objects") && message.contains("max_objects"), "{message}");
    other.kill();
    for kind in 0..3 {
        actor.ok(&format!("create {domain} 4096 {kind} -> o{kind}"));
    }
    // Without fds, calls fail and change nothing. A member without fds cannot serve others.
    let mut third = member(&domain);
    let before = actor.ok(&format!("objects {domain}"));
    actor.ok("take-fds 0");
    for command in [format!("register {domain} 1 1 -> x"), format!("create {domain} 4096 1 -> x")] {
        let failure = actor.ask(&command).unwrap_err();
        assert!(["System", "WrongDomain"].contains(&failure.variant.as_str()), "{failure}");
    }
    let number = before.split(':').next().unwrap();
    third.fails(&format!("create {domain} 4096 1 -> o"), "Full");
    member(&domain).finish();
    actor.ok("give-fds-back");
    actor.ok("rlimit nofile max");
    third.ok(&format!("register {domain} {number} 0 -> o"));
    third.ok("unregister-object o");
    assert_eq!(actor.ok(&format!("objects {domain}")), before);
    actor.ok("rlimit fsize 1000000");
    actor.fails(&format!("create {domain} 2000000 1 -> x"), "BadSize");
    actor.ok(&format!("join {domain}-small"));
}
