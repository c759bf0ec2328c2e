//! What the kernel is told about the memory of a mapping (`madvise(2)`).

use rustix::io::Errno;
use umf_core::{Error, Result};
use umf_os::Mapping;

use crate::sys::{self, Advise};

/// Keeps it out of core dumps, if the kernel will.
pub(crate) fn keep_from_dumps(mapping: &Mapping) {
    // SAFETY: our own mapping; the advice changes no content.
    let _ = unsafe { sys::advise(mapping.base(), mapping.size(), Advise::DontDump) };
}

/// Asks for huge pages.
pub(crate) fn ask_for_huge_pages(mapping: &Mapping) -> Result<(), Errno> {
    // SAFETY: our own mapping; the advice changes no content.
    unsafe { sys::advise(mapping.base(), mapping.size(), Advise::HugePages) }
}

/// Puts the first `size` bytes, a multiple of `huge_page`, of a fresh mapping onto huge pages now.
pub(crate) fn collapse(mapping: &Mapping, size: usize, huge_page: usize) -> Result<(), Errno> {
    let size = size.min(mapping.size());
    // A stretch without a single page counts as truncated and is left alone.
    for start in (0..size).step_by(huge_page) {
        // SAFETY: inside of our own fresh mapping, which nobody else knows.
        unsafe { mapping.base().add(start).write_volatile(0) };
    }
    // SAFETY: our own mapping; collapsing changes no content.
    unsafe { sys::advise(mapping.base(), size, Advise::Collapse) }
}

/// Makes all pages now.
pub(crate) fn populate(mapping: &Mapping) -> Result<(), Errno> {
    // SAFETY: our own mapping; populating changes no content.
    match unsafe { sys::advise(mapping.base(), mapping.size(), Advise::Populate) } {
        // Before Linux 5.14: pages come when touched.
        Err(Errno::INVAL) => Ok(()),
        other => other,
    }
}

/// Gives pages back: at once, after which they read as zero, or when the kernel needs them. For private memory.
///
/// # Safety
/// Nobody needs the content.
pub(crate) unsafe fn discard(mapping: &Mapping, start: usize, size: usize, lazily: bool) -> Result<()> {
    let (advice, call) = if lazily {
        (Advise::Free, "madvise(MADV_FREE)")
    } else {
        (Advise::DontNeed, "madvise(MADV_DONTNEED)")
    };
    if start.checked_add(size).is_none_or(|end| end > mapping.size()) {
        return Err(Error::InvalidArgument { what: "range", why: "must lie inside of its region" });
    }
    // SAFETY: inside of our own mapping, as was just checked; content is the caller's business.
    unsafe { sys::advise(mapping.base().add(start), size, advice) }
        .map_err(|errno| Error::native(call, errno.raw_os_error()))
}
