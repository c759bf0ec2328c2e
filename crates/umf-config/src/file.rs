//! Settings files: which paths are tried, and reading one with bounded size.

use std::fs::{Metadata, OpenOptions};
use std::io::{self, Read};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use config::{Value, ValueKind};
use toml::Spanned;
use toml::de::{DeTable, DeValue};

use crate::schema::Tree;
use crate::{Context, Error, Origin, Warning, environment, escape};

const FILE_NAME: &str = "umf.toml";

/// A path at which a settings file may exist.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Candidate {
    pub(crate) path: PathBuf,
    /// Whether the file must exist, because `UMF_TOML` names it.
    pub(crate) required: bool,
    /// Whether the file may belong to any user and set every key. The working directory's file is
    /// untrusted.
    pub(crate) trusted: bool,
}

/// Returns the paths to try, in order of precedence: later files override earlier ones.
///
/// If `UMF_TOML` names a file, it is the only one. Otherwise these are the system's, the user's and
/// the working directory's, so that a user or a job can override site-wide values.
pub(crate) fn candidates(context: &Context) -> Vec<Candidate> {
    if let Some(named) = environment::named_file(context) {
        let path = match &context.cwd {
            Some(cwd) => cwd.join(named),
            None => named.to_path_buf(),
        };
        return vec![Candidate { path, required: true, trusted: true }];
    }
    let mut found: Vec<Candidate> = Vec::new();
    let mut add = |folder: PathBuf, trusted| {
        let path = folder.join(FILE_NAME);
        // The working directory may be a configuration folder. Then the file is trusted, and read
        // once.
        if !found.iter().any(|other| other.path == path) {
            found.push(Candidate { path, required: false, trusted });
        }
    };
    if let Some(system) = &context.system {
        add(system.join("umf"), true);
    }
    if !context.secure {
        if let Some(folder) = user_folder(context) {
            add(folder.join("umf"), true);
        }
        if let Some(cwd) = &context.cwd {
            add(cwd.clone(), false);
        }
    }
    found
}

/// Returns `$XDG_CONFIG_HOME`, or `.config` in the home folder. Relative paths are ignored, because
/// they depend on the working directory.
fn user_folder(context: &Context) -> Option<PathBuf> {
    let xdg = context.variable("XDG_CONFIG_HOME").map(PathBuf::from);
    xdg.filter(|folder| folder.is_absolute()).or_else(|| {
        let home = context.home.as_ref().filter(|home| home.is_absolute())?;
        Some(home.join(".config"))
    })
}

/// Limit of the size of a settings file, in bytes.
pub const FILE_LIMIT: u64 = 1 << 20;

/// The result of reading a candidate.
pub(crate) enum Found {
    /// There is no file.
    Nothing,
    /// The file is ignored.
    Skipped(Warning),
    /// The text of the file.
    Text(String),
}

/// Reads the file of a candidate. `user` is the effective user of this process.
///
/// In a working directory such as `/tmp`, other users can create files, links and sockets. These
/// are a warning and not an error, because an error would let other users stop the program.
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
fn is_trusted(metadata: &Metadata, user: u32) -> bool {
    [0, user].contains(&metadata.uid()) && metadata.mode() & 0o022 == 0
}

fn read_bounded(candidate: &Candidate, user: u32) -> Result<Found, Error> {
    let path = candidate.path.as_path();
    // A link of another user could lead to a file of root that is not a settings file.
    let follow = if candidate.trusted { 0 } else { libc::O_NOFOLLOW };
    // Without O_NONBLOCK, opening a FIFO would block until a process opens it for writing.
    let file = OpenOptions::new()
        .read(true)
        .custom_flags(libc::O_NONBLOCK | follow)
        .open(path)
        .map_err(|source| unreadable(path, source))?;
    // `fstat` of the open file, because the path may refer to another file by now.
    let metadata = file.metadata().map_err(|source| unreadable(path, source))?;
    if !candidate.trusted && !is_trusted(&metadata, user) {
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
    // The file may grow after `fstat`, so the read is bounded.
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

/// Parses TOML. Each value has the origin of its line. An error is a line and a reason.
pub(crate) fn parse(text: &str, origin: impl Fn(usize) -> Origin) -> Result<Tree, (usize, String)> {
    let text = text.strip_prefix('\u{feff}').unwrap_or(text);
    let lines: Vec<usize> =
        text.bytes().enumerate().filter(|(_, byte)| *byte == b'\n').map(|(at, _)| at).collect();
    let line = |offset| 1 + lines.partition_point(|end| *end < offset);
    let parsed = DeTable::parse(text)
        .map_err(|error| (line(error.span().map_or(0, |span| span.start)), escape::plain(error.message())))?;
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

/// Converts a value. `at` is the offset of its key, because the value may begin on a later line.
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

#[cfg(test)]
mod tests {
    use super::*;

    fn context() -> Context {
        Context {
            cwd: Some("/srv".into()),
            home: Some("/home/me".into()),
            system: Some("/etc".into()),
            ..Context::empty()
        }
    }

    fn paths(context: &Context) -> Vec<String> {
        let paths = candidates(context).into_iter();
        paths.map(|found| found.path.display().to_string()).collect()
    }

    #[test]
    fn precedence_is_system_user_working_directory() {
        assert_eq!(
            paths(&context()),
            ["/etc/umf/umf.toml", "/home/me/.config/umf/umf.toml", "/srv/umf.toml"]
        );
        let trusted: Vec<_> = candidates(&context()).iter().map(|c| c.trusted).collect();
        assert_eq!(trusted, [true, true, false]);
    }

    #[test]
    fn xdg_replaces_home_unless_it_is_relative() {
        let absolute = context().with_variable("XDG_CONFIG_HOME", "/xdg");
        assert_eq!(paths(&absolute)[1], "/xdg/umf/umf.toml");
        let relative = context().with_variable("XDG_CONFIG_HOME", "xdg");
        assert_eq!(paths(&relative)[1], "/home/me/.config/umf/umf.toml");
    }

    #[test]
    fn named_file_is_the_only_one() {
        let named = context().with_variable("UMF_TOML", "mine.toml");
        assert_eq!(paths(&named), ["/srv/mine.toml"]);
        let unnamed = context().with_variable("UMF_TOML", "");
        assert_eq!(paths(&unnamed).len(), 3);
    }

    #[test]
    fn secure_process_reads_the_system_file_only() {
        let mut secure =
            context().with_variable("UMF_TOML", "/tmp/evil.toml").with_variable("XDG_CONFIG_HOME", "/tmp");
        secure.secure = true;
        assert_eq!(paths(&secure), ["/etc/umf/umf.toml"]);
    }

    #[test]
    fn user_folder_is_trusted_even_as_working_directory() {
        let mut inside = context();
        inside.cwd = Some("/home/me/.config/umf".into());
        let found = candidates(&inside);
        assert_eq!(found.len(), 2);
        assert!(found[1].trusted);
    }
}
