//! [`Error`]: the reasons why settings cannot be loaded.

use std::io;
use std::path::PathBuf;

use crate::{Origin, escape};

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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Warning;

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
