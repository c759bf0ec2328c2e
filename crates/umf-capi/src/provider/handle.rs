//! [`Provider`]: what a `umf_memory_provider_handle_t` points to.

use core::cell::Cell;
use core::ffi::{CStr, c_char, c_void};
use std::sync::{Arc, OnceLock};

use umf::plugin::TableFault;
use umf::plugin::ops::{Code, Operations, State};
use umf_core::tracker::OwnerId;
use umf_ipc::Importer;

use super::{Foreign, Native, Own, Tracking};
use crate::boundary::{Failure, INVALID_CTL_PATH, NOT_SUPPORTED, Out, Outcome, SUCCESS, Taken};
use crate::ctl::{self, registry};
use crate::memory::provider_handle;

/// A provider with its functions and state.
pub(crate) struct Provider {
    pub(crate) operations: Operations,
    pub(crate) state: State,
    /// All functions are those of a provider of this library.
    is_native: bool,
    foreign: OnceLock<Arc<Foreign>>,
    importer: OnceLock<Importer>,
}

// SAFETY: UMF requires of every provider that its operations may be called by several threads at once.
unsafe impl Send for Provider {}
// SAFETY: as above.
unsafe impl Sync for Provider {}

thread_local! {
    static LAST_FAILED: Cell<*const Provider> = const { Cell::new(core::ptr::null()) };
}

/// The provider of which a call failed last in this thread.
pub(crate) fn last_failed() -> *const Provider {
    LAST_FAILED.get()
}

const RUNNABLE: i32 = 2;
const PROGRAMMATIC: i32 = 1;

impl Provider {
    /// Reads a table and has it make a provider of `params`.
    pub(crate) fn create(table: *const u32, params: *const c_void) -> Outcome<Box<Self>> {
        // SAFETY: C promises that the table is as long as its version says.
        let operations = unsafe { Operations::read(table) }.map_err(|fault| match fault {
            TableFault::Version { .. } => {
                Failure::unsupported("the table of a provider has a version that is none of 1.0, 1.1, 1.2")
            }
            TableFault::Missing { .. } => {
                Failure::argument("the table of a provider lacks a function that is mandatory")
            }
            TableFault::Incomplete { .. } => {
                Failure::argument("the table of a provider has some functions of a group, and not all")
            }
            _ => Failure::argument("the table of a provider is NULL or not aligned"),
        })?;
        let mut state = core::ptr::null_mut();
        // SAFETY: a function of the table, with what C gave for it.
        let code = unsafe { (operations.initialize)(params, &raw mut state) };
        if code != SUCCESS {
            return Err(Failure::foreign(code));
        }
        let provider = Box::new(Self::new(operations, state));
        let started = provider.start();
        if let Err(failure) = started {
            // What was initialised is finalised, whatever failed.
            provider.finalize();
            return Err(failure);
        }
        Ok(provider)
    }

    /// One whose state is made already.
    pub(crate) fn new(operations: Operations, state: State) -> Self {
        Self {
            is_native: Native::is_whole(&operations),
            operations,
            state,
            foreign: OnceLock::new(),
            importer: OnceLock::new(),
        }
    }

    fn start(&self) -> Outcome<()> {
        let name = self.name()?;
        registry::apply_defaults(registry::Kind::Provider, name, |source, path, argument, size| {
            self.control(source, path, argument, size, 1)
        });
        if self.operations.minor == 0 {
            return Ok(());
        }
        match self.control(PROGRAMMATIC, c"post_initialize", core::ptr::null_mut(), 0, RUNNABLE) {
            SUCCESS | INVALID_CTL_PATH | NOT_SUPPORTED => Ok(()),
            code => Err(Failure::foreign(code)),
        }
    }

    /// Asks the provider's control tree, without arguments behind the path.
    fn control(&self, source: i32, path: &CStr, argument: *mut c_void, size: usize, query: i32) -> Code {
        match self.operations.ctl {
            Some(control) => ctl::forward_none(control, self.state, source, path, argument, size, query),
            None => INVALID_CTL_PATH,
        }
    }

    /// Ends it, whether its finalising succeeds or not.
    pub(crate) fn destroy(provider: &Taken<Self>) -> Code {
        let this = core::ptr::from_ref(&**provider);
        registry::leave(registry::Kind::Provider, this.addr());
        if LAST_FAILED.get() == this {
            LAST_FAILED.set(core::ptr::null());
        }
        provider.finalize()
    }

    pub(crate) fn finalize(&self) -> Code {
        // SAFETY: a function of the table; C destroys once.
        unsafe { (self.operations.finalize)(self.state) }
    }

    /// Passes a code on; a failure makes this the thread's last failed provider.
    pub(crate) fn told(&self, code: Code) -> Outcome<()> {
        if code == SUCCESS {
            return Ok(());
        }
        self.has_failed();
        Err(Failure::foreign(code))
    }

    /// Makes this the thread's last failed provider.
    pub(crate) fn has_failed(&self) {
        LAST_FAILED.set(self);
    }

    pub(crate) fn name<'a>(&self) -> Outcome<&'a CStr> {
        let mut name: *const c_char = core::ptr::null();
        // SAFETY: a function of the table, with a place for its result.
        self.told(unsafe { (self.operations.get_name)(self.state, &raw mut name) })?;
        if name.is_null() {
            return Ok(c"");
        }
        // SAFETY: UMF says that a name ends with a NUL and lives as long as the provider.
        Ok(unsafe { CStr::from_ptr(name) })
    }

    /// The native provider behind it, if it is one of this library's own, whole.
    fn native<'a>(&self) -> Option<&'a Native> {
        if !self.is_native {
            return None;
        }
        // SAFETY: the functions are those of our table, so the state is of ours.
        unsafe { Native::of(self.state) }.ok()
    }

    /// What only providers of one kind of this library have; `None` for any other.
    pub(crate) fn own<T: Own>(&self) -> Option<&T> {
        self.native()?.own()
    }

    /// Whether it is known of its memory that the CPU cannot read and write it.
    pub(crate) fn is_out_of_reach(&self) -> bool {
        self.native().is_some_and(|native| !native.core().memory_kind().is_host_accessible())
    }

    /// Under which number the tracker knows what is allocated through this handle; `None` for a provider of the program's.
    pub(crate) fn owner(&self) -> Option<OwnerId> {
        match Tracking::of(self) {
            Some(tracking) => Some(tracking.owner()),
            None => self.native().map(Native::owner),
        }
    }

    fn foreign(&self) -> &Arc<Foreign> {
        self.foreign.get_or_init(|| {
            let name = self.name().map(CStr::to_string_lossy).unwrap_or_default();
            Foreign::new(self.operations, self.state, name.into_owned())
        })
    }

    /// What this library's pools get.
    pub(crate) fn core(&self) -> Arc<dyn umf_core::Provider> {
        match self.native() {
            Some(native) => native.core(),
            None => Arc::clone(self.foreign()) as _,
        }
    }

    /// What opens handles of such memory: the process's importer, or one of the provider's own.
    pub(crate) fn importer(&self) -> Outcome<&Importer> {
        match self.native() {
            Some(native) => native.importer(),
            None => self.own_importer(),
        }
    }

    fn own_importer(&self) -> Outcome<&Importer> {
        if let Some(importer) = self.importer.get() {
            return Ok(importer);
        }
        let without = Failure::unsupported("the provider has no IPC handles");
        let made = provider_handle::importer_of(self.foreign().import_of().ok_or(without)?)?;
        // Of two that were made at once, one is dropped again, unused.
        Ok(self.importer.get_or_init(|| made))
    }

    pub(crate) fn cache_line(&self) -> usize {
        let mut size = 0;
        let Some(ask) = self.operations.get_cache_line_size else { return 64 };
        // SAFETY: a function of the table, with a place for its result.
        let code = unsafe { ask(self.state, &raw mut size) };
        if code == SUCCESS && size.is_power_of_two() { size } else { 64 }
    }

    pub(crate) fn allocate(&self, size: usize, align: usize, memory: Out<*mut c_void>) -> Outcome<()> {
        // SAFETY: a function of the table, with the place for its result that C gave.
        self.told(unsafe { (self.operations.alloc)(self.state, size, align, memory.to_ptr()) })
    }

    pub(crate) fn free(&self, memory: *mut c_void, size: usize) -> Outcome<()> {
        // SAFETY: a function of the table; what C gives it is the provider's business.
        self.told(unsafe { (self.operations.free)(self.state, memory, size) })
    }
}
