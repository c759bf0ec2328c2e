//! What can fail in this crate.

use core::fmt;

/// Why something of this crate could not be done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Error {
    /// There is no memory for metadata.
    OutOfMemory {
        /// Bytes asked for.
        size: usize,
        /// The errno, 0 if there is none.
        native: i32,
    },
    /// A table is full.
    TooMany {
        /// What it holds.
        what: &'static str,
        /// How many it has room for.
        limit: usize,
    },
    /// A system call failed.
    System {
        /// The call.
        call: &'static str,
        /// The errno.
        native: i32,
    },
}

/// `Result` with this crate's [`Error`].
pub type Result<T, E = Error> = core::result::Result<T, E>;

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::OutOfMemory { size, native } => {
                write!(
                    f,
                    "no memory for {size} bytes of metadata (os error {native}); free memory or address space"
                )
            }
            Self::TooMany { what, limit } => write!(f, "too many {what}: {limit} at most"),
            Self::System { call, native } => write!(f, "{call} failed (os error {native})"),
        }
    }
}

impl core::error::Error for Error {}
