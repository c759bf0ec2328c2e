//! [`Pool`]: what a `umf_memory_pool_handle_t` points to.

use core::ffi::{CStr, c_char, c_void};
use core::sync::atomic::{AtomicBool, AtomicI64, AtomicPtr, Ordering};

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
use crate::memory::{close_all, owners};
use crate::pools::{disjoint, preloaded};
use crate::provider::Provider;

/// `UMF_POOL_CREATE_FLAG_OWN_PROVIDER`.
const OWN_PROVIDER: u32 = 1;
/// `UMF_POOL_CREATE_FLAG_DISABLE_TRACKING`.
const DISABLE_TRACKING: u32 = 2;

/// What stands in a live pool, and nowhere by accident.
const MARK: u64 = 0x756d_6620_706f_6f6c;

/// A pool with its functions and state.
#[repr(C, align(64))]
pub(crate) struct Pool {
    /// The slab pool behind it, if it is one of ours, and nothing is to be done beside allocating;
    /// otherwise null. What the common paths read lies in one line, which no thread writes.
    pub(super) slab: *const SlabPool,
    /// What opens handles of such memory, once it was needed; null before, and when the pool goes.
    importer: AtomicPtr<Importer>,
    /// Whether handles were opened through it.
    has_opened: AtomicBool,
    mark: u64,
    pub(crate) functions: Functions,
    pub(crate) state: State,
    flags: u32,
    provider: Handle<Provider>,
    tracking: Option<Box<Provider>>,
    pub(super) tag: AtomicPtr<c_void>,
    pub(super) live: Live,
}

// SAFETY: UMF requires of every pool that its operations may be called by several threads at once.
unsafe impl Send for Pool {}
// SAFETY: as above.
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
            has_opened: AtomicBool::new(false),
            mark: MARK,
            functions,
            state: core::ptr::null_mut(),
            flags,
            provider,
            tracking,
            tag: AtomicPtr::new(core::ptr::null_mut()),
            live: Live::new(),
        });
        if let Some(tracking) = &pool.get()?.tracking {
            tracking.owner().into_iter().for_each(|owner| owners::set(owner, pool.to_ptr()));
            tracking.set_pool(pool.to_ptr());
        }
        let started = Self::start(pool, params);
        if let Err(failure) = started {
            // The provider stays the program's after an error.
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
        // SAFETY: a function of the table, with what C gave for it.
        let code = unsafe { (pool.functions.initialize)(provider, params, &raw mut state) };
        if code != SUCCESS {
            // Nothing to finalise.
            pool.mark = 0;
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
        pool.take_short_cut();
        registry::enter(registry::Kind::Pool, name, handle.to_ptr().expose_provenance());
        Ok(())
    }

    /// Finds the slab pool of a disjoint pool.
    fn take_short_cut(&mut self) {
        if self.functions.have_states_of(&disjoint::FUNCTIONS)
            && let Ok(disjoint) = ctl::object_of::<disjoint::Disjoint>(self.state)
            && disjoint.is_plain()
            && let Ok(slab) = disjoint.slab()
        {
            self.slab = slab;
        }
    }

    /// Asks the pool's control tree, without arguments behind the path.
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
        registry::leave(registry::Kind::Pool, handle.to_ptr().addr());
        let owned = {
            let pool = handle.get()?;
            (pool.flags & OWN_PROVIDER != 0).then_some(pool.provider)
        };
        let code = Self::dismantle(handle);
        let provider = owned.map_or(Ok(None), Handle::take)?;
        let provider_code = provider.map_or(SUCCESS, |provider| Provider::destroy(&provider));
        match (code, provider_code) {
            (SUCCESS, SUCCESS) => Ok(()),
            (SUCCESS, code) | (code, _) => Err(Failure::foreign(code)),
        }
    }

    /// Everything but the program's provider.
    fn dismantle(handle: Handle<Self>) -> Code {
        let Ok(pool) = handle.get_mut() else { return INVALID_ARGUMENT };
        pool.importer.store(core::ptr::null_mut(), Ordering::Relaxed);
        if pool.has_opened.load(Ordering::Relaxed) {
            close_all(pool.tag_of_openings());
            // What is cached goes with the pool, as in the original.
            if let Ok(importer) = pool.provider().and_then(|provider| provider.importer()) {
                importer.evict_idle();
            }
        }
        let code = if pool.mark == MARK {
            // SAFETY: a function of the table; a pool is destroyed once.
            unsafe { (pool.functions.finalize)(pool.state) }
        } else {
            SUCCESS
        };
        pool.mark = 0;
        // What the common paths look at, should C go on with the handle.
        pool.slab = core::ptr::null();
        pool.tracking = None;
        owners::leave(handle.to_ptr());
        drop(handle.take());
        code
    }

    /// Whether the handle is one of a pool: handlers are, and C has no type for them.
    pub(crate) const fn check_is_pool(&self) -> Outcome<()> {
        if self.mark == MARK { Ok(()) } else { Err(Failure::argument("that is no handle of a live pool")) }
    }

    pub(crate) const fn check_tracked(&self) -> Outcome<()> {
        if self.flags & DISABLE_TRACKING == 0 {
            return Ok(());
        }
        Err(Failure::argument("the pool was made with UMF_POOL_CREATE_FLAG_DISABLE_TRACKING"))
    }

    /// Whether its memory has handles for other processes.
    pub(crate) fn check_ipc(&self) -> Outcome<()> {
        self.check_tracked()?;
        let provider = self.provider()?;
        let none = Failure::argument("the pool's provider has no IPC handles: private memory, for one");
        provider.core().export().map(|_| ()).ok_or(none)
    }

    /// The provider that the program gave.
    pub(crate) fn provider<'a>(&self) -> Outcome<&'a Provider> {
        self.provider.get()
    }

    pub(super) const fn provider_handle(&self) -> Handle<Provider> {
        self.provider
    }

    /// What opens handles of such memory as its provider's.
    pub(crate) fn importer(&self) -> Outcome<&Importer> {
        let importer = self.provider()?.importer()?;
        self.importer.store(core::ptr::from_ref(importer).cast_mut(), Ordering::Release);
        Ok(importer)
    }

    /// The same, of a live pool of which it was asked before.
    #[inline(always)]
    pub(crate) fn known_importer(&self) -> Option<&Importer> {
        if self.mark != MARK {
            return None;
        }
        // SAFETY: null, or the importer of the provider, which stays as long as that, and so longer
        // than the pool.
        unsafe { self.importer.load(Ordering::Acquire).as_ref() }
    }

    /// Under which openings through this pool are kept.
    #[inline(always)]
    pub(crate) fn opens(&self) -> usize {
        if !self.has_opened.load(Ordering::Relaxed) {
            self.has_opened.store(true, Ordering::Relaxed);
        }
        self.tag_of_openings()
    }

    fn tag_of_openings(&self) -> usize {
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
        // SAFETY: UMF says that a name ends with a NUL and lives as long as the pool.
        Ok(unsafe { CStr::from_ptr(name) })
    }

    /// The slab pool to use directly.
    #[inline]
    pub(super) fn slab<'a>(&self) -> Option<&'a SlabPool> {
        // SAFETY: null, or the slab pool that the state keeps.
        unsafe { self.slab.as_ref() }
    }

    /// Blocks that are handed out.
    pub(crate) fn live_blocks(&self) -> usize {
        match self.slab() {
            Some(slab) => usize::try_from(slab.statistics().live_blocks).unwrap_or(usize::MAX),
            None => self.live.sum(),
        }
    }
}

const PARTS: usize = 32;

#[repr(align(128))]
struct Part(AtomicI64);

/// How many blocks of a foreign pool are handed out, counted where no two threads meet.
pub(super) struct Live([Part; PARTS]);

impl Live {
    const fn new() -> Self {
        Self([const { Part(AtomicI64::new(0)) }; PARTS])
    }

    /// Adds to the part of the calling thread. A block may be freed in another thread: only the sum
    /// counts.
    pub(super) fn add(&self, blocks: i64) {
        let part = thread::current().map_or(0, thread::ThreadIndex::get) as usize % PARTS;
        self.0[part].0.fetch_add(blocks, Ordering::Relaxed);
    }

    fn sum(&self) -> usize {
        let sum: i64 = self.0.iter().map(|part| part.0.load(Ordering::Relaxed)).sum();
        usize::try_from(sum).unwrap_or(0)
    }
}
