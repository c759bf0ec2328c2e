//! [`TransferCache`]: free large blocks on their way from threads that free them to threads that
//! allocate. Small blocks go to the owners of their slabs: see `remote`.
//!
//! The middle of the pool, in front of `central`. It has two parts.
//!
//! **Batches.** A thread that frees a block that another thread took puts it into its outgoing
//! batch, together with such blocks of all large classes. A full batch goes here as a whole, under a
//! lock that is held for a few stores. A thread whose bin is empty takes a batch as a whole and puts its
//! blocks into its bins. No slab and no list of extents is looked at on the way, and a block
//! reaches the threads that need it after a few frees, however many classes there are. A thread
//! that only frees keeps the batch that it fills and nothing else. The large blocks that a thread
//! keeps when it ends go the same way.
//!
//! **Stock.** Per large class a stack of blocks that had no room in the bins of their threads. They
//! keep their size until a thread takes them or they are merged into the extents.
//!
//! A block in here is free, counted as such by the thread that freed it, and its span is not
//! biased: it is freed by atomic exchange when it is used again, so that no thread's section is
//! revoked when it changes hands.

use core::cell::Cell;
use core::mem::MaybeUninit;
use core::ptr::{self, NonNull};
use core::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use umf_sync::Lock;

use crate::SlabSettings;
use crate::classes::MAX_CLASSES;
use crate::heap::Evicted;
use crate::metadata::Arena;
use crate::span::Entry;

/// The most blocks in a batch.
const ROOM: usize = 64;
/// The most batches that wait: this many, and one more for each [`BYTES_PER_BATCH`] of the pool, up
/// to [`MAX_BATCHES`].
const MIN_BATCHES: u64 = 16;
const BYTES_PER_BATCH: u64 = 8 << 20;
const MAX_BATCHES: u64 = 1024;

/// The contents of a batch, in a run of the pool's metadata.
#[repr(C, align(64))]
struct Content {
    next: Option<Batch>,
    /// Bytes of the blocks.
    bytes: usize,
    len: usize,
    classes: [u8; ROOM],
    entries: [MaybeUninit<Entry>; ROOM],
}

/// Free blocks of several large classes. The value owns its contents.
pub(crate) struct Batch(NonNull<Content>);

// SAFETY: the content is this value's alone, and belongs to the pool's metadata, which goes along.
unsafe impl Send for Batch {}

impl Batch {
    const BYTES: usize = size_of::<Content>();

    /// Returns an empty batch.
    ///
    /// # Safety
    /// `place` is aligned to a cache line, and has [`Batch::BYTES`] that no other code uses as long
    /// as the pool lives.
    unsafe fn new(place: NonNull<u8>) -> Self {
        let place = place.cast::<Content>();
        // SAFETY: passed on to the caller. The classes and entries past `len` are not read.
        unsafe {
            (&raw mut (*place.as_ptr()).next).write(None);
            (&raw mut (*place.as_ptr()).bytes).write(0);
            (&raw mut (*place.as_ptr()).len).write(0);
            (&raw mut (*place.as_ptr()).classes).write([0; ROOM]);
        }
        Self(place)
    }

    fn content(&self) -> &Content {
        // SAFETY: see `new`; this value alone refers to it.
        unsafe { self.0.as_ref() }
    }

    fn content_mut(&mut self) -> &mut Content {
        // SAFETY: as in `content`.
        unsafe { self.0.as_mut() }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.content().len == 0
    }

    /// Returns the bytes of its blocks.
    pub(crate) fn bytes(&self) -> u64 {
        self.content().bytes as u64
    }

    /// Returns whether there is room for one more block, with at most `max` bytes then.
    pub(crate) fn fits(&self, size: usize, max: usize) -> bool {
        let content = self.content();
        content.len < ROOM && content.bytes + size <= max
    }

    /// Puts a block in, if it [`Batch::fits`].
    pub(crate) fn push(&mut self, class: usize, entry: Entry, size: usize) {
        let content = self.content_mut();
        let place = content.len;
        if let Some((known, slot)) = content.classes.get_mut(place).zip(content.entries.get_mut(place)) {
            *known = class as u8;
            slot.write(entry);
            content.len += 1;
            content.bytes += size;
        }
    }

    /// Takes all blocks out, and shows runs of blocks of one class.
    pub(crate) fn drain(&mut self, mut each: impl FnMut(usize, &[Entry])) {
        let content = self.content_mut();
        let len = core::mem::take(&mut content.len);
        content.bytes = 0;
        // SAFETY: the first `len` entries were written.
        let entries = unsafe { core::slice::from_raw_parts(content.entries.as_ptr().cast::<Entry>(), len) };
        let mut from = 0;
        for run in content.classes[..len].chunk_by(|one, other| one == other) {
            each(usize::from(run[0]), &entries[from..from + run.len()]);
            from += run.len();
        }
    }

    /// Takes the blocks out for which `take` returns their size.
    pub(crate) fn offer(&mut self, mut take: impl FnMut(usize, Entry) -> Option<usize>) {
        let content = self.content_mut();
        let mut left = 0;
        for place in 0..content.len {
            // SAFETY: the first `len` entries were written.
            let entry = unsafe { content.entries[place].assume_init() };
            match take(usize::from(content.classes[place]), entry) {
                Some(size) => content.bytes -= size,
                None => {
                    content.classes[left] = content.classes[place];
                    content.entries[left].write(entry);
                    left += 1;
                }
            }
        }
        content.len = left;
    }
}

/// The batch that a thread fills with large blocks that other threads took. Touched inside the section of its
/// heap.
pub(crate) type Outgoing = Cell<Option<Batch>>;

/// Batches that wait, and empty ones, as stacks.
struct Stacks {
    waiting: Option<Batch>,
    empty: Option<Batch>,
    /// The minimum of the number that wait since the last decay.
    min_waiting: u32,
}

/// Free blocks of one large class.
struct Stock {
    entries: *mut Entry,
    len: usize,
    room: usize,
    /// The minimum of `len` since the last decay.
    min_len: usize,
}

// SAFETY: the run of entries belongs to this value alone.
unsafe impl Send for Stock {}

/// Batches and stocks of a pool.
#[repr(align(64))]
pub(crate) struct TransferCache {
    stacks: Lock<Stacks>,
    /// How many batches wait, and their bytes. Written under the lock.
    batches: AtomicU32,
    batch_bytes: AtomicU64,
    /// Which large classes have a stock, and the bytes of all.
    stocked: [AtomicU64; MAX_CLASSES / 64],
    stock_bytes: AtomicU64,
    /// The most bytes in here, at least, and whether that grows with the pool.
    max_bytes: u64,
    grows: bool,
    max_stock: usize,
    stocks: [Lock<Stock>; MAX_CLASSES],
}

impl TransferCache {
    pub(crate) const fn new(settings: &SlabSettings) -> Self {
        const NO_STOCK: Stock = Stock { entries: NonNull::dangling().as_ptr(), len: 0, room: 0, min_len: 0 };
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

    /// Puts a batch in, and returns an empty one for it, if there is one. Returns the batch itself
    /// if too many wait, for a pool of `reserved` bytes.
    pub(crate) fn put(&self, batch: Batch, reserved: u64) -> Result<Option<Batch>, Batch> {
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

    /// Takes the batch that came last.
    pub(crate) fn take(&self) -> Option<Batch> {
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
    pub(crate) fn empty_batch(&self, runs: &Arena) -> Option<Batch> {
        let empty = pop(&mut self.stacks.lock().empty);
        empty.or_else(|| {
            let (_, place) = runs.allocate(Batch::BYTES).ok()?;
            // SAFETY: the run is of that size, aligned to a cache line, and stays the batch's.
            Some(unsafe { Batch::new(place) })
        })
    }

    /// Takes an empty batch back.
    pub(crate) fn recycle(&self, batch: Batch) {
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

    /// Moves up to `want` blocks of `size` bytes from stock to `out`, and returns how many.
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

    /// Takes blocks of `size` bytes from stock that were not used since the last decay.
    pub(crate) fn take_unused_stock(&self, class: usize, size: usize) -> Evicted {
        let mut stock = self.stocks[class].lock();
        // SAFETY: the stock holds as many entries.
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

    /// Puts as many blocks of `size` bytes into stock as there is room for in a pool of `reserved`
    /// bytes, and returns how many.
    pub(crate) fn put_stock(
        &self,
        class: usize,
        size: usize,
        entries: &[Entry],
        reserved: u64,
        runs: &Arena,
    ) -> usize {
        let room = self.max_bytes(reserved).saturating_sub(self.bytes()) / size as u64;
        let fit = entries.len().min(usize::try_from(room).unwrap_or(usize::MAX));
        if fit == 0 || self.max_stock == 0 {
            return 0;
        }
        let mut stock = self.stocks[class].lock();
        if stock.room == 0
            && let Ok((_, place)) = runs.allocate(self.max_stock * size_of::<Entry>())
        {
            (stock.entries, stock.room) = (place.as_ptr().cast(), self.max_stock);
        }
        let n = fit.min(stock.room - stock.len);
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

fn push(stack: &mut Option<Batch>, mut batch: Batch) {
    batch.content_mut().next = stack.take();
    *stack = Some(batch);
}

fn pop(stack: &mut Option<Batch>) -> Option<Batch> {
    let mut batch = stack.take()?;
    *stack = batch.content_mut().next.take();
    Some(batch)
}

#[cfg(test)]
mod tests;
