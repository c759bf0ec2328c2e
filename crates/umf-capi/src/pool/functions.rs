//! `umf/memory_pool.h`.

use core::ffi::{c_char, c_void};
use core::ptr::null_mut;
use core::sync::atomic::Ordering;

use umf_core::{Address, Pool as _};

use super::handle::Pool;
use super::table::PoolTable;
use crate::boundary::{Code, Failure, Handle, INVALID_ARGUMENT, Out, Outcome, SUCCESS, call, call_with};
use crate::last_error;
use crate::memory::owners;
use crate::pools::{disjoint, preloaded};
use crate::provider::Provider;

#[unsafe(no_mangle)]
extern "C" fn umfPoolCreate(
    table: *const PoolTable,
    provider: Handle<Provider>,
    params: *const c_void,
    flags: u32,
    pool: Out<Handle<Pool>>,
) -> Code {
    call("umfPoolCreate", || {
        let pool = pool.check()?;
        crate::base::ensure();
        pool.set(Pool::create(table, provider, params, flags)?)
    })
}

#[unsafe(no_mangle)]
extern "C" fn umfPoolDestroy(pool: Handle<Pool>) -> Code {
    call("umfPoolDestroy", || Pool::destroy(pool))
}

/// Counts a block that the function of a pool's table returned. Records NULL as a failure of the
/// exported function `name`, unless 0 bytes were requested or the function recorded a failure.
fn counted(name: &'static str, pool: &Pool, block: *mut c_void, size: usize) -> *mut c_void {
    if !block.is_null() {
        pool.live.add(1);
    } else if size != 0 {
        last_error::record_null(name);
    }
    block
}

#[unsafe(no_mangle)]
extern "C" fn umfPoolMalloc(pool: Handle<Pool>, size: usize) -> *mut c_void {
    if let Some(pool) = pool.known()
        && let Some(slab) = pool.slab()
        && let Ok(layout) = disjoint::layout(size)
        && let Some(address) = slab.allocate_fast(layout)
        && let Some(block) = address.as_ptr()
    {
        return block.cast();
    }
    malloc_slow(pool, size)
}

/// Allocates without the fast path. An `extern "C"` function, so that the caller tail-calls it and
/// saves no registers.
#[inline(never)]
extern "C" fn malloc_slow(pool: Handle<Pool>, size: usize) -> *mut c_void {
    if let Some(pool) = pool.known()
        && let Some(slab) = pool.slab()
        && let Ok(layout) = disjoint::layout(size)
        && let Ok(address) = slab.allocate(layout)
        && let Some(block) = address.as_ptr()
    {
        return block.cast();
    }
    malloc_foreign(pool, size)
}

#[cold]
#[inline(never)]
fn malloc_foreign(pool: Handle<Pool>, size: usize) -> *mut c_void {
    call_with("umfPoolMalloc", null_mut(), || {
        let pool = pool.get()?;
        // SAFETY: a function of the table with its state.
        Ok(counted("umfPoolMalloc", pool, unsafe { (pool.functions.malloc)(pool.state, size) }, size))
    })
}

#[unsafe(no_mangle)]
extern "C" fn umfPoolAlignedMalloc(pool: Handle<Pool>, size: usize, align: usize) -> *mut c_void {
    call_with("umfPoolAlignedMalloc", null_mut(), || {
        let pool = pool.get()?;
        // SAFETY: a function of the table with its state.
        let block = unsafe { (pool.functions.aligned_malloc)(pool.state, size, align) };
        Ok(counted("umfPoolAlignedMalloc", pool, block, size))
    })
}

#[unsafe(no_mangle)]
extern "C" fn umfPoolCalloc(pool: Handle<Pool>, count: usize, size: usize) -> *mut c_void {
    call_with("umfPoolCalloc", null_mut(), || {
        let pool = pool.get()?;
        // SAFETY: a function of the table with its state.
        let block = unsafe { (pool.functions.calloc)(pool.state, count, size) };
        Ok(counted("umfPoolCalloc", pool, block, count.saturating_mul(size)))
    })
}

#[unsafe(no_mangle)]
extern "C" fn umfPoolRealloc(pool: Handle<Pool>, block: *mut c_void, size: usize) -> *mut c_void {
    call_with("umfPoolRealloc", null_mut(), || {
        let pool = pool.get()?;
        // SAFETY: a function of the table with its state; C guarantees a block of this pool.
        let moved = unsafe { (pool.functions.realloc)(pool.state, block, size) };
        match (block.is_null(), moved.is_null()) {
            (true, false) => pool.live.add(1),
            (false, true) if size == 0 => pool.live.add(-1),
            (_, true) if size != 0 => last_error::record_null("umfPoolRealloc"),
            _ => {}
        }
        Ok(moved)
    })
}

#[unsafe(no_mangle)]
extern "C" fn umfPoolMallocUsableSize(pool: Handle<Pool>, block: *const c_void, size: Out<usize>) -> Code {
    call("umfPoolMallocUsableSize", || {
        let (pool, size) = (pool.get()?, size.check()?);
        // SAFETY: a function of the table with its state.
        check_code(unsafe { (pool.functions.malloc_usable_size)(pool.state, block, size.to_ptr()) })
    })
}

fn check_code(code: Code) -> Outcome<()> {
    if code == SUCCESS { Ok(()) } else { Err(Failure::foreign(code)) }
}

/// Frees a block on the fast path of a slab pool.
#[inline(always)]
fn free_fast(pool: &Pool, block: *mut c_void) -> bool {
    let address = Address::from_ptr(block.cast::<u8>());
    // SAFETY: C guarantees that the block is not in use. An invalid address is an error.
    pool.slab().is_some_and(|slab| unsafe { slab.free_fast(address) })
}

/// Frees a block of a slab pool.
fn free_slab(pool: &Pool, block: *mut c_void) -> bool {
    let address = Address::from_ptr(block.cast::<u8>());
    // SAFETY: C guarantees that the block is not in use. An invalid address is an error.
    pool.slab().is_some_and(|slab| unsafe { slab.free(address) }.is_ok())
}

#[unsafe(no_mangle)]
extern "C" fn umfPoolFree(pool: Handle<Pool>, block: *mut c_void) -> Code {
    if let Some(known) = pool.known()
        && free_fast(known, block)
    {
        return SUCCESS;
    }
    free_slow(pool, block)
}

#[inline(never)]
extern "C" fn free_slow(pool: Handle<Pool>, block: *mut c_void) -> Code {
    if pool.known().is_some_and(|known| free_slab(known, block)) {
        return SUCCESS;
    }
    call("umfPoolFree", || free(pool.get()?, block))
}

fn free(pool: &Pool, block: *mut c_void) -> Outcome<()> {
    // SAFETY: a function of the table with its state; C guarantees that the block is not in use.
    check_code(unsafe { (pool.functions.free)(pool.state, block) })?;
    if !block.is_null() && pool.slab().is_none() {
        pool.live.add(-1);
    }
    Ok(())
}

fn by_pointer(memory: *const c_void) -> Outcome<Handle<Pool>> {
    let address = Address::from_ptr(memory.cast::<u8>());
    let found = owners::find(address).map(|(pool, _)| Handle::from_ptr(pool));
    found
        .or_else(|| preloaded::find(address))
        .ok_or(Failure::argument("the memory is of no pool that keeps track of it"))
}

#[unsafe(no_mangle)]
extern "C" fn umfFree(block: *mut c_void) -> Code {
    let pool = Handle::from_ptr(owners::find_fast(Address::from_ptr(block.cast::<u8>())));
    if let Some(pool) = pool.known()
        && free_fast(pool, block)
    {
        return SUCCESS;
    }
    free_any_slow(block)
}

#[inline(never)]
extern "C" fn free_any_slow(block: *mut c_void) -> Code {
    call("umfFree", || {
        let pool = by_pointer(block)?.get()?;
        if free_slab(pool, block) { Ok(()) } else { free(pool, block) }
    })
}

#[unsafe(no_mangle)]
extern "C" fn umfPoolByPtr(memory: *const c_void, pool: Out<Handle<Pool>>) -> Code {
    let found = Handle::from_ptr(owners::find_fast(Address::from_ptr(memory.cast::<u8>())));
    if !found.is_null() && pool.set_if_there(found) {
        return SUCCESS;
    }
    pool_by_ptr_slow(memory, pool)
}

#[cold]
#[inline(never)]
extern "C" fn pool_by_ptr_slow(memory: *const c_void, pool: Out<Handle<Pool>>) -> Code {
    call("umfPoolByPtr", || {
        let pool = pool.check()?;
        // NULL after a failure, as in the original.
        pool.set(Handle::NULL)?;
        pool.set(by_pointer(memory)?)
    })
}

#[unsafe(no_mangle)]
extern "C" fn umfPoolGetLastAllocationError(pool: Handle<Pool>) -> Code {
    // The code is an answer, and no failure of this call.
    call_with("umfPoolGetLastAllocationError", INVALID_ARGUMENT, || {
        let pool = pool.get()?;
        // SAFETY: a function of the table with its state.
        Ok(unsafe { (pool.functions.get_last_allocation_error)(pool.state) })
    })
}

#[unsafe(no_mangle)]
extern "C" fn umfPoolGetMemoryProvider(pool: Handle<Pool>, provider: Out<Handle<Provider>>) -> Code {
    call("umfPoolGetMemoryProvider", || provider.check()?.set(pool.get()?.provider_handle()))
}

#[unsafe(no_mangle)]
extern "C" fn umfPoolGetName(pool: Handle<Pool>, name: Out<*const c_char>) -> Code {
    call("umfPoolGetName", || {
        let (pool, name) = (pool.get()?, name.check()?);
        name.set(pool.name()?.as_ptr())
    })
}

#[unsafe(no_mangle)]
extern "C" fn umfPoolSetTag(pool: Handle<Pool>, tag: *mut c_void, old: Out<*mut c_void>) -> Code {
    call("umfPoolSetTag", || {
        old.set_if_wanted(pool.get()?.tag.swap(tag, Ordering::AcqRel));
        Ok(())
    })
}

#[unsafe(no_mangle)]
extern "C" fn umfPoolGetTag(pool: Handle<Pool>, tag: Out<*mut c_void>) -> Code {
    call("umfPoolGetTag", || {
        let pool = pool.get()?;
        tag.set(pool.tag.load(Ordering::Acquire))
    })
}

#[unsafe(no_mangle)]
extern "C" fn umfPoolTrimMemory(pool: Handle<Pool>, keep: usize) -> Code {
    call("umfPoolTrimMemory", || {
        let pool = pool.get()?;
        let trim =
            pool.functions.ext_trim_memory.ok_or(Failure::unsupported("this kind of pool does not trim"))?;
        // SAFETY: a function of the table with its state.
        check_code(unsafe { trim(pool.state, keep) })
    })
}
