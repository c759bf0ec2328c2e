//! [`Shared`]: memory that other processes can map, and who knows all of its regions.
//!
//! The file lies among the program's descriptors, which the program may close or use for something else: daemons do, and
//! `exec 3>file` of a shell. It is looked at before anything is done with it. Once it is gone, there is no more of its memory.

use core::mem::MaybeUninit;
use core::sync::atomic::{AtomicI32, AtomicU64, Ordering};
use std::ffi::CString;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::sync::Arc;

use allocator_api2::vec::Vec;
use umf_core::{Error, Export, Layout, MemoryKind, Provider, ProviderKind, Region, Result, Visibility};
use umf_provider_host::{HostBuilder, HostProvider};
use umf_runtime::metadata::Mapped;
use umf_sync::Lock;

use crate::settings::Disposition;
use crate::snapshot::{self, Snapshot};
use crate::tell::tell;

/// A region, and where it lies in which file.
pub(crate) struct Placed {
    pub(crate) region: Region,
    pub(crate) file: File,
    pub(crate) offset: u64,
}

/// A file that the program may have closed meanwhile.
#[derive(Clone)]
pub(crate) struct File {
    fd: Arc<OwnedFd>,
    /// Device and inode.
    identity: (u64, u64),
}

impl File {
    fn new(fd: Arc<OwnedFd>) -> Self {
        let identity = identity(fd.as_raw_fd()).unwrap_or_default();
        Self { fd, identity }
    }

    /// The number of its descriptor, if that is still it.
    pub(crate) fn number(&self) -> Option<i32> {
        let number = self.fd.as_raw_fd();
        (identity(number)? == self.identity).then_some(number)
    }
}

/// Device and inode of what is open under a number.
fn identity(fd: i32) -> Option<(u64, u64)> {
    let mut stat = MaybeUninit::<libc::stat>::uninit();
    // SAFETY: `stat` is valid for the write.
    if unsafe { libc::fstat(fd, stat.as_mut_ptr()) } != 0 {
        return None;
    }
    // SAFETY: written, as the call says.
    let stat = unsafe { stat.assume_init() };
    Some((stat.st_dev, stat.st_ino))
}

struct State {
    /// The file that the latest region is of.
    file: Option<File>,
    regions: Vec<Placed, Mapped>,
    snapshot: Snapshot,
}

static STATE: Lock<State> =
    Lock::new(State { file: None, regions: Vec::new_in(Mapped), snapshot: Snapshot::new() });

/// The name in `/dev/shm`, of the process that made it; 0 if none has.
static NAMED_BY: AtomicI32 = AtomicI32::new(0);
static NAME: [AtomicU64; 3] = [const { AtomicU64::new(0) }; 3];

/// The provider.
pub(crate) struct Shared {
    inner: Arc<HostProvider>,
}

impl Shared {
    /// Descriptors from here on are what programs seldom come to.
    const FIRST_DESCRIPTOR: i32 = 900;

    /// Makes the provider, which lives for ever.
    pub(crate) fn make(disposition: Disposition) -> Result<&'static Self> {
        let builder =
            HostProvider::builder().visibility(Visibility::Shared).lowest_fd(Self::FIRST_DESCRIPTOR);
        let inner = match disposition {
            // Its pages are made at once: where there is no room for them, a touch would be a signal.
            Disposition::SharedShm => named(&builder.populate(true))?,
            _ => builder.build()?,
        };
        Ok(Box::leak(Box::new(Self { inner })))
    }

    /// Nothing of the file can be had any more.
    fn is_lost(&self) -> bool {
        STATE.lock().file.as_ref().is_some_and(|file| file.number().is_none())
    }
}

/// With the original's name, which the process before may have left when it became this one (`exec`), or when it was killed. One of
/// another pid namespace may have it, and go on with it: then there is a number behind the name.
fn named(builder: &HostBuilder) -> Result<Arc<HostProvider>> {
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
            for (place, value) in NAME.iter().zip([number, device, inode]) {
                place.store(value, Ordering::Relaxed);
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
    // SAFETY: a C string. (Where it is leased, this does not wait.)
    let file = unsafe { libc::shm_open(name.as_ptr(), libc::O_RDWR | libc::O_NONBLOCK | libc::O_CLOEXEC, 0) };
    // SAFETY: a new descriptor, of nobody else.
    (file >= 0).then(|| unsafe { OwnedFd::from_raw_fd(file) })
}

/// Takes a name away if nobody has its file open or mapped, wherever on this machine: then the kernel grants a lease on it.
fn remove_unused(name: &str) -> bool {
    /// `fcntl(2)`; the crate `libc` does not have it.
    const F_SETSIG: i32 = 10;
    let Some(file) = open(name) else { return false };
    let file = file.as_raw_fd();
    // Whoever opens it meanwhile waits, and has a signal sent here: one that is ignored.
    // SAFETY: a descriptor of this function's, and numbers.
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
        // SAFETY: a C string.
        unsafe { libc::shm_unlink(name.as_ptr()) };
    }
}

/// The name goes with the process that made it, if it still is that of its file.
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

// SAFETY: the host provider's promises are passed on.
unsafe impl Provider for Shared {
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
        if self.is_lost() {
            tell(format_args!("the program closed the file of its memory; from here on memory is private"));
            return Err(Error::Frozen { what: "shared memory whose file was closed" });
        }
        let region = self.inner.allocate(layout)?;
        let export = self.export().and_then(|export| export.export(&region).ok());
        if let Some(export) = export
            && let Some(fd) = export.fd
        {
            let mut state = STATE.lock();
            if state.regions.try_reserve(1).is_err() {
                drop(state);
                // SAFETY: nobody else has seen it.
                unsafe { self.inner.free(region)? };
                return Err(Error::OutOfMemory {
                    size: layout.size(),
                    owner: "the list of regions",
                    native: 0,
                });
            }
            let known = state.file.clone().filter(|file| Arc::ptr_eq(&file.fd, &fd));
            let file = known.unwrap_or_else(|| File::new(fd));
            state.file = Some(file.clone());
            state.regions.push(Placed { region, file, offset: export.offset });
        }
        Ok(region)
    }

    unsafe fn free(&self, region: Region) -> Result<()> {
        let placed = {
            let mut state = STATE.lock();
            let place = state.regions.iter().position(|placed| placed.region == region);
            place.map(|place| state.regions.swap_remove(place))
        };
        if placed.is_some_and(|placed| placed.file.number().is_none()) {
            // Its pages cannot be given back without the file, and their addresses are not used again.
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

/// Before a fork, if the memory is shared: copies it for the child.
pub(crate) fn before_fork() {
    // (Taken by what the fork interrupted, if a signal handler forks: then the child ends.)
    if let Some(mut state) = STATE.try_lock() {
        let State { regions, snapshot, .. } = &mut *state;
        snapshot.take(regions);
    }
}

/// After it, in the parent.
pub(crate) fn after_fork() {
    if let Some(mut state) = STATE.try_lock() {
        state.snapshot.forget();
    }
}

/// After it, in the child.
pub(crate) fn after_fork_in_child() {
    let Some(mut state) = STATE.try_lock() else {
        snapshot::end_child(format_args!("the fork came in the middle of an allocation or of another fork"));
    };
    state.snapshot.put_in_place();
    state.regions.clear();
    state.file = None;
}
