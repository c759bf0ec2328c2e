//! The table of functions.

use core::ffi::{CStr, c_char, c_void};
use std::ffi::CString;
use std::sync::Arc;

use umf::plugin::ops::State;
use umf_core::{Address, Layout, Pool as _};
use umf_pool_jemalloc::{JemallocPool, JemallocSettings};

use super::params::Params;
use crate::boundary::{Code, Failure, Handle, Out, Outcome, call};
use crate::ctl::{Answers, Asked, no_such_path};
use crate::memory::owners;
use crate::pool::PoolTable;
use crate::pools::kept::{Kept, behind, functions, give};
use crate::pools::last_error::Kind;
use crate::provider::{Provider, Tracking, explain};

/// The state.
struct Jemalloc {
    pool: Arc<JemallocPool>,
    name: CString,
    /// Whether the CPU may read and write the memory, as far as is known.
    is_host: bool,
}

static TABLE: PoolTable = PoolTable::of(&functions::<Jemalloc>(initialize));

#[unsafe(no_mangle)]
extern "C" fn umfJemallocPoolOps() -> *const PoolTable {
    &raw const TABLE
}

extern "C" fn initialize(provider: Handle<Provider>, params: *const c_void, state: *mut State) -> Code {
    call("initialize", || {
        let (provider, state) = (provider.get()?, Out::from_ptr(state).check()?);
        let params = Handle::<Params>::from_ptr(params.cast::<Params>().cast_mut());
        let defaults = Params::default();
        let params = if params.is_null() { &defaults } else { params.get()? };
        let tracking = Tracking::of(provider);
        let base = tracking.map_or(Ok(provider), Tracking::base)?;
        let core = base.core();
        // (Of memory of the program's own provider whoever clears or copies it knows.)
        let is_host = !base.is_out_of_reach();
        let settings = JemallocSettings::default()
            .name(params.name.to_string_lossy())
            .arenas(u32::try_from(params.arenas).unwrap_or(u32::MAX));
        let pool = JemallocPool::with_settings(core, settings)?;
        if let Some(handle) = tracking.and_then(Tracking::pool) {
            owners::enter(Arc::as_ptr(&pool).cast(), handle);
        }
        give(state, Jemalloc { pool, name: params.name.clone(), is_host })
    })
}

impl Kept for Jemalloc {
    const KIND: Kind = Kind::Jemalloc;
    const NAME: &'static CStr = c"jemalloc";
    /// (Its blocks are aligned to 16 bytes at least.)
    const ALIGN: usize = 1;

    fn name(&self) -> *const c_char {
        self.name.as_ptr()
    }

    /// jemalloc gives a block for 0 bytes, too.
    fn allocate(&self, size: usize, align: usize) -> Outcome<*mut c_void> {
        let address = self.pool.allocate(Layout::new(size.max(1), align)?).map_err(explain)?;
        let outside = Failure::argument("the memory lies in no address space of this process");
        address.as_ptr().map(<*mut u8>::cast).ok_or(outside)
    }

    fn free(&self, block: *mut c_void) -> Outcome<()> {
        // SAFETY: the block is C's to give; one that is none is an error.
        unsafe { self.pool.free(Address::from_ptr(block.cast::<u8>())) }.map_err(explain)
    }

    fn pool(&self) -> Outcome<&dyn umf_core::Pool> {
        Ok(&*self.pool)
    }

    fn is_host(&self) -> bool {
        self.is_host
    }
}

impl Answers for Jemalloc {
    fn behind<'a>(state: State) -> Outcome<&'a Self> {
        behind(state)
    }

    fn answer(&self, asked: &Asked<'_>) -> Outcome<()> {
        if asked.path() == "post_initialize" && asked.runs() { Ok(()) } else { Err(no_such_path()) }
    }
}
