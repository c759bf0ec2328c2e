//! How objects of the interface are made, found again, used by others and closed.
//!
//! An object is a [`Boxed`]: the structure that libfabric knows, and the part of this crate behind
//! an [`Arc`]. Objects that use another one hold its part, by which closing fails with
//! `-FI_EBUSY` while it is in use.

use core::ffi::{c_char, c_int, c_void};
use std::sync::Arc;

use libfabric_sys::{FI_EBUSY, FI_SUCCESS, fi_ops, fid};

/// An object: first the structure of the interface, which begins with a [`fid`].
#[repr(C)]
pub(crate) struct Boxed<F, T> {
    pub object: F,
    pub part: Arc<T>,
}

impl<F, T> Boxed<F, T> {
    /// Makes an object, and returns it as its user has it.
    pub(crate) fn leak(object: F, part: Arc<T>) -> *mut F {
        Box::into_raw(Box::new(Self { object, part })).cast()
    }

    /// Returns the part of an object.
    ///
    /// # Safety
    /// The object is of this type and not closed while the result is used.
    #[inline]
    pub(crate) unsafe fn part<'o>(object: *mut F) -> &'o Arc<T> {
        // SAFETY: objects of this type were made by `leak`.
        unsafe { &(*object.cast::<Self>()).part }
    }

    /// Closes an object, unless others use its part.
    ///
    /// # Safety
    /// As [`Boxed::part`]. If the result is [`FI_SUCCESS`], the object is not used again.
    pub(crate) unsafe fn close(object: *mut fid) -> c_int {
        let object = object.cast::<Self>();
        // SAFETY: by this function's contract.
        if Arc::strong_count(unsafe { &(*object).part }) > 1 {
            return -FI_EBUSY;
        }
        // SAFETY: made by `leak`, and not used again.
        drop(unsafe { Box::from_raw(object) });
        FI_SUCCESS
    }
}

/// The operations of objects that can only be closed, by `close`.
pub(crate) const fn closed_by(close: unsafe extern "C" fn(*mut fid) -> c_int) -> fi_ops {
    fi_ops { close: Some(close), ..fi_ops::UNSUPPORTED }
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
