//! The provider behind a real libfabric, between processes.
//!
//! Each test starts this program again, once for each endpoint, and passes it the addresses of all.
//! `TESTS_LIBFABRIC` names another library than the system's.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on ends")]
#![allow(clippy::disallowed_methods, reason = "a test reads the environment as it is")]

mod queues;
mod ranks;
mod resources;
mod services;
mod waiting;

use std::ffi::c_void;
use std::ptr::{null, null_mut};

use libfabric_sys::*;

use ranks::{
    MEMORY, Rank, begins, contents, find, library, meet, meet_with, process, read_line, role, start, succeeds,
};

#[test]
fn messages_arrive_whole_and_are_counted() {
    const TEST: &str = "messages_arrive_whole_and_are_counted";
    const LENGTHS: [usize; 7] = [0, 8, 300, 1024, 5000, 70_000, 3 << 20];
    let Some(library) = library(TEST) else { return };
    let Some(rank) = role() else {
        let folder = tempfile::tempdir().unwrap();
        start(TEST, &folder).into_iter().for_each(Rank::ends_well);
        let counters: Vec<String> = std::fs::read_dir(folder.path())
            .unwrap()
            .map(|entry| entry.unwrap().path())
            .filter(|path| path.extension().is_some_and(|end| end == "txt"))
            .map(|path| std::fs::read_to_string(path).unwrap())
            .collect();
        // Each process has sent all lengths to the other one, and 3 messages to itself.
        let sum: usize = LENGTHS.iter().sum();
        let sent = format!("sent {} {}", LENGTHS.len() + 4, sum + 3 * 2000 + 10);
        assert_eq!(counters.len(), 2);
        assert!(counters.iter().all(|text| text.lines().any(|line| line == sent)), "{sent}: {counters:?}");
        return;
    };
    let endpoint = meet(&library);
    let (own, other) = (rank as u64, 1 - rank as u64);
    for (tag, length) in (1..).zip(LENGTHS) {
        let mut into = vec![0; length];
        if rank == 0 {
            endpoint.send(other, tag, &contents(length, tag));
        }
        let received = endpoint.receive(other, tag, &mut into);
        assert_eq!((received.length, received.tag, received.flags), (length, tag, FI_RECV | FI_TAGGED));
        assert!(into == contents(length, tag), "{length}");
        if rank == 1 {
            endpoint.send(other, tag, &contents(length, tag));
        }
    }
    // To itself: expected, unexpected, and with a list.
    for number in 0..3_u64 {
        let (bytes, mut into) = (contents(2000, number), vec![0; 2000]);
        if number != 1 {
            endpoint.post(7, own, 99, &mut into);
        }
        // SAFETY: the memory is kept until the completions.
        begins(|| unsafe {
            let base = bytes.as_ptr().cast_mut().cast::<u8>();
            let list = [(base, 500), (base.add(500), 1500)]
                .map(|(base, length)| libc::iovec { iov_base: base.cast(), iov_len: length });
            fi_tsendv(endpoint.endpoint, list.as_ptr(), null_mut(), 2, own, 99, null_mut())
        });
        if number == 1 {
            endpoint.post(7, own, 99, &mut into);
        }
        let ends = [endpoint.next(), endpoint.next()];
        assert!(ends.iter().any(|end| end.context == 7 && end.length == 2000), "{ends:?}");
        assert!(into == bytes);
    }
    // With data for the queue, and without a completion here.
    // SAFETY: the memory is read at once.
    begins(|| unsafe {
        fi_tinjectdata(endpoint.endpoint, b"ten bytes.".as_ptr().cast(), 10, 1 << 40, other, 5)
    });
    let mut into = [0; 64];
    let received = endpoint.receive(other, 5, &mut into);
    assert_eq!((received.length, received.data), (10, 1 << 40));
    assert_eq!(received.flags, FI_RECV | FI_TAGGED | FI_REMOTE_CQ_DATA);
    assert_eq!(endpoint.poll(), None);
    endpoint.close();
}

#[test]
fn probes_claims_cancels_and_cut_messages_are_reported() {
    const TEST: &str = "probes_claims_cancels_and_cut_messages_are_reported";
    let Some(library) = library(TEST) else { return };
    let Some(rank) = role() else {
        return start(TEST, &tempfile::tempdir().unwrap()).into_iter().for_each(Rank::ends_well);
    };
    let endpoint = meet(&library);
    let mut into = [0_u8; 1000];
    if rank == 0 {
        for tag in [10, 11, 12] {
            endpoint.send(1, tag, &contents(600 + tag as usize, tag));
        }
        endpoint.send(1, 13, &contents(100_000, 13));
        endpoint.send(1, 14, &contents(2000, 14));
        // What is received by a message for several, without tags.
        for number in 0..3_u8 {
            // SAFETY: the memory is read at once.
            begins(|| unsafe { fi_inject(endpoint.endpoint, [number; 300].as_ptr().cast(), 300, 1) });
        }
        endpoint.receive(1, 99, &mut into);
        return endpoint.close();
    }
    let message = |context: usize, tag, ignore, iov: &libc::iovec| fi_msg_tagged {
        msg_iov: iov,
        iov_count: 1,
        addr: FI_ADDR_UNSPEC,
        tag,
        ignore,
        context: std::ptr::without_provenance_mut(context),
        ..fi_msg_tagged::ZERO
    };
    let iov = libc::iovec { iov_base: into.as_mut_ptr().cast(), iov_len: into.len() };
    let call = |context, tag, ignore, flags| {
        let message = message(context, tag, ignore, &iov);
        // SAFETY: the memory is kept until the completion.
        succeeds(unsafe { fi_trecvmsg(endpoint.endpoint, &raw const message, flags) as i64 });
        endpoint.next()
    };
    // Nothing has the tag. Then any message, once all short ones have come.
    assert_eq!(call(3, 77, 0, FI_PEEK).error, FI_ENOMSG);
    while call(4, 12, 0, FI_PEEK).error == FI_ENOMSG {}
    let found = call(4, 0, u64::MAX, FI_PEEK);
    assert_eq!((found.context, found.tag, found.length, found.error), (4, 10, 610, 0));
    // It is still there for a claim, and a claimed one is for its claim only.
    assert_eq!(call(5, 10, 0, FI_PEEK | FI_CLAIM).length, 610);
    assert_eq!(call(6, 10, 0, FI_PEEK).error, FI_ENOMSG);
    assert_eq!(call(5, 10, 0, FI_CLAIM).length, 610);
    assert!(into[..610] == contents(610, 10));
    // Discarded at once, and after a claim.
    assert_eq!(call(7, 11, 0, FI_PEEK | FI_DISCARD).length, 611);
    assert_eq!(call(7, 11, 0, FI_PEEK).error, FI_ENOMSG);
    call(8, 12, 0, FI_PEEK | FI_CLAIM);
    assert_eq!(call(8, 12, 0, FI_CLAIM | FI_DISCARD).error, 0);
    // A message that does not fit.
    let mut cut = call(9, 13, 0, 0);
    assert_eq!((cut.error, cut.length, cut.excess, cut.tag), (FI_ETRUNC, 1000, 99_000, 13));
    cut = call(9, 14, 0, 0);
    assert_eq!((cut.error, cut.length, cut.excess, cut.tag), (FI_ETRUNC, 1000, 1000, 14));
    assert!(into == contents(2000, 14)[..1000]);
    // A receive that is cancelled.
    endpoint.post(11, 0, 50, &mut into);
    let context = std::ptr::without_provenance_mut(11);
    // SAFETY: the endpoint is open.
    succeeds(unsafe { fi_cancel(endpoint.endpoint.cast(), context) as i64 });
    cut = endpoint.next();
    assert_eq!((cut.context, cut.error), (11, FI_ECANCELED));
    // SAFETY: the endpoint is open.
    assert_eq!(unsafe { fi_cancel(endpoint.endpoint.cast(), context) }, -(FI_ENOENT as isize));
    // Memory for several messages is given back with the last one.
    let least = 200_usize;
    // SAFETY: the value has the size of the option; the memory is kept.
    unsafe {
        let value = (&raw const least).cast();
        succeeds(fi_setopt(endpoint.endpoint.cast(), FI_OPT_ENDPOINT, FI_OPT_MIN_MULTI_RECV, value, 8));
        let list = fi_msg {
            msg_iov: &raw const iov,
            iov_count: 1,
            addr: FI_ADDR_UNSPEC,
            context: std::ptr::without_provenance_mut(12),
            ..fi_msg::ZERO
        };
        succeeds(fi_recvmsg(endpoint.endpoint, &raw const list, FI_MULTI_RECV) as i64);
    }
    for number in 0..3_u64 {
        let received = endpoint.next();
        let last = if number == 2 { FI_MULTI_RECV } else { 0 };
        assert_eq!((received.length, received.flags), (300, FI_RECV | FI_MSG | last), "{number}");
    }
    assert_eq!([into[0], into[300], into[899]], [0, 1, 2]);
    // A message that has arrived is found by the second look: the first one reads it.
    for tag in [60, 61] {
        // SAFETY: the memory is read at once.
        begins(|| unsafe { fi_tinject(endpoint.endpoint, b"itself".as_ptr().cast(), 6, 1, tag) });
        // The first message makes the link.
        if tag == 61 {
            call(13, tag, 0, FI_PEEK);
            assert_eq!(call(13, tag, 0, FI_PEEK).length, 6);
        }
        assert_eq!(endpoint.receive(1, tag, &mut into).length, 6);
    }
    endpoint.send(0, 99, b"done");
    endpoint.close();
}

#[test]
fn registered_memory_is_read_written_and_changed() {
    const TEST: &str = "registered_memory_is_read_written_and_changed";
    let Some(library) = library(TEST) else { return };
    let Some(rank) = role() else {
        return start(TEST, &tempfile::tempdir().unwrap()).into_iter().for_each(Rank::ends_well);
    };
    let endpoint = meet(&library);
    let mut into = [0_u8; 16];
    if rank == 1 {
        let mut memory = vec![0_u64; 1 << 15];
        memory[100] = 40;
        let (base, length) = (memory.as_mut_ptr(), 8 << 15);
        let mut region = null_mut();
        // SAFETY: the memory is kept until the region is closed, and read when the peer is done.
        unsafe {
            let access = FI_REMOTE_READ | FI_REMOTE_WRITE;
            let domain = endpoint.domain;
            succeeds(fi_mr_reg(domain, base.cast(), length, access, 0, 0, 0, &raw mut region, null_mut()));
            let place = [base.expose_provenance() as u64, (*region).key].map(u64::to_ne_bytes).concat();
            endpoint.send(0, 1, &place);
            // The queue tells of the write with data. Reading it carries out atomic operations.
            let told = endpoint.next();
            assert_eq!((told.data, told.length, told.source), (5, 4000, 0));
            assert_eq!(told.flags, FI_RMA | FI_REMOTE_WRITE | FI_REMOTE_CQ_DATA);
            endpoint.receive(0, 2, &mut into);
            assert_eq!((memory[100], memory[101]), (42, 7));
            assert!(memory[1000..1500].iter().all(|word| *word == 0x0909_0909_0909_0909));
            succeeds(fi_close(region.cast()));
        }
        endpoint.send(0, 3, b"closed");
        // So that the peer is refused by a process that is there.
        endpoint.receive(0, 4, &mut into);
        return endpoint.close();
    }
    endpoint.receive(1, 1, &mut into);
    let [base, key] = [0, 8].map(|at| u64::from_ne_bytes(into[at..at + 8].try_into().unwrap()));
    let context = std::ptr::without_provenance_mut(3);
    let source = vec![9_u8; 4000];
    let mut target = vec![0_u8; 4000];
    let (from, to) = (source.as_ptr().cast::<c_void>(), target.as_mut_ptr().cast::<c_void>());
    let end = |flags| {
        let end = endpoint.next();
        assert_eq!((end.context, end.flags), (3, flags));
        end.error
    };
    // SAFETY: the memory is kept until the completions.
    unsafe {
        let ep = endpoint.endpoint;
        let write = |addr, key| {
            succeeds(fi_write(ep, from, 4000, null_mut(), 1, addr, key, context) as i64);
            end(FI_RMA | FI_WRITE)
        };
        assert_eq!(write(base + 8000, key), 0);
        succeeds(fi_read(ep, to, 4000, null_mut(), 1, base + 8000, key, context) as i64);
        assert_eq!((end(FI_RMA | FI_READ), target == source), (0, true));
        for (addr, key) in [(base + 8 * (1 << 15) - 3999, key), (base - 1, key), (base, key + 1), (base, 0)] {
            assert_ne!(write(addr, key), 0, "{addr:x} {key:x}");
        }
        let (two, seven, forty_two) = (2_u64, 7_u64, 42_u64);
        let (mut old, value) = (0_u64, |value: &u64| core::ptr::from_ref(value).cast::<c_void>());
        let place = (&raw mut old).cast::<c_void>();
        succeeds(fi_fetch_atomic(
            ep,
            value(&two),
            1,
            null_mut(),
            place,
            null_mut(),
            1,
            base + 800,
            key,
            FI_UINT64,
            FI_SUM,
            context,
        ) as i64);
        assert_eq!((end(FI_ATOMIC | FI_READ), old), (0, 40));
        for (compared, expected) in [(&forty_two, 0), (&forty_two, 7)] {
            succeeds(fi_compare_atomic(
                ep,
                value(&seven),
                1,
                null_mut(),
                if expected == 0 { value(&0) } else { value(compared) },
                null_mut(),
                place,
                null_mut(),
                1,
                base + 808,
                key,
                FI_UINT64,
                FI_CSWAP,
                context,
            ) as i64);
            assert_eq!((end(FI_ATOMIC | FI_READ), old), (0, expected));
        }
        let refused = fi_atomic(ep, from, 1, null_mut(), 1, base, key, FI_LONG_DOUBLE, FI_SUM, context);
        assert_eq!(refused, -(FI_EOPNOTSUPP as isize));
        let unaligned =
            fi_atomic(ep, value(&two), 1, null_mut(), 1, base + 1, key, FI_UINT64, FI_SUM, context);
        assert_eq!((unaligned, end(FI_ATOMIC | FI_WRITE) != 0), (0, true));
        succeeds(fi_writedata(ep, from, 4000, null_mut(), 5, 1, base + 8000, key, context) as i64);
        assert_eq!(end(FI_RMA | FI_WRITE), 0);
        endpoint.send(1, 2, b"done");
        endpoint.receive(1, 3, &mut into);
        assert_eq!(write(base, key), FI_EKEYREJECTED);
    }
    endpoint.send(1, 4, b"done");
    endpoint.close();
}

/// A process that makes no call carries out atomic operations, if it asked for automatic progress.
#[test]
fn idle_process_makes_automatic_progress() {
    const TEST: &str = "idle_process_makes_automatic_progress";
    let Some(library) = library(TEST) else { return };
    let Some(rank) = role() else {
        return start(TEST, &tempfile::tempdir().unwrap()).into_iter().for_each(Rank::ends_well);
    };
    let endpoint = meet_with(&library, FI_PROGRESS_AUTO);
    if rank == 1 {
        let mut number = 40_u64;
        let (base, mut region) = (&raw mut number, null_mut());
        // SAFETY: the memory is kept until the region is closed.
        unsafe {
            let (domain, access) = (endpoint.domain, FI_REMOTE_READ | FI_REMOTE_WRITE);
            succeeds(fi_mr_reg(domain, base.cast(), 8, access, 0, 0, 0, &raw mut region, null_mut()));
            let place = [base.expose_provenance() as u64, (*region).key].map(u64::to_ne_bytes).concat();
            endpoint.send(0, 1, &place);
            // Until the other one has changed it, without a call of libfabric.
            let number = std::sync::atomic::AtomicU64::from_ptr(base);
            while number.load(std::sync::atomic::Ordering::Acquire) != 42 {
                std::thread::yield_now();
            }
            succeeds(fi_close(region.cast()));
        }
        return endpoint.close();
    }
    let (mut place, two) = ([0_u8; 16], 2_u64);
    endpoint.post(2, 1, 1, &mut place);
    let mut entry = fi_cq_tagged_entry::ZERO;
    // The thread for progress receives the message, and wakes this one.
    // SAFETY: one entry of the queue's format.
    let read = unsafe { fi_cq_sread(endpoint.queue, (&raw mut entry).cast(), 1, null(), -1) };
    assert_eq!((read, entry.op_context.addr()), (1, 2));
    let [base, key] = [0, 8].map(|at| u64::from_ne_bytes(place[at..at + 8].try_into().unwrap()));
    // SAFETY: the memory is kept until the completion.
    succeeds(unsafe {
        let (ep, value) = (endpoint.endpoint, (&raw const two).cast());
        fi_atomic(ep, value, 1, null_mut(), 1, base, key, FI_UINT64, FI_SUM, null_mut()) as i64
    });
    assert_eq!(endpoint.next().error, 0);
    endpoint.close();
}

/// All that waits for a process that is killed ends with an error, also a receive from any process.
#[test]
fn end_of_a_killed_process_is_reported() {
    const TEST: &str = "end_of_a_killed_process_is_reported";
    let Some(library) = library(TEST) else { return };
    let Some(rank) = role() else {
        let folder = tempfile::tempdir().unwrap();
        let [mut one, mut other] = start(TEST, &folder);
        one.line("waiting");
        other.child.kill().unwrap();
        other.child.wait().unwrap();
        return one.ends_well();
    };
    let endpoint = meet(&library);
    let (mut into, bytes) = ([[0_u8; 8]; 3], vec![1_u8; 1 << 20]);
    if rank == 1 {
        endpoint.send(0, 1, b"hello");
        loop {
            endpoint.poll();
            std::thread::yield_now();
        }
    }
    endpoint.receive(1, 1, &mut into[0]);
    let [_, from_other, from_any] = &mut into;
    endpoint.post(4, 1, 2, from_other);
    endpoint.post(5, FI_ADDR_UNSPEC, 3, from_any);
    // SAFETY: the memory is kept.
    succeeds(unsafe {
        let context = std::ptr::without_provenance_mut(6);
        fi_tsend(endpoint.endpoint, bytes.as_ptr().cast(), bytes.len(), null_mut(), 1, 4, context) as i64
    });
    println!("waiting");
    let mut ends: Vec<_> = (0..3).map(|_| endpoint.next()).map(|end| (end.context, end.error)).collect();
    ends.sort_unstable();
    assert_eq!(ends, [(4, FI_ENOTCONN), (5, FI_ENOTCONN), (6, FI_ENOTCONN)]);
    // SAFETY: the memory is read at once.
    let refused = unsafe { fi_tinject(endpoint.endpoint, bytes.as_ptr().cast(), 8, 1, 4) };
    assert_eq!(refused, -(FI_ENOTCONN as isize));
    endpoint.close();
}

/// A process that does not accept the connection holds up no operation with others.
#[test]
fn connection_to_a_stopped_process_is_tried_again() {
    const TEST: &str = "connection_to_a_stopped_process_is_tried_again";
    let Some(library) = library(TEST) else { return };
    let Some(rank) = role() else {
        let folder = tempfile::tempdir().unwrap();
        let [mut one, mut other] = start(TEST, &folder);
        other.line("met");
        let pid = rustix::process::Pid::from_child(&other.child);
        rustix::process::kill_process(pid, rustix::process::Signal::STOP).unwrap();
        // Until all its threads have stopped.
        rustix::process::waitpid(Some(pid), rustix::process::WaitOptions::UNTRACED).unwrap();
        one.tell("it is stopped");
        one.line("tried");
        rustix::process::kill_process(pid, rustix::process::Signal::CONT).unwrap();
        return [one, other].into_iter().for_each(Rank::ends_well);
    };
    let endpoint = meet(&library);
    let mut into = [0_u8; 8];
    println!("met");
    if rank == 1 {
        endpoint.receive(0, 1, &mut into);
        return endpoint.close();
    }
    read_line();
    for number in 0..100 {
        // SAFETY: the memory is read at once.
        let refused = unsafe { fi_tinject(endpoint.endpoint, into.as_ptr().cast(), 8, 1, 1) };
        assert_eq!(refused, -(FI_EAGAIN as isize), "{number}");
        let (ep, place) = (endpoint.endpoint, into.as_mut_ptr().cast());
        // SAFETY: as above.
        let refused = unsafe { fi_read(ep, place, 8, null_mut(), 1, 0, 1, null_mut()) };
        assert_eq!(refused, -(FI_EAGAIN as isize), "{number}");
        endpoint.post(2, 0, 3, &mut into);
        // SAFETY: as above.
        begins(|| unsafe { fi_tinject(endpoint.endpoint, b"itself..".as_ptr().cast(), 8, 0, 3) });
        assert_eq!(endpoint.next().context, 2);
    }
    println!("tried");
    endpoint.send(1, 1, &into);
    endpoint.close();
}

#[test]
fn hints_that_do_not_fit_find_nothing() {
    const TEST: &str = "hints_that_do_not_fit_find_nothing";
    let Some(library) = library(TEST) else { return };
    if role().is_none() {
        let folder = tempfile::tempdir().unwrap();
        let status = process(TEST, folder.path(), 0).status().unwrap();
        return assert!(status.success());
    }
    let find = |version, change: &dyn Fn(&mut fi_info)| {
        let info = find(&library, version, (None, None, 0), change)?;
        // SAFETY: the entry has its attributes.
        unsafe {
            let caps_and_mode = ((*info).caps, (*(*info).domain_attr).mr_mode);
            library.fi_freeinfo(info);
            Ok(caps_and_mode)
        }
    };
    let (newest, before_modes) = (library.version(), make_version(1, 4));
    let (messages, one_sided) = (FI_MSG | FI_TAGGED, FI_RMA | FI_ATOMIC);
    let primary = |found: Result<(u64, i32), i32>| {
        found.map(|(caps, mode)| (caps & (messages | one_sided), mode)).unwrap()
    };
    let knows = |mode, caps| {
        move |hints: &mut fi_info| {
            // SAFETY: the attributes exist.
            let domain = unsafe { &mut *hints.domain_attr };
            (hints.caps, domain.mr_mode) = (caps, mode);
        }
    };
    // An application that does not know this kind of registered memory gets no operations on it.
    assert_eq!(primary(find(newest, &|_| {})), (messages, 0));
    assert_eq!(primary(find(newest, &knows(FI_MR_LOCAL | FI_MR_PROV_KEY, 0))), (messages, 0));
    for mode in [MEMORY, MEMORY | FI_MR_LOCAL | FI_MR_ENDPOINT] {
        assert_eq!(primary(find(newest, &knows(mode, 0))), (messages | one_sided, MEMORY));
        assert_eq!(primary(find(newest, &knows(mode, FI_RMA))), (FI_RMA, MEMORY));
    }
    // Of the kinds before the list of modes, this is the basic one.
    assert_eq!(primary(find(newest, &knows(FI_MR_BASIC, FI_ATOMIC))), (FI_ATOMIC, FI_MR_BASIC));
    assert_eq!(primary(find(before_modes, &knows(0, FI_RMA))), (FI_RMA, FI_MR_BASIC));
    let (caps, mode) = find(newest, &|hints| hints.caps = FI_TAGGED).unwrap();
    assert_eq!(caps & (messages | one_sided | FI_SEND | FI_RECV), FI_TAGGED | FI_SEND | FI_RECV);
    assert_eq!(mode, 0);
    let kinds: [&dyn Fn(&mut fi_info); 8] = [
        &|hints| hints.caps = FI_HMEM,
        &|hints| hints.caps = FI_TRIGGER,
        // Without knowing what registered memory is like.
        &|hints| hints.caps = FI_RMA,
        &knows(MEMORY & !FI_MR_PROV_KEY, FI_ATOMIC),
        &knows(FI_MR_SCALABLE, FI_TAGGED | FI_RMA),
        // SAFETY: the attributes exist.
        &|hints| unsafe { (*hints.ep_attr).r#type = FI_EP_MSG },
        // SAFETY: as above.
        &|hints| unsafe { (*hints.tx_attr).inject_size = 1 << 20 },
        // SAFETY: as above.
        &|hints| unsafe { (*hints.domain_attr).cq_data_size = 9 },
    ];
    for kind in kinds {
        assert_eq!(find(newest, kind), Err(FI_ENODATA));
    }
}
