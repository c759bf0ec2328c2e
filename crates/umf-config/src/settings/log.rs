//! `[log]`: what is told, where, and with what in front.

use std::path::PathBuf;

use config::{Value, ValueKind};
use serde::{Deserialize, Serialize};

use crate::field::{Field, Section, Setting, field, words};

words! {
    /// How important an event is.
    LogLevel {
        /// For finding faults.
        Debug = "debug",
        /// Worth knowing.
        Info = "info",
        /// Something is not as it should be, and the work goes on.
        Warning = "warning" | "warn",
        /// Something failed.
        #[default]
        Error = "error",
        /// Nothing can go on.
        Fatal = "fatal",
    }
}

/// Where events go.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
#[non_exhaustive]
pub enum LogOutput {
    /// Nowhere.
    #[default]
    Off,
    /// Standard error.
    Stderr,
    /// Standard output.
    Stdout,
    /// This file.
    File(PathBuf),
}

impl Setting for LogOutput {
    const EXPECTED: &'static str = "\"off\", \"stderr\", \"stdout\" or \"file,<path>\"";

    fn read(value: &Value) -> Option<Self> {
        let ValueKind::String(text) = &value.kind else {
            return None;
        };
        match text.trim() {
            "off" => Some(Self::Off),
            "stderr" => Some(Self::Stderr),
            "stdout" => Some(Self::Stdout),
            other => {
                let path = other.strip_prefix("file,")?.trim();
                let usable = !path.is_empty() && !path.contains('\0');
                usable.then(|| Self::File(PathBuf::from(path)))
            }
        }
    }

    fn text(&self) -> String {
        match self {
            Self::Off => "off".to_owned(),
            Self::Stderr => "stderr".to_owned(),
            Self::Stdout => "stdout".to_owned(),
            Self::File(path) => format!("file,{}", path.display()),
        }
    }
}

/// The section `[log]`. Environment names are `UMF_LOG_<KEY>`; `UMF_LOG` sets several at once.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct Log {
    /// Least important event that is told. Default: `error`.
    pub level: LogLevel,
    /// Where events go. Default: `off`.
    pub output: LogOutput,
    /// Whether each line starts with the time. Default: false.
    pub timestamp: bool,
    /// Whether each line names the process and thread. Default: false.
    pub pid: bool,
    /// Least important event after which the output is flushed. Default: `error`.
    pub flush: LogLevel,
}

impl Section for Log {
    const FIELDS: &'static [Field<Self>] =
        &[field!(level), field!(output), field!(timestamp), field!(pid), field!(flush)];
}
