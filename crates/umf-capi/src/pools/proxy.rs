//! `umf/pools/pool_proxy.h`: forwards each request to the provider.

use core::ffi::{CStr, c_void};
use std::sync::Arc;

use umf_pool_proxy::{ProxyPool, ProxySettings};
use umf_provider_plugin::table::State;
use umf_sync::Lock;

use super::table::{self, TablePool, enter, functions, start};
use crate::boundary::{Code, Failure, Handle, Outcome};
use crate::ctl::CtlTree;
use crate::last_error::PoolKind;
use crate::pool::{Functions, PoolTable};
use crate::provider::Provider;

struct Proxy {
    pool: Arc<ProxyPool>,
    /// The pool's provider, which outlives it.
    provider: Handle<Provider>,
    /// What the provider allocated for 0 bytes: it is in no region.
    nothing: Lock<Vec<usize>>,
}

// SAFETY: the handle is of a provider, whose functions are thread-safe.
unsafe impl Send for Proxy {}
// SAFETY: as above.
unsafe impl Sync for Proxy {}

static TABLE: PoolTable =
    PoolTable::of(Functions { ext_ctl: None, ext_trim_memory: None, ..functions::<Proxy>(initialize) });

#[unsafe(no_mangle)]
extern "C" fn umfProxyPoolOps() -> *const PoolTable {
    &raw const TABLE
}

extern "C" fn initialize(handle: Handle<Provider>, _params: *const c_void, state: *mut State) -> Code {
    start(handle, state, |provider| {
        let pool = ProxyPool::with_settings(provider.core(), ProxySettings::default())?;
        enter(&pool, provider);
        Ok(Proxy { pool, provider: handle, nothing: Lock::new(Vec::new()) })
    })
}

const NOT_HERE: Failure = Failure::unsupported("the proxy pool allocates and frees, and nothing else");

impl TablePool for Proxy {
    const KIND: PoolKind = PoolKind::Proxy;
    const NAME: &'static CStr = c"proxy";
    const CLEARS_LAST_ERROR: bool = true;
    const ALIGN: usize = 1;

    fn aligned_malloc(&self, size: usize, align: usize) -> Outcome<*mut c_void> {
        if size != 0 {
            return table::allocate(&*self.pool, size, align);
        }
        let memory = self.provider.get()?.allocate_nothing(align)?;
        if !memory.is_null() {
            self.nothing.lock().push(memory.addr());
        }
        Ok(memory)
    }

    fn free(&self, block: *mut c_void) -> Outcome<()> {
        let mut nothing = self.nothing.lock();
        if let Some(place) = nothing.iter().position(|&known| known == block.addr()) {
            nothing.swap_remove(place);
            drop(nothing);
            return self.provider.get()?.free_nothing(block);
        }
        drop(nothing);
        table::free_block(&*self.pool, block)
    }

    fn free_null(&self) -> Outcome<()> {
        self.provider.get()?.free_nothing(core::ptr::null_mut())
    }

    fn calloc(&self, _: usize, _: usize) -> Outcome<*mut c_void> {
        Err(NOT_HERE)
    }

    fn realloc(&self, _: *mut c_void, _: usize) -> Outcome<*mut c_void> {
        Err(NOT_HERE)
    }

    fn usable_size(&self, _: *const c_void) -> Outcome<usize> {
        Err(NOT_HERE)
    }
}

impl CtlTree for Proxy {}
