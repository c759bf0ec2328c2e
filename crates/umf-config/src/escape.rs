//! Escaping of external text in messages: control characters are escaped and long texts cut, so
//! that they cannot corrupt a terminal or a log.

use std::path::Path;

use config::{Value, ValueKind};

/// Limit of the characters of a text.
const MAX_LENGTH: usize = 120;

/// Returns the escaped text in quotes.
pub(crate) fn quoted(text: &str) -> String {
    format!("\"{}\"", plain(text))
}

/// Returns the escaped text without quotes.
pub(crate) fn plain(text: &str) -> String {
    let mut short: String = text.chars().take(MAX_LENGTH).flat_map(char::escape_debug).collect();
    if text.chars().nth(MAX_LENGTH).is_some() {
        short.push_str("...");
    }
    short
}

/// Returns the escaped path. Paths are not cut, because a partial path is of no use.
pub(crate) fn path(path: &Path) -> String {
    path.to_string_lossy().chars().flat_map(char::escape_debug).collect()
}

/// Returns the escaped value of a source.
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
