//! Files in `/proc` and `/sys`, which may be absent or unreadable; and names and classes of error
//! numbers.

use std::path::{Path, PathBuf};

use rustix::io::Errno;

/// Reads a file without its last line end.
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

/// Reads the number in a file.
///
/// # Errors
/// One short line, "PATH: REASON".
pub(crate) fn number(path: impl AsRef<Path>) -> Result<u64, String> {
    let path = path.as_ref();
    let text = text(path)?;
    text.trim().parse().map_err(|_| format!("{}: not a number", path.display()))
}

/// Lists the entries of a folder for which `wanted` holds, sorted. Empty if the folder cannot be
/// read.
pub(crate) fn entries(folder: &str, wanted: impl Fn(&str) -> bool) -> Vec<PathBuf> {
    let Ok(read) = std::fs::read_dir(folder) else { return Vec::new() };
    let mut found: Vec<PathBuf> = read
        .filter_map(Result::ok)
        .filter(|entry| entry.file_name().to_str().is_some_and(&wanted))
        .map(|entry| entry.path())
        .collect();
    found.sort_by_key(|path| {
        // Sorts card2 before card10.
        let name = name(path);
        let digits = name.find(|c: char| c.is_ascii_digit()).unwrap_or(name.len());
        let number: u64 = name[digits..].parse().unwrap_or(0);
        (name[..digits].to_owned(), number, name)
    });
    found
}

/// Returns the last component of a path.
pub(crate) fn name(path: &Path) -> String {
    path.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default()
}

/// Returns the value of `key` in a file of `Key: value` lines.
pub(crate) fn field<'text>(text: &'text str, key: &str) -> Option<&'text str> {
    text.lines().find_map(|line| {
        let (name, value) = line.split_once(':')?;
        (name.trim() == key).then(|| value.trim())
    })
}

/// Parses a value such as `1024 kB` into bytes.
pub(crate) fn kilobytes(value: &str) -> Option<u64> {
    value.split_whitespace().next()?.parse::<u64>().ok()?.checked_mul(1024)
}

/// Returns the choice in brackets, as in `always [madvise] never`.
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

/// Returns the symbol of an error number, such as `EPERM`.
pub(crate) fn errno_name(errno: Errno) -> String {
    let known = match errno {
        Errno::ACCESS => "EACCES",
        Errno::AGAIN => "EAGAIN",
        Errno::BADF => "EBADF",
        Errno::BUSY => "EBUSY",
        Errno::CONNREFUSED => "ECONNREFUSED",
        Errno::FAULT => "EFAULT",
        Errno::INVAL => "EINVAL",
        Errno::IO => "EIO",
        Errno::MFILE => "EMFILE",
        Errno::NFILE => "ENFILE",
        Errno::NODEV => "ENODEV",
        Errno::NOENT => "ENOENT",
        Errno::NOMEM => "ENOMEM",
        Errno::NOPROTOOPT => "ENOPROTOOPT",
        Errno::NOSPC => "ENOSPC",
        Errno::NOSYS => "ENOSYS",
        Errno::NOTSUP => "EOPNOTSUPP",
        Errno::NOTTY => "ENOTTY",
        Errno::PERM => "EPERM",
        Errno::SRCH => "ESRCH",
        Errno::TIMEDOUT => "ETIMEDOUT",
        _ => return format!("errno {}", errno.raw_os_error()),
    };
    known.to_owned()
}

/// Returns whether the error is a temporary lack of a resource, so that a test has no result.
pub(crate) fn is_temporary_shortage(errno: Errno) -> bool {
    matches!(errno, Errno::MFILE | Errno::NFILE | Errno::NOMEM | Errno::AGAIN | Errno::BUSY | Errno::NOBUFS)
}

/// Returns whether the error is a denied permission.
pub(crate) fn is_denied(errno: Errno) -> bool {
    matches!(errno, Errno::PERM | Errno::ACCESS)
}

/// Returns the remedy for an error that [`is_temporary_shortage`] classifies.
pub(crate) fn shortage_remedy(errno: Errno) -> &'static str {
    match errno {
        Errno::MFILE => "Raise the limit of open files (`ulimit -n`) and run again.",
        Errno::NFILE => {
            "The whole system is out of open files: raise fs.file-max as root (`sysctl fs.file-max`)."
        }
        Errno::NOMEM => "Free some memory, or raise the limit of address space (`ulimit -v`), and run again.",
        _ => "Run again when the machine is less busy.",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kernel_formats_are_parsed() {
        assert_eq!(chosen("always [madvise] never"), Some("madvise"));
        assert_eq!(chosen("nothing"), None);
        assert_eq!(field("Name:\tumf\nSeccomp:\t2\n", "Seccomp"), Some("2"));
        assert_eq!(field("Seccomp_filters:\t1\n", "Seccomp"), None);
        assert_eq!(kilobytes("12 kB"), Some(12_288));
        assert_eq!(kilobytes("lots"), None);
        assert!(text("/proc/no such file").unwrap_err().ends_with("not there"));
    }
}
