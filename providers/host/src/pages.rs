//! [`Pages`]: what the memory of a provider is made of, whether private or shared.

use core::sync::atomic::AtomicU64;

use rustix::io::Errno;
use umf_core::{Error, Layout, Result};
use umf_os::{Mapping, Room};

use crate::huge::{self, HugePages};
use crate::numa::Numa;
use crate::{advice, sys};

/// What the memory of a provider is made of.
#[derive(Debug)]
pub(crate) struct Pages {
    pub(crate) huge: HugePages,
    pub(crate) numa: Numa,
    /// Make all pages when a region is allocated, if there is room for them.
    reserve: Option<Room>,
    /// Size of a transparent huge page.
    transparent_size: usize,
    /// Collapse into transparent huge pages, as asking for them does nothing here.
    collapse: bool,
    /// Parts given to nodes so far.
    turn: AtomicU64,
}

impl Pages {
    /// Normal pages, wherever the system puts them.
    pub(crate) const fn normal() -> Self {
        Self {
            huge: HugePages::Normal,
            numa: Numa::Default,
            reserve: None,
            transparent_size: 2 << 20,
            collapse: false,
            turn: AtomicU64::new(0),
        }
    }

    /// As asked for, if this system can do that.
    pub(crate) fn new(huge: HugePages, numa: Numa, reserve: bool, shared: bool) -> Result<Self> {
        huge.check()?;
        numa.check()?;
        let transparent = huge == HugePages::Transparent;
        Ok(Self {
            huge,
            numa,
            reserve: reserve.then(Room::find),
            transparent_size: if transparent { huge::transparent_size() } else { 2 << 20 },
            collapse: transparent && shared && huge::shared_needs_collapse(),
            turn: AtomicU64::new(0),
        })
    }

    /// The granularity of allocation, in bytes.
    pub(crate) fn granularity(&self) -> usize {
        self.huge.granularity()
    }

    /// The page size that a region of `size` bytes will have if all goes well.
    pub(crate) fn recommended(&self, size: usize) -> usize {
        match self.huge {
            HugePages::Transparent if size >= self.transparent_size => self.transparent_size,
            _ => self.granularity(),
        }
    }

    /// Size and alignment of the region for a layout.
    pub(crate) fn place(&self, layout: Layout) -> Result<(usize, usize)> {
        /// More than any huge page has, and so little that it always fits into an address space.
        const MAX_ALIGN: usize = 1 << 40;
        if layout.align() > MAX_ALIGN {
            return Err(Error::BadAlignment { align: layout.align() });
        }
        let size = layout.pad_to(self.granularity())?.size();
        Ok((size, layout.align().max(self.recommended(size))))
    }

    /// Says where the pages of a fresh mapping shall lie and how large they shall be, before there are any.
    pub(crate) fn prepare(&self, mapping: &Mapping) -> Result<()> {
        self.numa.apply(mapping, self.granularity(), &self.turn)?;
        if self.huge == HugePages::Transparent && mapping.size() >= self.transparent_size {
            // Best effort: a kernel without them says EINVAL.
            let _ = advice::ask_for_huge_pages(mapping);
        }
        Ok(())
    }

    /// Whether all normal pages are made when a region is allocated.
    pub(crate) const fn are_made_at_once(&self) -> bool {
        self.reserve.is_some()
    }

    /// Refuses a region whose pages are to be made now and cannot be had: to make them would wake the out-of-memory killer. (Huge
    /// pages were set aside before.)
    pub(crate) fn check_room(&self, size: usize, huge_page: Option<usize>) -> Result<()> {
        match &self.reserve {
            Some(room) if huge_page.is_none() => room.check(size, "this machine, to be had at once"),
            _ => Ok(()),
        }
    }

    /// Makes the pages of a private mapping, if that is to be done now.
    pub(crate) fn populate(&self, mapping: &Mapping) -> Result<()> {
        if self.reserve.is_none() {
            return Ok(());
        }
        advice::populate(mapping).map_err(|errno| match errno {
            Errno::NOMEM | Errno::FAULT | Errno::AGAIN => {
                Error::OutOfMemory { size: mapping.size(), owner: "host", native: errno.raw_os_error() }
            }
            _ => Error::native("madvise(MADV_POPULATE_WRITE)", errno.raw_os_error()),
        })
    }

    /// Puts a shared mapping onto transparent huge pages where only collapsing does it.
    pub(crate) fn collapse(&self, mapping: &Mapping) {
        let whole = mapping.size() / self.transparent_size * self.transparent_size;
        if self.collapse && whole > 0 {
            // Best effort: before Linux 6.1, or for want of a huge page, it stays as it is.
            let _ = advice::collapse(mapping, whole, self.transparent_size);
        }
    }

    /// The page sizes to try, in this order; `None` is normal pages.
    pub(crate) fn choices(&self) -> impl Iterator<Item = Option<usize>> {
        let first = self.huge.hugetlb();
        let second = self.huge.falls_back().then_some(None);
        core::iter::once(first).chain(second)
    }

    /// NUMA node of the first page of a mapping: where it lies, or will lie if it is not there yet.
    pub(crate) fn node(&self, mapping: &Mapping) -> u64 {
        let there = sys::node_of_page(mapping.base()).ok().flatten();
        u64::from(there.or_else(|| self.numa.first_node()).unwrap_or_else(sys::current_node))
    }
}
