//! Error numbers of libfabric for errors of umf.

use core::ffi::c_int;

use libfabric_sys::{
    FI_EACCES, FI_ECANCELED, FI_EHOSTUNREACH, FI_EIO, FI_EKEYREJECTED, FI_ENOTCONN, FI_EPERM, FI_ETIMEDOUT,
    FI_ETRUNC,
};
use umf_link::Error;

/// Returns the positive error number for an error of a link.
pub(crate) fn number(error: &Error) -> c_int {
    match error {
        Error::PeerGone { .. } | Error::Closed { .. } | Error::NotListening { .. } => FI_ENOTCONN,
        Error::Misbehaved { .. } => FI_ENOTCONN,
        Error::Truncated { .. } => FI_ETRUNC,
        Error::OtherMachine | Error::OtherPlace { .. } => FI_EHOSTUNREACH,
        Error::OtherUser { .. } | Error::NotPermitted { .. } | Error::NotProven { .. } => FI_EACCES,
        Error::Expired { .. } | Error::ForeignKey | Error::NotAllowed { .. } | Error::Key(_) => {
            FI_EKEYREJECTED
        }
        Error::TimedOut { .. } => FI_ETIMEDOUT,
        Error::Interrupted => FI_ECANCELED,
        Error::Forked => FI_EPERM,
        Error::System { errno, .. } => errno.raw_os_error(),
        _ => FI_EIO,
    }
}

/// Returns what a function that begins an operation returns for an error. The text goes to the log.
pub(crate) fn refuse(what: &'static str, error: &Error) -> isize {
    tracing::warn!(%error, "libfabric: {what} failed");
    -(number(error) as isize)
}
