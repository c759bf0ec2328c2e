//! Trials of single system calls, made in a child where a seccomp filter might kill for them.

use super::child::{self, Unanswered};
use super::finding::{Finding, ask};
use super::{kernel, kernel_files, numa};
use crate::sys::Outcome;

/// One thing to try.
pub(crate) struct Trial {
    /// The finding's stable name.
    pub(crate) key: &'static str,
    /// Why it matters to umf.
    pub(crate) why: &'static str,
    /// The kernel release that brought it.
    pub(crate) since: &'static str,
    /// Tries it and leaves nothing behind.
    pub(crate) attempt: fn() -> Outcome<()>,
}

/// What seccomp does to this process.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Filter {
    /// Nothing, or the kernel has no seccomp.
    None,
    /// Only read, write and exit are left.
    Strict,
    /// A filter looks at every call.
    Installed,
}

/// Looks what seccomp does to this process.
///
/// # Errors
/// The file that could not be read.
pub(crate) fn filter() -> Result<Filter, String> {
    let status = kernel_files::text("/proc/self/status")?;
    Ok(match kernel_files::field(&status, "Seccomp") {
        Some("1") => Filter::Strict,
        Some("2") => Filter::Installed,
        _ => Filter::None,
    })
}

/// The trial of this key.
pub(crate) fn find(key: &str) -> Option<&'static Trial> {
    kernel::TRIALS.iter().chain([&numa::BINDING]).find(|trial| trial.key == key)
}

impl Trial {
    /// Runs the trial, here or in a child.
    pub(crate) fn run(&self) -> Finding {
        let question = ask(self.key, self.why);
        if filter() != Ok(Filter::Installed) {
            return question.tried((self.attempt)(), self.since);
        }
        match child::attempt(self.key) {
            Ok(outcome) => question.tried(outcome, self.since),
            Err(Unanswered::Killed) => {
                let remedy = "A seccomp filter kills for it: allow it in the container's profile.";
                question.missing("killed (SIGSYS)", remedy).value(false)
            }
            Err(Unanswered::NotMade(reason)) => {
                let remedy = "Make room for child processes (ulimit -u, ulimit -n).";
                let text = format!("could not be tried: {reason}");
                question.limited(text, remedy).value(serde_json::Value::Null)
            }
        }
    }
}
