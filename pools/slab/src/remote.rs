//! Remote frees: blocks that a thread frees in slabs of other owners.
//!
//! The states of a slab's blocks are changed by plain stores, by the thread that owns the slab. So
//! another thread that frees a block does not free it. It asks the owner to.
//!
//! 1. The thread turns the state of the block from [`LIVE`] to [`REMOTE`], by compare-exchange. From
//!    there on the block is not live: a second free is an error.
//! 2. The address goes into the thread's open [`RemoteBatch`] for that owner: [`OpenBatches`].
//! 3. A full batch goes into the owner's [`Inbox`], a stack: threads push by compare-exchange, and
//!    all that it holds is taken out at once.
//! 4. The owner drains its inbox before it looks for blocks elsewhere: see `settle`. It finds each
//!    block again by its address, which is all that a batch holds.
//!
//! **Two frees of one block at the same time.** If the owner and another thread free a block in the
//! same instant, the owner's plain store may overwrite [`REMOTE`]. Then both are told that they
//! freed the block. It is in one bin only. The request that arrives finds another state than
//! [`REMOTE`] and is dropped. At any moment at most as many blocks are [`REMOTE`] as addresses are
//! under way. So none is lost and none is handed out twice.
//!
//! The functions that change words are generic, so that loom explores them: see `model`.

#[cfg(test)]
mod model;

use core::cell::Cell;
use core::mem::MaybeUninit;
use core::ptr::{self, NonNull};
use core::sync::atomic::{AtomicPtr, AtomicU8, AtomicU32, Ordering};

use umf_sync::Lock;

use crate::metadata::Arena;
use crate::span::{EXPORTED, LIVE, REMOTE};

// States.

/// The state of a block. The model has words of its own.
pub(crate) trait State {
    fn load(&self, order: Ordering) -> u8;
    fn store(&self, state: u8, order: Ordering);
    fn compare_exchange(&self, current: u8, new: u8) -> Result<u8, u8>;
}

impl State for AtomicU8 {
    #[inline(always)]
    fn load(&self, order: Ordering) -> u8 {
        self.load(order)
    }

    #[inline(always)]
    fn store(&self, state: u8, order: Ordering) {
        self.store(state, order);
    }

    #[inline(always)]
    fn compare_exchange(&self, current: u8, new: u8) -> Result<u8, u8> {
        self.compare_exchange(current, new, Ordering::AcqRel, Ordering::Acquire)
    }
}

/// Frees a block of an own slab; `false` if its state is not exactly [`LIVE`]. Inside the section of
/// the owner, or while that is revoked.
#[inline(always)]
pub(crate) fn free_own(state: &impl State) -> bool {
    let is_live = state.load(Ordering::Relaxed) == LIVE;
    if is_live {
        state.store(0, Ordering::Release);
    }
    is_live
}

/// Marks a block of another owner's slab as freed; `false` if its state is not exactly [`LIVE`].
#[inline(always)]
pub(crate) fn mark_remote(state: &impl State) -> bool {
    state.compare_exchange(LIVE, REMOTE).is_ok()
}

/// Undoes [`mark_remote`], for a thread that met a span that was filled anew.
#[cold]
pub(crate) fn unmark_remote(state: &impl State) {
    let _ = state.compare_exchange(REMOTE, LIVE);
}

/// Frees a block that was marked; `false` if it is not marked. The calling thread may put blocks
/// into the slab's bitmap or into its owner's bin.
#[inline(always)]
pub(crate) fn settle(state: &impl State) -> bool {
    let is_remote = state.load(Ordering::Acquire) == REMOTE;
    if is_remote {
        state.store(0, Ordering::Release);
    }
    is_remote
}

/// Replaces a state for which `new` returns one, and returns what it was. Exact for an exported
/// block, whose state no thread changes by a plain store; for others if no thread does meanwhile.
pub(crate) fn exchange(state: &impl State, new: impl Fn(u8) -> Option<u8>) -> Option<u8> {
    let mut old = state.load(Ordering::Acquire);
    loop {
        match state.compare_exchange(old, new(old)?) {
            Ok(old) => return Some(old),
            Err(now) => old = now,
        }
    }
}

/// Flags a live block as exported; `false` if it is not live. No thread changes the state by plain
/// stores meanwhile.
pub(crate) fn mark_exported(state: &impl State) -> bool {
    exchange(state, |old| (old & LIVE != 0).then_some(old | EXPORTED)).is_some()
}

/// Clears the state of a live block, and returns what it was. As [`exchange`].
pub(crate) fn clear(state: &impl State) -> Option<u8> {
    exchange(state, |old| (old & LIVE != 0).then_some(0))
}

// Batches.

/// The most addresses in a batch: with link, owner and length it takes 512 bytes.
const ROOM: usize = 62;

/// The owner that is written in a batch whose blocks have several.
pub(crate) const MIXED: u32 = u32::MAX;

/// The contents of a batch, in a run of the pool's metadata.
#[repr(C, align(64))]
pub(crate) struct Content {
    next: Cell<*mut Content>,
    /// As [`crate::span::thread_word`] writes it, 0 for slabs without owner, or [`MIXED`].
    owner: u32,
    len: u32,
    addresses: [MaybeUninit<u64>; ROOM],
}

/// Addresses of freed blocks for one owner. The value owns its contents.
pub(crate) struct RemoteBatch(NonNull<Content>);

// SAFETY: the content is this value's alone, and belongs to the pool's metadata, which goes along.
unsafe impl Send for RemoteBatch {}

impl RemoteBatch {
    const BYTES: usize = size_of::<Content>();

    fn content(&self) -> &Content {
        // SAFETY: `Batches::empty` filled it in; this value alone refers to it.
        unsafe { self.0.as_ref() }
    }

    fn content_mut(&mut self) -> &mut Content {
        // SAFETY: as in `content`.
        unsafe { self.0.as_mut() }
    }

    /// Returns the owner for which it is.
    #[inline(always)]
    pub(crate) fn owner(&self) -> u32 {
        self.content().owner
    }

    pub(crate) fn set_owner(&mut self, owner: u32) {
        self.content_mut().owner = owner;
    }

    #[inline(always)]
    pub(crate) fn is_full(&self) -> bool {
        self.content().len as usize >= ROOM
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.content().len == 0
    }

    /// Puts an address in, if it is not full.
    #[inline(always)]
    pub(crate) fn push(&mut self, address: u64) {
        let content = self.content_mut();
        if let Some(slot) = content.addresses.get_mut(content.len as usize) {
            slot.write(address);
            content.len += 1;
        }
    }

    pub(crate) fn addresses(&self) -> &[u64] {
        let content = self.content();
        // SAFETY: the first `len` were written.
        unsafe { core::slice::from_raw_parts(content.addresses.as_ptr().cast(), content.len as usize) }
    }

    /// Keeps the addresses for which `keep` returns `true`.
    pub(crate) fn retain(&mut self, mut keep: impl FnMut(u64) -> bool) {
        let mut left = 0;
        for place in 0..self.addresses().len() {
            let address = self.addresses()[place];
            if keep(address) {
                self.content_mut().addresses[left].write(address);
                left += 1;
            }
        }
        self.content_mut().len = left as u32;
    }
}

/// Batches as a stack.
#[derive(Default)]
pub(crate) struct Chain(Option<RemoteBatch>);

impl Chain {
    pub(crate) const EMPTY: Self = Self(None);

    pub(crate) fn push(&mut self, batch: RemoteBatch) {
        let next = self.0.take().map_or(ptr::null_mut(), |next| next.0.as_ptr());
        batch.content().next.set(next);
        self.0 = Some(batch);
    }

    pub(crate) fn append(&mut self, mut others: Self) {
        while let Some(batch) = others.pop() {
            self.push(batch);
        }
    }

    pub(crate) fn pop(&mut self) -> Option<RemoteBatch> {
        let batch = self.0.take()?;
        self.0 = NonNull::new(batch.content().next.get()).map(RemoteBatch);
        Some(batch)
    }
}

/// The batches of a pool that are not in use.
pub(crate) struct Batches(Lock<Chain>);

impl Batches {
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
                let place = place.cast::<Content>();
                // SAFETY: the run is of that size, aligned to a cache line, and stays the batch's.
                // Addresses beyond the length are not read.
                unsafe {
                    (&raw mut (*place.as_ptr()).next).write(Cell::new(ptr::null_mut()));
                    (&raw mut (*place.as_ptr()).len).write(0);
                }
                RemoteBatch(place)
            }
        };
        batch.set_owner(owner);
        Some(batch)
    }

    /// Takes a batch back.
    pub(crate) fn recycle(&self, mut batch: RemoteBatch) {
        batch.content_mut().len = 0;
        self.0.lock().push(batch);
    }
}

/// Owners for which a thread fills batches at one time.
const OPEN: usize = 64;

/// The batches that a thread fills, by owner. Two owners that share a place take it from each other.
/// Touched inside the section of the heap.
pub(crate) struct OpenBatches([Cell<Option<RemoteBatch>>; OPEN]);

impl OpenBatches {
    #[inline(always)]
    fn slot(&self, owner: u32) -> &Cell<Option<RemoteBatch>> {
        &self.0[owner as usize % OPEN]
    }

    /// Puts an address into the batch for an owner, if there is one with room and `mark` marks the
    /// block.
    #[inline(always)]
    pub(crate) fn add(&self, owner: u32, address: u64, mark: impl FnOnce() -> bool) -> bool {
        let slot = self.slot(owner);
        let Some(mut batch) = slot.take() else { return false };
        let is_added = batch.owner() == owner && !batch.is_full() && mark();
        if is_added {
            batch.push(address);
        }
        slot.set(Some(batch));
        is_added
    }

    /// Sets the batch that is filled for an owner, and returns what was in its place.
    pub(crate) fn set(&self, batch: RemoteBatch) -> Option<RemoteBatch> {
        self.slot(batch.owner()).replace(Some(batch))
    }

    /// Takes the batch out that is in the place of an owner.
    pub(crate) fn take(&self, owner: u32) -> Option<RemoteBatch> {
        self.slot(owner).take()
    }

    /// Takes all batches out.
    pub(crate) fn take_all(&self) -> Chain {
        let mut all = Chain::EMPTY;
        self.0.iter().filter_map(Cell::take).for_each(|batch| all.push(batch));
        all
    }
}

// Inboxes.

/// A sender that finds so many batches in an inbox drains it.
pub(crate) const MAX_PENDING: u32 = 64;
/// A thread that needs a new slab first drains an inbox with so many batches.
pub(crate) const MANY_PENDING: u32 = 16;

/// The words of an inbox. The model has words of its own.
pub(crate) trait Stack {
    type Batch: Copy;
    fn head(&self) -> Self::Batch;
    fn set_next(&self, batch: Self::Batch, next: Self::Batch);
    /// Replaces the head, by an exchange that acquires and releases.
    fn exchange_head(&self, head: Self::Batch, new: Self::Batch) -> bool;
    /// Leaves no batch, by an exchange that acquires and releases, and returns the head.
    fn take_head(&self) -> Self::Batch;
    /// Returns whether the thread of the inbox has ended.
    fn is_abandoned(&self) -> bool;
    fn abandon(&self);
}

/// Puts a batch into an inbox. Returns whether its thread has ended: then the calling thread drains
/// it.
pub(crate) fn push<S: Stack>(inbox: &S, batch: S::Batch) -> bool {
    loop {
        let head = inbox.head();
        inbox.set_next(batch, head);
        if inbox.exchange_head(head, batch) {
            // If the ending thread has taken the head before, the exchange has read what that wrote,
            // and this reads that the inbox is abandoned.
            return inbox.is_abandoned();
        }
    }
}

/// Marks the inbox of a thread that ends, which drains it afterwards.
pub(crate) fn abandon(inbox: &impl Stack) {
    inbox.abandon();
}

/// The batches that other threads have sent to the owner of a heap.
pub(crate) struct Inbox {
    head: AtomicPtr<Content>,
    /// The number of batches, or more.
    pending: AtomicU32,
    /// 1: the thread ended, and no thread has its number now.
    abandoned: AtomicU32,
}

impl Stack for Inbox {
    type Batch = *mut Content;

    fn head(&self) -> *mut Content {
        self.head.load(Ordering::Relaxed)
    }

    fn set_next(&self, batch: *mut Content, next: *mut Content) {
        // SAFETY: the caller of `Inbox::push` has the batch.
        unsafe { (*batch).next.set(next) };
    }

    fn exchange_head(&self, head: *mut Content, new: *mut Content) -> bool {
        self.head.compare_exchange(head, new, Ordering::AcqRel, Ordering::Relaxed).is_ok()
    }

    fn take_head(&self) -> *mut Content {
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
    /// Puts a batch in. Returns whether the calling thread is to drain the inbox: its thread has
    /// ended, or does not do so.
    pub(crate) fn push(&self, batch: RemoteBatch) -> bool {
        let pending = self.pending.fetch_add(1, Ordering::Relaxed) + 1;
        push(self, batch.0.as_ptr()) || pending >= MAX_PENDING
    }

    /// Takes all batches out.
    pub(crate) fn take_all(&self) -> Chain {
        let head = self.take_head();
        let (mut batches, mut batch) = (0, head);
        while let Some(content) = NonNull::new(batch) {
            batches += 1;
            // SAFETY: what was in the stack is the caller's now.
            batch = unsafe { content.as_ref() }.next.get();
        }
        self.pending.fetch_sub(batches, Ordering::Relaxed);
        Chain(NonNull::new(head).map(RemoteBatch))
    }

    #[inline]
    pub(crate) fn is_empty(&self) -> bool {
        self.head().is_null()
    }

    /// Returns the number of batches, roughly.
    pub(crate) fn pending(&self) -> u32 {
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

    /// A new thread has the number of one that ended.
    pub(crate) fn reopen(&self) {
        if self.is_abandoned() {
            self.abandoned.store(0, Ordering::Relaxed);
        }
    }
}
