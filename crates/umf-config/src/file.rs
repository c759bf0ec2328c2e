//! Reads one settings file, within bounds.

use std::fs::OpenOptions;
use std::io::{self, Read};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

use config::{FileFormat, Format};

use crate::layer::Tree;
use crate::locate::Candidate;
use crate::{Error, Warning, shown};

/// The most that is read of a settings file, in bytes.
pub const FILE_LIMIT: u64 = 1 << 20;

/// What became of a place where a file may be.
pub(crate) enum Found {
    /// There is none.
    Nothing,
    /// There is one that may not be read.
    Skipped(Warning),
    /// Its text.
    Text(String),
}

/// Reads the file of a candidate.
pub(crate) fn read(candidate: &Candidate) -> Result<Found, Error> {
    let path = candidate.path.as_path();
    match read_bounded(path) {
        Ok(text) => Ok(Found::Text(text)),
        Err(Error::FileUnreadable { source, .. }) if !candidate.required => match source.kind() {
            io::ErrorKind::NotFound | io::ErrorKind::NotADirectory => Ok(Found::Nothing),
            io::ErrorKind::PermissionDenied => {
                Ok(Found::Skipped(Warning::UnreadableFile { path: path.to_path_buf() }))
            }
            _ => Err(unreadable(path, source)),
        },
        Err(error) => Err(error),
    }
}

fn unreadable(path: &Path, source: io::Error) -> Error {
    Error::FileUnreadable { path: path.to_path_buf(), source }
}

fn read_bounded(path: &Path) -> Result<String, Error> {
    // Without NONBLOCK, opening a pipe of this name would wait for its writer for ever.
    let file = OpenOptions::new()
        .read(true)
        .custom_flags(libc::O_NONBLOCK)
        .open(path)
        .map_err(|source| unreadable(path, source))?;
    let metadata = file.metadata().map_err(|source| unreadable(path, source))?;
    if !metadata.is_file() {
        return Err(Error::FileNotRegular { path: path.to_path_buf() });
    }
    let mut bytes = Vec::new();
    // The size in the metadata may change, so the reading itself is bounded.
    file.take(FILE_LIMIT + 1).read_to_end(&mut bytes).map_err(|source| unreadable(path, source))?;
    if bytes.len() as u64 > FILE_LIMIT {
        return Err(Error::FileTooLarge { path: path.to_path_buf(), limit: FILE_LIMIT });
    }
    String::from_utf8(bytes).map_err(|error| Error::FileNotText {
        path: path.to_path_buf(),
        offset: error.utf8_error().valid_up_to(),
    })
}

/// Parses TOML; each value remembers `uri`. An error is where and why.
pub(crate) fn parse(text: &str, uri: &String) -> Result<Tree, String> {
    let text = text.strip_prefix('\u{feff}').unwrap_or(text);
    FileFormat::Toml.parse(Some(uri), text).map_err(|error| reason(&error.to_string(), text))
}

/// What the TOML reader says, on one line and without the piece of the file that it quotes: that may
/// be long, and may disturb a terminal.
fn reason(message: &str, text: &str) -> String {
    let mut lines = message.lines().map(shown::plain);
    let first = lines.next().unwrap_or_default();
    match lines.next_back() {
        Some(last) => format!("{first}: {last}"),
        // Numbers are read after the syntax, by a reader that does not say where.
        None => match text.lines().position(has_long_number) {
            Some(line) => format!("{first}, probably at line {}", line + 1),
            None => first,
        },
    }
}

/// Whether a line holds a number that may not fit into 64 bits.
fn has_long_number(line: &str) -> bool {
    line.split(|character: char| !character.is_ascii_hexdigit() && character != '_')
        .any(|word| word.len() >= 16 && word.bytes().any(|byte| byte.is_ascii_digit()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_no_toml_is_told_on_one_line_that_says_where() {
        let refusal = |text: &str| parse(text, &String::new()).unwrap_err();
        let syntax = refusal("[ipc]\nlimit = \n");
        assert!(syntax.contains("line 2") && !syntax.contains('\n'), "{syntax}");
        let number = refusal("[ipc]\nlimit = 99999999999999999999\n");
        assert!(number.contains("too large") && number.contains("line 2"), "{number}");
    }

    #[test]
    fn a_byte_order_mark_is_no_key() {
        assert!(parse("\u{feff}[ipc]\n", &String::new()).is_ok());
    }
}
