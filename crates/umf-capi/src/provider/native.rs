//! [`NativeProvider`]: a provider of this library behind the C table of functions.

use core::any::Any;
use core::ffi::{CStr, c_char, c_void};
use std::ffi::CString;
use std::sync::Arc;

use umf_core::{Error, Provider as _, Visibility};
use umf_provider_plugin::table::{Functions, GetName, Initialize, State, Table};
use umf_runtime::Upstream;
use umf_runtime::tracker::OwnerId;

use super::InstrumentedProvider;
use super::regions::{Regions, address};
use crate::boundary::{
    Code, Failure, INVALID_ALIGNMENT, INVALID_ARGUMENT, OUT_OF_HOST_MEMORY, Out, Outcome, PROVIDER_SPECIFIC,
    call,
};
use crate::ctl::{self, CtlQuery, CtlTree, Value, no_such_path, object_of};
use crate::last_error::{FailedOperation, NativeKind, explain};
use crate::memory::{close_all, provider_handle};

/// The value of a property of memory.
#[derive(Clone, Copy, Debug)]
pub(crate) enum DeviceProperty {
    /// An `int`.
    Int(i32),
    /// A handle of the driver.
    Handle(*mut c_void),
}

/// The part of a native provider that is specific to a kind of device.
pub(crate) trait Device: Any + Send + Sync {
    /// A property of all of its memory, by its number in `umf_memory_property_id_t`.
    fn property(&self, property: i32) -> Option<DeviceProperty>;

    /// A cache line of the device, in bytes.
    fn cache_line(&self) -> usize;

    /// Answers a query of the control tree below the provider.
    ///
    /// # Errors
    /// This kind of device has no such path.
    fn answer(&self, _query: &CtlQuery<'_>) -> Outcome<()> {
        Err(no_such_path())
    }
}

/// The state of a native provider.
pub(crate) struct NativeProvider {
    regions: Regions,
    counted: Arc<InstrumentedProvider>,
    name: CString,
    /// Importer of this provider's memory, if it is not the process's.
    import: Option<Arc<dyn umf_core::Import>>,
    importers: provider_handle::ImporterChain,
    device: Option<Box<dyn Device>>,
}

/// The parts from which `initialize` makes a native provider.
pub(crate) struct NativeParts {
    pub(crate) counted: Arc<InstrumentedProvider>,
    pub(crate) name: CString,
    pub(crate) import: Option<Arc<dyn umf_core::Import>>,
    /// Present for providers of devices.
    pub(crate) device: Option<Box<dyn Device>>,
}

/// A kind of native provider: the parts of its table that differ from other kinds.
pub(crate) trait NativeTable: 'static {
    /// Name of a provider whose settings have none, and of no provider.
    const NAME: &'static CStr;
    /// Whether the table has properties of memory.
    const OF_DEVICE: bool = false;

    /// Makes a provider with the settings that C passed.
    fn make(params: *const c_void) -> Outcome<NativeParts>;
}

extern "C" fn initialize<T: NativeTable>(params: *const c_void, state: *mut State) -> Code {
    call("initialize", || {
        let state = Out::from_ptr(state).check()?;
        let made = T::make(params)?;
        let upstream = Upstream::new(Arc::clone(&made.counted))?;
        let native = NativeProvider {
            regions: Regions::new(upstream, made.counted.flavour() == NativeKind::Os),
            counted: made.counted,
            name: made.name,
            import: made.import,
            importers: provider_handle::ImporterChain::default(),
            device: made.device,
        };
        state.set(Box::into_raw(Box::new(native)).cast())
    })
}

/// Returns the table of a kind of provider.
pub(crate) const fn table<T: NativeTable>() -> Table {
    Table { version: Table::NEWEST, functions: functions(initialize::<T>, get_name::<T>, T::OF_DEVICE) }
}

const fn functions(initialize: Initialize, get_name: GetName, of_device: bool) -> Functions {
    Functions {
        initialize,
        finalize,
        alloc,
        free,
        get_last_native_error,
        get_recommended_page_size,
        get_min_page_size,
        get_name,
        ext_purge_lazy: Some(purge_lazy),
        ext_purge_force: Some(purge_force),
        ext_allocation_merge: Some(merge),
        ext_allocation_split: Some(split),
        ext_get_ipc_handle_size: Some(get_ipc_handle_size),
        ext_get_ipc_handle: Some(get_ipc_handle),
        ext_put_ipc_handle: Some(put_ipc_handle),
        ext_open_ipc_handle: Some(open_ipc_handle),
        ext_close_ipc_handle: Some(close_ipc_handle),
        ext_ctl: Some(ctl::control::<NativeProvider>),
        ext_get_allocation_properties: if of_device { Some(get_property) } else { None },
        ext_get_allocation_properties_size: if of_device { Some(get_property_size) } else { None },
        get_cache_line_size: Some(get_cache_line_size),
    }
}

/// Returns whether the state of these functions is a [`NativeProvider`]: all functions belong to
/// this library. (`initialize` and `get_name` differ by the kind.)
pub(crate) fn makes_states_of(given: &Functions) -> bool {
    let with = |of_device| functions(given.initialize, given.get_name, of_device);
    [false, true].iter().any(|&of_device| given.have_states_of(&with(of_device)))
}

impl NativeProvider {
    /// Returns what imports such memory, if the process's importer does not.
    pub(super) fn import(&self) -> Option<Arc<dyn umf_core::Import>> {
        self.import.clone()
    }

    /// Returns the data of one kind of device; `None` for any other.
    pub(super) fn device<T: Device>(&self) -> Option<&T> {
        let device: &dyn Any = &**self.device.as_ref()?;
        device.downcast_ref()
    }

    /// Returns whether freed parts of a split region give their pages back to the system.
    pub(super) fn purges_parts(&self) -> bool {
        self.counted.flavour() == NativeKind::Os
    }

    pub(super) const fn owner(&self) -> OwnerId {
        self.regions.owner()
    }

    pub(crate) fn core(&self) -> Arc<dyn umf_core::Provider> {
        Arc::clone(&self.counted) as _
    }

    pub(super) fn instrumented(&self) -> &InstrumentedProvider {
        &self.counted
    }

    fn allocate(&self, size: usize, align: usize) -> Outcome<*mut c_void> {
        let align = self.check_align(align)?;
        if size == 0 {
            return Err(self.nothing());
        }
        self.regions.allocate(size, align).map_err(|error| self.failure(error, FailedOperation::Allocation))
    }

    /// Returns the alignment of an allocation for which C asked for `align`; 0 is any.
    ///
    /// The header of OS memory allows each multiple and each divisor of the page size. As in the
    /// original, a multiple that is not a power of two yields pages.
    fn check_align(&self, align: usize) -> Outcome<usize> {
        let page = self.counted.page_size();
        let fits = align == 0 || page.is_multiple_of(align) || align.is_multiple_of(page);
        let failure = Failure::argument(
            "an alignment must divide the page size or be a multiple of it, and a power of two",
        );
        match self.counted.flavour() {
            _ if fits && align.max(1).is_power_of_two() => Ok(align),
            NativeKind::Os if fits => Ok(1 << align.trailing_zeros()),
            NativeKind::File | NativeKind::Fixed | NativeKind::DevDax => {
                Err(failure.with_code(INVALID_ALIGNMENT))
            }
            NativeKind::Os | NativeKind::LevelZero | NativeKind::Cuda => Err(failure),
        }
    }

    /// Records an error as a native one of the operation.
    fn native_failure(&self, error: Error, operation: FailedOperation) -> Failure {
        self.counted.flavour().record_failure(operation);
        Failure::from(error).with_code(PROVIDER_SPECIFIC)
    }

    /// Converts the error of an operation. The kinds of host memory have the codes of the original.
    fn failure(&self, error: Error, operation: FailedOperation) -> Failure {
        use FailedOperation::{Allocation, Free, PurgeForce, PurgeLazy};
        use NativeKind::{DevDax, File, Fixed, Os};
        let is_native = match (self.counted.flavour(), operation) {
            (Os, Allocation) => matches!(error, Error::SizeOverflow { .. }),
            (Os, Free) => matches!(
                error,
                Error::ForeignAddress { .. } | Error::NotAllocated { .. } | Error::InteriorAddress { .. }
            ),
            (Os | File | Fixed | DevDax, PurgeLazy | PurgeForce) => {
                !matches!(error, Error::NotSupported { .. })
            }
            _ => false,
        };
        if is_native {
            return self.native_failure(error, operation);
        }
        if self.counted.flavour() == File && matches!(error, Error::SizeOverflow { .. }) {
            return Failure::from(error).with_code(INVALID_ARGUMENT);
        }
        explain(error)
    }

    /// Returns the failure for an allocation of 0 bytes, with the code of the original.
    fn nothing(&self) -> Failure {
        let failure = Failure::from(Error::ZeroSize);
        match self.counted.flavour() {
            NativeKind::Cuda => failure,
            NativeKind::LevelZero => {
                NativeKind::LevelZero.record_zero_size();
                failure.with_code(PROVIDER_SPECIFIC)
            }
            NativeKind::File => failure.with_code(INVALID_ARGUMENT),
            NativeKind::Fixed | NativeKind::DevDax => failure.with_code(OUT_OF_HOST_MEMORY),
            flavour @ NativeKind::Os => {
                flavour.record_failure(FailedOperation::Allocation);
                failure.with_code(PROVIDER_SPECIFIC)
            }
        }
    }

    fn check_splits(&self) -> Outcome<()> {
        if self.counted.flavour().is_of_device() {
            return Err(Failure::unsupported("memory of devices is not split"));
        }
        Ok(())
    }

    /// Checks that the memory has IPC handles.
    pub(super) fn check_ipc(&self) -> Outcome<()> {
        if self.counted.export().is_some() {
            return Ok(());
        }
        if self.counted.flavour() == NativeKind::Fixed {
            return Err(Failure::unsupported("memory of the program has no IPC handles"));
        }
        if self.counted.flavour().is_of_device() {
            return Err(Failure::argument("only memory of type UMF_MEMORY_TYPE_DEVICE has IPC handles"));
        }
        Err(Failure::argument("private memory has no IPC handles; set the visibility to UMF_MEM_MAP_SHARED"))
    }
}

impl CtlTree for NativeProvider {
    fn answer(&self, query: &CtlQuery<'_>) -> Outcome<()> {
        match query.path() {
            "stats.allocated_memory" => query.read_only(Value::Size(self.counted.gauge.bytes() as usize)),
            "stats.peak_memory" if query.runs() => Ok(()),
            "stats.peak_memory" => query.read_only(Value::Size(self.counted.gauge.peak() as usize)),
            "stats.peak_memory.reset" => query.run(|| self.counted.gauge.reset_peak()),
            "params.ipc_enabled" if self.counted.flavour() == NativeKind::Os => {
                query.read_only(Value::Int(i32::from(self.counted.visibility() == Visibility::Shared)))
            }
            "post_initialize" => query.run(|| ()),
            _ => self.device.as_ref().ok_or(no_such_path())?.answer(query),
        }
    }
}

/// Runs an operation on the state.
fn with(what: &'static str, state: State, body: impl FnOnce(&NativeProvider) -> Outcome<()>) -> Code {
    call(what, || body(object_of(state)?))
}

extern "C" fn finalize(state: State) -> Code {
    call("finalize", || {
        if state.is_null() {
            return Err(Failure::argument("the state of a provider is NULL"));
        }
        close_all(state.addr());
        // SAFETY: `start` made the box, and C finalises a state once.
        drop(unsafe { Box::from_raw(state.cast::<NativeProvider>()) });
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
        // Devices need no size, as in the original. Elsewhere 0 is a wrong size, which for OS
        // memory the system refuses in the original.
        if size == 0 && native.counted.flavour() == NativeKind::Os {
            let zero = Error::InvalidArgument { what: "size", why: "must be what was allocated there" };
            return Err(native.native_failure(zero, FailedOperation::Free));
        }
        if size == 0 && !native.counted.flavour().is_of_device() {
            return Err(Failure::argument("the size must be what was allocated there"));
        }
        native.regions.free(memory, size).map_err(|error| native.failure(error, FailedOperation::Free))
    })
}

extern "C" fn get_last_native_error(state: State, message: *mut *const c_char, native: *mut i32) -> Code {
    with("get_last_native_error", state, |provider| {
        provider.counted.flavour().write_last(Out::from_ptr(message), Out::from_ptr(native))
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
        Out::from_ptr(size).set(native.device.as_ref().map_or_else(cache_line, |device| device.cache_line()))
    })
}

/// Returns the line size of the first-level cache, if the system knows it; 64 otherwise.
fn cache_line() -> usize {
    // SAFETY: `sysconf` reads a constant.
    let size = unsafe { libc::sysconf(libc::_SC_LEVEL1_DCACHE_LINESIZE) };
    usize::try_from(size).ok().filter(|line| line.is_power_of_two()).unwrap_or(64)
}

extern "C" fn get_name<T: NativeTable>(state: State, name: *mut *const c_char) -> Code {
    call("get_name", || {
        let native = object_of::<NativeProvider>(state);
        Out::from_ptr(name).set(native.map_or(T::NAME.as_ptr(), |native| native.name.as_ptr()))
    })
}

fn purge(what: &'static str, state: State, memory: *mut c_void, size: usize, lazily: bool) -> Code {
    let operation = if lazily { FailedOperation::PurgeLazy } else { FailedOperation::PurgeForce };
    with(what, state, |native| match size {
        0 => Ok(()),
        _ => native.regions.purge(memory, size, lazily).map_err(|error| native.failure(error, operation)),
    })
}

extern "C" fn purge_lazy(state: State, memory: *mut c_void, size: usize) -> Code {
    purge("purge_lazy", state, memory, size, true)
}

extern "C" fn purge_force(state: State, memory: *mut c_void, size: usize) -> Code {
    purge("purge_force", state, memory, size, false)
}

extern "C" fn merge(state: State, low: *mut c_void, high: *mut c_void, total: usize) -> Code {
    with("merge", state, |native| {
        native.check_splits()?;
        native.regions.merge(low, high, total).map_err(explain)
    })
}

extern "C" fn split(state: State, memory: *mut c_void, total: usize, first: usize) -> Code {
    with("split", state, |native| {
        native.check_splits()?;
        native.regions.split(memory, total, first).map_err(explain)
    })
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
        let exported =
            native.check_ipc().and_then(|()| provider_handle::get(address(memory), &*native.counted, handle));
        exported.inspect_err(|failure| {
            native.counted.flavour().record_sharing_failure(FailedOperation::Export, failure);
        })
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
        let imports = || native.import().into_iter().collect();
        let opened = native.check_ipc().and_then(|()| native.importers.open(handle, imports, state.addr()));
        memory.set(opened.inspect_err(|failure| {
            native.counted.flavour().record_sharing_failure(FailedOperation::Open, failure);
        })?)
    })
}

extern "C" fn close_ipc_handle(state: State, memory: *mut c_void, _size: usize) -> Code {
    with("close_ipc_handle", state, |native| {
        native.check_ipc()?;
        provider_handle::close(memory, state.addr())
    })
}

fn property_of(native: &NativeProvider, property: i32) -> Outcome<DeviceProperty> {
    let unknown = Failure::argument("that is no property of this memory");
    native.device.as_ref().and_then(|device| device.property(property)).ok_or(unknown)
}

extern "C" fn get_property(state: State, _memory: *const c_void, property: i32, value: *mut c_void) -> Code {
    with("get_allocation_properties", state, |native| match property_of(native, property)? {
        DeviceProperty::Int(number) => Out::from_ptr(value.cast()).set(number),
        DeviceProperty::Handle(handle) => Out::from_ptr(value.cast()).set(handle),
    })
}

extern "C" fn get_property_size(state: State, property: i32, size: *mut usize) -> Code {
    with("get_allocation_properties_size", state, |native| {
        let size = Out::from_ptr(size).check()?;
        size.set(match property_of(native, property)? {
            DeviceProperty::Int(_) => size_of::<i32>(),
            DeviceProperty::Handle(_) => size_of::<*mut c_void>(),
        })
    })
}

/// Truncates a name to 63 bytes, as the original does.
pub(crate) fn short_name(name: &CStr) -> CString {
    let bytes = name.to_bytes();
    CString::new(&bytes[..bytes.len().min(63)]).unwrap_or_default()
}
