//! Domains, links and ranks of processes that have nothing in common but a directory: each process
//! has its own pid, network, mount and IPC namespace, and another path of the directory.

#![allow(clippy::unwrap_used, reason = "a test that cannot continue ends")]

use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::time::Duration;

use tempfile::TempDir;
use umf_tests::domain::{assert_nothing_left, name};
use umf_tests::{Actor, Outcome, Patience, machine, spawn};

const BOUND: Duration = Duration::from_secs(60);

/// A directory that containers share, and the paths at which they see it.
struct Shared {
    test: &'static str,
    folder: TempDir,
    /// Value of `UMF_IPC_ALLOW`.
    allow: &'static str,
    containers: u32,
}

impl Shared {
    fn new(test: &'static str) -> Self {
        let folder = TempDir::with_prefix("umf").unwrap();
        std::fs::create_dir(folder.path().join("d")).unwrap();
        let mode = std::fs::Permissions::from_mode(0o1777);
        std::fs::set_permissions(folder.path().join("d"), mode).unwrap();
        // Users of two user namespaces cannot be compared.
        let allow = if machine::is_root() { "same-user" } else { "handle" };
        Self { test, folder, allow, containers: 0 }
    }

    fn path(&self) -> PathBuf {
        self.folder.path().join("d")
    }

    /// Starts a process in new namespaces. Returns `None` if the kernel refuses.
    fn container(&mut self) -> Option<Actor> {
        self.containers += 1;
        let seen = self.folder.path().join(self.containers.to_string());
        let seen_text = seen.to_str().unwrap();
        let mut flags = libc::CLONE_NEWPID | libc::CLONE_NEWNET | libc::CLONE_NEWNS | libc::CLONE_NEWIPC;
        if !machine::is_root() {
            flags |= libc::CLONE_NEWUSER;
        }
        let spawn = spawn!().env("UMF_IPC_DIR", seen_text).env("UMF_IPC_ALLOW", self.allow);
        if machine::is_root() {
            std::fs::create_dir(&seen).unwrap();
        } else {
            // Without an id in its user namespace, the process may not mount.
            std::os::unix::fs::symlink(self.path(), &seen).unwrap();
        }
        let mut actor = machine::in_namespaces(self.test, spawn, flags)?;
        if machine::is_root() {
            actor.ok(&format!("mount-bind {} {seen_text}", self.path().display()));
            actor.ok("mount proc /proc hidepid=0");
        }
        Some(actor)
    }

    fn files(&self) -> Vec<String> {
        let entries = std::fs::read_dir(self.path()).unwrap().flatten();
        entries.map(|entry| entry.file_name().into_string().unwrap()).collect()
    }

    /// Checks that living processes have left no file. A killed process leaves some, which the next
    /// process removes.
    #[track_caller]
    fn assert_empty(&mut self) {
        let mut next = self.container().unwrap();
        next.ok("join last");
        next.ok("leave last");
        next.finish();
        let mut patience = Patience::new(Duration::from_secs(10));
        while !self.files().is_empty() && patience.sleep() {}
        assert_eq!(self.files(), [""; 0]);
    }
}

#[test]
fn domain_of_containers_survives_kills() {
    let domain = name("containers");
    let mut shared = Shared::new("domain_of_containers_survives_kills");
    let Some(mut first) = shared.container() else { return };
    let [mut second, mut third] = [shared.container().unwrap(), shared.container().unwrap()];
    first.ok(&format!("join {domain} 9000"));
    let number = first.ok(&format!("create {domain} 8192 1 -> o"));
    first.ok("fill-object o 4");
    for other in [&mut second, &mut third] {
        other.ok(&format!("join {domain} 9000"));
        other.ok(&format!("register {domain} {number} 1 -> o"));
        assert_eq!(other.ok("check-object o 4"), "same");
    }
    assert_eq!(third.ok(&format!("objects {domain}")), format!("{number}:1:8192:3"));
    // A stopped process is alive.
    second.stop();
    assert_eq!(third.ok(&format!("objects {domain}")), format!("{number}:1:8192:3"));
    second.signal(libc::SIGCONT);
    first.kill();
    assert_eq!(third.ok(&format!("objects {domain}")), format!("{number}:1:8192:2"));
    let mut late = shared.container().unwrap();
    late.ok(&format!("join {domain} 9000"));
    late.ok(&format!("register {domain} {number} 1 -> o"));
    second.kill();
    third.kill();
    assert_eq!(late.ok("check-object o 4"), "same");
    assert_eq!(late.ok(&format!("objects {domain}")), format!("{number}:1:8192:1"));
    late.kill();
    // The domain has ended with its last process, and begins again.
    let mut next = shared.container().unwrap();
    next.ok(&format!("join {domain} 9000"));
    next.fails(&format!("register {domain} {number} 1 -> o"), "NoSuchObject");
    next.finish();
    shared.assert_empty();
    assert_nothing_left(&domain);
}

/// Processes create, register and unregister at once, and some are killed.
#[test]
fn kills_under_load_leave_domain_of_containers_correct() {
    let domain = name("containers-storm");
    let mut shared = Shared::new("kills_under_load_leave_domain_of_containers_correct");
    let Some(mut witness) = shared.container() else { return };
    witness.ok(&format!("join {domain} 9000"));
    let index = witness.ok(&format!("create {domain} 128 77 -> index"));
    for round in 0..if machine::is_long() { 100 } else { 4 } {
        let mut workers: Vec<Actor> = (0..3).map(|_| shared.container().unwrap()).collect();
        for (seed, worker) in workers.iter_mut().enumerate() {
            worker.ok(&format!("join {domain} 9000"));
            worker.ok(&format!("register {domain} {index} 77 -> index"));
            worker.send(&format!("domain-stress {domain} index {} 200", round * 4 + seed));
        }
        std::thread::sleep(Duration::from_millis(20 + 31 * round as u64 % 150));
        workers.swap_remove(round % 3).kill();
        for worker in &mut workers {
            worker.answer(BOUND).unwrap();
        }
        assert_eq!(witness.ok(&format!("objects {domain}")), format!("{index}:77:4096:3"), "round {round}");
        workers.into_iter().for_each(Actor::finish);
        assert_eq!(witness.ok(&format!("objects {domain}")), format!("{index}:77:4096:1"));
    }
    witness.finish();
    shared.assert_empty();
    assert_nothing_left(&domain);
}

/// Links two containers.
fn join(one: &mut Actor, other: &mut Actor) {
    let address = one.ok("link-bind end");
    one.send("link-accept end 30000 -> link");
    let peer = other.ok(&format!("link-connect {address} 30000 -> link"));
    assert_eq!((peer.as_str(), one.answer(BOUND).unwrap().as_str()), ("0", "0"), "no pid is visible");
    one.ok("link-unbind end");
}

#[test]
fn containers_are_linked_and_ends_are_seen() {
    for allow in ["same-user", "handle"] {
        let mut shared = Shared::new("containers_are_linked_and_ends_are_seen");
        if machine::is_root() {
            shared.allow = allow;
        }
        let Some(mut one) = shared.container() else { return };
        let mut other = shared.container().unwrap();
        join(&mut one, &mut other);
        assert!(one.ok("link-engines link").contains("another pid namespace"));
        for (number, size) in [10, 100_000, 5_000_000].into_iter().enumerate() {
            one.send(&format!("link-send link 1 {size} {number}"));
            let received = other.ok(&format!("link-recv link 1 {size} {number}"));
            assert!(received.starts_with(&size.to_string()) && received.ends_with("same"), "{received}");
            one.answer(BOUND).unwrap();
        }
        one.ok("link-lend link 2 3000000 9");
        let received = other.ok("link-recv link 2 3000000 9");
        assert_eq!(received, "3000000 mapped same", "the handle was opened over the directory");
        one.send("link-traffic link 3 4 200");
        other.send("link-traffic link 4 3 200");
        one.answer(BOUND).unwrap();
        other.answer(BOUND).unwrap();
        // A receive that sleeps ends with its peer.
        for is_stopped in [false, true] {
            let mut victim = shared.container().unwrap();
            join(&mut one, &mut victim);
            one.send("link-recv link 5 10 1");
            std::thread::sleep(Duration::from_millis(50));
            if is_stopped {
                victim.stop();
            }
            victim.kill();
            match one.outcome(BOUND) {
                Outcome::Answer(Err(failure)) => assert_eq!(failure.variant, "PeerGone", "{failure}"),
                other => panic!("{other:?}"),
            }
            one.ok("link-drop link");
        }
        let address = other.ok("link-bind gone");
        other.kill();
        let message = one.fails(&format!("link-connect {address} 1000 -> link"), "NotListening");
        assert!(message.contains(shared.folder.path().to_str().unwrap()), "{message}");
        // A name instead of an address.
        let mut other = shared.container().unwrap();
        let public = name("public");
        other.ok(&format!("link-bind end named {public}"));
        other.send("link-accept end 30000 -> link");
        one.ok(&format!("link-connect name:{public} 30000 -> link"));
        other.answer(BOUND).unwrap();
        // A process without the directory is told so.
        let mut outside = spawn!().start();
        let address = other.ok("link-bind second");
        let message = outside.fails(&format!("link-connect {address} 1000 -> link"), "OtherPlace");
        assert!(message.contains("UMF_IPC_DIR"), "{message}");
        [one, other, outside].into_iter().for_each(Actor::finish);
        shared.assert_empty();
    }
}

#[test]
fn ranks_in_four_containers_reduce_and_one_is_killed_and_replaced() {
    let mut shared = Shared::new("ranks_in_four_containers_reduce_and_one_is_killed_and_replaced");
    let Some(first) = shared.container() else { return };
    let mut ranks = vec![first];
    ranks.extend((0..3).map(|_| shared.container().unwrap()));
    let job = name("ranks");
    for (rank, actor) in ranks.iter_mut().enumerate() {
        actor.ok(&format!("comm-join {job} {rank} 4 -> f"));
    }
    ranks.iter_mut().for_each(|rank| rank.send("comm-rounds f 5"));
    for rank in &mut ranks {
        assert_eq!(rank.answer(BOUND).unwrap(), "5");
    }
    let mut late = shared.container().unwrap();
    late.fails(&format!("comm-join {job} 3 4 -> f"), "RankTaken");
    ranks.iter_mut().for_each(|rank| rank.send("comm-rounds f 1000000"));
    std::thread::sleep(Duration::from_millis(100));
    ranks.pop().unwrap().kill();
    for rank in &mut ranks {
        match rank.outcome(BOUND) {
            Outcome::Answer(Err(failure)) => {
                assert!(matches!(&*failure.variant, "PeerGone" | "CollectivesEnded"), "{failure}");
            }
            other => panic!("{other:?}"),
        }
    }
    // The process that replaces the rank has the same pid in its own namespace.
    late.ok(&format!("comm-join {job} 3 4 -> f"));
    for rank in &mut ranks {
        rank.ok("comm-forget f 3");
    }
    late.ok("comm-send f 0 1 77");
    let received = ranks[0].ask("comm-recv-any f").or_else(|_| ranks[0].ask("comm-recv-any f"));
    assert_eq!(received.unwrap(), "3 77");
    ranks[1].ok("comm-send f 3 1 78");
    let received = late.ask("comm-recv-any f").or_else(|_| late.ask("comm-recv-any f"));
    assert_eq!(received.unwrap(), "1 78");
    for mut rank in ranks {
        rank.ok("comm-drop f");
        rank.finish();
    }
    late.kill();
    shared.assert_empty();
}

/// Other users are permitted by their group, or by the name of the domain or an address, if the
/// rule says so.
#[test]
fn other_users_are_permitted_by_rule_only() {
    const TEST: &str = "other_users_are_permitted_by_rule_only";
    if !machine::is_root() {
        return machine::skip(TEST, "other users need root");
    }
    for allow in ["same-user", "group", "handle"] {
        let mut shared = Shared::new(TEST);
        shared.allow = allow;
        std::fs::set_permissions(shared.folder.path(), std::fs::Permissions::from_mode(0o755)).unwrap();
        let domain = name("users");
        let Some(mut one) = shared.container() else { return };
        let mut other = shared.container().unwrap();
        one.ok("setuid 12345 777");
        other.ok("setuid 12346 777");
        one.ok(&format!("join {domain} 9000"));
        other.ok(&format!("join {domain} 9000"));
        let number = one.ok(&format!("create {domain} 4096 1 -> o"));
        let address = one.ok("link-bind end");
        if allow != "same-user" {
            one.ok("fill-object o 4");
            other.ok(&format!("register {domain} {number} 1 -> o"));
            assert_eq!(other.ok("check-object o 4"), "same");
            one.send("link-accept end 30000 -> link");
            other.ok(&format!("link-connect {address} 30000 -> link"));
            one.answer(BOUND).unwrap();
            one.ok("link-lend link 2 300000 9");
            assert_eq!(other.ok("link-recv link 2 300000 9"), "300000 mapped same");
        } else {
            // Two users have two domains of one name.
            assert_eq!(other.ok(&format!("objects {domain}")), "");
            assert!(other.ask(&format!("link-connect {address} 1000 -> link")).is_err());
        }
        if allow == "group" {
            let mut third = shared.container().unwrap();
            third.ok("setuid 12347 778");
            let message = third.fails(&format!("join {domain} 9000"), "NotPermitted");
            assert!(message.contains("\"group\""), "{message}");
            assert!(third.ask(&format!("link-connect {address} 1000 -> link")).is_err());
            third.finish();
        }
        [one, other].into_iter().for_each(Actor::finish);
        // Root may remove what others have left.
        shared.assert_empty();
    }
}

/// Users of a group contend for the arbiter: its file never refuses one of them.
#[test]
fn users_of_a_group_contend_for_the_arbiter() {
    const TEST: &str = "users_of_a_group_contend_for_the_arbiter";
    if !machine::is_root() {
        return machine::skip(TEST, "other users need root");
    }
    let shared = Shared::new(TEST);
    std::fs::set_permissions(shared.folder.path(), std::fs::Permissions::from_mode(0o755)).unwrap();
    let path = shared.path();
    let mut users: Vec<_> = [12345, 12346]
        .map(|uid| {
            let spawn = spawn!().env("UMF_IPC_DIR", path.to_str().unwrap()).env("UMF_IPC_ALLOW", "group");
            // The time in which the other one could find a file that is not ready.
            let mut user = spawn.env("UMF_FAILPOINTS", "directory.lock_made:*=sleep:2").start();
            user.ok(&format!("setuid {uid} 777"));
            user
        })
        .into();
    let domain = name("contended");
    for _ in 0..20 {
        for command in ["join", "leave"] {
            users.iter_mut().for_each(|user| user.send(&format!("{command} {domain}")));
            for user in &mut users {
                user.answer(BOUND).unwrap();
            }
        }
    }
    users.into_iter().for_each(Actor::finish);
    assert_eq!(shared.files(), [""; 0]);
}

/// Without a directory, domains and links are for one user, and the log says so.
#[test]
fn rule_without_directory_is_warned_about() {
    let folder = TempDir::with_prefix("umf").unwrap();
    for (allow, warnings) in [("same-user", 0), ("group", 1)] {
        let log = folder.path().join(allow);
        let mut actor = spawn!()
            .env("UMF_IPC_ALLOW", allow)
            .env("UMF_LOG", &format!("level:warning;output:file,{}", log.display()))
            .start();
        actor.ok(&format!("join {}", name("warned")));
        actor.ok("link-bind end");
        actor.finish();
        let text = std::fs::read_to_string(&log).unwrap_or_default();
        let found = text.matches("has no effect on domains and links without a directory").count();
        assert_eq!(found, warnings, "{allow}: {text}");
    }
}
