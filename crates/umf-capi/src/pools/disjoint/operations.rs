//! The functions of the table.

use core::ffi::{c_char, c_void};
use core::ptr::null_mut;

use umf::plugin::ops::State;
use umf_core::{Error, Layout, Pool as _};

use super::params::Params;
use super::state;
use super::state::{Disjoint, is_nothing, layout, of};
use crate::boundary::{Code, Failure, Handle, Out, Outcome, call, call_with};
use crate::pool::{Functions, PoolTable};
use crate::pools::last_error::{self, Kind};
use crate::provider::Provider;

pub(crate) const FUNCTIONS: Functions = Functions {
    initialize,
    finalize,
    malloc,
    calloc,
    realloc,
    aligned_malloc,
    malloc_usable_size,
    free,
    get_last_allocation_error,
    get_name,
    ctl: Some(crate::ctl::control::<Disjoint>),
    trim: Some(trim),
};

static TABLE: PoolTable = PoolTable::of(&FUNCTIONS);

#[unsafe(no_mangle)]
extern "C" fn umfDisjointPoolOps() -> *const PoolTable {
    &raw const TABLE
}

extern "C" fn initialize(provider: Handle<Provider>, params: *const c_void, state: *mut State) -> Code {
    call("initialize", || {
        let (provider, state) = (provider.get()?, Out::from_ptr(state).check()?);
        let params = Handle::<Params>::from_ptr(params.cast::<Params>().cast_mut());
        let params = if params.is_null() { Params::default() } else { params.get()?.clone() };
        state.set(Box::into_raw(Box::new(Disjoint::new(provider, params)?)).cast())
    })
}

extern "C" fn finalize(state: State) -> Code {
    call("finalize", || {
        if !state.is_null() {
            // SAFETY: `initialize` made the box; whoever has this table finalises once.
            drop(unsafe { Box::from_raw(state.cast::<Disjoint>()) });
        }
        Ok(())
    })
}

/// Allocates, and turns a failure into NULL and the thread's last error.
fn allocation(
    what: &'static str,
    state: State,
    allocate: impl FnOnce(&Disjoint) -> Outcome<*mut c_void>,
) -> *mut c_void {
    call_with(what, null_mut(), || {
        let disjoint = of(state)?;
        Ok(allocate(disjoint).unwrap_or_else(|failure| last_error::failed(Kind::Disjoint, &failure)))
    })
}

/// Allocates a block; nothing is asked for with 0 bytes, and nothing has failed.
fn plain(disjoint: &Disjoint, wanted: Result<Layout, Error>) -> Outcome<*mut c_void> {
    match wanted {
        Err(error) if is_nothing(&error) => Ok(null_mut()),
        wanted => disjoint.allocate(wanted?),
    }
}

extern "C" fn malloc(state: State, size: usize) -> *mut c_void {
    allocation("malloc", state, |disjoint| plain(disjoint, layout(size)))
}

extern "C" fn aligned_malloc(state: State, size: usize, align: usize) -> *mut c_void {
    allocation("aligned_malloc", state, |disjoint| plain(disjoint, Layout::new(size, align.max(1))))
}

extern "C" fn calloc(state: State, count: usize, size: usize) -> *mut c_void {
    allocation("calloc", state, |disjoint| {
        disjoint.check_host()?;
        let wanted = Layout::array(count, size, 1).and_then(|layout| state::layout(layout.size()));
        let block = plain(disjoint, wanted)?;
        if !block.is_null() {
            let (_, usable) = disjoint.block(block)?;
            // SAFETY: a fresh block of host memory of that size.
            unsafe { block.cast::<u8>().write_bytes(0, usable.min(count * size)) };
        }
        Ok(block)
    })
}

extern "C" fn realloc(state: State, block: *mut c_void, size: usize) -> *mut c_void {
    allocation("realloc", state, |disjoint| {
        disjoint.check_host()?;
        if block.is_null() {
            return plain(disjoint, layout(size));
        }
        let (start, usable) = disjoint.block(block)?;
        if start.as_ptr().map(<*mut u8>::cast) != Some(block) {
            return Err(Error::InteriorAddress { address: start }.into());
        }
        if size == 0 {
            disjoint.free(block)?;
            return Ok(null_mut());
        }
        // In place, unless half of it would be wasted.
        if size <= usable && size > usable / 2 {
            return Ok(block);
        }
        let moved = plain(disjoint, layout(size))?;
        // SAFETY: both are live blocks of host memory, of at least that many bytes, and not the same.
        unsafe { core::ptr::copy_nonoverlapping(block.cast::<u8>(), moved.cast(), usable.min(size)) };
        disjoint.free(block)?;
        Ok(moved)
    })
}

extern "C" fn malloc_usable_size(state: State, block: *const c_void, size: *mut usize) -> Code {
    call("malloc_usable_size", || {
        let size = Out::from_ptr(size).check()?;
        if block.is_null() {
            return size.set(0);
        }
        size.set(of(state)?.block(block)?.1)
    })
}

extern "C" fn free(state: State, block: *mut c_void) -> Code {
    call("free", || {
        let disjoint = of(state)?;
        if block.is_null() { Ok(()) } else { disjoint.free(block) }
    })
}

extern "C" fn get_last_allocation_error(_: State) -> Code {
    last_error::last(Kind::Disjoint)
}

extern "C" fn get_name(state: State, name: *mut *const c_char) -> Code {
    call("get_name", || {
        let name = Out::from_ptr(name).check()?;
        match of(state) {
            Ok(disjoint) => name.set(disjoint.name()),
            Err(_) => name.set(c"disjoint".as_ptr()),
        }
    })
}

extern "C" fn trim(state: State, keep: usize) -> Code {
    call("trim", || of(state)?.slab()?.trim(keep).map(|_| ()).map_err(Failure::from))
}
