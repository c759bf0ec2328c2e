//! Memory of a device: pages in a file, the addresses at which the application has them, and what a
//! command works on.
//!
//! The application's addresses show nothing of a device's memory: a program that touches it gets
//! SIGSEGV. The threads that execute commands reach the same pages through a mapping of their own.

use std::collections::BTreeMap;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};

use rustix::io::Errno;

use crate::{Error, Result, sys};

/// A counted limit: bytes of a device, fds of the driver.
#[derive(Debug)]
pub struct Budget {
    limit: u64,
    used: AtomicU64,
}

impl Budget {
    /// So much, all of it free.
    pub fn new(limit: u64) -> Arc<Self> {
        Arc::new(Self { limit, used: AtomicU64::new(0) })
    }

    /// Takes so much, until the charge is dropped; `None` if less is left.
    pub fn take(self: &Arc<Self>, amount: u64) -> Option<Charge> {
        let add = |used: u64| used.checked_add(amount).filter(|sum| *sum <= self.limit);
        self.used.fetch_update(Ordering::Relaxed, Ordering::Relaxed, add).ok()?;
        Some(Charge { budget: Arc::clone(self), amount })
    }

    /// How much there is.
    pub fn limit(&self) -> u64 {
        self.limit
    }

    /// How much of it is in use.
    pub fn used(&self) -> u64 {
        self.used.load(Ordering::Relaxed)
    }
}

/// A part of a budget that is in use.
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

/// Addresses that belong to this value, and go when it is dropped.
#[derive(Debug)]
pub struct Mapping {
    start: NonNull<u8>,
    size: usize,
}

// SAFETY: addresses; what is done at them is unsafe by itself.
unsafe impl Send for Mapping {}
// SAFETY: as above.
unsafe impl Sync for Mapping {}

impl Mapping {
    /// All of a file, for reading and writing.
    fn of(file: BorrowedFd<'_>, size: usize) -> Result<Self> {
        Ok(Self { start: sys::map(file, size)?, size })
    }

    /// Addresses where nothing can be accessed, aligned to `alignment` (a power of two).
    ///
    /// # Errors
    /// [`Error::System`].
    pub fn reserve(size: usize, alignment: usize) -> Result<Self> {
        if alignment <= sys::page_size() {
            return Ok(Self { start: sys::reserve(None, size)?, size });
        }
        let all = sys::reserve(None, size.checked_add(alignment).ok_or(Errno::NOMEM)?)?;
        let before = all.align_offset(alignment);
        // SAFETY: `before` is less than `alignment`, so that `size` bytes from there are within
        // what was reserved; what is around them is used by nothing.
        unsafe {
            let start = all.add(before);
            if before > 0 {
                sys::unmap(all.as_ptr(), before);
            }
            if before < alignment {
                sys::unmap(start.add(size).as_ptr(), alignment - before);
            }
            Ok(Self { start, size })
        }
    }

    /// As [`Mapping::reserve`], at an address; fails if something is there.
    ///
    /// # Errors
    /// [`Error::System`].
    pub fn reserve_at(address: usize, size: usize) -> Result<Self> {
        Ok(Self { start: sys::reserve(Some(address), size)?, size })
    }

    /// Shows the pages of a file, which has as many.
    ///
    /// # Errors
    /// [`Error::System`].
    pub fn show(&self, file: BorrowedFd<'_>) -> Result<()> {
        // SAFETY: addresses of ours; a program that reads or writes there follows what is shown.
        Ok(unsafe { sys::replace(self.start.as_ptr(), self.size, file) }?)
    }

    /// Where it begins, as a number.
    pub fn address(&self) -> usize {
        self.start.addr().get()
    }

    /// Its size in bytes.
    pub fn size(&self) -> usize {
        self.size
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: ours, and only users of this value use them.
        unsafe { sys::unmap(self.start.as_ptr(), self.size) };
    }
}

/// Where pages come from: what [`Backing::opened`] finds out about an fd.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Origin {
    /// Memory of the device with this number, made here or by such a driver in another process.
    Device(u32),
    /// Memory that the host may touch too, made so.
    Host,
    /// A memfd of another program.
    Foreign,
    /// A dma-buf.
    DmaBuf,
}

/// With the device's number behind it.
const DEVICE_NAME: &str = "soft-device-";
const HOST_NAME: &str = "soft-host";

/// Pages that stay as long as this value, and the mapping through which the device's threads reach
/// them.
#[derive(Debug)]
pub struct Backing {
    /// Absent in what was opened: it cannot be exported again, and costs no fd.
    file: Option<OwnedFd>,
    /// The identity of the file, in what was opened.
    opened: Option<(u64, u64)>,
    work: Mapping,
    _charges: Vec<Charge>,
}

impl Backing {
    /// New pages, all zero.
    ///
    /// # Errors
    /// [`Error::System`].
    pub fn new(size: usize, origin: Origin, charges: Vec<Charge>) -> Result<Self> {
        let name = match origin {
            Origin::Device(number) => format!("{DEVICE_NAME}{number}"),
            _ => HOST_NAME.to_owned(),
        };
        let file = sys::sealed_memfd(&name, size as u64)?;
        let work = Mapping::of(file.as_fd(), size)?;
        Ok(Self { file: Some(file), opened: None, work, _charges: charges })
    }

    /// The pages behind an fd from another place. The fd itself is not kept.
    ///
    /// # Errors
    /// [`Error::Invalid`] if it is no memory, [`Error::System`].
    pub fn opened(file: BorrowedFd<'_>) -> Result<(Self, Origin)> {
        let (kind, size) = sys::kind_and_size(file)?;
        let origin = match kind {
            // A file that could shrink would make a fault of a copy.
            sys::Kind::Other => return Err(Error::Invalid),
            sys::Kind::DmaBuf => Origin::DmaBuf,
            sys::Kind::Sealed => match sys::memfd_name(file).as_deref() {
                Some(HOST_NAME) => Origin::Host,
                Some(name) => match name.strip_prefix(DEVICE_NAME).and_then(|number| number.parse().ok()) {
                    Some(number) => Origin::Device(number),
                    None => Origin::Foreign,
                },
                None => Origin::Foreign,
            },
        };
        let size = usize::try_from(size).ok().filter(|size| *size > 0).ok_or(Error::Invalid)?;
        let (work, opened) = (Mapping::of(file, size)?, Some(Self::identity(file)?));
        Ok((Self { file: None, opened, work, _charges: Vec::new() }, origin))
    }

    /// What is the same for all fds of one file: device and inode.
    ///
    /// # Errors
    /// [`Error::System`].
    pub fn identity(file: BorrowedFd<'_>) -> Result<(u64, u64)> {
        let status = rustix::fs::fstat(file)?;
        Ok((status.st_dev, status.st_ino))
    }

    /// Whether it was opened, from the file with this identity.
    pub fn is_opened_from(&self, identity: (u64, u64)) -> bool {
        self.opened == Some(identity)
    }

    /// Bytes of the pages.
    pub fn size(&self) -> usize {
        self.work.size()
    }

    /// The file, of pages that were made here.
    pub fn file(&self) -> Option<BorrowedFd<'_>> {
        self.file.as_ref().map(AsFd::as_fd)
    }

    /// A new fd of the file, for another owner.
    ///
    /// # Errors
    /// [`Error::Invalid`] if it was opened: that is not exported again. [`Error::System`].
    pub fn export(&self) -> Result<OwnedFd> {
        Ok(rustix::io::fcntl_dupfd_cloexec(self.file().ok_or(Error::Invalid)?, 0)?)
    }

    /// Another fd of an fd of this process, by its number.
    ///
    /// # Errors
    /// [`Error::Invalid`] if there is none.
    pub fn fd_by_number(number: i32) -> Result<OwnedFd> {
        sys::duplicate_number(number).map_err(|_| Error::Invalid)
    }
}

/// Memory at addresses of this process.
#[derive(Debug)]
pub struct Range<T> {
    /// Where it begins.
    pub start: usize,
    /// Bytes that were asked for.
    pub size: usize,
    /// Differs for each range of a process, whatever its address.
    pub id: u64,
    /// The pages.
    pub backing: Arc<Backing>,
    /// Its addresses, which go with it; absent where these are reserved by the application.
    window: Option<Mapping>,
    /// What the interface keeps with it.
    pub owner: T,
}

impl<T> Range<T> {
    /// The addresses that it takes, in bytes: whole pages.
    pub fn room(&self) -> usize {
        self.window.as_ref().map_or(self.size, Mapping::size)
    }
}

type Ranges<T> = BTreeMap<usize, Arc<Range<T>>>;

/// Which addresses of the process are memory of the device: all ranges by their first address.
#[derive(Debug)]
pub struct Addresses<T> {
    ranges: RwLock<Ranges<T>>,
    ids: AtomicU64,
}

impl<T> Default for Addresses<T> {
    fn default() -> Self {
        Self { ranges: RwLock::default(), ids: AtomicU64::new(1) }
    }
}

impl<T> Addresses<T> {
    fn read(&self) -> RwLockReadGuard<'_, Ranges<T>> {
        self.ranges.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn write(&self) -> RwLockWriteGuard<'_, Ranges<T>> {
        self.ranges.write().unwrap_or_else(PoisonError::into_inner)
    }

    fn add(&self, start: usize, size: usize, backing: Arc<Backing>, window: Option<Mapping>, owner: T) {
        let id = self.ids.fetch_add(1, Ordering::Relaxed);
        self.write().insert(start, Arc::new(Range { start, size, id, backing, window, owner }));
    }

    /// Adds memory at addresses of its own, `size` bytes of which were asked for, and returns where
    /// it begins.
    pub fn insert(&self, size: usize, backing: Backing, window: Mapping, owner: T) -> usize {
        let start = window.address();
        self.add(start, size, Arc::new(backing), Some(window), owner);
        start
    }

    /// Adds memory at addresses that the application reserved.
    pub fn map(&self, start: usize, size: usize, backing: Arc<Backing>, owner: T) {
        self.add(start, size, backing, None, owner);
    }

    /// Removes the range that begins at `start`, if it is as `is_it` says.
    pub fn remove(&self, start: usize, is_it: impl FnOnce(&Range<T>) -> bool) -> Option<Arc<Range<T>>> {
        let mut ranges = self.write();
        if ranges.get(&start).is_some_and(|range| is_it(range)) { ranges.remove(&start) } else { None }
    }

    /// Removes all ranges that are as `is_it` says.
    pub fn remove_all(&self, is_it: impl Fn(&Range<T>) -> bool) -> Vec<Arc<Range<T>>> {
        let mut ranges = self.write();
        let found: Vec<_> = ranges.values().filter(|range| is_it(range)).cloned().collect();
        for range in &found {
            ranges.remove(&range.start);
        }
        found
    }

    /// The range that an address is in.
    pub fn find(&self, address: usize) -> Option<Arc<Range<T>>> {
        let ranges = self.read();
        let (start, range) = ranges.range(..=address).next_back()?;
        (address - start < range.size).then(|| Arc::clone(range))
    }

    /// All ranges that begin within `start..end`.
    pub fn within(&self, start: usize, end: usize) -> Vec<Arc<Range<T>>> {
        self.read().range(start..end.max(start)).map(|(_, range)| Arc::clone(range)).collect()
    }

    /// All ranges that are as `is_it` says.
    pub fn all(&self, is_it: impl Fn(&Range<T>) -> bool) -> Vec<Arc<Range<T>>> {
        self.read().values().filter(|range| is_it(range)).cloned().collect()
    }

    /// Returns what a command works on: memory of the device, which it has to stay within, or the
    /// application's own.
    ///
    /// # Errors
    /// What `check` returns, which sees each range and may refuse it; [`Error::Invalid`].
    pub fn span<E: From<Error>>(
        &self,
        address: usize,
        size: usize,
        check: impl Fn(&Range<T>) -> core::result::Result<(), E>,
    ) -> core::result::Result<Span, E> {
        let mut span = Span::default();
        while span.size() < size {
            let at = address + span.size();
            let Some(range) = self.find(at) else {
                // Never a part of both: that reaches out of an allocation.
                if span.size() > 0 {
                    return Err(Error::Invalid.into());
                }
                return Ok(self.of_application(address, size)?);
            };
            check(&range)?;
            let within = at - range.start;
            // SAFETY: within the pages, which have at least the range's size.
            let start = unsafe { range.backing.work.start.add(within) };
            let part = (size - span.size()).min(range.size - within);
            span.push(Piece { start, size: part, _backing: Some(Arc::clone(&range.backing)) });
        }
        Ok(span)
    }

    /// Whether an address is on the last page of a range, behind what was asked for.
    fn is_past_the_end(&self, address: usize) -> bool {
        self.read().range(..=address).next_back().is_some_and(|(start, range)| address - start < range.room())
    }

    fn of_application(&self, address: usize, size: usize) -> Result<Span> {
        let end = address.checked_add(size).ok_or(Error::Invalid)?;
        if !self.within(address, end).is_empty() || self.is_past_the_end(address) {
            return Err(Error::Invalid);
        }
        let start = NonNull::new(std::ptr::with_exposed_provenance_mut(address));
        let start = start.filter(|_| sys::is_mapped(address, size)).ok_or(Error::Invalid)?;
        let mut span = Span::default();
        span.push(Piece { start, size, _backing: None });
        Ok(span)
    }
}

/// Bytes in one piece, kept as long as the command that works on them.
#[derive(Clone, Debug)]
struct Piece {
    start: NonNull<u8>,
    size: usize,
    /// Absent for memory of the application, which has to keep it.
    _backing: Option<Arc<Backing>>,
}

/// A range of addresses that a command works on, as the device's threads see it, in the pieces that
/// it consists of.
#[derive(Clone, Debug, Default)]
pub struct Span {
    pieces: Vec<Piece>,
    size: usize,
}

// SAFETY: pieces of mappings that live as long as the span, or of memory that the application gave
// to a command: it is used by whatever thread executes that.
unsafe impl Send for Span {}
// SAFETY: as above.
unsafe impl Sync for Span {}

impl Span {
    /// Adds a piece at the end.
    fn push(&mut self, piece: Piece) {
        self.size += piece.size;
        self.pieces.push(piece);
    }

    /// Its size in bytes.
    pub fn size(&self) -> usize {
        self.size
    }

    /// The longest piece from `offset` on, of at most `size` bytes; `None` at the end.
    fn piece(&self, mut offset: usize, size: usize) -> Option<(*mut u8, usize)> {
        for piece in &self.pieces {
            if offset < piece.size {
                // SAFETY: within the piece.
                let start = unsafe { piece.start.as_ptr().add(offset) };
                return Some((start, size.min(piece.size - offset)));
            }
            offset -= piece.size;
        }
        None
    }

    /// Copies all of `from` that there is room for.
    pub fn copy(&self, from: &Self) {
        let mut done = 0;
        while let Some((source, readable)) = from.piece(done, from.size - done) {
            let Some((target, part)) = self.piece(done, readable) else { return };
            // SAFETY: both pieces are mapped as long as the spans live; a program that uses that
            // memory meanwhile has a race of its own. They may overlap.
            unsafe { source.copy_to(target, part) };
            done += part;
        }
    }

    /// Repeats a pattern over all of it.
    pub fn fill(&self, pattern: &[u8]) {
        let mut done = 0;
        for piece in &self.pieces {
            if let [byte] = *pattern {
                // SAFETY: the piece is mapped as long as the span lives.
                unsafe { piece.start.write_bytes(byte, piece.size) };
                continue;
            }
            for at in 0..piece.size {
                // SAFETY: within the piece, which is mapped as long as the span lives.
                unsafe { piece.start.add(at).write(pattern[(done + at) % pattern.len()]) };
            }
            done += piece.size;
        }
    }
}
