//! [`Native`]: one of this library's providers behind the table of functions that C knows providers by.

use core::ffi::{CStr, c_char, c_void};
use std::ffi::CString;
use std::sync::{Arc, OnceLock};

use umf::plugin::ops::{Initialize, State, Table1_0, Table1_1, Table1_2};
use umf_core::tracker::OwnerId;
use umf_core::{Error, Provider as _, Upstream, Visibility};
use umf_ipc::Importer;

use super::driver_error;
use super::native_error::{Failed, remember, tell};
use super::own::{Own, Told};
use super::regions::{Regions, address};
use super::said::explain;
use super::{Counted, Flavour};
use crate::boundary::{Code, Failure, Out, Outcome, PROVIDER_SPECIFIC, call};
use crate::ctl::{self, Answers, Asked, Value};
use crate::memory::{close_all, provider_handle};

/// What the state of such a provider is.
pub(crate) struct Native {
    regions: Regions,
    counted: Arc<Counted>,
    name: CString,
    /// What opens memory of this provider, where the process's own importer does not.
    import: Option<Arc<dyn umf_core::Import>>,
    importer: OnceLock<Importer>,
    own: Option<Box<dyn Own>>,
}

/// What `initialize` of one of this library's providers makes of its parameters.
pub(crate) struct Start {
    pub(crate) counted: Arc<Counted>,
    pub(crate) name: CString,
    pub(crate) import: Option<Arc<dyn umf_core::Import>>,
    /// What a provider of a device has beside.
    pub(crate) own: Option<Box<dyn Own>>,
}

/// Runs an `initialize`.
pub(crate) fn start(what: &'static str, state: *mut State, make: impl FnOnce() -> Outcome<Start>) -> Code {
    call(what, || {
        let state = Out::from_ptr(state).check()?;
        let made = make()?;
        let upstream = Upstream::new(Arc::clone(&made.counted))?;
        let native = Native {
            regions: Regions::new(upstream),
            counted: made.counted,
            name: made.name,
            import: made.import,
            importer: OnceLock::new(),
            own: made.own,
        };
        state.set(Box::into_raw(Box::new(native)).cast())
    })
}

/// The table of a provider that starts with `initialize`.
pub(crate) const fn table(initialize: Initialize) -> Table1_2 {
    Table1_2 {
        base: Table1_1 {
            base: Table1_0 {
                version: 0x1_0002,
                initialize: Some(initialize),
                finalize: Some(finalize),
                alloc: Some(alloc),
                free: Some(free),
                get_last_native_error: Some(get_last_native_error),
                get_recommended_page_size: Some(get_recommended_page_size),
                get_min_page_size: Some(get_min_page_size),
                get_name: Some(get_name),
                ext_purge_lazy: Some(purge_lazy),
                ext_purge_force: Some(purge_force),
                ext_allocation_merge: Some(merge),
                ext_allocation_split: Some(split),
                ext_get_ipc_handle_size: Some(get_ipc_handle_size),
                ext_get_ipc_handle: Some(get_ipc_handle),
                ext_put_ipc_handle: Some(put_ipc_handle),
                ext_open_ipc_handle: Some(open_ipc_handle),
                ext_close_ipc_handle: Some(close_ipc_handle),
                ext_ctl: Some(ctl::control::<Native>),
            },
            ext_get_allocation_properties: None,
            ext_get_allocation_properties_size: None,
        },
        get_cache_line_size: Some(get_cache_line_size),
    }
}

/// The same for a provider of a device, which says more of its memory.
pub(crate) const fn table_of_device(initialize: Initialize) -> Table1_2 {
    let mut table = table(initialize);
    table.base.ext_get_allocation_properties = Some(get_property);
    table.base.ext_get_allocation_properties_size = Some(get_property_size);
    table
}

impl Native {
    /// # Safety
    /// `state` is what `initialize` of one of these tables gave, and not finalised.
    pub(crate) unsafe fn of<'a>(state: State) -> Outcome<&'a Self> {
        // SAFETY: passed on to the caller.
        unsafe { state.cast::<Self>().as_ref() }.ok_or(Failure::argument("the state of a provider is NULL"))
    }

    /// What opens handles of such memory.
    pub(super) fn importer(&self) -> Outcome<&Importer> {
        match (&self.import, self.importer.get()) {
            (None, _) => Ok(umf::importer()?),
            (_, Some(importer)) => Ok(importer),
            (Some(import), None) => {
                let made = provider_handle::importer_of(Arc::clone(import))?;
                // Of two that were made at once, one is dropped again, unused.
                Ok(self.importer.get_or_init(|| made))
            }
        }
    }

    /// What only providers of this kind have; `None` for any other.
    pub(super) fn own<T: Own>(&self) -> Option<&T> {
        let own: &dyn core::any::Any = &**self.own.as_ref()?;
        own.downcast_ref()
    }

    pub(super) const fn owner(&self) -> OwnerId {
        self.regions.owner()
    }

    pub(crate) fn core(&self) -> Arc<dyn umf_core::Provider> {
        Arc::clone(&self.counted) as _
    }

    /// Whether these functions are all that a table has, so that its state is one of ours.
    pub(crate) fn is_whole(operations: &umf::plugin::ops::Operations) -> bool {
        use core::ptr::fn_addr_eq;
        let ours = |given: Option<_>, ours: umf::plugin::ops::OnRange| {
            given.is_some_and(|given| fn_addr_eq(given, ours))
        };
        fn_addr_eq(operations.finalize, finalize as umf::plugin::ops::Finalize)
            && fn_addr_eq(operations.alloc, alloc as umf::plugin::ops::Alloc)
            && fn_addr_eq(operations.free, free as umf::plugin::ops::OnRange)
            && fn_addr_eq(operations.get_min_page_size, get_min_page_size as umf::plugin::ops::MinPageSize)
            && ours(operations.purge_lazy, purge_lazy)
            && ours(operations.purge_force, purge_force)
            && operations.split_merge.is_some_and(|both| {
                fn_addr_eq(both.split, split as umf::plugin::ops::Split)
                    && fn_addr_eq(both.merge, merge as umf::plugin::ops::Merge)
            })
            && operations.ipc.is_some_and(|five| {
                fn_addr_eq(five.get, get_ipc_handle as umf::plugin::ops::GetIpcHandle)
                    && fn_addr_eq(five.open, open_ipc_handle as umf::plugin::ops::OpenIpcHandle)
                    && fn_addr_eq(five.close, close_ipc_handle as umf::plugin::ops::OnRange)
            })
    }

    fn allocate(&self, size: usize, align: usize) -> Outcome<*mut c_void> {
        let page = self.counted.page_size();
        let fits = align == 0 || page.is_multiple_of(align) || align.is_multiple_of(page);
        if !fits || !align.max(1).is_power_of_two() {
            return Err(Failure::argument(
                "an alignment must divide the page size or be a multiple of it, and a power of two",
            ));
        }
        if size == 0 {
            return Err(self.nothing());
        }
        self.regions.allocate(size, align).map_err(explain)
    }

    /// That 0 bytes are asked for, with the code of the original.
    fn nothing(&self) -> Failure {
        let failure = Failure::from(Error::ZeroSize);
        match self.counted.flavour() {
            Flavour::Cuda => failure,
            Flavour::LevelZero => {
                driver_error::remember_nothing_asked();
                failure.with_code(PROVIDER_SPECIFIC)
            }
            flavour => {
                remember(flavour, Failed::Allocation);
                failure.with_code(PROVIDER_SPECIFIC)
            }
        }
    }

    fn check_ipc(&self) -> Outcome<()> {
        if self.counted.export().is_some() {
            return Ok(());
        }
        if self.counted.flavour().is_of_device() {
            return Err(Failure::argument("only memory of type UMF_MEMORY_TYPE_DEVICE has IPC handles"));
        }
        Err(Failure::argument("private memory has no IPC handles; set the visibility to UMF_MEM_MAP_SHARED"))
    }
}

impl Answers for Native {
    fn behind<'a>(state: State) -> Outcome<&'a Self> {
        // SAFETY: whoever has a table with this type's `control` gives it what `initialize` gave.
        unsafe { Self::of(state) }
    }

    fn answer(&self, asked: &Asked<'_>) -> Outcome<()> {
        match asked.path() {
            "stats.allocated_memory" => asked.read_only(Value::Size(self.counted.bytes() as usize)),
            "stats.peak_memory" if asked.runs() => Ok(()),
            "stats.peak_memory" => asked.read_only(Value::Size(self.counted.peak() as usize)),
            "stats.peak_memory.reset" => asked.run(|| self.counted.reset_peak()),
            "params.ipc_enabled" if self.counted.flavour() == Flavour::Os => {
                asked.read_only(Value::Int(i32::from(self.counted.visibility() == Visibility::Shared)))
            }
            "post_initialize" => asked.run(|| ()),
            _ => match &self.own {
                Some(own) => own.answer(asked),
                None => Err(ctl::no_such_path()),
            },
        }
    }
}

/// Runs an operation on the state.
fn with(what: &'static str, state: State, body: impl FnOnce(&Native) -> Outcome<()>) -> Code {
    // SAFETY: whoever has this table gives its functions what `initialize` gave.
    call(what, || body(unsafe { Native::of(state) }?))
}

extern "C" fn finalize(state: State) -> Code {
    call("finalize", || {
        if state.is_null() {
            return Err(Failure::argument("the state of a provider is NULL"));
        }
        close_all(state.addr());
        // SAFETY: `start` made the box; whoever has this table finalises once.
        drop(unsafe { Box::from_raw(state.cast::<Native>()) });
        Ok(())
    })
}

extern "C" fn alloc(state: State, size: usize, align: usize, memory: *mut *mut c_void) -> Code {
    with("alloc", state, |native| {
        let memory = Out::from_ptr(memory).check()?;
        memory.set(native.allocate(size, align)?)
    })
}

extern "C" fn free(state: State, memory: *mut c_void, size: usize) -> Code {
    with("free", state, |native| {
        if memory.is_null() {
            return Ok(());
        }
        // Of a device no size is needed, as in the original; elsewhere 0 is as wrong as any other.
        if size == 0 && !native.counted.flavour().is_of_device() {
            return Err(Failure::argument("the size must be what was allocated there"));
        }
        native.regions.free(memory, size).map_err(explain)
    })
}

extern "C" fn get_last_native_error(state: State, message: *mut *const c_char, native: *mut i32) -> Code {
    with("get_last_native_error", state, |provider| {
        let (flavour, message, native) =
            (provider.counted.flavour(), Out::from_ptr(message), Out::from_ptr(native));
        if flavour.is_of_device() {
            driver_error::tell(flavour, message, native)
        } else {
            tell(flavour, message, native)
        }
    })
}

extern "C" fn get_recommended_page_size(state: State, size: usize, page: *mut usize) -> Code {
    with("get_recommended_page_size", state, |native| {
        Out::from_ptr(page).set(native.counted.recommended_page_size(size.max(1)))
    })
}

extern "C" fn get_min_page_size(state: State, _memory: *const c_void, page: *mut usize) -> Code {
    with("get_min_page_size", state, |native| Out::from_ptr(page).set(native.counted.page_size()))
}

extern "C" fn get_cache_line_size(state: State, size: *mut usize) -> Code {
    with("get_cache_line_size", state, |native| {
        Out::from_ptr(size).set(native.own.as_ref().map_or_else(cache_line, |own| own.cache_line()))
    })
}

/// Of this machine's first level, as far as the system knows it.
fn cache_line() -> usize {
    // SAFETY: asks for a number.
    let said = unsafe { libc::sysconf(libc::_SC_LEVEL1_DCACHE_LINESIZE) };
    usize::try_from(said).ok().filter(|line| line.is_power_of_two()).unwrap_or(64)
}

extern "C" fn get_name(state: State, name: *mut *const c_char) -> Code {
    call("get_name", || {
        let name = Out::from_ptr(name);
        // SAFETY: as in `with`.
        match unsafe { state.cast::<Native>().as_ref() } {
            Some(native) => name.set(native.name.as_ptr()),
            None => name.set(c"".as_ptr()),
        }
    })
}

extern "C" fn purge_lazy(state: State, memory: *mut c_void, size: usize) -> Code {
    with("purge_lazy", state, |native| {
        if size == 0 {
            return Ok(());
        }
        native.regions.purge(memory, size, true).map_err(explain)
    })
}

extern "C" fn purge_force(state: State, memory: *mut c_void, size: usize) -> Code {
    with("purge_force", state, |native| {
        if size == 0 {
            return Ok(());
        }
        native.regions.purge(memory, size, false).map_err(explain)
    })
}

extern "C" fn merge(state: State, low: *mut c_void, high: *mut c_void, total: usize) -> Code {
    with("merge", state, |native| native.regions.merge(low, high, total).map_err(explain))
}

extern "C" fn split(state: State, memory: *mut c_void, total: usize, first: usize) -> Code {
    with("split", state, |native| native.regions.split(memory, total, first).map_err(explain))
}

extern "C" fn get_ipc_handle_size(state: State, size: *mut usize) -> Code {
    with("get_ipc_handle_size", state, |native| {
        let size = Out::from_ptr(size).check()?;
        native.check_ipc()?;
        size.set(provider_handle::SIZE)
    })
}

extern "C" fn get_ipc_handle(state: State, memory: *const c_void, _size: usize, handle: *mut c_void) -> Code {
    with("get_ipc_handle", state, |native| {
        native.check_ipc()?;
        provider_handle::get(address(memory), handle)
    })
}

extern "C" fn put_ipc_handle(state: State, handle: *mut c_void) -> Code {
    with("put_ipc_handle", state, |native| {
        native.check_ipc()?;
        provider_handle::check(handle)
    })
}

extern "C" fn open_ipc_handle(state: State, handle: *mut c_void, memory: *mut *mut c_void) -> Code {
    with("open_ipc_handle", state, |native| {
        let memory = Out::from_ptr(memory).check()?;
        native.check_ipc()?;
        memory.set(provider_handle::open(handle, native.importer()?, state.addr())?)
    })
}

extern "C" fn close_ipc_handle(state: State, memory: *mut c_void, _size: usize) -> Code {
    with("close_ipc_handle", state, |native| {
        native.check_ipc()?;
        provider_handle::close(memory)
    })
}

fn told(native: &Native, property: i32) -> Outcome<Told> {
    let unknown = Failure::argument("that is no property of this memory");
    native.own.as_ref().and_then(|own| own.property(property)).ok_or(unknown)
}

extern "C" fn get_property(state: State, _memory: *const c_void, property: i32, value: *mut c_void) -> Code {
    with("get_allocation_properties", state, |native| match told(native, property)? {
        Told::Int(number) => Out::from_ptr(value.cast()).set(number),
        Told::Handle(handle) => Out::from_ptr(value.cast()).set(handle),
    })
}

extern "C" fn get_property_size(state: State, property: i32, size: *mut usize) -> Code {
    with("get_allocation_properties_size", state, |native| {
        let size = Out::from_ptr(size).check()?;
        size.set(told(native, property)?.size())
    })
}

/// A name of at most 63 bytes, as the original keeps them.
pub(crate) fn short_name(name: &CStr) -> CString {
    let bytes = name.to_bytes();
    CString::new(&bytes[..bytes.len().min(63)]).unwrap_or_default()
}
