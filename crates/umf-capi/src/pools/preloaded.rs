//! The heap of a preloaded `libumf_proxy.so`, represented as a pool of this library.
//!
//! The two libraries contain separate copies of umf. The heap finds and exports its own blocks.
//! This module has a pool handle and a provider handle that represent it. They are created at the
//! first lookup of one of its blocks, and never destroyed.

use core::ffi::{CStr, c_void};
use core::sync::atomic::{AtomicPtr, Ordering};
use std::sync::Arc;

use umf_core::{Address, Error, Visibility};
use umf_ipc::preloaded::{PreloadedExports, PreloadedHeap, Unexported};
use umf_provider_host::{HostImport, HostProvider};
use umf_provider_plugin::table::{State, Table};
use umf_runtime::preloaded_heap::{Block, HANDLE, PRIVATE, SHARED_SHM};

use super::table::{TablePool, functions, start as start_pool};
use crate::boundary::{
    Code, Failure, Handle, INVALID_ALIGNMENT, OUT_OF_HOST_MEMORY, OUT_OF_RESOURCES, Outcome, UNKNOWN,
};
use crate::ctl::CtlTree;
use crate::last_error::{NativeKind, PoolKind};
use crate::pool::{Functions, Pool, PoolTable};
use crate::provider::{InstrumentedProvider, NativeParts, NativeTable, Protection, Provider, table};

/// The pool that represents the heap; null before it is needed.
static POOL: AtomicPtr<Pool> = AtomicPtr::new(core::ptr::null_mut());

/// Returns base and size of the live heap block that holds an address.
pub(crate) fn block_at(address: Address) -> Option<(usize, usize)> {
    PreloadedHeap::get()?.block_at(address).map(|block| (block.base, block.size))
}

/// Returns the pool that represents the heap, if the address lies in a heap block.
pub(crate) fn find(address: Address) -> Option<Handle<Pool>> {
    block_at(address)?;
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
    let heap = PreloadedHeap::get()?;
    heap.block_at(address)?;
    Some(export_from(heap, address))
}

fn export_from(heap: PreloadedHeap, address: Address) -> Outcome<([u8; HANDLE], u64)> {
    let settings = PreloadedExports::new(umf::exporter()?.settings());
    let (handle, block) = heap.export(address, &settings).map_err(|why| match why {
        Unexported::NotFound => GONE,
        Unexported::Private => Failure::argument(
            "memory of malloc is private; set UMF_PROXY to page.disposition=shared-fd or shared-shm",
        ),
        Unexported::Limit => Failure::new(OUT_OF_RESOURCES, "there are too many exports of memory of malloc"),
        Unexported::Failed => Failure::new(UNKNOWN, "libumf_proxy.so could not export memory of malloc"),
    })?;
    Ok((handle, address.value() - block.base as u64))
}

const GONE: Failure = Failure::argument("the memory was freed meanwhile");

static PROVIDER: Table = table::<HeapMemory>();

/// Separate memory of the same kind as the heap.
struct HeapMemory;

impl NativeTable for HeapMemory {
    const NAME: &'static CStr = c"OS";

    fn make(_: *const c_void) -> Outcome<NativeParts> {
        let kind = (PreloadedHeap::get().ok_or(NO_HEAP)?.functions().kind)();
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
    start_pool(provider, state, |_| Ok(Preloaded(PreloadedHeap::get().ok_or(NO_HEAP)?)))
}

/// The heap as a pool.
struct Preloaded(PreloadedHeap);

impl Preloaded {
    /// Returns the live block that begins at an address. Any other address is an error, and never
    /// passed to `free`.
    fn block(&self, pointer: *const c_void) -> Outcome<Block> {
        let address = Address::from_ptr(pointer.cast::<u8>());
        let foreign = || Failure::from(Error::ForeignAddress { address, owner: "malloc" });
        self.0.block_at(address).filter(|block| block.base == pointer.addr()).ok_or_else(foreign)
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
        there((self.0.functions().malloc)(size))
    }

    fn aligned_malloc(&self, size: usize, align: usize) -> Outcome<*mut c_void> {
        if !align.max(1).is_power_of_two() {
            return Err(Failure::new(INVALID_ALIGNMENT, "an alignment is a power of two"));
        }
        there((self.0.functions().memalign)(align.max(1), size))
    }

    fn calloc(&self, count: usize, size: usize) -> Outcome<*mut c_void> {
        there((self.0.functions().calloc)(count, size))
    }

    fn realloc(&self, old: *mut c_void, size: usize) -> Outcome<*mut c_void> {
        if old.is_null() {
            return self.malloc(size);
        }
        self.block(old)?;
        // SAFETY: a function of the table, with a live block.
        let moved = unsafe { (self.0.functions().realloc)(old, size) };
        if size == 0 { Ok(moved) } else { there(moved) }
    }

    fn usable_size(&self, block: *const c_void) -> Outcome<usize> {
        if block.is_null() { Ok(0) } else { Ok(self.block(block)?.size) }
    }

    fn free(&self, block: *mut c_void) -> Outcome<()> {
        self.block(block)?;
        // SAFETY: a function of the table, with a live block.
        unsafe { (self.0.functions().free)(block) };
        Ok(())
    }

    fn trim(&self, keep: usize) -> Outcome<()> {
        (self.0.functions().trim)(keep);
        Ok(())
    }
}

impl CtlTree for Preloaded {}
