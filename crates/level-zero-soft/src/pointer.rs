//! Pointers that the application passes: null is an answer, anything else is believed, as the interface demands.

use level_zero_sys::*;

use crate::entry::Done;

/// Writes a result.
///
/// # Safety
/// The pointer is null or valid for a write.
pub(crate) unsafe fn put<T>(pointer: *mut T, value: T) -> Done {
    if pointer.is_null() {
        return Err(ZE_RESULT_ERROR_INVALID_NULL_POINTER.into());
    }
    // SAFETY: the caller's promise.
    unsafe { pointer.write_unaligned(value) };
    Ok(())
}

/// Writes a result where one is wanted.
///
/// # Safety
/// As for [`put`].
pub(crate) unsafe fn put_if_wanted<T>(pointer: *mut T, value: T) {
    if !pointer.is_null() {
        // SAFETY: the caller's promise.
        unsafe { pointer.write_unaligned(value) };
    }
}

/// Reads an argument.
///
/// # Safety
/// The pointer is null or valid for a read.
pub(crate) unsafe fn get<T: Copy>(pointer: *const T) -> Done<T> {
    if pointer.is_null() {
        return Err(ZE_RESULT_ERROR_INVALID_NULL_POINTER.into());
    }
    // SAFETY: the caller's promise.
    Ok(unsafe { pointer.read_unaligned() })
}

/// Reads an array; `missing` is the answer if there is none though its length is not zero.
///
/// # Safety
/// The pointer is null or valid for so many reads.
pub(crate) unsafe fn array<T: Copy>(pointer: *const T, length: u32, missing: ze_result_t) -> Done<Vec<T>> {
    if length == 0 {
        return Ok(Vec::new());
    }
    if pointer.is_null() {
        return Err(missing.into());
    }
    // SAFETY: the caller's promise.
    Ok((0..length as usize).map(|index| unsafe { pointer.add(index).read_unaligned() }).collect())
}

/// A list whose length is asked for first: writes the length where the count is zero or more than there is, and as many
/// items as there is room for.
///
/// # Safety
/// The count is null or valid, and the array null or valid for so many writes.
pub(crate) unsafe fn counted<T>(
    count: *mut u32,
    array: *mut T,
    items: impl ExactSizeIterator<Item = T>,
) -> Done {
    // SAFETY: the caller's promise.
    let room = unsafe { get(count) }?;
    let there = u32::try_from(items.len()).unwrap_or(u32::MAX);
    if room == 0 || room > there {
        // SAFETY: as above.
        unsafe { put(count, there) }?;
    }
    if room > 0 && !array.is_null() {
        for (index, item) in items.take(room as usize).enumerate() {
            // SAFETY: as above, and below the room that there is.
            unsafe { array.add(index).write_unaligned(item) };
        }
    }
    Ok(())
}
