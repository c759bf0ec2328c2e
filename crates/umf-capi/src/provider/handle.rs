//! [`Provider`]: the target of a `umf_memory_provider_handle_t`.

use core::ffi::{CStr, c_char, c_void};
use core::sync::atomic::{AtomicPtr, Ordering};
use std::sync::{Arc, OnceLock};

use umf_core::{Import, MemoryKind, ProviderKind, Visibility};
use umf_provider_plugin::table::{Code, Functions, State, Table};
use umf_provider_plugin::{Instance, PluginProvider, ProviderInfo, TableError};
use umf_runtime::Upstream;
use umf_runtime::tracker::OwnerId;

use super::native::{self, Device, NativeProvider};
use super::regions::Regions;
use crate::boundary::{Failure, INVALID_CTL_PATH, NOT_SUPPORTED, Out, Outcome, SUCCESS, Taken};
use crate::ctl::{self, registry};
use crate::last_error::{self, FailedOperation, explain};
use crate::pool::Pool;
use crate::providers::file_imports;

/// A provider: a table of functions and the state that they get.
pub(crate) struct Provider {
    pub(crate) functions: Functions,
    pub(crate) state: State,
    is_1_1: bool,
    /// Whether all functions belong to a provider of this library.
    is_native: bool,
    /// Present in the handle that a pool gets instead of the program's handle.
    tracking: Option<Tracking>,
    foreign: OnceLock<Arc<PluginProvider>>,
}

/// Registers the memory that a pool allocates through its provider handle.
struct Tracking {
    regions: Regions,
    base: *const Provider,
    pool: AtomicPtr<Pool>,
}

// SAFETY: UMF requires that the functions of a provider are thread-safe.
unsafe impl Send for Provider {}
// SAFETY: UMF requires that the functions of a provider are thread-safe.
unsafe impl Sync for Provider {}

/// Provider kind in the IPC handles of providers that the program implements.
const FOREIGN_KIND: ProviderKind = match ProviderKind::new("c-provider") {
    Some(kind) => kind,
    None => panic!("a valid name"),
};

const RUNNABLE: i32 = 2;
const PROGRAMMATIC: i32 = 1;

impl Provider {
    /// Reads a table, and creates a provider with `params`.
    ///
    /// Returns its name, too, which the provider is asked for once.
    pub(crate) fn create<'a>(table: *const u32, params: *const c_void) -> Outcome<(Box<Self>, &'a CStr)> {
        // SAFETY: C guarantees that the table is as long as its version requires.
        let table = unsafe { Table::read(table) }.map_err(|fault| match fault {
            TableError::Version { .. } => {
                Failure::unsupported("the table of a provider has a version that is none of 1.0, 1.1, 1.2")
            }
            TableError::Missing { .. } => {
                Failure::argument("the table of a provider lacks a function that is mandatory")
            }
            TableError::Incomplete { .. } => {
                Failure::argument("the table of a provider has some functions of a group, and not all")
            }
            _ => Failure::argument("the table of a provider is NULL or not aligned"),
        })?;
        let mut state = core::ptr::null_mut();
        // SAFETY: a function of the table, with the parameters that C passed for it.
        let code = unsafe { (table.functions.initialize)(params, &raw mut state) };
        if code != SUCCESS {
            return Err(Failure::foreign(code));
        }
        let provider = Box::new(Self {
            is_native: native::makes_states_of(&table.functions),
            is_1_1: table.is_1_1(),
            functions: table.functions,
            state,
            tracking: None,
            foreign: OnceLock::new(),
        });
        if let Some(native) = provider.native() {
            native.instrumented().set_handle(&raw const *provider);
        }
        match provider.start() {
            Ok(name) => Ok((provider, name)),
            Err(failure) => {
                // A provider that was initialised is finalised on each failure.
                provider.finalize();
                Err(failure)
            }
        }
    }

    /// Creates a provider handle for a pool. It registers what is allocated through it, for that
    /// pool, and forwards all other calls to this provider's functions.
    pub(crate) fn tracked(&self) -> Outcome<Box<Self>> {
        // Only the system's memory can be purged in parts, not that of files.
        let base = self.base();
        let purges_parts = base.native().is_none_or(NativeProvider::purges_parts);
        let regions = Regions::new(Upstream::new(self.core())?, purges_parts);
        Ok(Box::new(Self {
            functions: self.functions,
            state: self.state,
            is_1_1: self.is_1_1,
            is_native: false,
            tracking: Some(Tracking { regions, base, pool: AtomicPtr::default() }),
            foreign: OnceLock::new(),
        }))
    }

    /// Sets the pool that a tracking handle belongs to.
    pub(crate) fn set_pool(&self, pool: *mut Pool) {
        if let Some(tracking) = &self.tracking {
            tracking.pool.store(pool, Ordering::Release);
        }
    }

    /// Returns the pool that a tracking handle belongs to; `None` for other handles.
    pub(crate) fn pool(&self) -> Option<*mut Pool> {
        let pool = self.tracking.as_ref()?.pool.load(Ordering::Acquire);
        (!pool.is_null()).then_some(pool)
    }

    /// Returns the provider that the program created.
    pub(crate) fn base(&self) -> &Self {
        // SAFETY: UMF requires that the program destroys a provider after its pools.
        self.tracking.as_ref().map_or(self, |tracking| unsafe { &*tracking.base })
    }

    /// Applies defaults of the control tree. Returns the name.
    fn start<'a>(&self) -> Outcome<&'a CStr> {
        let name = self.name()?;
        registry::apply_defaults(registry::Kind::Provider, name, |source, path, argument, size| {
            self.control(source, path, argument, size, 1)
        });
        if !self.is_1_1 {
            return Ok(name);
        }
        match self.control(PROGRAMMATIC, c"post_initialize", core::ptr::null_mut(), 0, RUNNABLE) {
            SUCCESS | INVALID_CTL_PATH | NOT_SUPPORTED => Ok(name),
            code => Err(Failure::foreign(code)),
        }
    }

    /// Calls the provider's `ext_ctl` without variable arguments.
    fn control(&self, source: i32, path: &CStr, argument: *mut c_void, size: usize, query: i32) -> Code {
        match self.functions.ext_ctl {
            Some(control) => ctl::forward_none(control, self.state, source, path, argument, size, query),
            None => INVALID_CTL_PATH,
        }
    }

    /// Destroys the provider, whether its `finalize` succeeds or not.
    pub(crate) fn destroy(provider: &Taken<Self>) -> Code {
        let this = core::ptr::from_ref(&**provider);
        registry::unregister(registry::Kind::Provider, this.addr());
        if last_error::failed_provider() == this {
            last_error::set_failed_provider(core::ptr::null());
        }
        // Pools that outlive the provider, against UMF's rules, do not name it any more.
        if let Some(native) = provider.native() {
            native.instrumented().set_handle(core::ptr::null());
        }
        // Memory whose leases have ended goes back while its provider is there.
        umf_runtime::deferred::poll();
        if let Some(foreign) = provider.foreign.get() {
            foreign.set_finalized();
        }
        provider.finalize()
    }

    fn finalize(&self) -> Code {
        // SAFETY: a function of the table; C destroys a provider once.
        unsafe { (self.functions.finalize)(self.state) }
    }

    /// Converts a result code. On a failure this becomes the thread's last failed provider.
    pub(crate) fn check(&self, code: Code) -> Outcome<()> {
        if code == SUCCESS {
            return Ok(());
        }
        self.has_failed();
        Err(Failure::foreign(code))
    }

    /// Makes the provider that the program created the thread's last failed one.
    pub(crate) fn has_failed(&self) {
        last_error::set_failed_provider(self.base());
    }

    /// Makes this the thread's last failed provider, and records why its memory could not be
    /// exported or opened, for the native error.
    pub(crate) fn has_failed_to_share(&self, failed: FailedOperation, failure: &Failure) {
        self.has_failed();
        if let Some(native) = self.base().native() {
            native.instrumented().flavour().record_sharing_failure(failed, failure);
        }
    }

    /// Checks that the provider has IPC handles.
    pub(crate) fn check_ipc(&self) -> Outcome<()> {
        let base = self.base();
        match base.native() {
            Some(native) => native.check_ipc(),
            None if base.foreign().importer().is_some() => Ok(()),
            None => {
                let get = base.functions.ext_get_ipc_handle_size;
                let get = get.ok_or(Failure::unsupported("the provider has no IPC handles"))?;
                let mut size = 0;
                // SAFETY: a function of the table, with a place for its result.
                base.check(unsafe { get(base.state, &raw mut size) })?;
                Err(Failure::argument("the provider has IPC handles of 0 bytes, or of more than 1 MiB"))
            }
        }
    }

    /// Returns the size that was requested for a region, in bytes.
    pub(crate) fn requested_size(&self, region: &umf_core::Region) -> usize {
        self.base().native().map_or(region.size(), |native| native.instrumented().requested_size(region))
    }

    /// Allocates 0 bytes with the provider's own function.
    pub(crate) fn allocate_nothing(&self, align: usize) -> Outcome<*mut c_void> {
        let base = self.base();
        let mut memory = core::ptr::null_mut();
        // SAFETY: a function of the table, with a place for its result.
        base.check(unsafe { (base.functions.alloc)(base.state, 0, align, &raw mut memory) })?;
        Ok(memory)
    }

    /// Frees with the provider's own function what it allocated for 0 bytes, or NULL.
    pub(crate) fn free_nothing(&self, memory: *mut c_void) -> Outcome<()> {
        let base = self.base();
        // SAFETY: a function of the table; the memory is NULL or the provider's.
        base.check(unsafe { (base.functions.free)(base.state, memory, 0) })
    }

    pub(crate) fn name<'a>(&self) -> Outcome<&'a CStr> {
        let mut name: *const c_char = core::ptr::null();
        // SAFETY: a function of the table, with a place for its result.
        self.check(unsafe { (self.functions.get_name)(self.state, &raw mut name) })?;
        if name.is_null() {
            return Ok(c"");
        }
        // SAFETY: UMF requires that a name ends with a NUL and lives as long as the provider.
        Ok(unsafe { CStr::from_ptr(name) })
    }

    /// Returns the native provider behind the handle, if it is one of this library.
    fn native<'a>(&self) -> Option<&'a NativeProvider> {
        // All functions belong to this library, and so does the state.
        if self.is_native { ctl::object_of(self.state).ok() } else { None }
    }

    /// Returns the data of one kind of device; `None` for any other provider.
    pub(crate) fn device<T: Device>(&self) -> Option<&T> {
        self.native()?.device()
    }

    /// Returns whether the memory is known to be inaccessible for the CPU.
    pub(crate) fn is_out_of_reach(&self) -> bool {
        self.base().native().is_some_and(|native| !native.core().memory_kind().is_host_accessible())
    }

    /// Returns the tracker's owner id of what is allocated through this handle; `None` for a
    /// provider of the program.
    pub(crate) fn owner(&self) -> Option<OwnerId> {
        match &self.tracking {
            Some(tracking) => Some(tracking.regions.owner()),
            None => self.native().map(NativeProvider::owner),
        }
    }

    /// Returns the program's provider for use by this library's pools. Its memory is of unknown
    /// kind, so the CPU does not access it. It counts as private, because pools of the original
    /// work on in forked children.
    fn foreign(&self) -> &Arc<PluginProvider> {
        self.foreign.get_or_init(|| {
            let table = Table { version: Table::NEWEST, functions: self.functions };
            let owner = "a provider that the program brought";
            let this = core::ptr::from_ref(self).addr();
            let observe = Box::new(move |code| {
                last_error::observe(code);
                if code != SUCCESS {
                    last_error::set_failed_provider(core::ptr::without_provenance(this));
                }
            });
            // SAFETY: the state belongs to these functions. UMF requires that the program destroys
            // a provider after its pools.
            let instance = unsafe { Instance::borrowed(table, self.state, owner, observe) };
            let about = ProviderInfo {
                name: self.name().map(CStr::to_string_lossy).unwrap_or_default().into_owned(),
                kind: FOREIGN_KIND,
                memory_kind: MemoryKind::Device,
                visibility: Visibility::Private,
                page: instance.min_page_size().unwrap_or(1),
                handle_size: instance.handle_size().unwrap_or(None),
                exact_sizes: true,
                failure_is_out_of_memory: true,
            };
            PluginProvider::new(instance, about)
        })
    }

    /// Returns the provider for this library's pools.
    pub(crate) fn core(&self) -> Arc<dyn umf_core::Provider> {
        let base = self.base();
        match base.native() {
            Some(native) => native.core(),
            None => Arc::clone(base.foreign()) as _,
        }
    }

    /// Returns what imports memory of this provider, besides the process's importer, and memory that
    /// a provider of the program exported by forwarding to one like this.
    pub(crate) fn imports(&self) -> Vec<Arc<dyn Import>> {
        let base = self.base();
        let mut imports = match base.native() {
            Some(native) => Vec::from_iter(native.import()),
            None => file_imports().to_vec(),
        };
        imports.extend(base.foreign().importer().map(|import| import as Arc<dyn Import>));
        imports
    }

    pub(crate) fn cache_line(&self) -> usize {
        let mut size = 0;
        let Some(get) = self.functions.get_cache_line_size else { return 64 };
        // SAFETY: a function of the table, with a place for its result.
        let code = unsafe { get(self.state, &raw mut size) };
        if code == SUCCESS && size.is_power_of_two() { size } else { 64 }
    }

    pub(crate) fn allocate(&self, size: usize, align: usize, memory: Out<*mut c_void>) -> Outcome<()> {
        match &self.tracking {
            Some(tracking) => memory.set(self.track(tracking.regions.allocate(size, align))?),
            // SAFETY: a function of the table, with the place for its result that C passed.
            None => self.check(unsafe { (self.functions.alloc)(self.state, size, align, memory.to_ptr()) }),
        }
    }

    pub(crate) fn free(&self, memory: *mut c_void, size: usize) -> Outcome<()> {
        match &self.tracking {
            Some(_) if memory.is_null() => Ok(()),
            Some(tracking) => self.track(tracking.regions.free(memory, size)),
            // SAFETY: a function of the table; C guarantees that the memory is the provider's.
            None => self.check(unsafe { (self.functions.free)(self.state, memory, size) }),
        }
    }

    pub(super) fn split(&self, memory: *mut c_void, total: usize, first: usize) -> Outcome<()> {
        let split = self.functions.ext_allocation_split.ok_or(MISSING_FUNCTION)?;
        match &self.tracking {
            Some(tracking) => self.track(tracking.regions.split(memory, total, first)),
            // SAFETY: a function of the table; C guarantees that the memory is the provider's.
            None => self.check(unsafe { split(self.state, memory, total, first) }),
        }
    }

    pub(super) fn merge(&self, low: *mut c_void, high: *mut c_void, total: usize) -> Outcome<()> {
        let merge = self.functions.ext_allocation_merge.ok_or(MISSING_FUNCTION)?;
        match &self.tracking {
            Some(tracking) => self.track(tracking.regions.merge(low, high, total)),
            // SAFETY: a function of the table; C guarantees that the memory is the provider's.
            None => self.check(unsafe { merge(self.state, low, high, total) }),
        }
    }

    /// Converts the result of an operation on tracked memory, as [`Provider::check`] does for a
    /// code.
    fn track<T>(&self, result: umf_core::Result<T>) -> Outcome<T> {
        result.map_err(|error| {
            self.has_failed();
            explain(error)
        })
    }
}

/// The table lacks this function.
pub(super) const MISSING_FUNCTION: Failure = Failure::unsupported("the provider does not have that");
