//! What can be wrong with settings.

use std::io;
use std::path::PathBuf;

use crate::{Origin, shown};

/// Why settings could not be loaded: what happened, to what, and what to do.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A settings file could not be opened or read.
    #[error("cannot read settings file {}: {source}; {}", shown::path(path), remedy(source))]
    FileUnreadable {
        /// The file.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// The path of a settings file names a folder, a pipe or a device.
    #[error("settings file {} is not a regular file; put a regular file there", shown::path(path))]
    FileNotRegular {
        /// The file.
        path: PathBuf,
    },
    /// A settings file is larger than this crate reads.
    #[error(
        "settings file {} is larger than {limit} bytes; settings are short, so check that the path is right",
        shown::path(path)
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
        shown::path(path)
    )]
    FileNotText {
        /// The file.
        path: PathBuf,
        /// Offset of the first byte that is not UTF-8.
        offset: usize,
    },
    /// A settings file is not TOML.
    #[error("settings file {} is not valid TOML: {reason}", shown::path(path))]
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

fn remedy(source: &io::Error) -> &'static str {
    match source.raw_os_error() {
        Some(libc::EMFILE) => {
            "this process has no descriptors left: raise RLIMIT_NOFILE (ulimit -n) or close some"
        }
        Some(libc::ENFILE) => "the system has no descriptors left: raise fs.file-max",
        _ => "make it readable, or name another with UMF_TOML",
    }
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Warning;

    #[test]
    fn paths_are_shown_without_what_would_act_on_a_terminal() {
        let path = PathBuf::from("/a\u{1b}[2Jb\nc\u{202e}d/".to_owned() + &"e".repeat(200));
        let texts = [
            Error::FileNotRegular { path: path.clone() }.to_string(),
            Warning::LinkedFile { path: path.clone() }.to_string(),
            Origin::File(path).to_string(),
        ];
        for text in texts {
            assert!(!text.chars().any(|char| char.is_control() || char == '\u{202e}'), "{text:?}");
            assert!(
                text.contains("/a\\u{1b}[2Jb\\nc\\u{202e}d/eee") && text.contains(&"e".repeat(200)),
                "{text}"
            );
        }
    }

    #[test]
    fn a_file_for_which_there_is_no_descriptor_needs_no_other_rights() {
        let unreadable = |errno| {
            let source = io::Error::from_raw_os_error(errno);
            Error::FileUnreadable { path: PathBuf::from("/etc/umf.toml"), source }.to_string()
        };
        assert!(unreadable(libc::EMFILE).contains("RLIMIT_NOFILE"));
        assert!(unreadable(libc::ENFILE).contains("fs.file-max"));
        assert!(unreadable(libc::EACCES).contains("make it readable"));
    }
}
