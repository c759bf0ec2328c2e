//! [`Name`]: a name in `/dev/shm` that does not outlive its test.

use std::fmt;

use crate::Actor;

/// A name for an actor's shared memory, taken away when dropped: a test that fails kills its actors, which leaves names behind.
#[derive(Debug)]
pub struct Name(String);

impl Name {
    /// Of an actor, for a purpose.
    #[must_use]
    pub fn of(actor: &Actor, purpose: &str) -> Self {
        Self(format!("/umf-tests-{}-{purpose}", actor.pid()))
    }
}

impl fmt::Display for Name {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl Drop for Name {
    fn drop(&mut self) {
        // Most often it is gone by now.
        let _ = std::fs::remove_file(format!("/dev/shm{}", self.0));
    }
}
