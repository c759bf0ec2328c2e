//! Ranks of a job where fds are short.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on ends")]

use crate::alone::ran_alone;
use std::fs::File;
use std::time::Duration;

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use umf_link::{Communicator, Error};

/// All fds that this process may have.
struct All {
    before: Rlimit,
    _files: Vec<File>,
}

impl All {
    fn take() -> Self {
        let before = getrlimit(Resource::Nofile);
        setrlimit(Resource::Nofile, Rlimit { current: Some(256), maximum: before.maximum }).unwrap();
        let files: Vec<_> = std::iter::from_fn(|| File::open("/dev/null").ok()).collect();
        assert!(!files.is_empty());
        Self { before, _files: files }
    }
}

impl Drop for All {
    fn drop(&mut self) {
        // First, so that all are there at once.
        setrlimit(Resource::Nofile, self.before).unwrap();
    }
}

/// Without descriptors the end of a rank cannot be checked. A thread that waits for the rank goes
/// on waiting. The test runs in a process of its own, because the limit is the process's.
#[test]
fn liveness_check_without_fds_keeps_waiting() {
    if ran_alone("fds::liveness_check_without_fds_keeps_waiting") {
        return;
    }
    const LONG: Option<Duration> = Some(Duration::from_secs(10));
    const SHORT: Option<Duration> = Some(Duration::from_millis(100));
    let name = format!("fds-{}", std::process::id());
    let mut ranks: Vec<_> = (0..3).map(|rank| Communicator::join(&name, rank, 3).unwrap()).collect();
    for comm in &mut ranks {
        comm.set_timeout(LONG);
    }
    let mut byte = [0];
    ranks[1].send(0, 1, &[1]).unwrap();
    assert_eq!(ranks[0].recv_any(1, &mut byte).unwrap().from, 1);
    ranks[0].set_timeout(SHORT);
    // From the first time that it sleeps it has an fd for that.
    assert!(matches!(ranks[0].recv_any(1, &mut byte), Err(Error::TimedOut { .. })));
    let all = All::take();
    let over = ranks[0].recv_any(1, &mut byte).unwrap_err();
    assert!(matches!(over, Error::TimedOut { .. }), "{over}");
    let short = ranks[0].send(2, 1, &[1]).unwrap_err();
    assert!(matches!(short, Error::System { errno, .. } if errno == rustix::io::Errno::MFILE), "{short}");
    ranks[0].set_timeout(LONG);
    ranks[1].send(0, 1, &[2]).unwrap();
    assert_eq!(ranks[0].recv_any(1, &mut byte).unwrap().from, 1);
    // It lasts for a moment only.
    std::thread::scope(|scope| {
        scope.spawn(move || {
            std::thread::sleep(Duration::from_millis(100));
            drop(all);
        });
        ranks[0].send(2, 1, &[3]).unwrap();
    });
    ranks[2].recv(0, 1, &mut byte).unwrap();
    let all = All::take();
    std::thread::scope(|scope| {
        for comm in &mut ranks {
            scope.spawn(|| comm.barrier().unwrap());
        }
        std::thread::sleep(Duration::from_millis(100));
        drop(all);
    });
}
