//! [`Source`]: where a topology is read from.

use std::fs::{self, File, OpenOptions};
use std::io::{ErrorKind, Read};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use crate::{Error, Recording, Result};

/// Where a topology is read from: a running system, a copy of its files, or a recording of them.
#[derive(Clone, Debug)]
pub struct Source(Kind);

#[derive(Clone, Debug)]
enum Kind {
    Folder(PathBuf),
    Recording(Recording),
}

/// The most that is read of one file. The longest is `/proc/self/status`, where a process has very many groups.
const LONGEST_FILE: usize = 1 << 20;
/// The most entries of a folder that are looked at. Those that are listed have one per node at most, and a few more.
const MOST_ENTRIES: usize = 4096;

impl Source {
    /// The running system, as this process sees it.
    #[must_use]
    pub fn system() -> Self {
        Self::folder("/")
    }

    /// A folder with `sys` and `proc` in it.
    pub fn folder(root: impl Into<PathBuf>) -> Self {
        Self(Kind::Folder(root.into()))
    }

    /// A recording.
    #[must_use]
    pub const fn recording(recording: Recording) -> Self {
        Self(Kind::Recording(recording))
    }

    /// How messages name a file.
    pub(crate) fn path(&self, path: &str) -> PathBuf {
        match &self.0 {
            Kind::Folder(root) => root.join(path),
            Kind::Recording(_) => PathBuf::from(path),
        }
    }

    /// The text of a file without the line end; `None` if it is not there.
    pub(crate) fn text(&self, path: &str) -> Result<Option<String>> {
        match &self.0 {
            Kind::Folder(root) => read_file(&root.join(path)),
            Kind::Recording(recording) => Ok(recording.text(path)),
        }
    }

    /// The names in a folder, sorted; `None` if it is not there.
    pub(crate) fn entries(&self, path: &str) -> Result<Option<Vec<String>>> {
        match &self.0 {
            Kind::Folder(root) => read_folder(&root.join(path)),
            Kind::Recording(recording) => Ok(recording.entries(path)),
        }
    }
}

fn unreadable(path: &Path, error: &std::io::Error) -> Error {
    Error::Unreadable { path: path.to_owned(), why: error.to_string() }
}

fn is_absence(error: &std::io::Error) -> bool {
    matches!(error.kind(), ErrorKind::NotFound | ErrorKind::NotADirectory)
}

fn read_file(path: &Path) -> Result<Option<String>> {
    // A copy may have a pipe in place of a file, which nobody writes to.
    let opened = OpenOptions::new().read(true).custom_flags(libc::O_NONBLOCK).open(path);
    let file = match opened {
        Ok(file) => file,
        Err(error) if is_absence(&error) => return Ok(None),
        Err(error) => return Err(unreadable(path, &error)),
    };
    let mut bytes = Vec::new();
    let read = check(&file).and_then(|()| file.take(LONGEST_FILE as u64 + 1).read_to_end(&mut bytes));
    read.map_err(|error| unreadable(path, &error))?;
    if bytes.len() > LONGEST_FILE {
        return Err(Error::TooLong { path: path.to_owned(), of: "bytes", limit: LONGEST_FILE });
    }
    Ok(Some(String::from_utf8_lossy(&bytes).trim_end().to_owned()))
}

fn check(file: &File) -> std::io::Result<()> {
    if file.metadata()?.is_file() { Ok(()) } else { Err(std::io::Error::other("not a regular file")) }
}

fn read_folder(path: &Path) -> Result<Option<Vec<String>>> {
    let entries = match fs::read_dir(path) {
        Ok(entries) => entries,
        Err(error) if is_absence(&error) => return Ok(None),
        Err(error) => return Err(unreadable(path, &error)),
    };
    let mut names = Vec::new();
    for entry in entries {
        let entry = entry.map_err(|error| unreadable(path, &error))?;
        if names.len() == MOST_ENTRIES {
            return Err(Error::TooLong { path: path.to_owned(), of: "entries", limit: MOST_ENTRIES });
        }
        // The kernel's names are all text.
        names.extend(entry.file_name().into_string());
    }
    names.sort_unstable();
    Ok(Some(names))
}
