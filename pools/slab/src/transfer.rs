//! [`TransferCache`]: moves free large blocks from threads that free to threads that allocate. Small
//! blocks go to the owners of their slabs: see `remote`.
//!
//! The middle of the pool, in front of `central`. It has two parts.
//!
//! **Batches.** A thread that frees a block which another thread allocated puts it into its
//! outgoing batch, together with such blocks of all large classes. It sends a full batch here as a
//! whole, under a lock that is held for a few stores. A thread with an empty bin takes a whole
//! batch and puts its blocks into its bins. Neither touches slabs or extents. So a block reaches a
//! thread that needs it after a few frees, however many classes there are. A thread that only frees
//! keeps no blocks but those in its outgoing batch. The large blocks of an ending thread go the
//! same way.
//!
//! **Stock.** Per large class, a stack of blocks that did not fit into the bins of their threads.
//! They keep their size until a thread takes them or they are merged into the extents.
//!
//! A block in here is free and counted as freed. Its span is unbiased, so that no section is
//! revoked when another thread takes it: its next free is an atomic exchange.

use core::cell::Cell;
use core::mem::MaybeUninit;
use core::ptr::{self, NonNull};
use core::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use umf_sync::Lock;

use crate::SlabSettings;
use crate::classes::MAX_CLASSES;
use crate::heap::Evicted;
use crate::metadata::Arena;
use crate::types::Entry;

/// The most blocks in a batch.
const CAPACITY: usize = 64;
/// The most waiting batches in a small pool. Each [`BYTES_PER_BATCH`] of the pool add one, up to
/// [`MAX_BATCHES`].
const MIN_BATCHES: u64 = 16;
const BYTES_PER_BATCH: u64 = 8 << 20;
const MAX_BATCHES: u64 = 1024;

/// The data of a batch, in a run of the pool's metadata.
#[repr(C, align(64))]
struct LargeBatchData {
    next: Option<LargeBatch>,
    /// Bytes of the blocks.
    bytes: usize,
    len: usize,
    classes: [u8; CAPACITY],
    entries: [MaybeUninit<Entry>; CAPACITY],
}

/// Free blocks of several large classes. The value owns its data.
pub(crate) struct LargeBatch(NonNull<LargeBatchData>);

// SAFETY: only this value refers to the data, which lies in the metadata of the pool.
unsafe impl Send for LargeBatch {}

impl LargeBatch {
    const BYTES: usize = size_of::<LargeBatchData>();

    /// Returns an empty batch.
    ///
    /// # Safety
    /// `place` is aligned to a cache line and points to [`LargeBatch::BYTES`] bytes that no other
    /// code uses while the pool lives.
    unsafe fn new(place: NonNull<u8>) -> Self {
        let place = place.cast::<LargeBatchData>();
        // SAFETY: passed on to the caller. The classes and entries past `len` are not read.
        unsafe {
            (&raw mut (*place.as_ptr()).next).write(None);
            (&raw mut (*place.as_ptr()).bytes).write(0);
            (&raw mut (*place.as_ptr()).len).write(0);
            (&raw mut (*place.as_ptr()).classes).write([0; CAPACITY]);
        }
        Self(place)
    }

    fn data(&self) -> &LargeBatchData {
        // SAFETY: see `new`; this value alone refers to it.
        unsafe { self.0.as_ref() }
    }

    fn data_mut(&mut self) -> &mut LargeBatchData {
        // SAFETY: as in `data`.
        unsafe { self.0.as_mut() }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.data().len == 0
    }

    /// Returns the bytes of its blocks.
    pub(crate) fn bytes(&self) -> u64 {
        self.data().bytes as u64
    }

    /// Returns whether one more block of `size` bytes fits into `max` bytes.
    pub(crate) fn fits(&self, size: usize, max: usize) -> bool {
        let data = self.data();
        data.len < CAPACITY && data.bytes + size <= max
    }

    /// Adds a block, if it [`LargeBatch::fits`].
    pub(crate) fn push(&mut self, class: usize, entry: Entry, size: usize) {
        let data = self.data_mut();
        let place = data.len;
        if let Some((known, slot)) = data.classes.get_mut(place).zip(data.entries.get_mut(place)) {
            *known = class as u8;
            slot.write(entry);
            data.len += 1;
            data.bytes += size;
        }
    }

    /// Removes all blocks, and passes runs of blocks of one class to `each`.
    pub(crate) fn drain(&mut self, mut each: impl FnMut(usize, &[Entry])) {
        let data = self.data_mut();
        let len = core::mem::take(&mut data.len);
        data.bytes = 0;
        // SAFETY: the first `len` entries were written.
        let entries = unsafe { core::slice::from_raw_parts(data.entries.as_ptr().cast::<Entry>(), len) };
        let mut from = 0;
        for run in data.classes[..len].chunk_by(|one, other| one == other) {
            each(usize::from(run[0]), &entries[from..from + run.len()]);
            from += run.len();
        }
    }

    /// Passes each block to `take`, and removes it if `take` returns its size.
    pub(crate) fn offer(&mut self, mut take: impl FnMut(usize, Entry) -> Option<usize>) {
        let data = self.data_mut();
        let mut left = 0;
        for place in 0..data.len {
            // SAFETY: the first `len` entries were written.
            let entry = unsafe { data.entries[place].assume_init() };
            match take(usize::from(data.classes[place]), entry) {
                Some(size) => data.bytes -= size,
                None => {
                    data.classes[left] = data.classes[place];
                    data.entries[left].write(entry);
                    left += 1;
                }
            }
        }
        data.len = left;
    }
}

/// The batch that a thread fills with freed large blocks which other threads allocated. Accessed
/// inside the section of its heap.
pub(crate) type Outgoing = Cell<Option<LargeBatch>>;

/// Waiting batches and empty batches, as stacks.
struct Stacks {
    waiting: Option<LargeBatch>,
    empty: Option<LargeBatch>,
    /// The minimum number of waiting batches since the last decay.
    min_waiting: u32,
}

/// Free blocks of one large class.
struct Stock {
    entries: *mut Entry,
    len: usize,
    capacity: usize,
    /// The minimum of `len` since the last decay.
    min_len: usize,
}

// SAFETY: the run of entries belongs to this value alone.
unsafe impl Send for Stock {}

/// Batches and stocks of a pool.
#[repr(align(64))]
pub(crate) struct TransferCache {
    stacks: Lock<Stacks>,
    /// The number of waiting batches. Written under the lock.
    batches: AtomicU32,
    /// Bytes in waiting batches. Written under the lock.
    batch_bytes: AtomicU64,
    /// The large classes that have a stock, a bit each.
    stocked: [AtomicU64; MAX_CLASSES / 64],
    /// Bytes in all stocks.
    stock_bytes: AtomicU64,
    /// The most bytes in here.
    max_bytes: u64,
    /// Whether the limit is a quarter of the pool, if that is more.
    grows: bool,
    max_stock: usize,
    stocks: [Lock<Stock>; MAX_CLASSES],
}

impl TransferCache {
    pub(crate) const fn new(settings: &SlabSettings) -> Self {
        const NO_STOCK: Stock =
            Stock { entries: NonNull::dangling().as_ptr(), len: 0, capacity: 0, min_len: 0 };
        Self {
            stacks: Lock::new(Stacks { waiting: None, empty: None, min_waiting: 0 }),
            batches: AtomicU32::new(0),
            batch_bytes: AtomicU64::new(0),
            stocked: [const { AtomicU64::new(0) }; MAX_CLASSES / 64],
            stock_bytes: AtomicU64::new(0),
            max_bytes: settings.shared_cache_size as u64,
            grows: settings.shared_cache_grows,
            max_stock: settings.shared_cache_blocks as usize,
            stocks: [const { Lock::new(NO_STOCK) }; MAX_CLASSES],
        }
    }

    /// Returns the bytes in batches and stocks.
    pub(crate) fn bytes(&self) -> u64 {
        self.stock_bytes.load(Ordering::Relaxed) + self.batch_bytes()
    }

    fn batch_bytes(&self) -> u64 {
        self.batch_bytes.load(Ordering::Relaxed)
    }

    fn batches(&self) -> u32 {
        self.batches.load(Ordering::Relaxed)
    }

    /// Returns the most bytes in here, in a pool of `reserved` bytes.
    fn max_bytes(&self, reserved: u64) -> u64 {
        if self.grows { self.max_bytes.max(reserved / 4) } else { self.max_bytes }
    }

    // Batches.

    /// Adds a batch, and returns an empty one in exchange, if there is one.
    ///
    /// # Errors
    /// The batch itself, if too many wait for a pool of `reserved` bytes.
    pub(crate) fn put(&self, batch: LargeBatch, reserved: u64) -> Result<Option<LargeBatch>, LargeBatch> {
        let bytes = batch.bytes();
        let max = self.max_bytes(reserved).saturating_sub(self.stock_bytes.load(Ordering::Relaxed));
        let batches = (MIN_BATCHES + reserved / BYTES_PER_BATCH).min(MAX_BATCHES);
        let mut stacks = self.stacks.lock();
        if u64::from(self.batches()) >= batches || self.batch_bytes() + bytes > max {
            return Err(batch);
        }
        self.batches.store(self.batches() + 1, Ordering::Relaxed);
        self.batch_bytes.store(self.batch_bytes() + bytes, Ordering::Relaxed);
        push(&mut stacks.waiting, batch);
        Ok(pop(&mut stacks.empty))
    }

    /// Takes the newest batch.
    pub(crate) fn take(&self) -> Option<LargeBatch> {
        if self.batches() == 0 {
            return None;
        }
        let mut stacks = self.stacks.lock();
        let batch = pop(&mut stacks.waiting)?;
        self.batches.store(self.batches() - 1, Ordering::Relaxed);
        self.batch_bytes.store(self.batch_bytes() - batch.bytes(), Ordering::Relaxed);
        stacks.min_waiting = stacks.min_waiting.min(self.batches());
        Some(batch)
    }

    /// Returns how many batches no thread took since the last decay, and begins a new period.
    pub(crate) fn unused_batches(&self) -> u32 {
        let mut stacks = self.stacks.lock();
        core::mem::replace(&mut stacks.min_waiting, self.batches())
    }

    /// Returns an empty batch, unless there is no memory for one.
    pub(crate) fn empty_batch(&self, runs: &Arena) -> Option<LargeBatch> {
        let empty = pop(&mut self.stacks.lock().empty);
        empty.or_else(|| {
            let (_, place) = runs.allocate(LargeBatch::BYTES).ok()?;
            // SAFETY: the run has that size, is aligned to a cache line, and is never released.
            Some(unsafe { LargeBatch::new(place) })
        })
    }

    /// Adds an empty batch to the stack of empty ones.
    pub(crate) fn recycle(&self, batch: LargeBatch) {
        push(&mut self.stacks.lock().empty, batch);
    }

    // The stock of large classes.

    /// Returns whether the class has a stock.
    pub(crate) fn has_stock(&self, class: usize) -> bool {
        self.stocked[class / 64].load(Ordering::Relaxed) & (1 << (class % 64)) != 0
    }

    fn note_stock(&self, class: usize, stock: &Stock) {
        let (word, bit) = (&self.stocked[class / 64], 1 << (class % 64));
        if stock.len > 0 {
            word.fetch_or(bit, Ordering::Relaxed);
        } else {
            word.fetch_and(!bit, Ordering::Relaxed);
        }
    }

    /// Moves up to `want` blocks of `size` bytes from the stock to `out`. Returns their number.
    ///
    /// # Safety
    /// `out` has room for `want` entries.
    pub(crate) unsafe fn take_stock(&self, class: usize, size: usize, out: *mut Entry, want: usize) -> usize {
        let mut stock = self.stocks[class].lock();
        let n = want.min(stock.len);
        if n > 0 {
            stock.len -= n;
            stock.min_len = stock.min_len.min(stock.len);
            // SAFETY: the stock holds `n` entries from `len` on, and `out` has room for them.
            unsafe { ptr::copy_nonoverlapping(stock.entries.add(stock.len), out, n) };
            self.stock_bytes.fetch_sub((n * size) as u64, Ordering::Relaxed);
        }
        self.note_stock(class, &stock);
        n
    }

    /// Takes the blocks of `size` bytes from the stock that were unused since the last decay.
    pub(crate) fn take_unused_stock(&self, class: usize, size: usize) -> Evicted {
        let mut stock = self.stocks[class].lock();
        // SAFETY: the stock holds at least `min_len` entries.
        let evicted = unsafe { Evicted::copied(stock.entries, stock.min_len) };
        let n = evicted.entries().len();
        if n > 0 {
            stock.len -= n;
            stock.min_len -= n;
            // SAFETY: the stock held `n` entries and `len` more.
            unsafe { ptr::copy(stock.entries.add(n), stock.entries, stock.len) };
            self.stock_bytes.fetch_sub((n * size) as u64, Ordering::Relaxed);
            self.note_stock(class, &stock);
        }
        evicted
    }

    /// Adds blocks of `size` bytes to the stock, as many as the limits allow in a pool of
    /// `reserved` bytes. Returns their number.
    pub(crate) fn put_stock(
        &self,
        class: usize,
        size: usize,
        entries: &[Entry],
        reserved: u64,
        runs: &Arena,
    ) -> usize {
        let allowed = self.max_bytes(reserved).saturating_sub(self.bytes()) / size as u64;
        let fit = entries.len().min(usize::try_from(allowed).unwrap_or(usize::MAX));
        if fit == 0 || self.max_stock == 0 {
            return 0;
        }
        let mut stock = self.stocks[class].lock();
        if stock.capacity == 0
            && let Ok((_, place)) = runs.allocate(self.max_stock * size_of::<Entry>())
        {
            (stock.entries, stock.capacity) = (place.as_ptr().cast(), self.max_stock);
        }
        let n = fit.min(stock.capacity - stock.len);
        if n > 0 {
            // SAFETY: there is room for `n` entries from `len` on.
            unsafe { ptr::copy_nonoverlapping(entries.as_ptr(), stock.entries.add(stock.len), n) };
            stock.len += n;
            self.stock_bytes.fetch_add((n * size) as u64, Ordering::Relaxed);
        }
        self.note_stock(class, &stock);
        n
    }

    /// Begins a new decay period of a stock.
    pub(crate) fn begin_period(&self, class: usize) {
        let mut stock = self.stocks[class].lock();
        stock.min_len = stock.len;
    }
}

fn push(stack: &mut Option<LargeBatch>, mut batch: LargeBatch) {
    batch.data_mut().next = stack.take();
    *stack = Some(batch);
}

fn pop(stack: &mut Option<LargeBatch>) -> Option<LargeBatch> {
    let mut batch = stack.take()?;
    *stack = batch.data_mut().next.take();
    Some(batch)
}

#[cfg(test)]
mod tests;
