//! `umf/pools/pool_jemalloc.h`: a pool for all sizes of memory of the host, as programs use jemalloc's. It is the slab pool.
//!
//! jemalloc itself is not used. Linked in, it would be a second allocator with its own build; and distributions build its shared
//! library so that it cannot be opened once a program runs (its thread-local storage is of the kind that is laid out at start).
//! What the interface promises of the pool does not tell one from the other.

use core::ffi::{c_char, c_void};
use std::ffi::CString;

use umf::plugin::ops::State;

use super::disjoint::{self, Disjoint};
use super::last_error::Kind;
use crate::boundary::{Code, Handle, Out, Text, call};
use crate::ctl::{Asked, no_such_path};
use crate::pool::{Functions, PoolTable};
use crate::provider::{Provider, short_name};

/// The settings of a pool to be.
struct Params {
    /// How many arenas threads are spread over. Threads have caches of their own here, whatever it says.
    arenas: usize,
    name: CString,
}

/// The smallest block, and what all are aligned to: what C wants of an allocator.
const SMALLEST: usize = 16;

static TABLE: PoolTable =
    PoolTable::of(&Functions { initialize, get_name, ctl: Some(control), ..disjoint::FUNCTIONS });

#[unsafe(no_mangle)]
extern "C" fn umfJemallocPoolOps() -> *const PoolTable {
    &raw const TABLE
}

impl Default for Params {
    fn default() -> Self {
        Self { arenas: 0, name: c"jemalloc".to_owned() }
    }
}

extern "C" fn initialize(provider: Handle<Provider>, params: *const c_void, state: *mut State) -> Code {
    call("initialize", || {
        let (provider, state) = (provider.get()?, Out::from_ptr(state).check()?);
        let params = Handle::<Params>::from_ptr(params.cast::<Params>().cast_mut());
        let defaults = Params::default();
        let params = params.known().unwrap_or(&defaults);
        tracing::debug!(arenas = params.arenas, "a jemalloc pool, which is a slab pool");
        let settings = disjoint::Params {
            name: params.name.clone(),
            min_bucket_size: Some(SMALLEST),
            ..disjoint::Params::default()
        };
        // jemalloc gives a block for 0 bytes.
        let pool = Disjoint::new(provider, settings, Kind::Jemalloc, 1)?;
        state.set(Box::into_raw(Box::new(pool)).cast())
    })
}

extern "C" fn get_name(state: State, name: *mut *const c_char) -> Code {
    call("get_name", || {
        let name = Out::from_ptr(name).check()?;
        name.set(disjoint::of(state).map_or(c"jemalloc".as_ptr(), Disjoint::name))
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
    call("ext_ctl", || {
        let pool = disjoint::of(state)?;
        let asked = Asked::new(source, name, argument, size, query, more)?;
        if asked.path() == "post_initialize" && asked.runs() {
            return pool.made().map(|_| ());
        }
        Err(no_such_path())
    })
}

#[unsafe(no_mangle)]
extern "C" fn umfJemallocPoolParamsCreate(params: Out<Handle<Params>>) -> Code {
    call("umfJemallocPoolParamsCreate", || params.check()?.set(Handle::new(Params::default())))
}

#[unsafe(no_mangle)]
extern "C" fn umfJemallocPoolParamsDestroy(params: Handle<Params>) -> Code {
    call("umfJemallocPoolParamsDestroy", || {
        drop(params.take()?);
        Ok(())
    })
}

#[unsafe(no_mangle)]
extern "C" fn umfJemallocPoolParamsSetNumArenas(params: Handle<Params>, arenas: usize) -> Code {
    call("umfJemallocPoolParamsSetNumArenas", || {
        params.get_mut()?.arenas = arenas;
        Ok(())
    })
}

#[unsafe(no_mangle)]
extern "C" fn umfJemallocPoolParamsSetName(params: Handle<Params>, name: Text) -> Code {
    call("umfJemallocPoolParamsSetName", || {
        let (params, name) = (params.get_mut()?, name.get()?);
        params.name = short_name(name);
        Ok(())
    })
}
