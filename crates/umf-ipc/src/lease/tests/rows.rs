//! Whose rows are, and how many there are.

use std::collections::HashSet;
use std::sync::{Arc, Barrier};

use super::super::layout::{Shape, State};
use super::super::*;
use crate::Error;
use crate::identity::Nonce;
use crate::ledger::Event;

const SLOTS: u32 = 64;

fn nonce() -> Nonce {
    Nonce::from_bytes([7; 16])
}

fn door(rows: u32) -> Door {
    Door::with_shape(Shape { slots: SLOTS, rows }, nonce()).unwrap()
}

fn open(door: &Door, same_pid_namespace: bool) -> LeaseTable {
    let fd = door.shared_fd().try_clone().unwrap();
    let rows = door.rows();
    let producer = Producer { pid: 1, nonce: nonce(), slots: SLOTS, rows, same_pid_namespace };
    LeaseTable::open(fd, producer, crate::identity::ProcessIdentity::current(), Arc::default()).unwrap()
}

/// Gives a lease back in the thread that took it.
fn close((lease, _): (Lease, bool)) {
    // SAFETY: taken once, and the caller has its table.
    unsafe { lease.give_back(umf_core::thread::current()) };
}

#[test]
fn what_is_open_is_leased() {
    let door = door(8);
    let table = open(&door, true);
    assert!(!door.is_leased(3));
    let first = table.take(3).unwrap();
    let second = table.take(3).unwrap();
    assert!(door.is_leased(3) && !door.is_leased(4));
    close(first);
    assert!(door.is_leased(3));
    close(second);
    assert!(!door.is_leased(3));
}

/// A ledger that no producer makes: its rows would not fit where they are shown.
#[test]
fn a_door_of_too_many_slots_is_refused() {
    for slots in [crate::ledger::MAX_SLOTS + 1, 1 << 24, u32::MAX] {
        let door = Door::with_shape(Shape { slots, rows: 4 }, nonce()).unwrap();
        let fd = door.shared_fd().try_clone().unwrap();
        let producer = Producer { pid: 1, nonce: nonce(), slots, rows: 4, same_pid_namespace: true };
        let refused =
            LeaseTable::open(fd, producer, crate::identity::ProcessIdentity::current(), Arc::default());
        assert!(matches!(refused, Err(Error::Misbehaved { pid: 1, .. })), "{slots}: {refused:?}");
    }
}

/// Importers in other pid namespaces that let go of everything and come again, for a year.
#[test]
fn who_announces_itself_again_and_again_costs_no_fd_each_time() {
    let door = door(8);
    let mut most = 0;
    let mut numbers = HashSet::new();
    for _ in 0..500 {
        let table = open(&door, false);
        let (row, number) = table.announcement().unwrap().unwrap();
        numbers.insert(number);
        let pidfd = crate::sys::pidfd_open(crate::sys::pid()).unwrap();
        assert!(door.announce(row, number, Some(pidfd)));
        most = most.max(door.watched());
        let lease = table.take(3).unwrap();
        assert!(door.is_leased(3));
        close(lease);
    }
    assert!(numbers.len() > 490, "each time it is another number");
    assert!(most <= 16, "{most} pidfds of one process");
}

/// What comes over the socket is in the flight recorder, if it was believed.
#[test]
fn announcements_are_written_down() {
    let exports = Exports::new(SLOTS, true).unwrap();
    let ledger = &exports.ledger;
    let producer = Producer {
        pid: 1,
        nonce: ledger.nonce(),
        slots: ledger.capacity(),
        rows: exports.door.rows(),
        same_pid_namespace: false,
    };
    let fd = exports.door.shared_fd().try_clone().unwrap();
    let identity = crate::identity::ProcessIdentity::current();
    let table = LeaseTable::open(fd, producer, identity, Arc::default()).unwrap();
    let (row, number) = table.announcement().unwrap().unwrap();
    let pidfd = || Some(crate::sys::pidfd_open(identity.pid).unwrap());
    assert!(!exports.announce(row, number ^ 1, pidfd()));
    assert!(exports.announce(row, number, pidfd()));
    assert!(exports.announce(row, number, None), "it has no pid here");
    let search = crate::inspect::find().unwrap();
    let events = search.by_nonce(ledger.nonce()).unwrap().ledger.events().unwrap();
    let written: Vec<_> = events.recorded.iter().map(|recorded| recorded.event).collect();
    assert_eq!(written, [Event::Announce { pid: identity.pid }, Event::Announce { pid: 0 }]);
}

/// Its pid is another process's here, or nobody's.
#[test]
fn a_row_that_is_just_being_announced_is_not_taken_for_a_dead_ones() {
    assert_eq!(State::claimed(0).pid(), None);
    assert_eq!(State::claimed(7).pid(), Some(7));
    assert!(!State::claimed(0).is_free() && !State::claimed(0).is_used());
}

/// One process with more threads than there are rows: it can close in any thread, and others can open.
#[test]
fn threads_leave_rows_for_processes() {
    let door = door(4);
    let (table, other) = (open(&door, true), open(&door, true));
    let barrier = Barrier::new(6);
    std::thread::scope(|scope| {
        for _ in 0..5 {
            scope.spawn(|| {
                table.take(3).unwrap();
                // So that each has a number of its own, and a row where there is one.
                barrier.wait();
                barrier.wait();
            });
        }
        barrier.wait();
        let (lease, is_own) = other.take(4).unwrap();
        assert!(!is_own && door.is_leased(4));
        // SAFETY: taken above, once.
        unsafe { lease.give_back(umf_core::thread::current()) };
        assert!(!door.is_leased(4));
        barrier.wait();
    });
    for left in (0..5).rev() {
        assert!(door.is_leased(3), "{left} more");
        table.give_back_elsewhere(3);
    }
    assert!(!door.is_leased(3));
}
