//! `umf/pools/pool_jemalloc.h`: jemalloc over any provider. Without the feature `jemalloc` it
//! behaves like the original built without jemalloc.

#[cfg(feature = "jemalloc")]
mod present {
    use core::ffi::{CStr, c_char, c_void};
    use std::ffi::CString;
    use std::sync::Arc;

    use umf_core::Error;
    use umf_pool_jemalloc::{JemallocPool, JemallocSettings};
    use umf_provider_plugin::table::State;

    use crate::boundary::{
        Code, Failure, Handle, INVALID_ARGUMENT, Out, Outcome, Text, call, settings_functions,
    };
    use crate::ctl::{CtlQuery, CtlTree, no_such_path};
    use crate::last_error::PoolKind;
    use crate::pool::PoolTable;
    use crate::pools::table::{self, TablePool, enter, functions, settings, start};
    use crate::provider::{Provider, short_name};

    /// The settings of a pool to be created.
    #[derive(Clone)]
    struct Params {
        /// Number of arenas; 0 lets the pool choose.
        arenas: usize,
        name: CString,
    }

    impl Default for Params {
        fn default() -> Self {
            Self { arenas: 0, name: c"jemalloc".to_owned() }
        }
    }

    settings_functions! {
        Params;
        create fn umfJemallocPoolParamsCreate() { Params::default() }
        destroy fn umfJemallocPoolParamsDestroy;

        fn umfJemallocPoolParamsSetNumArenas(params, arenas: usize) { params.arenas = arenas; }
        fn umfJemallocPoolParamsSetName(params, name: Text) { params.name = short_name(name.get()?); }
    }

    /// The state of a jemalloc pool.
    struct Jemalloc {
        pool: Arc<JemallocPool>,
        name: CString,
        /// Whether the memory is not known to be inaccessible for the CPU.
        is_host: bool,
    }

    static TABLE: PoolTable = PoolTable::of(functions::<Jemalloc>(initialize));

    #[unsafe(no_mangle)]
    extern "C" fn umfJemallocPoolOps() -> *const PoolTable {
        &raw const TABLE
    }

    extern "C" fn initialize(provider: Handle<Provider>, params: *const c_void, state: *mut State) -> Code {
        start(provider, state, |provider| {
            let params: Params = settings(params)?;
            // The program knows whether the CPU can access memory of its own provider.
            let is_host = !provider.is_out_of_reach();
            let settings = JemallocSettings::default()
                .name(params.name.to_string_lossy())
                .arenas(u32::try_from(params.arenas).unwrap_or(u32::MAX));
            let pool =
                JemallocPool::with_settings(provider.core(), settings).map_err(|error| match error {
                    // The code of the original for more arenas than jemalloc has.
                    Error::TooMany { .. } if params.arenas != 0 => {
                        Failure::from(error).with_code(INVALID_ARGUMENT)
                    }
                    error => error.into(),
                })?;
            enter(&pool, provider);
            Ok(Jemalloc { pool, name: params.name, is_host })
        })
    }

    impl TablePool for Jemalloc {
        const KIND: PoolKind = PoolKind::Jemalloc;
        const NAME: &'static CStr = c"jemalloc";
        /// Blocks are aligned to at least 16 bytes anyway.
        const ALIGN: usize = 1;

        fn name(&self) -> *const c_char {
            self.name.as_ptr()
        }

        /// Allocates at least one byte, as jemalloc does.
        fn aligned_malloc(&self, size: usize, align: usize) -> Outcome<*mut c_void> {
            table::allocate(&*self.pool, size.max(1), align)
        }

        fn free(&self, block: *mut c_void) -> Outcome<()> {
            table::free_block(&*self.pool, block)
        }

        fn pool(&self) -> Outcome<&dyn umf_core::Pool> {
            Ok(&*self.pool)
        }

        fn is_host(&self) -> bool {
            self.is_host
        }
    }

    impl CtlTree for Jemalloc {
        fn answer(&self, query: &CtlQuery<'_>) -> Outcome<()> {
            if query.path() == "post_initialize" && query.runs() { Ok(()) } else { Err(no_such_path()) }
        }
    }
}

/// No table, and functions that fail.
#[cfg(not(feature = "jemalloc"))]
mod absent {
    use crate::boundary::{Code, Failure, Handle, Out, Text, call};
    use crate::pool::PoolTable;

    /// Settings, which cannot be created.
    enum Params {}

    const ABSENT: Failure = Failure::unsupported("this library was built without jemalloc");

    #[unsafe(no_mangle)]
    extern "C" fn umfJemallocPoolOps() -> *const PoolTable {
        core::ptr::null()
    }

    #[unsafe(no_mangle)]
    extern "C" fn umfJemallocPoolParamsCreate(_: Out<Handle<Params>>) -> Code {
        call("umfJemallocPoolParamsCreate", || Err(ABSENT))
    }

    #[unsafe(no_mangle)]
    extern "C" fn umfJemallocPoolParamsDestroy(_: Handle<Params>) -> Code {
        call("umfJemallocPoolParamsDestroy", || Err(ABSENT))
    }

    #[unsafe(no_mangle)]
    extern "C" fn umfJemallocPoolParamsSetNumArenas(_: Handle<Params>, _: usize) -> Code {
        call("umfJemallocPoolParamsSetNumArenas", || Err(ABSENT))
    }

    #[unsafe(no_mangle)]
    extern "C" fn umfJemallocPoolParamsSetName(_: Handle<Params>, _: Text) -> Code {
        call("umfJemallocPoolParamsSetName", || Err(ABSENT))
    }
}
