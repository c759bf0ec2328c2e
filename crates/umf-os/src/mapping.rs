//! [`Mapping`]: mapped memory that is unmapped when dropped, at any alignment; and [`metadata`], mappings
//! for metadata.

use core::mem::ManuallyDrop;
use core::ptr::{self, NonNull};
use std::os::fd::BorrowedFd;

use rustix::io::Errno;
use rustix::mm::{MapFlags, MprotectFlags, ProtFlags};
use umf_core::{Address, Error, Region, Result};
use umf_sync::failpoint;

/// The number of attempts to map at an address that another thread may map first.
const TRIES: usize = 64;

/// The address that a mapping is placed at.
#[derive(Clone, Copy, Debug)]
pub enum Placement {
    /// An address of the kernel's choice.
    Anywhere,
    /// Exactly this address, if nothing is mapped there. Otherwise `EEXIST`, or before Linux 4.17
    /// another address.
    At(usize),
}

impl Placement {
    /// Returns the address and flags for `mmap(2)`.
    #[must_use]
    pub fn hint(self) -> (*mut core::ffi::c_void, MapFlags) {
        match self {
            Self::Anywhere => (ptr::null_mut(), MapFlags::empty()),
            Self::At(address) => (ptr::without_provenance_mut(address), MapFlags::FIXED_NOREPLACE),
        }
    }
}

/// Mapped memory, which is unmapped when this is dropped.
#[derive(Debug)]
pub struct Mapping {
    base: NonNull<u8>,
    size: usize,
}

// SAFETY: the mapping has one owner, and any thread may unmap it.
unsafe impl Send for Mapping {}
// SAFETY: a shared reference yields the address and size only.
unsafe impl Sync for Mapping {}

impl Mapping {
    /// Maps `size` bytes of `file` at `offset`, shared (`MAP_SHARED`), at a multiple of `align`.
    ///
    /// # Errors
    /// Those of `mmap(2)`; `ENOMEM` also if no aligned address is found.
    pub fn of_file(
        file: BorrowedFd<'_>,
        offset: u64,
        size: usize,
        align: usize,
        writable: bool,
    ) -> Result<Self, Errno> {
        let access = if writable { ProtFlags::READ | ProtFlags::WRITE } else { ProtFlags::READ };
        // SAFETY: the function maps `size` bytes, and no other mapping owns them.
        unsafe { Self::placed(size, align, |place| map_file(place, file, offset, size, access)) }
    }

    /// Maps as [`Mapping::of_file`] does. Pages are allocated when they are touched, and are not
    /// locked, even after `mlockall(MCL_FUTURE)`.
    ///
    /// # Errors
    /// Those of `mmap(2)`, `munlock(2)` and `mprotect(2)`.
    pub fn of_file_on_demand(
        file: BorrowedFd<'_>,
        offset: u64,
        size: usize,
        align: usize,
        writable: bool,
    ) -> Result<Self, Errno> {
        let map = |place| map_file(place, file, offset, size, ProtFlags::empty());
        // SAFETY: the function maps that much, and no other mapping owns it.
        let mapping = unsafe { Self::placed(size, align, map) }?;
        // SAFETY: the mapping was made above, and nothing uses it yet.
        unsafe { open_unlocked(mapping.base, size, writable) }?;
        Ok(mapping)
    }

    /// Maps at a multiple of `align` an object whose mapping cannot be trimmed: its first byte must
    /// lie at the base.
    ///
    /// Never replaces a mapping. `MAP_FIXED` would, and a failure of it leaves a hole that another
    /// thread may map first.
    ///
    /// # Errors
    /// Those of `map`; `ENOMEM` if no aligned address is found.
    ///
    /// # Safety
    /// `map` makes a new mapping of `size` bytes, or fails.
    pub unsafe fn placed(
        size: usize,
        align: usize,
        map: impl Fn(Placement) -> Result<NonNull<u8>, Errno>,
    ) -> Result<Self, Errno> {
        // Often aligned at once: the kernel aligns mappings that can have huge pages.
        let first = Self { base: map(Placement::Anywhere)?, size };
        if first.base.addr().get().is_multiple_of(align) {
            return Ok(first);
        }
        drop(first);
        let room = size.checked_add(align).ok_or(Errno::NOMEM)?;
        for attempt in 0..TRIES {
            // The kernel maps at one end of the free addresses. So the target is in the middle of a
            // free range that grows with each attempt, and other threads map beside it.
            let wide = room.saturating_mul(1 + attempt * attempt);
            let free = Self::reserve(wide).or_else(|_| Self::reserve(room))?;
            let middle = free.base.addr().get() + (free.size - room) / 2;
            let target = middle.next_multiple_of(align);
            drop(free);
            match map(Placement::At(target)) {
                Ok(base) if base.addr().get() == target => return Ok(Self { base, size }),
                // Before Linux 4.17, and the address was in use.
                Ok(base) => drop(Self { base, size }),
                Err(Errno::EXIST) => {}
                Err(error) => return Err(error),
            }
        }
        Err(Errno::NOMEM)
    }

    /// Takes ownership of a mapping.
    ///
    /// # Safety
    /// `size` bytes at `base` are mapped, have no other owner, and are not in use.
    #[must_use]
    pub const unsafe fn from_parts(base: NonNull<u8>, size: usize) -> Self {
        Self { base, size }
    }

    /// Returns the mapping of a region, which [`Mapping::leak`] left mapped.
    ///
    /// # Safety
    /// The region is live, and is such a mapping. It is not in use while this exists, unless this
    /// is leaked again.
    #[must_use]
    pub unsafe fn of_region(region: &Region) -> Option<Self> {
        let base = NonNull::new(region.base().as_ptr()?)?;
        Some(Self { base, size: region.size() })
    }

    /// Checks that `size` bytes of contiguous address space are free.
    ///
    /// # Errors
    /// Those of `mmap(2)`, if they are not.
    pub fn probe(size: usize) -> Result<(), Errno> {
        Self::reserve(size).map(drop)
    }

    fn reserve(size: usize) -> Result<Self, Errno> {
        Ok(Self { base: reserve_addresses(size)?, size })
    }

    /// Unmaps all but `size` bytes at the first multiple of `align`. If these do not lie inside,
    /// nothing is unmapped.
    #[must_use]
    pub fn trimmed(self, size: usize, align: usize) -> Self {
        let start = self.base.addr().get();
        let head = start.checked_next_multiple_of(align).map(|aligned| aligned - start);
        let Some((head, end)) = head
            .and_then(|head| Some((head, head.checked_add(size)?)))
            .filter(|&(_, end)| end <= self.size && size > 0)
        else {
            return self;
        };
        let whole = ManuallyDrop::new(self);
        // SAFETY: both lie inside of the mapping, as was just checked, or at its end.
        let (base, tail) = unsafe { (whole.base.add(head), whole.base.add(end)) };
        // Head and tail are unmapped when dropped. That fails only if the kernel has no memory;
        // then they stay mapped, unused.
        for (base, size) in [(whole.base, head), (tail, whole.size - end)] {
            if size > 0 {
                drop(Self { base, size });
            }
        }
        Self { base, size }
    }

    /// Returns a pointer to the first byte.
    #[must_use]
    pub const fn base(&self) -> NonNull<u8> {
        self.base
    }

    /// Returns the address of the first byte.
    #[must_use]
    pub fn address(&self) -> Address {
        Address::from_ptr(self.base.as_ptr())
    }

    /// Returns the size in bytes.
    #[must_use]
    pub const fn size(&self) -> usize {
        self.size
    }

    /// Leaves the memory mapped, and returns its address. [`Mapping::of_region`] is the inverse.
    pub fn leak(self) -> Address {
        ManuallyDrop::new(self).address()
    }

    /// Unmaps the memory.
    ///
    /// # Errors
    /// [`Error::Native`] together with the unchanged mapping.
    pub fn unmap(self) -> Result<(), (Self, Error)> {
        let this = ManuallyDrop::new(self);
        // SAFETY: this value owns the mapping, and the contract of its constructor says that it is
        // not in use.
        match unsafe { unmap(this.base, this.size) } {
            Ok(()) => Ok(()),
            Err(errno) => {
                let hint = "raise vm.max_map_count if this process has that many mappings";
                let error = Error::Native { call: "munmap", native: errno.raw_os_error(), hint };
                Err((ManuallyDrop::into_inner(this), error))
            }
        }
    }

    /// Unmaps the memory of a region that is freed, or leaves it mapped as [`Mapping::leak`] does.
    ///
    /// # Errors
    /// [`Error::Native`], if it stays mapped.
    pub fn unmap_or_leak(self) -> Result<()> {
        self.unmap().map_err(|(mapping, error)| {
            mapping.leak();
            error
        })
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: this value owns the mapping, and no borrow of it is left.
        let _ = unsafe { unmap(self.base, self.size) };
    }
}

/// Returns the error for `size` bytes of `owner`, a provider, that could not be mapped.
#[must_use]
pub fn map_error(size: usize, owner: &'static str, errno: Errno) -> Error {
    match errno {
        Errno::NOMEM | Errno::OVERFLOW | Errno::AGAIN => {
            Error::OutOfMemory { size, owner, native: errno.raw_os_error() }
        }
        _ => Error::native("mmap", errno.raw_os_error()),
    }
}

/// Returns the system's page size in bytes.
#[must_use]
pub fn page_size() -> usize {
    // rustix panics on Linux before 6.4 without /proc.
    // SAFETY: `sysconf` accesses no memory of this program.
    let size = unsafe { libc::sysconf(libc::_SC_PAGESIZE) };
    usize::try_from(size).unwrap_or(4096)
}

// The system calls. Each function is one call.

/// Reserves `size` bytes of address space, without access and without memory.
fn reserve_addresses(size: usize) -> Result<NonNull<u8>, Errno> {
    let flags = MapFlags::PRIVATE | MapFlags::NORESERVE;
    // SAFETY: a new mapping at an address of the kernel's choice affects no existing memory.
    let mapped = unsafe { rustix::mm::mmap_anonymous(ptr::null_mut(), size, ProtFlags::empty(), flags) }?;
    NonNull::new(mapped.cast()).ok_or(Errno::NOMEM)
}

/// Maps `size` bytes of `file` at `offset`, shared (`MAP_SHARED`).
fn map_file(
    place: Placement,
    file: BorrowedFd<'_>,
    offset: u64,
    size: usize,
    access: ProtFlags,
) -> Result<NonNull<u8>, Errno> {
    let (hint, mut flags) = place.hint();
    // Without MAP_POPULATE, which ignores errors: callers allocate the pages in the file. Without a
    // reservation, which on hugetlbfs outlives its pages.
    flags |= MapFlags::SHARED | MapFlags::NORESERVE;
    // SAFETY: a new mapping at an address of the kernel's choice, or at one that is not mapped.
    let mapped = unsafe { rustix::mm::mmap(hint, size, access, flags, file, offset) }?;
    failpoint!("file.mapped");
    NonNull::new(mapped.cast()).ok_or(Errno::NOMEM)
}

/// Makes a mapping without access readable, or readable and writable. It is not locked and not
/// populated.
///
/// # Safety
/// The range is one mapping that the caller owns.
unsafe fn open_unlocked(base: NonNull<u8>, size: usize, writable: bool) -> Result<(), Errno> {
    let access = if writable { MprotectFlags::READ | MprotectFlags::WRITE } else { MprotectFlags::READ };
    // SAFETY: passed on to the caller.
    unsafe {
        rustix::mm::munlock(base.as_ptr().cast(), size)?;
        rustix::mm::mprotect(base.as_ptr().cast(), size, access)
    }
}

/// Unmaps a range.
///
/// # Safety
/// The range consists of mappings that the caller owns and that are not in use any more.
unsafe fn unmap(base: NonNull<u8>, size: usize) -> Result<(), Errno> {
    // SAFETY: passed on to the caller.
    let unmapped = unsafe { rustix::mm::munmap(base.as_ptr().cast(), size) };
    failpoint!("unmapped");
    unmapped
}

/// Memory for metadata of umf, which never comes from the global allocator: a pool may be the
/// global allocator.
pub mod metadata {
    use core::ptr::NonNull;

    use rustix::mm::{MapFlags, ProtFlags};
    use umf_core::{Error, Result};

    /// Maps `size` bytes of zeroed private memory. Pages are committed when first touched.
    ///
    /// # Errors
    /// [`Error::OutOfMemory`].
    pub fn map(size: usize) -> Result<NonNull<u8>> {
        // SAFETY: a new mapping at an address of the kernel's choice affects no existing memory.
        let mapped = unsafe {
            rustix::mm::mmap_anonymous(
                core::ptr::null_mut(),
                size,
                ProtFlags::READ | ProtFlags::WRITE,
                MapFlags::PRIVATE | MapFlags::NORESERVE,
            )
        };
        let out_of_memory = |native| Error::OutOfMemory { size, owner: "metadata", native };
        let pointer = mapped.map_err(|errno| out_of_memory(errno.raw_os_error()))?;
        NonNull::new(pointer.cast::<u8>()).ok_or(out_of_memory(0))
    }

    /// Unmaps memory that [`map`] returned for this size.
    ///
    /// # Safety
    /// No thread uses the memory any more.
    pub unsafe fn unmap(pointer: NonNull<u8>, size: usize) {
        // SAFETY: passed on to the caller. An error leaves the memory mapped.
        let _ = unsafe { rustix::mm::munmap(pointer.as_ptr().cast(), size) };
    }
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsFd;

    use super::*;

    #[test]
    fn files_are_mapped_at_their_offset_at_any_alignment() {
        let file = rustix::fs::memfd_create(c"umf-test", rustix::fs::MemfdFlags::CLOEXEC).unwrap();
        rustix::fs::ftruncate(&file, 1 << 20).unwrap();
        rustix::io::pwrite(&file, b"here", 8192).unwrap();
        for align in [4096, 1 << 16, 1 << 21, 1 << 30] {
            let mapping = Mapping::of_file(file.as_fd(), 8192, 4096, align, true).unwrap();
            assert_eq!(mapping.base().addr().get() % align, 0);
            // SAFETY: the mapping has 4096 bytes.
            assert_eq!(unsafe { mapping.base().cast::<[u8; 4]>().read() }, *b"here");
        }
    }

    #[test]
    fn aligned_address_is_found_while_other_threads_map() {
        const SIZE: usize = 4096;
        const ALIGN: usize = 1 << 24;
        let taken = core::cell::RefCell::new(Vec::new());
        // Before each attempt, another thread gets the addresses that were just free.
        let map = |place: Placement| {
            if let Placement::At(_) = place {
                taken.borrow_mut().push(Mapping::reserve(SIZE + ALIGN)?);
            }
            let (hint, flags) = place.hint();
            // SAFETY: a new mapping at an address of the kernel's choice, or at one that is not
            // mapped.
            let mapped = unsafe {
                rustix::mm::mmap_anonymous(hint, SIZE, ProtFlags::READ, flags | MapFlags::PRIVATE)
            }?;
            NonNull::new(mapped.cast()).ok_or(Errno::NOMEM)
        };
        // SAFETY: the function maps that much, and no other mapping owns it.
        let mapping = unsafe { Mapping::placed(SIZE, ALIGN, map) }.unwrap();
        assert!(mapping.base().addr().get().is_multiple_of(ALIGN) && !taken.borrow().is_empty());
    }

    #[test]
    fn trimmed_keeps_the_aligned_part_only() {
        let anonymous = |size| {
            let flags = MapFlags::PRIVATE;
            // SAFETY: a new mapping at an address of the kernel's choice.
            let mapped = unsafe {
                rustix::mm::mmap_anonymous(ptr::null_mut(), size, ProtFlags::READ | ProtFlags::WRITE, flags)
            };
            // SAFETY: it was mapped above, and has no other owner.
            unsafe { Mapping::from_parts(NonNull::new(mapped.unwrap().cast()).unwrap(), size) }
        };
        for align in [4096, 1 << 16, 1 << 21] {
            let mapping = anonymous(8192 + align).trimmed(8192, align);
            assert_eq!((mapping.base().addr().get() % align, mapping.size()), (0, 8192));
            // SAFETY: both bytes lie in the mapping.
            unsafe {
                mapping.base().write(1);
                mapping.base().add(8191).write(1);
            }
        }
        // If the part does not lie inside, nothing is unmapped.
        assert_eq!(anonymous(4096).trimmed(8192, 4096).size(), 4096);
        assert_eq!(anonymous(4096).trimmed(0, 4096).size(), 4096);
        assert_eq!(anonymous(4096).trimmed(usize::MAX, 4096).size(), 4096);
    }

    #[test]
    fn leaked_mapping_is_restored_from_its_region() {
        let file = rustix::fs::memfd_create(c"umf-test", rustix::fs::MemfdFlags::CLOEXEC).unwrap();
        rustix::fs::ftruncate(&file, 4096).unwrap();
        let mapping = Mapping::of_file(file.as_fd(), 0, 4096, 4096, true).unwrap();
        let region = Region::new(mapping.leak(), 4096);
        // SAFETY: a mapping of this test's own.
        let mapping = unsafe { Mapping::of_region(&region) }.unwrap();
        assert_eq!((mapping.address(), mapping.size()), (region.base(), 4096));
        mapping.unmap().unwrap();
        assert!(Mapping::probe(1 << 62).is_err() && Mapping::probe(1 << 20).is_ok());
    }
}
