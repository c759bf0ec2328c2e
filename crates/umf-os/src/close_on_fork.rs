//! [`CloseOnFork`]: descriptors that forked children do not keep.
//!
//! POSIX.1-2024 has `FD_CLOFORK` for that, which Linux lacks. Here the numbers stand in a table,
//! and each forked child closes them before `fork(3)` returns.

use core::sync::atomic::{AtomicI32, AtomicU32, AtomicU64, Ordering};
use std::mem::ManuallyDrop;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};

use rustix::io::Errno;
use umf_sync::fork::{self, ForkGuard, Hooks, Outer};
use umf_sync::table::Table;
use umf_sync::{chunks::Zeroable, failpoint};

use crate::SystemResult as Result;
use crate::file::{FileIdentity, identity};

/// One descriptor.
#[derive(Debug)]
struct Slot {
    /// The number plus one; 0 if there is none.
    fd: AtomicI32,
    /// The file that the number meant.
    file: [AtomicU64; 2],
}

// SAFETY: zeros are valid atomics, which need no drop.
unsafe impl Zeroable for Slot {}

/// Slots of a parent are not used again in a child: 24 bytes for each descriptor that it closed.
static SLOTS: Table<Slot, 64> = Table::new(1 << 20);
/// No slot from here on was ever used.
static END: AtomicU32 = AtomicU32::new(0);

static AT_FORK: Hooks = Hooks { child: close_all, ..Hooks::NONE };

fn close_all() {
    for slot in (0..END.load(Ordering::Acquire)).filter_map(|number| SLOTS.get(number)) {
        let number = slot.fd.swap(0, Ordering::Relaxed) - 1;
        if number < 0 {
            continue;
        }
        // SAFETY: borrowed for a question, which any number may be asked.
        let is_same = identity(unsafe { BorrowedFd::borrow_raw(number) }) == Ok(slot.file());
        // A program may have closed it, and given the number to another file.
        if is_same {
            // SAFETY: the object of the parent that owns the descriptor does not close it in this
            // process.
            drop(unsafe { OwnedFd::from_raw_fd(number) });
            failpoint!("fork.descriptor_closed");
        }
    }
}

impl Slot {
    fn file(&self) -> FileIdentity {
        let [device, inode] = [0, 1].map(|half: usize| self.file[half].load(Ordering::Relaxed));
        FileIdentity { device, inode }
    }
}

/// Has forked children close a descriptor, until this is dropped.
#[derive(Debug)]
pub struct ClosedInChildren {
    slot: u32,
    /// The process that made it, as [`fork::generation`] counts.
    generation: u32,
}

impl ClosedInChildren {
    pub fn new(fd: BorrowedFd<'_>) -> Result<Self> {
        let file = identity(fd)?;
        fork::add_hooks(&AT_FORK).map_err(|_| Errno::NOMEM)?;
        let (number, slot) = SLOTS.allocate().map_err(|_| Errno::NOMEM)?;
        END.fetch_max(number + 1, Ordering::AcqRel);
        slot.file[0].store(file.device, Ordering::Relaxed);
        slot.file[1].store(file.inode, Ordering::Relaxed);
        slot.fd.store(fd.as_raw_fd() + 1, Ordering::Release);
        Ok(Self { slot: number, generation: fork::generation() })
    }

    /// Whether this process made it. In a child of that one the descriptor is closed.
    pub fn belongs_here(&self) -> bool {
        self.generation == fork::generation()
    }
}

impl Drop for ClosedInChildren {
    fn drop(&mut self) {
        if self.belongs_here()
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
    in_children: ClosedInChildren,
}

impl CloseOnFork {
    /// Takes over a descriptor. A child forked before this keeps it: see [`CloseOnFork::make`].
    ///
    /// # Errors
    /// `ENOMEM`, and those of `fstat(2)`; the descriptor is closed.
    pub fn new(fd: OwnedFd) -> Result<Self> {
        let in_children = ClosedInChildren::new(fd.as_fd())?;
        Ok(Self { fd: ManuallyDrop::new(fd), in_children })
    }

    /// Takes over what `make` returns. Forks wait meanwhile, so that no child keeps it.
    ///
    /// # Errors
    /// Those of `make` and of [`CloseOnFork::new`].
    pub fn make(make: impl FnOnce() -> Result<OwnedFd>) -> Result<Self> {
        let _no_fork = ForkGuard::<Outer>::new();
        Self::new(make()?)
    }

    /// Returns the descriptor, which children forked from here on keep.
    #[must_use]
    pub fn into_inner(self) -> OwnedFd {
        let mut this = ManuallyDrop::new(self);
        // SAFETY: neither is used again, as `this` is not dropped.
        unsafe {
            core::ptr::drop_in_place(&raw mut this.in_children);
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
        // A fork finds it open and in the table, or neither.
        let _no_fork = ForkGuard::<Outer>::new();
        if self.in_children.belongs_here()
            && let Some(slot) = SLOTS.get(self.in_children.slot)
        {
            slot.fd.store(0, Ordering::Release);
            // A program may have closed it, and given the number to another file.
            if identity(&*self.fd) == Ok(slot.file()) {
                // SAFETY: not used again.
                unsafe { ManuallyDrop::drop(&mut self.fd) };
            }
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]
    use super::*;

    fn eventfd() -> OwnedFd {
        rustix::event::eventfd(0, rustix::event::EventfdFlags::CLOEXEC).unwrap()
    }

    /// Runs `act` in a forked child; whether it returned true there.
    fn in_fork(act: impl FnOnce() -> bool) -> bool {
        // SAFETY: the child makes system calls, and ends.
        let pid = unsafe { libc::fork() };
        if pid == 0 {
            let code = i32::from(!act());
            // SAFETY: ends the child at once.
            unsafe { libc::_exit(code) };
        }
        let mut status = 0;
        // SAFETY: waits for the child made above.
        assert_eq!(unsafe { libc::waitpid(pid, &raw mut status, 0) }, pid);
        status == 0
    }

    fn is_open(number: i32) -> bool {
        // SAFETY: asks for flags.
        unsafe { libc::fcntl(number, libc::F_GETFD) >= 0 }
    }

    #[test]
    fn children_close_it_and_nothing_else() {
        let closed = CloseOnFork::make(|| Ok(eventfd())).unwrap();
        let kept = CloseOnFork::new(eventfd()).unwrap().into_inner();
        let numbers = (closed.as_fd().as_raw_fd(), kept.as_raw_fd());
        assert!(in_fork(|| !is_open(numbers.0) && is_open(numbers.1)));
        assert!(is_open(numbers.0) && is_open(numbers.1));
        // In a child it is the number of another file by now.
        assert!(in_fork(|| {
            // SAFETY: duplicates a descriptor to a number that is free.
            let copied = unsafe { libc::dup2(numbers.1, numbers.0) } == numbers.0;
            drop(closed);
            copied && is_open(numbers.0)
        }));
    }

    #[test]
    fn a_number_that_means_another_file_is_left_alone() {
        let closed = CloseOnFork::new(crate::memfd::create("umf-test", 4096).unwrap()).unwrap();
        let other = crate::memfd::create("umf-other", 4096).unwrap();
        let number = closed.as_fd().as_raw_fd();
        // SAFETY: gives the number to another file, as programs do that close descriptors of
        // others.
        assert_eq!(unsafe { libc::dup2(other.as_raw_fd(), number) }, number);
        assert!(in_fork(|| is_open(number)));
    }
}
