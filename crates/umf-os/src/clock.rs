//! A clock for slow paths: it costs a few nanoseconds, and goes in steps of some milliseconds.

use core::time::Duration;

use rustix::time::{ClockId, clock_gettime};

/// Time since some moment in the past, which never goes back and does not count while the machine
/// sleeps. Steps of the kernel's tick, 1 to 10 ms.
#[must_use]
pub fn coarse() -> Duration {
    let now = clock_gettime(ClockId::MonotonicCoarse);
    let nanos = u32::try_from(now.tv_nsec).unwrap_or(0);
    Duration::new(u64::try_from(now.tv_sec).unwrap_or(0), nanos)
}

/// Nanoseconds since the machine was booted (`CLOCK_BOOTTIME`, `clock_gettime(2)`): the same in all
/// processes, and goes on while the machine sleeps.
#[must_use]
pub fn boot() -> u64 {
    let now = clock_gettime(ClockId::Boottime);
    now.tv_sec.cast_unsigned().wrapping_mul(1_000_000_000).wrapping_add(now.tv_nsec.cast_unsigned())
}

/// The first reading of a clock calls `dlsym`, which takes a lock of the loader: when this is
/// loaded, and not later, when it might come after locks of umf.
#[used]
#[unsafe(link_section = ".init_array")]
static AT_LOAD: extern "C" fn() = {
    extern "C" fn at_load() {
        let _ = coarse();
    }
    at_load
};

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_goes_forward() {
        let begin = coarse();
        while coarse() == begin {
            std::thread::sleep(Duration::from_millis(1));
        }
        assert!(coarse() > begin);
    }
}
