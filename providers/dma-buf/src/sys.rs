//! System calls of this crate. BufferPerRegion function is one call (or one call and its retry), with the kernel's types kept out of
//! the rest of the crate.

use core::ffi::CStr;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::path::Path;

use rustix::fs::{MemfdFlags, Mode, OFlags, SealFlags};
use rustix::io::{Errno, retry_on_intr};
use rustix::ioctl::{Opcode, Setter, Updater, opcode};

type Result<T> = core::result::Result<T, Errno>;

/// Opens a device for reading and writing.
pub(crate) fn open_device(path: &Path) -> Result<OwnedFd> {
    // A device file that a user made in place of the real one may be anything: it is not waited for.
    let flags = OFlags::RDWR | OFlags::CLOEXEC | OFlags::NOCTTY | OFlags::NONBLOCK;
    retry_on_intr(|| rustix::fs::open(path, flags, Mode::empty()))
}

/// A memfd that can be sealed, on huge pages of `huge_page` bytes if given.
pub(crate) fn memfd(name: &CStr, huge_page: Option<usize>) -> Result<OwnedFd> {
    let mut flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
    if let Some(size) = huge_page {
        // The logarithm at bit 26, as `memfd_create(2)` says.
        flags |= MemfdFlags::HUGETLB | MemfdFlags::from_bits_retain(size.trailing_zeros() << 26);
    }
    rustix::fs::memfd_create(name, flags)
}

/// Sets the size of a file and seals it for good: it can be neither shrunk nor grown.
pub(crate) fn set_size_and_seal(file: BorrowedFd<'_>, size: u64) -> Result<()> {
    retry_on_intr(|| rustix::fs::ftruncate(file, size))?;
    rustix::fs::fcntl_add_seals(file, SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL)
}

/// Makes all pages of a file now.
pub(crate) fn commit(file: BorrowedFd<'_>, size: u64) -> Result<()> {
    retry_on_intr(|| rustix::fs::fallocate(file, rustix::fs::FallocateFlags::empty(), 0, size))
}

/// The size of a dma-buf in bytes. Only for what is known to be one: another file may wait here.
pub(crate) fn size_of_buffer(file: BorrowedFd<'_>) -> Result<u64> {
    // The position of a dma-buf means nothing.
    rustix::fs::seek(file, rustix::fs::SeekFrom::End(0))
}

/// An fd that a driver put into a structure.
fn owned_fd(fd: i32) -> Result<OwnedFd> {
    if fd < 0 {
        return Err(Errno::BADF);
    }
    // SAFETY: the ioctl that succeeded has just opened it for this process, and nobody else knows it.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

/// Calls an ioctl that reads and writes one structure.
///
/// # Safety
/// `OPCODE` expects a `T`, and what the `T` points to is valid for the call.
unsafe fn update<const OPCODE: Opcode, T>(fd: BorrowedFd<'_>, value: &mut T) -> Result<()> {
    // Drivers give up when a signal comes, and expect to be asked again.
    // SAFETY: passed on to the caller.
    retry_on_intr(|| unsafe { rustix::ioctl::ioctl(fd, Updater::<OPCODE, T>::new(value)) })
}

/// Calls an ioctl that reads one structure.
///
/// # Safety
/// As [`update`].
unsafe fn set<const OPCODE: Opcode, T: Copy>(fd: BorrowedFd<'_>, value: T) -> Result<()> {
    // SAFETY: passed on to the caller.
    retry_on_intr(|| unsafe { rustix::ioctl::ioctl(fd, Setter::<OPCODE, T>::new(value)) })
}

pub(crate) mod dma_buf {
    //! `linux/dma-buf.h`.

    use super::{AsRawFd, BorrowedFd, CStr, Opcode, OwnedFd, Result, opcode, owned_fd, set, update};

    const SYNC: Opcode = opcode::write::<u64>(b'b', 0);
    /// Its argument is a pointer to text, though it says that it is a number.
    const SET_NAME: Opcode = opcode::write::<u64>(b'b', 1);
    const EXPORT_SYNC_FILE: Opcode = opcode::read_write::<SyncFile>(b'b', 2);
    const IMPORT_SYNC_FILE: Opcode = opcode::write::<SyncFile>(b'b', 3);

    /// The CPU reads.
    pub(crate) const READ: u32 = 1;
    /// The CPU writes.
    pub(crate) const WRITE: u32 = 2;
    const END: u64 = 4;

    #[repr(C)]
    #[derive(Clone, Copy)]
    struct SyncFile {
        flags: u32,
        fd: i32,
    }

    /// Begins or ends an access of the CPU.
    pub(crate) fn sync(buffer: BorrowedFd<'_>, flags: u32, ends: bool) -> Result<()> {
        let flags = u64::from(flags) | if ends { END } else { 0 };
        loop {
            // SAFETY: the structure is one 64-bit number of flags.
            match unsafe { set::<SYNC, u64>(buffer, flags) } {
                Err(rustix::io::Errno::AGAIN) => std::thread::yield_now(),
                other => return other,
            }
        }
    }

    /// Gives the buffer a name of at most 31 bytes.
    pub(crate) fn set_name(buffer: BorrowedFd<'_>, name: &CStr) -> Result<()> {
        let name = name.as_ptr();
        // SAFETY: the kernel reads up to 32 bytes of text that ends with 0, which outlives the call.
        unsafe { rustix::ioctl::ioctl(buffer, Pointer(name.cast())) }
    }

    struct Pointer(*const core::ffi::c_void);

    // SAFETY: the argument is passed as it is, and nothing comes back.
    unsafe impl rustix::ioctl::Ioctl for Pointer {
        type Output = ();
        const IS_MUTATING: bool = false;

        fn opcode(&self) -> Opcode {
            SET_NAME
        }

        fn as_ptr(&mut self) -> *mut core::ffi::c_void {
            self.0.cast_mut()
        }

        unsafe fn output_from_ptr(
            _: rustix::ioctl::IoctlOutput,
            _: *mut core::ffi::c_void,
        ) -> rustix::io::Result<()> {
            Ok(())
        }
    }

    /// A file that becomes readable once the devices' work on the buffer is done.
    pub(crate) fn export_sync_file(buffer: BorrowedFd<'_>, flags: u32) -> Result<OwnedFd> {
        let mut file = SyncFile { flags, fd: -1 };
        // SAFETY: the structure that the call expects; it holds no pointers.
        unsafe { update::<EXPORT_SYNC_FILE, _>(buffer, &mut file) }?;
        owned_fd(file.fd)
    }

    /// Lets devices that use the buffer from now on wait for what a sync file stands for.
    pub(crate) fn import_sync_file(buffer: BorrowedFd<'_>, flags: u32, file: BorrowedFd<'_>) -> Result<()> {
        // SAFETY: as above.
        unsafe { set::<IMPORT_SYNC_FILE, _>(buffer, SyncFile { flags, fd: file.as_raw_fd() }) }
    }
}

pub(crate) mod udmabuf {
    //! `linux/udmabuf.h`.

    use super::{BorrowedFd, Errno, Opcode, OwnedFd, Result, opcode, owned_fd};

    const FLAGS_CLOEXEC: u32 = 1;

    /// One part of a buffer.
    #[repr(C)]
    #[derive(Clone, Copy, Debug)]
    pub(crate) struct Item {
        pub(crate) memfd: u32,
        pub(crate) padding: u32,
        pub(crate) offset: u64,
        pub(crate) size: u64,
    }

    /// `struct udmabuf_create_list` without its items, which decides what number the call has.
    #[repr(C)]
    struct Head {
        flags: u32,
        count: u32,
    }

    const CREATE_LIST: Opcode = opcode::write::<Head>(b'u', 0x43);

    struct List(Vec<u64>);

    // SAFETY: the kernel reads the head, and as many items behind it as that says; the new fd is what it returns.
    unsafe impl rustix::ioctl::Ioctl for List {
        type Output = i32;
        const IS_MUTATING: bool = false;

        fn opcode(&self) -> Opcode {
            CREATE_LIST
        }

        fn as_ptr(&mut self) -> *mut core::ffi::c_void {
            self.0.as_mut_ptr().cast()
        }

        unsafe fn output_from_ptr(
            out: rustix::ioctl::IoctlOutput,
            _: *mut core::ffi::c_void,
        ) -> rustix::io::Result<i32> {
            Ok(out)
        }
    }

    /// A dma-buf of these parts, one after the other.
    pub(crate) fn create(device: BorrowedFd<'_>, items: &[Item]) -> Result<OwnedFd> {
        let count = u32::try_from(items.len()).map_err(|_| Errno::INVAL)?;
        // The structures as words of the machine: the head, then three for each item.
        let word = |low: u32, high: u32| {
            let (low, high) = (low.to_ne_bytes(), high.to_ne_bytes());
            u64::from_ne_bytes([low[0], low[1], low[2], low[3], high[0], high[1], high[2], high[3]])
        };
        let mut words = Vec::with_capacity(1 + 3 * items.len());
        words.push(word(FLAGS_CLOEXEC, count));
        for item in items {
            words.extend([word(item.memfd, item.padding), item.offset, item.size]);
        }
        // SAFETY: a head and `count` items; the call holds on to nothing of them.
        owned_fd(unsafe { rustix::ioctl::ioctl(device, List(words)) }?)
    }
}

pub(crate) mod heap {
    //! `linux/dma-heap.h`.

    use super::{BorrowedFd, Errno, OFlags, Opcode, OwnedFd, Result, opcode, owned_fd, update};

    #[repr(C)]
    struct Allocation {
        len: u64,
        fd: u32,
        fd_flags: u32,
        heap_flags: u64,
    }

    const ALLOC: Opcode = opcode::read_write::<Allocation>(b'H', 0);

    /// A dma-buf of this size.
    pub(crate) fn allocate(heap: BorrowedFd<'_>, size: u64) -> Result<OwnedFd> {
        let fd_flags = (OFlags::RDWR | OFlags::CLOEXEC).bits();
        let mut allocation = Allocation { len: size, fd: 0, fd_flags, heap_flags: 0 };
        // SAFETY: the structure that the call expects; it holds no pointers.
        unsafe { update::<ALLOC, _>(heap, &mut allocation) }?;
        owned_fd(i32::try_from(allocation.fd).map_err(|_| Errno::BADF)?)
    }
}
