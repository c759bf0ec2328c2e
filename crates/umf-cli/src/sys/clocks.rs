//! Processor time, in nanoseconds.

use rustix::time::{ClockId, clock_gettime};

/// What the calling thread has used.
pub(crate) fn thread_time() -> f64 {
    read(ClockId::ThreadCPUTime)
}

/// What all threads of the process have used, those that ended included.
pub(crate) fn process_time() -> f64 {
    read(ClockId::ProcessCPUTime)
}

fn read(clock: ClockId) -> f64 {
    let time = clock_gettime(clock);
    time.tv_sec as f64 * 1e9 + time.tv_nsec as f64
}
