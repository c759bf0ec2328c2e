//! [`Kept`]: the functions of the table of a pool that knows its blocks, written once for all of them.

use core::ffi::{CStr, c_char, c_void};
use core::ptr::null_mut;

use umf::plugin::ops::State;
use umf_core::{Address, Error};

use super::last_error::{self, Kind};
use crate::boundary::{Code, Failure, Out, Outcome, call, call_with};
use crate::ctl::{Answers, control};
use crate::pool::{Functions, Initialize};

/// The state of a pool that finds the block around an address, and how much of it there is.
///
/// It is in a box, whose address is the [`State`].
pub(crate) trait Kept: Answers + Sized {
    const KIND: Kind;
    /// What the pool is called where there is no state to ask.
    const NAME: &'static CStr;
    /// What blocks are aligned to if nothing is asked for, in bytes.
    const ALIGN: usize;

    /// Its name, which lives as long as the pool.
    fn name(&self) -> *const c_char;

    /// A block of so many bytes. For 0 bytes it may be NULL, which is no failure.
    ///
    /// # Errors
    /// As [`umf_core::Pool::allocate`].
    fn allocate(&self, size: usize, align: usize) -> Outcome<*mut c_void>;

    /// # Errors
    /// As [`umf_core::Pool::free`].
    fn free(&self, block: *mut c_void) -> Outcome<()>;

    /// The pool, as this library has them.
    ///
    /// # Errors
    /// It could not be made.
    fn pool(&self) -> Outcome<&dyn umf_core::Pool>;

    /// Whether the processor may read and write the memory.
    fn is_host(&self) -> bool;
}

/// The functions of a table, all but the one that makes the state.
pub(crate) const fn functions<T: Kept>(initialize: Initialize) -> Functions {
    Functions {
        initialize,
        finalize: finalize::<T>,
        malloc: malloc::<T>,
        calloc: calloc::<T>,
        realloc: realloc::<T>,
        aligned_malloc: aligned_malloc::<T>,
        malloc_usable_size: malloc_usable_size::<T>,
        free: free::<T>,
        get_last_allocation_error: get_last_allocation_error::<T>,
        get_name: get_name::<T>,
        ctl: Some(control::<T>),
        trim: Some(trim::<T>),
    }
}

/// The state that [`give`] made.
pub(crate) fn behind<'a, T>(state: State) -> Outcome<&'a T> {
    // SAFETY: whoever has the table of a pool gives its functions what `initialize` gave.
    unsafe { state.cast::<T>().as_ref() }.ok_or(Failure::argument("the state of a pool is NULL"))
}

/// What `initialize` gives.
pub(crate) fn give<T: Kept>(place: Out<State>, state: T) -> Outcome<()> {
    place.set(Box::into_raw(Box::new(state)).cast())
}

extern "C" fn finalize<T: Kept>(state: State) -> Code {
    call("finalize", || {
        if !state.is_null() {
            // SAFETY: `give` made the box; whoever has this table finalises once.
            drop(unsafe { Box::from_raw(state.cast::<T>()) });
        }
        Ok(())
    })
}

/// Allocates, and turns a failure into NULL and the thread's last error.
fn allocation<T: Kept>(
    what: &'static str,
    state: State,
    allocate: impl FnOnce(&T) -> Outcome<*mut c_void>,
) -> *mut c_void {
    call_with(what, null_mut(), || {
        let pool = T::behind(state)?;
        Ok(allocate(pool).unwrap_or_else(|failure| last_error::failed(T::KIND, &failure)))
    })
}

/// The block around an address of C, and bytes in it from there on.
fn block<T: Kept>(pool: &T, block: *const c_void) -> Outcome<(Address, usize)> {
    let address = Address::from_ptr(block.cast::<u8>());
    let found = pool.pool()?.block_at(address)?;
    let inside = address.offset_from(found.address).and_then(|offset| usize::try_from(offset).ok());
    Ok((found.address, found.size - inside.unwrap_or(0)))
}

fn check_host<T: Kept>(pool: &T) -> Outcome<()> {
    if pool.is_host() {
        return Ok(());
    }
    Err(Failure::unsupported(
        "only memory that the processor is known to reach can be cleared or copied here",
    ))
}

extern "C" fn malloc<T: Kept>(state: State, size: usize) -> *mut c_void {
    allocation("malloc", state, |pool: &T| pool.allocate(size, T::ALIGN))
}

extern "C" fn aligned_malloc<T: Kept>(state: State, size: usize, align: usize) -> *mut c_void {
    allocation("aligned_malloc", state, |pool: &T| pool.allocate(size, align.max(1)))
}

extern "C" fn calloc<T: Kept>(state: State, count: usize, size: usize) -> *mut c_void {
    allocation("calloc", state, |pool: &T| {
        check_host(pool)?;
        let bytes = count.checked_mul(size).ok_or(Error::SizeOverflow { size: usize::MAX, align: 1 })?;
        let block = pool.allocate(bytes, T::ALIGN)?;
        if !block.is_null() {
            // SAFETY: a fresh block of host memory of that size.
            unsafe { block.cast::<u8>().write_bytes(0, bytes) };
        }
        Ok(block)
    })
}

extern "C" fn realloc<T: Kept>(state: State, old: *mut c_void, size: usize) -> *mut c_void {
    allocation("realloc", state, |pool: &T| {
        check_host(pool)?;
        if old.is_null() {
            return pool.allocate(size, T::ALIGN);
        }
        let (start, usable) = block(pool, old)?;
        if start.as_ptr().map(<*mut u8>::cast) != Some(old) {
            return Err(Error::InteriorAddress { address: start }.into());
        }
        if size == 0 {
            pool.free(old)?;
            return Ok(null_mut());
        }
        // In place, unless half of it would be wasted.
        if size <= usable && size > usable / 2 {
            return Ok(old);
        }
        let moved = pool.allocate(size, T::ALIGN)?;
        // SAFETY: both are live blocks of host memory, of at least that many bytes, and not the same.
        unsafe { core::ptr::copy_nonoverlapping(old.cast::<u8>(), moved.cast(), usable.min(size)) };
        pool.free(old)?;
        Ok(moved)
    })
}

extern "C" fn malloc_usable_size<T: Kept>(state: State, memory: *const c_void, size: *mut usize) -> Code {
    call("malloc_usable_size", || {
        let size = Out::from_ptr(size).check()?;
        if memory.is_null() {
            return size.set(0);
        }
        size.set(block(T::behind(state)?, memory)?.1)
    })
}

extern "C" fn free<T: Kept>(state: State, block: *mut c_void) -> Code {
    call("free", || {
        let pool = T::behind(state)?;
        if block.is_null() { Ok(()) } else { pool.free(block) }
    })
}

extern "C" fn get_last_allocation_error<T: Kept>(_: State) -> Code {
    last_error::last(T::KIND)
}

extern "C" fn get_name<T: Kept>(state: State, name: *mut *const c_char) -> Code {
    call("get_name", || {
        let name = Out::from_ptr(name).check()?;
        name.set(T::behind(state).map_or(T::NAME.as_ptr(), T::name))
    })
}

extern "C" fn trim<T: Kept>(state: State, keep: usize) -> Code {
    call("trim", || T::behind(state)?.pool()?.trim(keep).map(|_| ()).map_err(Failure::from))
}
