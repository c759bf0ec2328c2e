//! How objects of the interface are made, found again, used by others and closed.
//!
//! An object is a [`Boxed`]: the structure that libfabric knows, and the part of this crate behind
//! an [`Arc`]. Objects that use another one hold its part, by which closing fails with
//! `-FI_EBUSY` while it is in use.

use core::ffi::c_int;
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
