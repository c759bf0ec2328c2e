//! [`Pool`]: the target of a `umf_memory_pool_handle_t`.

use core::ffi::{CStr, c_char, c_void};
use core::sync::atomic::{AtomicI64, AtomicPtr, Ordering};

use umf_core::Pool as _;
use umf_ipc::Importer;
use umf_pool_slab::SlabPool;
use umf_provider_plugin::table::State;
use umf_sync::thread;

use super::table::{self, Functions, PoolTable};
use crate::boundary::{
    Code, Failure, Handle, INVALID_ARGUMENT, INVALID_CTL_PATH, NOT_SUPPORTED, Outcome, SUCCESS,
};
use crate::ctl::{self, registry};
use crate::memory::{OwnImporters, close_all, owners};
use crate::pools::{disjoint, preloaded};
use crate::provider::Provider;

/// `UMF_POOL_CREATE_FLAG_OWN_PROVIDER`.
const OWN_PROVIDER: u32 = 1;
/// `UMF_POOL_CREATE_FLAG_DISABLE_TRACKING`.
const DISABLE_TRACKING: u32 = 2;

/// Magic number of a live pool: "umf pool".
const LIVE_MAGIC: u64 = 0x756d_6620_706f_6f6c;

/// A pool: a table of functions and the state that they get.
#[repr(C, align(64))]
pub(crate) struct Pool {
    /// The slab pool behind a plain disjoint pool; null for all other pools. Fast paths only read
    /// this cache line, which no thread writes.
    pub(super) slab: *const SlabPool,
    /// The main one of [`Pool::importers`], once it was needed. Null before, and during destruction.
    importer: AtomicPtr<Importer>,
    magic: u64,
    pub(crate) functions: Functions,
    pub(crate) state: State,
    flags: u32,
    provider: Handle<Provider>,
    tracking: Option<Box<Provider>>,
    pub(super) tag: AtomicPtr<c_void>,
    pub(super) live: BlockCounter,
    /// Dropped after the openings are closed, which borrow them.
    importers: OwnImporters,
}

// SAFETY: UMF requires that the functions of a pool are thread-safe.
unsafe impl Send for Pool {}
// SAFETY: UMF requires that the functions of a pool are thread-safe.
unsafe impl Sync for Pool {}

impl Pool {
    pub(crate) fn create(
        table: *const PoolTable,
        provider: Handle<Provider>,
        params: *const c_void,
        flags: u32,
    ) -> Outcome<Handle<Self>> {
        let functions = table::read(table)?;
        let given = provider.get()?;
        if flags & !(OWN_PROVIDER | DISABLE_TRACKING) != 0 {
            return Err(Failure::argument("a flag of a pool is none of those of umf_pool_create_flag_t"));
        }
        let tracking = if flags & DISABLE_TRACKING == 0 { Some(given.tracked()?) } else { None };
        let pool = Handle::new(Self {
            slab: core::ptr::null(),
            importer: AtomicPtr::new(core::ptr::null_mut()),
            magic: LIVE_MAGIC,
            functions,
            state: core::ptr::null_mut(),
            flags,
            provider,
            tracking,
            tag: AtomicPtr::new(core::ptr::null_mut()),
            live: BlockCounter::new(),
            importers: OwnImporters::default(),
        });
        if let Some(tracking) = &pool.get()?.tracking {
            tracking.owner().into_iter().for_each(|owner| owners::set(owner, pool.to_ptr()));
            tracking.set_pool(pool.to_ptr());
        }
        let started = Self::start(pool, params);
        if let Err(failure) = started {
            // After an error the program keeps its provider.
            Self::dismantle(pool);
            return Err(failure);
        }
        Ok(pool)
    }

    fn start(handle: Handle<Self>, params: *const c_void) -> Outcome<()> {
        let pool = handle.get_mut()?;
        let provider = match pool.tracking.as_mut() {
            Some(tracking) => Handle::from_ptr(core::ptr::from_mut(&mut **tracking)),
            None => pool.provider,
        };
        let mut state = core::ptr::null_mut();
        // SAFETY: a function of the table, with the parameters that C passed for it.
        let code = unsafe { (pool.functions.initialize)(provider, params, &raw mut state) };
        if code != SUCCESS {
            // Not initialised, so not finalised either.
            pool.magic = 0;
            return Err(Failure::foreign(code));
        }
        pool.state = state;
        let name = pool.name()?;
        registry::apply_defaults(registry::Kind::Pool, name, |source, path, argument, size| {
            pool.control(source, path, argument, size, 1)
        });
        match pool.control(1, c"post_initialize", core::ptr::null_mut(), 0, 2) {
            SUCCESS | INVALID_CTL_PATH | NOT_SUPPORTED => {}
            code => return Err(Failure::foreign(code)),
        }
        pool.cache_slab_pool();
        registry::register(registry::Kind::Pool, name, handle.to_ptr().expose_provenance());
        Ok(())
    }

    /// Caches the slab pool of a plain disjoint pool, for the fast paths.
    fn cache_slab_pool(&mut self) {
        if self.functions.have_states_of(&disjoint::FUNCTIONS)
            && let Ok(disjoint) = ctl::object_of::<disjoint::Disjoint>(self.state)
            && disjoint.is_plain()
            && let Ok(slab) = disjoint.slab()
        {
            self.slab = slab;
        }
    }

    /// Calls the pool's `ext_ctl` without variable arguments.
    fn control(&self, source: i32, path: &CStr, argument: *mut c_void, size: usize, query: i32) -> Code {
        match self.functions.ext_ctl {
            Some(control) => ctl::forward_none(control, self.state, source, path, argument, size, query),
            None => INVALID_CTL_PATH,
        }
    }

    pub(crate) fn destroy(handle: Handle<Self>) -> Outcome<()> {
        handle.get()?.check_is_pool()?;
        if preloaded::is_pool(handle.to_ptr()) {
            return Err(Failure::argument("the pool of libumf_proxy.so lives as long as the process"));
        }
        registry::unregister(registry::Kind::Pool, handle.to_ptr().addr());
        let owned = {
            let pool = handle.get()?;
            (pool.flags & OWN_PROVIDER != 0).then_some(pool.provider)
        };
        let code = Self::dismantle(handle);
        umf_runtime::deferred::poll();
        let provider = owned.map_or(Ok(None), Handle::take)?;
        let provider_code = provider.map_or(SUCCESS, |provider| Provider::destroy(&provider));
        match (code, provider_code) {
            (SUCCESS, SUCCESS) => Ok(()),
            (SUCCESS, code) | (code, _) => Err(Failure::foreign(code)),
        }
    }

    /// Destroys everything but the program's provider.
    fn dismantle(handle: Handle<Self>) -> Code {
        let Ok(pool) = handle.get_mut() else { return INVALID_ARGUMENT };
        pool.importer.store(core::ptr::null_mut(), Ordering::Relaxed);
        if pool.importers.known_main().is_some() {
            close_all(pool.opening_owner());
        }
        // Unmaps what is cached while the provider can.
        pool.importers = OwnImporters::default();
        let code = if pool.magic == LIVE_MAGIC {
            // SAFETY: a function of the table; a pool is destroyed once.
            unsafe { (pool.functions.finalize)(pool.state) }
        } else {
            SUCCESS
        };
        pool.magic = 0;
        // Disables the fast paths, in case C uses the handle again.
        pool.slab = core::ptr::null();
        pool.tracking = None;
        owners::unregister(handle.to_ptr());
        drop(handle.take());
        code
    }

    /// Checks that this is a live pool. C has no separate type for IPC handlers.
    pub(crate) const fn check_is_pool(&self) -> Outcome<()> {
        if self.magic == LIVE_MAGIC {
            Ok(())
        } else {
            Err(Failure::argument("that is no handle of a live pool"))
        }
    }

    pub(crate) const fn check_tracked(&self) -> Outcome<()> {
        if self.flags & DISABLE_TRACKING == 0 {
            return Ok(());
        }
        Err(Failure::argument("the pool was made with UMF_POOL_CREATE_FLAG_DISABLE_TRACKING"))
    }

    /// Checks that its memory can be exported.
    pub(crate) fn check_ipc(&self) -> Outcome<()> {
        self.check_tracked()?;
        self.provider()?.check_ipc()
    }

    /// Returns the provider that the program passed.
    pub(crate) fn provider<'a>(&self) -> Outcome<&'a Provider> {
        self.provider.get()
    }

    pub(super) const fn provider_handle(&self) -> Handle<Provider> {
        self.provider
    }

    pub(crate) const fn importers(&self) -> &OwnImporters {
        &self.importers
    }

    /// Makes the main importer known to the fast paths.
    pub(crate) fn keep_importer(&self) {
        let main = self.importers.known_main().map_or(core::ptr::null(), core::ptr::from_ref);
        self.importer.store(main.cast_mut(), Ordering::Release);
    }

    /// Returns the main importer if the pool is live and [`Pool::keep_importer`] was called before.
    #[inline(always)]
    pub(crate) fn known_importer(&self) -> Option<&Importer> {
        if self.magic != LIVE_MAGIC {
            return None;
        }
        // SAFETY: null, or one of the pool's importers, which are dropped with it.
        unsafe { self.importer.load(Ordering::Acquire).as_ref() }
    }

    /// Returns the id under which openings through this pool are recorded.
    #[inline(always)]
    pub(crate) fn opening_owner(&self) -> usize {
        core::ptr::from_ref(self).addr()
    }

    pub(super) fn name<'a>(&self) -> Outcome<&'a CStr> {
        let mut name: *const c_char = core::ptr::null();
        // SAFETY: a function of the table, with a place for its result.
        let code = unsafe { (self.functions.get_name)(self.state, &raw mut name) };
        if code != SUCCESS {
            return Err(Failure::foreign(code));
        }
        if name.is_null() {
            return Ok(c"");
        }
        // SAFETY: UMF requires that a name ends with a NUL and lives as long as the pool.
        Ok(unsafe { CStr::from_ptr(name) })
    }

    /// Returns the slab pool for the fast paths.
    #[inline]
    pub(super) fn slab<'a>(&self) -> Option<&'a SlabPool> {
        // SAFETY: null, or the slab pool that the state owns.
        unsafe { self.slab.as_ref() }
    }

    /// Returns the number of live blocks.
    pub(crate) fn live_blocks(&self) -> usize {
        match self.slab() {
            Some(slab) => usize::try_from(slab.statistics().live_blocks).unwrap_or(usize::MAX),
            None => self.live.sum(),
        }
    }
}

const STRIPES: usize = 32;

#[repr(align(128))]
struct CounterStripe(AtomicI64);

/// Counter of a foreign pool's live blocks, striped over threads.
pub(super) struct BlockCounter([CounterStripe; STRIPES]);

impl BlockCounter {
    const fn new() -> Self {
        Self([const { CounterStripe(AtomicI64::new(0)) }; STRIPES])
    }

    /// Adds to the stripe of the calling thread. A block may be freed by another thread, so only
    /// the sum is meaningful.
    pub(super) fn add(&self, blocks: i64) {
        let part = thread::current().map_or(0, thread::ThreadIndex::get) as usize % STRIPES;
        self.0[part].0.fetch_add(blocks, Ordering::Relaxed);
    }

    fn sum(&self) -> usize {
        let sum: i64 = self.0.iter().map(|part| part.0.load(Ordering::Relaxed)).sum();
        usize::try_from(sum).unwrap_or(0)
    }
}
