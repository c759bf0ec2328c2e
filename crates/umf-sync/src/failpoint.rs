//! Failpoints: named points at which tests end, stop or delay a process.
//!
//! What a process leaves behind when it is killed depends on what it did last. Every change of
//! state that another process or the kernel sees (a descriptor, a mapping, a ledger slot, a
//! message) has a [`failpoint!`](crate::failpoint!) before or after it, and a test kills processes
//! at each of them.
//!
//! Without the feature `failpoints` they compile to nothing. The package `umf-tests` switches it
//! on, and with it every test of the workspace has them. `UMF_FAILPOINTS` says what happens:
//!
//! ```text
//! UMF_FAILPOINTS="ledger.published:3=kill,upstream.allocated=sleep:20"
//! ```
//!
//! kills the process with SIGKILL the third time that it reaches `ledger.published`, and lets it
//! wait for 20 ms the first time that it reaches `upstream.allocated`. `stop` sends SIGSTOP; `:*`
//! means each time.
//!
//! A failpoint may stand anywhere: it takes no lock and allocates nothing. A name stands at one
//! place.

use core::fmt;
use core::sync::atomic::{AtomicU8, AtomicU64, Ordering};
use core::time::Duration;

#[doc(hidden)]
pub use linkme;

/// All failpoints of the program.
#[linkme::distributed_slice]
pub static FAILPOINTS: [Failpoint];

/// A failpoint, as [`failpoint!`](crate::failpoint!) makes it.
#[derive(Debug)]
pub struct Failpoint {
    name: &'static str,
    reached: AtomicU64,
    /// What happens when; read and written as a whole.
    plan: AtomicU64,
}

/// What a process does to itself at a failpoint.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Action {
    /// Sends SIGKILL.
    Kill,
    /// Sends SIGSTOP. SIGCONT continues it.
    Stop,
    /// Sleeps, for as many milliseconds.
    Sleep(u16),
}

// A plan: the action in the upper two bits, the milliseconds, and the time at which it happens; 0
// is each time.
const KILL: u64 = 1 << 62;
const STOP: u64 = 2 << 62;
const SLEEP: u64 = 3 << 62;
const ACTION: u64 = 3 << 62;
const MILLISECONDS: u32 = 46;
const TIME: u64 = (1 << MILLISECONDS) - 1;

/// Whether this process ever had a plan. Without one a failpoint costs one load.
static STATE: AtomicU8 = AtomicU8::new(UNREAD);

/// The variable has not been read.
const UNREAD: u8 = 0;
/// The variable was read, and there was no plan.
const OFF: u8 = 1;
/// There is a plan, or there was one.
const ON: u8 = 2;

impl Failpoint {
    #[doc(hidden)]
    #[must_use]
    pub const fn new(name: &'static str) -> Self {
        Self { name, reached: AtomicU64::new(0), plan: AtomicU64::new(0) }
    }

    /// The name.
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
            Some(Action::Kill) => end_this_process(libc::SIGKILL),
            // SAFETY: sends a signal to this process.
            Some(Action::Stop) => unsafe {
                libc::kill(libc::getpid(), libc::SIGSTOP);
            },
            Some(Action::Sleep(milliseconds)) => {
                std::thread::sleep(Duration::from_millis(milliseconds.into()))
            }
        }
    }

    /// Counts, and returns what is to happen now.
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

fn end_this_process(signal: i32) -> ! {
    // SAFETY: sends a signal to this process.
    unsafe { libc::kill(libc::getpid(), signal) };
    // The first process of a pid namespace gets no signal from itself. This, too, ends all threads.
    // SAFETY: runs nothing of the program's.
    unsafe { libc::_exit(137) }
}

fn find(name: &str) -> Option<&'static Failpoint> {
    FAILPOINTS.iter().find(|point| point.name == name)
}

/// The names of all failpoints of the program, sorted.
#[must_use]
pub fn names() -> Vec<&'static str> {
    let mut names: Vec<_> = FAILPOINTS.iter().map(Failpoint::name).collect();
    names.sort_unstable();
    names
}

/// Plans an action for the `nth` time from now (1 is the next) that this process reaches a
/// failpoint; 0 is each time. Replaces the plan that it had. Returns false if there is no failpoint
/// of this name.
#[must_use]
pub fn arm(name: &str, nth: u32, action: Action) -> bool {
    read_variable();
    let Some(point) = find(name) else { return false };
    point.arm(nth, action);
    STATE.store(ON, Ordering::Release);
    true
}

/// Forgets all plans.
pub fn disarm() {
    read_variable();
    FAILPOINTS.iter().for_each(|point| point.plan.store(0, Ordering::Relaxed));
}

/// How often this process (and, if it was forked, its parent before that) reached a failpoint since
/// there was a plan for the first time. 0 for an unknown name.
#[must_use]
pub fn reached(name: &str) -> u64 {
    find(name).map_or(0, |point| point.reached.load(Ordering::Relaxed))
}

/// A text that is no plan.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BadPlan(String);

impl fmt::Display for BadPlan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self(text) = self;
        write!(
            f,
            "{text:?}: not valid; valid is <failpoint>[:<n> or :*]=kill, stop or sleep:<ms>, in a list with commas"
        )
    }
}

impl core::error::Error for BadPlan {}

/// One part of a plan: at which failpoint, at which time, what.
fn parse(part: &str) -> Option<(&str, u64, Action)> {
    let (place, action) = part.split_once('=')?;
    let (name, time) = place.split_once(':').unwrap_or((place, "1"));
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

/// Reads `UMF_FAILPOINTS` once, and returns the state. No thread waits for another one here: a
/// child that is forked meanwhile does not have it.
#[allow(clippy::disallowed_methods, reason = "for tests alone, which have no rights that others lack")]
fn read_variable() -> u8 {
    let state = STATE.load(Ordering::Acquire);
    if state != UNREAD {
        return state;
    }
    // SAFETY: a C string; as everywhere, no thread changes the environment while others read it.
    let value = unsafe { libc::getenv(c"UMF_FAILPOINTS".as_ptr()) };
    // SAFETY: getenv returns null, or a C string that stays.
    let value = (!value.is_null()).then(|| unsafe { core::ffi::CStr::from_ptr(value) });
    let planned = value
        .map(|text| text.to_str().map_err(|_| BadPlan("bytes that are no text".to_owned())).and_then(plan));
    if let Some(Err(error)) = planned {
        // A test that kills no process would pass.
        eprintln!("UMF_FAILPOINTS: {error}");
        std::process::abort();
    }
    let read = if planned.is_some() { ON } else { OFF };
    // Another thread may have made a plan meanwhile.
    STATE
        .compare_exchange(UNREAD, read, Ordering::Release, Ordering::Acquire)
        .map_or_else(|now| now, |_| read)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn plans_are_read_as_documented() {
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
    fn the_nth_time_counts_from_when_it_was_planned() {
        let point = Failpoint::new("test");
        assert_eq!(point.count(), None);
        point.arm(2, Action::Kill);
        assert_eq!([point.count(), point.count(), point.count()], [None, Some(Action::Kill), None]);
        point.arm(0, Action::Sleep(u16::MAX));
        assert_eq!([point.count(), point.count()], [Some(Action::Sleep(u16::MAX)); 2]);
    }
}
