//! Remote frees: blocks that a thread frees in slabs of other owners.
//!
//! The owner thread of a slab changes the states of its blocks by plain stores. So another thread
//! cannot free a block itself. It sends a request to the owner.
//!
//! 1. The thread turns the state of the block from [`LIVE`] to [`REMOTE`], by compare-exchange.
//!    From there on the block is not live: a second free is an error.
//! 2. The address goes into the thread's open [`RemoteBatch`] for that owner: [`OpenBatches`].
//! 3. A full batch goes into the owner's [`Inbox`], a stack: threads push by compare-exchange, and
//!    a drain takes all batches at once.
//! 4. The owner drains its inbox before it takes blocks from elsewhere: see `collect`. A batch
//!    holds addresses, from which the owner locates each block again.
//!
//! **Two frees of one block at the same time.** If the owner and another thread free a block
//! concurrently, the plain store of the owner may overwrite [`REMOTE`]. Then both calls succeed,
//! but only one bin gets the block: the request finds another state than [`REMOTE`] and is dropped.
//!
//! A thread may mark a block of a slab that was reused meanwhile, in a double free. It then undoes
//! the mark (`state::unmark_remote`). Until it does, no request belongs to the mark. Unless two
//! such double frees coincide, no block is lost, and none is handed out twice.
//!
//! The functions that change words, here and in `state`, are generic, so that loom explores them:
//! see `model`.

#[cfg(test)]
mod model;

use core::cell::Cell;
use core::mem::MaybeUninit;
use core::ptr::{self, NonNull};
use core::sync::atomic::{AtomicPtr, AtomicU32, AtomicU64, Ordering};

use umf_sync::Lock;

use crate::metadata::Arena;
#[cfg(doc)]
use crate::types::{LIVE, REMOTE};

// Batches.

/// The most addresses in a batch, which takes 512 bytes.
const CAPACITY: usize = 54;
/// The least weight of an address in an inbox, in bytes: the batch takes memory too.
const LEAST_WEIGHT: u64 = 512;

/// The owner of a batch whose blocks have several owners.
pub(crate) const MIXED: u32 = u32::MAX;

/// The data of a batch, in a run of the pool's metadata.
#[repr(C, align(64))]
pub(crate) struct RemoteBatchData {
    next: Cell<*mut RemoteBatchData>,
    /// As [`crate::types::thread_word`] writes it, 0 for slabs without owner, or [`MIXED`].
    owner: u32,
    len: u32,
    /// Bytes of the blocks.
    bytes: u64,
    addresses: [MaybeUninit<u64>; CAPACITY],
    /// The classes of the blocks.
    classes: [u8; CAPACITY],
}

const _: () = assert!(size_of::<RemoteBatchData>() == 512);

/// Addresses of freed blocks for one owner. The value owns its data.
pub(crate) struct RemoteBatch(NonNull<RemoteBatchData>);

// SAFETY: only this value refers to the data, which lies in the metadata of the pool.
unsafe impl Send for RemoteBatch {}

impl RemoteBatch {
    const BYTES: usize = size_of::<RemoteBatchData>();

    fn data(&self) -> &RemoteBatchData {
        // SAFETY: `FreeBatches::empty` filled it in; this value alone refers to it.
        unsafe { self.0.as_ref() }
    }

    fn data_mut(&mut self) -> &mut RemoteBatchData {
        // SAFETY: as in `data`.
        unsafe { self.0.as_mut() }
    }

    /// Returns the owner to which the batch goes.
    #[inline(always)]
    pub(crate) fn owner(&self) -> u32 {
        self.data().owner
    }

    pub(crate) fn set_owner(&mut self, owner: u32) {
        self.data_mut().owner = owner;
    }

    /// Returns whether one more block of `size` bytes fits into `max` bytes. A single block always
    /// fits.
    #[inline(always)]
    pub(crate) fn fits(&self, size: usize, max: usize) -> bool {
        let data = self.data();
        (data.len as usize) < CAPACITY && (data.bytes + size as u64 <= max as u64 || data.len == 0)
    }

    /// Returns the bytes of its blocks.
    pub(crate) fn bytes(&self) -> u64 {
        self.data().bytes
    }

    /// Returns the weight of the batch in an inbox, in bytes.
    fn weight(&self) -> u64 {
        self.bytes().max(u64::from(self.data().len) * LEAST_WEIGHT)
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.data().len == 0
    }

    /// Adds the address of a block of `size` bytes, if it [`RemoteBatch::fits`].
    #[inline(always)]
    pub(crate) fn push(&mut self, address: u64, class: usize, size: usize) {
        let data = self.data_mut();
        let place = data.len as usize;
        if let Some((slot, known)) = data.addresses.get_mut(place).zip(data.classes.get_mut(place)) {
            slot.write(address);
            *known = class as u8;
            data.len += 1;
            data.bytes += size as u64;
        }
    }

    pub(crate) fn addresses(&self) -> &[u64] {
        let data = self.data();
        // SAFETY: the first `len` were written.
        unsafe { core::slice::from_raw_parts(data.addresses.as_ptr().cast(), data.len as usize) }
    }

    /// Keeps the addresses for which `keep` returns `true`, given address and class. Does not
    /// change the bytes.
    pub(crate) fn retain(&mut self, mut keep: impl FnMut(u64, usize) -> bool) {
        let mut left = 0;
        for place in 0..self.addresses().len() {
            let (address, class) = (self.addresses()[place], self.data().classes[place]);
            if keep(address, usize::from(class)) {
                let data = self.data_mut();
                data.addresses[left].write(address);
                data.classes[left] = class;
                left += 1;
            }
        }
        self.data_mut().len = left as u32;
    }
}

/// Batches as a stack.
#[derive(Default)]
pub(crate) struct Chain(Option<RemoteBatch>);

impl Chain {
    pub(crate) const EMPTY: Self = Self(None);

    pub(crate) fn push(&mut self, batch: RemoteBatch) {
        let next = self.0.take().map_or(ptr::null_mut(), |next| next.0.as_ptr());
        batch.data().next.set(next);
        self.0 = Some(batch);
    }

    pub(crate) fn append(&mut self, mut others: Self) {
        while let Some(batch) = others.pop() {
            self.push(batch);
        }
    }

    pub(crate) fn pop(&mut self) -> Option<RemoteBatch> {
        let batch = self.0.take()?;
        self.0 = NonNull::new(batch.data().next.get()).map(RemoteBatch);
        Some(batch)
    }
}

/// The batches of a pool that are not in use.
pub(crate) struct FreeBatches(Lock<Chain>);

impl FreeBatches {
    pub(crate) const fn new() -> Self {
        Self(Lock::new(Chain::EMPTY))
    }

    /// Returns an empty batch for an owner, unless there is no memory for one.
    pub(crate) fn empty(&self, runs: &Arena, owner: u32) -> Option<RemoteBatch> {
        let batch = self.0.lock().pop();
        let mut batch = match batch {
            Some(batch) => batch,
            None => {
                let (_, place) = runs.allocate(RemoteBatch::BYTES).ok()?;
                let place = place.cast::<RemoteBatchData>();
                // SAFETY: the run is of that size, aligned to a cache line, and stays the batch's.
                // Addresses beyond the length are not read.
                unsafe {
                    (&raw mut (*place.as_ptr()).next).write(Cell::new(ptr::null_mut()));
                    (&raw mut (*place.as_ptr()).len).write(0);
                    (&raw mut (*place.as_ptr()).bytes).write(0);
                    (&raw mut (*place.as_ptr()).classes).write([0; CAPACITY]);
                }
                RemoteBatch(place)
            }
        };
        batch.set_owner(owner);
        Some(batch)
    }

    /// Takes a batch back.
    pub(crate) fn recycle(&self, mut batch: RemoteBatch) {
        let data = batch.data_mut();
        (data.len, data.bytes) = (0, 0);
        self.0.lock().push(batch);
    }
}

/// The number of batches that a thread fills at the same time.
const OPEN: usize = 64;

/// The batches that a thread fills, by owner. Owners that share a slot share a batch, which is then
/// [`MIXED`]. Accessed inside the section of the heap.
pub(crate) struct OpenBatches([Cell<Option<RemoteBatch>>; OPEN]);

impl OpenBatches {
    #[inline(always)]
    fn slot(&self, owner: u32) -> &Cell<Option<RemoteBatch>> {
        &self.0[owner as usize % OPEN]
    }

    /// Adds the address of a block, with class and size, to the batch for an owner. Returns `false`
    /// if there is no batch, if the block does not fit into `max` bytes, or if `mark` does not mark
    /// the block.
    #[inline(always)]
    pub(crate) fn add(
        &self,
        owner: u32,
        (address, class, size): (u64, usize, usize),
        max: usize,
        mark: impl FnOnce() -> bool,
    ) -> bool {
        let slot = self.slot(owner);
        let Some(mut batch) = slot.take() else { return false };
        let is_added = batch.fits(size, max) && mark();
        if is_added {
            if batch.owner() != owner {
                batch.set_owner(MIXED);
            }
            batch.push(address, class, size);
        }
        slot.set(Some(batch));
        is_added
    }

    /// Sets the batch that is filled for an owner, and returns the one before.
    pub(crate) fn set(&self, owner: u32, batch: RemoteBatch) -> Option<RemoteBatch> {
        self.slot(owner).replace(Some(batch))
    }

    /// Takes the batch for an owner.
    pub(crate) fn take(&self, owner: u32) -> Option<RemoteBatch> {
        self.slot(owner).take()
    }

    /// Takes all batches.
    pub(crate) fn take_all(&self) -> Chain {
        let mut all = Chain::EMPTY;
        self.0.iter().filter_map(Cell::take).for_each(|batch| all.push(batch));
        all
    }
}

// Inboxes.

/// The words of an inbox. The loom model implements it with its own atomics.
pub(crate) trait InboxWords {
    type Batch: Copy;
    fn head(&self) -> Self::Batch;
    fn set_next(&self, batch: Self::Batch, next: Self::Batch);
    /// Replaces the head, by an exchange that acquires and releases.
    fn exchange_head(&self, head: Self::Batch, new: Self::Batch) -> bool;
    /// Empties the inbox by an exchange that acquires and releases, and returns the head before.
    fn take_head(&self) -> Self::Batch;
    /// Returns whether the thread of the inbox has ended.
    fn is_abandoned(&self) -> bool;
    fn abandon(&self);
}

/// Pushes a batch to an inbox. Returns whether its thread has ended: then the calling thread drains
/// it.
pub(crate) fn push<S: InboxWords>(inbox: &S, batch: S::Batch) -> bool {
    loop {
        let head = inbox.head();
        inbox.set_next(batch, head);
        if inbox.exchange_head(head, batch) {
            // If the ending thread took the head before, the exchange has synchronised with it, so
            // this load sees the inbox as abandoned.
            return inbox.is_abandoned();
        }
    }
}

/// Marks the inbox of a thread that ends, which drains it afterwards.
pub(crate) fn abandon(inbox: &impl InboxWords) {
    inbox.abandon();
}

/// The batches that other threads have sent to the owner of a heap.
pub(crate) struct Inbox {
    head: AtomicPtr<RemoteBatchData>,
    /// An upper bound of the weight of the batches.
    pending: AtomicU64,
    /// 1 if the thread has ended and no other thread has its number yet.
    abandoned: AtomicU32,
}

impl InboxWords for Inbox {
    type Batch = *mut RemoteBatchData;

    fn head(&self) -> *mut RemoteBatchData {
        self.head.load(Ordering::Relaxed)
    }

    fn set_next(&self, batch: *mut RemoteBatchData, next: *mut RemoteBatchData) {
        // SAFETY: the caller of `Inbox::push` owns the batch.
        unsafe { (*batch).next.set(next) };
    }

    fn exchange_head(&self, head: *mut RemoteBatchData, new: *mut RemoteBatchData) -> bool {
        self.head.compare_exchange(head, new, Ordering::AcqRel, Ordering::Relaxed).is_ok()
    }

    fn take_head(&self) -> *mut RemoteBatchData {
        self.head.swap(ptr::null_mut(), Ordering::AcqRel)
    }

    fn is_abandoned(&self) -> bool {
        self.abandoned.load(Ordering::Relaxed) != 0
    }

    fn abandon(&self) {
        self.abandoned.store(1, Ordering::Relaxed);
    }
}

impl Inbox {
    /// Pushes a batch. Returns whether the calling thread must drain the inbox: its thread has
    /// ended, or has left batches of `max` bytes in it.
    pub(crate) fn push(&self, batch: RemoteBatch, max: u64) -> bool {
        let weight = batch.weight();
        let before = self.pending.fetch_add(weight, Ordering::Relaxed);
        push(self, batch.0.as_ptr()) || before + weight >= max
    }

    /// Takes all batches.
    pub(crate) fn take_all(&self) -> Chain {
        let head = self.take_head();
        let (mut weight, mut batch) = (0, head);
        while let Some(data) = NonNull::new(batch) {
            let data = RemoteBatch(data);
            weight += data.weight();
            batch = data.data().next.get();
        }
        self.pending.fetch_sub(weight, Ordering::Relaxed);
        Chain(NonNull::new(head).map(RemoteBatch))
    }

    #[inline]
    pub(crate) fn is_empty(&self) -> bool {
        self.head().is_null()
    }

    /// Returns the approximate weight of the batches.
    pub(crate) fn pending(&self) -> u64 {
        self.pending.load(Ordering::Relaxed)
    }

    /// Returns whether the thread has ended.
    pub(crate) fn has_ended(&self) -> bool {
        self.is_abandoned()
    }

    /// Marks the inbox as that of a thread that ends. The thread drains it afterwards.
    pub(crate) fn end(&self) {
        abandon(self);
    }

    /// Clears the mark of [`Inbox::end`] for a new thread with the same number.
    pub(crate) fn reopen(&self) {
        if self.is_abandoned() {
            self.abandoned.store(0, Ordering::Relaxed);
        }
    }
}
