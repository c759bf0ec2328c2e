//! The parameters of a provider: `params` of `umf.toml`, as a flat JSON object.
//!
//! A plugin with more keys would use a JSON library. This one has two keys and parses them itself.

use std::ffi::CStr;

/// The name of a provider without the parameter `name`.
pub(crate) const DEFAULT_NAME: &CStr = c"example";

/// The settings of a provider.
#[derive(Debug, PartialEq)]
pub(crate) struct Params {
    pub(crate) name: String,
    pub(crate) limit: usize,
}

impl Params {
    /// Parses `{"name":"mine","limit":4096}`. Both keys are optional. Returns `None` for other
    /// text, also for unknown keys.
    pub(crate) fn parse(json: &str) -> Option<Self> {
        let mut params = Self { name: DEFAULT_NAME.to_string_lossy().into_owned(), limit: 0 };
        let json = json.trim();
        if json.is_empty() {
            return Some(params);
        }
        let mut rest = json.strip_prefix('{')?.strip_suffix('}')?.trim();
        while !rest.is_empty() {
            let (key, value) = string(rest)?;
            let value = value.trim_start().strip_prefix(':')?.trim_start();
            let after = match key {
                "name" => {
                    let (name, after) = string(value)?;
                    params.name = name.to_owned();
                    after
                }
                "limit" => {
                    let end = value.find(|c: char| !c.is_ascii_digit()).unwrap_or(value.len());
                    params.limit = value[..end].parse().ok()?;
                    &value[end..]
                }
                _ => return None,
            };
            rest = after.trim_start();
            if !rest.is_empty() {
                rest = rest.strip_prefix(',')?.trim_start();
            }
        }
        Some(params)
    }
}

/// Splits a string without escapes off the beginning of `json`. Returns the string and the rest.
fn string(json: &str) -> Option<(&str, &str)> {
    let (text, after) = json.strip_prefix('"')?.split_once('"')?;
    (!text.contains('\\')).then_some((text, after))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_keys_are_parsed_and_others_are_refused() {
        let parse = |json| Params::parse(json).map(|params| (params.name, params.limit));
        assert_eq!(parse(""), Some(("example".to_owned(), 0)));
        assert_eq!(parse("{}"), Some(("example".to_owned(), 0)));
        assert_eq!(parse(r#"{"limit":4096,"name":"mine"}"#), Some(("mine".to_owned(), 4096)));
        for wrong in
            ["[]", "{", r#"{"limit":-1}"#, r#"{"limit":"1"}"#, r#"{"nmae":"x"}"#, r#"{"name":"a\"b"}"#]
        {
            assert_eq!(parse(wrong), None, "{wrong}");
        }
    }
}
