//! [`Shared`]: memory that the campaign and its workers share without umf. It has counters, states
//! of blocks, published handles, and the blocks that each worker has open.
//!
//! All words are atomics. A worker can be killed between any two stores, so that readers check
//! checksums and incarnations.

use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering, fence};

use umf::Handle;
use umf::ipc::HANDLE_SIZE;

use crate::content::word;

/// Maximum number of concurrent workers.
pub const WORKERS: usize = 16;
/// Maximum number of threads of a worker that report progress.
pub const THREADS: usize = 16;
/// The fd number of the shared file in workers.
pub const INHERITED_FD: i32 = 213;
/// Number of blocks whose state is known. Later blocks overwrite earlier ones.
const BLOCKS: usize = 1 << 18;
/// Number of published handles.
const PUBLICATIONS: usize = 384;
const HANDLE_WORDS: usize = HANDLE_SIZE / 8;

macro_rules! counters {
    ($($name:ident = $text:literal,)*) => {
        /// A counter of a run.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub enum Counter { $($name,)* }

        impl Counter {
            /// All counters, with their names in the result.
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

/// Activity of a worker's thread. The campaign reports it if the thread makes no progress.
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

/// The shared state of a worker.
#[repr(C)]
pub struct WorkerState {
    /// The unique number of the process, or 0 if no worker has this index.
    pub incarnation: AtomicU64,
    /// The last incarnation that was killed or is about to end.
    pub ending: AtomicU64,
    /// The pid of the worker in the campaign's pid namespace.
    pub pid: AtomicU32,
    progress: [AtomicU64; THREADS],
    activity: [AtomicU32; THREADS],
}

#[repr(C)]
struct PublicationSlot {
    /// A seqlock: odd while a thread writes the slot.
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
    /// Numbers of violations, by guarantee.
    pub violations: [AtomicU64; 32],
    /// The workers, by index.
    pub workers: [WorkerState; WORKERS],
    publications: [PublicationSlot; PUBLICATIONS],
    states: [AtomicU64; BLOCKS],
    /// For each worker and block: incarnation, high bits of the block's number, number of opens.
    opens: [[AtomicU64; BLOCKS]; WORKERS],
}

/// State of a block, as its producer records it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BlockState {
    Live = 1,
    Freeing = 2,
    Freed = 3,
}

/// Properties of a published handle.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Flags {
    /// Whether pages may read as zeros after the block is freed.
    pub release: bool,
    /// Whether the exporter answers on a socket.
    pub served: bool,
    /// Whether the memory can only be opened for reading.
    pub read_only: bool,
    /// Whether the producer has its own pid namespace.
    pub namespace: bool,
    /// Whether the handle may become stale before its block is freed.
    pub evictable: bool,
    /// Whether the producer runs as another user than root.
    pub user: bool,
    /// Whether the memory is not exchanged across pid namespaces and users.
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

/// Index and incarnation of a worker.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Identity {
    pub index: usize,
    pub incarnation: u64,
}

/// A published handle, and the properties of its block.
#[derive(Clone, Copy, Debug)]
pub struct Publication {
    pub id: u64,
    /// Number of bytes with content.
    pub size: u64,
    pub flags: Flags,
    pub producer: Identity,
    pub handle: [u8; HANDLE_SIZE],
}

impl Publication {
    /// Decodes the handle.
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
    (identity.index as u64) << 48 | identity.incarnation
}

const fn unpack(word: u64) -> Identity {
    Identity { index: (word >> 48) as usize, incarnation: word & ((1 << 48) - 1) }
}

/// Creates the shared file as [`INHERITED_FD`], and maps it.
///
/// # Panics
/// If the system has no memory or no free fd.
pub fn create() -> &'static Shared {
    // SAFETY: the name is a C string.
    let fd = unsafe { libc::memfd_create(c"hostile-campaign".as_ptr(), libc::MFD_CLOEXEC) };
    assert!(fd >= 0, "memfd_create: {}", std::io::Error::last_os_error());
    // SAFETY: the call returned a new fd.
    let fd = unsafe { OwnedFd::from_raw_fd(fd) };
    // SAFETY: an fd of this process; the second number is not in use, since the program has just
    // started.
    let made = unsafe {
        libc::ftruncate(fd.as_raw_fd(), size_of::<Shared>().cast_signed() as i64) == 0
            && libc::dup2(fd.as_raw_fd(), INHERITED_FD) == INHERITED_FD
    };
    assert!(made, "the shared file: {}", std::io::Error::last_os_error());
    let shared = get();
    shared.next_block.store(1, Ordering::SeqCst);
    shared
}

/// Returns the shared words, which the first call maps.
///
/// # Panics
/// If the file was not created or inherited.
pub fn get() -> &'static Shared {
    static SHARED: OnceLock<&Shared> = OnceLock::new();
    SHARED.get_or_init(|| {
        let access = libc::PROT_READ | libc::PROT_WRITE;
        let size = size_of::<Shared>();
        // SAFETY: a new mapping at an address of the kernel's choice.
        let start =
            unsafe { libc::mmap(std::ptr::null_mut(), size, access, libc::MAP_SHARED, INHERITED_FD, 0) };
        assert!(start != libc::MAP_FAILED, "mmap: {}", std::io::Error::last_os_error());
        // SAFETY: the mapping has that size, is never unmapped, and consists of atomics.
        unsafe { &*start.cast::<Shared>() }
    })
}

/// Adds one to a counter.
pub fn count(counter: Counter) {
    get().counts[counter as usize].fetch_add(1, Ordering::Relaxed);
}

impl Shared {
    /// Returns the value of a counter.
    pub fn value(&self, counter: Counter) -> u64 {
        self.counts[counter as usize].load(Ordering::Relaxed)
    }

    /// Requests all workers to end.
    pub fn stop(&self) {
        self.stop.store(1, Ordering::SeqCst);
    }

    /// Returns whether [`stop`](Self::stop) was called.
    pub fn has_stopped(&self) -> bool {
        self.stop.load(Ordering::SeqCst) != 0
    }

    /// Returns the number of a new block.
    pub fn new_block(&self) -> u64 {
        self.next_block.fetch_add(1, Ordering::SeqCst)
    }

    /// Returns one more than the number of the latest block.
    pub fn blocks_end(&self) -> u64 {
        self.next_block.load(Ordering::SeqCst)
    }

    /// Returns the recorded state of a block, or `None` if a later block has overwritten it.
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

    /// Records the state of a block. Does nothing if a later block has overwritten it.
    pub fn set_state(&self, id: u64, state: BlockState) {
        let word = &self.states[id as usize % BLOCKS];
        if state == BlockState::Live || word.load(Ordering::SeqCst) >> 2 == id {
            word.store(id << 2 | state as u64, Ordering::SeqCst);
        }
    }

    /// Returns whether a worker runs, and is neither about to end nor about to be killed.
    pub fn is_alive(&self, worker: Identity) -> bool {
        let state = &self.workers[worker.index % WORKERS];
        state.incarnation.load(Ordering::SeqCst) == worker.incarnation
            && state.ending.load(Ordering::SeqCst) < worker.incarnation
    }

    /// Publishes a handle in a random slot. Does nothing if another thread writes the slot.
    pub fn publish(&self, random: u64, publication: &Publication) {
        let slot = &self.publications[random as usize % PUBLICATIONS];
        let sequence = slot.sequence.load(Ordering::Relaxed);
        let advance =
            |from, to| slot.sequence.compare_exchange(from, to, Ordering::SeqCst, Ordering::Relaxed).is_ok();
        if sequence & 1 != 0 {
            // A writer that was killed leaves an odd number.
            if (random >> 32).is_multiple_of(64) {
                advance(sequence, sequence + 1);
            }
            return;
        }
        if !advance(sequence, sequence + 1) {
            return;
        }
        fence(Ordering::SeqCst);
        slot.id.store(publication.id, Ordering::Relaxed);
        slot.size.store(publication.size, Ordering::Relaxed);
        slot.flags.store(publication.flags.bits(), Ordering::Relaxed);
        slot.owner.store(pack(publication.producer), Ordering::Relaxed);
        for (word, chunk) in slot.handle.iter().zip(publication.handle.chunks_exact(8)) {
            word.store(u64::from_le_bytes(chunk.try_into().unwrap_or_default()), Ordering::Relaxed);
        }
        slot.sum.store(publication.sum(), Ordering::Relaxed);
        advance(sequence + 1, sequence + 2);
    }

    /// Returns the published handle of a random slot, if it is complete.
    pub fn publication(&self, random: u64) -> Option<Publication> {
        let slot = &self.publications[random as usize % PUBLICATIONS];
        let sequence = slot.sequence.load(Ordering::SeqCst);
        if sequence == 0 || sequence & 1 != 0 {
            return None;
        }
        let mut handle = [0; HANDLE_SIZE];
        for (word, chunk) in slot.handle.iter().zip(handle.chunks_exact_mut(8)) {
            chunk.copy_from_slice(&word.load(Ordering::Relaxed).to_le_bytes());
        }
        let publication = Publication {
            id: slot.id.load(Ordering::Relaxed),
            size: slot.size.load(Ordering::Relaxed),
            flags: Flags::from_bits(slot.flags.load(Ordering::Relaxed)),
            producer: unpack(slot.owner.load(Ordering::Relaxed)),
            handle,
        };
        let sum = slot.sum.load(Ordering::Relaxed);
        fence(Ordering::SeqCst);
        (slot.sequence.load(Ordering::SeqCst) == sequence && sum == publication.sum()).then_some(publication)
    }

    const fn tag(worker: Identity, id: u64) -> u64 {
        (worker.incarnation & 0xFFFF_FFFF) << 32 | ((id / BLOCKS as u64) & 0xFFFF) << 16
    }

    /// Records that a worker is about to open a block.
    pub fn add_open(&self, worker: Identity, id: u64) {
        let (word, tag) = (&self.opens[worker.index][id as usize % BLOCKS], Self::tag(worker, id));
        let add = |now: u64| Some(if now & !0xFFFF == tag { now + 1 } else { tag | 1 });
        // The closure always returns a value.
        let _ = word.fetch_update(Ordering::SeqCst, Ordering::SeqCst, add);
    }

    /// Records that a worker has closed a block, or failed to open it.
    pub fn remove_open(&self, worker: Identity, id: u64) {
        let (word, tag) = (&self.opens[worker.index][id as usize % BLOCKS], Self::tag(worker, id));
        let remove = |now: u64| (now & !0xFFFF == tag && now & 0xFFFF > 0).then(|| now - 1);
        // A later block may have overwritten the word.
        let _ = word.fetch_update(Ordering::SeqCst, Ordering::SeqCst, remove);
    }

    /// Returns the indices of running workers that may have a block open, as bits.
    pub fn holders(&self, id: u64) -> u32 {
        let mut found = 0;
        for (index, worker) in self.workers.iter().enumerate() {
            let incarnation = worker.incarnation.load(Ordering::SeqCst);
            let word = self.opens[index][id as usize % BLOCKS].load(Ordering::SeqCst);
            let is_same = word & !0xFFFF == Self::tag(Identity { index, incarnation }, id);
            if incarnation != 0 && is_same && word & 0xFFFF > 0 {
                found |= 1 << index;
            }
        }
        found
    }
}

impl WorkerState {
    /// Resets the state for a new incarnation.
    pub fn begin(&self, incarnation: u64) {
        for (progress, activity) in self.progress.iter().zip(&self.activity) {
            progress.store(0, Ordering::SeqCst);
            activity.store(Activity::None as u32, Ordering::SeqCst);
        }
        self.pid.store(0, Ordering::SeqCst);
        self.incarnation.store(incarnation, Ordering::SeqCst);
    }

    /// Reports progress of a thread, and its next activity.
    pub fn tick(&self, thread: usize, activity: Activity) {
        self.activity[thread % THREADS].store(activity as u32, Ordering::Relaxed);
        self.progress[thread % THREADS].fetch_add(1, Ordering::Relaxed);
    }

    /// Returns the progress and the activity of each thread, or `None` for a thread that has not
    /// started or has ended.
    pub fn progress(&self) -> [Option<(u64, u32)>; THREADS] {
        std::array::from_fn(|thread| {
            let activity = self.activity[thread].load(Ordering::Relaxed);
            let works = activity != Activity::None as u32 && activity != Activity::Ended as u32;
            works.then(|| (self.progress[thread].load(Ordering::Relaxed), activity))
        })
    }
}

/// Returns the name of an [`Activity`].
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
