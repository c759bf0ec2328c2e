//! Whether the program has loaded a driver's library.

use std::ffi::OsStr;

use libloading::os::unix::{Library, RTLD_LOCAL, RTLD_NOW};

/// Whether the program has this library. Who has a context of a driver has loaded it; nothing is loaded that was not.
pub(super) fn is_loaded(library: impl AsRef<OsStr>) -> bool {
    // SAFETY: no code runs: the library is there already, or it is not opened.
    unsafe { Library::open(Some(library.as_ref()), RTLD_NOW | RTLD_LOCAL | libc::RTLD_NOLOAD) }.is_ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_is_there_is_found() {
        assert!(is_loaded("libc.so.6"));
        assert!(!is_loaded("libumf-no-such-library.so.1"));
    }
}
