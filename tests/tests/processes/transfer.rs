//! Exchange of fds: modes and their order, hostile clients of the socket, timeouts, forks.

#![allow(clippy::unwrap_used, reason = "a test that cannot continue ends")]

use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use umf::host::HostImport;
use umf::ipc::Nonce;
use umf::ipc::fd_socket::{Answer, Deadline, Request, receive};
use umf::ipc::inspect::OwnerStatus;
use umf::{Exchange, Handle, Importer};
use umf_testkit::SetOnDrop;
use umf_tests::{Actor, ProcessSnapshot, spawn};

fn in_mode(mode: &str) -> Actor {
    spawn!().env("UMF_IPC_EXCHANGE", mode).start()
}

fn blocks(producer: &mut Actor, count: u64) -> Vec<Handle> {
    producer.ok("pool p isolated");
    (1..=count)
        .map(|seed| {
            producer.ok(&format!("alloc p 4096 -> p.b{seed}"));
            producer.ok(&format!("fill p.b{seed} {seed}"));
            producer.handle(&format!("handle p.b{seed}"))
        })
        .collect()
}

fn assert_opens(importer: &mut Actor, handles: &[Handle]) {
    for (handle, seed) in handles.iter().zip(1..) {
        importer.ok(&format!("open {handle} -> m"));
        importer.check("m", seed);
        importer.ok("close m");
    }
}

#[test]
fn each_mode_and_order_works_and_leaks_nothing() {
    for mode in ["auto", "pidfd", "procfs", "socket", "socket,pidfd", "procfs,pidfd", "pidfd,procfs,socket"] {
        let mut producer = in_mode(mode);
        let handles = blocks(&mut producer, 3);
        // A dumpable producer has a thread and a socket only if the mode contains the socket.
        let served = mode.contains("socket");
        let snapshot = ProcessSnapshot::of(&producer);
        assert_eq!(
            (snapshot.threads, snapshot.sockets.len()),
            (1 + usize::from(served), usize::from(served))
        );
        let mut importer = in_mode(mode);
        let clean = ProcessSnapshot::of(&importer);
        assert_opens(&mut importer, &handles);
        importer.ok("evict");
        clean.assert_restored(&importer);
        importer.finish();
        producer.finish();
    }
}

/// oneCCL #213: the chosen exchange mode was silently replaced. Here it is used or refused.
#[test]
fn explicit_mode_is_used_or_refused() {
    let mut producer = in_mode("pidfd");
    let handles = blocks(&mut producer, 1);
    assert!(!handles[0].is_served());
    // The importer permits the socket only. The mode pidfd would work, and is not used.
    let mut importer = in_mode("socket");
    let message = importer.fails(&format!("open {} -> m", handles[0]), "NotPermitted");
    assert!(message.contains("does not answer on an abstract socket"), "{message}");
    assert!(!message.contains("pidfd:") && !message.contains("procfs:"), "{message}");
    // An importer that permits pidfd only does not connect to the producer's socket.
    let mut producer = in_mode("socket");
    let handles = blocks(&mut producer, 1);
    let mut importer = in_mode("pidfd");
    importer.ok(&format!("open {} -> m", handles[0]));
    assert_eq!(ProcessSnapshot::of(&importer).fds.get("socket"), None);
    let mut importer = in_mode("socket");
    importer.ok(&format!("open {} -> m", handles[0]));
    assert_eq!(ProcessSnapshot::of(&importer).fds.get("socket"), Some(&1));
}

/// Connects to the abstract socket of this name.
fn connect(name: &str, wait: bool) -> io::Result<OwnedFd> {
    let kind = libc::SOCK_SEQPACKET | libc::SOCK_CLOEXEC | if wait { 0 } else { libc::SOCK_NONBLOCK };
    // SAFETY: numbers only.
    let socket = unsafe { libc::socket(libc::AF_UNIX, kind, 0) };
    if socket < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the fd is new, and owned here alone.
    let socket = unsafe { OwnedFd::from_raw_fd(socket) };
    // SAFETY: zeroes are a value of this plain structure.
    let mut address: libc::sockaddr_un = unsafe { std::mem::zeroed() };
    address.sun_family = libc::AF_UNIX as u16;
    for (place, byte) in address.sun_path[1..].iter_mut().zip(name.bytes()) {
        *place = byte.cast_signed();
    }
    let length = size_of::<libc::sa_family_t>() + 1 + name.len();
    // SAFETY: the structure is valid for `length` bytes.
    let connected = unsafe {
        libc::connect(socket.as_raw_fd(), (&raw const address).cast(), u32::try_from(length).unwrap())
    };
    if connected == 0 { Ok(socket) } else { Err(io::Error::last_os_error()) }
}

fn send(socket: &OwnedFd, bytes: &[u8]) -> isize {
    let flags = libc::MSG_NOSIGNAL | libc::MSG_DONTWAIT;
    // SAFETY: the bytes are valid for their length.
    unsafe { libc::send(socket.as_raw_fd(), bytes.as_ptr().cast(), bytes.len(), flags) }
}

/// Encodes a request for the ledger of the producer with this nonce.
fn request(nonce: Nonce) -> Vec<u8> {
    Request::Ledger.encode(nonce).to_vec()
}

/// Sends bytes together with an fd.
fn send_with_fd(socket: &OwnedFd, bytes: &[u8], fd: i32) {
    let mut part = libc::iovec { iov_base: bytes.as_ptr().cast_mut().cast(), iov_len: bytes.len() };
    let mut control = [0_u64; 4];
    // SAFETY: zeroes are a value of this plain structure.
    let mut message: libc::msghdr = unsafe { std::mem::zeroed() };
    message.msg_iov = &raw mut part;
    message.msg_iovlen = 1;
    message.msg_control = control.as_mut_ptr().cast();
    // SAFETY: computes a number.
    message.msg_controllen = unsafe { libc::CMSG_SPACE(4) } as usize;
    // SAFETY: the control buffer has room for one header and one fd, and is aligned for it.
    unsafe {
        let header = libc::CMSG_FIRSTHDR(&raw const message);
        (*header).cmsg_level = libc::SOL_SOCKET;
        (*header).cmsg_type = libc::SCM_RIGHTS;
        (*header).cmsg_len = libc::CMSG_LEN(4) as usize;
        libc::CMSG_DATA(header).cast::<i32>().write_unaligned(fd);
        libc::sendmsg(socket.as_raw_fd(), &raw const message, libc::MSG_NOSIGNAL | libc::MSG_DONTWAIT);
    }
}

#[test]
fn hostile_peers_do_not_block_other_clients() {
    let mut producer = in_mode("socket");
    let handles = blocks(&mut producer, 3);
    let name = producer.ok("nonce");
    let name = name.split(' ').next().unwrap();
    let nonce = handles[0].nonce();
    let assert_served = |event: &str| {
        let mut importer = in_mode("socket");
        assert_opens(&mut importer, &handles);
        eprintln!("served after {event}");
        importer.finish();
    };
    let quiet = ProcessSnapshot::of(&producer);
    assert_served("nothing");

    for garbage in [&b""[..], b"x", &[0xFF; 39], &[0xFF; 40], &[0; 41], &[7; 60_000]] {
        let socket = connect(name, true).unwrap();
        send(&socket, garbage);
    }
    send(&connect(name, true).unwrap(), &request(Nonce::from_bytes([1; 16])));
    assert_served("garbage");

    // Requests whose answers, each with an fd, the client does not read.
    let socket = connect(name, true).unwrap();
    assert!(send(&socket, &request(nonce)) > 0);
    assert!(matches!(receive(&socket, Deadline::after(Duration::from_secs(30))), Ok(Answer::Fd { .. })));
    let sent = (0..100_000).take_while(|_| send(&socket, &request(nonce)) > 0).count();
    eprintln!("{sent} requests without reading an answer");
    assert_served("a peer that does not read");
    drop(socket);

    // The producer closes unexpected fds.
    let socket = connect(name, true).unwrap();
    for _ in 0..50 {
        send_with_fd(&socket, &request(nonce), 2);
    }
    assert_served("fds");
    drop(socket);

    // 1000 idle connections at a time, far above the producer's limit.
    let mut flood: Vec<OwnedFd> = Vec::new();
    while flood.len() < 1000 {
        match connect(name, false) {
            Ok(socket) => flood.push(socket),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => std::thread::yield_now(),
            Err(error) => panic!("{error}"),
        }
    }
    assert_served("1000 connections");
    assert!(ProcessSnapshot::of(&producer).fd_count() < quiet.fd_count() + 300, "connections are bounded");
    drop(flood);
    for _ in 0..3000 {
        drop(connect(name, true));
    }
    assert_served("3000 short connections");

    // The producer has closed all connections.
    quiet.assert_restored(&producer);
    producer.finish();
    assert!(!ProcessSnapshot::is_bound(name));
}

/// A client that sends a second request before it reads its answer is disconnected. Fds in unread
/// answers count against a limit of the producer's user, from which root is exempt. The test can
/// therefore fail in `tests/unprivileged` only.
#[test]
fn clients_that_read_no_answer_do_not_starve_other_clients() {
    let mut producer = in_mode("socket");
    let handles = blocks(&mut producer, 3);
    let name = producer.ok("nonce");
    let name = name.split(' ').next().unwrap();
    let request = request(handles[0].nonce());
    let end = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let _ends = SetOnDrop(&end);
        scope.spawn(|| {
            let mut open = std::collections::VecDeque::new();
            while !end.load(Ordering::Relaxed) {
                let Ok(socket) = connect(name, true) else { continue };
                while send(&socket, &request) > 0 {}
                open.push_back(socket);
                if open.len() > 64 {
                    open.pop_front();
                }
            }
        });
        for _ in 0..5 {
            let mut importer = in_mode("socket");
            assert_opens(&mut importer, &handles);
            importer.finish();
        }
    });
    producer.finish();
}

/// If the main thread of a process has exited (`pthread_exit(3)`), `/proc/<pid>/fd` is empty and
/// belongs to root, and `pidfd_getfd` fails, although other threads run.
#[test]
fn producer_without_main_thread_is_opened_and_listed() {
    for mode in ["auto", "procfs", "socket"] {
        let mut producer =
            spawn!().env("UMF_IPC_EXCHANGE", mode).env("UMF_TEST_MAIN_THREAD", "exits").start();
        let handles = blocks(&mut producer, 2);
        let fds = format!("/proc/{}/fd", producer.pid());
        while std::fs::read_dir(&fds).is_ok_and(|entries| entries.count() != 0) {
            std::thread::yield_now();
        }
        let mut importer = in_mode(mode);
        assert_opens(&mut importer, &handles);
        let found = umf::ipc::inspect::find().unwrap();
        let is_listed = found.by_nonce(handles[0].nonce()).is_some_and(|found| {
            found.owner == OwnerStatus::Alive { pid: producer.pid() }
                && found.holders.contains(&producer.pid())
        });
        assert!(is_listed, "mode {mode}: {found:?}");
        let message = in_mode("pidfd").fails(&format!("open {} -> m", handles[0]), "NotPermitted");
        assert!(message.contains("main thread has exited"), "{message}");
        producer.ok("free p p.b1");
        importer.fails(&format!("open {} -> m", handles[0]), "Stale");
        producer.kill();
        // A cached region needs no producer, so the cache is evicted first.
        importer.ok("evict");
        importer.fails(&format!("open {} -> m", handles[1]), "ProducerGone");
    }
}

/// A producer without free fds still answers, as sending an fd needs no new one.
#[test]
fn producer_without_fds_serves_existing_connection() {
    let mut producer = in_mode("socket");
    let handles = blocks(&mut producer, 3);
    let mut importer = in_mode("socket");
    importer.ok(&format!("open {} -> m", handles[0]));
    producer.ok("take-fds 0");
    importer.ok(&format!("open {} -> m2", handles[1]));
    importer.check("m2", 2);
    // A further importer replaces the oldest connection.
    let mut another = in_mode("socket");
    another.ok(&format!("open {} -> m", handles[2]));
    another.check("m", 3);
    importer.ok(&format!("open {} -> m3", handles[2]));
    importer.check("m3", 3);
    producer.ok("give-fds-back");
    producer.finish();
}

/// Asserts that an open fails as `TimedOut`, after the timeout and at most a second later.
fn assert_times_out(importer: &mut Actor, handle: &Handle) {
    let begun = Instant::now();
    importer.fails(&format!("open {handle} -> n"), "TimedOut");
    let took = begun.elapsed();
    assert!(took >= Duration::from_millis(390) && took < Duration::from_millis(1400), "{took:?}");
}

/// The timeout covers the whole open. Signals that interrupt system calls do not restart it, while
/// the importer waits for an answer or for a slot in the listen queue.
#[test]
fn signals_do_not_extend_open_timeout() {
    let mut producer = in_mode("socket");
    let handles = blocks(&mut producer, 2);
    let name = producer.ok("nonce");
    let name = name.split(' ').next().unwrap();
    let mut importer =
        spawn!().env("UMF_IPC_EXCHANGE", "socket").env("UMF_IPC_OPEN_TIMEOUT_MS", "400").start();
    importer.ok(&format!("open {} -> m", handles[0]));
    importer.ok("timer 20");
    producer.stop();
    // On the existing connection, and on a new one.
    assert_times_out(&mut importer, &handles[1]);
    assert_times_out(&mut importer, &handles[1]);
    let queued: Vec<OwnedFd> = std::iter::from_fn(|| connect(name, false).ok()).take(1000).collect();
    assert!(queued.len() < 1000, "the listen queue has a limit");
    assert_times_out(&mut importer, &handles[1]);
    producer.signal(libc::SIGCONT);
    importer.ok(&format!("open {} -> n", handles[1]));
    importer.check("n", 2);
    importer.finish();
}

/// Threads that open handles of one stopped producer time out in parallel. Reading counters does
/// not wait.
#[test]
fn concurrent_opens_time_out_in_parallel() {
    let mut producer = in_mode("socket");
    let handles = blocks(&mut producer, 6);
    let mut importer =
        spawn!().env("UMF_IPC_EXCHANGE", "socket").env("UMF_IPC_OPEN_TIMEOUT_MS", "400").start();
    importer.ok(&format!("open {} -> m", handles[0]));
    producer.stop();
    let begun = Instant::now();
    for handle in &handles[2..] {
        importer.ok(&format!("background-open {handle}"));
    }
    importer.ok("sleep 100");
    importer.ok("importer");
    assert!(begun.elapsed() < Duration::from_millis(350), "counters took {:?}", begun.elapsed());
    assert_times_out(&mut importer, &handles[1]);
    producer.signal(libc::SIGCONT);
    importer.ok(&format!("open {} -> n", handles[1]));
    importer.check("n", 2);
}

/// A child inherits no connection, even if its parent accepts or closes one during the fork.
#[test]
fn forked_child_inherits_no_connection() {
    let mut producer = in_mode("socket");
    let handles = blocks(&mut producer, 1);
    let name = producer.ok("nonce");
    let name = name.split(' ').next().unwrap();
    let end = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let _ends = SetOnDrop(&end);
        scope.spawn(|| {
            while !end.load(Ordering::Relaxed) {
                drop(connect(name, true));
            }
        });
        for _ in 0..300 {
            let child = producer.fork();
            producer.ok("child ping");
            // The child's command stream, as two fds.
            assert_eq!(ProcessSnapshot::of_pid(child).fds.get("socket"), Some(&2));
            producer.ok("reap");
        }
    });
    assert_opens(&mut in_mode("socket"), &handles);
    producer.finish();
}

#[test]
fn empty_exchange_order_is_an_error() {
    let mut producer = in_mode("auto");
    let handles = blocks(&mut producer, 1);
    let importer = Importer::builder()
        .import(Arc::new(HostImport::new()))
        .exchange(Exchange::Order(Vec::new()))
        .build()
        .unwrap();
    let error = importer.open(&handles[0]).unwrap_err();
    assert!(error.to_string().contains("exchange order is empty"), "{error}");
    assert!(!error.is_final());
}
