//! [`Context`]: the environment, folders and privileges of a process, as far as settings depend on them.

use std::collections::BTreeMap;
use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;

use umf_os::{environment, process};

/// The environment, folders and privileges of a process: all external input of loading except the
/// files.
///
/// A test constructs its own, and does not depend on the process.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Context {
    /// Environment variables. Only `UMF_*` and `XDG_CONFIG_HOME` are read.
    pub env: BTreeMap<OsString, OsString>,
    /// The effective user id. A settings file in the working directory is read only if it belongs
    /// to this user or to root.
    pub user: u32,
    /// The working directory.
    pub cwd: Option<PathBuf>,
    /// The user's home folder.
    pub home: Option<PathBuf>,
    /// The folder of the system's configuration, `/etc`.
    pub system: Option<PathBuf>,
    /// Whether the process runs with more rights than its caller (`AT_SECURE`: set-user-id, file
    /// capabilities). Then all sources that the caller controls are ignored: the environment, the
    /// working directory and the user's folder. The system's file and the program's values are
    /// used.
    pub secure: bool,
}

impl Context {
    /// Returns a context of root without variables and folders.
    pub const fn empty() -> Self {
        Self { env: BTreeMap::new(), user: 0, cwd: None, home: None, system: None, secure: false }
    }

    /// Returns the current context of this process.
    pub fn process() -> Self {
        let env = environment::variables()
            .filter(|(name, _)| name.as_bytes().starts_with(b"UMF_") || name == "XDG_CONFIG_HOME")
            .collect();
        Self {
            env,
            user: process::effective_uid(),
            cwd: std::env::current_dir().ok(),
            home: environment::home_dir(),
            system: Some(PathBuf::from("/etc")),
            secure: environment::is_secure(),
        }
    }

    /// Adds a variable.
    #[must_use]
    pub fn with_variable(mut self, name: impl Into<OsString>, value: impl Into<OsString>) -> Self {
        self.env.insert(name.into(), value.into());
        self
    }

    /// Returns the value of a variable. Empty variables and those of a secure process are unset.
    pub(crate) fn variable(&self, name: &str) -> Option<&OsStr> {
        self.variables().find(|(variable, _)| *variable == name).map(|(_, value)| value)
    }

    /// Returns all variables that are not empty; none in a secure process.
    pub(crate) fn variables(&self) -> impl Iterator<Item = (&OsStr, &OsStr)> {
        self.env
            .iter()
            .filter(|(_, value)| !self.secure && !value.is_empty())
            .map(|(name, value)| (name.as_os_str(), value.as_os_str()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn process_context_has_only_relevant_variables() {
        let context = Context::process();
        assert!(context.cwd.is_some_and(|cwd| cwd.is_absolute()));
        assert!(!context.env.contains_key(OsStr::new("PATH")));
    }

    #[test]
    fn empty_variables_and_those_of_a_secure_process_are_unset() {
        let mut context = Context::empty().with_variable("UMF_A", "").with_variable("UMF_B", "1");
        assert_eq!(context.variable("UMF_A"), None);
        assert_eq!(context.variable("UMF_B"), Some(OsStr::new("1")));
        context.secure = true;
        assert_eq!(context.variable("UMF_B"), None);
    }
}
