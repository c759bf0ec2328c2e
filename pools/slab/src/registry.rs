//! All pools of the process: ending threads empty their heaps, forked children abandon the heaps of
//! the parent's threads; and static pools.

use core::cell::{Cell, UnsafeCell};
use core::mem::MaybeUninit;
use core::ptr::NonNull;
use core::sync::atomic::{AtomicU32, Ordering};

use umf_core::{Provider, ProviderRef, Result};
use umf_runtime::registry::PoolRegistry;
use umf_sync::chunks::{Chunks, Zeroable};
use umf_sync::fork::{self, Hooks};
use umf_sync::thread::{self, ThreadIndex};

use crate::section::CLOSING;
use crate::transfer::LargeBatch;
use crate::types::Heap;
use crate::{SlabPool, SlabSettings};

const LIMIT: u32 = 1 << 14;

/// All pools that are not being dropped.
pub(crate) static POOLS: PoolRegistry<SlabPool> = PoolRegistry::new(LIMIT);

static AT_FORK: Hooks = Hooks { child: || POOLS.for_each(SlabPool::abandon_other_threads), ..Hooks::NONE };

/// Enters a pool.
///
/// # Errors
/// Those of [`PoolRegistry::enter`], [`thread::on_exit`] and [`fork::add_hooks`].
///
/// # Safety
/// As for [`PoolRegistry::enter`].
pub(crate) unsafe fn enter(pool: NonNull<SlabPool>) -> Result<()> {
    thread::on_exit(end_thread)?;
    fork::add_hooks(&AT_FORK)?;
    // SAFETY: passed on to the caller.
    unsafe { POOLS.enter(pool) }
}

thread_local! {
    static IS_THREAD_ENDING: Cell<bool> = const { Cell::new(false) };
}

/// Returns whether the calling thread is ending, and empties its heaps or has done so. Subscribers
/// of events may not work any more.
pub(crate) fn is_thread_ending() -> bool {
    IS_THREAD_ENDING.get()
}

/// Empties the ending thread's heap in every pool.
fn end_thread(index: ThreadIndex) {
    IS_THREAD_ENDING.set(true);
    POOLS.for_each(|pool| {
        if let Some(heap) = pool.heaps.get(index.get()) {
            // First: a batch that arrives after `empty_own` is drained by its sender.
            heap.inbox.end();
            pool.send_large(heap);
            pool.empty_own(index.get(), heap, true);
        }
    });
}

impl SlabPool {
    /// Sends the large blocks of the ending thread, and its outgoing batch, to the transfer cache.
    fn send_large(&self, heap: &Heap) {
        let mut batch = self.take_outgoing(heap);
        let max = self.heaps.max_batch();
        for class in heap.used().filter(|&class| self.heaps.classes.is_large(class)) {
            let size = self.heaps.classes.size(class);
            loop {
                let evicted = self.heaps.evict(heap, class);
                if evicted.entries().is_empty() {
                    break;
                }
                for &entry in evicted.entries() {
                    let is_full = |batch: &mut LargeBatch| !batch.is_empty() && !batch.fits(size, max);
                    if let Some(full) = batch.take_if(is_full) {
                        batch = self.send_large_batch(full);
                    }
                    batch = batch.or_else(|| self.transfer.empty_batch(&self.back.meta.runs));
                    match &mut batch {
                        Some(batch) if batch.fits(size, max) => batch.push(class, entry, size),
                        _ => self.return_blocks(class, &[entry]),
                    }
                }
            }
        }
        let last =
            batch.and_then(|batch| if batch.is_empty() { Some(batch) } else { self.send_large_batch(batch) });
        last.into_iter().for_each(|batch| self.transfer.recycle(batch));
    }

    /// Abandons the slabs of the parent's other threads, in a forked child. Blocks in their heaps
    /// are lost, and so is a slab or region that a thread was moving between two lists. No list in
    /// the child refers to them.
    fn abandon_other_threads(&self) {
        if self.heaps.flags.is_set(CLOSING) {
            // A thread of the parent was dropping the pool: nothing allocates from it here.
            return;
        }
        self.policy.forked();
        let current = thread::current().map(ThreadIndex::get);
        for (index, heap) in self.heaps.iter().filter(|&(index, _)| current != Some(index)) {
            heap.of_parent.store(true, Ordering::Relaxed);
            heap.inside.store(false, Ordering::Relaxed);
            heap.revoked.store(false, Ordering::Relaxed);
            heap.inbox.end();
            for class in heap.used().filter(|&class| !self.heaps.classes.is_large(class)) {
                // If a signal handler forks, the interrupted thread may hold the lock: then the
                // slabs are lost.
                if let Some(mut slabs) = self.try_central(class) {
                    slabs.abandon(index, true);
                }
            }
        }
    }

    /// Returns a static pool, which may be the global allocator: neither creating nor using it
    /// calls the global allocator, as long as `provider` does not.
    ///
    /// [`SlabSettings::trace`] and [`SlabSettings::background`] are ignored, since subscribers and
    /// threads allocate.
    ///
    /// # Errors
    /// As [`SlabPool::new`], and [`umf_core::Error::OutOfMemory`] if there is no memory for the
    /// pool itself.
    pub fn new_static(provider: &'static dyn Provider, settings: SlabSettings) -> Result<&'static Self> {
        let place = STATIC_POOLS.get_or_grow(STATIC_COUNT.fetch_add(1, Ordering::Relaxed))?.0.get();
        let mut settings = settings.trace(0).background(false);
        settings.reports = false;
        let pool = Self::unregistered(ProviderRef::Static(provider), settings)?;
        // SAFETY: only this call has the place. It is never written again, and never unmapped.
        let pool = unsafe { (*place).write(pool) };
        // SAFETY: the pool is never moved.
        match unsafe { pool.register() }.and_then(|()| pool.begin()) {
            Ok(()) => Ok(pool),
            Err(error) => {
                // SAFETY: no caller has a reference to the pool, and dropping it removes it from
                // the registry.
                unsafe { core::ptr::drop_in_place(pool) };
                Err(error)
            }
        }
    }
}

/// The memory of static pools, which are never dropped.
static STATIC_POOLS: Chunks<StaticPool, 1> = Chunks::new();
static STATIC_COUNT: AtomicU32 = AtomicU32::new(0);

struct StaticPool(UnsafeCell<MaybeUninit<SlabPool>>);

// SAFETY: a place is written once, by the thread that got its number, before a reference to it
// exists.
unsafe impl Sync for StaticPool {}
// SAFETY: anything is a valid `MaybeUninit`.
unsafe impl Zeroable for StaticPool {}
