//! What a process is started with, as far as settings depend on it.

use std::collections::BTreeMap;
use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;

use umf_os::{environment, process};

/// Environment, folders and trust: everything outside that loading looks at.
///
/// A test makes one of its own, and does not touch the process.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Context {
    /// The variables that matter: `UMF_*` and `XDG_CONFIG_HOME`; others do no harm.
    pub env: BTreeMap<OsString, OsString>,
    /// The effective user id. A settings file of the working directory counts only if it belongs to
    /// this user or to root.
    pub user: u32,
    /// The working directory.
    pub cwd: Option<PathBuf>,
    /// The user's home folder.
    pub home: Option<PathBuf>,
    /// The folder of the system's configuration.
    pub system: Option<PathBuf>,
    /// Whether the process runs with more rights than who started it (`AT_SECURE`: set-user-id,
    /// file capabilities). Then everything that the starter controls is ignored: the environment,
    /// the working directory and the user's folder. What the system and the program say holds.
    pub secure: bool,
}

impl Context {
    /// A context of root, in which nothing is set and no file is found.
    pub const fn empty() -> Self {
        Self { env: BTreeMap::new(), user: 0, cwd: None, home: None, system: None, secure: false }
    }

    /// The context of this process, as it is now.
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

    /// The value of a variable, where the environment may be heeded; an empty one counts as unset.
    pub(crate) fn variable(&self, name: &str) -> Option<&OsStr> {
        self.variables().find(|(variable, _)| *variable == name).map(|(_, value)| value)
    }

    /// All variables that are not empty, where the environment may be heeded.
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
    fn a_process_context_holds_what_matters_and_no_more() {
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
