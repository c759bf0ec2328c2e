//! [`Settings`]: what `UMF_PROXY` says.

/// What the heap's memory is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Disposition {
    /// This process's alone.
    Private,
    /// A memory file.
    SharedFd,
    /// A memory file with a name in `/dev/shm`.
    SharedShm,
}

/// What `UMF_PROXY` says, in the original's words: `page.disposition=shared-fd;size.threshold=64`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Settings {
    pub(crate) disposition: Disposition,
    /// Requests for fewer bytes go to the allocator that the program would have had.
    pub(crate) threshold: usize,
}

impl Settings {
    pub(crate) const DEFAULT: Self = Self { disposition: Disposition::Private, threshold: 0 };

    /// Reads settings that are separated by semicolons; `complain` is told of each part that is none, and why.
    pub(crate) fn parse(text: &[u8], mut complain: impl FnMut(&[u8], &'static str)) -> Self {
        let mut settings = Self::DEFAULT;
        for part in text.split(|&byte| byte == b';').map(<[u8]>::trim_ascii).filter(|part| !part.is_empty()) {
            let middle = part.iter().position(|&byte| byte == b'=').unwrap_or(part.len());
            let (key, value) = (part[..middle].trim_ascii(), part.get(middle + 1..).unwrap_or_default());
            match (key, value.trim_ascii()) {
                (b"page.disposition", b"private") => settings.disposition = Disposition::Private,
                (b"page.disposition", b"shared-fd") => settings.disposition = Disposition::SharedFd,
                (b"page.disposition", b"shared-shm") => settings.disposition = Disposition::SharedShm,
                (b"page.disposition", _) => complain(part, "it can be private, shared-fd or shared-shm"),
                (b"size.threshold", value) => match number(value) {
                    Some(bytes) => settings.threshold = bytes,
                    None => complain(part, "it is a number of bytes"),
                },
                _ => complain(part, "there are page.disposition and size.threshold"),
            }
        }
        settings
    }
}

fn number(digits: &[u8]) -> Option<usize> {
    // (Not by itself: that takes a sign.)
    digits.iter().all(u8::is_ascii_digit).then_some(digits)?;
    str::from_utf8(digits).ok()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> (Settings, Vec<String>) {
        let mut complaints = Vec::new();
        let settings = Settings::parse(text.as_bytes(), |part, _| {
            complaints.push(String::from_utf8_lossy(part).into_owned());
        });
        (settings, complaints)
    }

    #[test]
    fn the_originals_settings_are_read() {
        let (settings, complaints) = read("page.disposition=shared-fd;size.threshold=64");
        assert_eq!(settings, Settings { disposition: Disposition::SharedFd, threshold: 64 });
        assert!(complaints.is_empty());
        assert_eq!(
            read(" size.threshold = 0 ; page.disposition = shared-shm ;").0.disposition,
            Disposition::SharedShm
        );
        assert_eq!(read(""), (Settings::DEFAULT, Vec::new()));
    }

    #[test]
    fn what_is_wrong_is_told_and_left_out() {
        let (settings, complaints) =
            read("page.disposition=mine;size.threshold=-1;colour;size.threshold=;a=b;size.threshold=7");
        assert_eq!(settings, Settings { disposition: Disposition::Private, threshold: 7 });
        assert_eq!(
            complaints,
            ["page.disposition=mine", "size.threshold=-1", "colour", "size.threshold=", "a=b"]
        );
        assert_eq!(read("size.threshold=99999999999999999999").1.len(), 1);
        assert_eq!(read("size.threshold=+1").1.len(), 1);
    }
}
