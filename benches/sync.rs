//! Fork-safe locks and those of the standard library; the time of a fork.

use std::hint::black_box;
use std::process::ExitCode;
use std::sync::Mutex;

use umf_benches::bench::{self, Bench, Figures};
use umf_benches::measure::{Measured, batches, nanoseconds, singly};
use umf_benches::{Error, Result, process};
use umf_sync::Lock;

/// Locks taken in one batch.
const COUNT: usize = 1000;
/// The peer.
const STD: &str = "std::sync::Mutex";

fn main() -> ExitCode {
    bench::main(measure, process::produce)
}

fn measure(bench: &mut Bench) -> Result<()> {
    let (ours, inner) = (Lock::<u64>::new(0), Lock::<u64>::new(0));
    let (peer, peer_inner) = (Mutex::new(0_u64), Mutex::new(0_u64));
    let lock = || *ours.lock() += 1;
    let lock_peer = || *peer.lock().unwrap_or_else(|error| error.into_inner()) += 1;
    bench.row("sync.lock", |bench| {
        let ours = Measured::of(batches(bench.time, COUNT, || repeat(lock))?)?;
        Ok(Figures::from(ours).beside(STD, Measured::of(batches(bench.time, COUNT, || repeat(lock_peer))?)?))
    })?;
    // While the thread holds another lock, so that the check for a running fork is skipped.
    bench.row("sync.lock.nested", |bench| {
        let outer = inner.lock();
        let ours = Measured::of(batches(bench.time, COUNT, || repeat(lock))?)?;
        drop(black_box(outer));
        let outer = peer_inner.lock();
        let peer = Measured::of(batches(bench.time, COUNT, || repeat(lock_peer))?)?;
        drop(black_box(outer));
        Ok(Figures::from(ours).beside(STD, peer))
    })?;
    bench.row("sync.fork", |bench| Measured::of(singly(bench.time, fork)?))
}

fn repeat(mut run: impl FnMut()) -> Result<()> {
    (0..COUNT).for_each(|_| run());
    Ok(())
}

/// Measures the time from a fork to the exit of the child, with the fork handlers of umf.
fn fork() -> Result<f64> {
    let (nanoseconds, done) = nanoseconds(|| {
        // SAFETY: the child exits at once.
        let child = unsafe { libc::fork() };
        if child == 0 {
            // SAFETY: exits without running handlers.
            unsafe { libc::_exit(0) };
        }
        // SAFETY: waits for the child forked above.
        child > 0 && unsafe { libc::waitpid(child, core::ptr::null_mut(), 0) } == child
    });
    if done { Ok(nanoseconds) } else { Err(Error::from("fork failed".to_owned())) }
}
