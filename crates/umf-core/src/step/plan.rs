//! What happens at which step, in this process.

use core::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use core::time::Duration;

use super::Step;
use crate::{environment, sys};

/// What a process does to itself at a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Action {
    /// SIGKILL.
    Kill,
    /// SIGSTOP: it goes on with SIGCONT.
    Stop,
    /// Waits so many milliseconds.
    Sleep(u16),
}

/// What one step has: how often it was reached, and at which of those times what happens (packed, to be read at once).
struct Point {
    reached: AtomicU64,
    plan: AtomicU64,
}

static POINTS: [Point; Step::ALL.len()] = [const { Point::new() }; Step::ALL.len()];

const KILL: u64 = 1 << 62;
const STOP: u64 = 2 << 62;
const SLEEP: u64 = 3 << 62;
const ACTION: u64 = 3 << 62;
const MILLISECONDS: u32 = 46;
/// When. 0 means each time.
const TIME: u64 = (1 << MILLISECONDS) - 1;

impl Point {
    const fn new() -> Self {
        Self { reached: AtomicU64::new(0), plan: AtomicU64::new(0) }
    }

    fn of(step: Step) -> &'static Self {
        &POINTS[step as usize]
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

    /// Counts, and says what is to be done now.
    fn reach(&self) -> Option<Action> {
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
}

/// Does here what was planned for this step.
#[inline(never)]
pub fn step(step: Step) {
    read_variable();
    match Point::of(step).reach() {
        None => {}
        Some(Action::Kill) => sys::kill_this_process(),
        Some(Action::Stop) => sys::stop_this_process(),
        Some(Action::Sleep(milliseconds)) => sys::sleep(Duration::from_millis(milliseconds.into())),
    }
}

/// Plans an action for the `nth` time from now (1 is the next) that this process reaches a step; 0 is each time. A plan
/// that the step had is replaced.
pub fn arm(step: Step, nth: u32, action: Action) {
    read_variable();
    Point::of(step).arm(nth, action);
}

/// Forgets all plans.
pub fn disarm() {
    read_variable();
    POINTS.iter().for_each(|point| point.plan.store(0, Ordering::Relaxed));
}

/// How often this process has reached a step (and, if it was forked, its parent before that).
#[must_use]
pub fn reached(step: Step) -> u64 {
    Point::of(step).reached.load(Ordering::Relaxed)
}

/// A text that is no plan.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "{0:?} is no plan: wanted is <step>[:<n> or :*]=kill, stop or sleep:<ms>, and more of them after commas"
)]
pub struct BadPlan(String);

/// One part of a plan: at which step, at which time, what.
fn parse(part: &str) -> Option<(Step, u64, Action)> {
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
    Some((Step::named(name)?, time, action))
}

fn plan(text: &str) -> Result<(), BadPlan> {
    for part in text.split(',').filter(|part| !part.is_empty()) {
        let (step, time, action) = parse(part).ok_or_else(|| BadPlan(part.to_owned()))?;
        Point::of(step).plan(time, action);
    }
    Ok(())
}

/// Reads `UMF_STEP` once. Nobody waits for another thread here: a child forked meanwhile does not have it.
fn read_variable() {
    static READ: AtomicBool = AtomicBool::new(false);
    if READ.load(Ordering::Acquire) {
        return;
    }
    let planned = environment::with_variable(c"UMF_STEP", |text| {
        text.to_str().map_err(|_| BadPlan("bytes that are no text".to_owned())).and_then(plan)
    });
    if let Some(Err(error)) = planned {
        // A test that kills no process would pass.
        eprintln!("UMF_STEP: {error}");
        std::process::abort();
    }
    READ.store(true, Ordering::Release);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn plans_are_read_as_documented() {
        let step = Step::UpstreamAllocated;
        assert_eq!(parse("UpstreamAllocated=kill"), Some((step, 1, Action::Kill)));
        assert_eq!(parse("UpstreamAllocated:3=stop"), Some((step, 3, Action::Stop)));
        assert_eq!(parse("UpstreamAllocated:*=sleep:20"), Some((step, 0, Action::Sleep(20))));
        for bad in
            ["", "UpstreamAllocated", "upstream=kill", "UpstreamAllocated:0=kill", "UpstreamAllocated=sleep"]
        {
            assert_eq!(parse(bad), None, "{bad}");
        }
        assert!(plan("UpstreamAllocated=kil").unwrap_err().to_string().contains("kil\""));
    }

    #[test]
    fn names_are_unique_and_found() {
        for &step in Step::ALL {
            assert_eq!(Step::named(step.name()), Some(step));
        }
    }

    #[test]
    fn the_nth_time_counts_from_when_it_was_planned() {
        let point = Point::new();
        assert_eq!(point.reach(), None);
        point.arm(2, Action::Kill);
        assert_eq!([point.reach(), point.reach(), point.reach()], [None, Some(Action::Kill), None]);
        point.arm(0, Action::Sleep(u16::MAX));
        assert_eq!([point.reach(), point.reach()], [Some(Action::Sleep(u16::MAX)); 2]);
    }
}
