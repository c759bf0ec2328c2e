//! `umf/pools/pool_proxy.h`: forwards each request to the provider.

use core::ffi::{CStr, c_void};
use std::sync::Arc;

use umf_pool_proxy::{ProxyPool, ProxySettings};
use umf_provider_plugin::table::State;

use super::table::{self, TablePool, enter, functions, start};
use crate::boundary::{Code, Failure, Handle, Outcome};
use crate::ctl::CtlTree;
use crate::last_error::PoolKind;
use crate::pool::{Functions, PoolTable};
use crate::provider::Provider;

struct Proxy(Arc<ProxyPool>);

static TABLE: PoolTable =
    PoolTable::of(Functions { ext_ctl: None, ext_trim_memory: None, ..functions::<Proxy>(initialize) });

#[unsafe(no_mangle)]
extern "C" fn umfProxyPoolOps() -> *const PoolTable {
    &raw const TABLE
}

extern "C" fn initialize(provider: Handle<Provider>, _params: *const c_void, state: *mut State) -> Code {
    start(provider, state, |provider| {
        let pool = ProxyPool::with_settings(provider.core(), ProxySettings::default())?;
        enter(&pool, provider);
        Ok(Proxy(pool))
    })
}

const NOT_HERE: Failure = Failure::unsupported("the proxy pool allocates and frees, and nothing else");

impl TablePool for Proxy {
    const KIND: PoolKind = PoolKind::Proxy;
    const NAME: &'static CStr = c"proxy";
    const ALIGN: usize = 1;

    fn aligned_malloc(&self, size: usize, align: usize) -> Outcome<*mut c_void> {
        table::allocate(&*self.0, size, align)
    }

    fn free(&self, block: *mut c_void) -> Outcome<()> {
        table::free_block(&*self.0, block)
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
