//! Clocks: [`coarse`] costs a few nanoseconds, [`boot`] is the same in all processes.

use core::time::Duration;

use rustix::time::{ClockId, clock_gettime};

/// Returns a monotonic time since an unspecified moment, without the time in which the machine is
/// suspended. Its resolution is the kernel's tick, 1 to 10 ms.
#[must_use]
pub fn coarse() -> Duration {
    let now = clock_gettime(ClockId::MonotonicCoarse);
    let nanos = u32::try_from(now.tv_nsec).unwrap_or(0);
    Duration::new(u64::try_from(now.tv_sec).unwrap_or(0), nanos)
}

/// Returns the nanoseconds since the machine was booted (`CLOCK_BOOTTIME`, `clock_gettime(2)`),
/// which are the same in all processes. Includes the time in which the machine is suspended.
#[must_use]
pub fn boot() -> u64 {
    let now = clock_gettime(ClockId::Boottime);
    now.tv_sec.cast_unsigned().wrapping_mul(1_000_000_000).wrapping_add(now.tv_nsec.cast_unsigned())
}

/// Reads the clock when the library is loaded. The first reading calls `dlsym`, which acquires a
/// lock of the loader: it must not happen under a lock of umf.
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
    fn coarse_clock_advances() {
        let begin = coarse();
        while coarse() == begin {
            std::thread::sleep(Duration::from_millis(1));
        }
        assert!(coarse() > begin);
    }
}
