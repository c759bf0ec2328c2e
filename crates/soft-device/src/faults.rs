//! Faults on demand: calls that fail because a test wants them to.

use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};

use crate::lock;

/// What happens instead of a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action {
    /// It answers this, and does nothing.
    Answer(u32),
    /// All devices are lost, and it answers so.
    Lose,
}

/// Which calls.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Which {
    Only(u64),
    From(u64),
}

#[derive(Clone, Debug)]
struct Fault {
    /// The function, or `*` for all.
    function: String,
    which: Which,
    action: Action,
    /// How many calls there were.
    calls: u64,
}

/// The faults that are wanted.
#[derive(Debug, Default)]
pub struct Faults {
    any: AtomicBool,
    list: Mutex<Vec<Fault>>,
}

impl Faults {
    /// Replaces the faults by those in `text`: `function:which=action`, separated by commas. `which` is a number (that call
    /// alone, from now), a number and `+` (from that call on) or `*` (all); `action` is `lose`, or what `answer` knows.
    ///
    /// # Errors
    /// What is wrong in it.
    pub fn set(&self, text: &str, answer: impl Fn(&str) -> Option<u32>) -> Result<(), String> {
        let mut faults = Vec::new();
        for part in text.split(',').map(str::trim).filter(|part| !part.is_empty()) {
            faults.push(parse(part, &answer).ok_or_else(|| {
                format!(
                    "{part}: a fault is function:which=answer, with `which` 3, 3+ or *, and an answer may be `lose`"
                )
            })?);
        }
        let mut list = lock(&self.list);
        self.any.store(!faults.is_empty(), Ordering::Relaxed);
        *list = faults;
        Ok(())
    }

    /// A call begins: what happens instead of it, if anything.
    pub fn hit(&self, function: &str) -> Option<Action> {
        if !self.any.load(Ordering::Relaxed) {
            return None;
        }
        let mut hit = None;
        for fault in lock(&self.list).iter_mut() {
            if fault.function == "*" || fault.function == function {
                fault.calls += 1;
                let is_it = match fault.which {
                    Which::Only(number) => fault.calls == number,
                    Which::From(number) => fault.calls >= number,
                };
                if is_it && hit.is_none() {
                    hit = Some(fault.action);
                }
            }
        }
        hit
    }
}

fn parse(part: &str, answer: &impl Fn(&str) -> Option<u32>) -> Option<Fault> {
    let (function, rest) = part.split_once(':')?;
    let (which, action) = rest.split_once('=')?;
    let which = match (which, which.strip_suffix('+')) {
        ("*", _) => Which::From(1),
        (_, Some(number)) => Which::From(number.parse().ok()?),
        (number, None) => Which::Only(number.parse().ok().filter(|number| *number > 0)?),
    };
    let action = if action == "lose" { Action::Lose } else { Action::Answer(answer(action)?) };
    Some(Fault { function: function.to_owned(), which, action, calls: 0 })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn faults(text: &str) -> Result<Faults, String> {
        let faults = Faults::default();
        faults.set(text, |name| (name == "bad").then_some(7))?;
        Ok(faults)
    }

    #[test]
    fn the_calls_that_are_named_fail() {
        let faults = faults("one:2=bad, two:2+=lose,*:5=bad").unwrap();
        let hits = |name| faults.hit(name);
        assert_eq!(hits("one"), None);
        assert_eq!(hits("one"), Some(Action::Answer(7)));
        assert_eq!(hits("two"), None);
        assert_eq!(hits("two"), Some(Action::Lose));
        assert_eq!(hits("three"), Some(Action::Answer(7)));
        assert_eq!(hits("one"), None);
        assert_eq!(hits("two"), Some(Action::Lose));
    }

    #[test]
    fn what_is_no_fault_says_what_one_is() {
        for text in ["x", "x:1", "x:0=bad", "x:y=bad", "x:1=unknown", "x:+=bad"] {
            assert!(faults(text).unwrap_err().contains(text), "{text}");
        }
        assert_eq!(faults("").unwrap().hit("x"), None);
    }
}
