//! Where a value came from.

use std::fmt;
use std::path::PathBuf;

use serde::ser::SerializeMap;
use serde::{Serialize, Serializer};

use crate::shown;

/// The source of a value; later ones in this list win over earlier ones.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Origin {
    /// Nobody set it.
    Default,
    /// This settings file.
    File(PathBuf),
    /// The environment variable of this name.
    Environment(String),
    /// The program itself, by [`Loader::set`](crate::Loader::set).
    Builder,
}

impl fmt::Display for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Default => f.write_str("default"),
            Self::File(path) => write!(f, "file {}", shown::path(path)),
            Self::Environment(name) => write!(f, "environment variable {name}"),
            Self::Builder => f.write_str("builder"),
        }
    }
}

impl Serialize for Origin {
    /// A map with `kind` and, where there is one, `name`. A path that is not Unicode is shown lossily:
    /// a report is for reading.
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let (kind, name) = match self {
            Self::Default => ("default", None),
            Self::File(path) => ("file", Some(path.to_string_lossy().into_owned())),
            Self::Environment(name) => ("environment", Some(name.clone())),
            Self::Builder => ("builder", None),
        };
        let mut map = serializer.serialize_map(Some(1 + usize::from(name.is_some())))?;
        map.serialize_entry("kind", kind)?;
        if let Some(name) = name {
            map.serialize_entry("name", &name)?;
        }
        map.end()
    }
}
