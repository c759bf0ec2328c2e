//! [`DmaBufBuilder`]: the configuration of a [`DmaBufProvider`].

use std::borrow::Cow;
use std::os::fd::OwnedFd;
use std::sync::Arc;

use umf_core::{Error, Result};
use umf_os::page_size;

use crate::buffer::DmaBuf;
use crate::provider::{DmaBufProvider, Regions};
use crate::regions::{BufferPerRegion, Suballocated};
use crate::source::{BufferSource, Heap, Udmabuf};

/// A builder of [`DmaBufProvider`]s, from a constructor of [`DmaBufProvider`].
#[derive(Debug)]
#[must_use]
pub struct DmaBufBuilder {
    name: Cow<'static, str>,
    origin: Origin,
    huge_page: Option<usize>,
}

#[derive(Debug)]
enum Origin {
    Source(BufferSource),
    Existing(DmaBuf),
}

impl DmaBufBuilder {
    fn new(origin: Origin) -> Self {
        Self { name: Cow::Borrowed("dma-buf"), origin, huge_page: None }
    }

    pub(crate) fn udmabuf() -> Result<Self> {
        Ok(Self::new(Origin::Source(BufferSource::Udmabuf(Udmabuf::open()?))))
    }

    pub(crate) fn heap(name: &str) -> Result<Self> {
        Ok(Self::new(Origin::Source(BufferSource::Heap(Heap::open(name)?))))
    }

    pub(crate) fn over(fd: OwnedFd) -> Result<Self> {
        Ok(Self::new(Origin::Existing(DmaBuf::from_fd(fd)?)))
    }

    /// Sets the name, for logs, statistics and `umf ps`. The buffers in
    /// `/sys/kernel/debug/dma_buf/bufinfo` have it after the process id. Default: `dma-buf`.
    pub fn name(mut self, name: impl Into<Cow<'static, str>>) -> Self {
        self.name = name.into();
        self
    }

    /// Uses reserved huge pages of this many bytes (`/sys/kernel/mm/hugepages`). For udmabuf. If
    /// none is free, an allocation fails.
    pub fn huge_page(mut self, bytes: usize) -> Self {
        self.huge_page = Some(bytes);
        self
    }

    /// Builds the provider.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] for huge pages of a source other than udmabuf, or of an invalid
    /// size. [`Error::OutOfMemory`] if an existing buffer cannot be mapped.
    pub fn build(self) -> Result<Arc<DmaBufProvider>> {
        let mut origin = self.origin;
        if let Some(size) = self.huge_page {
            let refuse = |why| Err(Error::InvalidArgument { what: "huge page", why });
            if !size.is_power_of_two() || size <= page_size() {
                return refuse("must be a power of two of bytes, larger than a page");
            }
            match &mut origin {
                Origin::Source(BufferSource::Udmabuf(device)) => device.set_huge_page(size),
                _ => return refuse("needs udmabuf: the page size of other sources is fixed"),
            }
        }
        let regions = match origin {
            // The process id comes first, because long names are truncated.
            Origin::Source(source) => Regions::PerBuffer(Box::new(BufferPerRegion::new(
                source,
                format!("umf {} {}", std::process::id(), self.name),
            ))),
            Origin::Existing(buffer) => Regions::Suballocated(Box::new(Suballocated::new(buffer)?)),
        };
        Ok(Arc::new(DmaBufProvider::new(self.name, regions)))
    }
}
