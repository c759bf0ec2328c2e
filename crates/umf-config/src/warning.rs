//! What is odd, and does not stop anything.

use std::path::PathBuf;

use crate::shown;

/// Something that the user should hear of. This crate prints nothing: showing warnings is up to the
/// program.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Warning {
    /// A variable that starts with `UMF_` and means nothing here.
    #[error(
        "environment variable {variable} is not one of umf's and is ignored{}",
        closest.as_ref().map_or_else(String::new, |name| format!("; did you mean {name}?"))
    )]
    UnknownVariable {
        /// The variable.
        variable: String,
        /// The known variable that is most like it.
        closest: Option<String>,
    },
    /// A variable of an older library whose value means nothing; it has the effect that it had there.
    #[error("bad value {value} of environment variable {variable}: {effect}; valid is {expected}")]
    BadLegacyVariable {
        /// The variable.
        variable: &'static str,
        /// The value, quoted and shortened.
        value: String,
        /// What happens now.
        effect: &'static str,
        /// What would be valid.
        expected: &'static str,
    },
    /// A variable of an older library is set beside the one that took its place.
    #[error("environment variable {variable} is ignored: {by} is set and sets the same key")]
    Shadowed {
        /// The variable that is ignored.
        variable: String,
        /// The variable that is obeyed.
        by: String,
    },
    /// A file in a usual place exists and may not be read.
    #[error(
        "settings file {} may not be read and is skipped; make it readable, or remove it",
        shown::path(path)
    )]
    UnreadableFile {
        /// The file.
        path: PathBuf,
    },
    /// The working directory's file belongs to another user, or other users can write it.
    #[error(
        "settings file {} is ignored: it belongs to uid {owner} and has mode {mode:04o}, and the file of the working \
         directory counts only if it belongs to uid {user} or root, and neither its group nor other users can write it; \
         to use it, take it over with `chown` and `chmod go-w`, or name it with UMF_TOML",
        shown::path(path)
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
        shown::path(path)
    )]
    LinkedFile {
        /// The link.
        path: PathBuf,
    },
}
