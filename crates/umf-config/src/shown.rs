//! Foreign text in messages: quoted, escaped and short, so that it cannot disturb a terminal or a log.

use std::path::Path;

use config::{Value, ValueKind};

const LONGEST: usize = 120;

/// A text in quotes.
pub(crate) fn quoted(text: &str) -> String {
    format!("\"{}\"", plain(text))
}

/// A text without quotes.
pub(crate) fn plain(text: &str) -> String {
    let mut short: String = text.chars().take(LONGEST).flat_map(char::escape_debug).collect();
    if text.chars().nth(LONGEST).is_some() {
        short.push_str("...");
    }
    short
}

/// A path, whole: it says where to look.
pub(crate) fn path(path: &Path) -> String {
    path.to_string_lossy().chars().flat_map(char::escape_debug).collect()
}

/// A value from a source.
pub(crate) fn value(value: &Value) -> String {
    match &value.kind {
        ValueKind::String(text) => quoted(text),
        ValueKind::Table(_) => "(a table)".to_owned(),
        ValueKind::Array(list) => {
            let elements: Vec<_> = list.iter().take(8).map(self::value).collect();
            let more = if list.len() > 8 { ", ..." } else { "" };
            format!("[{}{more}]", elements.join(", "))
        }
        other => plain(&other.to_string()),
    }
}
