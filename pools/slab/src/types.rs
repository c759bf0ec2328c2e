//! The data types of the pool on one page: the heap of a thread, and the records of spans.
//!
//! ```text
//!   Heap (one per thread)                          SlabPool::heaps
//!   |- Bin per class: a stack of Entry             allocate pops, free pushes
//!   |- Lookaside: address -> state byte and bin    for spans that the thread owns
//!   |- partial_slabs, full_slabs                   slabs that the thread owns
//!   |- open: batches for other owners              outgoing remote frees
//!   |- inbox: batches from other threads           incoming remote frees
//!   `- outgoing: a batch of large blocks           to the transfer cache
//!
//!   Span (one per slab, large block or region)     SlabPool::back.meta
//!   |- base, block, count, states                  the blocks, and a state byte of each
//!   |- owner                                       the owner thread, or the bias
//!   `- Cold: list, bitmap, extent                  guarded by the lock of the class or of the extents
//!
//!   Entry = address of a free block, and pointer to its state byte
//! ```
//!
//! | here | in mimalloc |
//! |---|---|
//! | [`Heap`] | `mi_heap_t` |
//! | slab ([`Kind::Slab`]) | `mi_page_t`, with a bitmap instead of a free list in the memory |
//! | [`Bin`] | the `free` list of a page, for all pages of a size class |
//! | [`Heap::inbox`] | `xthread_free`, per owner thread instead of per page |
//! | unowned slab ([`UNOWNED`]) | abandoned page |
//! | region ([`Kind::Region`]) | segment |
//!
//! Nothing is stored in the memory that the pool hands out: it may belong to a device. So free
//! lists hold entries with addresses, and all state is in records.
//!
//! **A block is free** if it is in a bin, in the bitmap of its slab, in a batch or in the stock of
//! the transfer cache, or part of a free extent. Its state byte is 0, or [`REMOTE`] on the way to
//! its owner.
//!
//! **Synchronisation.** A heap, and the state bytes in slabs that its thread owns, are written by
//! that thread inside its critical section, or by a thread that has revoked the section: see
//! `section`. Words that other threads read at any time are atomics. [`Cold`] is guarded by locks.

use core::cell::{Cell, UnsafeCell};
use core::mem::MaybeUninit;
use core::ptr::{self, NonNull};
use core::sync::atomic::{
    AtomicBool, AtomicI64, AtomicPtr, AtomicU8, AtomicU16, AtomicU32, AtomicU64, AtomicUsize, Ordering,
};

use umf_core::{Address, Region};
use umf_runtime::tracker::RegionNumber;
use umf_sync::chunks::Zeroable;

use crate::bias::LargeBias;
use crate::central::ListId;
#[cfg(doc)]
use crate::classes::Divisor;
use crate::classes::MAX_CLASSES;
use crate::metadata::Run;
use crate::remote::{Inbox, OpenBatches};
use crate::transfer::Outgoing;

// Block states.

/// Flag of a state byte: the block is live.
pub(crate) const LIVE: u8 = 1;
/// Flag of a state byte: an export names the block.
pub(crate) const EXPORTED: u8 = 2;
/// Flag of a state byte: the block was freed and waits for other processes or a completion: see
/// `deferred`.
pub(crate) const DEFERRED: u8 = 4;
/// State byte of a block that another thread than the owner of its slab has freed, until the free
/// reaches the owner: see `remote`.
pub(crate) const REMOTE: u8 = 8;

// Free blocks.

/// A free block in a cache: its address, and a pointer to its state byte. So an allocation needs no
/// lookup.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Entry {
    /// [`umf_core::Address::to_bits`].
    pub(crate) address: u64,
    pub(crate) state: NonNull<AtomicU8>,
}

impl Entry {
    #[inline]
    pub(crate) const fn new(address: u64, state: NonNull<AtomicU8>) -> Self {
        Self { address, state }
    }

    /// Returns the pointer to the state byte.
    pub(crate) const fn state(self) -> NonNull<AtomicU8> {
        self.state
    }

    /// Makes the block live, and returns its address.
    ///
    /// # Safety
    /// The state byte lies in metadata of a pool that is alive, and the caller alone has this
    /// entry.
    #[inline]
    pub(crate) unsafe fn hand_out(self) -> Address {
        // SAFETY: passed on to the caller.
        unsafe { self.state.as_ref() }.store(LIVE, Ordering::Release);
        Address::from_bits(self.address)
    }
}

/// The free blocks of one size class in one heap, as a stack.
#[repr(C, align(64))]
pub(crate) struct Bin {
    pub(crate) top: AtomicPtr<Entry>,
    pub(crate) base: AtomicPtr<Entry>,
    /// The top of a full bin.
    pub(crate) end: Cell<*mut Entry>,
    /// The same for a small class; null for a large one. One comparison finds full and large bins.
    pub(crate) small_end: Cell<*mut Entry>,
    /// Bytes of a block of a large class; 0 for a small class.
    pub(crate) weight: Cell<usize>,
    pub(crate) allocations: AtomicU64,
    /// Blocks that moved from the bin to other layers, minus blocks that moved from there into the
    /// bin: frees minus allocations minus length. So the fast path of a free counts nothing.
    pub(crate) transfers: AtomicI64,
    /// A sequence number, odd while length and transfers change.
    pub(crate) moves: AtomicU32,
}

/// The capacity of a bin, apart from the bin since slow paths only read it.
#[repr(C)]
pub(crate) struct BinLimits {
    /// Entries for which the bin has memory.
    pub(crate) capacity: Cell<u32>,
    /// Entries that it accepts. A slow path raises it up to the capacity as the thread uses the
    /// class.
    pub(crate) limit: Cell<u32>,
}

/// The offset of the bin of a class in a heap, in bytes. The fast paths use it instead of the
/// class.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct BinOffset(u16);

impl BinOffset {
    /// Returns the offset of the bin of a class below [`MAX_CLASSES`].
    pub(crate) const fn of(class: usize) -> Self {
        const { assert!(core::mem::offset_of!(Heap, bins) == 0) };
        const { assert!(MAX_CLASSES * size_of::<Bin>() <= 1 << 16) };
        Self((class % MAX_CLASSES * size_of::<Bin>()) as u16)
    }

    /// Returns an offset of `offset` bytes.
    ///
    /// # Safety
    /// [`BinOffset::offset`] returned the offset, or it is 0.
    #[inline(always)]
    pub(crate) const unsafe fn from_bytes(offset: u16) -> Self {
        Self(offset)
    }

    /// Returns the offset in bytes.
    #[inline(always)]
    pub(crate) const fn offset(self) -> u16 {
        self.0
    }
}

// Heaps.

/// The heap of one thread: its bins, the slabs that it owns, and its remote frees.
#[repr(C, align(64))]
pub(crate) struct Heap {
    /// First, so that a [`BinOffset`] depends on the class alone.
    pub(crate) bins: [Bin; MAX_CLASSES],
    pub(crate) lookaside: Lookaside,
    /// Whether the thread is inside its critical section.
    pub(crate) inside: AtomicBool,
    /// Whether another thread revokes the section.
    pub(crate) revoked: AtomicBool,
    /// Whether the thread exists in the parent process only.
    pub(crate) of_parent: AtomicBool,
    /// Bytes in bins of large classes. Written inside the section; other threads read it for an
    /// estimate.
    pub(crate) large_bytes: AtomicUsize,
    /// Bytes of the limits of all bins of small classes.
    pub(crate) small_limit: Cell<usize>,
    /// The class from which blocks were evicted last, for rotation.
    pub(crate) turn: Cell<u32>,
    /// A bit for each bin that was ever used. Written inside the section.
    pub(crate) used: [AtomicU64; MAX_CLASSES / 64],
    /// The heads of the lists of slabs that this thread owns, with and without free blocks in the
    /// bitmap. The lock of the class guards the lists.
    pub(crate) partial_slabs: [AtomicU32; MAX_CLASSES],
    pub(crate) full_slabs: [AtomicU32; MAX_CLASSES],
    pub(crate) limits: [BinLimits; MAX_CLASSES],
    pub(crate) bias: LargeBias,
    /// Large blocks that this thread has freed and another one allocated.
    pub(crate) outgoing: Outgoing,
    /// Blocks of other owners' slabs that this thread has freed.
    pub(crate) open: OpenBatches,
    /// Blocks of this thread's slabs that other threads have freed.
    pub(crate) inbox: Inbox,
}

// SAFETY: the cells are accessed inside the section or while it is revoked; all else is atomic.
unsafe impl Sync for Heap {}
// SAFETY: entries point into the metadata of the pool that owns the heap, which moves along.
unsafe impl Send for Heap {}
// SAFETY: zeros are valid: bins without entries.
unsafe impl Zeroable for Heap {}

/// The number of entries of a lookaside cache: enough for the granules of 512 MiB of adjacent
/// memory.
pub(crate) const LOOKASIDE_ENTRIES: usize = 8192;

/// A span that begins in or covers a granule. Granules share entries. An address is a block of the
/// span if its number in the span is below `count`. Two entries fill a cache line.
#[repr(C, align(32))]
pub(crate) struct LookasideEntry {
    pub(crate) base: Cell<u64>,
    pub(crate) inverse: Cell<u64>,
    pub(crate) states: Cell<*mut AtomicU8>,
    /// 0 for an empty entry.
    pub(crate) count: Cell<u32>,
    pub(crate) bin: Cell<BinOffset>,
    pub(crate) shift: Cell<u8>,
}

/// The lookaside cache of a heap. Zeros are an empty one. Accessed inside the section of the heap.
pub(crate) struct Lookaside(pub(crate) [LookasideEntry; LOOKASIDE_ENTRIES]);

// Records.

/// The owner of an unowned slab, and of an unbiased large block.
pub(crate) const UNOWNED: u32 = 0;

/// Returns the word for thread number `index` in [`Span::owner`] and [`Span::last_user`].
#[inline]
pub(crate) const fn thread_word(index: u32) -> u32 {
    index + 1
}

/// The kind of a span.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// Not in use.
    Free,
    /// Equal blocks of one class.
    Slab,
    /// One block of a large class.
    Block,
    /// One block that is a region.
    Direct,
    /// A region that is divided into extents.
    Region,
}

/// The record of a span: a run of equal blocks. `free(address)` reads its first cache line. The
/// second is guarded by the lock of the class (slab) or of the extents (region), or belongs to the
/// thread that has the block.
#[repr(C, align(64))]
pub(crate) struct Span {
    pub(crate) base: AtomicU64,
    /// The inverse of the block size: see [`Divisor`]. Region: the bytes of the provider's region.
    pub(crate) inverse: AtomicU64,
    pub(crate) states: AtomicPtr<AtomicU8>,
    /// The number of blocks; 0 while the record is not in use, and for a region.
    pub(crate) count: AtomicU64,
    pub(crate) shift: AtomicU8,
    /// The state of the one block of a [`Kind::Block`] or [`Kind::Direct`] span.
    pub(crate) own_state: AtomicU8,
    /// Kind in the upper half, class in the lower. Region: whether its units are among the extents.
    pub(crate) kind_class: AtomicU32,
    /// Advances when the record is retracted.
    pub(crate) generation: AtomicU32,
    /// The thread that clears live bits of this span by plain stores, as [`thread_word`] writes it;
    /// [`UNOWNED`] for none. Slab: its owner, written under the lock of the class; see `central`.
    /// Large block: the thread that it is biased towards; see `bias`.
    pub(crate) owner: AtomicU32,
    /// Large block: the thread that allocated it last; 0 for none. It is a hint: a stale value only
    /// delays the reuse of a freed block.
    pub(crate) last_user: AtomicU32,
    /// The [`BinOffset`] of the class.
    pub(crate) bin: AtomicU16,
    /// Size of a block. Region: its bytes.
    pub(crate) block: AtomicU64,
    pub(crate) cold: UnsafeCell<Cold>,
    /// The span of the region around a slab or large block. Region: the bytes of the provider's
    /// region before the base.
    pub(crate) region: AtomicU32,
}

/// The guarded part of a span.
#[derive(Clone, Copy)]
pub(crate) struct Cold {
    /// The next slab in the list; 0 for none.
    pub(crate) next: u32,
    /// The previous slab in the list; 0 for none.
    pub(crate) prev: u32,
    /// Slab: the list that it is in.
    pub(crate) list: ListId,
    /// Slab: free blocks in its bitmap.
    pub(crate) free: u32,
    /// Slab: all blocks.
    pub(crate) total: u32,
    /// Slab: the word of the bitmap where the search begins.
    pub(crate) hint: u32,
    /// Slab, large block: its first unit in the region. Region: its number of units.
    pub(crate) unit: u32,
    /// Slab: its bitmap (1: free). Otherwise null.
    pub(crate) bitmap: *mut u64,
    /// Slab: the run of its states.
    pub(crate) state_run: MaybeUninit<Run>,
    /// Slab: the run of its bitmap. Region: the run of its unit table.
    pub(crate) table_run: MaybeUninit<Run>,
    /// Region and direct: the region of the provider, and its number in the tracker.
    pub(crate) upstream: MaybeUninit<(Region, RegionNumber)>,
}

impl Cold {
    pub(crate) const EMPTY: Self = Self {
        next: 0,
        prev: 0,
        list: ListId::NONE,
        free: 0,
        total: 0,
        hint: 0,
        unit: 0,
        bitmap: ptr::null_mut(),
        state_run: MaybeUninit::uninit(),
        table_run: MaybeUninit::uninit(),
        upstream: MaybeUninit::uninit(),
    };
}

// SAFETY: the hot part is atomic; `Span::cold` requires the lock that guards the cold part.
unsafe impl Sync for Span {}
// SAFETY: the words of a span point to memory of the pool, which moves along with it.
unsafe impl Send for Span {}
// SAFETY: zeros are valid for atomics, integers, null pointers and `MaybeUninit`; a zeroed span is
// free.
unsafe impl Zeroable for Span {}
