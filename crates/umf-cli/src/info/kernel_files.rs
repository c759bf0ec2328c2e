//! Reading `/proc` and `/sys`, where any file may be absent or refused.

use std::path::{Path, PathBuf};

/// The text of a file without the line end, or why it cannot be read.
///
/// # Errors
/// One short line, "PATH: REASON".
pub(crate) fn text(path: impl AsRef<Path>) -> Result<String, String> {
    let path = path.as_ref();
    match std::fs::read(path) {
        Ok(bytes) => Ok(String::from_utf8_lossy(&bytes).trim_end().to_owned()),
        Err(error) => Err(format!("{}: {}", path.display(), reason(&error))),
    }
}

/// The number in a file.
///
/// # Errors
/// One short line, "PATH: REASON".
pub(crate) fn number(path: impl AsRef<Path>) -> Result<u64, String> {
    let path = path.as_ref();
    let text = text(path)?;
    text.trim().parse().map_err(|_| format!("{}: not a number", path.display()))
}

/// The entries of a folder whose names `wanted` accepts, sorted; none when it cannot be read.
pub(crate) fn entries(folder: &str, wanted: impl Fn(&str) -> bool) -> Vec<PathBuf> {
    let Ok(read) = std::fs::read_dir(folder) else { return Vec::new() };
    let mut found: Vec<PathBuf> = read
        .filter_map(Result::ok)
        .filter(|entry| entry.file_name().to_str().is_some_and(&wanted))
        .map(|entry| entry.path())
        .collect();
    found.sort_by_key(|path| {
        // card2 before card10.
        let name = name(path);
        let digits = name.find(|c: char| c.is_ascii_digit()).unwrap_or(name.len());
        let number: u64 = name[digits..].parse().unwrap_or(0);
        (name[..digits].to_owned(), number, name)
    });
    found
}

/// The last part of a path.
pub(crate) fn name(path: &Path) -> String {
    path.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default()
}

/// The value of `key` in a file of `Key: value` lines.
pub(crate) fn field<'text>(text: &'text str, key: &str) -> Option<&'text str> {
    text.lines().find_map(|line| {
        let (name, value) = line.split_once(':')?;
        (name.trim() == key).then(|| value.trim())
    })
}

/// The bytes that a value such as `1024 kB` means.
pub(crate) fn kilobytes(value: &str) -> Option<u64> {
    value.split_whitespace().next()?.parse::<u64>().ok()?.checked_mul(1024)
}

/// The choice in brackets of a file such as `always [madvise] never`.
pub(crate) fn chosen(text: &str) -> Option<&str> {
    text.split_whitespace().find_map(|word| word.strip_prefix('[')?.strip_suffix(']'))
}

fn reason(error: &std::io::Error) -> String {
    match error.kind() {
        std::io::ErrorKind::NotFound => "not there".to_owned(),
        std::io::ErrorKind::PermissionDenied => "may not be read".to_owned(),
        _ => error.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_the_forms_that_the_kernel_writes() {
        assert_eq!(chosen("always [madvise] never"), Some("madvise"));
        assert_eq!(chosen("nothing"), None);
        assert_eq!(field("Name:\tumf\nSeccomp:\t2\n", "Seccomp"), Some("2"));
        assert_eq!(field("Seccomp_filters:\t1\n", "Seccomp"), None);
        assert_eq!(kilobytes("12 kB"), Some(12_288));
        assert_eq!(kilobytes("lots"), None);
        assert!(text("/proc/no such file").unwrap_err().ends_with("not there"));
    }
}
