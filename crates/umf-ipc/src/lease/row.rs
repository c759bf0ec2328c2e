//! A row in an importer's memory, and the word of a lease.

use core::ptr::{self, NonNull};
use core::sync::atomic::{AtomicPtr, AtomicU32, AtomicU64, Ordering};

use umf_core::lock::Lock;
use umf_core::step::{Step, step};
use umf_core::thread::ThreadIndex;

use super::layout::{MAX_STRIDE, ROW_ALIGN};
use super::table::LeaseTable;
use crate::sys::{self, AddressRange};
use crate::{Error, Result, protocol};

/// A thread's number; `None` for all threads without one.
pub(super) type Thread = Option<u32>;

/// Where rows are shown: ranges of one size, which lie at multiples of it, so that from the address of a word its row can
/// be found.
const RANGE: usize = (MAX_STRIDE + ROW_ALIGN).next_power_of_two() as usize;
/// Where the words begin in a range. Before them is what concerns the row as a whole.
const WORDS: usize = ROW_ALIGN as usize;

/// The beginning of a range. A forked child finds it empty.
#[derive(Debug)]
struct Head {
    /// The table that the row belongs to; null while there is none, and in children.
    table: AtomicPtr<LeaseTable>,
    /// The thread that writes the row.
    thread: AtomicU32,
    /// Its number in the door.
    row: AtomicU32,
    /// Bit per [`STEP`] bytes: they have memory.
    populated: [AtomicU64; (MAX_STRIDE / STEP as u64).div_ceil(64) as usize],
}

const _: () = assert!(size_of::<Head>() <= WORDS);

const NO_THREAD: u32 = u32::MAX;

/// Where one thread counts its opens of one export: a word of its row.
///
/// It stays mapped as long as the importer exists, and is the thread's own: a thread that finds an old note of a handle
/// counts there before it sees that the note is out of date, and takes it back then.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Lease(NonNull<AtomicU64>);

impl Lease {
    /// The word. Mapped as long as the importer exists.
    #[inline]
    pub(crate) const fn word(self) -> NonNull<AtomicU64> {
        self.0
    }

    fn place(self) -> usize {
        // The range is aligned to its size.
        self.0.addr().get() % RANGE
    }

    /// The producer's pid (0 in a forked child, to which the lease does not belong) and the slot.
    #[cold]
    pub(crate) fn producer_and_slot(self) -> (u32, u32) {
        let table = NonNull::new(self.head().table.load(Ordering::Relaxed));
        // SAFETY: whoever has a lease keeps its table.
        (table.map_or(0, |table| unsafe { table.as_ref() }.pid()), self.slot())
    }

    fn slot(self) -> u32 {
        ((self.place() - WORDS) / 8) as u32
    }

    fn head<'a>(self) -> &'a Head {
        // SAFETY: words lie in ranges, which begin with a head and stay mapped.
        unsafe { self.0.cast::<u8>().sub(self.place()).cast::<Head>().as_ref() }
    }

    /// Gives back what was counted.
    ///
    /// # Safety
    /// The lease was taken and not given back yet, and its table exists.
    #[inline]
    pub(crate) unsafe fn give_back(self, current: Option<ThreadIndex>) {
        let head = self.head();
        let Some(table) = NonNull::new(head.table.load(Ordering::Relaxed)) else {
            // This process is a forked child: the parent counts it.
            return;
        };
        if current.is_some_and(|thread| thread.get() == head.thread.load(Ordering::Relaxed)) {
            // SAFETY: the row is shown there, and this thread alone writes it.
            protocol::unpin(unsafe { self.0.as_ref() });
        } else {
            // SAFETY: the caller says that it exists.
            unsafe { table.as_ref() }.give_back_elsewhere(self.slot());
        }
    }
}

/// Address ranges in which rows were shown, each for one thread. They stay mapped as long as the importer exists.
#[derive(Debug, Default)]
pub(crate) struct Ranges(Lock<Vec<(Thread, AddressRange)>>);

impl Ranges {
    fn take(&self, thread: Thread) -> Result<AddressRange> {
        let mut ranges = self.0.lock();
        if let Some(known) = ranges.iter().position(|(of, _)| *of == thread) {
            return Ok(ranges.swap_remove(known).1);
        }
        drop(ranges);
        let system = |errno| Error::system("mmap of a lease row", errno);
        let range = AddressRange::aligned(RANGE).map_err(system)?;
        // SAFETY: the range is private and anonymous, and begins with whole pages up to WORDS.
        unsafe { sys::wipe_on_fork(range.base(), WORDS) }.map_err(system)?;
        Ok(range)
    }

    fn give_back(&self, thread: Thread, range: AddressRange) {
        head(&range).table.store(ptr::null_mut(), Ordering::Relaxed);
        match range.clear(WORDS) {
            Ok(()) => self.0.lock().push((thread, range)),
            // It must not be unmapped, and shows a row that will be another's.
            Err(errno) => {
                tracing::error!(%errno, "the address range of a closed lease row is lost");
                core::mem::forget(range);
            }
        }
        step(Step::RowHidden);
    }

    pub(crate) fn lock_for_fork(&self) {
        self.0.lock_for_fork();
    }

    /// # Safety
    /// [`Ranges::lock_for_fork`] ran in this thread, or in the one of which it is the forked copy.
    pub(crate) unsafe fn unlock_after_fork(&self) {
        // SAFETY: passed on to the caller.
        unsafe { self.0.unlock_after_fork() };
    }
}

fn head(range: &AddressRange) -> &Head {
    // SAFETY: a range is at least that long, zeros at first, and aligned; fields are atomics.
    unsafe { range.base().cast().as_ref() }
}

/// A row that this process has claimed.
#[derive(Debug)]
pub(super) struct Row {
    pub number: u32,
    thread: Thread,
    range: AddressRange,
}

/// How much gets its memory at a time.
const STEP: usize = 4096;

impl Row {
    /// Shows a row of a door, which lies at `offset` in its file.
    pub(super) fn show(
        number: u32,
        thread: Thread,
        (fd, offset, size): (&std::os::fd::OwnedFd, u64, usize),
        ranges: &Ranges,
    ) -> Result<Self> {
        let range = ranges.take(thread)?;
        let shown = range.show(WORDS, fd, offset, size);
        step(Step::RowShown);
        match shown {
            Ok(()) => {
                // (The range may have shown another row before.)
                head(&range).populated.iter().for_each(|word| word.store(0, Ordering::Relaxed));
                Ok(Self { number, thread, range })
            }
            Err(errno) => {
                ranges.give_back(thread, range);
                Err(Error::system("mmap of a lease row", errno))
            }
        }
    }

    /// Takes the row out of this process's memory.
    pub(super) fn hide(self, ranges: &Ranges) {
        ranges.give_back(self.thread, self.range);
    }

    /// Where the words begin.
    pub(super) fn words(&self) -> Words {
        // SAFETY: inside of the range.
        Words(unsafe { self.range.base().add(WORDS) }.cast())
    }

    /// The word of a slot, which the row has; writing it cannot fault. `table` is the one that the row belongs to.
    pub(super) fn lease(&self, slot: u32, table: &LeaseTable) -> Result<Lease> {
        let head = head(&self.range);
        head.thread.store(self.thread.unwrap_or(NO_THREAD), Ordering::Relaxed);
        head.row.store(self.number, Ordering::Relaxed);
        head.table.store(ptr::from_ref(table).cast_mut(), Ordering::Relaxed);
        let (populated, bit) = part(head, slot);
        if populated.load(Ordering::Relaxed) & bit == 0 {
            // A page is at least a step; a larger one is asked for more than once.
            let page_size = rustix::param::page_size();
            let page = (slot as usize * 8) & !(page_size - 1);
            // SAFETY: the range shows a row there, writable, and rows end at multiples of all page sizes.
            unsafe { sys::populate(self.words().0.cast::<u8>().add(page), page_size) }
                .map_err(|errno| Error::system("memory for a lease row", errno))?;
            step(Step::RowPopulated);
            populated.fetch_or(bit, Ordering::Relaxed);
        }
        Ok(self.words().lease(slot))
    }
}

/// Which bit says that a slot's word has memory.
fn part(head: &Head, slot: u32) -> (&AtomicU64, u64) {
    let part = slot as usize * 8 / STEP;
    (&head.populated[part / 64], 1 << (part % 64))
}

/// Where the words of a row begin, in a range that stays mapped as long as the importer exists.
#[derive(Clone, Copy, Debug)]
pub(super) struct Words(NonNull<AtomicU64>);

impl Words {
    /// One that was kept as a pointer.
    ///
    /// # Safety
    /// It came from [`Words::pointer`], and the importer still exists.
    pub(super) const unsafe fn from_pointer(words: NonNull<AtomicU64>) -> Self {
        Self(words)
    }

    pub(super) const fn pointer(self) -> NonNull<AtomicU64> {
        self.0
    }

    const fn lease(self, slot: u32) -> Lease {
        // SAFETY: a range has room for the words of all slots that a ledger can have.
        Lease(unsafe { self.0.add(slot as usize) })
    }

    /// The word of a slot of this table and the number of the row, if this is the thread's row of the table, and the word has
    /// memory. (In a forked child it is nobody's row.)
    #[inline]
    pub(super) fn known(self, slot: u32, thread: u32, table: &LeaseTable) -> Option<(Lease, u32)> {
        let lease = self.lease(slot);
        let head = lease.head();
        let (populated, bit) = part(head, slot);
        let is_known = ptr::eq(head.table.load(Ordering::Relaxed), table)
            && head.thread.load(Ordering::Relaxed) == thread
            && populated.load(Ordering::Relaxed) & bit != 0;
        is_known.then(|| (lease, head.row.load(Ordering::Relaxed)))
    }
}
