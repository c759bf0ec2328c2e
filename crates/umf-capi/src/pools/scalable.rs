//! `umf/pools/pool_scalable.h`: oneTBB's allocator, if `libtbbmalloc.so.2` is installed.

use core::ffi::{CStr, c_char, c_int, c_uint, c_void};
use core::ptr::null_mut;
use std::ffi::CString;
use std::sync::OnceLock;

use libloading::os::unix::{Library, RTLD_LOCAL, RTLD_NOW};
use umf_provider_plugin::table::State;
use umf_sync::Lock;

use super::table::{PoolMemory, TablePool, functions, settings, start};
use crate::boundary::{
    Code, DEPENDENCY_UNAVAILABLE, Failure, Handle, OUT_OF_HOST_MEMORY, OUT_OF_RESOURCES, Out, Outcome,
    SUCCESS, Text, call, call_with, settings_functions,
};
use crate::ctl::{CtlAccess, CtlQuery, CtlTree, no_such_path};
use crate::last_error::PoolKind;
use crate::pool::{Functions, PoolTable};
use crate::provider::{Provider, short_name};

/// The settings of a pool to be created.
#[derive(Clone)]
struct Params {
    granularity: usize,
    keep_all: bool,
    name: CString,
}

impl Default for Params {
    fn default() -> Self {
        Self { granularity: 2 << 20, keep_all: false, name: c"scalable".to_owned() }
    }
}

settings_functions! {
    Params;
    create fn umfScalablePoolParamsCreate() { Params::default() }

    fn umfScalablePoolParamsSetGranularity(params, granularity: usize) {
        if granularity == 0 {
            return Err(Failure::argument("the granularity is 0"));
        }
        params.granularity = granularity;
    }
    fn umfScalablePoolParamsSetKeepAllMemory(params, keep_all: bool) { params.keep_all = keep_all; }
    fn umfScalablePoolParamsSetName(params, name: Text) { params.name = short_name(name.get()?); }
}

/// Refuses NULL, which the original only does for settings of this pool.
#[unsafe(no_mangle)]
extern "C" fn umfScalablePoolParamsDestroy(params: Handle<Params>) -> Code {
    call("umfScalablePoolParamsDestroy", || {
        params.get()?;
        drop(params.take()?);
        Ok(())
    })
}

/// The state of a scalable pool.
struct Scalable {
    provider: Handle<Provider>,
    memory: PoolMemory,
    tbb: Tbb,
    /// Created by the first allocation, or after the defaults of the control tree are applied.
    pool: OnceLock<BuiltPool>,
    /// Granularity, and whether freed memory is kept.
    params: Lock<(usize, bool)>,
    name: CString,
}

struct BuiltPool(Opaque);

// SAFETY: the library's functions are thread-safe.
unsafe impl Send for BuiltPool {}
// SAFETY: the library's functions are thread-safe.
unsafe impl Sync for BuiltPool {}

static TABLE: PoolTable =
    PoolTable::of(Functions { ext_trim_memory: None, ..functions::<Scalable>(initialize) });

#[unsafe(no_mangle)]
extern "C" fn umfScalablePoolOps() -> *const PoolTable {
    &raw const TABLE
}

extern "C" fn initialize(provider: Handle<Provider>, params: *const c_void, state: *mut State) -> Code {
    start(provider, state, |given| {
        let memory = PoolMemory::of(given)?;
        let params: Params = settings(params)?;
        let absent =
            Failure::new(DEPENDENCY_UNAVAILABLE, "libtbbmalloc.so.2 cannot be opened; install oneTBB");
        Ok(Scalable {
            provider,
            memory,
            tbb: tbb().ok_or(absent)?,
            pool: OnceLock::new(),
            params: Lock::new((params.granularity, params.keep_all)),
            name: params.name,
        })
    })
}

impl Scalable {
    fn pool(&self) -> Outcome<Opaque> {
        if let Some(made) = self.pool.get() {
            return Ok(made.0);
        }
        let (granularity, keep_all) = *self.params.lock();
        let policy = Policy {
            allocate: get_memory,
            free: give_memory,
            granularity,
            version: VERSION,
            flags: if keep_all { KEEP_ALL } else { 0 },
        };
        let mut pool = null_mut();
        let id = core::ptr::from_ref(self).expose_provenance().cast_signed();
        // SAFETY: a function of the library. The id is passed to the callbacks, and the state
        // outlives the pool.
        let failed = unsafe { (self.tbb.create)(id, &raw const policy, &raw mut pool) };
        if failed != 0 || pool.is_null() {
            return Err(Failure::new(OUT_OF_RESOURCES, "oneTBB made no pool of these settings"));
        }
        if let Err(second) = self.pool.set(BuiltPool(pool)) {
            // SAFETY: created above, and not in use.
            unsafe { (self.tbb.destroy)(second.0) };
        }
        self.pool.get().map(|made| made.0).ok_or(Failure::new(OUT_OF_RESOURCES, "no pool"))
    }
}

fn by_id<'a>(id: isize) -> Option<&'a Scalable> {
    // SAFETY: the library passes the id from `pool` while the pool exists.
    unsafe { core::ptr::with_exposed_provenance::<Scalable>(id.cast_unsigned()).as_ref() }
}

/// Allocates memory for the library, which needs no alignment beyond its granularity.
unsafe extern "C" fn get_memory(id: isize, bytes: *mut usize) -> *mut c_void {
    call_with("scalable", null_mut(), || {
        let scalable = by_id(id).ok_or(Failure::argument("no pool"))?;
        // SAFETY: the library passes a valid pointer to the number.
        let bytes = unsafe { bytes.read() };
        let mut memory = null_mut();
        scalable.provider.get()?.allocate(bytes, 0, Out::to(&mut memory)).inspect_err(|failure| {
            PoolKind::Scalable.set_last(failure.code());
        })?;
        Ok(memory)
    })
}

unsafe extern "C" fn give_memory(id: isize, memory: *mut c_void, bytes: usize) -> c_int {
    let given = call("scalable", || {
        by_id(id).ok_or(Failure::argument("no pool"))?.provider.get()?.free(memory, bytes)
    });
    c_int::from(given != 0)
}

impl Drop for Scalable {
    fn drop(&mut self) {
        // In a forked child the heap is shared with the parent, which still uses it.
        if let Some(made) = self.pool.get().filter(|_| !self.memory.is_frozen()) {
            // SAFETY: `pool` created it, and the state outlives the callbacks of this call.
            unsafe { (self.tbb.destroy)(made.0) };
        }
    }
}

const NO_MEMORY: Failure = Failure::new(OUT_OF_HOST_MEMORY, "the provider has no memory left");

impl Scalable {
    /// Allocates from the library. `get_memory` records why the provider failed.
    fn block(
        &self,
        size: Option<usize>,
        allocate: impl FnOnce(Opaque) -> *mut c_void,
    ) -> Outcome<*mut c_void> {
        PoolKind::Scalable.set_last(SUCCESS);
        let too_much = Failure::new(OUT_OF_HOST_MEMORY, "more bytes than an address space has");
        size.filter(|size| isize::try_from(*size).is_ok()).ok_or(too_much)?;
        self.memory.check_not_frozen()?;
        let block = allocate(self.pool()?);
        if block.is_null() && PoolKind::Scalable.last() == SUCCESS {
            return Err(NO_MEMORY);
        }
        Ok(block)
    }
}

impl TablePool for Scalable {
    const KIND: PoolKind = PoolKind::Scalable;
    const NAME: &'static CStr = c"scalable";
    const ALIGN: usize = 1;

    fn name(&self) -> *const c_char {
        self.name.as_ptr()
    }

    fn malloc(&self, size: usize) -> Outcome<*mut c_void> {
        // SAFETY: a function of the library with its pool.
        self.block(Some(size), |pool| unsafe { (self.tbb.malloc)(pool, size) })
    }

    fn aligned_malloc(&self, size: usize, align: usize) -> Outcome<*mut c_void> {
        if !align.is_power_of_two() {
            return Err(umf_core::Error::BadAlignment { align }.into());
        }
        // SAFETY: a function of the library with its pool.
        self.block(Some(size), |pool| unsafe { (self.tbb.aligned_malloc)(pool, size, align) })
    }

    fn calloc(&self, count: usize, size: usize) -> Outcome<*mut c_void> {
        let bytes = count.checked_mul(size);
        // SAFETY: a function of the library with its pool.
        let block = self.block(bytes, |pool| unsafe { (self.tbb.malloc)(pool, bytes.unwrap_or(0)) })?;
        if !block.is_null() {
            // SAFETY: a fresh block of that size in host memory.
            unsafe { block.cast::<u8>().write_bytes(0, bytes.unwrap_or(0)) };
        }
        Ok(block)
    }

    fn realloc(&self, old: *mut c_void, size: usize) -> Outcome<*mut c_void> {
        if !old.is_null() {
            self.memory.check(old)?;
            if size == 0 {
                self.free(old)?;
                return Ok(null_mut());
            }
        }
        // SAFETY: a function of the library with its pool; the block lies in memory of the pool.
        self.block(Some(size), |pool| unsafe { (self.tbb.realloc)(pool, old, size) })
    }

    fn usable_size(&self, block: *const c_void) -> Outcome<usize> {
        if block.is_null() {
            return Ok(0);
        }
        self.memory.check(block)?;
        // SAFETY: a function of the library with its pool; the block lies in memory of the pool.
        Ok(unsafe { (self.tbb.size)(self.pool()?, block.cast_mut()) })
    }

    fn free(&self, block: *mut c_void) -> Outcome<()> {
        self.memory.check(block)?;
        // SAFETY: a function of the library with its pool; the block lies in memory of the pool.
        if unsafe { (self.tbb.free)(self.pool()?, block) } {
            return Ok(());
        }
        Err(Failure::argument("the block is not one of this pool"))
    }
}

impl CtlTree for Scalable {
    fn answer(&self, query: &CtlQuery<'_>) -> Outcome<()> {
        if query.path() == "post_initialize" && query.runs() {
            return self.pool().map(|_| ());
        }
        if !matches!(query.path(), "params.granularity" | "params.keep_all_memory") {
            return Err(no_such_path());
        }
        if query.access() == CtlAccess::Write && self.pool.get().is_some() {
            return Err(Failure::unsupported(
                "a pool's settings cannot be changed once it is made; set a default",
            ));
        }
        let params = &mut *self.params.lock();
        if query.path() == "params.granularity" {
            query.access_size(&mut params.0)
        } else {
            query.access_bool(&mut params.1)
        }
    }
}

// The interface of `libtbbmalloc.so.2` for pools over foreign memory.

/// `rml::MemoryPool`.
type Opaque = *mut c_void;

/// `rml::MemPoolPolicy`, version 1.
#[repr(C)]
struct Policy {
    allocate: unsafe extern "C" fn(id: isize, bytes: *mut usize) -> *mut c_void,
    free: unsafe extern "C" fn(id: isize, memory: *mut c_void, bytes: usize) -> c_int,
    granularity: usize,
    version: c_int,
    /// Bit 0: fixed pool. Bit 1: keeps all memory.
    flags: c_uint,
}

/// `TBBMALLOC_POOL_VERSION`.
const VERSION: c_int = 1;
/// `keepAllMemory`.
const KEEP_ALL: c_uint = 1 << 1;

/// The functions that this pool calls.
#[derive(Clone, Copy)]
struct Tbb {
    create: unsafe extern "C" fn(id: isize, policy: *const Policy, pool: *mut Opaque) -> c_int,
    destroy: unsafe extern "C" fn(Opaque) -> bool,
    malloc: unsafe extern "C" fn(Opaque, usize) -> *mut c_void,
    realloc: unsafe extern "C" fn(Opaque, *mut c_void, usize) -> *mut c_void,
    aligned_malloc: unsafe extern "C" fn(Opaque, usize, usize) -> *mut c_void,
    free: unsafe extern "C" fn(Opaque, *mut c_void) -> bool,
    size: unsafe extern "C" fn(Opaque, *mut c_void) -> usize,
}

/// The library, which stays loaded.
struct Loaded {
    functions: Tbb,
    _library: Library,
}

/// Returns the functions of the library; `None` if it is not installed or lacks one.
fn tbb() -> Option<Tbb> {
    static LOADED: OnceLock<Option<Loaded>> = OnceLock::new();
    LOADED.get_or_init(load).as_ref().map(|loaded| loaded.functions)
}

fn load() -> Option<Loaded> {
    // SAFETY: runs the initialisers of oneTBB's allocator. The program requests it with a scalable
    // pool.
    let library = unsafe { Library::open(Some("libtbbmalloc.so.2"), RTLD_NOW | RTLD_LOCAL) };
    let library = library.inspect_err(|error| tracing::error!("libtbbmalloc.so.2: {error}")).ok()?;
    // SAFETY: the mangled names contain the types of the C++ functions.
    let functions = unsafe {
        Tbb {
            create: *library.get(b"_ZN3rml14pool_create_v1ElPKNS_13MemPoolPolicyEPPNS_10MemoryPoolE").ok()?,
            destroy: *library.get(b"_ZN3rml12pool_destroyEPNS_10MemoryPoolE").ok()?,
            malloc: *library.get(b"_ZN3rml11pool_mallocEPNS_10MemoryPoolEm").ok()?,
            realloc: *library.get(b"_ZN3rml12pool_reallocEPNS_10MemoryPoolEPvm").ok()?,
            aligned_malloc: *library.get(b"_ZN3rml19pool_aligned_mallocEPNS_10MemoryPoolEmm").ok()?,
            free: *library.get(b"_ZN3rml9pool_freeEPNS_10MemoryPoolEPv").ok()?,
            size: *library.get(b"_ZN3rml10pool_msizeEPNS_10MemoryPoolEPv").ok()?,
        }
    };
    Some(Loaded { functions, _library: library })
}
