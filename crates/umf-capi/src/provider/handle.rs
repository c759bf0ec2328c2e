//! [`Provider`]: what a `umf_memory_provider_handle_t` points to.

use core::ffi::{CStr, c_char, c_void};
use core::sync::atomic::{AtomicPtr, Ordering};
use std::sync::{Arc, OnceLock};

use umf_core::{MemoryKind, ProviderKind, Visibility};
use umf_ipc::Importer;
use umf_provider_plugin::table::{Code, Functions, State, Table};
use umf_provider_plugin::{Instance, PluginProvider, ProviderInfo, TableError};
use umf_runtime::Upstream;
use umf_runtime::tracker::OwnerId;

use super::native::{self, Device, Native};
use super::regions::Regions;
use crate::boundary::{Failure, INVALID_CTL_PATH, NOT_SUPPORTED, Out, Outcome, SUCCESS, Taken};
use crate::ctl::{self, registry};
use crate::last_error::{self, explain};
use crate::memory::importer_of;
use crate::pool::Pool;

/// A provider with its functions and state.
pub(crate) struct Provider {
    pub(crate) functions: Functions,
    pub(crate) state: State,
    is_1_1: bool,
    /// All functions are those of a provider of this library.
    is_native: bool,
    /// Set in the handle that a pool gets in place of the program's.
    tracking: Option<Tracking>,
    foreign: OnceLock<Arc<PluginProvider>>,
    importer: OnceLock<Importer>,
}

/// What makes memory known that a pool allocates through its handle.
struct Tracking {
    regions: Regions,
    base: *const Provider,
    pool: AtomicPtr<Pool>,
}

// SAFETY: UMF requires of every provider that its functions may be called by several threads at
// once.
unsafe impl Send for Provider {}
// SAFETY: as above.
unsafe impl Sync for Provider {}

/// What stands in the IPC handles of providers that a program brought.
const FOREIGN_KIND: ProviderKind = match ProviderKind::new("c-provider") {
    Some(kind) => kind,
    None => panic!("a valid name"),
};

const RUNNABLE: i32 = 2;
const PROGRAMMATIC: i32 = 1;

impl Provider {
    /// Reads a table and has it make a provider of `params`.
    pub(crate) fn create(table: *const u32, params: *const c_void) -> Outcome<Box<Self>> {
        // SAFETY: C promises that the table is as long as its version says.
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
        // SAFETY: a function of the table, with what C gave for it.
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
            importer: OnceLock::new(),
        });
        let started = provider.start();
        if let Err(failure) = started {
            // What was initialised is finalised, whatever failed.
            provider.finalize();
            return Err(failure);
        }
        Ok(provider)
    }

    /// A handle over this provider for a pool: it remembers what is allocated through it, and for
    /// which pool. Everything else it passes to this provider's functions.
    pub(crate) fn tracked(&self) -> Outcome<Box<Self>> {
        // Memory of files and the like is not the system's to get back.
        let base = self.base();
        let purges_parts = base.native().is_none_or(Native::purges_parts);
        let regions = Regions::new(Upstream::new(self.core())?, purges_parts);
        Ok(Box::new(Self {
            functions: self.functions,
            state: self.state,
            is_1_1: self.is_1_1,
            is_native: false,
            tracking: Some(Tracking { regions, base, pool: AtomicPtr::default() }),
            foreign: OnceLock::new(),
            importer: OnceLock::new(),
        }))
    }

    /// Says which pool a tracking handle is for.
    pub(crate) fn set_pool(&self, pool: *mut Pool) {
        if let Some(tracking) = &self.tracking {
            tracking.pool.store(pool, Ordering::Release);
        }
    }

    /// The pool that a tracking handle is for; `None` for any other.
    pub(crate) fn pool(&self) -> Option<*mut Pool> {
        let pool = self.tracking.as_ref()?.pool.load(Ordering::Acquire);
        (!pool.is_null()).then_some(pool)
    }

    /// The provider that the program made.
    pub(crate) fn base(&self) -> &Self {
        // SAFETY: the program keeps a provider as long as pools over it, as UMF's header asks.
        self.tracking.as_ref().map_or(self, |tracking| unsafe { &*tracking.base })
    }

    fn start(&self) -> Outcome<()> {
        let name = self.name()?;
        registry::apply_defaults(registry::Kind::Provider, name, |source, path, argument, size| {
            self.control(source, path, argument, size, 1)
        });
        if !self.is_1_1 {
            return Ok(());
        }
        match self.control(PROGRAMMATIC, c"post_initialize", core::ptr::null_mut(), 0, RUNNABLE) {
            SUCCESS | INVALID_CTL_PATH | NOT_SUPPORTED => Ok(()),
            code => Err(Failure::foreign(code)),
        }
    }

    /// Asks the provider's control tree, without arguments behind the path.
    fn control(&self, source: i32, path: &CStr, argument: *mut c_void, size: usize, query: i32) -> Code {
        match self.functions.ext_ctl {
            Some(control) => ctl::forward_none(control, self.state, source, path, argument, size, query),
            None => INVALID_CTL_PATH,
        }
    }

    /// Ends it, whether its finalising succeeds or not.
    pub(crate) fn destroy(provider: &Taken<Self>) -> Code {
        let this = core::ptr::from_ref(&**provider);
        registry::leave(registry::Kind::Provider, this.addr());
        if last_error::failed_provider() == this {
            last_error::set_failed_provider(core::ptr::null());
        }
        provider.finalize()
    }

    fn finalize(&self) -> Code {
        // SAFETY: a function of the table; C destroys once.
        unsafe { (self.functions.finalize)(self.state) }
    }

    /// Passes a code on; a failure makes this the thread's last failed provider.
    pub(crate) fn check(&self, code: Code) -> Outcome<()> {
        if code == SUCCESS {
            return Ok(());
        }
        self.has_failed();
        Err(Failure::foreign(code))
    }

    /// Makes this the thread's last failed provider.
    pub(crate) fn has_failed(&self) {
        last_error::set_failed_provider(self);
    }

    pub(crate) fn name<'a>(&self) -> Outcome<&'a CStr> {
        let mut name: *const c_char = core::ptr::null();
        // SAFETY: a function of the table, with a place for its result.
        self.check(unsafe { (self.functions.get_name)(self.state, &raw mut name) })?;
        if name.is_null() {
            return Ok(c"");
        }
        // SAFETY: UMF says that a name ends with a NUL and lives as long as the provider.
        Ok(unsafe { CStr::from_ptr(name) })
    }

    /// The native provider behind it, if it is one of this library's own.
    fn native<'a>(&self) -> Option<&'a Native> {
        // The functions are those of this library, and so is the state.
        if self.is_native { ctl::object_of(self.state).ok() } else { None }
    }

    /// What only providers of one kind of device have; `None` for any other.
    pub(crate) fn device<T: Device>(&self) -> Option<&T> {
        self.native()?.device()
    }

    /// Whether it is known of its memory that the CPU cannot read and write it.
    pub(crate) fn is_out_of_reach(&self) -> bool {
        self.base().native().is_some_and(|native| !native.core().memory_kind().is_host_accessible())
    }

    /// Under which number the tracker knows what is allocated through this handle; `None` for a
    /// provider of the program's.
    pub(crate) fn owner(&self) -> Option<OwnerId> {
        match &self.tracking {
            Some(tracking) => Some(tracking.regions.owner()),
            None => self.native().map(Native::owner),
        }
    }

    /// A provider that the program brought, for this library's pools. As it does not say what its
    /// memory is, the CPU does not touch it. Whether a child shares the memory is not known, and
    /// the original's pools work on in a child.
    fn foreign(&self) -> &Arc<PluginProvider> {
        self.foreign.get_or_init(|| {
            let table = Table { version: Table::NEWEST, functions: self.functions };
            let owner = "a provider that the program brought";
            // SAFETY: the state is one of these functions. UMF says that the program destroys a
            // provider after its pools.
            let instance = unsafe { Instance::borrowed(table, self.state, owner, last_error::observe) };
            let about = ProviderInfo {
                name: self.name().map(CStr::to_string_lossy).unwrap_or_default().into_owned(),
                kind: FOREIGN_KIND,
                memory_kind: MemoryKind::Device,
                visibility: Visibility::Private,
                page: instance.min_page_size().unwrap_or(1),
                handle_size: instance.handle_size().unwrap_or(None),
                exact_sizes: true,
            };
            PluginProvider::new(instance, about)
        })
    }

    /// What this library's pools get.
    pub(crate) fn core(&self) -> Arc<dyn umf_core::Provider> {
        let base = self.base();
        match base.native() {
            Some(native) => native.core(),
            None => Arc::clone(base.foreign()) as _,
        }
    }

    /// What opens handles of such memory: the process's importer, or one of the provider's own.
    pub(crate) fn importer(&self) -> Outcome<&Importer> {
        let base = self.base();
        if let Some(native) = base.native() {
            return native.importer();
        }
        if let Some(importer) = base.importer.get() {
            return Ok(importer);
        }
        let without = Failure::unsupported("the provider has no IPC handles");
        let made = importer_of(base.foreign().importer().ok_or(without)?)?;
        // Of two that were made at once, one is dropped again, unused.
        Ok(base.importer.get_or_init(|| made))
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
            // SAFETY: a function of the table, with the place for its result that C gave.
            None => self.check(unsafe { (self.functions.alloc)(self.state, size, align, memory.to_ptr()) }),
        }
    }

    pub(crate) fn free(&self, memory: *mut c_void, size: usize) -> Outcome<()> {
        match &self.tracking {
            Some(_) if memory.is_null() => Ok(()),
            Some(tracking) => self.track(tracking.regions.free(memory, size)),
            // SAFETY: a function of the table; what C gives it is the provider's business.
            None => self.check(unsafe { (self.functions.free)(self.state, memory, size) }),
        }
    }

    pub(super) fn split(&self, memory: *mut c_void, total: usize, first: usize) -> Outcome<()> {
        let split = self.functions.ext_allocation_split.ok_or(LACKING)?;
        match &self.tracking {
            Some(tracking) => self.track(tracking.regions.split(memory, total, first)),
            // SAFETY: as in `free`.
            None => self.check(unsafe { split(self.state, memory, total, first) }),
        }
    }

    pub(super) fn merge(&self, low: *mut c_void, high: *mut c_void, total: usize) -> Outcome<()> {
        let merge = self.functions.ext_allocation_merge.ok_or(LACKING)?;
        match &self.tracking {
            Some(tracking) => self.track(tracking.regions.merge(low, high, total)),
            // SAFETY: as in `free`.
            None => self.check(unsafe { merge(self.state, low, high, total) }),
        }
    }

    /// Passes a result of tracked memory on, as [`Provider::check`] a code.
    fn track<T>(&self, result: umf_core::Result<T>) -> Outcome<T> {
        result.map_err(|error| {
            self.has_failed();
            explain(error)
        })
    }
}

/// A member of its table is NULL.
pub(super) const LACKING: Failure = Failure::unsupported("the provider does not have that");
