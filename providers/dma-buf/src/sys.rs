//! System calls of this crate. Each function is one call, or one call and its retry. The rest of
//! the crate does not depend on the kernel's types.

use core::ffi::CStr;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::path::Path;

use rustix::fs::{MemfdFlags, Mode, OFlags, SealFlags};
use rustix::io::{Errno, retry_on_intr};
use rustix::ioctl::{Opcode, Setter, Updater, opcode};

type Result<T> = core::result::Result<T, Errno>;

/// Opens a device for reading and writing.
pub(crate) fn open_device(path: &Path) -> Result<OwnedFd> {
    // O_NONBLOCK, because the path may be a FIFO or another file that blocks.
    let flags = OFlags::RDWR | OFlags::CLOEXEC | OFlags::NOCTTY | OFlags::NONBLOCK;
    retry_on_intr(|| rustix::fs::open(path, flags, Mode::empty()))
}

/// Creates a memfd that can be sealed, on huge pages of `huge_page` bytes if given.
pub(crate) fn memfd(name: &CStr, huge_page: Option<usize>) -> Result<OwnedFd> {
    let mut flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
    if let Some(size) = huge_page {
        // MFD_HUGETLB has the logarithm of the page size at bit 26.
        flags |= MemfdFlags::HUGETLB | MemfdFlags::from_bits_retain(size.trailing_zeros() << 26);
    }
    rustix::fs::memfd_create(name, flags)
}

/// Sets the size of a file and seals it permanently.
pub(crate) fn set_size_and_seal(file: BorrowedFd<'_>, size: u64) -> Result<()> {
    retry_on_intr(|| rustix::fs::ftruncate(file, size))?;
    rustix::fs::fcntl_add_seals(file, SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL)
}

/// Populates a file.
pub(crate) fn commit(file: BorrowedFd<'_>, size: u64) -> Result<()> {
    retry_on_intr(|| rustix::fs::fallocate(file, rustix::fs::FallocateFlags::empty(), 0, size))
}

/// Returns the size of a dma-buf in bytes. The file must be a dma-buf, because another file could
/// block.
pub(crate) fn size_of_buffer(file: BorrowedFd<'_>) -> Result<u64> {
    // The file position of a dma-buf has no effect.
    rustix::fs::seek(file, rustix::fs::SeekFrom::End(0))
}

/// Takes ownership of an fd that an ioctl returned.
fn owned_fd(fd: i32) -> Result<OwnedFd> {
    if fd < 0 {
        return Err(Errno::BADF);
    }
    // SAFETY: the successful ioctl has opened the fd for this process, and no other code owns it.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

/// Calls an ioctl that reads and writes one structure.
///
/// # Safety
/// `OPCODE` expects a `T`, and the pointers in `value` are valid for the call.
unsafe fn update<const OPCODE: Opcode, T>(fd: BorrowedFd<'_>, value: &mut T) -> Result<()> {
    // Drivers return EINTR on a signal and expect a retry.
    // SAFETY: the caller's contract.
    retry_on_intr(|| unsafe { rustix::ioctl::ioctl(fd, Updater::<OPCODE, T>::new(value)) })
}

/// Calls an ioctl that reads one structure.
///
/// # Safety
/// As [`update`].
unsafe fn set<const OPCODE: Opcode, T: Copy>(fd: BorrowedFd<'_>, value: T) -> Result<()> {
    // SAFETY: the caller's contract.
    retry_on_intr(|| unsafe { rustix::ioctl::ioctl(fd, Setter::<OPCODE, T>::new(value)) })
}

pub(crate) mod dma_buf {
    //! `linux/dma-buf.h`.

    use super::{AsRawFd, BorrowedFd, CStr, Opcode, OwnedFd, Result, opcode, owned_fd, set, update};

    const SYNC: Opcode = opcode::write::<u64>(b'b', 0);
    /// Its argument is a pointer to text, although the opcode declares a number.
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
            // SAFETY: the argument of the call is a 64-bit number of flags.
            match unsafe { set::<SYNC, u64>(buffer, flags) } {
                Err(rustix::io::Errno::AGAIN) => std::thread::yield_now(),
                other => return other,
            }
        }
    }

    /// Sets a name of at most 31 bytes.
    pub(crate) fn set_name(buffer: BorrowedFd<'_>, name: &CStr) -> Result<()> {
        let name = name.as_ptr();
        // SAFETY: the kernel reads a C string of at most 32 bytes, which outlives the call.
        unsafe { rustix::ioctl::ioctl(buffer, Pointer(name.cast())) }
    }

    struct Pointer(*const core::ffi::c_void);

    // SAFETY: the argument is passed unchanged, and the call has no output.
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

    /// Returns a sync file that becomes readable when pending work on the buffer is complete.
    pub(crate) fn export_sync_file(buffer: BorrowedFd<'_>, flags: u32) -> Result<OwnedFd> {
        let mut file = SyncFile { flags, fd: -1 };
        // SAFETY: the call expects a `SyncFile`, which has no pointers.
        unsafe { update::<EXPORT_SYNC_FILE, _>(buffer, &mut file) }?;
        owned_fd(file.fd)
    }

    /// Adds a sync file to the fences of the buffer.
    pub(crate) fn import_sync_file(buffer: BorrowedFd<'_>, flags: u32, file: BorrowedFd<'_>) -> Result<()> {
        // SAFETY: the call expects a `SyncFile`, which has no pointers.
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

    /// `struct udmabuf_create_list` without its items. Its size is part of the opcode.
    #[repr(C)]
    struct Head {
        flags: u32,
        count: u32,
    }

    const CREATE_LIST: Opcode = opcode::write::<Head>(b'u', 0x43);

    struct List(Vec<u64>);

    // SAFETY: the kernel reads the head and `count` items after it, and returns the new fd.
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

    /// Creates a dma-buf of these parts, in this order.
    pub(crate) fn create(device: BorrowedFd<'_>, items: &[Item]) -> Result<OwnedFd> {
        let count = u32::try_from(items.len()).map_err(|_| Errno::INVAL)?;
        // The head is one 64-bit word, and each item is three.
        let word = |low: u32, high: u32| {
            let (low, high) = (low.to_ne_bytes(), high.to_ne_bytes());
            u64::from_ne_bytes([low[0], low[1], low[2], low[3], high[0], high[1], high[2], high[3]])
        };
        let mut words = Vec::with_capacity(1 + 3 * items.len());
        words.push(word(FLAGS_CLOEXEC, count));
        for item in items {
            words.extend([word(item.memfd, item.padding), item.offset, item.size]);
        }
        // SAFETY: the list has a head and `count` items. The kernel keeps no pointer to it.
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

    /// Creates a dma-buf of this size.
    pub(crate) fn allocate(heap: BorrowedFd<'_>, size: u64) -> Result<OwnedFd> {
        let fd_flags = (OFlags::RDWR | OFlags::CLOEXEC).bits();
        let mut allocation = Allocation { len: size, fd: 0, fd_flags, heap_flags: 0 };
        // SAFETY: the call expects an `Allocation`, which has no pointers.
        unsafe { update::<ALLOC, _>(heap, &mut allocation) }?;
        owned_fd(i32::try_from(allocation.fd).map_err(|_| Errno::BADF)?)
    }
}
