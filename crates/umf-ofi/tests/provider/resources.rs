//! Descriptors and mappings: what is left after all is closed, and in children; opening without
//! descriptors.

use std::collections::{BTreeMap, BTreeSet};
use std::os::fd::RawFd;
use std::ptr::null_mut;

use libfabric_sys::*;

use crate::ranks::{Endpoint, Rank, find, is_alone, library, open_alone, role, start, succeeds};
use crate::waiting::{descriptor, is_readable, open_counter, open_event_queue, wait_readable};

fn descriptors() -> BTreeSet<RawFd> {
    let folder = std::fs::read_dir("/proc/self/fd").unwrap();
    let all: Vec<RawFd> =
        folder.map(|entry| entry.unwrap().file_name().to_str().unwrap().parse().unwrap()).collect();
    // The folder itself was open.
    all.into_iter().filter(|fd| std::fs::read_link(format!("/proc/self/fd/{fd}")).is_ok()).collect()
}

/// Returns the number of mappings of each file.
fn mappings() -> BTreeMap<String, usize> {
    let mut files = BTreeMap::new();
    for line in std::fs::read_to_string("/proc/self/maps").unwrap().lines() {
        let words: Vec<_> = line.split_whitespace().collect();
        if let Some(path) = words.get(5..).filter(|path| !path.is_empty() && words[4] != "0") {
            *files.entry(path.join(" ")).or_default() += 1;
        }
    }
    files
}

/// Returns how many of the descriptors a forked child has.
fn open_in_child(fds: &[RawFd]) -> i32 {
    // SAFETY: the child makes system calls only.
    unsafe {
        let child = libc::fork();
        if child == 0 {
            let open = fds.iter().filter(|fd| libc::fcntl(**fd, libc::F_GETFD) >= 0).count();
            libc::_exit(open as i32);
        }
        let mut status = 0;
        assert_eq!(libc::waitpid(child, &raw mut status, 0), child);
        assert!(libc::WIFEXITED(status));
        libc::WEXITSTATUS(status)
    }
}

#[test]
fn nothing_is_left_open_after_the_end_or_in_children() {
    const TEST: &str = "resources::nothing_is_left_open_after_the_end_or_in_children";
    let Some(library) = library(TEST) else { return };
    if !is_alone(TEST) {
        return;
    }
    let mut before = None;
    // The first round starts what stays.
    for round in 0..4 {
        let at_start = descriptors();
        let endpoint = Endpoint::open(&library, FI_PROGRESS_UNSPEC, FI_WAIT_FD);
        let counter = open_counter(endpoint.domain, FI_WAIT_FD, 0);
        endpoint.count(counter, FI_RECV);
        endpoint.enable();
        endpoint.insert_itself();
        let events = open_event_queue(endpoint.fabric, FI_WAIT_FD);
        let fds = [descriptor(endpoint.queue), descriptor(counter), descriptor(events)];
        let (bytes, mut into) = (vec![1_u8; 1 << 20], vec![0; 1 << 20]);
        endpoint.post(2, 0, 1, &mut into);
        endpoint.begin(1, 0, 1, &bytes);
        assert_eq!(endpoint.next_by(fds[0]).context + endpoint.next_by(fds[0]).context, 3);
        assert!(into == bytes);
        let opened: Vec<_> = descriptors().difference(&at_start).copied().collect();
        assert!(fds.iter().all(|fd| opened.contains(fd)));
        if round == 1 {
            // Of the sets, the eventfds, the links and all else.
            assert_eq!(open_in_child(&opened), 0, "{opened:?}");
        }
        endpoint.close_with(&[counter.cast(), events.cast()]);
        if round > 0 {
            let now = (descriptors(), mappings());
            assert_eq!(*before.get_or_insert_with(|| now.clone()), now);
        }
    }
}

fn limit_descriptors(most: u64) {
    // SAFETY: the structure is valid.
    unsafe {
        let mut limit = std::mem::zeroed::<libc::rlimit>();
        assert_eq!(libc::getrlimit(libc::RLIMIT_NOFILE, &raw mut limit), 0);
        limit.rlim_cur = most.min(limit.rlim_max);
        assert_eq!(libc::setrlimit(libc::RLIMIT_NOFILE, &raw const limit), 0);
    }
}

/// Opens objects until one fails, and closes them. Returns the error.
fn open_and_close(beside: &Endpoint, info: *mut fi_info) -> Option<i32> {
    let Endpoint { fabric, domain, .. } = *beside;
    let mut opened: Vec<*mut fid> = Vec::new();
    let mut run = || -> Result<(), i32> {
        let check = |result: i32| if result < 0 { Err(-result) } else { Ok(()) };
        let (mut queue, mut counter, mut events) = (null_mut(), null_mut(), null_mut());
        let (mut vector, mut endpoint) = (null_mut(), null_mut());
        let mut of_queue = fi_cq_attr { wait_obj: FI_WAIT_FD, ..fi_cq_attr::ZERO };
        let mut of_counter = fi_cntr_attr { wait_obj: FI_WAIT_FD, ..fi_cntr_attr::ZERO };
        let mut of_events = fi_eq_attr { wait_obj: FI_WAIT_FD, ..fi_eq_attr::ZERO };
        let mut of_vector = fi_av_attr { r#type: FI_AV_TABLE, ..fi_av_attr::ZERO };
        // SAFETY: the calls have the arguments that the interface requires.
        unsafe {
            check(fi_cq_open(domain, &raw mut of_queue, &raw mut queue, null_mut()))?;
            opened.push(queue.cast());
            check(fi_cntr_open(domain, &raw mut of_counter, &raw mut counter, null_mut()))?;
            opened.push(counter.cast());
            check(fi_eq_open(fabric, &raw mut of_events, &raw mut events, null_mut()))?;
            opened.push(events.cast());
            check(fi_av_open(domain, &raw mut of_vector, &raw mut vector, null_mut()))?;
            opened.push(vector.cast());
            check(fi_endpoint(domain, info, &raw mut endpoint, null_mut()))?;
            opened.push(endpoint.cast());
            check(fi_ep_bind(endpoint, queue.cast(), FI_TRANSMIT | FI_RECV))?;
            check(fi_ep_bind(endpoint, counter.cast(), FI_RECV))?;
            check(fi_ep_bind(endpoint, vector.cast(), 0))?;
            check(fi_enable(endpoint))
        }
    };
    let error = run().err();
    for object in opened.into_iter().rev() {
        // SAFETY: the object is open, and not used again.
        succeeds(unsafe { fi_close(object) });
    }
    error
}

/// Each call that finds no descriptor fails, and leaves nothing behind.
#[test]
fn opening_without_descriptors_fails_and_leaves_none() {
    const TEST: &str = "resources::opening_without_descriptors_fails_and_leaves_none";
    let Some(library) = library(TEST) else { return };
    if !is_alone(TEST) {
        return;
    }
    let beside = open_alone(&library, FI_WAIT_FD);
    let info = find(&library, library.version(), (None, None, 0), |_| {}).unwrap();
    assert_eq!(open_and_close(&beside, info), None);
    let before = descriptors();
    // The first number that is free.
    let first = (0..).find(|fd| !before.contains(fd)).unwrap();
    let (mut most, mut failures) = (first as u64, 0);
    loop {
        limit_descriptors(most);
        let error = open_and_close(&beside, info);
        limit_descriptors(1024);
        assert_eq!(descriptors(), before, "after {failures} failures: {error:?}");
        match error {
            None => break,
            Some(error) => assert_eq!(error, FI_EMFILE, "with {most} descriptors"),
        }
        (most, failures) = (most + 1, failures + 1);
    }
    assert!(failures > 6, "{failures}");
    // SAFETY: the entry is not used again.
    unsafe { library.fi_freeinfo(info) };
    beside.close();
}

/// A thread that waits with a descriptor learns that the peer was killed.
#[test]
fn descriptor_is_readable_when_the_peer_is_killed() {
    const TEST: &str = "resources::descriptor_is_readable_when_the_peer_is_killed";
    let Some(library) = library(TEST) else { return };
    let Some(rank) = role() else {
        let [mut one, mut other] = start(TEST, &tempfile::tempdir().unwrap());
        one.line("waiting");
        other.child.kill().unwrap();
        other.child.wait().unwrap();
        return Rank::ends_well(one);
    };
    let endpoint = Endpoint::open(&library, FI_PROGRESS_UNSPEC, FI_WAIT_FD);
    let fd = descriptor(endpoint.queue);
    endpoint.enable();
    endpoint.meet();
    let mut into = [0; 8];
    if rank == 1 {
        endpoint.send(0, 1, b"hello");
        loop {
            endpoint.poll();
            std::thread::yield_now();
        }
    }
    endpoint.receive(1, 1, &mut into);
    endpoint.post(4, 1, 2, &mut into);
    while !endpoint.may_wait([endpoint.queue.cast()]) {}
    println!("waiting");
    wait_readable(fd);
    let end = endpoint.next_by(fd);
    assert_eq!((end.context, end.error), (4, FI_ENOTCONN));
    // The end makes the descriptor readable once.
    while !endpoint.may_wait([endpoint.queue.cast()]) {}
    assert!(!is_readable(fd, 0));
    endpoint.close();
}
