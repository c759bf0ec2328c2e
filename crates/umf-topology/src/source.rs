//! [`Source`]: the files from which a topology is read.

use std::fs::{self, File, OpenOptions};
use std::io::{ErrorKind, Read};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use crate::{Error, Recording, Result};

/// The source of a topology: the running system, a copy of its files, or a recording of them.
#[derive(Clone, Debug)]
pub struct Source(Kind);

#[derive(Clone, Debug)]
enum Kind {
    Folder(PathBuf),
    Recording(Recording),
}

/// Limit of the size of a file. The longest is `/proc/self/status` of a process with many groups.
const MAX_FILE_SIZE: usize = 1 << 20;
/// Limit of the entries of a folder. The folders that are listed have little more than one per
/// node.
const MAX_ENTRIES: usize = 4096;

impl Source {
    /// Returns the running system, as this process sees it.
    #[must_use]
    pub fn system() -> Self {
        Self::folder("/")
    }

    /// Returns a folder with the subfolders `sys` and `proc`.
    pub fn folder(root: impl Into<PathBuf>) -> Self {
        Self(Kind::Folder(root.into()))
    }

    /// Returns a recording as a source.
    #[must_use]
    pub const fn recording(recording: Recording) -> Self {
        Self(Kind::Recording(recording))
    }

    /// Returns the path of a file in messages.
    pub(crate) fn path(&self, path: &str) -> PathBuf {
        match &self.0 {
            Kind::Folder(root) => root.join(path),
            Kind::Recording(_) => PathBuf::from(path),
        }
    }

    /// Returns the text of a file without the trailing line end; `None` if it does not exist.
    pub(crate) fn text(&self, path: &str) -> Result<Option<String>> {
        match &self.0 {
            Kind::Folder(root) => read_file(&root.join(path)),
            Kind::Recording(recording) => Ok(recording.text(path)),
        }
    }

    /// Returns the names in a folder, sorted; `None` if it does not exist.
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

fn is_not_found(error: &std::io::Error) -> bool {
    matches!(error.kind(), ErrorKind::NotFound | ErrorKind::NotADirectory)
}

fn read_file(path: &Path) -> Result<Option<String>> {
    // O_NONBLOCK: a copy may have a FIFO in place of a file, and opening it would block.
    let opened = OpenOptions::new().read(true).custom_flags(libc::O_NONBLOCK).open(path);
    let file = match opened {
        Ok(file) => file,
        Err(error) if is_not_found(&error) => return Ok(None),
        Err(error) => return Err(unreadable(path, &error)),
    };
    let mut bytes = Vec::new();
    let read =
        check_regular(&file).and_then(|()| file.take(MAX_FILE_SIZE as u64 + 1).read_to_end(&mut bytes));
    read.map_err(|error| unreadable(path, &error))?;
    if bytes.len() > MAX_FILE_SIZE {
        return Err(Error::TooLong { path: path.to_owned(), of: "bytes", limit: MAX_FILE_SIZE });
    }
    Ok(Some(String::from_utf8_lossy(&bytes).trim_end().to_owned()))
}

fn check_regular(file: &File) -> std::io::Result<()> {
    if file.metadata()?.is_file() { Ok(()) } else { Err(std::io::Error::other("not a regular file")) }
}

fn read_folder(path: &Path) -> Result<Option<Vec<String>>> {
    let entries = match fs::read_dir(path) {
        Ok(entries) => entries,
        Err(error) if is_not_found(&error) => return Ok(None),
        Err(error) => return Err(unreadable(path, &error)),
    };
    let mut names = Vec::new();
    for entry in entries {
        let entry = entry.map_err(|error| unreadable(path, &error))?;
        if names.len() == MAX_ENTRIES {
            return Err(Error::TooLong { path: path.to_owned(), of: "entries", limit: MAX_ENTRIES });
        }
        // The kernel's names are UTF-8; others are skipped.
        names.extend(entry.file_name().into_string());
    }
    names.sort_unstable();
    Ok(Some(names))
}
