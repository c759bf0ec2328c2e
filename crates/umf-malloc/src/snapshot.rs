//! [`Snapshot`]: shared memory as it was before a fork, for the child.
//!
//! Parent and child of a fork would go on in one heap, and each find in it what the other wrote. So the parent copies what there is before it
//! forks; the child has the copies mapped in place of the memory, and the parent unmaps its own. That costs as much as there is in the
//! heap, and no waiting.

use core::ptr;

use allocator_api2::vec::Vec;
use umf_runtime::metadata::Mapped;

use crate::errno::Errno;
use crate::shared::Placed;
use crate::tell::tell;

/// A copy, and what it is of.
struct Copy {
    base: usize,
    size: usize,
    place: usize,
}

/// Copies of regions. There are none but while a fork is going on.
pub(crate) struct Snapshot {
    copies: Vec<Copy, Mapped>,
    /// Bytes of which there is none, for want of memory.
    lacking: usize,
    /// Forks that go on, each begun inside of the one before.
    forks: u32,
}

impl Snapshot {
    pub(crate) const fn new() -> Self {
        Self { copies: Vec::new_in(Mapped), lacking: 0, forks: 0 }
    }

    /// Copies the regions.
    pub(crate) fn take(&mut self, regions: &[Placed]) {
        self.forks += 1;
        if self.forks > 1 {
            return;
        }
        let _errno = Errno::keep();
        self.lacking = 0;
        for placed in regions {
            let has_room = self.copies.try_reserve(1).is_ok();
            match has_room.then(|| copy(placed)).flatten() {
                Some(copy) => self.copies.push(copy),
                None => self.lacking += placed.region.size(),
            }
        }
    }

    /// In the child: the copies take the place of the regions. Without them it would go on in its parent's heap, and ends instead.
    pub(crate) fn put_in_place(&mut self) {
        self.forks = self.forks.saturating_sub(1);
        let _errno = Errno::keep();
        for copy in self.copies.drain(..) {
            let from = ptr::with_exposed_provenance_mut(copy.place);
            let to = ptr::with_exposed_provenance_mut::<core::ffi::c_void>(copy.base);
            let flags = libc::MREMAP_MAYMOVE | libc::MREMAP_FIXED;
            // SAFETY: the copy is this snapshot's; and what it takes the place of has the same contents, and is in no other use.
            let moved = unsafe { libc::mremap(from, copy.size, copy.size, flags, to) };
            if moved == libc::MAP_FAILED {
                self.lacking += copy.size;
            }
        }
        if self.lacking > 0 {
            end_child(format_args!("there is no memory for a copy of {} bytes", self.lacking));
        }
    }

    /// In the parent: they are not needed.
    pub(crate) fn forget(&mut self) {
        self.forks = self.forks.saturating_sub(1);
        if self.forks > 0 {
            return;
        }
        let _errno = Errno::keep();
        for copy in self.copies.drain(..) {
            // SAFETY: a mapping of this snapshot.
            unsafe { libc::munmap(ptr::with_exposed_provenance_mut(copy.place), copy.size) };
        }
    }
}

/// Ends the child, which would go on in its parent's heap.
pub(crate) fn end_child(why: core::fmt::Arguments<'_>) -> ! {
    tell(format_args!("a forked child ends, because {why}"));
    // SAFETY: ends the process, and runs nothing of it.
    unsafe { libc::_exit(libc::EXIT_FAILURE) };
}

/// A private copy of a region: of what there is in its part of the file.
fn copy(placed: &Placed) -> Option<Copy> {
    let base = placed.region.base().as_ptr()?;
    let size = placed.region.size();
    let (access, flags) =
        (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE);
    // SAFETY: an anonymous mapping at an address of the kernel's choice touches no existing memory.
    let place = unsafe { libc::mmap(ptr::null_mut(), size, access, flags, -1, 0) };
    if place == libc::MAP_FAILED {
        return None;
    }
    let mut done = 0;
    while let Some((begin, end)) = next_data(placed, done) {
        // SAFETY: both are mappings of `size` bytes, and `next_data` yields a part of that. Other threads may write meanwhile: then a part of
        // what they write is in the child, which has not those threads.
        unsafe { ptr::copy_nonoverlapping(base.add(begin), place.cast::<u8>().add(begin), end - begin) };
        done = end;
    }
    Some(Copy { base: base.expose_provenance(), size, place: place.expose_provenance() })
}

/// The next part of a region, from `done` on, that is not a hole in its file.
fn next_data(placed: &Placed, done: usize) -> Option<(usize, usize)> {
    let size = placed.region.size();
    if done >= size {
        return None;
    }
    let Some(file) = placed.file.number() else { return Some((done, size)) };
    let offset = |place: usize| libc::off_t::try_from(placed.offset.checked_add(place as u64)?).ok();
    let inside = |found: libc::off_t| {
        let place = u64::try_from(found).ok()?.saturating_sub(placed.offset);
        Some(usize::try_from(place).unwrap_or(usize::MAX).min(size))
    };
    // SAFETY: the file is this library's, and nobody else seeks in it.
    let begin = unsafe { libc::lseek(file, offset(done)?, libc::SEEK_DATA) };
    if begin < 0 {
        // SAFETY: the calling thread's own.
        let is_hole = unsafe { *libc::__errno_location() } == libc::ENXIO;
        return (!is_hole).then_some((done, size));
    }
    // SAFETY: as above.
    let end = unsafe { libc::lseek(file, begin, libc::SEEK_HOLE) };
    let (begin, end) = (inside(begin)?, inside(end).unwrap_or(size));
    (begin < size && end > begin).then_some((begin, end))
}
