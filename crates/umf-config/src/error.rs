//! [`Error`]: the reasons why settings cannot be loaded; and [`Warning`], problems that do not prevent it.

use std::io;
use std::path::PathBuf;

use crate::Origin;

/// The reason why settings cannot be loaded. The text has the source, the key and what to do.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A settings file could not be opened or read.
    #[error("cannot read settings file {}: {source}; {}", escape::path(path), remedy(source))]
    FileUnreadable {
        /// The file.
        path: PathBuf,
        /// The system's error.
        source: io::Error,
    },
    /// The path of a settings file is a folder, a pipe or a device.
    #[error("settings file {} is not a regular file; put a regular file there", escape::path(path))]
    FileNotRegular {
        /// The file.
        path: PathBuf,
    },
    /// A settings file is larger than [`crate::FILE_LIMIT`].
    #[error(
        "settings file {} is larger than {limit} bytes; settings are short, so check that the path is right",
        escape::path(path)
    )]
    FileTooLarge {
        /// The file.
        path: PathBuf,
        /// The limit in bytes.
        limit: u64,
    },
    /// A settings file is not UTF-8 text.
    #[error(
        "settings file {} is not UTF-8 text (first wrong byte at offset {offset}); save it as UTF-8",
        escape::path(path)
    )]
    FileNotText {
        /// The file.
        path: PathBuf,
        /// Offset of the first byte that is not UTF-8.
        offset: usize,
    },
    /// A settings file is not TOML.
    #[error("{origin}: not valid TOML: {reason}; correct it")]
    FileSyntax {
        /// The line.
        origin: Origin,
        /// The reason of the TOML parser.
        reason: String,
    },
    /// The variable `UMF_SET` is not TOML.
    #[error("{variable}: not valid TOML: {reason}; correct it, or unset the variable")]
    VariableSyntax {
        /// The variable.
        variable: String,
        /// The reason of the TOML parser.
        reason: String,
    },
    /// A key does not exist.
    #[error("{origin}: unknown key {key}; {}", remedy_of_key(closest.as_deref(), kinds, valid))]
    UnknownKey {
        /// The key.
        key: String,
        /// Where it stands.
        origin: Origin,
        /// The most similar key of the same section, or a key of the same name in another section.
        closest: Option<String>,
        /// The kinds that have this key.
        kinds: Box<[String]>,
        /// All valid keys of the section.
        valid: Box<[String]>,
    },
    /// A value is invalid for its key.
    #[error("{origin}: {key} = {value}: not valid; valid is {expected}")]
    BadValue {
        /// The key.
        key: String,
        /// The value, quoted and shortened.
        value: String,
        /// Where it stands.
        origin: Origin,
        /// The valid values.
        expected: String,
    },
    /// The value of a variable is not Unicode text.
    #[error("{variable}: its value{} is not UTF-8 text; set it to UTF-8 text, or unset it", key.as_ref().map_or_else(String::new, |key| format!(" for {key}")))]
    NotUnicode {
        /// The variable.
        variable: String,
        /// The key that it sets.
        key: Option<String>,
    },
    /// A variable matches several sets, whose names differ only in case or hyphens.
    #[error("{variable} is ambiguous: it could mean any of {}; use UMF_SET or a file", candidates.join(", "))]
    AmbiguousVariable {
        /// The variable.
        variable: String,
        /// The keys that it matches.
        candidates: Vec<String>,
    },
    /// The name of a set is invalid.
    #[error(
        "{origin}: invalid name {name} in {section}; a name is 1 to 64 letters, digits, hyphens and underscores and starts with \
         a letter or digit"
    )]
    BadName {
        /// The section that the name stands in.
        section: String,
        /// The name, quoted and shortened.
        name: String,
        /// Where it stands.
        origin: Origin,
    },
    /// The source may not set this value, which names code, a file to write, or a process that may
    /// trace this one.
    #[error(
        "{origin}: {key} is refused: this source is not trusted to choose code to run, files to write or processes that may \
         trace this one (a file in the working directory or an inherited variable may come from another user); set it in \
         the file that UMF_TOML names, in the user's or the system's umf.toml, or in the program"
    )]
    Refused {
        /// The key.
        key: String,
        /// Where it stands.
        origin: Origin,
    },
    /// A value refers to a name that is not defined.
    #[error("{origin}: {key} = {value}: does not exist; {}", existing(valid))]
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
    /// A key was removed, or is set by two of its names.
    #[error("{origin}: {key}: {reason}")]
    Conflict {
        /// The key.
        key: String,
        /// Where it stands.
        origin: Origin,
        /// The reason, and what to do.
        reason: String,
    },
    /// The sources could not be merged.
    #[error("cannot merge the sources of settings: {reason}; this is a fault of umf, please report it")]
    Merge {
        /// The error of the crate `config`.
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

fn remedy_of_key(closest: Option<&str>, kinds: &[String], valid: &[String]) -> String {
    let kinds: Vec<_> = kinds.iter().map(|kind| format!("{kind:?}")).collect();
    match (closest, &kinds[..]) {
        (Some(closest), _) => format!("did you mean {closest}?"),
        (None, []) => format!("valid here: {}", valid.join(", ")),
        (None, kinds) => {
            format!("it is a key of kind {}; valid here: {}", kinds.join(" and "), valid.join(", "))
        }
    }
}

fn existing(valid: &[String]) -> String {
    if valid.is_empty() {
        "none is defined: define it first".to_owned()
    } else {
        format!("define it, or use one of: {}", valid.join(", "))
    }
}

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

/// Escaping of external text in messages: control characters are escaped and long texts cut, so
/// that they cannot corrupt a terminal or a log.
pub(crate) mod escape {
    use std::path::Path;

    use config::{Value, ValueKind};

    /// Limit of the characters of a text.
    const MAX_LENGTH: usize = 120;

    /// Returns the escaped text in quotes.
    pub(crate) fn quoted(text: &str) -> String {
        format!("\"{}\"", plain(text))
    }

    /// Returns the escaped text without quotes.
    pub(crate) fn plain(text: &str) -> String {
        let mut short: String = text.chars().take(MAX_LENGTH).flat_map(char::escape_debug).collect();
        if text.chars().nth(MAX_LENGTH).is_some() {
            short.push_str("...");
        }
        short
    }

    /// Returns the escaped path. Paths are not cut, because a partial path is of no use.
    pub(crate) fn path(path: &Path) -> String {
        path.to_string_lossy().chars().flat_map(char::escape_debug).collect()
    }

    /// Returns the escaped value of a source.
    pub(crate) fn value(value: &Value) -> String {
        match &value.kind {
            ValueKind::String(text) => quoted(text),
            ValueKind::Table(_) => "(a table)".to_owned(),
            ValueKind::Array(list) => {
                let elements: Vec<_> = list.iter().take(8).map(self::value).collect();
                let more = if list.len() > 8 { ", ..." } else { "" };
                format!("[{}{more}]", elements.join(", "))
            }
            other => plain(&other.to_string()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn control_characters_of_paths_are_escaped() {
        let path = PathBuf::from("/a\u{1b}[2Jb\nc\u{202e}d/".to_owned() + &"e".repeat(200));
        let texts = [
            Error::FileNotRegular { path: path.clone() }.to_string(),
            Warning::LinkedFile { path: path.clone() }.to_string(),
            Origin::line(&path, 1).to_string(),
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
    fn unreadable_file_has_the_remedy_of_its_errno() {
        let unreadable = |errno| {
            let source = io::Error::from_raw_os_error(errno);
            Error::FileUnreadable { path: PathBuf::from("/etc/umf.toml"), source }.to_string()
        };
        assert!(unreadable(libc::EMFILE).contains("RLIMIT_NOFILE"));
        assert!(unreadable(libc::ENFILE).contains("fs.file-max"));
        assert!(unreadable(libc::EACCES).contains("make it readable"));
    }
}
