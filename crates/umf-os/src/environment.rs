//! The environment of this process, read in one place.
//!
//! The user of a program chooses its environment. If the program has more rights than its user
//! (`AT_SECURE`: set-user-id, set-group-id, file capabilities), a variable that names a file or a
//! library lets the user write or run it with those rights. All functions here then answer as
//! if no variable were set, like `secure_getenv(3)`.
//!
//! `clippy.toml` forbids the functions of the standard library and of the C library that read the
//! environment. The exceptions are this module and `soft_device::variable`.

#![expect(clippy::disallowed_methods, reason = "the other crates read the environment through this module")]

use core::ffi::CStr;
use core::ptr::NonNull;
use std::ffi::OsString;
use std::path::PathBuf;

/// Returns whether this process has more rights than the user that started it (`AT_SECURE`,
/// `getauxval(3)`).
///
/// The kernel decides this at `execve`. A process that changes its user ids later keeps the answer.
#[must_use]
pub fn is_secure() -> bool {
    // SAFETY: `getauxval` takes a number and reads what the kernel gave this process at `execve`.
    unsafe { libc::getauxval(libc::AT_SECURE) != 0 }
}

/// Returns the value of a variable; `None` if it is unset or the process [is secure](is_secure).
#[must_use]
pub fn variable(name: &str) -> Option<OsString> {
    if is_secure() { None } else { std::env::var_os(name) }
}

/// Returns the names and values of all variables; none if the process [is secure](is_secure).
pub fn variables() -> impl Iterator<Item = (OsString, OsString)> {
    let variables = if is_secure() { None } else { Some(std::env::vars_os()) };
    variables.into_iter().flatten()
}

/// Returns the user's home folder, which `HOME` or the user database names; `None` if there is none
/// or the process [is secure](is_secure).
#[must_use]
pub fn home_dir() -> Option<PathBuf> {
    if is_secure() { None } else { std::env::home_dir() }
}

/// Calls `read` with the value of a variable and returns its result; `None` if the variable is
/// unset or the process [is secure](is_secure).
///
/// Allocates nothing, so that an allocator can use it. `read` must not change the environment.
pub fn with_variable<T>(name: &CStr, read: impl FnOnce(&CStr) -> T) -> Option<T> {
    if is_secure() {
        return None;
    }
    // SAFETY: a C string; as everywhere, no thread changes the environment while others read it.
    let value = NonNull::new(unsafe { libc::getenv(name.as_ptr()) })?;
    // SAFETY: getenv returns C strings that stay until the variable is changed.
    Some(read(unsafe { CStr::from_ptr(value.as_ptr()) }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_of_its_own_user_is_not_secure() {
        assert!(!is_secure());
    }

    #[test]
    fn all_readers_give_the_same_values() {
        let set: Vec<_> = variables().collect();
        assert_eq!(set, std::env::vars_os().collect::<Vec<_>>());
        for (name, value) in &set {
            if let Some(name) = name.to_str() {
                assert_eq!(variable(name).as_ref(), Some(value), "{name}");
            }
        }
        assert_eq!(home_dir(), std::env::home_dir());
        let path = with_variable(c"PATH", |value| value.to_bytes().to_vec());
        assert_eq!(path, variable("PATH").map(OsString::into_encoded_bytes));
        assert_eq!(with_variable(c"UMF_OS_IS_NOT_SET", CStr::is_empty), None);
    }
}
