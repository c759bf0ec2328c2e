//! `umf/pools/pool_proxy.h`: each request is passed to the provider.

use core::ffi::{c_char, c_void};
use std::sync::Arc;

use umf::plugin::ops::State;
use umf_core::{Address, Layout, Pool as _};
use umf_pool_proxy::{ProxyPool, ProxySettings};

use super::last_error::{self, Kind};
use crate::boundary::{Code, Failure, Handle, NOT_SUPPORTED, Out, Outcome, call, call_with};
use crate::memory::owners;
use crate::pool::{Functions, PoolTable};
use crate::provider::{Provider, Tracking, explain};

struct Proxy(Arc<ProxyPool>);

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
    ctl: None,
    trim: None,
});

#[unsafe(no_mangle)]
extern "C" fn umfProxyPoolOps() -> *const PoolTable {
    &raw const TABLE
}

fn of<'a>(state: State) -> Outcome<&'a Proxy> {
    // SAFETY: whoever has this table gives its functions what `initialize` gave.
    unsafe { state.cast::<Proxy>().as_ref() }.ok_or(Failure::argument("the state of a pool is NULL"))
}

extern "C" fn initialize(provider: Handle<Provider>, _params: *const c_void, state: *mut State) -> Code {
    call("initialize", || {
        let (provider, state) = (provider.get()?, Out::from_ptr(state).check()?);
        let tracking = Tracking::of(provider);
        let core = match tracking {
            Some(tracking) => tracking.base()?.core(),
            None => provider.core(),
        };
        let pool = ProxyPool::with_settings(core, ProxySettings::default())?;
        if let Some(handle) = tracking.and_then(Tracking::pool) {
            owners::enter(Arc::as_ptr(&pool).cast(), handle);
        }
        state.set(Box::into_raw(Box::new(Proxy(pool))).cast())
    })
}

extern "C" fn finalize(state: State) -> Code {
    call("finalize", || {
        if !state.is_null() {
            // SAFETY: `initialize` made the box; whoever has this table finalises once.
            drop(unsafe { Box::from_raw(state.cast::<Proxy>()) });
        }
        Ok(())
    })
}

fn allocate(state: State, size: usize, align: usize) -> *mut c_void {
    call_with("proxy", core::ptr::null_mut(), || {
        let proxy = of(state)?;
        let allocated =
            Layout::new(size, align.max(1)).and_then(|layout| proxy.0.allocate(layout)).map_err(explain);
        Ok(match allocated {
            Ok(address) => address.as_ptr().map_or(core::ptr::null_mut(), <*mut u8>::cast),
            Err(failure) => last_error::failed(Kind::Proxy, &failure),
        })
    })
}

extern "C" fn malloc(state: State, size: usize) -> *mut c_void {
    allocate(state, size, 1)
}

extern "C" fn aligned_malloc(state: State, size: usize, align: usize) -> *mut c_void {
    allocate(state, size, align)
}

const NOT_HERE: Failure = Failure::new(NOT_SUPPORTED, "the proxy pool allocates and frees, and nothing else");

extern "C" fn calloc(_: State, _: usize, _: usize) -> *mut c_void {
    last_error::failed(Kind::Proxy, &NOT_HERE)
}

extern "C" fn realloc(_: State, _: *mut c_void, _: usize) -> *mut c_void {
    last_error::failed(Kind::Proxy, &NOT_HERE)
}

extern "C" fn malloc_usable_size(_: State, _: *const c_void, _: *mut usize) -> Code {
    call("malloc_usable_size", || Err(NOT_HERE))
}

extern "C" fn free(state: State, block: *mut c_void) -> Code {
    call("free", || {
        if block.is_null() {
            return Ok(());
        }
        // SAFETY: the block is C's to give; one that is none is an error.
        unsafe { of(state)?.0.free(Address::from_ptr(block.cast::<u8>())) }.map_err(explain)
    })
}

extern "C" fn get_last_allocation_error(_: State) -> Code {
    last_error::last(Kind::Proxy)
}

extern "C" fn get_name(_: State, name: *mut *const c_char) -> Code {
    call("get_name", || Out::from_ptr(name).set(c"proxy".as_ptr()))
}
