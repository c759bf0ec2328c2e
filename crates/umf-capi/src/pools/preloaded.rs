//! The heap of `libumf_proxy.so`, where that is preloaded: its memory belongs to a pool that this
//! library makes for it.
//!
//! The two libraries are two copies of umf. The heap stays that one's business: it finds its blocks
//! and exports them. Here are a pool handle and a provider handle that stand for it, made when
//! somebody first asks for one of its blocks, and never destroyed.

use core::ffi::{CStr, c_void};
use core::sync::atomic::{AtomicPtr, AtomicUsize, Ordering};
use std::sync::Arc;

use umf_core::{Address, Error, Visibility};
use umf_ipc::{Exchange, ExporterSettings, LimitPolicy, Mode, Ptracer};
use umf_provider_host::{HostImport, HostProvider};
use umf_provider_plugin::table::{State, Table};
use umf_runtime::preloaded_heap::{
    Block, Exports, HANDLE, Heap, LIMIT, NOT_FOUND, NOT_SHARED, OK, PRIVATE, SHARED_SHM,
};

use super::table::{TablePool, functions, start as start_pool};
use crate::boundary::{
    Code, Failure, Handle, INVALID_ALIGNMENT, OUT_OF_HOST_MEMORY, OUT_OF_RESOURCES, Outcome, UNKNOWN,
};
use crate::ctl::Answers;
use crate::last_error::{Flavour, PoolKind};
use crate::pool::{Functions, Pool, PoolTable};
use crate::provider::{Counted, Protection, Provider, Start, start, table};

/// The table of the heap's functions: not looked for yet, not there, or where it is.
static HEAP: AtomicUsize = AtomicUsize::new(UNKNOWN_YET);
const UNKNOWN_YET: usize = 0;
const NONE: usize = 1;

/// The pool that stands for the heap; null until it is asked for.
static POOL: AtomicPtr<Pool> = AtomicPtr::new(core::ptr::null_mut());

/// The heap, if the process has one of that library.
fn heap() -> Option<&'static Heap> {
    let known = match HEAP.load(Ordering::Acquire) {
        // What is preloaded was there before this library.
        UNKNOWN_YET => {
            // SAFETY: a C string; what is looked for are all libraries that the program was started
            // with.
            let found =
                unsafe { libc::dlsym(libc::RTLD_DEFAULT, umf_runtime::preloaded_heap::NAME.as_ptr()) };
            let found = if found.is_null() { NONE } else { found.expose_provenance() };
            HEAP.store(found, Ordering::Release);
            found
        }
        known => known,
    };
    // SAFETY: what has that name, with its version, is such a table, in a library that is never
    // unloaded.
    (known != NONE).then(|| unsafe { &*core::ptr::with_exposed_provenance::<Heap>(known) })
}

/// Where the live block of the heap around an address begins, and its size.
pub(crate) fn block_at(address: Address) -> Option<(usize, usize)> {
    block(heap()?, address).map(|block| (block.base, block.size))
}

/// The live block of the heap around an address.
fn block(heap: &Heap, address: Address) -> Option<Block> {
    let mut block = Block { base: 0, size: 0 };
    let address = address.as_ptr()?;
    // SAFETY: a function of the table, with a place for its result.
    (unsafe { (heap.find)(address.cast(), &raw mut block) } == OK).then_some(block)
}

/// The pool that stands for the heap, if the address lies in a block of that.
pub(crate) fn find(address: Address) -> Option<Handle<Pool>> {
    block(heap()?, address)?;
    pool().inspect_err(|failure| tracing::error!("the heap of libumf_proxy.so has no pool: {failure}")).ok()
}

/// Whether a pool is the one that stands for the heap, and so never goes.
pub(crate) fn is_pool(pool: *const Pool) -> bool {
    core::ptr::eq(POOL.load(Ordering::Acquire), pool)
}

fn end(provider: Handle<Provider>) {
    if let Ok(Some(provider)) = provider.take() {
        Provider::destroy(&provider);
    }
}

fn pool() -> Outcome<Handle<Pool>> {
    let known = POOL.load(Ordering::Acquire);
    if !known.is_null() {
        return Ok(Handle::from_ptr(known));
    }
    crate::base::ensure();
    let provider =
        Handle::from_ptr(Box::into_raw(Provider::create((&raw const PROVIDER).cast(), core::ptr::null())?));
    let made = Pool::create(&raw const TABLE, provider, core::ptr::null(), 0).inspect_err(|_| {
        end(provider);
    })?;
    match POOL.compare_exchange(core::ptr::null_mut(), made.to_ptr(), Ordering::AcqRel, Ordering::Acquire) {
        Ok(_) => Ok(made),
        Err(first) => {
            Pool::destroy(made)?;
            end(provider);
            Ok(Handle::from_ptr(first))
        }
    }
}

/// Exports the block around an address, if it is one of the heap: the bytes of its handle, and how
/// far into the block the address lies.
pub(crate) fn export(address: Address) -> Option<Outcome<([u8; HANDLE], u64)>> {
    let heap = heap()?;
    block(heap, address)?;
    Some(export_from(heap, address))
}

fn export_from(heap: &Heap, address: Address) -> Outcome<([u8; HANDLE], u64)> {
    let settings = exports(umf::exporter()?.settings());
    let (mut handle, mut block) = ([0; HANDLE], Block { base: 0, size: 0 });
    let place = address.as_ptr().ok_or(GONE)?;
    // SAFETY: a function of the table, with places for its results.
    match unsafe { (heap.export)(place.cast(), &raw const settings, &raw mut handle, &raw mut block) } {
        OK => {}
        NOT_FOUND => return Err(GONE),
        NOT_SHARED => {
            return Err(Failure::argument(
                "memory of malloc is private; set UMF_PROXY to page.disposition=shared-fd or shared-shm",
            ));
        }
        LIMIT => {
            return Err(Failure::new(OUT_OF_RESOURCES, "there are too many exports of memory of malloc"));
        }
        _ => return Err(Failure::new(UNKNOWN, "libumf_proxy.so could not export memory of malloc")),
    }
    let offset = place.addr().checked_sub(block.base).filter(|&offset| offset < block.size).ok_or(GONE)?;
    Ok((handle, offset as u64))
}

const GONE: Failure = Failure::argument("the memory was freed meanwhile");

/// The process's settings, as the heap is told of them.
fn exports(settings: &ExporterSettings) -> Exports {
    let mut exchange = [0; 4];
    if let Exchange::Order(modes) = &settings.exchange {
        for (place, mode) in exchange.iter_mut().zip(modes) {
            *place = match mode {
                Mode::Procfs => 2,
                Mode::Socket => 3,
                _ => 1,
            };
        }
    }
    Exports {
        exchange,
        limit_is_hard: u32::from(settings.limit == LimitPolicy::Hard),
        ptracer: match settings.ptracer {
            Ptracer::None => 0,
            Ptracer::Any => -1,
            Ptracer::Process(process) => i64::from(process),
        },
        max_created_handles: settings.max_created_handles,
    }
}

static PROVIDER: Table = table(initialize_provider);

/// What it allocates itself is other memory, of the same kind.
extern "C" fn initialize_provider(_: *const c_void, state: *mut State) -> Code {
    start("initialize", state, || {
        let kind = (heap().ok_or(NO_HEAP)?.kind)();
        let visibility = if kind == PRIVATE { Visibility::Private } else { Visibility::Shared };
        let host = HostProvider::builder().name("umf_proxy").visibility(visibility);
        // As of any memory with a name.
        let import = (kind == SHARED_SHM)
            .then(|| Arc::new(HostImport::new().allow_unsealed(true)) as Arc<dyn umf_core::Import>);
        let counted = Counted::new(host.build()?, Flavour::Os, Protection::DEFAULT);
        Ok(Start { counted, name: c"OS".to_owned(), import, device: None })
    })
}

const NO_HEAP: Failure = Failure::unsupported("there is no heap of libumf_proxy.so in this process");

static TABLE: PoolTable = PoolTable::of(Functions { ext_ctl: None, ..functions::<Preloaded>(initialize) });

extern "C" fn initialize(provider: Handle<Provider>, _: *const c_void, state: *mut State) -> Code {
    start_pool(provider, state, |_| Ok(Preloaded(heap().ok_or(NO_HEAP)?)))
}

/// The heap as a pool.
struct Preloaded(&'static Heap);

impl Preloaded {
    /// The live block that begins at an address. What is none is an error, and not what `free`
    /// makes of it.
    fn block(&self, pointer: *const c_void) -> Outcome<Block> {
        let address = Address::from_ptr(pointer.cast::<u8>());
        let foreign = || Failure::from(Error::ForeignAddress { address, owner: "malloc" });
        block(self.0, address).filter(|block| block.base == pointer.addr()).ok_or_else(foreign)
    }
}

fn there(block: *mut c_void) -> Outcome<*mut c_void> {
    let none = Failure::new(OUT_OF_HOST_MEMORY, "there is no more memory for malloc");
    if block.is_null() { Err(none) } else { Ok(block) }
}

impl TablePool for Preloaded {
    const KIND: PoolKind = PoolKind::Preloaded;
    const NAME: &'static CStr = c"umf_proxy";
    const ALIGN: usize = 1;

    fn malloc(&self, size: usize) -> Outcome<*mut c_void> {
        there((self.0.malloc)(size))
    }

    fn aligned_malloc(&self, size: usize, align: usize) -> Outcome<*mut c_void> {
        if !align.max(1).is_power_of_two() {
            return Err(Failure::new(INVALID_ALIGNMENT, "an alignment is a power of two"));
        }
        there((self.0.memalign)(align.max(1), size))
    }

    fn calloc(&self, count: usize, size: usize) -> Outcome<*mut c_void> {
        there((self.0.calloc)(count, size))
    }

    fn realloc(&self, old: *mut c_void, size: usize) -> Outcome<*mut c_void> {
        if old.is_null() {
            return self.malloc(size);
        }
        self.block(old)?;
        // SAFETY: a function of the table; the block is C's to give.
        let moved = unsafe { (self.0.realloc)(old, size) };
        if size == 0 { Ok(moved) } else { there(moved) }
    }

    fn usable_size(&self, block: *const c_void) -> Outcome<usize> {
        if block.is_null() { Ok(0) } else { Ok(self.block(block)?.size) }
    }

    fn free(&self, block: *mut c_void) -> Outcome<()> {
        self.block(block)?;
        // SAFETY: a function of the table; the block is C's to give.
        unsafe { (self.0.free)(block) };
        Ok(())
    }

    fn trim(&self, keep: usize) -> Outcome<()> {
        (self.0.trim)(keep);
        Ok(())
    }
}

impl Answers for Preloaded {}
