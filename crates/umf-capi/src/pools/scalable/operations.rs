//! The functions of the table.

use core::ffi::{c_char, c_int, c_void};
use core::ptr::null_mut;
use std::ffi::CString;

use umf::plugin::ops::State;

use super::params::Params;
use super::tbb::{self, Functions as Tbb, KEEP_ALL, Opaque, Policy, VERSION};
use crate::boundary::{
    Code, DEPENDENCY_UNAVAILABLE, Failure, Handle, OUT_OF_HOST_MEMORY, OUT_OF_RESOURCES, Out, Outcome,
    SUCCESS, call, call_with,
};
use crate::ctl::{Answers, Asked, Query, control, no_such_path};
use crate::pool::{Functions, PoolTable};
use crate::pools::last_error::{self, Kind};
use crate::pools::whose::Whose;
use crate::provider::Provider;

/// The state.
struct Scalable {
    provider: Handle<Provider>,
    whose: Whose,
    tbb: Tbb,
    /// Made by the first allocation, or when the defaults of the control tree were written.
    pool: std::sync::OnceLock<Made>,
    params: umf_sync::Lock<(usize, bool)>,
    name: CString,
}

struct Made(Opaque);

// SAFETY: the functions of the library may be called by several threads at once.
unsafe impl Send for Made {}
// SAFETY: as above.
unsafe impl Sync for Made {}

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
    ctl: Some(control::<Scalable>),
    trim: None,
});

#[unsafe(no_mangle)]
extern "C" fn umfScalablePoolOps() -> *const PoolTable {
    &raw const TABLE
}

fn of<'a>(state: State) -> Outcome<&'a Scalable> {
    // SAFETY: whoever has this table gives its functions what `initialize` gave.
    unsafe { state.cast::<Scalable>().as_ref() }.ok_or(Failure::argument("the state of a pool is NULL"))
}

extern "C" fn initialize(provider: Handle<Provider>, params: *const c_void, state: *mut State) -> Code {
    call("initialize", || {
        let state = Out::from_ptr(state).check()?;
        let whose = Whose::of(provider.get()?)?;
        let params = Handle::<Params>::from_ptr(params.cast::<Params>().cast_mut());
        let defaults = Params::default();
        let params = if params.is_null() { &defaults } else { params.get()? };
        let absent =
            Failure::new(DEPENDENCY_UNAVAILABLE, "libtbbmalloc.so.2 cannot be opened; install oneTBB");
        let scalable = Scalable {
            provider,
            whose,
            tbb: tbb::functions().ok_or(absent)?,
            pool: std::sync::OnceLock::new(),
            params: umf_sync::Lock::new((params.granularity, params.keep_all)),
            name: params.name.clone(),
        };
        state.set(Box::into_raw(Box::new(scalable)).cast())
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
        // SAFETY: a function of the library; the id is what our functions get, and stays as long as the pool.
        let failed = unsafe { (self.tbb.create)(id, &raw const policy, &raw mut pool) };
        if failed != 0 || pool.is_null() {
            return Err(Failure::new(OUT_OF_RESOURCES, "oneTBB made no pool of these settings"));
        }
        if let Err(second) = self.pool.set(Made(pool)) {
            // SAFETY: made above, and nobody has seen it.
            unsafe { (self.tbb.destroy)(second.0) };
        }
        self.pool.get().map(|made| made.0).ok_or(Failure::new(OUT_OF_RESOURCES, "no pool"))
    }
}

fn by_id<'a>(id: isize) -> Option<&'a Scalable> {
    // SAFETY: the library gives back what `pool` gave it, as long as the pool is there.
    unsafe { core::ptr::with_exposed_provenance::<Scalable>(id.cast_unsigned()).as_ref() }
}

/// Memory for the library. At multiples of its own granularity it asks for no alignment.
unsafe extern "C" fn get_memory(id: isize, bytes: *mut usize) -> *mut c_void {
    call_with("scalable", null_mut(), || {
        let scalable = by_id(id).ok_or(Failure::argument("no pool"))?;
        // SAFETY: the library gives the place of the number.
        let bytes = unsafe { bytes.read() };
        let mut memory = null_mut();
        scalable.provider.get()?.allocate(bytes, 0, Out::to(&mut memory)).inspect_err(|failure| {
            last_error::failed(Kind::Scalable, failure);
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

extern "C" fn finalize(state: State) -> Code {
    call("finalize", || {
        if state.is_null() {
            return Ok(());
        }
        // SAFETY: `initialize` made the box; whoever has this table finalises once.
        let scalable = unsafe { Box::from_raw(state.cast::<Scalable>()) };
        // (In a forked child it is the parent's, which still uses it.)
        if let Some(made) = scalable.pool.get().filter(|_| !scalable.whose.is_frozen()) {
            // SAFETY: made by `pool`; the state is still there for the memory that is given back.
            unsafe { (scalable.tbb.destroy)(made.0) };
        }
        Ok(())
    })
}

const NO_MEMORY: Failure = Failure::new(OUT_OF_HOST_MEMORY, "the provider has no memory left");

/// The pool, for whoever may use it.
fn usable(scalable: &Scalable) -> Outcome<Opaque> {
    scalable.whose.check_not_frozen()?;
    scalable.pool()
}

/// Allocates, and turns a failure into NULL and the thread's last error.
fn allocation(
    state: State,
    size: Option<usize>,
    allocate: impl FnOnce(&Scalable, Opaque) -> Outcome<*mut c_void>,
) -> *mut c_void {
    call_with("scalable", null_mut(), || {
        let scalable = of(state)?;
        // What the provider says while the library asks it is remembered by `get_memory`.
        last_error::forget(Kind::Scalable);
        let too_much = Failure::new(OUT_OF_HOST_MEMORY, "more bytes than an address space has");
        let size = size.filter(|size| isize::try_from(*size).is_ok());
        let block = size.ok_or(too_much).and_then(|_| allocate(scalable, usable(scalable)?));
        match block {
            Ok(block) if block.is_null() && last_error::last(Kind::Scalable) == SUCCESS => {
                Ok(last_error::failed(Kind::Scalable, &NO_MEMORY))
            }
            Ok(block) => Ok(block),
            Err(failure) => Ok(last_error::failed(Kind::Scalable, &failure)),
        }
    })
}

extern "C" fn malloc(state: State, size: usize) -> *mut c_void {
    // SAFETY: a function of the library with its pool; and so below. Blocks are C's to give.
    allocation(state, Some(size), |scalable, pool| Ok(unsafe { (scalable.tbb.malloc)(pool, size) }))
}

extern "C" fn calloc(state: State, count: usize, size: usize) -> *mut c_void {
    let bytes = count.checked_mul(size);
    let block = allocation(state, bytes, |scalable, pool| {
        // SAFETY: as above.
        Ok(unsafe { (scalable.tbb.malloc)(pool, bytes.unwrap_or(0)) })
    });
    if !block.is_null() {
        // SAFETY: a fresh block of that size, in memory that the library writes to itself.
        unsafe { block.cast::<u8>().write_bytes(0, bytes.unwrap_or(0)) };
    }
    block
}

extern "C" fn realloc(state: State, block: *mut c_void, size: usize) -> *mut c_void {
    if size == 0 && !block.is_null() {
        free(state, block);
        return null_mut();
    }
    allocation(state, Some(size), |scalable, pool| {
        if !block.is_null() {
            scalable.whose.check(block)?;
        }
        // SAFETY: as above.
        Ok(unsafe { (scalable.tbb.realloc)(pool, block, size) })
    })
}

extern "C" fn aligned_malloc(state: State, size: usize, align: usize) -> *mut c_void {
    allocation(state, Some(size), |scalable, pool| {
        if !align.is_power_of_two() {
            return Err(umf_core::Error::BadAlignment { align }.into());
        }
        // SAFETY: as above.
        Ok(unsafe { (scalable.tbb.aligned_malloc)(pool, size, align) })
    })
}

extern "C" fn malloc_usable_size(state: State, block: *const c_void, size: *mut usize) -> Code {
    call("malloc_usable_size", || {
        let (scalable, size) = (of(state)?, Out::from_ptr(size).check()?);
        if block.is_null() {
            return size.set(0);
        }
        scalable.whose.check(block)?;
        // SAFETY: as above.
        size.set(unsafe { (scalable.tbb.size)(scalable.pool()?, block.cast_mut()) })
    })
}

extern "C" fn free(state: State, block: *mut c_void) -> Code {
    call("free", || {
        let scalable = of(state)?;
        if block.is_null() {
            return Ok(());
        }
        scalable.whose.check(block)?;
        // SAFETY: as above.
        if unsafe { (scalable.tbb.free)(scalable.pool()?, block) } {
            return Ok(());
        }
        Err(Failure::argument("the block is not one of this pool"))
    })
}

extern "C" fn get_last_allocation_error(_: State) -> Code {
    last_error::last(Kind::Scalable)
}

extern "C" fn get_name(state: State, name: *mut *const c_char) -> Code {
    call("get_name", || {
        let name = Out::from_ptr(name).check()?;
        match of(state) {
            Ok(scalable) => name.set(scalable.name.as_ptr()),
            Err(_) => name.set(c"scalable".as_ptr()),
        }
    })
}

impl Answers for Scalable {
    fn behind<'a>(state: State) -> Outcome<&'a Self> {
        of(state)
    }

    fn answer(&self, asked: &Asked<'_>) -> Outcome<()> {
        if asked.path() == "post_initialize" && asked.runs() {
            return self.pool().map(|_| ());
        }
        if !matches!(asked.path(), "params.granularity" | "params.keep_all_memory") {
            return Err(no_such_path());
        }
        if asked.query() == Query::Write && self.pool.get().is_some() {
            return Err(Failure::unsupported(
                "a pool's settings cannot be changed once it is made; set a default",
            ));
        }
        let params = &mut *self.params.lock();
        if asked.path() == "params.granularity" {
            asked.access_size(&mut params.0)
        } else {
            asked.access_bool(&mut params.1)
        }
    }
}
