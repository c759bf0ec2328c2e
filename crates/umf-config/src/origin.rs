//! [`Origin`]: the source of a value.

use std::fmt;
use std::path::Path;

use config::Value;

use crate::escape;

/// The source of a value. Later variants override earlier ones.
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
        let path = escape::path(path);
        // `of` distinguishes variables from paths by the prefix `UMF_`.
        let prefix = if path.starts_with("UMF_") { "./" } else { "" };
        Self::File(format!("{prefix}{path}:{line}"))
    }

    /// Returns the text that represents this origin in a [`Value`].
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
