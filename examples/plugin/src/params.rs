//! What `umf.toml` says in `params`: a flat JSON object.
//!
//! A plugin that has more than two keys takes a JSON library; this one shows that none is needed.

use std::ffi::CStr;

/// The name of a provider that was given none.
pub(crate) const DEFAULT_NAME: &CStr = c"example";

/// The settings of a provider.
#[derive(Debug, PartialEq)]
pub(crate) struct Params {
    pub(crate) name: String,
    pub(crate) limit: usize,
}

impl Params {
    /// Reads `{"name":"mine","limit":4096}`, each key optional; `None` for anything else, unknown
    /// keys included.
    pub(crate) fn read(json: &str) -> Option<Self> {
        let mut params = Self { name: DEFAULT_NAME.to_string_lossy().into_owned(), limit: 0 };
        let json = json.trim();
        if json.is_empty() {
            return Some(params);
        }
        let mut rest = json.strip_prefix('{')?.strip_suffix('}')?.trim();
        while !rest.is_empty() {
            let (key, value) = string(rest)?;
            let value = value.trim_start().strip_prefix(':')?.trim_start();
            let behind = match key {
                "name" => {
                    let (name, behind) = string(value)?;
                    params.name = name.to_owned();
                    behind
                }
                "limit" => {
                    let end = value.find(|c: char| !c.is_ascii_digit()).unwrap_or(value.len());
                    params.limit = value[..end].parse().ok()?;
                    &value[end..]
                }
                _ => return None,
            };
            rest = behind.trim_start();
            if !rest.is_empty() {
                rest = rest.strip_prefix(',')?.trim_start();
            }
        }
        Some(params)
    }
}

/// A string without escapes at the beginning of `json`, and what is behind it.
fn string(json: &str) -> Option<(&str, &str)> {
    let (text, behind) = json.strip_prefix('"')?.split_once('"')?;
    (!text.contains('\\')).then_some((text, behind))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_keys_are_read_and_others_refused() {
        let read = |json| Params::read(json).map(|params| (params.name, params.limit));
        assert_eq!(read(""), Some(("example".to_owned(), 0)));
        assert_eq!(read("{}"), Some(("example".to_owned(), 0)));
        assert_eq!(read(r#"{"limit":4096,"name":"mine"}"#), Some(("mine".to_owned(), 4096)));
        for wrong in
            ["[]", "{", r#"{"limit":-1}"#, r#"{"limit":"1"}"#, r#"{"nmae":"x"}"#, r#"{"name":"a\"b"}"#]
        {
            assert_eq!(read(wrong), None, "{wrong}");
        }
    }
}
