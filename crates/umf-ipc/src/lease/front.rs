//! [`Front`]: the part of a door that both sides have mapped.

use core::sync::atomic::{AtomicU64, Ordering};
use std::os::fd::AsFd;

use super::layout::{Entry, Header, Shape};
use crate::sys::SharedMapping;
use crate::{Error, Result};

/// Header, entries and marks of a door. Any process that may open the door writes there: each word is read once.
#[derive(Debug)]
pub(super) struct Front {
    mapping: SharedMapping,
    shape: Shape,
}

impl Front {
    /// Maps the front of a door of this shape, which the file is known to have. Forked children do not get it.
    pub(super) fn new(fd: impl AsFd, shape: Shape) -> Result<Self> {
        let size = usize::try_from(shape.front()).unwrap_or(usize::MAX);
        let mut mapping = SharedMapping::new(fd, size, true)
            .map_err(|errno| Error::system("mmap of the lease table", errno))?;
        mapping
            .keep_from_children()
            .map_err(|errno| Error::system("madvise(MADV_DONTFORK) of the lease table", errno))?;
        Ok(Self { mapping, shape })
    }

    pub(super) const fn shape(&self) -> Shape {
        self.shape
    }

    pub(super) fn header(&self) -> &Header {
        // SAFETY: the front of a door begins with a header; fields are atomics.
        unsafe { self.mapping.base().cast().as_ref() }
    }

    /// Whose a row is.
    pub(super) fn entry(&self, row: u32) -> &Entry {
        assert!(row < self.shape.rows, "a row of this door");
        let offset = self.shape.entries() as usize + row as usize * size_of::<Entry>();
        // SAFETY: the front has `rows` entries there; fields are atomics.
        unsafe { self.mapping.base().add(offset).cast().as_ref() }
    }

    /// In which rows a slot was opened.
    #[inline]
    pub(super) fn marks(&self, slot: u32) -> &AtomicU64 {
        assert!(slot < self.shape.slots, "a slot of this door");
        let offset = self.shape.marks() as usize + slot as usize * 8;
        // SAFETY: the front has `slots` words there.
        unsafe { self.mapping.base().add(offset).cast().as_ref() }
    }

    /// Rows below this number have been used.
    pub(super) fn used(&self) -> u32 {
        self.header().rows_used.load(Ordering::Acquire).min(self.shape.rows)
    }
}
