//! Memory of a device: [`Backing`] (pages in a file), [`AddressMap`] (the addresses at which the
//! application sees them) and [`Span`] (the memory that a command uses).
//!
//! The application's addresses of device memory have no access: the CPU gets SIGSEGV. The threads
//! that execute commands use a second mapping of the same pages.

use std::collections::BTreeMap;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};

use rustix::io::Errno;

use crate::{Error, Result, sys};

/// A limit with a count: bytes of a device, or fds of the driver.
#[derive(Debug)]
pub struct Budget {
    limit: u64,
    used: AtomicU64,
}

impl Budget {
    /// Returns an unused budget.
    pub fn new(limit: u64) -> Arc<Self> {
        Arc::new(Self { limit, used: AtomicU64::new(0) })
    }

    /// Charges `amount` until the returned charge is dropped. `None` if less is left.
    pub fn take(self: &Arc<Self>, amount: u64) -> Option<Charge> {
        let add = |used: u64| used.checked_add(amount).filter(|sum| *sum <= self.limit);
        self.used.fetch_update(Ordering::Relaxed, Ordering::Relaxed, add).ok()?;
        Some(Charge { budget: Arc::clone(self), amount })
    }

    /// Returns the limit.
    pub fn limit(&self) -> u64 {
        self.limit
    }

    /// Returns the charged amount.
    pub fn used(&self) -> u64 {
        self.used.load(Ordering::Relaxed)
    }
}

/// A charged part of a budget, returned on drop.
#[derive(Debug)]
pub struct Charge {
    budget: Arc<Budget>,
    amount: u64,
}

impl Drop for Charge {
    fn drop(&mut self) {
        self.budget.used.fetch_sub(self.amount, Ordering::Relaxed);
    }
}

/// An owned range of addresses, unmapped on drop.
#[derive(Debug)]
pub struct Mapping {
    start: NonNull<u8>,
    size: usize,
}

// SAFETY: the value only owns addresses. Accessing them is unsafe by itself.
unsafe impl Send for Mapping {}
// SAFETY: as above.
unsafe impl Sync for Mapping {}

impl Mapping {
    /// Maps a whole file, for reading and writing.
    fn of(file: BorrowedFd<'_>, size: usize) -> Result<Self> {
        Ok(Self { start: sys::map(file, size)?, size })
    }

    /// Reserves addresses without access, aligned to `alignment` (a power of two).
    ///
    /// # Errors
    /// [`Error::System`].
    pub fn reserve(size: usize, alignment: usize) -> Result<Self> {
        if alignment <= sys::page_size() {
            return Ok(Self { start: sys::reserve(None, size)?, size });
        }
        let all = sys::reserve(None, size.checked_add(alignment).ok_or(Errno::NOMEM)?)?;
        let before = all.align_offset(alignment);
        // SAFETY: `before` is less than `alignment`, so that `size` bytes from there are within the
        // reservation. Nothing uses the rest of it.
        unsafe {
            let start = all.add(before);
            if before > 0 {
                sys::unmap(all.as_ptr(), before);
            }
            if before < alignment {
                // The kernel maps whole pages, and unmaps from a page on.
                let mapped = size.next_multiple_of(sys::page_size());
                sys::unmap(start.add(mapped).as_ptr(), alignment - before);
            }
            Ok(Self { start, size })
        }
    }

    /// Reserves addresses without access at `address`. Fails if something is mapped there.
    ///
    /// # Errors
    /// [`Error::System`].
    pub fn reserve_at(address: usize, size: usize) -> Result<Self> {
        Ok(Self { start: sys::reserve(Some(address), size)?, size })
    }

    /// Maps a file of the same size over the reservation, for reading and writing.
    ///
    /// # Errors
    /// [`Error::System`].
    pub fn map_file(&self, file: BorrowedFd<'_>) -> Result<()> {
        // SAFETY: the mapping owns the addresses. The program accesses them as shared memory.
        Ok(unsafe { sys::replace(self.start.as_ptr(), self.size, file) }?)
    }

    /// Returns its first address.
    pub fn address(&self) -> usize {
        self.start.addr().get()
    }

    /// Returns its size in bytes.
    pub fn size(&self) -> usize {
        self.size
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: the mapping owns the addresses, and nothing uses them after it is dropped.
        unsafe { sys::unmap(self.start.as_ptr(), self.size) };
    }
}

/// The origin of pages, which [`Backing::from_fd`] determines from an fd.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MemoryOrigin {
    /// Memory of the device with this number, allocated by a software driver of this or another
    /// process.
    Device(u32),
    /// Host memory of a software driver.
    Host,
    /// A memfd of another program.
    Foreign,
    /// A dma-buf.
    DmaBuf,
}

/// The prefix of the names of memfds of device memory; the device's number follows.
const DEVICE_NAME: &str = "soft-device-";
/// The name of memfds of host memory.
const HOST_NAME: &str = "soft-host";

/// The pages of an allocation, and the mapping through which the device's threads access them.
#[derive(Debug)]
pub struct Backing {
    /// The memfd. `None` for an import: it cannot be exported again, and holds no fd.
    file: Option<OwnedFd>,
    /// The identity of an import's file.
    identity: Option<(u64, u64)>,
    work: Mapping,
    _charges: Vec<Charge>,
}

impl Backing {
    /// Allocates zeroed pages.
    ///
    /// # Errors
    /// [`Error::System`].
    pub fn new(size: usize, origin: MemoryOrigin, charges: Vec<Charge>) -> Result<Self> {
        let name = match origin {
            MemoryOrigin::Device(number) => format!("{DEVICE_NAME}{number}"),
            _ => HOST_NAME.to_owned(),
        };
        Self::with_name(&name, size, charges)
    }

    /// Allocates zeroed pages in a memfd of this name, which [`Backing::from_fd`] takes for
    /// [`MemoryOrigin::Foreign`].
    ///
    /// # Errors
    /// [`Error::System`].
    pub fn with_name(name: &str, size: usize, charges: Vec<Charge>) -> Result<Self> {
        let file = sys::sealed_memfd(name, size as u64)?;
        let work = Mapping::of(file.as_fd(), size)?;
        Ok(Self { file: Some(file), identity: None, work, _charges: charges })
    }

    /// Imports the pages of an fd. Does not keep the fd.
    ///
    /// # Errors
    /// [`Error::Invalid`] if it is neither a sealed memfd nor a dma-buf; [`Error::System`].
    pub fn from_fd(file: BorrowedFd<'_>) -> Result<(Self, MemoryOrigin)> {
        let (kind, size) = sys::kind_and_size(file)?;
        let origin = match kind {
            // If the file shrank, a copy would fault.
            sys::Kind::Other => return Err(Error::Invalid),
            sys::Kind::DmaBuf => MemoryOrigin::DmaBuf,
            sys::Kind::Sealed => match sys::memfd_name(file).as_deref() {
                Some(HOST_NAME) => MemoryOrigin::Host,
                Some(name) => match name.strip_prefix(DEVICE_NAME).and_then(|number| number.parse().ok()) {
                    Some(number) => MemoryOrigin::Device(number),
                    None => MemoryOrigin::Foreign,
                },
                None => MemoryOrigin::Foreign,
            },
        };
        let size = usize::try_from(size).ok().filter(|size| *size > 0).ok_or(Error::Invalid)?;
        let (work, identity) = (Mapping::of(file, size)?, Some(Self::file_identity(file)?));
        Ok((Self { file: None, identity, work, _charges: Vec::new() }, origin))
    }

    /// Returns the name of a memfd.
    pub fn name_of(file: BorrowedFd<'_>) -> Option<String> {
        sys::memfd_name(file)
    }

    /// Gives pages of the file back to the system. They are zero if they are used again.
    ///
    /// # Errors
    /// [`Error::Invalid`] for an import; [`Error::System`].
    pub fn discard(&self, offset: usize, size: usize) -> Result<()> {
        let flags = rustix::fs::FallocateFlags::PUNCH_HOLE | rustix::fs::FallocateFlags::KEEP_SIZE;
        Ok(rustix::fs::fallocate(self.file().ok_or(Error::Invalid)?, flags, offset as u64, size as u64)?)
    }

    /// Returns device and inode of a file.
    ///
    /// # Errors
    /// [`Error::System`].
    pub fn file_identity(file: BorrowedFd<'_>) -> Result<(u64, u64)> {
        let status = rustix::fs::fstat(file)?;
        Ok((status.st_dev, status.st_ino))
    }

    /// Returns whether it was imported from the file with this identity.
    pub fn is_backed_by(&self, identity: (u64, u64)) -> bool {
        self.identity == Some(identity)
    }

    /// Returns its size in bytes.
    pub fn size(&self) -> usize {
        self.work.size()
    }

    /// Returns a number in the pages, which other processes may change.
    ///
    /// # Errors
    /// [`Error::Invalid`] if the pages end before it.
    pub fn counter(&self, place: usize) -> Result<&AtomicU64> {
        if place >= self.size() / size_of::<AtomicU64>() {
            return Err(Error::Invalid);
        }
        // SAFETY: the number is within the pages, which begin at a page and stay mapped as long as
        // `self`. Every access to it is atomic, in all processes.
        Ok(unsafe { &*self.work.start.as_ptr().cast::<AtomicU64>().add(place) })
    }

    /// Returns the file of pages that this process allocated.
    pub fn file(&self) -> Option<BorrowedFd<'_>> {
        self.file.as_ref().map(AsFd::as_fd)
    }

    /// Returns a new fd of the file.
    ///
    /// # Errors
    /// [`Error::Invalid`] for an import, which cannot be exported again; [`Error::System`].
    pub fn export(&self) -> Result<OwnedFd> {
        Ok(rustix::io::fcntl_dupfd_cloexec(self.file().ok_or(Error::Invalid)?, 0)?)
    }

    /// Duplicates an fd of this process by its number.
    ///
    /// # Errors
    /// [`Error::Invalid`] if no such fd is open.
    pub fn duplicate_fd(number: i32) -> Result<OwnedFd> {
        sys::duplicate_number(number).map_err(|_| Error::Invalid)
    }
}

/// An allocation or a mapping of device memory at addresses of this process.
#[derive(Debug)]
pub struct MemoryRange<T> {
    /// Its first address.
    pub start: usize,
    /// The requested size in bytes.
    pub size: usize,
    /// Unique among all ranges of a process, over time.
    pub id: u64,
    /// The pages.
    pub backing: Arc<Backing>,
    /// The offset of its first byte in the pages.
    pub offset: usize,
    /// Its addresses. `None` if it does not own them.
    window: Option<Mapping>,
    /// The interface's description of it.
    pub owner: T,
}

impl<T> MemoryRange<T> {
    /// Returns the bytes of its addresses: whole pages.
    pub fn mapped_size(&self) -> usize {
        self.window.as_ref().map_or(self.size, Mapping::size)
    }
}

type RangeMap<T> = BTreeMap<usize, Arc<MemoryRange<T>>>;

/// The device memory of a process, by first address.
#[derive(Debug)]
pub struct AddressMap<T> {
    ranges: RwLock<RangeMap<T>>,
    ids: AtomicU64,
}

impl<T> Default for AddressMap<T> {
    fn default() -> Self {
        Self { ranges: RwLock::default(), ids: AtomicU64::new(1) }
    }
}

impl<T> AddressMap<T> {
    fn read(&self) -> RwLockReadGuard<'_, RangeMap<T>> {
        self.ranges.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn write(&self) -> RwLockWriteGuard<'_, RangeMap<T>> {
        self.ranges.write().unwrap_or_else(PoisonError::into_inner)
    }

    fn add(&self, range: MemoryRange<T>) {
        let id = self.ids.fetch_add(1, Ordering::Relaxed);
        self.write().insert(range.start, Arc::new(MemoryRange { id, ..range }));
    }

    /// Adds memory of the requested `size` at the addresses of `window`. Returns its first address.
    pub fn insert(&self, size: usize, backing: Backing, window: Mapping, owner: T) -> usize {
        let start = window.address();
        let backing = Arc::new(backing);
        self.add(MemoryRange { start, size, id: 0, backing, offset: 0, window: Some(window), owner });
        start
    }

    /// Adds memory at addresses that the application, or the owner of several ranges, reserved. The
    /// pages from `offset` on have at least `size` bytes.
    pub fn map(&self, start: usize, size: usize, (backing, offset): (Arc<Backing>, usize), owner: T) {
        assert!(offset <= backing.size() && size <= backing.size() - offset);
        self.add(MemoryRange { start, size, id: 0, backing, offset, window: None, owner });
    }

    /// Removes the range that begins at `start` if `matches` returns true for it.
    pub fn remove(
        &self,
        start: usize,
        matches: impl FnOnce(&MemoryRange<T>) -> bool,
    ) -> Option<Arc<MemoryRange<T>>> {
        let mut ranges = self.write();
        if ranges.get(&start).is_some_and(|range| matches(range)) { ranges.remove(&start) } else { None }
    }

    /// Removes and returns all ranges for which `matches` returns true.
    pub fn remove_all(&self, matches: impl Fn(&MemoryRange<T>) -> bool) -> Vec<Arc<MemoryRange<T>>> {
        let mut ranges = self.write();
        let found: Vec<_> = ranges.values().filter(|range| matches(range)).cloned().collect();
        for range in &found {
            ranges.remove(&range.start);
        }
        found
    }

    /// Returns the range that contains an address.
    pub fn find(&self, address: usize) -> Option<Arc<MemoryRange<T>>> {
        let ranges = self.read();
        let (start, range) = ranges.range(..=address).next_back()?;
        (address - start < range.size).then(|| Arc::clone(range))
    }

    /// Returns all ranges that begin within `start..end`.
    pub fn within(&self, start: usize, end: usize) -> Vec<Arc<MemoryRange<T>>> {
        self.read().range(start..end.max(start)).map(|(_, range)| Arc::clone(range)).collect()
    }

    /// Returns all ranges for which `matches` returns true.
    pub fn all(&self, matches: impl Fn(&MemoryRange<T>) -> bool) -> Vec<Arc<MemoryRange<T>>> {
        self.read().values().filter(|range| matches(range)).cloned().collect()
    }

    /// Returns the span of a range of addresses: device memory, checked by `check` for each
    /// allocation, or memory of the application.
    ///
    /// # Errors
    /// Errors of `check`; [`Error::Invalid`] if the range leaves an allocation or is not mapped.
    pub fn span<E: From<Error>>(
        &self,
        address: usize,
        size: usize,
        check: impl Fn(&MemoryRange<T>) -> core::result::Result<(), E>,
    ) -> core::result::Result<Span, E> {
        let mut span = Span::default();
        while span.size() < size {
            let at = address + span.size();
            let Some(range) = self.find(at) else {
                // A span that begins in an allocation has to end in one.
                if span.size() > 0 {
                    return Err(Error::Invalid.into());
                }
                return Ok(self.application_span(address, size)?);
            };
            check(&range)?;
            let within = at - range.start;
            // SAFETY: the offset is within the pages, which have the range's size from its offset on.
            let start = unsafe { range.backing.work.start.add(range.offset + within) };
            let part = (size - span.size()).min(range.size - within);
            span.push(Segment { start, size: part, _backing: Some(Arc::clone(&range.backing)) });
        }
        Ok(span)
    }

    /// Returns whether an address is on the last page of a range, past its requested size.
    fn is_past_the_end(&self, address: usize) -> bool {
        self.read()
            .range(..=address)
            .next_back()
            .is_some_and(|(start, range)| address - start < range.mapped_size())
    }

    /// Returns the span of a range of the application's memory.
    fn application_span(&self, address: usize, size: usize) -> Result<Span> {
        let end = address.checked_add(size).ok_or(Error::Invalid)?;
        if !self.within(address, end).is_empty() || self.is_past_the_end(address) {
            return Err(Error::Invalid);
        }
        let start = NonNull::new(std::ptr::with_exposed_provenance_mut(address));
        let start = start.filter(|_| sys::is_mapped(address, size)).ok_or(Error::Invalid)?;
        let mut span = Span::default();
        span.push(Segment { start, size, _backing: None });
        Ok(span)
    }
}

/// A contiguous part of a span. Keeps its pages as long as the command that uses it.
#[derive(Clone, Debug)]
struct Segment {
    start: NonNull<u8>,
    size: usize,
    /// `None` for memory of the application, which keeps it alive.
    _backing: Option<Arc<Backing>>,
}

/// The memory that a command uses, at the addresses of the device's threads, as a list of segments.
#[derive(Clone, Debug, Default)]
pub struct Span {
    segments: Vec<Segment>,
    size: usize,
}

// SAFETY: a segment is part of a mapping that lives as long as the span, or of memory that the
// application passed to a command for use in the executing thread.
unsafe impl Send for Span {}
// SAFETY: as above.
unsafe impl Sync for Span {}

impl Span {
    /// Appends a segment.
    fn push(&mut self, segment: Segment) {
        self.size += segment.size;
        self.segments.push(segment);
    }

    /// Returns its size in bytes.
    pub fn size(&self) -> usize {
        self.size
    }

    /// Returns the contiguous memory from `offset` on, at most `size` bytes. `None` at the end.
    fn segment(&self, mut offset: usize, size: usize) -> Option<(*mut u8, usize)> {
        for segment in &self.segments {
            if offset < segment.size {
                // SAFETY: the offset is within the segment.
                let start = unsafe { segment.start.as_ptr().add(offset) };
                return Some((start, size.min(segment.size - offset)));
            }
            offset -= segment.size;
        }
        None
    }

    /// Copies from another span, up to the smaller size.
    pub fn copy(&self, from: &Self) {
        let mut done = 0;
        while let Some((source, readable)) = from.segment(done, from.size - done) {
            let Some((target, part)) = self.segment(done, readable) else { return };
            // SAFETY: both segments are mapped as long as the spans live. They may overlap. A
            // program that accesses the memory at the same time has a data race of its own.
            unsafe { source.copy_to(target, part) };
            done += part;
        }
    }

    /// Fills it with a repeated pattern.
    pub fn fill(&self, pattern: &[u8]) {
        let mut done = 0;
        for segment in &self.segments {
            if let [byte] = *pattern {
                // SAFETY: the segment is mapped as long as the span lives.
                unsafe { segment.start.write_bytes(byte, segment.size) };
                continue;
            }
            for at in 0..segment.size {
                // SAFETY: the offset is within the segment, which is mapped as long as the span
                // lives.
                unsafe { segment.start.add(at).write(pattern[(done + at) % pattern.len()]) };
            }
            done += segment.size;
        }
    }
}
