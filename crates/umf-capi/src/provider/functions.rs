//! `umf/memory_provider.h`.

use core::ffi::{c_char, c_void};

use super::handle::{MISSING_FUNCTION, Provider};
use crate::boundary::{Code, Failure, Handle, Out, Outcome, SUCCESS, call};
use crate::ctl::registry;
use crate::last_error::failed_provider;

#[unsafe(no_mangle)]
extern "C" fn umfMemoryProviderCreate(
    table: *const u32,
    params: *const c_void,
    provider: Out<Handle<Provider>>,
) -> Code {
    call("umfMemoryProviderCreate", || create(table, params, provider.check()?))
}

/// Creates a provider, and registers its name.
pub(crate) fn create(table: *const u32, params: *const c_void, place: Out<Handle<Provider>>) -> Outcome<()> {
    crate::base::ensure();
    let (provider, name) = Provider::create(table, params)?;
    let provider = Handle::from_ptr(Box::into_raw(provider));
    registry::register(registry::Kind::Provider, name, provider.to_ptr().expose_provenance());
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

fn check_not_null<T>(pointer: *const T) -> Outcome<()> {
    if pointer.is_null() { Err(Failure::argument("a pointer is NULL that must not be")) } else { Ok(()) }
}

fn check_not_zero(size: usize) -> Outcome<()> {
    if size == 0 { Err(Failure::argument("a size is 0 that must not be")) } else { Ok(()) }
}

/// Defines C functions that call a function of the provider's table with the same arguments. The
/// table's function may be missing. A block checks the arguments, and may fail with `?`.
macro_rules! forwarding_functions {
    ($(fn $name:ident($($argument:ident: $type:ty),*)
       asks |$functions:ident| $function:expr; $check:block)*) => {
        $(#[unsafe(no_mangle)]
        extern "C" fn $name(provider: Handle<Provider> $(, $argument: $type)*) -> Code {
            call(stringify!($name), || {
                let provider = provider.get()?;
                $check
                let $functions = &provider.functions;
                let function = $function.ok_or(MISSING_FUNCTION)?;
                // SAFETY: a function of the table with its state. C guarantees valid pointers; NULL
                // was checked.
                provider.check(unsafe { function(provider.state $(, $argument)*) })
            })
        })*
    };
}

forwarding_functions! {
    fn umfMemoryProviderGetLastNativeError(message: *mut *const c_char, native: *mut i32)
    asks |table| Some(table.get_last_native_error); {
        check_not_null(message)?;
        check_not_null(native)?;
    }
    fn umfMemoryProviderGetRecommendedPageSize(size: usize, page: *mut usize)
    asks |table| Some(table.get_recommended_page_size); {
        check_not_null(page)?;
    }
    fn umfMemoryProviderGetMinPageSize(memory: *const c_void, page: *mut usize)
    asks |table| Some(table.get_min_page_size); {
        check_not_null(page)?;
    }
    fn umfMemoryProviderPurgeLazy(memory: *mut c_void, size: usize)
    asks |table| table.ext_purge_lazy; {
        check_not_null(memory)?;
    }
    fn umfMemoryProviderPurgeForce(memory: *mut c_void, size: usize)
    asks |table| table.ext_purge_force; {
        check_not_null(memory)?;
    }
    fn umfMemoryProviderGetIPCHandleSize(size: *mut usize)
    asks |table| table.ext_get_ipc_handle_size; {
        check_not_null(size)?;
    }
    fn umfMemoryProviderGetIPCHandle(memory: *const c_void, size: usize, handle: *mut c_void)
    asks |table| table.ext_get_ipc_handle; {
        check_not_null(memory)?;
        check_not_null(handle)?;
        check_not_zero(size)?;
    }
    fn umfMemoryProviderPutIPCHandle(handle: *mut c_void)
    asks |table| table.ext_put_ipc_handle; {
        check_not_null(handle)?;
    }
    fn umfMemoryProviderOpenIPCHandle(handle: *mut c_void, memory: *mut *mut c_void)
    asks |table| table.ext_open_ipc_handle; {
        check_not_null(handle)?;
        check_not_null(memory)?;
    }
    fn umfMemoryProviderCloseIPCHandle(memory: *mut c_void, size: usize)
    asks |table| table.ext_close_ipc_handle; {
        check_not_null(memory)?;
        check_not_zero(size)?;
    }
    fn umfMemoryProviderGetName(name: *mut *const c_char)
    asks |table| Some(table.get_name); {
        check_not_null(name)?;
    }
}

#[unsafe(no_mangle)]
extern "C" fn umfMemoryProviderGetCacheLineSize(provider: Handle<Provider>, size: Out<usize>) -> Code {
    call("umfMemoryProviderGetCacheLineSize", || {
        let (provider, size) = (provider.get()?, size.check()?);
        match provider.functions.get_cache_line_size {
            // SAFETY: a function of the table, with the place for its result that C passed.
            Some(get) => provider.check(unsafe { get(provider.state, size.to_ptr()) }),
            // Tables before version 1.2 lack this function.
            None => size.set(provider.cache_line()),
        }
    })
}

#[unsafe(no_mangle)]
extern "C" fn umfGetLastFailedMemoryProvider(provider: Out<Handle<Provider>>) -> Code {
    call("umfGetLastFailedMemoryProvider", || provider.set(Handle::from_ptr(failed_provider().cast_mut())))
}

#[unsafe(no_mangle)]
extern "C" fn umfMemoryProviderAllocationSplit(
    provider: Handle<Provider>,
    memory: *mut c_void,
    total: usize,
    first: usize,
) -> Code {
    call("umfMemoryProviderAllocationSplit", || {
        let provider = provider.get()?;
        check_not_null(memory)?;
        if first == 0 || first >= total {
            return Err(Failure::argument(
                "the first part of a split must be smaller than the whole, and not 0",
            ));
        }
        provider.split(memory, total, first)
    })
}

#[unsafe(no_mangle)]
extern "C" fn umfMemoryProviderAllocationMerge(
    provider: Handle<Provider>,
    low: *mut c_void,
    high: *mut c_void,
    total: usize,
) -> Code {
    call("umfMemoryProviderAllocationMerge", || {
        let provider = provider.get()?;
        check_not_null(low)?;
        check_not_null(high)?;
        if low >= high || high.addr() - low.addr() >= total {
            return Err(Failure::argument("the parts of a merge must be in order, and in the whole"));
        }
        provider.merge(low, high, total)
    })
}
