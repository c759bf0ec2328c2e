//! The table of functions.

use core::ffi::{c_char, c_void};

use umf::plugin::ops::State;
use umf_core::{Error, Layout};
use umf_pool_slab::SlabSettings;

use super::params::Params;
use super::state::Disjoint;
use crate::boundary::{Code, Handle, Out, Outcome, call};
use crate::pool::{Functions, PoolTable};
use crate::pools::kept::{Kept, functions, give};
use crate::pools::last_error::Kind;
use crate::provider::Provider;

pub(crate) const FUNCTIONS: Functions = functions::<Disjoint>(initialize);

static TABLE: PoolTable = PoolTable::of(&FUNCTIONS);

#[unsafe(no_mangle)]
extern "C" fn umfDisjointPoolOps() -> *const PoolTable {
    &raw const TABLE
}

extern "C" fn initialize(provider: Handle<Provider>, params: *const c_void, state: *mut State) -> Code {
    call("initialize", || {
        let (provider, state) = (provider.get()?, Out::from_ptr(state).check()?);
        let params = Handle::<Params>::from_ptr(params.cast::<Params>().cast_mut());
        let params = if params.is_null() { Params::default() } else { params.get()?.clone() };
        give(state, Disjoint::new(provider, params)?)
    })
}

impl Kept for Disjoint {
    const KIND: Kind = Kind::Disjoint;
    const NAME: &'static core::ffi::CStr = c"disjoint";
    const ALIGN: usize = SlabSettings::SMALLEST_BLOCK;

    fn name(&self) -> *const c_char {
        self.name.as_ptr()
    }

    /// Nothing is asked for with 0 bytes, and nothing has failed.
    fn allocate(&self, size: usize, align: usize) -> Outcome<*mut c_void> {
        match Layout::new(size, align) {
            Err(Error::ZeroSize) => Ok(core::ptr::null_mut()),
            layout => self.allocate(layout?),
        }
    }

    fn free(&self, block: *mut c_void) -> Outcome<()> {
        self.free(block)
    }

    fn pool(&self) -> Outcome<&dyn umf_core::Pool> {
        Ok(self.slab()?)
    }

    fn is_host(&self) -> bool {
        self.core.memory_kind().is_host_accessible()
    }
}
