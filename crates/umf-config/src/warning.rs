//! [`Warning`]: problems in settings that do not prevent loading.

use std::path::PathBuf;

use crate::escape;

/// A problem that does not prevent loading. This crate prints nothing; the program reports
/// warnings.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Warning {
    /// A variable starts with `UMF_` and is unknown.
    #[error(
        "environment variable {variable} is not one of umf's and is ignored{}",
        closest.as_ref().map_or_else(String::new, |name| format!("; did you mean {name}?"))
    )]
    UnknownVariable {
        /// The variable.
        variable: String,
        /// The most similar known variable.
        closest: Option<String>,
    },
    /// A legacy variable has an invalid value. The effect is that of the library that defined it.
    #[error("invalid value {value} of environment variable {variable}: {effect}; valid is {expected}")]
    BadLegacyVariable {
        /// The variable.
        variable: &'static str,
        /// The value, quoted and shortened.
        value: String,
        /// The effect.
        effect: &'static str,
        /// The valid values.
        expected: &'static str,
    },
    /// A legacy variable and its successor are both set.
    #[error("environment variable {variable} is ignored: {by} is set and sets the same key")]
    Shadowed {
        /// The variable that is ignored.
        variable: String,
        /// The variable that is used.
        by: String,
    },
    /// A file in a default location is not readable by this process.
    #[error(
        "settings file {} is skipped: this process may not read it; make it readable, or remove it",
        escape::path(path)
    )]
    UnreadableFile {
        /// The file.
        path: PathBuf,
    },
    /// The working directory's file belongs to another user, or other users can write it.
    #[error(
        "settings file {} is ignored: it belongs to uid {owner} and has mode {mode:04o}, and a file in the working \
         directory must belong to uid {user} or root and be writable only by its owner; to use it, run `chown` and \
         `chmod go-w`, or name it with UMF_TOML",
        escape::path(path)
    )]
    UntrustedFile {
        /// The file.
        path: PathBuf,
        /// Its owner.
        owner: u32,
        /// Its mode: permissions, set-user-id, set-group-id and sticky bits.
        mode: u32,
        /// The effective user of this process.
        user: u32,
    },
    /// The working directory's file is a symbolic link.
    #[error(
        "settings file {} is ignored: it is a symbolic link, which is not followed in the working directory; \
         name its target with UMF_TOML",
        escape::path(path)
    )]
    LinkedFile {
        /// The link.
        path: PathBuf,
    },
}
