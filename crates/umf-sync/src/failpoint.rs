//! Failpoints: named points at which tests end, stop or delay a process.
//!
//! The state that a killed process leaves depends on its last action. So each change of state that
//! is visible to another process or the kernel (a descriptor, a mapping, a ledger slot, a message)
//! has a [`failpoint!`](crate::failpoint!) before or after it. Tests kill processes at each of
//! them.
//!
//! Without the feature `failpoints` they compile to nothing. The package `umf-tests` enables it for
//! all tests of the workspace. `UMF_FAILPOINTS` sets the actions:
//!
//! ```text
//! UMF_FAILPOINTS="ledger.published:3=kill,upstream.allocated=sleep:20"
//! ```
//!
//! kills the process with SIGKILL the third time that it reaches `ledger.published`, and makes it
//! sleep for 20 ms the first time that it reaches `upstream.allocated`. `stop` sends SIGSTOP; `:*`
//! means each time.
//!
//! A failpoint acquires no lock and allocates nothing, so it may be anywhere. Each name has one
//! place.

use core::fmt;
use core::sync::atomic::{AtomicU8, AtomicU64, Ordering};
use core::time::Duration;

#[doc(hidden)]
pub use linkme;

/// All failpoints of the program.
#[linkme::distributed_slice]
pub static FAILPOINTS: [Failpoint];

/// A failpoint, which [`failpoint!`](crate::failpoint!) defines.
#[derive(Debug)]
pub struct Failpoint {
    name: &'static str,
    /// How often it was reached.
    reached: AtomicU64,
    /// The packed action and time; 0 is none.
    plan: AtomicU64,
}

/// The action of a process at a failpoint.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Action {
    /// Sends SIGKILL.
    Kill,
    /// Sends SIGSTOP. SIGCONT continues it.
    Stop,
    /// Sleeps for this many milliseconds.
    Sleep(u16),
}

// A plan packs the action into the upper two bits, then the milliseconds, then the count at which
// the action happens; 0 is each time.
const KILL: u64 = 1 << 62;
const STOP: u64 = 2 << 62;
const SLEEP: u64 = 3 << 62;
const ACTION: u64 = 3 << 62;
const MILLISECONDS: u32 = 46;
const TIME: u64 = (1 << MILLISECONDS) - 1;

/// Whether this process ever had a plan. Without a plan, a failpoint costs one load.
static STATE: AtomicU8 = AtomicU8::new(UNREAD);

/// The variable has not been read.
const UNREAD: u8 = 0;
/// The variable was read, and there was no plan.
const OFF: u8 = 1;
/// There is or was a plan.
const ON: u8 = 2;

impl Failpoint {
    #[doc(hidden)]
    #[must_use]
    pub const fn new(name: &'static str) -> Self {
        Self { name, reached: AtomicU64::new(0), plan: AtomicU64::new(0) }
    }

    /// Returns the name.
    #[must_use]
    pub const fn name(&self) -> &'static str {
        self.name
    }

    #[doc(hidden)]
    #[inline]
    pub fn reach(&self) {
        if STATE.load(Ordering::Relaxed) != OFF {
            self.reach_slow();
        }
    }

    #[cold]
    #[inline(never)]
    fn reach_slow(&self) {
        if read_variable() == OFF {
            return;
        }
        match self.count() {
            None => {}
            Some(Action::Kill) => kill_this_process(),
            // SAFETY: sends a signal to this process.
            Some(Action::Stop) => unsafe {
                libc::kill(libc::getpid(), libc::SIGSTOP);
            },
            Some(Action::Sleep(milliseconds)) => {
                std::thread::sleep(Duration::from_millis(milliseconds.into()))
            }
        }
    }

    /// Counts, and returns the action that is due.
    fn count(&self) -> Option<Action> {
        let now = self.reached.fetch_add(1, Ordering::Relaxed) + 1;
        let plan = self.plan.load(Ordering::Relaxed);
        if plan == 0 || !matches!(plan & TIME, time if time == 0 || time == now) {
            return None;
        }
        Some(match plan & ACTION {
            KILL => Action::Kill,
            STOP => Action::Stop,
            _ => Action::Sleep(((plan & !ACTION) >> MILLISECONDS) as u16),
        })
    }

    fn plan(&self, time: u64, action: Action) {
        let action = match action {
            Action::Kill => KILL,
            Action::Stop => STOP,
            Action::Sleep(milliseconds) => SLEEP | u64::from(milliseconds) << MILLISECONDS,
        };
        self.plan.store((time & TIME) | action, Ordering::Relaxed);
    }

    fn arm(&self, nth: u32, action: Action) {
        let time = if nth == 0 { 0 } else { self.reached.load(Ordering::Relaxed) + u64::from(nth) };
        self.plan(time, action);
    }
}

fn kill_this_process() -> ! {
    // SAFETY: sends a signal to this process.
    unsafe { libc::kill(libc::getpid(), libc::SIGKILL) };
    // The first process of a pid namespace ignores its own SIGKILL. `_exit` ends all threads, too.
    // SAFETY: `_exit` runs no code of the program.
    unsafe { libc::_exit(137) }
}

fn find(name: &str) -> Option<&'static Failpoint> {
    FAILPOINTS.iter().find(|point| point.name == name)
}

/// Returns the names of all failpoints of the program, sorted.
#[must_use]
pub fn names() -> Vec<&'static str> {
    let mut names: Vec<_> = FAILPOINTS.iter().map(Failpoint::name).collect();
    names.sort_unstable();
    names
}

/// Plans an action for the `nth` time from now that this process reaches a failpoint: 1 is the next
/// time, 0 is each time. Replaces an earlier plan. Returns `false` if there is no such failpoint.
#[must_use]
pub fn arm(name: &str, nth: u32, action: Action) -> bool {
    read_variable();
    let Some(point) = find(name) else { return false };
    point.arm(nth, action);
    STATE.store(ON, Ordering::Release);
    true
}

/// Removes all plans.
pub fn disarm() {
    read_variable();
    FAILPOINTS.iter().for_each(|point| point.plan.store(0, Ordering::Relaxed));
}

/// Returns how often this process reached a failpoint since the first plan, including its parent
/// before a fork; 0 for an unknown name.
#[must_use]
pub fn reached(name: &str) -> u64 {
    find(name).map_or(0, |point| point.reached.load(Ordering::Relaxed))
}

/// The error for an invalid plan.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BadPlan(String);

impl fmt::Display for BadPlan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self(text) = self;
        write!(
            f,
            "{text:?} is not a valid plan; use a list of <failpoint>[:<n> or :*]=<kill, stop or sleep:<ms>>, separated by commas"
        )
    }
}

impl core::error::Error for BadPlan {}

/// Parses one part of a plan: failpoint, count, action.
fn parse(part: &str) -> Option<(&str, u64, Action)> {
    let (point, action) = part.split_once('=')?;
    let (name, time) = point.split_once(':').unwrap_or((point, "1"));
    let time = match time {
        "*" => 0,
        number => number.parse().ok().filter(|&time| time > 0 && time <= TIME)?,
    };
    let action = match action.split_once(':').unwrap_or((action, "")) {
        ("kill", "") => Action::Kill,
        ("stop", "") => Action::Stop,
        ("sleep", milliseconds) => Action::Sleep(milliseconds.parse().ok()?),
        _ => return None,
    };
    Some((name, time, action))
}

fn plan(text: &str) -> Result<(), BadPlan> {
    for part in text.split(',').filter(|part| !part.is_empty()) {
        let found = parse(part).and_then(|(name, time, action)| Some((find(name)?, time, action)));
        let (point, time, action) = found.ok_or_else(|| BadPlan(part.to_owned()))?;
        point.plan(time, action);
    }
    Ok(())
}

/// Reads `UMF_FAILPOINTS` once, and returns the state. Does not wait for another thread, which a
/// child that is forked meanwhile would not have.
#[allow(clippy::disallowed_methods, reason = "for tests only, which are never set-user-id")]
fn read_variable() -> u8 {
    let state = STATE.load(Ordering::Acquire);
    if state != UNREAD {
        return state;
    }
    // SAFETY: the name is a C string. No thread changes the environment while others read it.
    let value = unsafe { libc::getenv(c"UMF_FAILPOINTS".as_ptr()) };
    // SAFETY: `getenv` returns null, or a C string that stays valid.
    let value = (!value.is_null()).then(|| unsafe { core::ffi::CStr::from_ptr(value) });
    let planned =
        value.map(|text| text.to_str().map_err(|_| BadPlan("(not UTF-8)".to_owned())).and_then(plan));
    if let Some(Err(error)) = planned {
        // Without the plan, a test would kill no process and pass.
        eprintln!("UMF_FAILPOINTS: {error}");
        std::process::abort();
    }
    let read = if planned.is_some() { ON } else { OFF };
    // Another thread may have set a plan meanwhile.
    STATE
        .compare_exchange(UNREAD, read, Ordering::Release, Ordering::Acquire)
        .map_or_else(|now| now, |_| read)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn plans_are_parsed_as_documented() {
        assert_eq!(parse("a.b=kill"), Some(("a.b", 1, Action::Kill)));
        assert_eq!(parse("a.b:3=stop"), Some(("a.b", 3, Action::Stop)));
        assert_eq!(parse("a.b:*=sleep:20"), Some(("a.b", 0, Action::Sleep(20))));
        for bad in ["", "a.b", "a.b:0=kill", "a.b=sleep", "a.b=kil"] {
            assert_eq!(parse(bad), None, "{bad}");
        }
        assert!(plan("fork.prepared=kil").unwrap_err().to_string().contains("kil\""));
        assert!(plan("no.such=kill").unwrap_err().to_string().contains("no.such"));
    }

    #[test]
    fn names_are_unique_and_found() {
        let names = names();
        assert!(names.contains(&"fork.prepared"), "{names:?}");
        assert!(names.windows(2).all(|pair| pair[0] != pair[1]), "{names:?}");
        assert!(!arm("no.such", 1, Action::Stop));
    }

    #[test]
    fn nth_time_counts_from_the_plan() {
        let point = Failpoint::new("test");
        assert_eq!(point.count(), None);
        point.arm(2, Action::Kill);
        assert_eq!([point.count(), point.count(), point.count()], [None, Some(Action::Kill), None]);
        point.arm(0, Action::Sleep(u16::MAX));
        assert_eq!([point.count(), point.count()], [Some(Action::Sleep(u16::MAX)); 2]);
    }
}
