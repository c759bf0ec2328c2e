//! [`Tracking`]: the provider that a foreign pool gets in place of the program's, so that what it allocates is known.

use core::ffi::{c_char, c_void};
use core::sync::atomic::{AtomicPtr, Ordering};
use std::sync::Arc;

use umf::plugin::ops::{
    Ctl, GetProperty, GetPropertySize, IpcOperations, Operations, PropertyOperations, SplitMergeOperations,
    State,
};
use umf_core::Upstream;
use umf_core::tracker::OwnerId;

use super::Provider;
use super::regions::Regions;
use super::said::explain;
use crate::boundary::{Code, Failure, Out, Outcome, call};
use crate::ctl;
use crate::pool::Pool;

/// Its state.
pub(crate) struct Tracking {
    regions: Regions,
    base: *const Provider,
    /// The pool that it is for.
    pool: AtomicPtr<Pool>,
}

impl Tracking {
    /// A provider over `base` that remembers what is allocated, and for whom.
    pub(crate) fn over(base: &Provider) -> Outcome<(Box<Provider>, OwnerId)> {
        let core: Arc<dyn umf_core::Provider> = base.core();
        let regions = Regions::new(Upstream::new(core)?);
        let owner = regions.owner();
        let state = Box::into_raw(Box::new(Self { regions, base, pool: AtomicPtr::default() }));
        Ok((Box::new(Provider::new(operations(&base.operations), state.cast())), owner))
    }

    /// Says which pool it is for.
    pub(crate) fn set_pool(&self, pool: *mut Pool) {
        self.pool.store(pool, Ordering::Release);
    }

    /// The pool that it is for.
    pub(crate) fn pool(&self) -> Option<*mut Pool> {
        Some(self.pool.load(Ordering::Acquire)).filter(|pool| !pool.is_null())
    }

    /// The state of a tracking provider, `None` for any other.
    pub(crate) fn of<'a>(provider: &Provider) -> Option<&'a Self> {
        let ours =
            core::ptr::fn_addr_eq(provider.operations.finalize, finalize as umf::plugin::ops::Finalize);
        // SAFETY: the function is ours, so the state is, too.
        ours.then(|| unsafe { provider.state.cast::<Self>().as_ref() }).flatten()
    }

    /// Under which number the tracker knows its regions.
    pub(crate) const fn owner(&self) -> OwnerId {
        self.regions.owner()
    }

    /// The provider that the program gave.
    pub(crate) fn base<'a>(&self) -> Outcome<&'a Provider> {
        // SAFETY: the program keeps the provider as long as the pool, as UMF's header asks.
        unsafe { self.base.as_ref() }.ok_or(Failure::argument("a pool has no provider"))
    }
}

fn operations(base: &Operations) -> Operations {
    Operations {
        minor: 2,
        initialize,
        finalize,
        alloc,
        free,
        get_last_native_error,
        get_recommended_page_size,
        get_min_page_size,
        get_name,
        purge_lazy: base.purge_lazy.map(|_| purge_lazy as _),
        purge_force: base.purge_force.map(|_| purge_force as _),
        split_merge: base.split_merge.map(|_| SplitMergeOperations { split, merge }),
        ipc: base.ipc.map(|_| IpcOperations {
            size: get_ipc_handle_size,
            get: get_ipc_handle,
            put: put_ipc_handle,
            open: open_ipc_handle,
            close: close_ipc_handle,
        }),
        ctl: base.ctl.map(|_| control as Ctl),
        properties: base.properties.map(|_| PropertyOperations {
            get: get_property as GetProperty,
            size: get_property_size as GetPropertySize,
        }),
        get_cache_line_size: base.get_cache_line_size.map(|_| get_cache_line_size as _),
    }
}

/// Runs an operation on what was tracked.
fn with(what: &'static str, state: State, body: impl FnOnce(&Tracking) -> Outcome<()>) -> Code {
    call(what, || {
        // SAFETY: only tables made here have these functions, with a state made beside them.
        let tracking = unsafe { state.cast::<Tracking>().as_ref() };
        body(tracking.ok_or(Failure::argument("the state of a provider is NULL"))?)
    })
}

/// Asks the program's provider.
fn pass(what: &'static str, state: State, ask: impl FnOnce(&Provider) -> Option<Code>) -> Code {
    with(what, state, |tracking| {
        let base = tracking.base()?;
        base.told(ask(base).ok_or(Failure::unsupported("the provider does not have that"))?)
    })
}

extern "C" fn initialize(_params: *const c_void, _state: *mut State) -> Code {
    call("initialize", || Err(Failure::unsupported("the provider of a pool cannot be made a second time")))
}

extern "C" fn finalize(state: State) -> Code {
    call("finalize", || {
        if !state.is_null() {
            // SAFETY: `over` made the box; the pool finalises once.
            drop(unsafe { Box::from_raw(state.cast::<Tracking>()) });
        }
        Ok(())
    })
}

extern "C" fn alloc(state: State, size: usize, align: usize, memory: *mut *mut c_void) -> Code {
    with("alloc", state, |tracking| {
        let memory = Out::from_ptr(memory).check()?;
        memory.set(tracking.regions.allocate(size, align).map_err(explain)?)
    })
}

extern "C" fn free(state: State, memory: *mut c_void, size: usize) -> Code {
    with("free", state, |tracking| {
        if memory.is_null() {
            return Ok(());
        }
        tracking.regions.free(memory, size).map_err(explain)
    })
}

extern "C" fn purge_lazy(state: State, memory: *mut c_void, size: usize) -> Code {
    pass("purge_lazy", state, |base| {
        base.operations.purge_lazy.map(|purge| {
            // SAFETY: a function of the program's table, with its own state and what C gave.
            unsafe { purge(base.state, memory, size) }
        })
    })
}

extern "C" fn purge_force(state: State, memory: *mut c_void, size: usize) -> Code {
    pass("purge_force", state, |base| {
        base.operations.purge_force.map(|purge| {
            // SAFETY: a function of the program's table, with its own state and what C gave.
            unsafe { purge(base.state, memory, size) }
        })
    })
}

extern "C" fn merge(state: State, low: *mut c_void, high: *mut c_void, total: usize) -> Code {
    with("merge", state, |tracking| tracking.regions.merge(low, high, total).map_err(explain))
}

extern "C" fn split(state: State, memory: *mut c_void, total: usize, first: usize) -> Code {
    with("split", state, |tracking| tracking.regions.split(memory, total, first).map_err(explain))
}

extern "C" fn get_last_native_error(state: State, message: *mut *const c_char, native: *mut i32) -> Code {
    // SAFETY: a function of the program's table, with its own state and what C gave.
    pass("get_last_native_error", state, |base| unsafe {
        Some((base.operations.get_last_native_error)(base.state, message, native))
    })
}

extern "C" fn get_recommended_page_size(state: State, size: usize, page: *mut usize) -> Code {
    // SAFETY: a function of the program's table, with its own state and what C gave.
    pass("get_recommended_page_size", state, |base| unsafe {
        Some((base.operations.get_recommended_page_size)(base.state, size, page))
    })
}

extern "C" fn get_min_page_size(state: State, memory: *const c_void, page: *mut usize) -> Code {
    // SAFETY: a function of the program's table, with its own state and what C gave.
    pass("get_min_page_size", state, |base| unsafe {
        Some((base.operations.get_min_page_size)(base.state, memory, page))
    })
}

extern "C" fn get_cache_line_size(state: State, size: *mut usize) -> Code {
    pass("get_cache_line_size", state, |base| {
        base.operations.get_cache_line_size.map(|ask| {
            // SAFETY: a function of the program's table, with its own state and what C gave.
            unsafe { ask(base.state, size) }
        })
    })
}

extern "C" fn get_name(state: State, name: *mut *const c_char) -> Code {
    // SAFETY: a function of the program's table, with its own state and what C gave.
    pass("get_name", state, |base| unsafe { Some((base.operations.get_name)(base.state, name)) })
}

extern "C" fn get_ipc_handle_size(state: State, size: *mut usize) -> Code {
    pass("get_ipc_handle_size", state, |base| {
        base.operations.ipc.map(|ipc| {
            // SAFETY: a function of the program's table, with its own state and what C gave.
            unsafe { (ipc.size)(base.state, size) }
        })
    })
}

extern "C" fn get_ipc_handle(state: State, memory: *const c_void, size: usize, handle: *mut c_void) -> Code {
    pass("get_ipc_handle", state, |base| {
        base.operations.ipc.map(|ipc| {
            // SAFETY: a function of the program's table, with its own state and what C gave.
            unsafe { (ipc.get)(base.state, memory, size, handle) }
        })
    })
}

extern "C" fn put_ipc_handle(state: State, handle: *mut c_void) -> Code {
    pass("put_ipc_handle", state, |base| {
        base.operations.ipc.map(|ipc| {
            // SAFETY: a function of the program's table, with its own state and what C gave.
            unsafe { (ipc.put)(base.state, handle) }
        })
    })
}

extern "C" fn open_ipc_handle(state: State, handle: *mut c_void, memory: *mut *mut c_void) -> Code {
    pass("open_ipc_handle", state, |base| {
        base.operations.ipc.map(|ipc| {
            // SAFETY: a function of the program's table, with its own state and what C gave.
            unsafe { (ipc.open)(base.state, handle, memory) }
        })
    })
}

extern "C" fn close_ipc_handle(state: State, memory: *mut c_void, size: usize) -> Code {
    pass("close_ipc_handle", state, |base| {
        base.operations.ipc.map(|ipc| {
            // SAFETY: a function of the program's table, with its own state and what C gave.
            unsafe { (ipc.close)(base.state, memory, size) }
        })
    })
}

extern "C" fn control(
    state: State,
    source: i32,
    name: *const c_char,
    argument: *mut c_void,
    size: usize,
    query: i32,
    more: *mut c_void,
) -> Code {
    pass("ext_ctl", state, |base| {
        let control = base.operations.ctl?;
        Some(ctl::forward_raw(control, base.state, source, name, argument, size, query, more))
    })
}

extern "C" fn get_property(state: State, memory: *const c_void, property: i32, value: *mut c_void) -> Code {
    pass("get_allocation_properties", state, |base| {
        base.operations.properties.map(|both| {
            // SAFETY: a function of the program's table, with its own state and what C gave.
            unsafe { (both.get)(base.state, memory, property, value) }
        })
    })
}

extern "C" fn get_property_size(state: State, property: i32, size: *mut usize) -> Code {
    pass("get_allocation_properties_size", state, |base| {
        base.operations.properties.map(|both| {
            // SAFETY: a function of the program's table, with its own state and what C gave.
            unsafe { (both.size)(base.state, property, size) }
        })
    })
}
