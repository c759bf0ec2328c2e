//! Memory that the campaign and all of its workers share without umf: counters, states of blocks,
//! published handles, and the blocks that each worker has open.
//!
//! Every word is an atomic. A worker may be killed between any two stores. Readers therefore check
//! sums and incarnations.

use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering, fence};

use umf::Handle;
use umf::ipc::HANDLE_SIZE;

use crate::content::word;

/// Workers at one time.
pub const WORKERS: usize = 16;
/// Threads of a worker that report progress.
pub const THREADS: usize = 16;
/// The number under which workers inherit the shared file.
pub const INHERITED_FD: i32 = 213;
/// Blocks whose state is known at one time. A later block takes the place of an earlier one.
const BLOCKS: usize = 1 << 18;
const NOTICES: usize = 384;
const HANDLE_WORDS: usize = HANDLE_SIZE / 8;

macro_rules! counters {
    ($($name:ident = $text:literal,)*) => {
        /// What a run counts.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub enum Counter { $($name,)* }

        impl Counter {
            /// All of them, with the text that the statistics have.
            pub const ALL: &'static [(Self, &'static str)] = &[$((Self::$name, $text),)*];
        }
    };
}

counters! {
    Rounds = "rounds",
    Starts = "workers started",
    Kills = "kills",
    Stops = "stops",
    Execs = "execs",
    Forks = "forks",
    Allocations = "allocations",
    Refused = "allocations refused by a limit",
    Exports = "exports",
    Frees = "frees",
    FreesOfOpen = "frees of open blocks",
    Destroyed = "pools destroyed",
    Trims = "trims",
    ExportersDropped = "exporters dropped",
    Opens = "opens",
    Stale = "stale refusals",
    ProducerGone = "refusals for a producer that is gone",
    OtherRefusals = "other refusals",
    OtherUser = "refusals to another user",
    Checks = "checks",
    ChecksAfterFree = "checks after free",
    Released = "checks that found released pages",
    ClosedElsewhere = "mappings closed in another thread",
    Evictions = "evictions",
    ImportersDropped = "importers dropped",
    LeaseEnds = "lease ends awaited",
    LeaseEndsAbandoned = "lease ends not awaited, importers busy",
    CensusTaken = "workers that left nothing",
    CensusSkipped = "workers that ended while others held their memory",
    DomainObjects = "domain objects checked",
    LinkViews = "link views and messages checked",
    SecondCopy = "blocks between two copies of the library",
}

/// What a worker's thread does. The campaign names it when the thread does not progress.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum Activity {
    None,
    Ended,
    Pause,
    MakePool,
    Allocate,
    Export,
    Free,
    Trim,
    DestroyPool,
    Drain,
    DropExporter,
    Evict,
    Open,
    Check,
    Close,
    Fork,
    WaitForChild,
    DropImporter,
    AwaitLeaseEnd,
    EndOfWorker,
    Domain,
    Link,
    SecondCopy,
}

/// A worker, as the campaign and other workers see it.
#[repr(C)]
pub struct WorkerState {
    /// The number of the process that has this place. No other process has the number.
    pub incarnation: AtomicU64,
    /// The last incarnation that was killed or is about to end.
    pub ending: AtomicU64,
    /// Its pid, as the campaign sees it.
    pub pid: AtomicU32,
    progress: [AtomicU64; THREADS],
    activity: [AtomicU32; THREADS],
}

#[repr(C)]
struct NoticeSlot {
    /// Odd while it is written.
    sequence: AtomicU64,
    sum: AtomicU64,
    id: AtomicU64,
    size: AtomicU64,
    flags: AtomicU64,
    owner: AtomicU64,
    handle: [AtomicU64; HANDLE_WORDS],
}

/// The shared words.
#[repr(C)]
pub struct Shared {
    next_block: AtomicU64,
    stop: AtomicU32,
    counts: [AtomicU64; 64],
    /// Violations, by promise.
    pub violations: [AtomicU64; 32],
    /// Places of workers.
    pub workers: [WorkerState; WORKERS],
    notices: [NoticeSlot; NOTICES],
    states: [AtomicU64; BLOCKS],
    /// For each worker and block: incarnation, high bits of the block's number, count of openings.
    opens: [[AtomicU64; BLOCKS]; WORKERS],
}

/// What becomes of a block. `None` where a later block has taken its place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BlockState {
    Live = 1,
    Freeing = 2,
    Freed = 3,
}

/// Properties of a published handle.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Flags {
    /// Pages may read as zeros after the block is freed.
    pub release: bool,
    /// The exporter answers on a socket.
    pub served: bool,
    /// The memory can be opened for reading only.
    pub read_only: bool,
    /// The producer is in a pid namespace of its own.
    pub namespace: bool,
    /// The handle may become stale before its block is freed.
    pub evictable: bool,
    /// The producer runs as another user than root.
    pub user: bool,
    /// The memory is not opened across pid namespaces or users.
    pub device: bool,
}

impl Flags {
    const fn bits(self) -> u64 {
        let Self { release, served, read_only, namespace, evictable, user, device } = self;
        release as u64
            | (served as u64) << 1
            | (read_only as u64) << 2
            | (namespace as u64) << 3
            | (evictable as u64) << 4
            | (user as u64) << 5
            | (device as u64) << 6
    }

    const fn from_bits(bits: u64) -> Self {
        Self {
            release: bits & 1 != 0,
            served: bits & 2 != 0,
            read_only: bits & 4 != 0,
            namespace: bits & 8 != 0,
            evictable: bits & 16 != 0,
            user: bits & 32 != 0,
            device: bits & 64 != 0,
        }
    }
}

/// A worker's place and incarnation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Identity {
    pub place: usize,
    pub incarnation: u64,
}

/// A published handle, and what its producer says about the block.
#[derive(Clone, Copy, Debug)]
pub struct Notice {
    pub id: u64,
    /// Bytes that have content.
    pub size: u64,
    pub flags: Flags,
    pub producer: Identity,
    pub handle: [u8; HANDLE_SIZE],
}

impl Notice {
    /// The handle, decoded.
    pub fn handle(&self) -> Option<Handle> {
        Handle::from_bytes(&self.handle).ok()
    }

    fn sum(&self) -> u64 {
        let Self { id, size, flags, producer, handle } = self;
        let owner = pack(*producer);
        let start = word(*id, *size) ^ word(flags.bits(), owner);
        handle
            .chunks_exact(8)
            .fold(start, |sum, chunk| word(sum, u64::from_le_bytes(chunk.try_into().unwrap_or_default())))
    }
}

const fn pack(identity: Identity) -> u64 {
    (identity.place as u64) << 48 | identity.incarnation
}

const fn unpack(word: u64) -> Identity {
    Identity { place: (word >> 48) as usize, incarnation: word & ((1 << 48) - 1) }
}

/// Makes the shared file, under the number that workers inherit, and returns its words.
///
/// # Panics
/// If the system has no memory or no fd for it.
pub fn create() -> &'static Shared {
    // SAFETY: the name is a C string.
    let fd = unsafe { libc::memfd_create(c"hostile-campaign".as_ptr(), libc::MFD_CLOEXEC) };
    assert!(fd >= 0, "memfd_create: {}", std::io::Error::last_os_error());
    // SAFETY: the call returned a new fd.
    let fd = unsafe { OwnedFd::from_raw_fd(fd) };
    // SAFETY: both are numbers of this process. The second number is not in use: the program has
    // few fds so early.
    let made = unsafe {
        libc::ftruncate(fd.as_raw_fd(), size_of::<Shared>().cast_signed() as i64) == 0
            && libc::dup2(fd.as_raw_fd(), INHERITED_FD) == INHERITED_FD
    };
    assert!(made, "the shared file: {}", std::io::Error::last_os_error());
    let shared = get();
    shared.next_block.store(1, Ordering::SeqCst);
    shared
}

/// The shared words.
///
/// # Panics
/// If the file was not made or inherited.
pub fn get() -> &'static Shared {
    static SHARED: OnceLock<&Shared> = OnceLock::new();
    SHARED.get_or_init(|| {
        let access = libc::PROT_READ | libc::PROT_WRITE;
        let size = size_of::<Shared>();
        // SAFETY: a new mapping at an address of the kernel's choice.
        let start =
            unsafe { libc::mmap(std::ptr::null_mut(), size, access, libc::MAP_SHARED, INHERITED_FD, 0) };
        assert!(start != libc::MAP_FAILED, "mmap: {}", std::io::Error::last_os_error());
        // SAFETY: the mapping has that size, stays until the process ends, and all of it is
        // atomics.
        unsafe { &*start.cast::<Shared>() }
    })
}

/// Adds one to a counter.
pub fn count(counter: Counter) {
    get().counts[counter as usize].fetch_add(1, Ordering::Relaxed);
}

impl Shared {
    /// The value of a counter.
    pub fn value(&self, counter: Counter) -> u64 {
        self.counts[counter as usize].load(Ordering::Relaxed)
    }

    /// Asks all workers to end.
    pub fn stop(&self) {
        self.stop.store(1, Ordering::SeqCst);
    }

    /// Whether the run is at its end.
    pub fn has_stopped(&self) -> bool {
        self.stop.load(Ordering::SeqCst) != 0
    }

    /// A number for a new block.
    pub fn new_block(&self) -> u64 {
        self.next_block.fetch_add(1, Ordering::SeqCst)
    }

    /// One more than the number of the latest block.
    pub fn blocks_end(&self) -> u64 {
        self.next_block.load(Ordering::SeqCst)
    }

    /// What has become of a block.
    pub fn state(&self, id: u64) -> Option<BlockState> {
        let word = self.states[id as usize % BLOCKS].load(Ordering::SeqCst);
        if word >> 2 != id {
            return None;
        }
        match word & 3 {
            1 => Some(BlockState::Live),
            2 => Some(BlockState::Freeing),
            _ => Some(BlockState::Freed),
        }
    }

    /// Says what becomes of a block. Does nothing if a later block has its place.
    pub fn set_state(&self, id: u64, state: BlockState) {
        let place = &self.states[id as usize % BLOCKS];
        if state == BlockState::Live || place.load(Ordering::SeqCst) >> 2 == id {
            place.store(id << 2 | state as u64, Ordering::SeqCst);
        }
    }

    /// Whether a worker runs, and is neither about to end nor about to be killed.
    pub fn is_alive(&self, worker: Identity) -> bool {
        let state = &self.workers[worker.place % WORKERS];
        state.incarnation.load(Ordering::SeqCst) == worker.incarnation
            && state.ending.load(Ordering::SeqCst) < worker.incarnation
    }

    /// Publishes a handle. Does nothing if another thread writes the same place.
    pub fn publish(&self, random: u64, notice: &Notice) {
        let slot = &self.notices[random as usize % NOTICES];
        let sequence = slot.sequence.load(Ordering::Relaxed);
        let turn =
            |from, to| slot.sequence.compare_exchange(from, to, Ordering::SeqCst, Ordering::Relaxed).is_ok();
        if sequence & 1 != 0 {
            // A writer that was killed leaves an odd number.
            if (random >> 32).is_multiple_of(64) {
                turn(sequence, sequence + 1);
            }
            return;
        }
        if !turn(sequence, sequence + 1) {
            return;
        }
        fence(Ordering::SeqCst);
        slot.id.store(notice.id, Ordering::Relaxed);
        slot.size.store(notice.size, Ordering::Relaxed);
        slot.flags.store(notice.flags.bits(), Ordering::Relaxed);
        slot.owner.store(pack(notice.producer), Ordering::Relaxed);
        for (word, chunk) in slot.handle.iter().zip(notice.handle.chunks_exact(8)) {
            word.store(u64::from_le_bytes(chunk.try_into().unwrap_or_default()), Ordering::Relaxed);
        }
        slot.sum.store(notice.sum(), Ordering::Relaxed);
        turn(sequence + 1, sequence + 2);
    }

    /// A handle that was published.
    pub fn notice(&self, random: u64) -> Option<Notice> {
        let slot = &self.notices[random as usize % NOTICES];
        let sequence = slot.sequence.load(Ordering::SeqCst);
        if sequence == 0 || sequence & 1 != 0 {
            return None;
        }
        let mut handle = [0; HANDLE_SIZE];
        for (word, chunk) in slot.handle.iter().zip(handle.chunks_exact_mut(8)) {
            chunk.copy_from_slice(&word.load(Ordering::Relaxed).to_le_bytes());
        }
        let notice = Notice {
            id: slot.id.load(Ordering::Relaxed),
            size: slot.size.load(Ordering::Relaxed),
            flags: Flags::from_bits(slot.flags.load(Ordering::Relaxed)),
            producer: unpack(slot.owner.load(Ordering::Relaxed)),
            handle,
        };
        let sum = slot.sum.load(Ordering::Relaxed);
        fence(Ordering::SeqCst);
        (slot.sequence.load(Ordering::SeqCst) == sequence && sum == notice.sum()).then_some(notice)
    }

    const fn tag(worker: Identity, id: u64) -> u64 {
        (worker.incarnation & 0xFFFF_FFFF) << 32 | ((id / BLOCKS as u64) & 0xFFFF) << 16
    }

    /// Notes that a worker is about to open a block.
    pub fn add_open(&self, worker: Identity, id: u64) {
        let (word, tag) = (&self.opens[worker.place][id as usize % BLOCKS], Self::tag(worker, id));
        let add = |now: u64| Some(if now & !0xFFFF == tag { now + 1 } else { tag | 1 });
        // The closure always yields a value.
        let _ = word.fetch_update(Ordering::SeqCst, Ordering::SeqCst, add);
    }

    /// Notes that a worker has closed a block, or failed to open it.
    pub fn remove_open(&self, worker: Identity, id: u64) {
        let (word, tag) = (&self.opens[worker.place][id as usize % BLOCKS], Self::tag(worker, id));
        let remove = |now: u64| (now & !0xFFFF == tag && now & 0xFFFF > 0).then(|| now - 1);
        // A later block may have taken the place.
        let _ = word.fetch_update(Ordering::SeqCst, Ordering::SeqCst, remove);
    }

    /// The places of workers that may have a block open, as bits. Workers that ended are left out.
    pub fn holders(&self, id: u64) -> u32 {
        let mut found = 0;
        for (place, worker) in self.workers.iter().enumerate() {
            let incarnation = worker.incarnation.load(Ordering::SeqCst);
            let word = self.opens[place][id as usize % BLOCKS].load(Ordering::SeqCst);
            let is_its = word & !0xFFFF == Self::tag(Identity { place, incarnation }, id);
            if incarnation != 0 && is_its && word & 0xFFFF > 0 {
                found |= 1 << place;
            }
        }
        found
    }
}

impl WorkerState {
    /// Prepares the place for a new incarnation.
    pub fn begin(&self, incarnation: u64) {
        for (progress, activity) in self.progress.iter().zip(&self.activity) {
            progress.store(0, Ordering::SeqCst);
            activity.store(Activity::None as u32, Ordering::SeqCst);
        }
        self.pid.store(0, Ordering::SeqCst);
        self.incarnation.store(incarnation, Ordering::SeqCst);
    }

    /// Reports that a thread progresses, and what it does next.
    pub fn tick(&self, thread: usize, activity: Activity) {
        self.activity[thread % THREADS].store(activity as u32, Ordering::Relaxed);
        self.progress[thread % THREADS].fetch_add(1, Ordering::Relaxed);
    }

    /// How often each thread reported, and what it does; `None` for threads that have not begun or
    /// have ended.
    pub fn progress(&self) -> [Option<(u64, u32)>; THREADS] {
        std::array::from_fn(|thread| {
            let activity = self.activity[thread].load(Ordering::Relaxed);
            let works = activity != Activity::None as u32 && activity != Activity::Ended as u32;
            works.then(|| (self.progress[thread].load(Ordering::Relaxed), activity))
        })
    }
}

/// The name of an activity's number.
pub const fn activity_name(number: u32) -> &'static str {
    const NAMES: [&str; 23] = [
        "none",
        "ended",
        "pause",
        "make a pool",
        "allocate",
        "export",
        "free",
        "trim",
        "destroy a pool",
        "drain",
        "drop an exporter",
        "evict",
        "open",
        "check",
        "close",
        "fork",
        "wait for a child",
        "drop an importer",
        "await the end of leases",
        "end of worker",
        "domain",
        "link",
        "second copy",
    ];
    if (number as usize) < NAMES.len() { NAMES[number as usize] } else { "unknown" }
}
