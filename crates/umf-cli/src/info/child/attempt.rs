//! Attempts at system calls that a seccomp filter may punish with death.

use std::time::Instant;

use rustix::io::Errno;

use super::bounded_child::{BoundedChild, Silence};
use super::{Role, TIME, say};
use crate::info::trial;

/// Why an attempt told nothing of the call.
pub(crate) enum Unanswered {
    /// The kernel killed the child for it.
    Killed,
    /// The attempt could not be made, in a few words.
    NotMade(String),
}

/// Makes the attempt of `key` in a child.
pub(crate) fn attempt(key: &str) -> Result<Result<(), Errno>, Unanswered> {
    let mut child = BoundedChild::start(&Role::Attempt(key.to_owned()), Instant::now() + TIME)
        .map_err(Unanswered::NotMade)?;
    match child.answer::<i32>() {
        Ok(0) => Ok(Ok(())),
        Ok(number) => Ok(Err(Errno::from_raw_os_error(number))),
        Err(Silence::BadCall) => Err(Unanswered::Killed),
        Err(Silence::Other(reason)) => Err(Unanswered::NotMade(reason)),
    }
}

/// In the child: makes the attempt and prints its error number, or 0.
pub(super) fn make(key: &str) -> std::io::Result<()> {
    let trial = trial::find(key).ok_or(Errno::INVAL)?;
    let number = (trial.attempt)().err().map_or(0, Errno::raw_os_error);
    say(&number)
}
