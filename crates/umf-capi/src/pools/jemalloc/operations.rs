//! The functions of the table.

use core::ffi::{c_char, c_void};
use core::ptr::null_mut;
use std::ffi::CString;
use std::sync::Arc;

use umf::plugin::ops::State;
use umf_core::{Address, Error, Layout, Pool as _};
use umf_pool_jemalloc::{JemallocPool, JemallocSettings};

use super::params::Params;
use crate::boundary::{Code, Failure, Handle, Out, Outcome, call, call_with};
use crate::ctl::{Answers, Asked, control, no_such_path};
use crate::memory::owners;
use crate::pool::{Functions, PoolTable};
use crate::pools::last_error::{self, Kind};
use crate::provider::{Provider, Tracking, explain};

/// The state.
struct Jemalloc {
    pool: Arc<JemallocPool>,
    name: CString,
    /// Whether the CPU may read and write the memory.
    is_host: bool,
}

static TABLE: PoolTable = PoolTable::of(&Functions {
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
    ctl: Some(control::<Jemalloc>),
    trim: Some(trim),
});

#[unsafe(no_mangle)]
extern "C" fn umfJemallocPoolOps() -> *const PoolTable {
    &raw const TABLE
}

fn of<'a>(state: State) -> Outcome<&'a Jemalloc> {
    // SAFETY: whoever has this table gives its functions what `initialize` gave.
    unsafe { state.cast::<Jemalloc>().as_ref() }.ok_or(Failure::argument("the state of a pool is NULL"))
}

extern "C" fn initialize(provider: Handle<Provider>, params: *const c_void, state: *mut State) -> Code {
    call("initialize", || {
        let (provider, state) = (provider.get()?, Out::from_ptr(state).check()?);
        let params = Handle::<Params>::from_ptr(params.cast::<Params>().cast_mut());
        let defaults = Params::default();
        let params = if params.is_null() { &defaults } else { params.get()? };
        let tracking = Tracking::of(provider);
        let core = match tracking {
            Some(tracking) => tracking.base()?.core(),
            None => provider.core(),
        };
        let is_host = core.memory_kind().is_host_accessible();
        let settings = JemallocSettings::default()
            .name(params.name.to_string_lossy())
            .arenas(u32::try_from(params.arenas).unwrap_or(u32::MAX));
        let pool = JemallocPool::with_settings(core, settings)?;
        if let Some(handle) = tracking.and_then(Tracking::pool) {
            owners::enter(Arc::as_ptr(&pool).cast(), handle);
        }
        let jemalloc = Jemalloc { pool, name: params.name.clone(), is_host };
        state.set(Box::into_raw(Box::new(jemalloc)).cast())
    })
}

extern "C" fn finalize(state: State) -> Code {
    call("finalize", || {
        if !state.is_null() {
            // SAFETY: `initialize` made the box; whoever has this table finalises once.
            drop(unsafe { Box::from_raw(state.cast::<Jemalloc>()) });
        }
        Ok(())
    })
}

impl Jemalloc {
    /// A block. jemalloc gives one for 0 bytes, too; its blocks are aligned to 16 bytes at least.
    fn allocate(&self, size: usize, align: usize) -> Outcome<*mut c_void> {
        let address = self.pool.allocate(Layout::new(size.max(1), align)?).map_err(explain)?;
        let outside = Failure::argument("the memory lies in no address space of this process");
        address.as_ptr().map(<*mut u8>::cast).ok_or(outside)
    }

    fn free(&self, block: *mut c_void) -> Outcome<()> {
        // SAFETY: the block is C's to give; one that is none is an error.
        unsafe { self.pool.free(Address::from_ptr(block.cast::<u8>())) }.map_err(explain)
    }

    /// The block around an address, and bytes in it from there on.
    fn block(&self, block: *const c_void) -> Outcome<(Address, usize)> {
        let address = Address::from_ptr(block.cast::<u8>());
        let found = self.pool.block_at(address)?;
        let inside = address.offset_from(found.address).and_then(|offset| usize::try_from(offset).ok());
        Ok((found.address, found.size - inside.unwrap_or(0)))
    }

    fn check_host(&self) -> Outcome<()> {
        if self.is_host {
            return Ok(());
        }
        Err(Failure::unsupported(
            "only memory that the processor is known to reach can be cleared or copied here",
        ))
    }
}

/// Allocates, and turns a failure into NULL and the thread's last error.
fn allocation(
    what: &'static str,
    state: State,
    allocate: impl FnOnce(&Jemalloc) -> Outcome<*mut c_void>,
) -> *mut c_void {
    call_with(what, null_mut(), || {
        let jemalloc = of(state)?;
        Ok(allocate(jemalloc).unwrap_or_else(|failure| last_error::failed(Kind::Jemalloc, &failure)))
    })
}

extern "C" fn malloc(state: State, size: usize) -> *mut c_void {
    allocation("malloc", state, |jemalloc| jemalloc.allocate(size, 1))
}

extern "C" fn aligned_malloc(state: State, size: usize, align: usize) -> *mut c_void {
    allocation("aligned_malloc", state, |jemalloc| jemalloc.allocate(size, align.max(1)))
}

extern "C" fn calloc(state: State, count: usize, size: usize) -> *mut c_void {
    allocation("calloc", state, |jemalloc| {
        jemalloc.check_host()?;
        let bytes = count.checked_mul(size).ok_or(Error::SizeOverflow { size: usize::MAX, align: 1 })?;
        let block = jemalloc.allocate(bytes, 1)?;
        // SAFETY: a fresh block of host memory of that size.
        unsafe { block.cast::<u8>().write_bytes(0, bytes) };
        Ok(block)
    })
}

extern "C" fn realloc(state: State, block: *mut c_void, size: usize) -> *mut c_void {
    allocation("realloc", state, |jemalloc| {
        jemalloc.check_host()?;
        if block.is_null() {
            return jemalloc.allocate(size, 1);
        }
        let (start, usable) = jemalloc.block(block)?;
        if start.as_ptr().map(<*mut u8>::cast) != Some(block) {
            return Err(Error::InteriorAddress { address: start }.into());
        }
        if size == 0 {
            jemalloc.free(block)?;
            return Ok(null_mut());
        }
        // In place, unless half of it would be wasted.
        if size <= usable && size > usable / 2 {
            return Ok(block);
        }
        let moved = jemalloc.allocate(size, 1)?;
        // SAFETY: both are live blocks of host memory, of at least that many bytes, and not the same.
        unsafe { core::ptr::copy_nonoverlapping(block.cast::<u8>(), moved.cast(), usable.min(size)) };
        jemalloc.free(block)?;
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
        let jemalloc = of(state)?;
        if block.is_null() { Ok(()) } else { jemalloc.free(block) }
    })
}

extern "C" fn get_last_allocation_error(_: State) -> Code {
    last_error::last(Kind::Jemalloc)
}

extern "C" fn get_name(state: State, name: *mut *const c_char) -> Code {
    call("get_name", || {
        let name = Out::from_ptr(name).check()?;
        name.set(of(state).map_or(c"jemalloc".as_ptr(), |jemalloc| jemalloc.name.as_ptr()))
    })
}

extern "C" fn trim(state: State, keep: usize) -> Code {
    call("trim", || of(state)?.pool.trim(keep).map(|_| ()).map_err(Failure::from))
}

impl Answers for Jemalloc {
    fn behind<'a>(state: State) -> Outcome<&'a Self> {
        of(state)
    }

    fn answer(&self, asked: &Asked<'_>) -> Outcome<()> {
        if asked.path() == "post_initialize" && asked.runs() { Ok(()) } else { Err(no_such_path()) }
    }
}
