//! Descriptors that are not simply owned.
//!
//! | type | descriptor |
//! |---|---|
//! | [`CheckedFile`] | compared with its file before each use, because the program may have closed it |
//! | [`CloseOnFork`] | closed in forked children |
//! | [`ReceivedFd`] | sent by another process; closing it may block |

use core::sync::atomic::{AtomicI32, AtomicU32, AtomicU64, Ordering};
use std::mem::ManuallyDrop;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, IntoRawFd, OwnedFd, RawFd};
use std::sync::Arc;

use umf_core::{Error, Result};
use umf_sync::fork::{self, ForkGuard, Hooks, Outer};
use umf_sync::table::Table;
use umf_sync::{Lock, chunks::Zeroable, failpoint};

use crate::file::{FileIdentity, identity};
use crate::{Errno, SystemResult, background};

/// A descriptor, and the device and inode of its file.
///
/// Some programs, such as daemons, close descriptors that they did not open. A later file of the
/// program then gets the number, and operations on the number would affect that file. So
/// [`CheckedFile::fd`] compares the file before each use. Dropping this closes the number only if
/// it still refers to the file.
///
/// Thread-safe. Does not detect that another thread closes the number between the comparison and
/// the use.
#[derive(Debug)]
pub struct CheckedFile {
    fd: Arc<OwnedFd>,
    identity: FileIdentity,
    fork_entry: Option<ForkEntry>,
}

impl CheckedFile {
    /// Takes ownership of a descriptor, and records its current file.
    ///
    /// # Errors
    /// [`Error::Native`] if `statx(2)` fails.
    pub fn new(fd: OwnedFd) -> Result<Self> {
        Self::take(fd).map_err(|errno| Error::native("statx", errno.raw_os_error()))
    }

    /// Makes a file as [`CheckedFile::new`] does, with an errno as error.
    ///
    /// # Errors
    /// Those of `statx(2)`.
    pub fn take(fd: OwnedFd) -> SystemResult<Self> {
        let identity = identity(&fd)?;
        Ok(Self { fd: Arc::new(fd), identity, fork_entry: None })
    }

    /// Makes a file as [`CheckedFile::new`] does, whose descriptor is closed in forked children.
    ///
    /// # Errors
    /// Those of `statx(2)`, and `ENOMEM`.
    pub fn closed_on_fork(fd: OwnedFd) -> SystemResult<Self> {
        let fork_entry = Some(ForkEntry::new(fd.as_fd())?);
        let identity = identity(&fd)?;
        Ok(Self { fd: Arc::new(fd), identity, fork_entry })
    }

    /// Returns the descriptor. A clone keeps it open.
    ///
    /// # Errors
    /// `ESTALE` if the number is closed or refers to another file.
    pub fn get(&self) -> SystemResult<&Arc<OwnedFd>> {
        if self.is_of_file() { Ok(&self.fd) } else { Err(Errno::STALE) }
    }

    /// Returns the descriptor as [`CheckedFile::get`] does, with an error that names the possible
    /// cause.
    ///
    /// # Errors
    /// [`Error::Native`] if the number is closed or refers to another file.
    pub fn fd(&self) -> Result<&Arc<OwnedFd>> {
        self.get().map_err(|_| Error::Native {
            call: "use of the memory's descriptor",
            native: Errno::BADF.raw_os_error(),
            hint: "the program closed it, or opened another file under its number: let the program close \
                   only descriptors that it opened",
        })
    }

    /// Returns the descriptor without a comparison. For calls that do not affect another file.
    #[must_use]
    pub const fn unchecked(&self) -> &Arc<OwnedFd> {
        &self.fd
    }

    /// Returns the identity of the file.
    #[must_use]
    pub const fn identity(&self) -> FileIdentity {
        self.identity
    }

    /// Returns whether the number still refers to the file.
    #[must_use]
    pub fn is_of_file(&self) -> bool {
        identity(&self.fd) == Ok(self.identity)
    }
}

impl Drop for CheckedFile {
    fn drop(&mut self) {
        let is_closed = self.fork_entry.as_ref().is_some_and(|entry| !entry.is_of_this_process());
        if is_closed || !self.is_of_file() {
            // Leaks a reference, so that no clone closes the number either.
            core::mem::forget(Arc::clone(&self.fd));
        }
    }
}

/// A descriptor that forked children close.
#[derive(Debug)]
struct ForkSlot {
    /// The number plus one; 0 is an unused slot.
    fd: AtomicI32,
    /// Device and inode of the file.
    file: [AtomicU64; 2],
}

// SAFETY: zeros are valid atomics: an unused slot.
unsafe impl Zeroable for ForkSlot {}

/// The descriptors that forked children close before `fork(3)` returns. POSIX.1-2024 has
/// `FD_CLOFORK` for this, which Linux lacks. A child does not reuse the slots of its parent.
static SLOTS: Table<ForkSlot, 64> = Table::new(1 << 20);
/// Slots from here on were never used.
static END: AtomicU32 = AtomicU32::new(0);

static AT_FORK: Hooks = Hooks { child: close_in_child, ..Hooks::NONE };

/// Closes the descriptors of all slots, in a forked child.
fn close_in_child() {
    for slot in (0..END.load(Ordering::Acquire)).filter_map(|number| SLOTS.get(number)) {
        let number = slot.fd.swap(0, Ordering::Relaxed) - 1;
        if number < 0 {
            continue;
        }
        // SAFETY: borrowed for `statx`, which fails for a number that is closed.
        let is_same = identity(unsafe { BorrowedFd::borrow_raw(number) }) == Ok(slot.file());
        // The program may have closed it, and opened another file under the number.
        if is_same {
            // SAFETY: the descriptor's owner, which this child inherited, does not close it here.
            drop(unsafe { OwnedFd::from_raw_fd(number) });
            failpoint!("fork.descriptor_closed");
        }
    }
}

impl ForkSlot {
    fn file(&self) -> FileIdentity {
        let [device, inode] = [0, 1].map(|half: usize| self.file[half].load(Ordering::Relaxed));
        FileIdentity { device, inode }
    }
}

/// An entry in [`SLOTS`], which is removed when this is dropped.
#[derive(Debug)]
struct ForkEntry {
    slot: u32,
    /// The process that made it ([`fork::generation`]).
    generation: u32,
}

impl ForkEntry {
    fn new(fd: BorrowedFd<'_>) -> SystemResult<Self> {
        let file = identity(fd)?;
        fork::add_hooks(&AT_FORK).map_err(|_| Errno::NOMEM)?;
        let (number, slot) = SLOTS.allocate().map_err(|_| Errno::NOMEM)?;
        END.fetch_max(number + 1, Ordering::AcqRel);
        slot.file[0].store(file.device, Ordering::Relaxed);
        slot.file[1].store(file.inode, Ordering::Relaxed);
        slot.fd.store(fd.as_raw_fd() + 1, Ordering::Release);
        Ok(Self { slot: number, generation: fork::generation() })
    }

    /// Returns whether this process made the entry. In a forked child, the descriptor is closed.
    fn is_of_this_process(&self) -> bool {
        self.generation == fork::generation()
    }
}

impl Drop for ForkEntry {
    fn drop(&mut self) {
        if self.is_of_this_process()
            && let Some(slot) = SLOTS.get(self.slot)
        {
            slot.fd.store(0, Ordering::Release);
            SLOTS.release(self.slot);
        }
    }
}

/// A descriptor that forked children close before `fork(3)` returns. Dropping it in such a child
/// does nothing.
#[derive(Debug)]
pub struct CloseOnFork {
    fd: ManuallyDrop<OwnedFd>,
    fork_entry: ForkEntry,
}

impl CloseOnFork {
    /// Takes ownership of a descriptor. A child that was forked before this call keeps it open: see
    /// [`CloseOnFork::make`].
    ///
    /// # Errors
    /// `ENOMEM`, and those of `fstat(2)`; the descriptor is closed.
    pub fn new(fd: OwnedFd) -> SystemResult<Self> {
        let fork_entry = ForkEntry::new(fd.as_fd())?;
        Ok(Self { fd: ManuallyDrop::new(fd), fork_entry })
    }

    /// Takes ownership of the descriptor that `make` returns. Forks of this process wait meanwhile,
    /// so that no child keeps it open.
    ///
    /// # Errors
    /// Those of `make` and of [`CloseOnFork::new`].
    pub fn make(make: impl FnOnce() -> SystemResult<OwnedFd>) -> SystemResult<Self> {
        let _no_fork = ForkGuard::<Outer>::new();
        Self::new(make()?)
    }

    /// Returns the descriptor. Children that are forked later keep it open.
    #[must_use]
    pub fn into_inner(self) -> OwnedFd {
        let mut this = ManuallyDrop::new(self);
        // SAFETY: `this` is not dropped, so neither field is used again.
        unsafe {
            core::ptr::drop_in_place(&raw mut this.fork_entry);
            ManuallyDrop::take(&mut this.fd)
        }
    }
}

impl AsFd for CloseOnFork {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

impl Drop for CloseOnFork {
    fn drop(&mut self) {
        // A fork sees the descriptor either open and in the table, or closed and not in it.
        let _no_fork = ForkGuard::<Outer>::new();
        if self.fork_entry.is_of_this_process()
            && let Some(slot) = SLOTS.get(self.fork_entry.slot)
        {
            slot.fd.store(0, Ordering::Release);
            // The program may have closed it, and opened another file under the number.
            if identity(&*self.fd) == Ok(slot.file()) {
                // SAFETY: `drop` runs once, and does not use the field again.
                unsafe { ManuallyDrop::drop(&mut self.fd) };
            }
        }
    }
}

/// A descriptor that another process sent, of an unknown file.
///
/// Closing such a descriptor may block: for a file server (FUSE), or for the linger time of a
/// socket (`SO_LINGER`, `socket(7)`). Dropping this does not block: if the file is not shared
/// memory, another thread closes it. At most 64 such threads run at the same time. If all of them
/// are blocked, or no thread can be started, the descriptor stays open until one of them is free.
#[derive(Debug)]
pub struct ReceivedFd(Option<OwnedFd>);

/// The limit of threads that close descriptors.
const MAX_CLOSERS: u32 = 64;

/// Descriptors that threads are to close.
struct Closing {
    waiting: Vec<RawFd>,
    threads: u32,
    /// The process whose threads these are, as [`fork::generation`] counts.
    generation: u32,
}

static CLOSING: Lock<Closing> = Lock::new(Closing { waiting: Vec::new(), threads: 0, generation: 0 });

impl ReceivedFd {
    /// Returns the descriptor. For a caller that knows that closing it cannot block.
    #[must_use]
    pub fn into_inner(mut self) -> OwnedFd {
        self.0.take().unwrap_or_else(|| unreachable!("only `drop` takes it, too"))
    }
}

impl From<OwnedFd> for ReceivedFd {
    fn from(fd: OwnedFd) -> Self {
        Self(Some(fd))
    }
}

impl AsFd for ReceivedFd {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_ref().unwrap_or_else(|| unreachable!("only `drop` takes it, too")).as_fd()
    }
}

impl Drop for ReceivedFd {
    fn drop(&mut self) {
        // The kernel knows the seals without a file server. Only shared memory has seals, and
        // closing it does not block.
        if let Some(fd) = self.0.take()
            && rustix::fs::fcntl_get_seals(&fd).is_err()
        {
            close_in_thread(fd);
        }
    }
}

#[cold]
fn close_in_thread(fd: OwnedFd) {
    // As a number, so that it is not closed here if no thread can be started.
    let number = fd.into_raw_fd();
    {
        let mut closing = CLOSING.lock();
        let generation = fork::generation();
        if closing.generation != generation {
            // The threads of the parent do not run here.
            *closing = Closing { waiting: Vec::new(), threads: 0, generation };
        }
        if closing.waiting.try_reserve(1).is_err() {
            tracing::warn!(
                number,
                "a descriptor of another process stays open: there is no memory to list it"
            );
            return;
        }
        closing.waiting.push(number);
        if closing.threads >= MAX_CLOSERS {
            // One of them closes it.
            return;
        }
        closing.threads += 1;
    }
    if let Err(error) = background::spawn(c"umf-close", 256 << 10, close_waiting) {
        CLOSING.lock().threads -= 1;
        tracing::warn!(
            number,
            %error,
            "a descriptor of another process stays open until a thread can be started that closes it"
        );
    }
}

/// Closes descriptors until none is waiting.
fn close_waiting() {
    loop {
        let number = {
            let mut closing = CLOSING.lock();
            let Some(number) = closing.waiting.pop() else {
                closing.threads -= 1;
                return;
            };
            number
        };
        // SAFETY: `into_raw_fd` released the ownership, and only this thread took the number.
        drop(unsafe { OwnedFd::from_raw_fd(number) });
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]
    use std::io::Write as _;
    use std::net::{TcpListener, TcpStream};
    use std::time::Duration;

    use super::*;

    fn memfd() -> OwnedFd {
        rustix::fs::memfd_create(c"umf-test", rustix::fs::MemfdFlags::CLOEXEC).unwrap()
    }

    #[test]
    fn number_of_another_file_is_neither_used_nor_closed() {
        let (file, other) = (CheckedFile::new(memfd()).unwrap(), memfd());
        let number = file.fd().unwrap().as_raw_fd();
        let clone = Arc::clone(file.fd().unwrap());
        // SAFETY: closes the test's own file, and puts another of the test's under its number.
        assert_eq!(unsafe { libc::dup2(other.as_raw_fd(), number) }, number);
        assert!(!file.is_of_file());
        let error = file.fd().unwrap_err();
        assert!(matches!(error, Error::Native { native: libc::EBADF, .. }), "{error}");
        drop((file, clone));
        // SAFETY: `dup2` made the number refer to this file, and no other code closes it.
        let number = unsafe { OwnedFd::from_raw_fd(number) };
        assert_eq!(identity(&number), identity(&other));
    }

    /// Returns a connection whose close blocks for a second, as its data is not read, and the other
    /// end.
    fn lingering() -> (OwnedFd, TcpStream) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let mut stream = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let (other, _) = listener.accept().unwrap();
        rustix::net::sockopt::set_socket_linger(&stream, Some(Duration::from_secs(1))).unwrap();
        stream.set_nonblocking(true).unwrap();
        while stream.write(&[0; 4096]).is_ok() {}
        (stream.into(), other)
    }

    /// A descriptor that is dropped while all threads are blocked is closed by one of them.
    #[test]
    fn descriptor_beyond_blocked_threads_is_closed() {
        let (blocking, _others): (Vec<_>, Vec<_>) = (0..MAX_CLOSERS).map(|_| lingering()).unzip();
        let (reader, writer) = rustix::pipe::pipe().unwrap();
        blocking.into_iter().for_each(|fd| drop(ReceivedFd::from(fd)));
        drop(ReceivedFd::from(writer));
        // The pipe ends when the other end is closed.
        assert_eq!(rustix::io::read(&reader, &mut [0; 1]).unwrap(), 0);
    }

    #[test]
    fn number_is_closed_with_the_last_clone() {
        let file = CheckedFile::new(memfd()).unwrap();
        let clone = Arc::clone(file.fd().unwrap());
        drop(file);
        assert_eq!(Arc::strong_count(&clone), 1);
    }

    fn eventfd() -> OwnedFd {
        rustix::event::eventfd(0, rustix::event::EventfdFlags::CLOEXEC).unwrap()
    }

    /// Runs `act` in a forked child. Returns its result.
    fn in_fork(act: impl FnOnce() -> bool) -> bool {
        // SAFETY: the child makes system calls only, and exits.
        let pid = unsafe { libc::fork() };
        if pid == 0 {
            let code = i32::from(!act());
            // SAFETY: `_exit` runs no code of this process.
            unsafe { libc::_exit(code) };
        }
        let mut status = 0;
        // SAFETY: waits for the child made above.
        assert_eq!(unsafe { libc::waitpid(pid, &raw mut status, 0) }, pid);
        status == 0
    }

    fn is_open(number: i32) -> bool {
        // SAFETY: F_GETFD reads flags.
        unsafe { libc::fcntl(number, libc::F_GETFD) >= 0 }
    }

    #[test]
    fn forked_child_closes_only_registered_descriptors() {
        let closed = CloseOnFork::make(|| Ok(eventfd())).unwrap();
        let kept = CloseOnFork::new(eventfd()).unwrap().into_inner();
        let numbers = (closed.as_fd().as_raw_fd(), kept.as_raw_fd());
        assert!(in_fork(|| !is_open(numbers.0) && is_open(numbers.1)));
        assert!(is_open(numbers.0) && is_open(numbers.1));
        // In this child, the number refers to another file before the drop.
        assert!(in_fork(|| {
            // SAFETY: duplicates a descriptor to a number that is free.
            let copied = unsafe { libc::dup2(numbers.1, numbers.0) } == numbers.0;
            drop(closed);
            copied && is_open(numbers.0)
        }));
    }

    #[test]
    fn forked_child_does_not_close_a_reused_number() {
        let closed = CloseOnFork::new(crate::memfd::create("umf-test", 4096).unwrap()).unwrap();
        let other = crate::memfd::create("umf-other", 4096).unwrap();
        let number = closed.as_fd().as_raw_fd();
        // SAFETY: makes the number refer to another file, like a program that closes descriptors
        // which it did not open.
        assert_eq!(unsafe { libc::dup2(other.as_raw_fd(), number) }, number);
        assert!(in_fork(|| is_open(number)));
    }
}
