//! Ranks of a job without memory for threads.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on ends")]

use crate::alone::ran_alone;
use std::time::Duration;

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use umf_link::{Communicator, Error};

/// The address space of this process, in bytes (`proc_pid_statm(5)`).
fn size() -> u64 {
    let text = std::fs::read_to_string("/proc/self/statm").unwrap();
    let pages: u64 = text.split(' ').next().unwrap().parse().unwrap();
    pages * rustix::param::page_size() as u64
}

/// Runs `call` where no more than `more` bytes can be mapped.
fn with_memory<T>(more: u64, call: impl FnOnce() -> T) -> T {
    // A small allocation that fails ends the process: these leave free memory for them.
    drop((0..100).map(|_| Box::new([0_u8; 1000])).collect::<Vec<_>>());
    let before = getrlimit(Resource::As);
    let less = Rlimit { current: Some(size() + more), maximum: before.maximum };
    setrlimit(Resource::As, less).unwrap();
    let result = call();
    setrlimit(Resource::As, before).unwrap();
    result
}

/// The other ranks do not learn of a rank that could not join. (The only test of its process, since
/// the limit is the whole process's.)
#[test]
fn failed_join_publishes_nothing() {
    if ran_alone("threads::failed_join_publishes_nothing") {
        return;
    }
    let name = format!("threads-{}", std::process::id());
    let mut first = Communicator::join(&name, 0, 2).unwrap();
    first.set_timeout(Some(Duration::from_millis(50)));
    let mut failures = 0;
    // With each, one allocation more is possible: of shared memory, of stacks of threads.
    let mut next = loop {
        let joined = with_memory(failures << 15, || Communicator::join(&name, 1, 2));
        let refused = match joined {
            Ok(next) => break next,
            Err(error) => error,
        };
        assert!(matches!(&refused, Error::System { .. } | Error::Membership { .. }), "{refused}");
        failures += 1;
        let absent = first.send(1, 0, &[1]).unwrap_err();
        assert!(matches!(absent, Error::RankAbsent { rank: 1, .. }), "{absent}");
        let over = first.recv_any(0, &mut [0]).unwrap_err();
        assert!(matches!(over, Error::TimedOut { .. }), "{over}");
    };
    assert!(failures > 3, "{failures}");
    first.set_timeout(Some(Duration::from_secs(10)));
    next.send(0, 0, &[1]).unwrap();
    first.recv(1, 0, &mut [0]).unwrap();
}

/// Descriptors, and mappings of shared memory of links.
fn open() -> (usize, usize) {
    let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
    let mappings = maps.lines().filter(|line| line.contains("/memfd:umf-link")).count();
    (std::fs::read_dir("/proc/self/fd").unwrap().count(), mappings)
}

#[test]
fn link_that_fails_for_lack_of_memory_leaks_nothing() {
    if ran_alone("threads::link_that_fails_for_lack_of_memory_leaks_nothing") {
        return;
    }
    let name = format!("short-{}", std::process::id());
    let join = |name: &str| [0, 1].map(|rank| Communicator::join(name, rank, 2).unwrap());
    // Engines are measured once in a process.
    let [mut before, _other] = join(&format!("{name}-before"));
    before.send(1, 0, &[1]).unwrap();
    let [mut first, mut second] = join(&name);
    // Joining may not have closed all descriptors yet.
    let (mut failures, mut at_first) = (0, open());
    first.set_timeout(Some(Duration::from_millis(20)));
    loop {
        // Both ends are in this process, so that either lacks memory.
        let sent = with_memory(failures << 16, || first.send(1, 0, &[1]));
        let Err(error) = sent else { break };
        assert!(matches!(error, Error::System { .. } | Error::RankAbsent { .. }), "{error}");
        failures += 1;
        let end = std::time::Instant::now() + Duration::from_secs(5);
        let is_left = |(fds, mappings)| fds > at_first.0 || mappings > at_first.1;
        while is_left(open()) {
            assert!(std::time::Instant::now() < end, "{:?} and not {at_first:?}: {error}", open());
            std::thread::sleep(Duration::from_millis(1));
        }
        at_first = open();
    }
    assert!(failures > 3, "{failures}");
    second.set_timeout(Some(Duration::from_secs(10)));
    second.recv(0, 0, &mut [0]).unwrap();
    second.forget(0).unwrap();
    first.forget(1).unwrap();
    assert_eq!(open().1, at_first.1, "lanes are unmapped");
}
