//! Reads one settings file, within bounds.

use std::fs::{Metadata, OpenOptions};
use std::io::{self, Read};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
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
    /// There is one that is not obeyed.
    Skipped(Warning),
    /// Its text.
    Text(String),
}

/// Reads the file of a candidate. `user` is the effective user of this process.
///
/// In a working directory such as `/tmp`, other users can make files, links and sockets. What they
/// make is a warning and not an error, because an error would let them stop the program.
pub(crate) fn read(candidate: &Candidate, user: u32) -> Result<Found, Error> {
    let path = candidate.path.as_path();
    match read_bounded(candidate, user) {
        Err(Error::FileUnreadable { source, .. }) if !candidate.required => match source.kind() {
            io::ErrorKind::NotFound | io::ErrorKind::NotADirectory => Ok(Found::Nothing),
            io::ErrorKind::PermissionDenied => {
                Ok(Found::Skipped(Warning::UnreadableFile { path: path.to_path_buf() }))
            }
            _ if candidate.trusted => Err(unreadable(path, source)),
            _ if source.raw_os_error() == Some(libc::ELOOP) => {
                Ok(Found::Skipped(Warning::LinkedFile { path: path.to_path_buf() }))
            }
            _ => Ok(Found::Skipped(Warning::UnreadableFile { path: path.to_path_buf() })),
        },
        other => other,
    }
}

fn unreadable(path: &Path, source: io::Error) -> Error {
    Error::FileUnreadable { path: path.to_path_buf(), source }
}

/// Returns whether a file belongs to `user` or root and no other user can write it.
fn is_of(metadata: &Metadata, user: u32) -> bool {
    [0, user].contains(&metadata.uid()) && metadata.mode() & 0o022 == 0
}

fn read_bounded(candidate: &Candidate, user: u32) -> Result<Found, Error> {
    let path = candidate.path.as_path();
    // Another user's link may lead to a file of root that is not meant as settings here.
    let follow = if candidate.trusted { 0 } else { libc::O_NOFOLLOW };
    // Without NONBLOCK, opening a pipe of this name would wait for its writer for ever.
    let file = OpenOptions::new()
        .read(true)
        .custom_flags(libc::O_NONBLOCK | follow)
        .open(path)
        .map_err(|source| unreadable(path, source))?;
    // `fstat`: the path may name another file by now.
    let metadata = file.metadata().map_err(|source| unreadable(path, source))?;
    if !candidate.trusted && !is_of(&metadata, user) {
        return Ok(Found::Skipped(Warning::UntrustedFile {
            path: path.to_path_buf(),
            owner: metadata.uid(),
            mode: metadata.mode() & 0o7777,
            user,
        }));
    }
    if !metadata.is_file() {
        return Err(Error::FileNotRegular { path: path.to_path_buf() });
    }
    let mut bytes = Vec::new();
    // The size in the metadata may change, so the reading itself is bounded.
    file.take(FILE_LIMIT + 1).read_to_end(&mut bytes).map_err(|source| unreadable(path, source))?;
    if bytes.len() as u64 > FILE_LIMIT {
        return Err(Error::FileTooLarge { path: path.to_path_buf(), limit: FILE_LIMIT });
    }
    let text = String::from_utf8(bytes).map_err(|error| Error::FileNotText {
        path: path.to_path_buf(),
        offset: error.utf8_error().valid_up_to(),
    })?;
    Ok(Found::Text(text))
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
