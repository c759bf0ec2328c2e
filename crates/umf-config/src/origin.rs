//! Where a value came from.

use std::fmt;
use std::path::Path;

use config::Value;

use crate::shown;

/// The source of a value. Later ones in this list win over earlier ones.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
#[cfg_attr(feature = "serde", serde(tag = "kind", content = "name", rename_all = "lowercase"))]
#[non_exhaustive]
pub enum Origin {
    /// No source set it.
    Default,
    /// A line of a settings file: `/etc/umf/umf.toml:14`.
    File(String),
    /// The environment variable of this name.
    Environment(String),
    /// The program itself, by [`Loader::set`](crate::Loader::set).
    Program,
}

const PROGRAM: &str = "program";

impl Origin {
    pub(crate) fn line(path: &Path, line: usize) -> Self {
        let path = shown::path(path);
        // Names of variables are told from paths by their beginning.
        let here = if path.starts_with("UMF_") { "./" } else { "" };
        Self::File(format!("{here}{path}:{line}"))
    }

    /// The text by which a value remembers where it came from.
    pub(crate) fn uri(&self) -> Option<String> {
        match self {
            Self::Default => None,
            Self::File(text) | Self::Environment(text) => Some(text.clone()),
            Self::Program => Some(PROGRAM.to_owned()),
        }
    }

    pub(crate) fn of(value: &Value) -> Self {
        match value.origin() {
            None => Self::Default,
            Some(PROGRAM) => Self::Program,
            Some(name) if name.starts_with("UMF_") => Self::Environment(name.to_owned()),
            Some(line) => Self::File(line.to_owned()),
        }
    }
}

impl fmt::Display for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Default => "default",
            Self::File(text) | Self::Environment(text) => text,
            Self::Program => PROGRAM,
        })
    }
}
