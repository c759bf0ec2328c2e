//! Exchange over a directory: processes that have no namespace in common, as in containers.

#![allow(clippy::unwrap_used, reason = "a test that cannot continue ends")]

use std::io::Read;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::time::Duration;

use tempfile::TempDir;
use umf::Handle;
use umf::ipc::inspect::{OwnerStatus, Search};
use umf::ipc::rendezvous::Directory;
use umf_tests::domain::name;
use umf_tests::forge::{self, field};
use umf_tests::{Actor, Patience, ProcessSnapshot, Spawn, command, machine, spawn};

const SIZE: u64 = 65536;

/// Namespaces of a container. Without root, they need a user namespace.
fn container() -> i32 {
    let own = libc::CLONE_NEWPID | libc::CLONE_NEWNET | libc::CLONE_NEWIPC | libc::CLONE_NEWUTS;
    own | if machine::is_root() { 0 } else { libc::CLONE_NEWUSER }
}

/// The rule that containers need here: without root, each has its user namespace, in which no user
/// has a number.
fn rule() -> &'static str {
    if machine::is_root() { "same-user" } else { "handle" }
}

fn directory(mode: u32) -> TempDir {
    let folder = tempfile::tempdir().unwrap();
    std::fs::set_permissions(folder.path(), PermissionsExt::from_mode(mode)).unwrap();
    folder
}

fn with(path: &Path, allow: &str) -> Spawn {
    spawn!().env("UMF_IPC_DIR", path.to_str().unwrap()).env("UMF_IPC_ALLOW", allow)
}

fn in_container(test: &str, path: &Path, allow: &str) -> Option<Actor> {
    machine::in_namespaces(test, with(path, allow), container())
}

fn block(producer: &mut Actor, name: &str, seed: u64) -> Handle {
    producer.ok(&format!("alloc p {SIZE} -> p.{name}"));
    producer.ok(&format!("fill p.{name} {seed}"));
    producer.handle(&format!("handle p.{name}"))
}

fn files(folder: &TempDir) -> Vec<String> {
    let entries = std::fs::read_dir(folder.path()).unwrap();
    entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect()
}

/// Four ranks in four containers, which share nothing but a directory: every rank opens the block
/// of every other one, holds leases, sees stale handles, and survives the death of the others.
#[test]
fn ranks_in_containers_share_memory_over_a_directory() {
    const TEST: &str = "ranks_in_containers_share_memory_over_a_directory";
    let folder = directory(0o700);
    let outside = tempfile::tempdir().unwrap();
    // The same directory by another path.
    std::os::unix::fs::symlink(folder.path(), outside.path().join("umf")).unwrap();
    let paths = [folder.path().to_owned(), outside.path().join("umf")];
    let mut ranks = Vec::new();
    for rank in 0..4 {
        let Some(rank) = in_container(TEST, &paths[rank % 2], rule()) else { return };
        ranks.push(rank);
    }
    let (mut handles, mut regions) = (Vec::new(), Vec::new());
    for (seed, rank) in ranks.iter_mut().enumerate() {
        rank.ok("pool p shared");
        handles.push(block(rank, "b", seed as u64));
        assert!(handles[seed].is_in_directory());
        rank.ok("region 65536 -> r");
        regions.push(rank.handle("handle r"));
    }
    let clean: Vec<_> = ranks.iter().map(ProcessSnapshot::of).collect();
    for rank in &mut ranks {
        for (seed, handle) in handles.iter().enumerate() {
            rank.ok(&format!("open {handle} -> m{seed}"));
            rank.check(&format!("m{seed}"), seed as u64);
        }
    }
    // The blocks are freed while all have them open: stale for new opens, kept for these.
    let addresses: Vec<_> = ranks.iter_mut().map(|rank| rank.ok("address p.b")).collect();
    for rank in &mut ranks {
        rank.ok("free p p.b");
        assert_ne!(rank.ok("drain 30"), "0");
    }
    for (index, rank) in ranks.iter_mut().enumerate() {
        let address = &addresses[index];
        assert_eq!(rank.ok(&format!("reused p {SIZE} {address} 600")), "no");
        rank.fails(&format!("open {} -> n", handles[(index + 1) % 4]), "Stale");
        rank.check("m3", 3);
    }
    // Two ranks are killed: what they had open counts no more, and what they had is gone.
    ranks.remove(3).kill();
    ranks.remove(2).kill();
    for rank in &mut ranks {
        rank.check("m3", 3);
        rank.fails(&format!("open {} -> n", regions[3]), "ProducerGone");
        for seed in 0..4 {
            rank.ok(&format!("close m{seed}"));
        }
        rank.ok("evict");
    }
    for (index, rank) in ranks.iter_mut().enumerate() {
        assert_eq!(rank.ok("drain 5000"), "0");
        let address = &addresses[index];
        assert_eq!(rank.ok(&format!("reused p {SIZE} {address} 600")), "yes");
        // A rank closes the connections of killed ranks when it sees their end.
        let mut patience = Patience::new(Duration::from_secs(10));
        while ProcessSnapshot::of(rank).fds != clean[index].fds && patience.sleep() {}
        assert_eq!(ProcessSnapshot::of(rank).fds, clean[index].fds);
    }
    // The next process of this boot removes what the killed ones have left.
    assert_eq!(files(&folder).len(), 8);
    let mut next = with(folder.path(), rule()).start();
    next.ok("pool p shared");
    block(&mut next, "b", 1);
    assert_eq!(files(&folder).len(), 6);
    drop((next, ranks));
}

/// A first contact that fails says `ProducerGone` if the lock of the producer's name is free.
#[test]
fn importer_without_connection_knows_that_the_producer_ended() {
    const TEST: &str = "importer_without_connection_knows_that_the_producer_ended";
    let folder = directory(0o700);
    let Some(mut producer) = in_container(TEST, folder.path(), rule()) else { return };
    producer.ok("pool p shared");
    let handle = block(&mut producer, "b", 1);
    producer.kill();
    let Some(mut importer) = in_container(TEST, folder.path(), rule()) else { return };
    importer.fails(&format!("open {handle} -> m"), "ProducerGone");
    // After the left-overs were removed, nothing shows whether it was this directory.
    importer.ok("pool p shared");
    block(&mut importer, "b", 1);
    let message = importer.fails(&format!("open {handle} -> m"), "NotPermitted");
    assert!(message.contains("has no socket in") && message.contains("remedy: mount"), "{message}");
}

#[test]
fn each_cause_of_refusal_is_named() {
    const TEST: &str = "each_cause_of_refusal_is_named";
    let folder = directory(0o700);
    let other = directory(0o700);
    let Some(mut producer) = in_container(TEST, folder.path(), rule()) else { return };
    producer.ok("pool p shared");
    let handle = block(&mut producer, "b", 1);
    let file = folder.path().join("file");
    std::fs::write(&file, "").unwrap();
    let open = directory(0o777);
    for (path, reason) in [
        (folder.path().join("missing"), "it does not exist here"),
        (file, "it is no directory"),
        (open.path().to_owned(), "its mode is 0777"),
        (other.path().to_owned(), "the producer has no socket in"),
        ("".into(), "this process has no directory set"),
    ] {
        let Some(mut importer) = in_container(TEST, &path, rule()) else { return };
        let message = importer.fails(&format!("open {handle} -> m"), "NotPermitted");
        assert!(message.contains(" directory: ") && message.contains(reason), "{reason}: {message}");
        assert!(message.contains("UMF_IPC_DIR") || message.contains("chmod 1777"), "{message}");
    }
    // The producer is told as well, at its first export.
    let mut unsuitable = with(open.path(), rule()).start();
    unsuitable.ok("pool p shared");
    unsuitable.ok(&format!("alloc p {SIZE} -> p.b"));
    let message = unsuitable.fails("handle p.b", "Directory");
    assert!(message.contains("chmod 1777"), "{message}");
    // A producer without a directory.
    let Some(mut producer) = machine::in_namespaces(TEST, spawn!(), container()) else { return };
    producer.ok("pool p shared");
    let handle = block(&mut producer, "b", 1);
    let Some(mut importer) = in_container(TEST, folder.path(), rule()) else { return };
    let message = importer.fails(&format!("open {handle} -> m"), "NotPermitted");
    assert!(message.contains("the producer does not answer in a directory"), "{message}");
    let mut producer = spawn!().env("UMF_IPC_EXCHANGE", "directory").start();
    producer.ok("pool p shared");
    producer.ok(&format!("alloc p {SIZE} -> p.b"));
    producer.fails("handle p.b", "NoDirectory");
}

/// In two user namespaces, no user has a number: only the key shows which process may.
#[test]
fn key_of_the_handle_is_proven_in_both_directions() {
    const TEST: &str = "key_of_the_handle_is_proven_in_both_directions";
    let flags = container() | libc::CLONE_NEWUSER;
    let folder = directory(0o1777);
    let start = |allow: &str| machine::in_namespaces(TEST, with(folder.path(), allow), flags);
    let Some(mut producer) = start("handle") else { return };
    producer.ok("pool p shared");
    let handle = block(&mut producer, "b", 5);
    let mut importer = start("handle").unwrap();
    importer.ok(&format!("open {handle} -> m"));
    importer.check("m", 5);
    // A handle with another key: the producer does not prove that one.
    let forged = forge::with(&handle, field::KEY, 1);
    let mut stranger = start("handle").unwrap();
    let message = stranger.fails(&format!("open {forged} -> m"), "NotPermitted");
    assert!(message.contains("does not have the key of the handle"), "{message}");
    // Each side's rule refuses.
    let mut strict = start("same-user").unwrap();
    let message = strict.fails(&format!("open {handle} -> m"), "NotPermitted");
    assert!(
        message.contains("has no number for the user") && message.contains("UMF_IPC_ALLOW=handle"),
        "{message}"
    );
    let mut strict = start("same-user").unwrap();
    strict.ok("pool p shared");
    let of_strict = block(&mut strict, "b", 6);
    // A socket with the mode 0600 would refuse another user earlier; here the user is the same.
    let message = importer.fails(&format!("open {of_strict} -> n"), "NotPermitted");
    assert!(message.contains("serves its own user only"), "{message}");
    drop((producer, strict));
}

/// A process that has taken the name of a killed producer learns neither the key nor the request.
#[test]
fn squatter_on_a_name_learns_nothing() {
    let folder = directory(0o700);
    let mut producer = with(folder.path(), "handle").env("UMF_IPC_EXCHANGE", "directory").start();
    producer.ok("pool p shared");
    let handle = block(&mut producer, "b", 5);
    let name = files(&folder).into_iter().find(|name| !name.contains('.')).unwrap();
    let socket = folder.path().join(&name);
    std::fs::remove_file(&socket).unwrap();
    let squatter = Squatter::bind(&socket);
    let mut importer = with(folder.path(), "handle").env("UMF_IPC_EXCHANGE", "directory").start();
    importer.send(&format!("open {handle} -> m"));
    let received = squatter.answer();
    let failure = importer.answer(Duration::from_secs(10)).unwrap_err();
    assert!(failure.message.contains("does not have the key of the handle"), "{failure}");
    let key = &handle.to_bytes()[field::KEY];
    assert_eq!(received.len(), 40, "the hello alone");
    assert!(!received.windows(16).any(|bytes| bytes == key), "the key was sent");
    // The next attempt goes on.
    let mut other = with(folder.path(), "handle").start();
    other.ok("pool p shared");
    let handle = block(&mut other, "b", 6);
    importer.ok(&format!("open {handle} -> m"));
    importer.check("m", 6);
}

/// The error names what became of a socket: removed, replaced by another file, or taken by a process
/// that does not answer after the producer has ended.
#[test]
fn lost_socket_is_named_as_the_cause() {
    let folder = directory(0o700);
    let directory_only = |spawn: Spawn| spawn.env("UMF_IPC_EXCHANGE", "directory");
    let mut producer = directory_only(with(folder.path(), "same-user")).start();
    producer.ok("pool p shared");
    let handle = block(&mut producer, "b", 5);
    let name = files(&folder).into_iter().find(|name| !name.contains('.')).unwrap();
    let socket = folder.path().join(&name);
    let mut importer = directory_only(with(folder.path(), "same-user")).start();
    let mut expect = |cause: &str| {
        let message = importer.fails(&format!("open {handle} -> m"), "NotPermitted");
        assert!(message.contains(cause), "{message}");
    };
    std::fs::remove_file(&socket).unwrap();
    expect("another program has removed or renamed it");
    std::fs::write(&socket, "").unwrap();
    expect("another program has replaced the socket");
    std::fs::remove_file(&socket).unwrap();
    let _other = std::os::unix::net::UnixListener::bind(&socket).unwrap();
    expect("another program has replaced the socket");
    producer.finish();
    assert!(files(&folder).is_empty(), "{:?}", files(&folder));

    // In containers nothing but the lock shows that the producer has ended.
    const TEST: &str = "lost_socket_is_named_as_the_cause";
    let Some(mut producer) = in_container(TEST, folder.path(), rule()) else { return };
    producer.ok("pool p shared");
    let handle = block(&mut producer, "b", 5);
    let Some(mut importer) = in_container(TEST, folder.path(), rule()) else { return };
    importer.ok("importer");
    let name = files(&folder).into_iter().find(|name| !name.contains('.')).unwrap();
    producer.kill();
    std::fs::remove_file(folder.path().join(&name)).unwrap();
    let _silent = Squatter::bind(&folder.path().join(&name));
    importer.fails(&format!("open {handle} -> m"), "ProducerGone");
}

/// A socket that another process has bound at the name of a producer.
struct Squatter(std::os::fd::OwnedFd);

impl Squatter {
    fn bind(path: &Path) -> Self {
        use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
        // SAFETY: numbers only.
        let socket = unsafe { libc::socket(libc::AF_UNIX, libc::SOCK_SEQPACKET | libc::SOCK_CLOEXEC, 0) };
        assert!(socket >= 0);
        // SAFETY: the fd is new, and owned here alone.
        let socket = unsafe { OwnedFd::from_raw_fd(socket) };
        // SAFETY: zeroes are a value of this plain structure.
        let mut address: libc::sockaddr_un = unsafe { std::mem::zeroed() };
        address.sun_family = libc::AF_UNIX as u16;
        for (place, byte) in address.sun_path.iter_mut().zip(path.to_str().unwrap().bytes()) {
            *place = byte.cast_signed();
        }
        let length = u32::try_from(size_of::<libc::sockaddr_un>()).unwrap();
        // SAFETY: the structure is valid for `length` bytes.
        assert_eq!(unsafe { libc::bind(socket.as_raw_fd(), (&raw const address).cast(), length) }, 0);
        // SAFETY: numbers only.
        assert_eq!(unsafe { libc::listen(socket.as_raw_fd(), 8) }, 0);
        Self(socket)
    }

    /// Answers the first packet of one client with 40 bytes, and returns all that the client sends.
    fn answer(self) -> Vec<u8> {
        use std::os::fd::{AsRawFd, FromRawFd};
        // SAFETY: the socket listens; the accepted fd is owned by the stream alone.
        let mut client = unsafe {
            let accepted = libc::accept(self.0.as_raw_fd(), std::ptr::null_mut(), std::ptr::null_mut());
            assert!(accepted >= 0);
            std::fs::File::from_raw_fd(accepted)
        };
        let mut bytes = vec![0; 100];
        let length = client.read(&mut bytes).unwrap();
        bytes.truncate(length);
        let mut answer = bytes.clone();
        answer[6] = 2;
        std::io::Write::write_all(&mut client, &answer).unwrap();
        client.read_to_end(&mut bytes).unwrap();
        bytes
    }
}

/// Users of a group, and users that the directory alone lets in.
#[test]
fn rule_decides_about_other_users() {
    const TEST: &str = "rule_decides_about_other_users";
    if !machine::is_root() {
        return machine::skip(TEST, "changing the user needs root");
    }
    let folder = directory(0o1777);
    let as_member = |allow: &str, uid: u32, gid: u32| {
        let mut actor = with(folder.path(), allow).env("UMF_IPC_EXCHANGE", "directory").start();
        actor.ok(&format!("setuid {uid} {gid}"));
        actor.ok("dumpable 1");
        actor
    };
    let as_user = |allow: &str, uid: u32| as_member(allow, uid, uid);
    for (allow, gid, works) in [
        ("same-user", 65533, false),
        ("group", 65533, true),
        ("group", 65534, false),
        ("handle", 65534, true),
    ] {
        let mut producer = as_member(allow, 65533, 65533);
        producer.ok("pool p shared");
        let handle = block(&mut producer, "b", 5);
        let mut importer = as_member(allow, 65534, gid);
        if works {
            importer.ok(&format!("open {handle} -> m"));
            importer.check("m", 5);
        } else {
            let message = importer.fails(&format!("open {handle} -> m"), "NotPermitted");
            assert!(message.contains("belongs to another user than uid 65534"), "{message}");
        }
        drop(producer);
    }
    // Left-overs of another user in a sticky directory stay until that user, or root, removes them.
    let mut producer = as_user("handle", 65533);
    producer.ok("pool p shared");
    block(&mut producer, "b", 5);
    producer.kill();
    let count = files(&folder).len();
    let mut other = as_user("handle", 65532);
    other.ok("pool p shared");
    block(&mut other, "b", 5);
    assert_eq!(files(&folder).len(), count + 2);
    let mut root = with(folder.path(), "handle").start();
    root.ok("pool p shared");
    block(&mut root, "b", 5);
    assert_eq!(files(&folder).len(), 4, "those of the two that run");
}

/// Producers that were killed leave nothing to the next start.
#[test]
fn leftovers_of_killed_producers_are_removed_by_the_next() {
    let folder = directory(0o700);
    let count = if machine::is_long() { 10_000 } else { 60 };
    let mut killed = Vec::new();
    for index in 0..count {
        let mut producer = with(folder.path(), "same-user").start();
        producer.ok("pool p shared");
        block(&mut producer, "b", 1);
        if index % 2 == 0 {
            killed.push(producer);
        } else {
            producer.kill();
        }
        if killed.len() == 30 {
            killed.drain(..).for_each(|mut producer| producer.kill());
        }
    }
    killed.drain(..).for_each(|mut producer| producer.kill());
    assert!(!files(&folder).is_empty());
    let mut next = with(folder.path(), "same-user").start();
    next.ok("pool p shared");
    block(&mut next, "b", 1);
    assert_eq!(files(&folder).len(), 2);
    // A process that ends by itself removes its own.
    next.finish();
    assert!(files(&folder).is_empty());
}

/// A full table of descriptors, and a directory that became unsuitable, fail the export or the open
/// alone.
#[test]
fn producer_without_descriptors_leaves_nothing_in_the_directory() {
    let folder = directory(0o700);
    let mut producer = with(folder.path(), "same-user").start();
    producer.ok("pool p shared");
    producer.ok(&format!("alloc p {SIZE} -> p.b"));
    for left in 0..8 {
        producer.ok(&format!("take-fds {left}"));
        let failed = producer.ask("handle p.b");
        producer.ok("give-fds-back");
        if failed.is_ok() {
            break;
        }
        assert!(files(&folder).is_empty(), "{left} descriptors: {:?}", files(&folder));
    }
    let handle = producer.handle("handle p.b");
    assert_eq!(files(&folder).len(), 2);
    let mut importer = with(folder.path(), "same-user").env("UMF_IPC_EXCHANGE", "directory").start();
    let clean = ProcessSnapshot::of(&importer);
    for left in 0..8 {
        importer.ok(&format!("take-fds {left}"));
        let opened = importer.ask(&format!("open {handle} -> m"));
        importer.ok("give-fds-back");
        if opened.is_ok() {
            importer.ok("close m");
            break;
        }
    }
    importer.ok("evict");
    clean.assert_restored(&importer);
    producer.finish();
}

/// A mapping on an overlay file system does not keep the lock: such a directory is refused, because
/// other processes would remove the sockets of processes that run.
#[test]
fn directory_that_keeps_no_locks_is_refused() {
    const TEST: &str = "directory_that_keeps_no_locks_is_refused";
    if !machine::is_root() {
        return machine::skip(TEST, "mounting needs root");
    }
    let folder = directory(0o700);
    let path = |name: &str| folder.path().join(name);
    for name in ["lower", "upper", "work", "merged"] {
        std::fs::create_dir(path(name)).unwrap();
        std::fs::set_permissions(path(name), PermissionsExt::from_mode(0o700)).unwrap();
    }
    let merged = path("merged");
    let start = with(&merged, "same-user");
    let Some(mut producer) = machine::in_namespaces(TEST, start, libc::CLONE_NEWNS) else { return };
    let options = format!(
        "lowerdir={},upperdir={},workdir={}",
        path("lower").display(),
        path("upper").display(),
        path("work").display()
    );
    if let Err(failure) = producer.ask(&format!("mount overlay {} {options}", merged.display())) {
        return machine::skip(TEST, &format!("no overlay file system: {failure}"));
    }
    producer.ok("pool p shared");
    producer.ok(&format!("alloc p {SIZE} -> p.b"));
    let message = producer.fails("handle p.b", "Directory");
    assert!(message.contains("use tmpfs or a local file system"), "{message}");
    producer.finish();
    assert_eq!(std::fs::read_dir(path("upper")).unwrap().count(), 0);
}

/// The driver of NVIDIA's dynamic resource allocation names a directory that was not made for umf.
#[test]
fn directory_of_dra_is_used_if_it_is_suitable() {
    // The last one may not be written; root may write to any.
    for (mode, is_used) in [(0o1777, true), (0o777, false), (0o555, machine::is_root())] {
        let folder = directory(mode);
        let path = folder.path().to_str().unwrap();
        let mut producer = spawn!().env("NVIDIA_DRA_LOCAL_IPC_DIR", path).start();
        producer.ok("pool p shared");
        assert_eq!(block(&mut producer, "b", 1).is_in_directory(), is_used);
        assert_eq!(files(&folder).is_empty(), !is_used);
        let other = directory(0o700);
        let mut producer = with(other.path(), "same-user").env("NVIDIA_DRA_LOCAL_IPC_DIR", path).start();
        producer.ok("pool p shared");
        block(&mut producer, "b", 1);
        assert_eq!(files(&other).len(), 2, "UMF_IPC_DIR is the one that counts");
    }
}

/// A directory in which names can be made, and not listed.
#[test]
fn directory_that_cannot_be_listed_works() {
    const TEST: &str = "directory_that_cannot_be_listed_works";
    if !machine::is_root() {
        return machine::skip(TEST, "changing the user needs root");
    }
    let folder = directory(0o1733);
    let start = || {
        let mut actor = with(folder.path(), "same-user").env("UMF_IPC_EXCHANGE", "directory").start();
        actor.ok("setuid 12345 12345");
        actor.ok("dumpable 1");
        actor
    };
    let (mut one, mut other) = (start(), start());
    one.ok("pool p shared");
    let handle = block(&mut one, "b", 5);
    other.ok(&format!("open {handle} -> m"));
    other.check("m", 5);
    // A domain, and a link.
    let domain = name("unlisted");
    one.ok(&format!("join {domain}"));
    let number = one.ok(&format!("create {domain} 4096 1 -> o"));
    other.ok(&format!("join {domain}"));
    other.ok(&format!("register {domain} {number} 1 -> o"));
    let address = one.ok("link-bind end");
    one.send("link-accept end 30000 -> link");
    other.ok(&format!("link-connect {address} 30000 -> link"));
    one.answer(Duration::from_secs(60)).unwrap();
    one.finish();
    other.finish();
    assert!(files(&folder).is_empty(), "{:?}", files(&folder));
}

/// `umf ps`, `top` and `why` see producers in other containers over the directory.
#[test]
fn inspection_finds_producers_of_other_containers() {
    const TEST: &str = "inspection_finds_producers_of_other_containers";
    let folder = directory(0o700);
    let Some(mut producer) = in_container(TEST, folder.path(), rule()) else { return };
    producer.ok("pool p shared");
    let handle = block(&mut producer, "b", 1);
    let directory = Directory::new(folder.path());
    let mut search = Search::default();
    search.add_directory(&directory).unwrap();
    if !machine::is_root() {
        // Its user namespace has no number for this user.
        assert_eq!((search.silent, search.found.len()), (1, 0));
        return machine::skip(TEST, "the socket needs to know users");
    }
    assert_eq!((search.silent, search.found.len()), (0, 1));
    let found = search.by_nonce(handle.nonce()).unwrap();
    assert_eq!(found.owner, OwnerStatus::Elsewhere { pid: 1 });
    assert_eq!(found.ledger.slots().filter(|slot| slot.generation & 1 == 1).count(), 2);
    // A stopped one does not hold up the others.
    producer.signal(libc::SIGSTOP);
    let mut other = with(folder.path(), rule()).start();
    other.ok("pool p shared");
    block(&mut other, "b", 1);
    let mut search = Search::default();
    search.add_directory(&directory).unwrap();
    assert_eq!((search.silent, search.found.len()), (1, 1));
    let run = |mut command: std::process::Command, arguments: &[&str]| {
        let output = command::finished(command.args(arguments).env("UMF_IPC_DIR", folder.path()));
        assert_eq!(output.code, Some(0), "{output:?}");
        output.out
    };
    // In another pid namespace, `umf ps` knows them from the directory alone.
    let mut elsewhere = std::process::Command::new("unshare");
    elsewhere.args(["--pid", "--fork", "--mount-proc"]).arg(command::umf().get_program());
    let table = run(elsewhere, &["ps"]);
    assert!(table.contains("elsewhere"), "{table}");
    assert!(table.contains("1 producer in the directory did not answer"), "{table}");
    assert!(run(command::umf(), &["ps", "--json"]).contains("\"silent\": 0"), "both are in /proc here");
    producer.signal(libc::SIGCONT);
    producer.kill();
    let count = files(&folder).len();
    let dry = run(command::umf(), &["gc", "--dry-run"]);
    assert!(dry.contains("sockets of 1 ended processes would be removed, 1 of running processes"), "{dry}");
    assert_eq!(files(&folder).len(), count);
    let left = umf::ipc::rendezvous::remove_leftovers(&directory).unwrap();
    assert_eq!((left.removed, left.alive), (1, 1));
}
