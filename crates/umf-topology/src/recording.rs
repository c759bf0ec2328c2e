//! [`Recording`]: the sysfs files of a machine as one text.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::ops::Bound;

use crate::{Result, Source, read};

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
