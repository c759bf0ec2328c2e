//! [`Settings`]: the value of `UMF_PROXY`; [`report`]: lines on standard error.

use core::fmt::{self, Write as _};

/// The kind of memory in which the heap lies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Disposition {
    /// Private memory of the process.
    Private,
    /// A memory file (`memfd_create`).
    SharedFd,
    /// A memory file with a name in `/dev/shm`.
    SharedShm,
}

/// The settings in `UMF_PROXY`, in the syntax of the original library:
/// `page.disposition=shared-fd;size.threshold=64`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Settings {
    pub(crate) disposition: Disposition,
    /// Requests for fewer bytes go to the next allocator.
    pub(crate) threshold: usize,
}

impl Settings {
    pub(crate) const DEFAULT: Self = Self { disposition: Disposition::Private, threshold: 0 };

    /// Parses settings separated by semicolons. Ignores an invalid part, and passes it to `warn`
    /// with what is valid.
    pub(crate) fn parse(text: &[u8], mut warn: impl FnMut(&[u8], &'static str)) -> Self {
        let mut settings = Self::DEFAULT;
        for part in text.split(|&byte| byte == b';').map(<[u8]>::trim_ascii).filter(|part| !part.is_empty()) {
            let middle = part.iter().position(|&byte| byte == b'=').unwrap_or(part.len());
            let (key, value) = (part[..middle].trim_ascii(), part.get(middle + 1..).unwrap_or_default());
            match (key, value.trim_ascii()) {
                (b"page.disposition", b"private") => settings.disposition = Disposition::Private,
                (b"page.disposition", b"shared-fd") => settings.disposition = Disposition::SharedFd,
                (b"page.disposition", b"shared-shm") => settings.disposition = Disposition::SharedShm,
                (b"page.disposition", _) => warn(part, "use private, shared-fd or shared-shm"),
                (b"size.threshold", value) => match number(value) {
                    Some(bytes) => settings.threshold = bytes,
                    None => warn(part, "use a number of bytes"),
                },
                _ => warn(part, "the settings are page.disposition and size.threshold"),
            }
        }
        settings
    }
}

fn number(digits: &[u8]) -> Option<usize> {
    // `parse` alone would accept a sign.
    digits.iter().all(u8::is_ascii_digit).then_some(digits)?;
    str::from_utf8(digits).ok()?.parse().ok()
}

/// A line of at most 400 bytes, with its line feed.
struct Line {
    bytes: [u8; 400],
    len: usize,
}

impl fmt::Write for Line {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        // The last byte is for the line feed.
        let available = self.bytes.len() - 1 - self.len;
        let part = &text.as_bytes()[..text.len().min(available)];
        self.bytes[self.len..self.len + part.len()].copy_from_slice(part);
        self.len += part.len();
        Ok(())
    }
}

/// Writes one line to standard error, without allocating. Longer lines are cut.
pub(crate) fn report(message: fmt::Arguments<'_>) {
    let mut line = Line { bytes: [0; 400], len: 0 };
    let _ = line.write_str("umf_proxy: ");
    let _ = line.write_fmt(message);
    line.bytes[line.len] = b'\n';
    // If standard error is closed, the line is lost. The plain system call is no cancellation
    // point, as `malloc` must not be one.
    // SAFETY: the buffer has that many bytes.
    let _ = unsafe { libc::syscall(libc::SYS_write, 2, line.bytes.as_ptr(), line.len + 1) };
}

/// At most 100 bytes as text, with a question mark for each byte that is not printable ASCII.
pub(crate) struct Printable<'a>(pub(crate) &'a [u8]);

impl fmt::Display for Printable<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for &byte in self.0.iter().take(100) {
            f.write_char(if byte.is_ascii_graphic() || byte == b' ' { char::from(byte) } else { '?' })?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> (Settings, Vec<String>) {
        let mut warnings = Vec::new();
        let settings = Settings::parse(text.as_bytes(), |part, _| {
            warnings.push(String::from_utf8_lossy(part).into_owned());
        });
        (settings, warnings)
    }

    #[test]
    fn settings_of_the_original_library_are_read() {
        let (settings, warnings) = read("page.disposition=shared-fd;size.threshold=64");
        assert_eq!(settings, Settings { disposition: Disposition::SharedFd, threshold: 64 });
        assert!(warnings.is_empty());
        assert_eq!(
            read(" size.threshold = 0 ; page.disposition = shared-shm ;").0.disposition,
            Disposition::SharedShm
        );
        assert_eq!(read(""), (Settings::DEFAULT, Vec::new()));
    }

    #[test]
    fn invalid_settings_are_reported_and_ignored() {
        let (settings, warnings) =
            read("page.disposition=mine;size.threshold=-1;colour;size.threshold=;a=b;size.threshold=7");
        assert_eq!(settings, Settings { disposition: Disposition::Private, threshold: 7 });
        assert_eq!(
            warnings,
            ["page.disposition=mine", "size.threshold=-1", "colour", "size.threshold=", "a=b"]
        );
        assert_eq!(read("size.threshold=99999999999999999999").1.len(), 1);
        assert_eq!(read("size.threshold=+1").1.len(), 1);
    }
}
