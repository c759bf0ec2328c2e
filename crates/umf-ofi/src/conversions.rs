//! Conversions between what applications pass and get, and what this crate works with: lists of
//! memory, texts, addresses, error numbers.

use core::ffi::{c_char, c_int, c_void};

use libc::iovec;
use libfabric_sys::{
    FI_EACCES, FI_EADDRINUSE, FI_EAGAIN, FI_ECANCELED, FI_EHOSTUNREACH, FI_EINVAL, FI_EIO, FI_EKEYREJECTED,
    FI_ENOTCONN, FI_EPERM, FI_ETIMEDOUT, FI_ETRUNC,
};
use umf_link::Error;

use crate::info::IOV_LIMIT;
use crate::libraries;

/// Address and length of each piece of memory.
pub(crate) type Pieces<'p> = &'p [(*mut u8, usize)];

/// Reads a list of pieces and calls `run` with it.
///
/// # Safety
/// `list` has `count` entries.
pub(crate) unsafe fn with_pieces(
    list: *const iovec,
    count: usize,
    run: impl FnOnce(Pieces<'_>) -> isize,
) -> isize {
    if count > IOV_LIMIT {
        return -(FI_EINVAL as isize);
    }
    let mut pieces = [(core::ptr::NonNull::<u8>::dangling().as_ptr(), 0); IOV_LIMIT];
    // SAFETY: by this function's contract.
    for (piece, entry) in pieces.iter_mut().zip(unsafe { list_of(list, count) }) {
        *piece = (entry.iov_base.cast(), entry.iov_len);
    }
    run(&pieces[..count])
}

/// Returns a list of the application, which may be null if it is empty.
///
/// # Safety
/// `list` has `count` entries.
pub(crate) const unsafe fn list_of<'l, T>(list: *const T, count: usize) -> &'l [T] {
    if count == 0 || list.is_null() {
        return &[];
    }
    // SAFETY: by this function's contract.
    unsafe { core::slice::from_raw_parts(list, count) }
}

/// Copies a text with its end into a buffer of the caller. Cuts what does not fit.
///
/// # Safety
/// `buffer` is null or has `length` bytes.
pub(crate) unsafe fn copy_text(text: &str, buffer: *mut c_char, length: usize) {
    if buffer.is_null() || length == 0 {
        return;
    }
    let count = text.len().min(length - 1);
    // SAFETY: `buffer` has `length` bytes, more than `count`.
    unsafe {
        core::ptr::copy_nonoverlapping(text.as_ptr().cast(), buffer, count);
        *buffer.add(count) = 0;
    }
}

/// Copies an address into a buffer of the caller, as `getname` and others do: as much as fits, and
/// the whole length.
///
/// # Safety
/// `length` can be read and written; `buffer` has that many bytes.
pub(crate) unsafe fn copy_address(bytes: &[u8], buffer: *mut c_void, length: *mut usize) -> bool {
    // SAFETY: by this function's contract.
    unsafe {
        let capacity = core::mem::replace(&mut *length, bytes.len());
        let count = if buffer.is_null() { 0 } else { capacity.min(bytes.len()) };
        core::ptr::copy_nonoverlapping(bytes.as_ptr(), buffer.cast(), count);
        count == bytes.len()
    }
}

/// Returns the positive error number for an error of a link.
pub(crate) fn error_number(error: &Error) -> c_int {
    match error {
        // The operation has not begun, and is tried again.
        Error::NotAccepted { .. } => FI_EAGAIN,
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
        Error::NameTaken { .. } => FI_EADDRINUSE,
        Error::Forked => FI_EPERM,
        Error::System { errno, .. } => errno.raw_os_error(),
        _ => FI_EIO,
    }
}

/// Returns what a function that begins an operation returns for an error. The text goes to the log.
pub(crate) fn refuse(what: &'static str, error: &Error) -> isize {
    if !matches!(error, Error::NotAccepted { .. }) {
        tracing::warn!(%error, "libfabric: {what} failed");
    }
    -(error_number(error) as isize)
}

/// Copies the text of a positive error number as [`copy_text`]. Returns the buffer.
///
/// # Safety
/// As [`copy_text`].
pub(crate) unsafe fn copy_text_of_error(number: c_int, buffer: *mut c_char, length: usize) -> *const c_char {
    let text =
        libraries().last().map_or_else(|| format!("error {number}"), |library| library.text_of(number));
    // SAFETY: by this function's contract.
    unsafe { copy_text(&text, buffer, length) };
    buffer
}
