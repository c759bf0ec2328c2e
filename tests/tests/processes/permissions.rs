//! Permissions to open a handle: other users, undumpable processes, namespaces. Each refusal states
//! the reason and the remedy.

#![allow(clippy::unwrap_used, reason = "a test that cannot continue ends")]

use std::time::Duration;

use umf::Handle;
use umf_tests::{Actor, Patience, ProcessSnapshot, Spawn, actor, machine, spawn};

const OTHER_UID: u32 = 65534;

fn in_mode(mode: &str) -> Spawn {
    spawn!().env("UMF_IPC_EXCHANGE", mode)
}

fn one_block(producer: &mut Actor) -> Handle {
    producer.ok("pool p shared");
    producer.ok("alloc p 4096 -> p.b");
    producer.ok("fill p.b 5");
    producer.handle("handle p.b")
}

/// Starts an actor that changes to an unprivileged user. A process that changes its credentials is
/// undumpable until it sets the flag.
fn as_other_user(spawn: Spawn, dumpable: bool) -> Actor {
    let mut actor = spawn.start();
    actor.ok(&format!("setuid {OTHER_UID}"));
    actor.ok(&format!("dumpable {}", u8::from(dumpable)));
    actor
}

/// UMF #979, PyTorch #130890: `pidfd_getfd: Operation not permitted`, without a reason.
#[test]
fn other_user_is_refused_with_reason_and_remedy() {
    if !machine::is_root() {
        return machine::skip("other_user_is_refused_with_reason_and_remedy", "changing the user needs root");
    }
    for mode in ["pidfd", "procfs", "socket", "auto", "pidfd,procfs,socket"] {
        let mut producer = in_mode(mode).start();
        let handle = one_block(&mut producer);
        let mut importer = as_other_user(in_mode(mode), true);
        let clean = ProcessSnapshot::of(&importer);
        let message = importer.fails(&format!("open {handle} -> m"), "NotPermitted");
        assert!(message.contains("remedy: "), "{message}");
        let modes: &[&str] = if mode == "auto" { &["pidfd", "procfs", "socket"] } else { &[mode] };
        for tried in modes.iter().flat_map(|modes| modes.split(',')) {
            assert!(message.contains(&format!(" {tried}: ")), "{message}");
        }
        if mode != "socket" {
            assert!(message.contains("runs as uid 0, this process as uid 65534"), "{message}");
            assert!(message.contains("run both as the same user"), "{message}");
        } else {
            assert!(
                message.contains("serves its own user only, and this process has uid 65534"),
                "{message}"
            );
        }
        importer.ok("evict");
        clean.assert_restored(&importer);
        // Other importers are not affected.
        let mut root = in_mode(mode).start();
        root.ok(&format!("open {handle} -> m"));
        root.check("m", 5);
    }
}

/// Two unprivileged users do not trust each other's sockets. The error contains the reason of each
/// mode.
#[test]
fn socket_of_another_user_is_refused_like_other_modes() {
    if !machine::is_root() {
        return machine::skip(
            "socket_of_another_user_is_refused_like_other_modes",
            "changing the user needs root",
        );
    }
    let mut producer = as_other_user(in_mode("pidfd,procfs,socket"), true);
    let handle = one_block(&mut producer);
    assert!(handle.is_served());
    for (mode, tried) in [("auto", &["pidfd", "procfs", "socket"][..]), ("socket", &["socket"])] {
        let mut importer = in_mode(mode).start();
        importer.ok(&format!("setuid {}", OTHER_UID - 1));
        let message = importer.fails(&format!("open {handle} -> m"), "NotPermitted");
        for mode in tried {
            assert!(message.contains(&format!(" {mode}: ")), "{message}");
        }
        assert!(message.contains("socket belongs to another user than uid 65533"), "{message}");
        assert!(message.contains("run both as the same user"), "{message}");
    }
}

/// Two processes of one unprivileged user can share memory in each mode.
#[test]
fn same_user_needs_no_privileges() {
    if !machine::is_root() {
        return machine::skip("same_user_needs_no_privileges", "changing the user needs root");
    }
    for mode in ["auto", "pidfd", "procfs", "socket"] {
        let mut producer = as_other_user(in_mode(mode), true);
        let handle = one_block(&mut producer);
        let mut importer = as_other_user(in_mode(mode), true);
        importer.ok(&format!("open {handle} -> m"));
        importer.check("m", 5);
        importer.finish();
        producer.finish();
    }
}

#[test]
fn undumpable_producer_is_reached_over_socket_only() {
    if !machine::is_root() {
        return machine::skip(
            "undumpable_producer_is_reached_over_socket_only",
            "changing the user needs root",
        );
    }
    for mode in ["pidfd", "procfs"] {
        let mut producer = as_other_user(in_mode(mode), false);
        let handle = one_block(&mut producer);
        let mut importer = as_other_user(in_mode(mode), true);
        let message = importer.fails(&format!("open {handle} -> m"), "NotPermitted");
        assert!(message.contains("not dumpable") && message.contains("UMF_IPC_EXCHANGE=socket"), "{message}");
        assert!(!handle.is_served());
        // The mode of the importer does not help: the producer serves no socket.
        let mut importer = as_other_user(in_mode("socket"), true);
        let message = importer.fails(&format!("open {handle} -> m"), "NotPermitted");
        assert!(message.contains("decided so at its first export"), "{message}");
    }
    for mode in ["auto", "socket", "procfs,socket"] {
        let mut producer = as_other_user(in_mode(mode), false);
        let handle = one_block(&mut producer);
        assert!(handle.is_served(), "mode {mode}: an undumpable producer serves its socket");
        assert_eq!(ProcessSnapshot::of(&producer).sockets.len(), 1);
        let mut importer = as_other_user(in_mode(mode), true);
        importer.ok(&format!("open {handle} -> m"));
        importer.check("m", 5);
        importer.finish();
        producer.finish();
    }
}

#[test]
fn undumpable_importer_can_open() {
    if !machine::is_root() {
        return machine::skip("undumpable_importer_can_open", "changing the user needs root");
    }
    for mode in ["auto", "pidfd", "procfs", "socket"] {
        let mut producer = as_other_user(in_mode(mode), true);
        let handle = one_block(&mut producer);
        let mut importer = as_other_user(in_mode(mode), false);
        importer.ok(&format!("open {handle} -> m"));
        importer.check("m", 5);
    }
}

/// An importer in a user namespace of its own, as in rootless containers, has no rights over
/// processes outside.
#[test]
fn importer_in_user_namespace_needs_socket() {
    const TEST: &str = "importer_in_user_namespace_needs_socket";
    for mode in ["pidfd", "procfs", "auto"] {
        let mut producer = in_mode(mode).start();
        let handle = one_block(&mut producer);
        let Some(mut importer) = machine::in_namespaces(TEST, in_mode(mode), libc::CLONE_NEWUSER) else {
            return;
        };
        let message = importer.fails(&format!("open {handle} -> m"), "NotPermitted");
        assert!(message.contains("remedy: ") && message.contains("UMF_IPC_EXCHANGE=socket"), "{message}");
        assert!(message.contains("user namespace") || message.contains("uid"), "{message}");
    }
    let mut producer = in_mode("socket").start();
    let handle = one_block(&mut producer);
    let mut importer = machine::in_namespaces(TEST, in_mode("auto"), libc::CLONE_NEWUSER).unwrap();
    importer.ok(&format!("open {handle} -> m"));
    importer.check("m", 5);
}

/// In another pid namespace, as in containers, the producer's pid is another process or free.
#[test]
fn socket_serves_across_pid_namespaces() {
    const TEST: &str = "socket_serves_across_pid_namespaces";
    let flags = libc::CLONE_NEWPID | if machine::is_root() { 0 } else { libc::CLONE_NEWUSER };
    for inside_produces in [false, true] {
        let pair = |mode: &str| -> Option<(Actor, Actor)> {
            let inside = machine::in_namespaces(TEST, in_mode(mode), flags)?;
            let outside = in_mode(mode).start();
            Some(if inside_produces { (inside, outside) } else { (outside, inside) })
        };
        for mode in ["pidfd", "procfs"] {
            let Some((mut producer, mut importer)) = pair(mode) else { return };
            let handle = one_block(&mut producer);
            let message = importer.fails(&format!("open {handle} -> m"), "NotPermitted");
            assert!(message.contains("another pid namespace"), "{message}");
            assert!(message.contains("UMF_IPC_EXCHANGE=socket in the producer"), "{message}");
        }
        if !machine::is_root() {
            // Without root, the namespace needs a user namespace, in which user ids are unmapped.
            continue;
        }
        let Some((mut producer, mut importer)) = pair("socket") else { return };
        let handle = one_block(&mut producer);
        producer.ok("region 65536 -> r");
        let another = producer.handle("handle r");
        let clean = ProcessSnapshot::of(&importer);
        importer.ok(&format!("open {handle} -> m"));
        importer.check("m", 5);
        // Without a pidfd, the importer notices the death by the socket.
        producer.kill();
        importer.check("m", 5);
        importer.fails(&format!("open {another} -> n"), "ProducerGone");
        importer.ok("close m");
        importer.ok("evict");
        // An importer without a connection cannot distinguish a dead producer from one in another
        // network namespace.
        let message = importer.fails(&format!("open {handle} -> m"), "NotPermitted");
        assert!(message.contains("another one, or has ended"), "{message}");
        clean.assert_restored(&importer);
    }
    if !machine::is_root() {
        return machine::skip(TEST, "the socket needs to know users");
    }
    // A producer in a pid namespace serves its socket by default, as other modes cannot reach it.
    let Some(mut producer) = machine::in_namespaces(TEST, in_mode("auto"), flags) else { return };
    let handle = one_block(&mut producer);
    assert!(handle.is_served());
    let mut importer = actor!();
    importer.ok(&format!("open {handle} -> m"));
    importer.check("m", 5);
}

/// Abstract sockets belong to a network namespace.
#[test]
fn socket_is_refused_across_network_namespaces() {
    const TEST: &str = "socket_is_refused_across_network_namespaces";
    if !machine::is_root() {
        return machine::skip(TEST, "needs root");
    }
    let mut producer = in_mode("socket").start();
    let handle = one_block(&mut producer);
    let Some(mut importer) = machine::in_namespaces(TEST, in_mode("socket"), libc::CLONE_NEWNET) else {
        return;
    };
    let message = importer.fails(&format!("open {handle} -> m"), "NotPermitted");
    assert!(message.contains("network namespace"), "{message}");
    let Some(mut importer) = machine::in_namespaces(TEST, in_mode("auto"), libc::CLONE_NEWNET) else {
        return;
    };
    importer.ok(&format!("open {handle} -> m"));
    importer.check("m", 5);
}

/// Containers with a network namespace of their own: no mode reaches the producer, and the error
/// names the remedy.
#[test]
fn no_mode_crosses_pid_and_network_namespaces() {
    const TEST: &str = "no_mode_crosses_pid_and_network_namespaces";
    let flags = libc::CLONE_NEWPID | libc::CLONE_NEWNET;
    let flags = flags | if machine::is_root() { 0 } else { libc::CLONE_NEWUSER };
    let mut producer = in_mode("socket").start();
    let handle = one_block(&mut producer);
    for mode in ["socket", "auto"] {
        let Some(mut importer) = machine::in_namespaces(TEST, in_mode(mode), flags) else { return };
        let message = importer.fails(&format!("open {handle} -> m"), "NotPermitted");
        assert!(message.contains("or run both in one network namespace"), "{message}");
    }
    producer.finish();
}

/// A container without `/proc`: the modes that do not need it work.
#[test]
fn other_modes_work_without_proc() {
    const TEST: &str = "other_modes_work_without_proc";
    if !machine::is_root() {
        return machine::skip(TEST, "mounting needs root");
    }
    let mut producer = in_mode("socket").start();
    let handle = one_block(&mut producer);
    // Row locks need a file opened through /proc, or one that came over the socket.
    for (mode, why) in [
        ("procfs", "no /proc of this pid namespace"),
        ("procfs,pidfd", "mount /proc here, or set UMF_IPC_EXCHANGE=socket"),
        ("procfs,socket", ""),
        ("auto", ""),
    ] {
        let Some(mut importer) = machine::in_namespaces(TEST, in_mode(mode), libc::CLONE_NEWNS) else {
            return;
        };
        importer.ok("mount tmpfs /proc size=64k");
        if why.is_empty() {
            importer.ok(&format!("open {handle} -> m"));
            importer.check("m", 5);
        } else {
            let failure = importer.ask(&format!("open {handle} -> m")).unwrap_err();
            assert!(failure.message.contains(why), "{failure}");
        }
    }
    let without_leases = in_mode("pidfd").env("UMF_IPC_LEASES", "off");
    let Some(mut importer) = machine::in_namespaces(TEST, without_leases, libc::CLONE_NEWNS) else { return };
    importer.ok("mount tmpfs /proc size=64k");
    importer.ok(&format!("open {handle} -> m"));
    importer.check("m", 5);
    producer.finish();
}

/// Connections of other users are answered and closed, and displace no other connection.
#[test]
fn connections_of_other_users_displace_no_client() {
    if !machine::is_root() {
        return machine::skip(
            "connections_of_other_users_displace_no_client",
            "changing the user needs root",
        );
    }
    let mut producer = in_mode("socket").start();
    let handle = one_block(&mut producer);
    let name = producer.ok("nonce");
    let name = name.split(' ').next().unwrap();
    let mut importer = in_mode("socket").start();
    importer.ok(&format!("open {handle} -> m"));
    // The producer may still close the copy of its lease table that it has sent.
    let is_sent = |now: &ProcessSnapshot| now.fds.get("/memfd:umf-leases (deleted)") == Some(&1);
    let mut patience = Patience::new(Duration::from_secs(10));
    while !is_sent(&ProcessSnapshot::of(&producer)) {
        assert!(patience.sleep(), "the producer keeps a copy of its lease table");
    }
    let snapshot = ProcessSnapshot::of(&producer);
    let mut stranger = as_other_user(in_mode("socket"), true);
    stranger.ok(&format!("connect {name} 600"));
    snapshot.assert_restored(&producer);
    // The refused importer reports the reason, in any order of request and answer.
    for _ in 0..50 {
        let message = stranger.fails(&format!("open {handle} -> m"), "NotPermitted");
        assert!(message.contains("serves its own user only, and this process has uid 65534"), "{message}");
    }
    producer.finish();
}

/// Unmapped users of a user namespace have the same id there. In one pid namespace the kernel can
/// still distinguish them (`importer_in_user_namespace_needs_socket`). Otherwise neither side
/// trusts the other.
#[test]
fn unmapped_users_are_not_trusted() {
    const TEST: &str = "unmapped_users_are_not_trusted";
    let flags = libc::CLONE_NEWUSER | libc::CLONE_NEWPID;
    for inside_produces in [false, true] {
        let Some(inside) = machine::in_namespaces(TEST, in_mode("socket"), flags) else { return };
        let outside = in_mode("socket").start();
        let (mut producer, mut importer) =
            if inside_produces { (inside, outside) } else { (outside, inside) };
        let handle = one_block(&mut producer);
        let message = importer.fails(&format!("open {handle} -> m"), "NotPermitted");
        assert!(message.contains("remedy: "), "{message}");
        assert!(inside_produces || message.contains("/proc/self/uid_map"), "{message}");
    }
    if !machine::is_root() {
        return machine::skip(TEST, "a second user needs root");
    }
    // Inside, both root and the other user have the id 65534.
    let mut producer = machine::in_namespaces(TEST, in_mode("socket"), libc::CLONE_NEWUSER).unwrap();
    let handle = one_block(&mut producer);
    let mut importer = as_other_user(in_mode("socket"), true);
    importer.fails(&format!("open {handle} -> m"), "NotPermitted");
    let mut importer = in_mode("socket").start();
    importer.ok(&format!("open {handle} -> m"));
    importer.check("m", 5);
}
