//! Waiting: descriptors, calls that sleep, event queues and poll sets.

use std::ffi::{c_int, c_void};
use std::os::fd::{BorrowedFd, RawFd};
use std::ptr::{null_mut, without_provenance_mut};
use std::thread;
use std::time::Duration;

use libfabric_sys::*;
use rustix::event::{PollFd, PollFlags, Timespec, poll};

use crate::ranks::{Completion, Endpoint, Rank, begins, contents, library, read_line, role, start, succeeds};

/// The error of calls that have to be repeated.
const AGAIN: c_int = -FI_EAGAIN;

/// Waits until a descriptor is readable. A minute without that is a lost wake-up.
#[track_caller]
pub(crate) fn wait_readable(fd: RawFd) {
    assert!(is_readable(fd, 60), "the descriptor was not readable for a minute");
}

pub(crate) fn is_readable(fd: RawFd, seconds: i64) -> bool {
    // SAFETY: the descriptor is that of an open object.
    let fd = unsafe { BorrowedFd::borrow_raw(fd) };
    let limit = Timespec { tv_sec: seconds, tv_nsec: 0 };
    loop {
        match poll(&mut [PollFd::new(&fd, PollFlags::IN)], Some(&limit)) {
            Ok(count) => return count == 1,
            Err(error) => assert_eq!(error, rustix::io::Errno::INTR),
        }
    }
}

/// Returns the descriptor of an object.
#[track_caller]
pub(crate) fn descriptor<T>(object: *mut T) -> RawFd {
    let (mut fd, mut kind) = (-1, FI_WAIT_NONE);
    // SAFETY: the object is open, and the arguments are those of the commands.
    unsafe {
        succeeds(fi_control(object.cast(), FI_GETWAIT, (&raw mut fd).cast()));
        succeeds(fi_control(object.cast(), FI_GETWAITOBJ, (&raw mut kind).cast()));
    }
    assert_eq!(kind, FI_WAIT_FD);
    fd
}

pub(crate) fn open_counter(domain: *mut fid_domain, wait: fi_wait_obj, context: usize) -> *mut fid_cntr {
    let mut counter = null_mut();
    let mut attributes = fi_cntr_attr { events: FI_CNTR_EVENTS_COMP, wait_obj: wait, ..fi_cntr_attr::ZERO };
    let context = without_provenance_mut(context);
    // SAFETY: the domain is open.
    succeeds(unsafe { fi_cntr_open(domain, &raw mut attributes, &raw mut counter, context) });
    counter
}

pub(crate) fn open_event_queue(fabric: *mut fid_fabric, wait: fi_wait_obj) -> *mut fid_eq {
    let mut queue = null_mut();
    let mut attributes = fi_eq_attr { flags: FI_WRITE, wait_obj: wait, ..fi_eq_attr::ZERO };
    // SAFETY: the fabric is open.
    succeeds(unsafe { fi_eq_open(fabric, &raw mut attributes, &raw mut queue, null_mut()) });
    queue
}

#[track_caller]
pub(crate) fn closes<T>(object: *mut T) {
    // SAFETY: the object is open, and not used again.
    succeeds(unsafe { fi_close(object.cast()) });
}

impl Endpoint {
    /// Returns whether a thread may wait for the descriptors of objects.
    #[track_caller]
    pub(crate) fn may_wait<const N: usize>(&self, mut objects: [*mut fid; N]) -> bool {
        // SAFETY: the objects are open.
        let result = unsafe { fi_trywait(self.fabric, objects.as_mut_ptr(), N as c_int) };
        assert!(matches!(result, FI_SUCCESS | AGAIN), "error {}", -result);
        result == FI_SUCCESS
    }

    /// Returns the next completion, and waits for it with the descriptor alone.
    pub(crate) fn next_by(&self, fd: RawFd) -> Completion {
        loop {
            if let Some(completion) = self.poll() {
                return completion;
            }
            if self.may_wait([self.queue.cast()]) {
                wait_readable(fd);
            }
        }
    }

    /// Begins to send a message.
    pub(crate) fn begin(&self, context: usize, to: u64, tag: u64, bytes: &[u8]) {
        let context = without_provenance_mut(context);
        // SAFETY: callers keep the memory until the completion.
        begins(|| unsafe {
            fi_tsend(self.endpoint, bytes.as_ptr().cast(), bytes.len(), null_mut(), to, tag, context)
        });
    }

    /// Sends a short message without a completion.
    pub(crate) fn inject(&self, to: u64, tag: u64) {
        // SAFETY: the memory is read at once.
        begins(|| unsafe { fi_tinject(self.endpoint, b"eight..".as_ptr().cast(), 7, to, tag) });
    }

    pub(crate) fn count(&self, counter: *mut fid_cntr, flags: u64) {
        // SAFETY: both objects are open.
        succeeds(unsafe { fi_ep_bind(self.endpoint, counter.cast(), flags) });
    }
}

/// The first link is made while the receiver waits, and each message ends one wait.
#[test]
fn descriptor_of_a_queue_is_readable_for_each_message() {
    const TEST: &str = "waiting::descriptor_of_a_queue_is_readable_for_each_message";
    const ROUNDS: u64 = 2000;
    /// More than a call continues to send.
    const OFFERED: u64 = 100;
    let Some(library) = library(TEST) else { return };
    let Some(rank) = role() else {
        let [mut one, mut other] = start(TEST, &tempfile::tempdir().unwrap());
        other.line("waiting");
        one.tell("send");
        for _ in 0..2 {
            one.line("sent");
            other.tell("look");
        }
        return [one, other].into_iter().for_each(Rank::ends_well);
    };
    let endpoint = Endpoint::open(&library, FI_PROGRESS_UNSPEC, FI_WAIT_FD);
    let fd = descriptor(endpoint.queue);
    endpoint.enable();
    endpoint.meet();
    let other = 1 - rank as u64;
    assert_eq!(descriptor(endpoint.queue), fd);
    assert!(endpoint.may_wait([endpoint.queue.cast()]) && !is_readable(fd, 0));
    let mut into = vec![0; 1 << 20];
    if rank == 0 {
        assert_eq!(read_line().trim(), "send");
        endpoint.begin(1, other, 1, b"first");
        assert_eq!(endpoint.next_by(fd).context, 1);
        println!("sent");
        endpoint.receive(other, 2, &mut into);
        endpoint.inject(other, 3);
        println!("sent");
    } else {
        endpoint.post(2, other, 1, &mut into);
        assert!(endpoint.may_wait([endpoint.queue.cast()]));
        println!("waiting");
        wait_readable(fd);
        assert_eq!(read_line().trim(), "look");
        // There is something to do, and then there is an entry until it is read.
        for _ in 0..3 {
            assert!(!endpoint.may_wait([endpoint.queue.cast()]));
        }
        assert_eq!(endpoint.poll().map(|end| (end.context, end.length)), Some((2, 5)));
        endpoint.inject(other, 2);
        assert_eq!(read_line().trim(), "look");
        // A message that no receive takes is something to do, too, and no entry.
        assert!(!endpoint.may_wait([endpoint.queue.cast()]) && endpoint.poll().is_none());
        assert!(endpoint.may_wait([endpoint.queue.cast()]) && !is_readable(fd, 0));
        endpoint.receive(other, 3, &mut into);
    }
    // Every message is waited for, on both sides.
    for round in 0..ROUNDS {
        let bytes = contents([8, 300, 5000, 200_000][(round % 64).saturating_sub(60) as usize], round);
        endpoint.post(2, other, round, &mut into);
        if rank == 0 {
            endpoint.begin(1, other, round, &bytes);
        }
        let mut left = [1, 2].map(|context| context == 2 || rank == 0);
        while left.contains(&true) {
            let end = endpoint.next_by(fd);
            assert_eq!((end.error, left[end.context - 1]), (0, true), "{round}: {end:?}");
            left[end.context - 1] = false;
        }
        assert!(into[..bytes.len()] == bytes, "{round}");
        if rank == 1 {
            endpoint.begin(1, other, round, &bytes);
            assert_eq!(endpoint.next_by(fd).context, 1);
        }
    }
    // Messages that are received in another order than they were sent.
    let bytes = contents(70_000, 1);
    if rank == 0 {
        for number in 0..OFFERED {
            endpoint.begin(100 + number as usize, other, number, &bytes);
        }
        endpoint.inject(other, OFFERED);
    } else {
        endpoint.post(2, other, OFFERED, &mut into);
        assert_eq!(endpoint.next_by(fd).context, 2);
    }
    for number in (0..OFFERED).rev() {
        if rank == 0 {
            assert_eq!(endpoint.next_by(fd).context, 100 + number as usize);
            endpoint.inject(other, OFFERED + 1);
        } else {
            for (tag, length) in [(number, bytes.len()), (OFFERED + 1, 7)] {
                endpoint.post(2, other, tag, &mut into);
                assert_eq!(endpoint.next_by(fd).length, length);
            }
        }
    }
    endpoint.close();
}

/// A counter that changes after it was read and before the wait does not let the thread wait.
#[test]
fn counters_are_waited_for_by_calls_and_descriptors() {
    const TEST: &str = "waiting::counters_are_waited_for_by_calls_and_descriptors";
    const ROUNDS: u64 = 1000;
    let Some(library) = library(TEST) else { return };
    let Some(rank) = role() else {
        let [mut one, mut other] = start(TEST, &tempfile::tempdir().unwrap());
        other.line("read");
        one.tell("send");
        one.line("sent");
        other.tell("look");
        return [one, other].into_iter().for_each(Rank::ends_well);
    };
    let endpoint = Endpoint::open(&library, FI_PROGRESS_UNSPEC, FI_WAIT_FD);
    let [received, sent] = [FI_RECV, FI_SEND].map(|flag| {
        let counter = open_counter(endpoint.domain, FI_WAIT_FD, 0);
        endpoint.count(counter, flag);
        counter
    });
    let fd = descriptor(received);
    endpoint.enable();
    endpoint.meet();
    let other = 1 - rank as u64;
    let mut into = [0; 8];
    // SAFETY: the counter is open, here and below.
    let read = || unsafe { fi_cntr_read(received) };
    let may_wait = || endpoint.may_wait([received.cast()]);
    let wait_for = |value| {
        while read() < value {
            // SAFETY: as above.
            assert_eq!(unsafe { fi_cntr_readerr(received) }, 0);
            if may_wait() {
                wait_readable(fd);
            }
        }
    };
    assert!(may_wait() && !is_readable(fd, 0));
    if rank == 0 {
        assert_eq!(read_line().trim(), "send");
        endpoint.inject(other, 1);
        println!("sent");
        endpoint.post(2, other, 1, &mut into);
    } else {
        endpoint.post(2, other, 1, &mut into);
        assert!(may_wait() && read() == 0);
        println!("read");
        assert_eq!(read_line().trim(), "look");
        // Another object makes the progress, and takes what made the mesh's descriptor readable.
        while endpoint.may_wait([endpoint.queue.cast()]) {
            wait_readable(descriptor(endpoint.queue));
        }
        assert!(is_readable(fd, 0));
        assert_eq!(endpoint.next().context, 2);
        for _ in 0..3 {
            assert!(!may_wait());
        }
        assert_eq!(read(), 1);
        assert!(may_wait() && !is_readable(fd, 0));
        endpoint.inject(other, 1);
    }
    for round in 2..ROUNDS {
        if rank == 1 {
            endpoint.post(2, other, round, &mut into);
        }
        if rank == 1 || round > 2 {
            wait_for(round - 1 + rank as u64);
        } else {
            wait_for(1);
        }
        if rank == 0 {
            endpoint.post(2, other, round, &mut into);
        }
        endpoint.inject(other, round);
    }
    wait_for(ROUNDS - 1);
    // By calls, without a limit.
    for round in ROUNDS..2 * ROUNDS {
        endpoint.post(2, other, round, &mut into);
        if rank == 0 {
            endpoint.inject(other, round);
        }
        // SAFETY: the counter is open.
        succeeds(unsafe { fi_cntr_wait(received, round, -1) });
        if rank == 1 {
            endpoint.inject(other, round);
        }
    }
    assert_eq!(read(), 2 * ROUNDS - 1);
    // SAFETY: the counters are open, here and below.
    unsafe {
        assert_eq!(fi_cntr_read(sent), 2 * ROUNDS - 1);
        for limit in [0, 20] {
            assert_eq!(fi_cntr_wait(received, 2 * ROUNDS, limit), -FI_ETIMEDOUT);
        }
        // Changes by the application end waits, too.
        thread::scope(|scope| {
            assert!(may_wait() && !is_readable(fd, 0));
            let address = received.expose_provenance();
            scope.spawn(move || succeeds(fi_cntr_add(std::ptr::with_exposed_provenance_mut(address), 5)));
            wait_readable(fd);
            assert!(!may_wait());
            assert_eq!(read(), 2 * ROUNDS + 4);
            succeeds(fi_cntr_set(received, 7));
            assert_eq!((may_wait(), read(), fi_cntr_wait(received, 7, -1)), (false, 7, 0));
        });
        // So does a failure.
        endpoint.post(2, other, 1, &mut into);
        succeeds(fi_cancel(endpoint.endpoint.cast(), without_provenance_mut(2)) as i64);
        assert!(!may_wait());
        assert_eq!((read(), may_wait(), fi_cntr_readerr(received)), (7, false, 1));
        assert!(may_wait());
        thread::scope(|scope| {
            let address = received.expose_provenance();
            scope.spawn(move || {
                thread::sleep(Duration::from_millis(50));
                succeeds(fi_cntr_adderr(std::ptr::with_exposed_provenance_mut(address), 1));
            });
            assert_eq!(fi_cntr_wait(received, 8, -1), -FI_EAVAIL);
        });
        // One counter counts operations of a kind, and others are not replaced.
        let third = open_counter(endpoint.domain, FI_WAIT_NONE, 0);
        for (flags, error) in [(FI_RECV, FI_EINVAL), (FI_RECV | FI_READ, FI_EINVAL), (0, FI_EBADFLAGS)] {
            assert_eq!(fi_ep_bind(endpoint.endpoint, third.cast(), flags), -error);
        }
        closes(third);
        assert_eq!(fi_close(received.cast()), -FI_EBUSY);
    }
    endpoint.close_with(&[received.cast(), sent.cast()]);
}

#[test]
fn counter_of_remote_writes_counts_those_with_data() {
    const TEST: &str = "waiting::counter_of_remote_writes_counts_those_with_data";
    const WRITES: u64 = 50;
    let Some(library) = library(TEST) else { return };
    let Some(rank) = role() else {
        return start(TEST, &tempfile::tempdir().unwrap()).into_iter().for_each(Rank::ends_well);
    };
    let endpoint = Endpoint::open(&library, FI_PROGRESS_UNSPEC, FI_WAIT_UNSPEC);
    let counter = open_counter(endpoint.domain, FI_WAIT_FD, 0);
    endpoint.count(counter, if rank == 1 { FI_REMOTE_WRITE } else { FI_WRITE });
    endpoint.enable();
    endpoint.meet();
    let mut into = [0_u8; 16];
    if rank == 1 {
        let mut memory = vec![0_u8; 4096];
        let (base, mut region) = (memory.as_mut_ptr(), null_mut());
        // SAFETY: the memory is kept until the region is closed.
        unsafe {
            let (domain, access) = (endpoint.domain, FI_REMOTE_WRITE);
            succeeds(fi_mr_reg(domain, base.cast(), 4096, access, 0, 0, 0, &raw mut region, null_mut()));
            let place = [base.expose_provenance() as u64, (*region).key].map(u64::to_ne_bytes).concat();
            endpoint.send(0, 1, &place);
            succeeds(fi_cntr_wait(counter, WRITES, -1));
            endpoint.receive_beside(0, 2, &mut into);
            assert_eq!((fi_cntr_read(counter), fi_cntr_readerr(counter)), (WRITES, 0));
            succeeds(fi_close(region.cast()));
        }
        assert!(memory[..8].iter().all(|byte| *byte == 9));
        return endpoint.close_with(&[counter.cast()]);
    }
    endpoint.receive(1, 1, &mut into);
    let [base, key] = [0, 8].map(|at| u64::from_ne_bytes(into[at..at + 8].try_into().unwrap()));
    let (ep, from) = (endpoint.endpoint, [9_u8; 8].as_ptr().cast::<c_void>());
    // SAFETY: the memory is kept until the completions.
    unsafe {
        for number in 0..WRITES {
            // Writes without data leave no trace there.
            succeeds(fi_write(ep, from, 8, null_mut(), 1, base, key, null_mut()) as i64);
            succeeds(fi_writedata(ep, from, 8, null_mut(), number, 1, base, key, null_mut()) as i64);
        }
        succeeds(fi_cntr_wait(counter, 2 * WRITES, -1));
        while endpoint.poll().is_some() {}
        assert_eq!(fi_cntr_read(counter), 2 * WRITES);
    }
    endpoint.send(1, 2, b"done");
    endpoint.close_with(&[counter.cast()]);
}
