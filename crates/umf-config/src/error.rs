//! What can be wrong with settings.

use std::io;
use std::path::PathBuf;

use crate::Origin;

/// Why settings could not be loaded: what happened, to what, and what to do.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A settings file could not be opened or read.
    #[error(
        "cannot read settings file {}: {source}; make it readable, or name another with UMF_TOML",
        path.display()
    )]
    FileUnreadable {
        /// The file.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// The path of a settings file names a folder, a pipe or a device.
    #[error("settings file {} is not a regular file; put a regular file there", path.display())]
    FileNotRegular {
        /// The file.
        path: PathBuf,
    },
    /// A settings file is larger than this crate reads.
    #[error(
        "settings file {} is larger than {limit} bytes; settings are short, so check that the path is right",
        path.display()
    )]
    FileTooLarge {
        /// The file.
        path: PathBuf,
        /// The most that is read, in bytes.
        limit: u64,
    },
    /// A settings file is not UTF-8 text.
    #[error(
        "settings file {} is not UTF-8 text (first wrong byte at offset {offset}); save it as UTF-8",
        path.display()
    )]
    FileNotText {
        /// The file.
        path: PathBuf,
        /// Offset of the first byte that is not UTF-8.
        offset: usize,
    },
    /// A settings file is not TOML.
    #[error("settings file {} is not valid TOML: {reason}", path.display())]
    FileSyntax {
        /// The file.
        path: PathBuf,
        /// Where and why, as the TOML reader says it.
        reason: String,
    },
    /// A key that means nothing.
    #[error(
        "unknown key `{key}` ({origin}); {}valid here: {}",
        suggestion(closest.as_deref()),
        valid.join(", ")
    )]
    UnknownKey {
        /// The key.
        key: String,
        /// Where it stands.
        origin: Origin,
        /// The known key that is most like it.
        closest: Option<String>,
        /// Every key that would be valid in its place.
        valid: Vec<String>,
    },
    /// A value that its key cannot have.
    #[error("bad value {value} for `{key}` ({origin}); valid is {expected}")]
    BadValue {
        /// The key.
        key: String,
        /// The value, quoted and shortened.
        value: String,
        /// Where it stands.
        origin: Origin,
        /// What would be valid.
        expected: String,
    },
    /// The value of a variable is not Unicode text.
    #[error(
        "the value of environment variable {variable} for `{key}` is not UTF-8 text; valid is {expected}"
    )]
    NotUnicode {
        /// The variable.
        variable: String,
        /// The key that it sets.
        key: String,
        /// What would be valid.
        expected: String,
    },
    /// A variable could mean several sets, whose names differ in letter case or hyphens only.
    #[error(
        "environment variable {variable} could mean any of {}; rename them so that they differ in more than letter case and hyphens",
        candidates.join(", ")
    )]
    AmbiguousVariable {
        /// The variable.
        variable: String,
        /// The keys that it could set.
        candidates: Vec<String>,
    },
    /// The name of a pool, provider set or shared limit that cannot be one.
    #[error(
        "bad name {name} in `{section}` ({origin}); a name is 1 to 64 letters, digits, hyphens and underscores and starts with a letter or digit"
    )]
    BadName {
        /// The section that the name stands in.
        section: &'static str,
        /// The name, quoted and shortened.
        name: String,
        /// Where it stands.
        origin: Origin,
    },
    /// A plugin is named by a source that is not trusted to name code.
    #[error(
        "`{key}` ({origin}) is refused: a plugin is code that runs in this process, and this source is not trusted to choose it \
         (a file may merely lie in the working directory, a variable may be inherited); set it in the file that UMF_TOML names, \
         in the user's or the system's umf.toml, or in the program"
    )]
    UntrustedPlugin {
        /// The key: a plugin's path or symbol.
        key: String,
        /// Where it stands.
        origin: Origin,
    },
    /// The working directory's file sets a key that it may not set.
    #[error(
        "`{key}` ({origin}) is refused: a file that merely lies in the working directory may not choose log files or the \
         processes that may trace this one; set it in the file that UMF_TOML names, in the user's or the system's umf.toml, \
         in the environment, or in the program"
    )]
    UntrustedKey {
        /// The key: `ipc.ptracer`, or `log.output` with a file.
        key: String,
        /// Where it stands.
        origin: Origin,
    },
    /// A value names something that does not exist.
    #[error("`{key}` ({origin}) names {value}, which does not exist; {}", existing(valid))]
    UnknownReference {
        /// The key.
        key: String,
        /// The name, quoted and shortened.
        value: String,
        /// Where it stands.
        origin: Origin,
        /// The names that exist.
        valid: Vec<String>,
    },
    /// Two keys that do not go together, or one that lacks another.
    #[error("`{key}` ({origin}): {reason}")]
    Conflict {
        /// The key.
        key: String,
        /// Where it stands.
        origin: Origin,
        /// Why it is wrong and what to do.
        reason: String,
    },
    /// The sources could not be merged.
    #[error("cannot merge the sources of settings: {reason}; this is a fault of umf, please report it")]
    Merge {
        /// What the merging crate said.
        reason: String,
    },
}

fn suggestion(closest: Option<&str>) -> String {
    closest.map_or_else(String::new, |key| format!("did you mean `{key}`? "))
}

fn existing(valid: &[String]) -> String {
    if valid.is_empty() {
        "none is defined: define it first".to_owned()
    } else {
        format!("define it, or use one of: {}", valid.join(", "))
    }
}
