//! What this machine lets a test do.

use crate::{Actor, Spawn};

/// Says why a test proves nothing here, in the form that `tests/run` lists. The test then ends, and counts as passed.
pub fn skip(test: &str, why: &str) {
    println!("umf-skip: {test}: {why}");
}

/// Whether this process is root, which namespaces and other uids need.
#[must_use]
pub fn is_root() -> bool {
    // SAFETY: asks for a number.
    unsafe { libc::geteuid() == 0 }
}

/// An actor in new namespaces, or one line that says why there is none.
#[must_use]
pub fn in_namespaces(test: &str, spawn: Spawn, flags: i32) -> Option<Actor> {
    match spawn.namespaces(flags).try_start() {
        Ok(actor) => Some(actor),
        Err(error) => {
            skip(test, &format!("no namespaces of its own: {error}"));
            None
        }
    }
}

/// A variable asks for the long forms of tests.
#[must_use]
pub fn is_long() -> bool {
    std::env::var_os("UMF_TESTS_LONG").is_some_and(|value| value == "1")
}
