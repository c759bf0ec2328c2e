//! The heap of a preloaded `libumf_proxy.so`, represented as a pool of this library.
//!
//! The two libraries contain separate copies of umf. The heap finds and exports its own blocks.
//! This module has a pool handle and a provider handle that represent it. They are created at the
//! first lookup of one of its blocks, and never destroyed.

use core::ffi::{CStr, c_void};
use core::sync::atomic::{AtomicPtr, AtomicUsize, Ordering};
use std::ffi::CString;
use std::os::unix::ffi::OsStrExt;
use std::sync::Arc;

use umf_core::{Address, Error, Visibility};
use umf_ipc::{Allow, Exchange, ExporterSettings, LimitPolicy, Mode, Ptracer};
use umf_provider_host::{HostImport, HostProvider};
use umf_provider_plugin::table::{State, Table};
use umf_runtime::preloaded_heap::{
    Block, Exports, HANDLE, Heap, LIMIT, NOT_FOUND, NOT_SHARED, OK, PRIVATE, SHARED_SHM,
};

use super::table::{TablePool, functions, start as start_pool};
use crate::boundary::{
    Code, Failure, Handle, INVALID_ALIGNMENT, OUT_OF_HOST_MEMORY, OUT_OF_RESOURCES, Outcome, UNKNOWN,
};
use crate::ctl::CtlTree;
use crate::last_error::{NativeKind, PoolKind};
use crate::pool::{Functions, Pool, PoolTable};
use crate::provider::{InstrumentedProvider, NativeParts, NativeTable, Protection, Provider, table};

/// Address of the heap's table of functions; [`UNKNOWN_YET`] before the first lookup, [`NONE`] if
/// there is no heap.
static HEAP: AtomicUsize = AtomicUsize::new(UNKNOWN_YET);
const UNKNOWN_YET: usize = 0;
const NONE: usize = 1;

/// The pool that represents the heap; null before it is needed.
static POOL: AtomicPtr<Pool> = AtomicPtr::new(core::ptr::null_mut());

/// Returns the heap, if `libumf_proxy.so` is loaded.
fn heap() -> Option<&'static Heap> {
    let known = match HEAP.load(Ordering::Acquire) {
        // A preloaded library was loaded before this one.
        UNKNOWN_YET => {
            // SAFETY: a C string; the lookup covers the libraries that the program was started
            // with.
            let found =
                unsafe { libc::dlsym(libc::RTLD_DEFAULT, umf_runtime::preloaded_heap::NAME.as_ptr()) };
            let found = if found.is_null() { NONE } else { found.expose_provenance() };
            HEAP.store(found, Ordering::Release);
            found
        }
        known => known,
    };
    // SAFETY: this versioned name denotes such a table, in a library that is never unloaded.
    (known != NONE).then(|| unsafe { &*core::ptr::with_exposed_provenance::<Heap>(known) })
}

/// Returns base and size of the live heap block that holds an address.
pub(crate) fn block_at(address: Address) -> Option<(usize, usize)> {
    block(heap()?, address).map(|block| (block.base, block.size))
}

/// Returns the live heap block that holds an address.
fn block(heap: &Heap, address: Address) -> Option<Block> {
    let mut block = Block { base: 0, size: 0 };
    let address = address.as_ptr()?;
    // SAFETY: a function of the table, with a place for its result.
    (unsafe { (heap.find)(address.cast(), &raw mut block) } == OK).then_some(block)
}

/// Returns the pool that represents the heap, if the address lies in a heap block.
pub(crate) fn find(address: Address) -> Option<Handle<Pool>> {
    block(heap()?, address)?;
    pool().inspect_err(|failure| tracing::error!("the heap of libumf_proxy.so has no pool: {failure}")).ok()
}

/// Returns whether a pool represents the heap, so that it is never destroyed.
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
        Handle::from_ptr(Box::into_raw(Provider::create((&raw const PROVIDER).cast(), core::ptr::null())?.0));
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

/// Exports the heap block that holds an address. Returns the bytes of its handle, and the offset of
/// the address in the block.
pub(crate) fn export(address: Address) -> Option<Outcome<([u8; HANDLE], u64)>> {
    let heap = heap()?;
    block(heap, address)?;
    Some(export_from(heap, address))
}

fn export_from(heap: &Heap, address: Address) -> Outcome<([u8; HANDLE], u64)> {
    let settings = umf::exporter()?.settings();
    // A path with a zero byte is no path, and is not used.
    let path = settings.directory.as_ref().and_then(|path| CString::new(path.as_os_str().as_bytes()).ok());
    let settings = exports(settings, path.as_deref());
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

/// Converts the process's settings into those of the heap.
fn exports(settings: &ExporterSettings, directory: Option<&CStr>) -> Exports {
    let mut exchange = [0; 4];
    if let Exchange::Order(modes) = &settings.exchange {
        for (place, mode) in exchange.iter_mut().zip(modes) {
            *place = match mode {
                Mode::Procfs => 2,
                Mode::Socket => 3,
                Mode::Directory => 4,
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
        directory: directory.map_or(core::ptr::null(), CStr::as_ptr),
        allow: match settings.allow {
            Allow::SameUser => 0,
            Allow::Group => 1,
            Allow::Handle => 2,
        },
    }
}

static PROVIDER: Table = table::<HeapMemory>();

/// Separate memory of the same kind as the heap.
struct HeapMemory;

impl NativeTable for HeapMemory {
    const NAME: &'static CStr = c"OS";

    fn make(_: *const c_void) -> Outcome<NativeParts> {
        let kind = (heap().ok_or(NO_HEAP)?.kind)();
        let visibility = if kind == PRIVATE { Visibility::Private } else { Visibility::Shared };
        let host = HostProvider::builder().name("umf_proxy").visibility(visibility);
        // Named memory cannot be sealed.
        let import = (kind == SHARED_SHM)
            .then(|| Arc::new(HostImport::new().allow_unsealed(true)) as Arc<dyn umf_core::Import>);
        let counted = InstrumentedProvider::new(host.build()?, NativeKind::Os, Protection::DEFAULT);
        Ok(NativeParts { counted, name: Self::NAME.to_owned(), import, device: None })
    }
}

const NO_HEAP: Failure = Failure::unsupported("there is no heap of libumf_proxy.so in this process");

static TABLE: PoolTable = PoolTable::of(Functions { ext_ctl: None, ..functions::<Preloaded>(initialize) });

extern "C" fn initialize(provider: Handle<Provider>, _: *const c_void, state: *mut State) -> Code {
    start_pool(provider, state, |_| Ok(Preloaded(heap().ok_or(NO_HEAP)?)))
}

/// The heap as a pool.
struct Preloaded(&'static Heap);

impl Preloaded {
    /// Returns the live block that begins at an address. Any other address is an error, and never
    /// passed to `free`.
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
        // SAFETY: a function of the table, with a live block.
        let moved = unsafe { (self.0.realloc)(old, size) };
        if size == 0 { Ok(moved) } else { there(moved) }
    }

    fn usable_size(&self, block: *const c_void) -> Outcome<usize> {
        if block.is_null() { Ok(0) } else { Ok(self.block(block)?.size) }
    }

    fn free(&self, block: *mut c_void) -> Outcome<()> {
        self.block(block)?;
        // SAFETY: a function of the table, with a live block.
        unsafe { (self.0.free)(block) };
        Ok(())
    }

    fn trim(&self, keep: usize) -> Outcome<()> {
        (self.0.trim)(keep);
        Ok(())
    }
}

impl CtlTree for Preloaded {}
