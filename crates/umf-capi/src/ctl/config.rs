//! `UMF_CONF` and `UMF_CONF_FILE`: what is set in the tree when the library starts.

use std::ffi::CString;
use std::io::Read as _;

use umf_core::environment::variable;

use super::asked::Asked;
use super::dispatch;

/// A longer file is refused.
const FILE_LIMIT: u64 = 1 << 20;

/// Sets what both say; what cannot be set is told to the log.
pub(crate) fn apply() {
    if let Some(text) = variable("UMF_CONF").and_then(|text| text.into_string().ok()) {
        set_all("UMF_CONF", &text);
    }
    if let Some(path) = variable("UMF_CONF_FILE").filter(|path| !path.is_empty()) {
        match read(path.as_ref()) {
            Ok(text) => set_all("UMF_CONF_FILE", &without_comments(&text)),
            Err(error) => tracing::error!("UMF_CONF_FILE: {}: {error}", path.to_string_lossy()),
        }
    }
}

fn read(path: &std::path::Path) -> std::io::Result<String> {
    let mut text = String::new();
    std::fs::File::open(path)?.take(FILE_LIMIT + 1).read_to_string(&mut text)?;
    if text.len() as u64 > FILE_LIMIT {
        return Err(std::io::Error::other("longer than 1 MiB"));
    }
    Ok(text)
}

/// What stands behind `#` goes, and so does all white space.
fn without_comments(text: &str) -> String {
    let lines = text.lines().map(|line| line.split('#').next().unwrap_or_default());
    lines.flat_map(str::chars).filter(|character| !character.is_whitespace()).collect()
}

/// Each `path=value` between semicolons.
fn set_all(source: &str, text: &str) {
    for statement in text.split(';').map(str::trim).filter(|statement| !statement.is_empty()) {
        let Some((path, value)) = statement.split_once('=') else {
            tracing::error!("{source}: {statement:?} is not of the form path=value");
            continue;
        };
        let Ok(value) = CString::new(value.trim()) else { continue };
        if let Err(failure) = dispatch(&Asked::configured(path.trim(), &value)) {
            tracing::error!("{source}: {}: {failure}", path.trim());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn comments_and_white_space_go() {
        assert_eq!(without_comments("a = 1 ; # one\n b=2,\n 3;#x"), "a=1;b=2,3;");
    }
}
