//! Heaps in shared memory: [`SharedProvider`], and the [`Snapshot`] that a forked child gets.
//!
//! **The file.** The memory file is among the descriptors of the program, which may close the
//! descriptor or reuse its number: daemons do, and a shell does for `exec 3>file`. So this module
//! checks device and inode before each use. Once the descriptor is gone, the provider has no more
//! memory.
//!
//! **Forks.** After a fork, parent and child would allocate from one heap, and each would find what
//! the other wrote. So the parent copies the regions before it forks. The child maps the copies in
//! place of the regions, and the parent unmaps its copies. A fork costs as much as the heap has
//! data, and no thread waits for another.

use core::mem::MaybeUninit;
use core::ptr;
use core::sync::atomic::{AtomicI32, AtomicU64, Ordering};
use std::ffi::CString;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::sync::Arc;

use allocator_api2::vec::Vec;
use umf_core::{Error, Export, Layout, MemoryKind, Provider, ProviderKind, Region, Result, Visibility};
use umf_provider_host::{HostBuilder, HostProvider};
use umf_runtime::metadata::Mapped;
use umf_sync::Lock;
use umf_sync::fork::{self, Hooks};

use crate::heap;
use crate::reentrancy::{ReentrancyGuard, SavedErrno};
use crate::settings::{Disposition, report};

/// A region, its memory file, and its offset in the file.
struct FileRegion {
    region: Region,
    file: MemoryFile,
    offset: u64,
}

/// A memory file whose descriptor the program may close.
#[derive(Clone)]
struct MemoryFile {
    fd: Arc<OwnedFd>,
    /// Device and inode.
    identity: (u64, u64),
}

impl MemoryFile {
    fn new(fd: Arc<OwnedFd>) -> Self {
        let identity = identity(fd.as_raw_fd()).unwrap_or_default();
        Self { fd, identity }
    }

    /// Returns the descriptor, if it still refers to the file.
    fn descriptor(&self) -> Option<i32> {
        let descriptor = self.fd.as_raw_fd();
        (identity(descriptor)? == self.identity).then_some(descriptor)
    }
}

/// Returns device and inode of an open file.
fn identity(fd: i32) -> Option<(u64, u64)> {
    let mut stat = MaybeUninit::<libc::stat>::uninit();
    // SAFETY: `stat` is valid for the write.
    if unsafe { libc::fstat(fd, stat.as_mut_ptr()) } != 0 {
        return None;
    }
    // SAFETY: the call succeeded, so it has written `stat`.
    let stat = unsafe { stat.assume_init() };
    Some((stat.st_dev, stat.st_ino))
}

struct SharedHeap {
    /// The file of the latest region.
    file: Option<MemoryFile>,
    regions: Vec<FileRegion, Mapped>,
    snapshot: Snapshot,
}

static HEAP: Lock<SharedHeap> =
    Lock::new(SharedHeap { file: None, regions: Vec::new_in(Mapped), snapshot: Snapshot::new() });

/// The process that created the name in `/dev/shm`; 0 without a name.
static NAMED_BY: AtomicI32 = AtomicI32::new(0);
/// The number in the name, and device and inode of the file.
static NAME: [AtomicU64; 3] = [const { AtomicU64::new(0) }; 3];

/// A provider of shared memory that records its regions, so that a fork can copy them.
pub(crate) struct SharedProvider {
    inner: Arc<HostProvider>,
}

impl SharedProvider {
    /// The least descriptor number of the file. Programs seldom use numbers from here on.
    const FIRST_DESCRIPTOR: i32 = 900;

    /// Creates the provider, which is never dropped.
    pub(crate) fn create(disposition: Disposition) -> Result<&'static Self> {
        let builder =
            HostProvider::builder().visibility(Visibility::Shared).lowest_fd(Self::FIRST_DESCRIPTOR);
        let inner = match disposition {
            // Populates the pages at once: touching a page for which `/dev/shm` is full raises
            // `SIGBUS`.
            Disposition::SharedShm => build_named(&builder.populate(true))?,
            _ => builder.build()?,
        };
        Ok(Box::leak(Box::new(Self { inner })))
    }

    /// Returns whether the program has closed the descriptor of the file.
    fn is_closed(&self) -> bool {
        HEAP.lock().file.as_ref().is_some_and(|file| file.descriptor().is_none())
    }
}

/// Builds a provider whose file has the name that the original library uses, which holds the pid.
///
/// A process with this pid may have left a file of that name: before it called `exec`, or when it
/// was killed. Such a file is removed. A process of another pid namespace may still use one. Then
/// the name gets a number.
fn build_named(builder: &HostBuilder) -> Result<Arc<HostProvider>> {
    const NAMES: u64 = 100;
    let pid = std::process::id().cast_signed();
    let mut number = 0;
    loop {
        let text = name(pid, number);
        let mut built = builder.clone().named(text.clone()).build();
        if is_taken(&built) && remove_unused(&text) {
            built = builder.clone().named(text.clone()).build();
        }
        if is_taken(&built) && number + 1 < NAMES {
            number += 1;
            continue;
        }
        if built.is_ok()
            && let Some((device, inode)) = open(&text).and_then(|file| identity(file.as_raw_fd()))
        {
            for (word, value) in NAME.iter().zip([number, device, inode]) {
                word.store(value, Ordering::Relaxed);
            }
            NAMED_BY.store(pid, Ordering::Relaxed);
        }
        return built;
    }
}

fn name(pid: i32, number: u64) -> String {
    match number {
        0 => format!("/umf_proxy_lib_shm_pid_{pid}"),
        number => format!("/umf_proxy_lib_shm_pid_{pid}_{number}"),
    }
}

fn is_taken(built: &Result<Arc<HostProvider>>) -> bool {
    matches!(built, Err(Error::Native { native: libc::EEXIST, .. }))
}

fn open(name: &str) -> Option<OwnedFd> {
    let name = CString::new(name).ok()?;
    // With `O_NONBLOCK`, the call does not wait for the end of a lease.
    // SAFETY: the name is a C string.
    let file = unsafe { libc::shm_open(name.as_ptr(), libc::O_RDWR | libc::O_NONBLOCK | libc::O_CLOEXEC, 0) };
    // SAFETY: the call returned a new descriptor, which no other code knows.
    (file >= 0).then(|| unsafe { OwnedFd::from_raw_fd(file) })
}

/// Unlinks a file in `/dev/shm` if no process of the machine has it open or mapped: the kernel
/// grants a write lease only then. Returns whether it did.
fn remove_unused(name: &str) -> bool {
    /// `fcntl(2)`; the crate `libc` does not have it.
    const F_SETSIG: i32 = 10;
    let Some(file) = open(name) else { return false };
    let file = file.as_raw_fd();
    // A process that opens the file meanwhile blocks, and the kernel sends the signal to this
    // process. The default action of `SIGURG` is to ignore it.
    // SAFETY: the descriptor is this function's, and the other arguments are numbers.
    let leased = unsafe {
        libc::fcntl(file, F_SETSIG, libc::SIGURG) == 0
            && libc::fcntl(file, libc::F_SETLEASE, libc::F_WRLCK) == 0
    };
    if leased {
        unlink(name);
    }
    leased
}

fn unlink(name: &str) {
    if let Ok(name) = CString::new(name) {
        // SAFETY: the name is a C string.
        unsafe { libc::shm_unlink(name.as_ptr()) };
    }
}

/// Unlinks the file at the end of the process that created it, unless the name now has another
/// file.
#[cfg(not(test))]
#[used]
#[unsafe(link_section = ".fini_array")]
static AT_END: extern "C" fn() = {
    extern "C" fn at_end() {
        let pid = NAMED_BY.load(Ordering::Relaxed);
        if pid == 0 || pid != std::process::id().cast_signed() {
            return;
        }
        let [number, device, inode] = NAME.each_ref().map(|word| word.load(Ordering::Relaxed));
        let name = name(pid, number);
        if open(&name).and_then(|file| identity(file.as_raw_fd())) == Some((device, inode)) {
            unlink(&name);
        }
    }
    at_end
};

// SAFETY: each method has the contract of the host provider's.
unsafe impl Provider for SharedProvider {
    fn kind(&self) -> ProviderKind {
        self.inner.kind()
    }

    fn name(&self) -> &str {
        "malloc"
    }

    fn memory_kind(&self) -> MemoryKind {
        self.inner.memory_kind()
    }

    fn visibility(&self) -> Visibility {
        Visibility::Shared
    }

    fn page_size(&self) -> usize {
        self.inner.page_size()
    }

    fn allocate(&self, layout: Layout) -> Result<Region> {
        if self.is_closed() {
            report(format_args!(
                "cannot allocate shared memory: the program closed its file; memory is private from now on"
            ));
            return Err(Error::Frozen { what: "shared memory whose file was closed" });
        }
        let region = self.inner.allocate(layout)?;
        let export = self.export().and_then(|export| export.export(&region).ok());
        if let Some(export) = export
            && let Some(fd) = export.fd
        {
            let mut heap = HEAP.lock();
            if heap.regions.try_reserve(1).is_err() {
                drop(heap);
                // SAFETY: no other code knows the region.
                unsafe { self.inner.free(region)? };
                return Err(Error::OutOfMemory {
                    size: layout.size(),
                    owner: "the list of regions",
                    native: 0,
                });
            }
            let known = heap.file.clone().filter(|file| Arc::ptr_eq(&file.fd, &fd));
            let file = known.unwrap_or_else(|| MemoryFile::new(fd));
            heap.file = Some(file.clone());
            heap.regions.push(FileRegion { region, file, offset: export.offset });
        }
        Ok(region)
    }

    unsafe fn free(&self, region: Region) -> Result<()> {
        let recorded = {
            let mut heap = HEAP.lock();
            let index = heap.regions.iter().position(|recorded| recorded.region == region);
            index.map(|index| heap.regions.swap_remove(index))
        };
        if recorded.is_some_and(|recorded| recorded.file.descriptor().is_none()) {
            // Without the descriptor the pages cannot be freed. The addresses stay mapped and
            // unused.
            return Ok(());
        }
        // SAFETY: passed on to the caller.
        unsafe { self.inner.free(region) }
    }

    fn zeroed(&self) -> bool {
        self.inner.zeroed()
    }

    fn export(&self) -> Option<&dyn Export> {
        Provider::export(&*self.inner)
    }
}

/// Fork hooks. The forking thread stays out of the pool until the pool knows that it is in a child:
/// handlers of other libraries run in between, and may allocate.
static AT_FORK: Hooks = Hooks {
    prepare: || {
        ReentrancyGuard::begin_fork();
        before_fork();
    },
    parent: || {
        after_fork_in_parent();
        ReentrancyGuard::end_fork();
    },
    child: || {
        after_fork_in_child();
        // The memory belongs to the parent.
        heap::retire_shared();
        ReentrancyGuard::end_fork();
    },
};

/// Adds the fork hooks of this library. Called after a pool is created.
pub(crate) fn add_fork_hooks() {
    // If no hooks can be added, the pool could not be created either.
    let _ = fork::add_hooks(&AT_FORK);
}

/// Copies the regions for the child.
fn before_fork() {
    // If a signal handler forks, the interrupted code may hold the lock. Then the child ends.
    if let Some(mut heap) = HEAP.try_lock() {
        let SharedHeap { regions, snapshot, .. } = &mut *heap;
        snapshot.take(regions);
    }
}

/// Unmaps the copies.
fn after_fork_in_parent() {
    if let Some(mut heap) = HEAP.try_lock() {
        heap.snapshot.discard();
    }
}

/// Maps the copies in place of the regions.
fn after_fork_in_child() {
    let Some(mut heap) = HEAP.try_lock() else {
        end_child(format_args!("the fork came in the middle of an allocation or of another fork"));
    };
    heap.snapshot.restore();
    heap.regions.clear();
    heap.file = None;
}

/// A private copy of a region.
struct RegionCopy {
    /// The base of the region.
    base: usize,
    size: usize,
    /// The address of the copy.
    copy: usize,
}

/// The copies of all regions, which exist while a fork is in progress.
struct Snapshot {
    copies: Vec<RegionCopy, Mapped>,
    /// The bytes for which there was no memory.
    missing: usize,
    /// The number of forks in progress, each nested in the one before.
    forks: u32,
}

impl Snapshot {
    const fn new() -> Self {
        Self { copies: Vec::new_in(Mapped), missing: 0, forks: 0 }
    }

    /// Copies the regions, before the outermost fork.
    fn take(&mut self, regions: &[FileRegion]) {
        self.forks += 1;
        if self.forks > 1 {
            return;
        }
        let _errno = SavedErrno::save();
        self.missing = 0;
        for region in regions {
            let is_reserved = self.copies.try_reserve(1).is_ok();
            match is_reserved.then(|| copy_region(region)).flatten() {
                Some(copy) => self.copies.push(copy),
                None => self.missing += region.region.size(),
            }
        }
    }

    /// Maps the copies in place of the regions, in the child. A child without a copy ends, since it
    /// would otherwise share its parent's heap.
    fn restore(&mut self) {
        self.forks = self.forks.saturating_sub(1);
        let _errno = SavedErrno::save();
        for copy in self.copies.drain(..) {
            let from = ptr::with_exposed_provenance_mut(copy.copy);
            let to = ptr::with_exposed_provenance_mut::<core::ffi::c_void>(copy.base);
            let flags = libc::MREMAP_MAYMOVE | libc::MREMAP_FIXED;
            // SAFETY: the copy is this snapshot's. The mapping that it replaces has the same
            // contents, and no other thread of the child uses it.
            let moved = unsafe { libc::mremap(from, copy.size, copy.size, flags, to) };
            if moved == libc::MAP_FAILED {
                self.missing += copy.size;
            }
        }
        if self.missing > 0 {
            end_child(format_args!("there is no memory for a copy of {} bytes", self.missing));
        }
    }

    /// Unmaps the copies, in the parent, after the outermost fork.
    fn discard(&mut self) {
        self.forks = self.forks.saturating_sub(1);
        if self.forks > 0 {
            return;
        }
        let _errno = SavedErrno::save();
        for copy in self.copies.drain(..) {
            // SAFETY: the mapping is this snapshot's.
            unsafe { libc::munmap(ptr::with_exposed_provenance_mut(copy.copy), copy.size) };
        }
    }
}

/// Reports why a forked child cannot go on, and ends it.
fn end_child(why: core::fmt::Arguments<'_>) -> ! {
    report(format_args!("a forked child ends, because {why}"));
    // SAFETY: the call ends the process, and runs no code of it.
    unsafe { libc::_exit(libc::EXIT_FAILURE) };
}

/// Copies a region, without the holes in its part of the file.
fn copy_region(region: &FileRegion) -> Option<RegionCopy> {
    let base = region.region.base().as_ptr()?;
    let size = region.region.size();
    let (access, flags) =
        (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE);
    // SAFETY: an anonymous mapping at an address of the kernel's choice touches no existing memory.
    let copy = unsafe { libc::mmap(ptr::null_mut(), size, access, flags, -1, 0) };
    if copy == libc::MAP_FAILED {
        return None;
    }
    let mut done = 0;
    while let Some((begin, end)) = next_data(region, done) {
        // Other threads may write meanwhile. The child may then have a part of a write, but it does
        // not have these threads. SAFETY: both mappings have `size` bytes, and `next_data` returns
        // a range below that.
        unsafe { ptr::copy_nonoverlapping(base.add(begin), copy.cast::<u8>().add(begin), end - begin) };
        done = end;
    }
    Some(RegionCopy { base: base.expose_provenance(), size, copy: copy.expose_provenance() })
}

/// Returns the next range of a region, from `done` on, that is not a hole in its file.
fn next_data(region: &FileRegion, done: usize) -> Option<(usize, usize)> {
    let size = region.region.size();
    if done >= size {
        return None;
    }
    let Some(file) = region.file.descriptor() else { return Some((done, size)) };
    let in_file = |offset: usize| libc::off_t::try_from(region.offset.checked_add(offset as u64)?).ok();
    let in_region = |found: libc::off_t| {
        let offset = u64::try_from(found).ok()?.saturating_sub(region.offset);
        Some(usize::try_from(offset).unwrap_or(usize::MAX).min(size))
    };
    // SAFETY: the file is this library's, and only this code, under a lock, moves its offset.
    let begin = unsafe { libc::lseek(file, in_file(done)?, libc::SEEK_DATA) };
    if begin < 0 {
        // SAFETY: `errno` belongs to the calling thread.
        let is_hole = unsafe { *libc::__errno_location() } == libc::ENXIO;
        return (!is_hole).then_some((done, size));
    }
    // SAFETY: as above, in this function.
    let end = unsafe { libc::lseek(file, begin, libc::SEEK_HOLE) };
    let (begin, end) = (in_region(begin)?, in_region(end).unwrap_or(size));
    (begin < size && end > begin).then_some((begin, end))
}
