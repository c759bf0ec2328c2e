//! Reads one settings file, within bounds.

use std::fs::{Metadata, OpenOptions};
use std::io::{self, Read};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::Path;

use config::{Value, ValueKind};
use toml::Spanned;
use toml::de::{DeTable, DeValue};

use crate::locate::Candidate;
use crate::schema::Tree;
use crate::{Error, Origin, Warning, shown};

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

/// Parses TOML. Each value remembers the origin of its line. An error is a line and a reason.
pub(crate) fn parse(text: &str, origin: impl Fn(usize) -> Origin) -> Result<Tree, (usize, String)> {
    let text = text.strip_prefix('\u{feff}').unwrap_or(text);
    let lines: Vec<usize> =
        text.bytes().enumerate().filter(|(_, byte)| *byte == b'\n').map(|(at, _)| at).collect();
    let line = |offset| 1 + lines.partition_point(|end| *end < offset);
    let parsed = DeTable::parse(text)
        .map_err(|error| (line(error.span().map_or(0, |span| span.start)), shown::plain(error.message())))?;
    table(parsed.into_inner(), &|offset| origin(line(offset)).uri())
        .map_err(|(offset, why)| (line(offset), why.to_owned()))
}

type Unreadable = (usize, &'static str);

fn table(table: DeTable<'_>, uri: &dyn Fn(usize) -> Option<String>) -> Result<Tree, Unreadable> {
    let entries = table.into_iter().map(|(key, item)| {
        let at = key.span().start;
        Ok((key.into_inner().into_owned(), value(item, at, uri)?))
    });
    entries.collect()
}

/// `at` is where the key of the value stands: a value may begin lines later.
fn value(
    item: Spanned<DeValue<'_>>,
    at: usize,
    uri: &dyn Fn(usize) -> Option<String>,
) -> Result<Value, Unreadable> {
    let kind = match item.into_inner() {
        DeValue::String(text) => text.into_owned().into(),
        DeValue::Boolean(flag) => flag.into(),
        DeValue::Datetime(time) => time.to_string().into(),
        DeValue::Integer(digits) => match i64::from_str_radix(digits.as_str(), digits.radix()) {
            Ok(number) => number.into(),
            Err(_) => return Err((at, "a whole number does not fit into 64 bits")),
        },
        DeValue::Float(digits) => match digits.as_str().parse::<f64>() {
            Ok(number) if number.is_finite() || !digits.as_str().contains(|c: char| c.is_ascii_digit()) => {
                number.into()
            }
            _ => return Err((at, "a number does not fit into 64 bits")),
        },
        DeValue::Array(list) => {
            let items = list.into_iter().map(|item| {
                let start = item.span().start;
                value(item, start, uri)
            });
            ValueKind::Array(items.collect::<Result<_, _>>()?)
        }
        DeValue::Table(inner) => ValueKind::Table(table(inner, uri)?),
    };
    Ok(Value::new(uri(at).as_ref(), kind))
}
