//! Calls that sleep, event queues and poll sets.

use std::ffi::{c_int, c_void};
use std::ptr::{null, null_mut, without_provenance_mut};
use std::thread;
use std::time::Duration;

use libfabric_sys::*;

use crate::ranks::{Endpoint, begins, is_alone, library, open_alone, succeeds};
use crate::waiting::{closes, descriptor, is_readable, open_counter, open_event_queue, wait_readable};

const AGAIN: isize = -(FI_EAGAIN as isize);

/// Runs a call of libfabric in another thread, after this one has probably begun to wait.
fn soon<'scope, T>(
    scope: &'scope thread::Scope<'scope, '_>,
    object: *mut T,
    call: impl FnOnce(*mut T) + Send + 'scope,
) where
    T: 'scope,
{
    let address = object.expose_provenance();
    scope.spawn(move || {
        thread::sleep(Duration::from_millis(50));
        call(std::ptr::with_exposed_provenance_mut(address));
    });
}

#[test]
fn calls_that_wait_for_a_queue_end() {
    const TEST: &str = "queues::calls_that_wait_for_a_queue_end";
    let Some(library) = library(TEST) else { return };
    if !is_alone(TEST) {
        return;
    }
    for kind in [FI_WAIT_UNSPEC, FI_WAIT_FD] {
        let endpoint = open_alone(&library, kind);
        let (queue, mut entry) = (endpoint.queue, fi_cq_tagged_entry::ZERO);
        // SAFETY: the objects are open; one entry of the queue's format.
        unsafe {
            let mut wait = |limit| fi_cq_sread(queue, (&raw mut entry).cast(), 1, null(), limit);
            assert_eq!([wait(0), wait(30)], [AGAIN; 2]);
            // A signal ends a wait that has begun, or the next one.
            thread::scope(|scope| {
                soon(scope, queue, |queue| succeeds(fi_cq_signal(queue)));
                assert_eq!(wait(-1), AGAIN);
            });
            succeeds(fi_cq_signal(queue));
            assert_eq!(wait(-1), AGAIN);
            // So does an error, and a message that is sent by another thread.
            let mut into = [0; 8];
            endpoint.post(3, 0, 9, &mut into);
            thread::scope(|scope| {
                soon(scope, endpoint.endpoint, |endpoint| {
                    succeeds(fi_cancel(endpoint.cast(), without_provenance_mut(3)) as i64);
                });
                assert_eq!(wait(-1), -(FI_EAVAIL as isize));
            });
            assert_eq!(wait(-1), -(FI_EAVAIL as isize));
            assert_eq!(endpoint.poll().map(|end| (end.context, end.error)), Some((3, FI_ECANCELED)));
            endpoint.post(4, 0, 9, &mut into);
            thread::scope(|scope| {
                soon(scope, endpoint.endpoint, |endpoint| {
                    begins(|| fi_tinject(endpoint, b"text".as_ptr().cast(), 4, 0, 9));
                });
                assert_eq!(wait(-1), 1);
            });
            assert_eq!((entry.op_context.addr(), entry.len), (4, 4));
        }
        endpoint.close();
    }
    let endpoint = open_alone(&library, FI_WAIT_NONE);
    let (mut entry, mut fd) = (fi_cq_tagged_entry::ZERO, 0_i32);
    // SAFETY: the objects are open.
    unsafe {
        let refused = fi_cq_sread(endpoint.queue, (&raw mut entry).cast(), 1, null(), 0);
        assert_eq!(refused, -(FI_ENOSYS as isize));
        assert_eq!(fi_control(endpoint.queue.cast(), FI_GETWAIT, (&raw mut fd).cast()), -FI_ENOSYS);
        for kind in [FI_WAIT_SET, FI_WAIT_MUTEX_COND, FI_WAIT_POLLFD] {
            let mut attributes = fi_cq_attr { wait_obj: kind, ..fi_cq_attr::ZERO };
            let mut queue = null_mut();
            let refused = fi_cq_open(endpoint.domain, &raw mut attributes, &raw mut queue, null_mut());
            assert_eq!(refused, -FI_ENOSYS);
        }
    }
    endpoint.close();
}

/// A thread that waits with a descriptor is woken once by each signal.
#[test]
fn signal_ends_one_wait_for_a_descriptor() {
    const TEST: &str = "queues::signal_ends_one_wait_for_a_descriptor";
    let Some(library) = library(TEST) else { return };
    if !is_alone(TEST) {
        return;
    }
    let endpoint = open_alone(&library, FI_WAIT_FD);
    let fd = descriptor(endpoint.queue);
    let may_wait = || endpoint.may_wait([endpoint.queue.cast()]);
    for _ in 0..3 {
        assert!(may_wait() && !is_readable(fd, 0));
        thread::scope(|scope| {
            // SAFETY: the queue is open.
            soon(scope, endpoint.queue, |queue| unsafe { succeeds(fi_cq_signal(queue)) });
            wait_readable(fd);
        });
        assert!(!may_wait() && endpoint.poll().is_none());
    }
    assert!(may_wait() && !is_readable(fd, 0));
    endpoint.close();
}

#[test]
fn events_that_are_written_are_read() {
    const TEST: &str = "queues::events_that_are_written_are_read";
    let Some(library) = library(TEST) else { return };
    if !is_alone(TEST) {
        return;
    }
    let endpoint = open_alone(&library, FI_WAIT_FD);
    for kind in [FI_WAIT_UNSPEC, FI_WAIT_FD] {
        let queue = open_event_queue(endpoint.fabric, kind);
        let (mut number, mut entry) = (0_u32, fi_eq_entry::ZERO);
        let size = size_of::<fi_eq_entry>();
        let written = |data| fi_eq_entry { data, ..fi_eq_entry::ZERO };
        // SAFETY: the queue is open, and the entries have the size that is passed.
        unsafe {
            let write = |queue, event, data| {
                let entry = written(data);
                assert_eq!(fi_eq_write(queue, event, (&raw const entry).cast(), size, 0), size as isize);
            };
            let place = (&raw mut entry).cast::<c_void>();
            let mut wait = |limit, flags| fi_eq_sread(queue, &raw mut number, place, size, limit, flags);
            assert_eq!([wait(0, 0), wait(30, 0)], [AGAIN; 2]);
            thread::scope(|scope| {
                soon(scope, queue, move |queue| write(queue, FI_NOTIFY, 5));
                assert_eq!(wait(-1, FI_PEEK), size as isize);
            });
            // The event was not removed, and does not fit into a shorter buffer.
            write(queue, FI_NOTIFY + 1, 6);
            let shorter = fi_eq_read(queue, null_mut(), place, size - 1, 0);
            assert_eq!(shorter, -(FI_ETOOSMALL as isize));
            for (event, data) in [(FI_NOTIFY, 5), (FI_NOTIFY + 1, 6)] {
                assert_eq!(fi_eq_read(queue, &raw mut number, place, size, 0), size as isize);
                assert_eq!((number, (*place.cast::<fi_eq_entry>()).data), (event, data));
            }
            assert_eq!(fi_eq_read(queue, &raw mut number, place, size, 0), AGAIN);
            let mut error = fi_eq_err_entry::ZERO;
            assert_eq!(fi_eq_readerr(queue, &raw mut error, 0), AGAIN);
            if kind == FI_WAIT_FD {
                let fd = descriptor(queue);
                assert!(endpoint.may_wait([queue.cast(), endpoint.queue.cast()]) && !is_readable(fd, 0));
                thread::scope(|scope| {
                    soon(scope, queue, move |queue| write(queue, FI_NOTIFY, 7));
                    wait_readable(fd);
                });
                // Both are armed, and one has something.
                for _ in 0..2 {
                    assert!(!endpoint.may_wait([queue.cast(), endpoint.queue.cast()]));
                    assert!(!endpoint.may_wait([endpoint.queue.cast(), queue.cast()]));
                }
                assert_eq!(fi_eq_read(queue, &raw mut number, place, size, 0), size as isize);
                assert!(endpoint.may_wait([queue.cast()]) && !is_readable(fd, 0));
            }
        }
        closes(queue);
    }
    // Insertions are not asynchronous, and only queues and counters can be waited for.
    // SAFETY: the objects are open.
    unsafe {
        let (mut vector, mut attributes) = (null_mut(), fi_av_attr { flags: FI_EVENT, ..fi_av_attr::ZERO });
        let refused = fi_av_open(endpoint.domain, &raw mut attributes, &raw mut vector, null_mut());
        assert_eq!(refused, -FI_ENOSYS);
        let mut others = [endpoint.vector.cast::<fid>()];
        assert_eq!(fi_trywait(endpoint.fabric, others.as_mut_ptr(), 1), -FI_EINVAL);
    }
    endpoint.close();
}

#[test]
fn poll_set_names_what_has_something() {
    const TEST: &str = "queues::poll_set_names_what_has_something";
    let Some(library) = library(TEST) else { return };
    if !is_alone(TEST) {
        return;
    }
    let endpoint = Endpoint::open(&library, FI_PROGRESS_UNSPEC, FI_WAIT_UNSPEC);
    let counters = [(FI_RECV, 11), (FI_READ, 12)].map(|(flag, context)| {
        let counter = open_counter(endpoint.domain, FI_WAIT_NONE, context);
        endpoint.count(counter, flag);
        counter
    });
    endpoint.enable();
    endpoint.insert_itself();
    let events = open_event_queue(endpoint.fabric, FI_WAIT_UNSPEC);
    let mut set = null_mut();
    let mut attributes = fi_poll_attr::ZERO;
    // SAFETY: the objects are open, and the lists have the lengths that are passed.
    unsafe {
        succeeds(fi_poll_open(endpoint.domain, &raw mut attributes, &raw mut set));
        let queue = endpoint.queue.cast::<fid>();
        (*queue).context = without_provenance_mut(10);
        let poll = |most: usize| {
            let mut contexts = [null_mut::<c_void>(); 4];
            let count = fi_poll(set, contexts.as_mut_ptr(), most as c_int);
            contexts[..usize::try_from(count).unwrap()].iter().map(|c| c.addr()).collect::<Vec<_>>()
        };
        assert!(poll(4).is_empty());
        for object in [queue, counters[0].cast(), counters[1].cast()] {
            succeeds(fi_poll_add(set, object, 0));
        }
        for other in [events.cast(), endpoint.endpoint.cast::<fid>(), endpoint.vector.cast()] {
            assert_eq!(fi_poll_add(set, other, 0), -FI_EINVAL);
            assert_eq!(fi_poll_del(set, other, 0), -FI_EINVAL);
        }
        assert!(poll(4).is_empty());
        // A poll makes progress.
        let mut into = [0; 8];
        endpoint.post(3, 0, 1, &mut into);
        endpoint.inject(0, 1);
        while poll(4) != [10, 11] {}
        assert_eq!((poll(1), poll(0)), (vec![10], vec![]));
        // Until the queue and the counter are read.
        assert_eq!((endpoint.next().context, poll(4)), (3, vec![11]));
        assert_eq!((fi_cntr_read(counters[0]), poll(4)), (1, vec![]));
        succeeds(fi_cntr_adderr(counters[1], 1));
        assert_eq!(poll(4), [12]);
        // What was removed is not named, and what is in the set stays open.
        succeeds(fi_poll_del(set, counters[1].cast(), 0));
        assert_eq!(fi_poll_del(set, counters[1].cast(), 0), -FI_EINVAL);
        assert!(poll(4).is_empty());
        succeeds(fi_close(endpoint.endpoint.cast()));
        assert_eq!([fi_close(queue), fi_close(counters[0].cast())], [-FI_EBUSY; 2]);
        assert_eq!(fi_close(endpoint.domain.cast()), -FI_EBUSY);
        for object in [set.cast::<fid>(), events.cast(), counters[0].cast(), counters[1].cast()] {
            succeeds(fi_close(object));
        }
        for object in [queue, endpoint.vector.cast(), endpoint.domain.cast(), endpoint.fabric.cast()] {
            succeeds(fi_close(object));
        }
    }
}
