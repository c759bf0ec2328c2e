//! `umf/memory_provider.h`.

use core::ffi::{c_char, c_void};

use crate::boundary::{Code, Failure, Handle, INVALID_ARGUMENT, Out, Outcome, SUCCESS, call};
use crate::ctl::registry;
use crate::provider::{Provider, last_failed};

#[unsafe(no_mangle)]
extern "C" fn umfMemoryProviderCreate(
    table: *const u32,
    params: *const c_void,
    provider: Out<Handle<Provider>>,
) -> Code {
    call("umfMemoryProviderCreate", || create(table, params, provider.check()?))
}

/// Makes a provider, and makes it known by its name.
pub(crate) fn create(table: *const u32, params: *const c_void, place: Out<Handle<Provider>>) -> Outcome<()> {
    crate::base::ensure();
    let provider = Handle::from_ptr(Box::into_raw(Provider::create(table, params)?));
    registry::enter(registry::Kind::Provider, provider.get()?.name()?, provider.to_ptr().expose_provenance());
    place.set(provider)
}

#[unsafe(no_mangle)]
extern "C" fn umfMemoryProviderDestroy(provider: Handle<Provider>) -> Code {
    call("umfMemoryProviderDestroy", || match provider.take()? {
        None => Ok(()),
        Some(provider) => match Provider::destroy(&provider) {
            SUCCESS => Ok(()),
            code => Err(Failure::foreign(code)),
        },
    })
}

#[unsafe(no_mangle)]
extern "C" fn umfMemoryProviderAlloc(
    provider: Handle<Provider>,
    size: usize,
    align: usize,
    memory: Out<*mut c_void>,
) -> Code {
    call("umfMemoryProviderAlloc", || provider.get()?.allocate(size, align, memory.check()?))
}

#[unsafe(no_mangle)]
extern "C" fn umfMemoryProviderFree(provider: Handle<Provider>, memory: *mut c_void, size: usize) -> Code {
    call("umfMemoryProviderFree", || provider.get()?.free(memory, size))
}

/// Asks a provider with a function of its table, which may be missing.
fn ask(
    what: &'static str,
    provider: Handle<Provider>,
    check: impl FnOnce() -> Outcome<()>,
    ask: impl FnOnce(&Provider) -> Option<Code>,
) -> Code {
    call(what, || {
        let provider = provider.get()?;
        check()?;
        provider.told(ask(provider).ok_or(Failure::unsupported("the provider does not have that"))?)
    })
}

fn no_null<T>(pointer: *const T) -> Outcome<()> {
    if pointer.is_null() { Err(Failure::argument("a pointer is NULL that must not be")) } else { Ok(()) }
}

#[unsafe(no_mangle)]
extern "C" fn umfMemoryProviderGetLastNativeError(
    provider: Handle<Provider>,
    message: Out<*const c_char>,
    native: Out<i32>,
) -> Code {
    let check = || message.check().and(native.check().map(|_| ()));
    ask("umfMemoryProviderGetLastNativeError", provider, check, |provider| {
        let function = provider.operations.get_last_native_error;
        // SAFETY: a function of the table, with places for its results; and so below.
        Some(unsafe { function(provider.state, message.to_ptr(), native.to_ptr()) })
    })
}

#[unsafe(no_mangle)]
extern "C" fn umfMemoryProviderGetRecommendedPageSize(
    provider: Handle<Provider>,
    size: usize,
    page: Out<usize>,
) -> Code {
    ask(
        "umfMemoryProviderGetRecommendedPageSize",
        provider,
        || page.check().map(|_| ()),
        |provider| {
            // SAFETY: as above.
            Some(unsafe {
                (provider.operations.get_recommended_page_size)(provider.state, size, page.to_ptr())
            })
        },
    )
}

#[unsafe(no_mangle)]
extern "C" fn umfMemoryProviderGetMinPageSize(
    provider: Handle<Provider>,
    memory: *const c_void,
    page: Out<usize>,
) -> Code {
    ask(
        "umfMemoryProviderGetMinPageSize",
        provider,
        || page.check().map(|_| ()),
        |provider| {
            // SAFETY: as above.
            Some(unsafe { (provider.operations.get_min_page_size)(provider.state, memory, page.to_ptr()) })
        },
    )
}

#[unsafe(no_mangle)]
extern "C" fn umfMemoryProviderGetCacheLineSize(provider: Handle<Provider>, size: Out<usize>) -> Code {
    ask(
        "umfMemoryProviderGetCacheLineSize",
        provider,
        || size.check().map(|_| ()),
        |provider| {
            // SAFETY: as above.
            match provider.operations.get_cache_line_size {
                // SAFETY: as above.
                Some(get) => Some(unsafe { get(provider.state, size.to_ptr()) }),
                // Tables before version 1.2 cannot say it.
                None => Some(size.set(provider.cache_line()).map_or(INVALID_ARGUMENT, |()| SUCCESS)),
            }
        },
    )
}

#[unsafe(no_mangle)]
extern "C" fn umfMemoryProviderPurgeLazy(
    provider: Handle<Provider>,
    memory: *mut c_void,
    size: usize,
) -> Code {
    ask(
        "umfMemoryProviderPurgeLazy",
        provider,
        || no_null(memory),
        |provider| {
            // SAFETY: as above; the memory is C's to give.
            provider.operations.purge_lazy.map(|purge| unsafe { purge(provider.state, memory, size) })
        },
    )
}

#[unsafe(no_mangle)]
extern "C" fn umfMemoryProviderPurgeForce(
    provider: Handle<Provider>,
    memory: *mut c_void,
    size: usize,
) -> Code {
    ask(
        "umfMemoryProviderPurgeForce",
        provider,
        || no_null(memory),
        |provider| {
            // SAFETY: as above.
            provider.operations.purge_force.map(|purge| unsafe { purge(provider.state, memory, size) })
        },
    )
}

#[unsafe(no_mangle)]
extern "C" fn umfMemoryProviderGetIPCHandleSize(provider: Handle<Provider>, size: Out<usize>) -> Code {
    ask(
        "umfMemoryProviderGetIPCHandleSize",
        provider,
        || size.check().map(|_| ()),
        |provider| {
            // SAFETY: as above.
            provider.operations.ipc.map(|ipc| unsafe { (ipc.size)(provider.state, size.to_ptr()) })
        },
    )
}

fn some_bytes(size: usize) -> Outcome<()> {
    if size == 0 { Err(Failure::argument("a size is 0 that must not be")) } else { Ok(()) }
}

#[unsafe(no_mangle)]
extern "C" fn umfMemoryProviderGetIPCHandle(
    provider: Handle<Provider>,
    memory: *const c_void,
    size: usize,
    handle: *mut c_void,
) -> Code {
    let check = || no_null(memory).and(no_null(handle)).and(some_bytes(size));
    ask("umfMemoryProviderGetIPCHandle", provider, check, |provider| {
        // SAFETY: as above.
        provider.operations.ipc.map(|ipc| unsafe { (ipc.get)(provider.state, memory, size, handle) })
    })
}

#[unsafe(no_mangle)]
extern "C" fn umfMemoryProviderPutIPCHandle(provider: Handle<Provider>, handle: *mut c_void) -> Code {
    ask(
        "umfMemoryProviderPutIPCHandle",
        provider,
        || no_null(handle),
        |provider| {
            // SAFETY: as above.
            provider.operations.ipc.map(|ipc| unsafe { (ipc.put)(provider.state, handle) })
        },
    )
}

#[unsafe(no_mangle)]
extern "C" fn umfMemoryProviderOpenIPCHandle(
    provider: Handle<Provider>,
    handle: *mut c_void,
    memory: Out<*mut c_void>,
) -> Code {
    let check = || no_null(handle).and(memory.check().map(|_| ()));
    ask("umfMemoryProviderOpenIPCHandle", provider, check, |provider| {
        // SAFETY: as above.
        provider.operations.ipc.map(|ipc| unsafe { (ipc.open)(provider.state, handle, memory.to_ptr()) })
    })
}

#[unsafe(no_mangle)]
extern "C" fn umfMemoryProviderCloseIPCHandle(
    provider: Handle<Provider>,
    memory: *mut c_void,
    size: usize,
) -> Code {
    let check = || no_null(memory).and(some_bytes(size));
    ask("umfMemoryProviderCloseIPCHandle", provider, check, |provider| {
        // SAFETY: as above.
        provider.operations.ipc.map(|ipc| unsafe { (ipc.close)(provider.state, memory, size) })
    })
}

#[unsafe(no_mangle)]
extern "C" fn umfMemoryProviderGetName(provider: Handle<Provider>, name: Out<*const c_char>) -> Code {
    ask(
        "umfMemoryProviderGetName",
        provider,
        || name.check().map(|_| ()),
        |provider| {
            // SAFETY: as above.
            Some(unsafe { (provider.operations.get_name)(provider.state, name.to_ptr()) })
        },
    )
}

#[unsafe(no_mangle)]
extern "C" fn umfGetLastFailedMemoryProvider(provider: Out<Handle<Provider>>) -> Code {
    call("umfGetLastFailedMemoryProvider", || provider.set(Handle::from_ptr(last_failed().cast_mut())))
}

#[unsafe(no_mangle)]
extern "C" fn umfMemoryProviderAllocationSplit(
    provider: Handle<Provider>,
    memory: *mut c_void,
    total: usize,
    first: usize,
) -> Code {
    let check = || {
        no_null(memory)?;
        if first == 0 || first >= total {
            return Err(Failure::argument(
                "the first part of a split must be smaller than the whole, and not 0",
            ));
        }
        Ok(())
    };
    ask("umfMemoryProviderAllocationSplit", provider, check, |provider| {
        // SAFETY: as above.
        provider
            .operations
            .split_merge
            .map(|both| unsafe { (both.split)(provider.state, memory, total, first) })
    })
}

#[unsafe(no_mangle)]
extern "C" fn umfMemoryProviderAllocationMerge(
    provider: Handle<Provider>,
    low: *mut c_void,
    high: *mut c_void,
    total: usize,
) -> Code {
    let check = || {
        no_null(low)?;
        no_null(high)?;
        if low >= high || high.addr() - low.addr() >= total {
            return Err(Failure::argument("the parts of a merge must be in order, and in the whole"));
        }
        Ok(())
    };
    ask("umfMemoryProviderAllocationMerge", provider, check, |provider| {
        // SAFETY: as above.
        provider.operations.split_merge.map(|both| unsafe { (both.merge)(provider.state, low, high, total) })
    })
}
