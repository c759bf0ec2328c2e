//! The compared allocators: ours, and peers that are linked or opened at run time.

use std::alloc::{GlobalAlloc, Layout, System};
use std::ffi::c_void;

use libloading::Library;
use umf::host::HostProvider;
use umf::pools::SlabSettings;
use umf::{Address, Pool};

use crate::workload::{self, Plan};
use crate::{Error, Result};

/// An allocator.
pub trait Allocator: Sync {
    /// A block.
    type Block: Copy + Send + Sync;

    /// The error of an allocation. Small, so that a success costs nothing.
    type Error: Into<Error>;

    /// Allocates `size` bytes.
    ///
    /// # Errors
    /// There is no memory.
    fn allocate(&self, size: usize) -> std::result::Result<Self::Block, Self::Error>;

    /// Frees a block.
    ///
    /// # Safety
    /// The block came from `allocate(size)` of this allocator, is live, and is no longer used.
    ///
    /// # Errors
    /// The block is unknown.
    unsafe fn free(&self, block: Self::Block, size: usize) -> std::result::Result<(), Self::Error>;
}

/// An allocator of any type.
pub trait Subject {
    /// Runs a plan. Returns the nanoseconds of an allocation and its free, one value per batch and
    /// thread.
    ///
    /// # Errors
    /// The allocator's error.
    fn run(&self, plan: &Plan) -> Result<Vec<f64>>;
}

impl<A: Allocator> Subject for A {
    fn run(&self, plan: &Plan) -> Result<Vec<f64>> {
        workload::run(self, plan)
    }
}

/// A slab pool over private memory, through the interface that applications use.
pub struct Slab(Pool);

impl Slab {
    /// Creates a pool that pools all sizes of the workloads.
    ///
    /// # Errors
    /// There is no memory.
    pub fn new() -> Result<Slab> {
        let provider = HostProvider::builder().name("bench").build()?;
        let settings = SlabSettings::new().name("bench").max_poolable_size(4 << 20);
        Ok(Slab(Pool::builder().provider(provider).slab(|_| settings).build()?))
    }
}

impl Allocator for Slab {
    type Block = Address;
    type Error = umf_core::Error;

    #[inline]
    fn allocate(&self, size: usize) -> std::result::Result<Address, umf_core::Error> {
        umf_core::pool::allocate(self.0.as_core(), umf::Layout::new(size, 8)?)
    }

    #[inline]
    unsafe fn free(&self, block: Address, _: usize) -> std::result::Result<(), umf_core::Error> {
        // SAFETY: the caller's contract.
        unsafe { umf_core::pool::free(self.0.as_core(), block) }
    }
}

/// An allocator behind the trait `GlobalAlloc`.
struct Global<A>(A);

impl<A: GlobalAlloc + Sync> Allocator for Global<A> {
    /// An address with its provenance exposed: pointers are not `Send`.
    type Block = usize;
    type Error = &'static str;

    #[inline]
    fn allocate(&self, size: usize) -> std::result::Result<usize, &'static str> {
        let layout = Layout::from_size_align(size, 8).map_err(|_| "too large")?;
        // SAFETY: no size of a workload is 0.
        let pointer = unsafe { self.0.alloc(layout) };
        if pointer.is_null() { Err("out of memory") } else { Ok(pointer.expose_provenance()) }
    }

    #[inline]
    unsafe fn free(&self, block: usize, size: usize) -> std::result::Result<(), &'static str> {
        let layout = Layout::from_size_align(size, 8).map_err(|_| "too large")?;
        // SAFETY: the caller's contract.
        unsafe { self.0.dealloc(std::ptr::with_exposed_provenance_mut(block), layout) };
        Ok(())
    }
}

/// tcmalloc, opened at run time.
struct TcMalloc {
    malloc: unsafe extern "C" fn(usize) -> *mut c_void,
    free: unsafe extern "C" fn(*mut c_void),
    /// Keeps the functions loaded.
    _library: Library,
}

impl TcMalloc {
    fn open() -> Result<TcMalloc> {
        // SAFETY: loading the library only initializes it; the types are those of
        // gperftools/tcmalloc.h.
        unsafe {
            let library = Library::new("libtcmalloc_minimal.so.4")?;
            let (malloc, free) = (*library.get(b"tc_malloc")?, *library.get(b"tc_free")?);
            Ok(TcMalloc { malloc, free, _library: library })
        }
    }
}

impl Allocator for TcMalloc {
    type Block = usize;
    type Error = &'static str;

    #[inline]
    fn allocate(&self, size: usize) -> std::result::Result<usize, &'static str> {
        // SAFETY: the function has no conditions.
        let pointer = unsafe { (self.malloc)(size) };
        if pointer.is_null() { Err("out of memory") } else { Ok(pointer.expose_provenance()) }
    }

    #[inline]
    unsafe fn free(&self, block: usize, _: usize) -> std::result::Result<(), &'static str> {
        // SAFETY: the caller's contract.
        unsafe { (self.free)(std::ptr::with_exposed_provenance_mut(block)) };
        Ok(())
    }
}

/// The crate `offset-allocator`: suballocates a range of numbers, without a lock. Each thread has a
/// range of its own.
#[cfg(feature = "peers")]
struct Offsets;

#[cfg(feature = "peers")]
impl Allocator for Offsets {
    type Block = offset_allocator::Allocation;
    type Error = &'static str;

    #[inline]
    fn allocate(&self, size: usize) -> std::result::Result<Self::Block, &'static str> {
        OFFSETS.with_borrow_mut(|offsets| offsets.allocate(size as u32)).ok_or("its range is full")
    }

    #[inline]
    unsafe fn free(&self, block: Self::Block, _: usize) -> std::result::Result<(), &'static str> {
        OFFSETS.with_borrow_mut(|offsets| offsets.free(block));
        Ok(())
    }
}

#[cfg(feature = "peers")]
thread_local! {
    static OFFSETS: std::cell::RefCell<offset_allocator::Allocator> =
        std::cell::RefCell::new(offset_allocator::Allocator::with_max_allocs(u32::MAX, 1 << 16));
}

/// A peer of the bench `pool`.
pub struct Peer {
    /// Its name in the rows.
    pub name: &'static str,
    /// The allocator.
    pub subject: Box<dyn Subject>,
    /// Whether it supports one thread only: neither several threads nor frees by another thread.
    pub is_single_threaded: bool,
}

impl Peer {
    /// Returns a peer for all rows.
    pub fn new(name: &'static str, subject: impl Subject + 'static) -> Peer {
        Peer { name, subject: Box::new(subject), is_single_threaded: false }
    }
}

/// Returns the peers that are built in or installed, and prints the missing ones.
#[must_use]
pub fn peers() -> Vec<Peer> {
    let mut peers = vec![Peer::new("glibc", Global(System))];
    match TcMalloc::open() {
        Ok(tcmalloc) => peers.push(Peer::new("tcmalloc", tcmalloc)),
        Err(error) => eprintln!("no tcmalloc (apt-get install libtcmalloc-minimal4): {error}"),
    }
    #[cfg(feature = "peers")]
    {
        peers.push(Peer::new("mimalloc", Global(mimalloc::MiMalloc)));
        peers.push(Peer::new("jemalloc", Global(tikv_jemallocator::Jemalloc)));
        peers.push(Peer { is_single_threaded: true, ..Peer::new("offset-allocator", Offsets) });
    }
    #[cfg(not(feature = "peers"))]
    eprintln!("no mimalloc, jemalloc and offset-allocator: built without --features peers");
    #[cfg(feature = "snmalloc")]
    peers.push(Peer::new("snmalloc", Global(snmalloc_rs::SnMalloc)));
    #[cfg(not(feature = "snmalloc"))]
    eprintln!("no snmalloc: built without --features snmalloc");
    peers
}
