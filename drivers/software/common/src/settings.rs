//! Settings from environment variables, and faults: calls that fail on demand.

use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use crate::{Error, Health, Result, lock};

/// Returns the value of an environment variable. `None` if it is unset, is not UTF-8, or the
/// process has more rights than the user that started it (`AT_SECURE`).
///
/// Drivers read the environment with this function and not with `umf_os::environment`: they stand
/// for drivers that share no code with umf. A library that contains umf-sync is never unloaded, and
/// loaders unload drivers.
#[expect(clippy::disallowed_methods, reason = "checks `AT_SECURE` itself, and shares no code with umf")]
#[must_use]
pub fn variable(name: &str) -> Option<String> {
    // SAFETY: `getauxval` takes a number and reads the auxiliary vector of this process.
    let is_secure = unsafe { libc::getauxval(libc::AT_SECURE) } != 0;
    if is_secure { None } else { std::env::var(name).ok() }
}

/// A reader of variables with a common prefix. Its errors name the variable and the expected value.
pub struct Variables<F> {
    prefix: &'static str,
    find: F,
}

impl<F: Fn(&str) -> Option<String>> Variables<F> {
    /// Returns a reader of variables that begin with `prefix`; `find` returns their values.
    pub fn new(prefix: &'static str, find: F) -> Self {
        Self { prefix, find }
    }

    /// Returns the trimmed text of a variable. `None` if it is unset or empty.
    pub fn text(&self, name: &str) -> Option<String> {
        let value = (self.find)(&format!("{}_{name}", self.prefix))?.trim().to_owned();
        (!value.is_empty()).then_some(value)
    }

    /// Returns the parsed value of a variable, or `default` if it is unset.
    ///
    /// # Errors
    /// The variable and what is `expected`, if `parse` returns `None`.
    pub fn parsed<T>(
        &self,
        name: &str,
        default: T,
        expected: &str,
        parse: impl FnOnce(&str) -> Option<T>,
    ) -> core::result::Result<T, String> {
        let Some(text) = self.text(name) else { return Ok(default) };
        parse(&text).ok_or_else(|| format!("{}_{name}={text}: {expected} is expected", self.prefix))
    }

    /// Returns a number; K, M, G and T multiply it.
    ///
    /// # Errors
    /// The variable, if it is not a number from `least` to `most`.
    pub fn number(
        &self,
        name: &str,
        default: u64,
        least: u64,
        most: u64,
    ) -> core::result::Result<u64, String> {
        let expected = format!("a number from {least} to {most} (K, M, G and T multiply)");
        self.parsed(name, default, &expected, |text| {
            bytes(text).filter(|value| (least..=most).contains(value))
        })
    }

    /// Returns the index of a variable's value among `choices`, or 0 if it is unset.
    ///
    /// # Errors
    /// The variable, if its value is not among them.
    pub fn choice(&self, name: &str, choices: &[&str]) -> core::result::Result<usize, String> {
        let place = |text: &str| choices.iter().position(|choice| *choice == text);
        self.parsed(name, 0, &format!("one of {}", choices.join(", ")), place)
    }
}

fn bytes(text: &str) -> Option<u64> {
    let shift = match text.as_bytes().last()? {
        b'K' => 10,
        b'M' => 20,
        b'G' => 30,
        b'T' => 40,
        _ => return text.parse().ok(),
    };
    text[..text.len() - 1].parse::<u64>().ok()?.checked_mul(1 << shift)
}

/// The settings that all drivers have.
#[derive(Clone, Debug)]
pub struct Settings {
    /// Number of devices of the machine.
    pub devices: u32,
    /// Bytes of each device.
    pub memory: u64,
    /// Whether devices can access each other's memory.
    pub peers: bool,
    /// Maximum number of fds that the driver holds.
    pub fds: u64,
    /// Minimum duration of each command.
    pub delay: Duration,
    /// The faults that are injected from the start.
    pub faults: String,
}

impl Settings {
    /// Reads the settings. A device has at least `page` bytes.
    ///
    /// # Errors
    /// The invalid variable, and its expected value.
    pub fn read<F: Fn(&str) -> Option<String>>(
        variables: &Variables<F>,
        least_devices: u64,
        page: usize,
    ) -> core::result::Result<Self, String> {
        Ok(Self {
            devices: variables.number("DEVICES", 2, least_devices, 64)? as u32,
            memory: variables.number("MEMORY", 1 << 30, page as u64, 1 << 46)?,
            peers: variables.choice("PEERS", &["all", "none"])? == 0,
            fds: variables.number("MAX_FDS", u64::MAX, 0, u64::MAX)?,
            delay: Duration::from_micros(variables.number("DELAY", 0, 0, 60_000_000)?),
            faults: variables.text("FAULTS").unwrap_or_default(),
        })
    }
}

/// The effect of a fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Action {
    /// The call returns this result, and does nothing.
    Answer(u32),
    /// All devices are lost, and the call returns that.
    Lose,
}

/// The calls that a fault affects, counted from 1.
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
    /// Number of calls so far.
    calls: u64,
}

/// The injected faults.
#[derive(Debug, Default)]
pub struct Faults {
    is_active: AtomicBool,
    list: Mutex<Vec<Fault>>,
}

impl Faults {
    /// Replaces the faults by those in `text`: `function:which=action`, separated by commas.
    /// `which` is a number (that call alone, from now), a number and `+` (from that call on) or `*`
    /// (all); `action` is `lose`, or a name for which `answer` returns a number.
    ///
    /// # Errors
    /// The invalid part of `text`, and the expected syntax.
    pub fn set(&self, text: &str, answer: impl Fn(&str) -> Option<u32>) -> core::result::Result<(), String> {
        let mut faults = Vec::new();
        for part in text.split(',').map(str::trim).filter(|part| !part.is_empty()) {
            faults.push(parse(part, &answer).ok_or_else(|| {
                format!(
                    "{part}: not a fault; write function:which=answer, with `which` 3, 3+ or *, and the answer a result or `lose`"
                )
            })?);
        }
        let mut list = lock(&self.list);
        self.is_active.store(!faults.is_empty(), Ordering::Relaxed);
        *list = faults;
        Ok(())
    }

    /// Applies the fault for a call, if there is one. Called at the start of each exported
    /// function.
    ///
    /// # Errors
    /// [`Error::Fault`] with the result to return, or [`Error::Lost`].
    pub fn apply(&self, function: &str, health: &Health) -> Result<()> {
        match self.match_call(function) {
            None => Ok(()),
            Some(Action::Answer(answer)) => Err(Error::Fault(answer)),
            Some(Action::Lose) => {
                health.lose();
                Err(Error::Lost)
            }
        }
    }

    fn match_call(&self, function: &str) -> Option<Action> {
        if !self.is_active.load(Ordering::Relaxed) {
            return None;
        }
        let mut hit = None;
        for fault in lock(&self.list).iter_mut() {
            if fault.function == "*" || fault.function == function {
                fault.calls += 1;
                let matches = match fault.which {
                    Which::Only(number) => fault.calls == number,
                    Which::From(number) => fault.calls >= number,
                };
                if matches && hit.is_none() {
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

    fn read(name: &str, value: &str) -> core::result::Result<Settings, String> {
        let find = |wanted: &str| (wanted == name).then(|| value.to_owned());
        Settings::read(&Variables::new("SOFT", find), 1, 1 << 16)
    }

    #[test]
    fn values_are_read() {
        let settings = read("", "").unwrap();
        assert_eq!((settings.devices, settings.memory, settings.peers), (2, 1 << 30, true));
        assert_eq!(read("SOFT_MEMORY", " 64M").unwrap().memory, 64 << 20);
        assert!(!read("SOFT_PEERS", "none").unwrap().peers);
    }

    #[test]
    fn invalid_value_names_the_variable() {
        for (name, value) in [
            ("SOFT_DEVICES", "0"),
            ("SOFT_DEVICES", "many"),
            ("SOFT_MEMORY", "99999999999T"),
            ("SOFT_MEMORY", "G"),
            ("SOFT_PEERS", "some"),
            ("SOFT_DELAY", "-1"),
        ] {
            let error = read(name, value).unwrap_err();
            assert!(error.starts_with(&format!("{name}={value}: ")), "{error}");
        }
    }

    fn faults(text: &str) -> core::result::Result<Faults, String> {
        let faults = Faults::default();
        faults.set(text, |name| (name == "bad").then_some(7))?;
        Ok(faults)
    }

    #[test]
    fn faults_match_the_named_calls() {
        let faults = faults("one:2=bad, two:2+=lose,*:5=bad").unwrap();
        let hits = |name| faults.match_call(name);
        assert_eq!(hits("one"), None);
        assert_eq!(hits("one"), Some(Action::Answer(7)));
        assert_eq!(hits("two"), None);
        assert_eq!(hits("two"), Some(Action::Lose));
        assert_eq!(hits("three"), Some(Action::Answer(7)));
        assert_eq!(hits("one"), None);
        assert_eq!(hits("two"), Some(Action::Lose));
    }

    #[test]
    fn invalid_fault_is_named_in_the_error() {
        for text in ["x", "x:1", "x:0=bad", "x:y=bad", "x:1=unknown", "x:+=bad"] {
            assert!(faults(text).unwrap_err().contains(text), "{text}");
        }
        assert_eq!(faults("").unwrap().match_call("x"), None);
    }
}
