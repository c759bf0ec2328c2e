//! [`Source`]: the files from which a topology is read; and [`Recording`], such files as one text.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::fs::{self, File, OpenOptions};
use std::io::{ErrorKind, Read};
use std::ops::Bound;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use crate::{Error, Result, read};

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

/// The files that describe the topology of a machine, as one text. It has a line `PATH:LINE` for
/// each line of each file, as `grep -r ""` prints them, and a line `PATH` for a link. Paths begin
/// with `sys/` or `proc/`. Lines that begin with `#` are comments.
///
/// ```
/// let recording = umf_topology::Recording::new("sys/devices/system/node/online:0-1\n");
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Recording {
    files: BTreeMap<String, String>,
}

impl Recording {
    /// Parses a recording. Errors in its content show when a topology is read from it.
    #[must_use]
    pub fn new(text: &str) -> Self {
        let mut files: BTreeMap<String, String> = BTreeMap::new();
        for line in text.lines().filter(|line| !line.is_empty() && !line.starts_with('#')) {
            let (path, line) = line.split_once(':').unwrap_or((line, ""));
            let file = files.entry(path.trim_matches('/').to_owned()).or_default();
            file.push_str(line);
            file.push('\n');
        }
        Self { files }
    }

    /// Records the files that [`crate::Topology::read`] reads from a source, for use on another
    /// machine or in a report.
    ///
    /// # Errors
    /// As [`crate::Topology::read`].
    pub fn of(source: &Source) -> Result<Self> {
        read::record(source)
    }

    /// Returns the paths and contents of the files.
    pub fn files(&self) -> impl Iterator<Item = (&str, &str)> {
        self.files.iter().map(|(path, text)| (path.as_str(), text.as_str()))
    }

    pub(crate) fn insert(&mut self, path: &str, text: &str) {
        self.files.insert(path.to_owned(), text.to_owned());
    }

    pub(crate) fn text(&self, path: &str) -> Option<String> {
        self.files.get(path).map(|text| text.trim_end().to_owned())
    }

    pub(crate) fn entries(&self, folder: &str) -> Option<Vec<String>> {
        let inside = format!("{folder}/");
        let from = (Bound::Included(inside.as_str()), Bound::Unbounded);
        let paths = self.files.range::<str, _>(from).map(|(path, _)| path.strip_prefix(&inside));
        let names: BTreeSet<&str> =
            paths.map_while(|rest| rest.map(|rest| rest.split('/').next().unwrap_or(rest))).collect();
        (!names.is_empty()).then(|| names.into_iter().map(str::to_owned).collect())
    }
}

/// Writes the text that [`Recording::new`] parses.
impl fmt::Display for Recording {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (path, text) in &self.files {
            match text.trim_end() {
                "" => writeln!(f, "{path}")?,
                text => text.lines().try_for_each(|line| writeln!(f, "{path}:{line}"))?,
            }
        }
        Ok(())
    }
}
