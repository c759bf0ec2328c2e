//! Pointers from C. See [`super`] for what C guarantees.

use core::alloc::Layout;
use core::ffi::{CStr, c_char};
use core::ops::Deref;
use core::ptr::NonNull;

use super::{Failure, OUT_OF_HOST_MEMORY, Outcome, tombstones};

const NULL: Failure = Failure::argument("a pointer is NULL that must not be");
const DESTROYED: Failure = Failure::argument("the handle was destroyed before");

/// Place for a result.
#[repr(transparent)]
pub(crate) struct Out<T>(*mut T);

impl<T> Clone for Out<T> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<T> Copy for Out<T> {}

impl<T> Out<T> {
    /// Wraps a local, for calls within this library.
    pub(crate) const fn to(place: &mut T) -> Self {
        Self(core::ptr::from_mut(place))
    }

    pub(crate) const fn from_ptr(pointer: *mut T) -> Self {
        Self(pointer)
    }

    /// Refuses NULL before the operation has an effect.
    pub(crate) fn check(self) -> Outcome<Self> {
        if self.0.is_null() { Err(NULL) } else { Ok(self) }
    }

    /// Writes the result.
    #[inline]
    pub(crate) fn set(self, value: T) -> Outcome<()> {
        if self.set_if_there(value) { Ok(()) } else { Err(NULL) }
    }

    /// Writes the result unless the pointer is NULL. Returns whether it did.
    #[inline(always)]
    pub(crate) fn set_if_there(self, value: T) -> bool {
        let Some(place) = NonNull::new(self.0) else { return false };
        // SAFETY: C guarantees that a pointer that is not NULL is valid for a write of its type.
        unsafe { place.write_unaligned(value) };
        true
    }

    /// Writes the result, which C may ignore by passing NULL.
    pub(crate) fn set_if_wanted(self, value: T) {
        self.set_if_there(value);
    }

    pub(crate) const fn to_ptr(self) -> *mut T {
        self.0
    }
}

/// A C string.
#[derive(Clone, Copy)]
#[repr(transparent)]
pub(crate) struct Text(*const c_char);

impl Text {
    pub(crate) const fn from_ptr(text: *const c_char) -> Self {
        Self(text)
    }

    pub(crate) fn get<'a>(self) -> Outcome<&'a CStr> {
        if self.0.is_null() {
            return Err(NULL);
        }
        // SAFETY: C guarantees that a string that is not NULL ends with a NUL and lives as long as
        // the call.
        Ok(unsafe { CStr::from_ptr(self.0) })
    }

    pub(crate) fn get_str<'a>(self) -> Outcome<&'a str> {
        self.get()?.to_str().map_err(|_| Failure::argument("a name or path is not UTF-8"))
    }

    pub(crate) const fn is_null(self) -> bool {
        self.0.is_null()
    }
}

/// The most entries of a list. Lists are of nodes, partitions or devices. A larger count is a
/// mistake, and reading so many entries would crash.
const LONGEST_LIST: usize = 1 << 16;

/// Pointer to the first entry of a list.
#[derive(Clone, Copy)]
#[repr(transparent)]
pub(crate) struct List<T>(*const T);

impl<T: Copy> List<T> {
    /// Copies `len` entries. A list of none may be NULL.
    pub(crate) fn get(self, len: usize) -> Outcome<Vec<T>> {
        if len == 0 {
            return Ok(Vec::new());
        }
        if self.0.is_null() {
            return Err(NULL);
        }
        if len > LONGEST_LIST {
            return Err(Failure::argument("a list has 65,536 entries at most: pass how many there are"));
        }
        let mut list = Vec::new();
        let no_memory = |_| Failure::new(OUT_OF_HOST_MEMORY, "a list cannot be copied: there is no memory");
        list.try_reserve_exact(len).map_err(no_memory)?;
        // SAFETY: C guarantees that the list has `len` entries.
        list.extend((0..len).map(|index| unsafe { self.0.add(index).read_unaligned() }));
        Ok(list)
    }

    pub(crate) const fn is_null(self) -> bool {
        self.0.is_null()
    }
}

/// Opaque pointer to an object of this library.
#[repr(transparent)]
pub(crate) struct Handle<T>(*mut T);

impl<T> Clone for Handle<T> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<T> Copy for Handle<T> {}

impl<T> Handle<T> {
    pub(crate) const NULL: Self = Self(core::ptr::null_mut());

    /// Boxes an object and returns its handle. The object lives until [`Handle::take`].
    pub(crate) fn new(object: T) -> Self {
        Self(Box::into_raw(Box::new(object)))
    }

    pub(crate) const fn from_ptr(pointer: *mut T) -> Self {
        Self(pointer)
    }

    pub(crate) const fn to_ptr(self) -> *mut T {
        self.0
    }

    pub(crate) const fn is_null(self) -> bool {
        self.0.is_null()
    }

    /// Returns the object; `None` for NULL. Does not detect destroyed handles.
    #[inline]
    pub(crate) fn known<'a>(self) -> Option<&'a T> {
        // SAFETY: C guarantees that the handle is NULL, or that the object lives until the call
        // returns.
        unsafe { self.0.as_ref() }
    }

    #[inline]
    pub(crate) fn get<'a>(self) -> Outcome<&'a T> {
        self.check()?;
        match self.known() {
            Some(object) => Ok(object),
            None => Err(NULL),
        }
    }

    /// Refuses a handle that is known to be destroyed.
    #[inline]
    fn check(self) -> Outcome<()> {
        if tombstones::DESTROYED.has(self.0.addr()) { Err(DESTROYED) } else { Ok(()) }
    }

    /// Returns the object for a change. For settings, which C must not use from two threads at
    /// once.
    pub(crate) fn get_mut<'a>(self) -> Outcome<&'a mut T> {
        self.check()?;
        // SAFETY: C guarantees a live object, and that no other thread uses it.
        unsafe { self.0.as_mut() }.ok_or(NULL)
    }

    /// Takes the object out of its handle; `None` for NULL.
    pub(crate) fn take(self) -> Outcome<Option<Taken<T>>> {
        self.check()?;
        Ok(NonNull::new(self.0).map(Taken))
    }
}

/// An object whose handle is destroyed when this value is dropped.
pub(crate) struct Taken<T>(NonNull<T>);

impl<T> Deref for Taken<T> {
    type Target = T;

    fn deref(&self) -> &T {
        // SAFETY: C guarantees that `Handle::new` made the handle, and that it is destroyed once.
        unsafe { self.0.as_ref() }
    }
}

impl<T> Drop for Taken<T> {
    fn drop(&mut self) {
        // SAFETY: drops the contents of a box of `Handle::new` once. Its memory goes to the
        // tombstones.
        unsafe {
            self.0.drop_in_place();
            tombstones::DESTROYED.add(self.0.cast(), Layout::new::<T>());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn null_is_an_error() {
        assert!(Out::<u8>(core::ptr::null_mut()).set(1).is_err());
        assert!(Text(core::ptr::null()).get().is_err());
        assert!(List::<u8>(core::ptr::null()).get(1).is_err());
        assert!(List::<u8>(core::ptr::null()).get(0).is_ok_and(|list| list.is_empty()));
        assert!(
            Handle::<u8>::NULL.get().is_err() && Handle::<u8>::NULL.take().is_ok_and(|none| none.is_none())
        );
    }

    #[test]
    fn count_that_no_list_has_is_an_error() {
        let one = 1_u64;
        for len in [LONGEST_LIST + 1, u32::MAX as usize, isize::MAX as usize / 8, usize::MAX] {
            let refused = List(&raw const one).get(len);
            assert_eq!(refused.unwrap_err().code(), crate::boundary::INVALID_ARGUMENT, "{len}");
        }
    }

    #[test]
    fn what_is_given_comes_back() {
        let mut place = 0;
        assert!(Out::to(&mut place).set(7).is_ok());
        assert_eq!(place, 7);
        let list = [1_u32, 2, 3];
        assert_eq!(List(list.as_ptr()).get(3).unwrap(), list);
        let handle = Handle::new(5);
        *handle.get_mut().unwrap() += 1;
        let taken = handle.take().unwrap().unwrap();
        assert_eq!(*taken, 6);
        drop(taken);
        assert!(handle.get().is_err() && handle.get_mut().is_err() && handle.take().is_err());
    }
}
