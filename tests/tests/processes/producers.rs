//! Producers that end, stop, call exec, or are replaced, and fds of producers that are replaced.

#![allow(clippy::unwrap_used, reason = "a test that cannot continue ends")]
#![allow(clippy::disallowed_methods, reason = "a test reads the environment as it is")]

use std::ffi::CString;
use std::fs::File;
use std::io::Read;
use std::os::fd::{AsRawFd, FromRawFd};
use std::time::{Duration, Instant};

use umf::Handle;
use umf_tests::forge::{self, field};
use umf_tests::{Actor, ProcessSnapshot, machine, spawn};

/// Exchange modes.
const MODES: [&str; 4] = ["auto", "pidfd", "procfs", "socket"];

fn in_mode(mode: &str) -> Actor {
    spawn!().env("UMF_IPC_EXCHANGE", mode).env("UMF_IPC_OPEN_TIMEOUT_MS", "400").start()
}

/// Allocates two blocks with a region and a file each, filled with the seeds 1 and 2.
fn two_blocks(producer: &mut Actor) -> [Handle; 2] {
    producer.ok("pool p isolated");
    [1, 2].map(|seed| {
        producer.ok(&format!("alloc p 8192 -> p.b{seed}"));
        producer.ok(&format!("fill p.b{seed} {seed}"));
        producer.handle(&format!("handle p.b{seed}"))
    })
}

/// Asserts the state after the end of a producer whose first handle the importer has open as `m`:
/// the mapping stays valid, opens fail as `ProducerGone`, and no fd or mapping remains after
/// closing.
fn assert_gone(importer: &mut Actor, handles: &[Handle; 2], clean: &ProcessSnapshot) {
    importer.check("m", 1);
    importer.ok("fill m 9");
    importer.check("m", 9);
    let message = importer.fails(&format!("open {} -> n", handles[1]), "ProducerGone");
    assert!(message.contains("gone") && message.contains("existing mappings stay valid"), "{message}");
    importer.check("m", 9);
    importer.ok("close m");
    importer.ok("evict");
    for handle in handles {
        importer.fails(&format!("open {handle} -> n"), "ProducerGone");
    }
    clean.assert_restored(importer);
}

#[test]
fn exited_or_killed_producer_is_gone() {
    for mode in MODES {
        for how in ["exit", "kill", "zombie"] {
            let mut producer = in_mode(mode);
            let handles = two_blocks(&mut producer);
            let socket = producer.ok("nonce");
            let (socket, served) = socket.split_once(' ').unwrap();
            assert_eq!(served == "true", mode == "socket");
            assert_eq!(ProcessSnapshot::of(&producer).sockets.len(), usize::from(mode == "socket"));
            assert_eq!(ProcessSnapshot::is_bound(socket), mode == "socket");
            let mut importer = in_mode(mode);
            let clean = ProcessSnapshot::of(&importer);
            importer.ok(&format!("open {} -> m", handles[0]));
            importer.check("m", 1);
            let mut kept = None;
            match how {
                "exit" => producer.finish(),
                "kill" => producer.kill(),
                _ => {
                    producer.kill_unreaped();
                    kept = Some(producer);
                }
            }
            assert!(!ProcessSnapshot::is_bound(socket), "mode {mode}, {how}");
            assert_gone(&mut importer, &handles, &clean);
            importer.finish();
            drop(kept);
        }
    }
}

/// To an unprivileged process, `/proc` refuses access to a zombie. The error must still be
/// `ProducerGone`.
#[test]
fn ended_producer_of_unprivileged_user_is_gone() {
    for mode in MODES {
        let start = || {
            let mut actor = in_mode(mode);
            if machine::is_root() {
                actor.ok("setuid 65534");
                actor.ok("dumpable 1");
            }
            actor
        };
        let mut producer = start();
        let handles = two_blocks(&mut producer);
        let mut importer = start();
        let mut late = start();
        let clean = ProcessSnapshot::of(&importer);
        importer.ok(&format!("open {} -> m", handles[0]));
        producer.kill_unreaped();
        late.fails(&format!("open {} -> m", handles[0]), "ProducerGone");
        assert_gone(&mut importer, &handles, &clean);
    }
}

#[test]
fn producer_after_exec_is_gone() {
    for mode in MODES {
        let mut producer = in_mode(mode);
        let clean_producer = ProcessSnapshot::of(&producer);
        let handles = two_blocks(&mut producer);
        let mut importer = in_mode(mode);
        let clean = ProcessSnapshot::of(&importer);
        importer.ok(&format!("open {} -> m", handles[0]));
        producer.ok("exec");
        producer.ok("ping");
        clean_producer.assert_restored(&producer);
        assert_gone(&mut importer, &handles, &clean);
        // The same process is now another producer.
        let again = two_blocks(&mut producer);
        assert_eq!(again[0].pid(), handles[0].pid());
        importer.ok(&format!("open {} -> m", again[0]));
        importer.check("m", 1);
        let variant = if mode == "socket" { "ProducerGone" } else { same_process(&handles[0]) };
        importer.fails(&format!("open {} -> n", handles[0]), variant);
        producer.finish();
        importer.finish();
    }
}

/// Reuses a pid. Start times (10 ms ticks) do not distinguish the processes; the pidfs inode and
/// the nonce in the ledger do.
#[test]
fn reused_pid_of_producer_is_another_process() {
    const TEST: &str = "reused_pid_of_producer_is_another_process";
    if !machine::is_root() {
        return machine::skip(TEST, "choosing a pid needs CAP_CHECKPOINT_RESTORE");
    }
    for mode in MODES {
        for known in [false, true] {
            let mut producer = in_mode(mode);
            let handles = two_blocks(&mut producer);
            let mut importer = in_mode(mode);
            if known {
                importer.ok(&format!("open {} -> m", handles[0]));
            }
            let pid = producer.pid();
            producer.kill();
            let Ok(mut other) = spawn!().env("UMF_IPC_EXCHANGE", mode).pid(pid).try_start() else {
                return machine::skip(TEST, "the pid was taken by another process, or clone3 has no set_tid");
            };
            assert_eq!(other.pid(), pid);
            // The new process does the same, so that its fds have the same numbers.
            let others = two_blocks(&mut other);
            assert_eq!(others[1].data_fd(), handles[1].data_fd());
            let variant = match (known, mode) {
                (true, _) => "ProducerGone",
                // No socket has its nonce, and before Linux 6.9 there is no other evidence.
                (false, "socket") if handles[1].pidfs_inode() == 0 => "ProducerGone",
                (false, _) => "ProducerReplaced",
            };
            let message = importer.fails(&format!("open {} -> n", handles[1]), variant);
            assert!(variant == "ProducerGone" || message.contains("another process"), "{message}");
            if known {
                importer.check("m", 1);
            }
            // Without a pidfs inode, the nonce differs.
            if !known && mode != "socket" {
                let forged = forge::with(&handles[1], field::PIDFS_INODE, 0);
                let message = importer.fails(&format!("open {forged} -> n"), "ProducerReplaced");
                assert!(message.contains("nonce"), "{message}");
            }
            // The new process is a producer like any other.
            importer.ok(&format!("open {} -> n", others[1]));
            importer.check("n", 2);
            importer.finish();
            other.finish();
        }
    }
}

#[test]
fn replaced_data_fd_is_other_object() {
    for mode in ["auto", "pidfd", "procfs"] {
        // A file of another kind, shared memory with the right seals, and no file at all.
        for replacement in ["/dev/null", "/dev/zero", "memfd", "none"] {
            for known in [false, true] {
                let mut producer = in_mode(mode);
                let handles = two_blocks(&mut producer);
                let mut importer = in_mode(mode);
                if known {
                    importer.ok(&format!("open {} -> m", handles[0]));
                }
                let number = handles[1].data_fd().unwrap();
                if replacement == "none" {
                    producer.ok(&format!("close-fd {number}"));
                } else {
                    producer.ok(&format!("replace-fd {number} {replacement}"));
                }
                let message = importer.fails(&format!("open {} -> n", handles[1]), "OtherObject");
                assert!(message.contains(&format!("its fd {number} is not the file")), "{message}");
                // The other export still works.
                if !known {
                    importer.ok(&format!("open {} -> m", handles[0]));
                }
                importer.check("m", 1);
            }
        }
    }
    // Over the socket, the producer sends its fd, and the importer verifies the file.
    let mut producer = in_mode("socket");
    let handles = two_blocks(&mut producer);
    producer.ok(&format!("replace-fd {} memfd", handles[1].data_fd().unwrap()));
    let mut importer = in_mode("socket");
    importer.fails(&format!("open {} -> n", handles[1]), "OtherObject");
    importer.ok(&format!("open {} -> m", handles[0]));
}

/// Returns the error for a producer process whose ledger fd is another file. If pidfds have inodes
/// (Linux 6.9), the importer knows that it is the same process.
fn same_process(handle: &Handle) -> &'static str {
    if handle.pidfs_inode() == 0 { "ProducerReplaced" } else { "ProducerGone" }
}

#[test]
fn replaced_ledger_fd_is_an_error() {
    for (replacement, evidence) in
        [("/dev/null", "its ledger fd is no"), ("memfd", "its ledger fd is not sealed"), ("none", "gone")]
    {
        let mut producer = in_mode("auto");
        let handles = two_blocks(&mut producer);
        let mut importer = in_mode("auto");
        let clean = ProcessSnapshot::of(&importer);
        let number = handles[0].ledger_fd();
        let variant = if replacement == "none" {
            producer.ok(&format!("close-fd {number}"));
            "ProducerGone"
        } else {
            producer.ok(&format!("replace-fd {number} {replacement}"));
            same_process(&handles[0])
        };
        let message = importer.fails(&format!("open {} -> n", handles[0]), variant);
        assert!(variant == "ProducerGone" || message.contains(evidence), "{message}");
        importer.ok("evict");
        // A background thread closes files that are not shared memory.
        clean.assert_restored(&importer);
    }
}

#[test]
fn stopped_producer_times_out_over_socket_only() {
    for mode in MODES {
        let mut producer = in_mode(mode);
        let handles = two_blocks(&mut producer);
        let mut importer = in_mode(mode);
        let clean = ProcessSnapshot::of(&importer);
        producer.stop();
        let begun = Instant::now();
        if mode == "socket" {
            let message = importer.fails(&format!("open {} -> m", handles[0]), "TimedOut");
            assert!(message.contains("400 ms"), "{message}");
            assert!(
                begun.elapsed() >= Duration::from_millis(390) && begun.elapsed() < Duration::from_secs(2)
            );
            importer.ok("evict");
            clean.assert_restored(&importer);
        } else {
            importer.ok(&format!("open {} -> m", handles[0]));
            importer.check("m", 1);
            importer.ok("close m");
        }
        producer.signal(libc::SIGCONT);
        for (handle, seed) in handles.iter().zip([1, 2]) {
            importer.ok(&format!("open {handle} -> m"));
            importer.check("m", seed);
        }
        // The producer stops while the importer is connected.
        producer.ok("alloc p 4096 -> p.b3");
        producer.ok("fill p.b3 3");
        let third = producer.handle("handle p.b3");
        producer.stop();
        if mode == "socket" {
            importer.fails(&format!("open {third} -> n"), "TimedOut");
            // A cached open does not need the producer.
            importer.ok(&format!("open {} -> n", handles[0]));
        }
        producer.signal(libc::SIGCONT);
        importer.ok(&format!("open {third} -> n"));
        importer.check("n", 3);
        importer.finish();
        producer.finish();
    }
}

/// Returns whether the watched file was opened since the last call.
fn was_opened(watch: &mut File) -> bool {
    let mut events = [0; 4096];
    watch.read(&mut events).is_ok_and(|count| count > 0)
}

/// An fd number in a handle may refer to any file. Opening it through `/proc` can have side
/// effects, as for a device or a network file, so that the importer must check the file first.
#[test]
fn unexpected_file_is_not_opened() {
    let path = std::env::temp_dir().join(format!("umf-not-wanted-{}", std::process::id()));
    std::fs::write(&path, [0; 8192]).unwrap();
    let text = path.to_str().unwrap();
    // SAFETY: numbers only.
    let watch = unsafe { libc::inotify_init1(libc::IN_CLOEXEC | libc::IN_NONBLOCK) };
    assert!(watch >= 0, "{}", std::io::Error::last_os_error());
    // SAFETY: the fd is new, and owned here alone.
    let mut watch = unsafe { File::from_raw_fd(watch) };
    let name = CString::new(text).unwrap();
    // SAFETY: the name is a C string.
    let watched = unsafe { libc::inotify_add_watch(watch.as_raw_fd(), name.as_ptr(), libc::IN_OPEN) };
    assert!(watched >= 0, "{}", std::io::Error::last_os_error());
    for ledger in [true, false] {
        let mut producer = in_mode("procfs");
        let handles = two_blocks(&mut producer);
        let variant = if ledger { same_process(&handles[0]) } else { "OtherObject" };
        let number = if ledger { handles[0].ledger_fd() } else { handles[0].data_fd().unwrap() };
        producer.ok(&format!("replace-fd {number} {text}"));
        assert!(was_opened(&mut watch), "the watch reports the open of the producer");
        let mut importer = in_mode("procfs");
        importer.fails(&format!("open {} -> m", handles[0]), variant);
        assert!(!was_opened(&mut watch), "ledger: {ledger}");
    }
    std::fs::remove_file(&path).unwrap();
}
