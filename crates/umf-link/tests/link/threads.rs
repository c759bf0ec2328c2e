//! Ranks of a job where threads are short.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on ends")]

use crate::alone::ran_alone;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use umf_link::{Error, Fabric};

/// More than a program keeps of stacks of ended threads.
const STACKS: usize = 1000;

/// The address space of this process, in bytes (`proc_pid_statm(5)`).
fn size() -> u64 {
    let text = std::fs::read_to_string("/proc/self/statm").unwrap();
    let pages: u64 = text.split(' ').next().unwrap().parse().unwrap();
    pages * rustix::param::page_size() as u64
}

/// Nobody is told of a rank that could not join. (The only test of its process, since the limit is the whole process's.)
#[test]
fn a_rank_that_cannot_join_was_never_there() {
    if ran_alone("threads::a_rank_that_cannot_join_was_never_there") {
        return;
    }
    let name = format!("threads-{}", std::process::id());
    let mut first = Fabric::join(&name, 0, 2).unwrap();
    let before = getrlimit(Resource::As);
    // Too little for the stack of a thread.
    let less = Rlimit { current: Some(size() + (236 << 10)), maximum: before.maximum };
    setrlimit(Resource::As, less).unwrap();
    // The C library keeps the stacks of threads that ended: others use them until none is left.
    let end: &'static AtomicBool = Box::leak(Box::new(AtomicBool::new(false)));
    let wait = || {
        while !end.load(Ordering::Acquire) {
            std::thread::sleep(Duration::from_millis(5));
        }
    };
    let use_one = |_| std::thread::Builder::new().stack_size(240 << 10).spawn(wait).ok();
    let users: Vec<_> = (0..STACKS).map_while(use_one).collect();
    let joined = Fabric::join(&name, 1, 2);
    setrlimit(Resource::As, before).unwrap();
    end.store(true, Ordering::Release);
    assert!(users.len() < STACKS, "stacks are still to be had");
    for user in users {
        user.join().unwrap();
    }
    let refused = joined.unwrap_err();
    assert!(matches!(&refused, Error::System { call, .. } if call.contains("thread")), "{refused}");
    first.set_timeout(Some(Duration::from_millis(300)));
    let absent = first.send(1, 0, &[1]).unwrap_err();
    assert!(matches!(absent, Error::RankAbsent { rank: 1, .. }), "{absent}");
    let over = first.recv_any(0, &mut [0]).unwrap_err();
    assert!(matches!(over, Error::TimedOut { .. }), "{over}");
    let mut next = Fabric::join(&name, 1, 2).unwrap();
    next.send(0, 0, &[1]).unwrap();
    first.recv(1, 0, &mut [0]).unwrap();
}
