//! [`DmaBufBuilder`]: the options of a [`DmaBufProvider`]; and the provider kind `dma-buf` of
//! `umf.toml`: [`DmaBufSettings`] and its [`ProviderFactory`].

use std::borrow::Cow;
use std::os::fd::OwnedFd;
use std::sync::Arc;

use umf_core::settings::ByteSize;
use umf_core::{Error, FactoryError, Import, Provider, ProviderFactory, Result};
use umf_os::page_size;

use crate::buffer::DmaBuf;
use crate::mappings::DmaBufImport;
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
                _ => return refuse("must be set for udmabuf only: the page size of other sources is fixed"),
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

// Settings.

umf_core::words! {
    /// The source of dma-bufs.
    #[derive(Default)]
    pub enum DmaBufExporter {
        /// `/dev/udmabuf`: host memory.
        #[default]
        Udmabuf = "udmabuf",
        /// A heap of `/dev/dma_heap`.
        Heap = "heap",
    }
}

umf_core::words! {
    /// The kind of pages of buffers.
    #[derive(Default)]
    pub enum DmaBufPages {
        /// Normal pages.
        #[default]
        Normal = "none",
        /// Reserved huge pages.
        Hugetlb = "hugetlb",
    }
}

umf_core::settings! {
    /// The keys of the kind `dma-buf`.
    pub struct DmaBufSettings {
        /// The source of the buffers: "udmabuf" (host memory) or "heap".
        pub exporter: DmaBufExporter = DmaBufExporter::Udmabuf;
        /// The heap: a name in /dev/dma_heap.
        pub heap: String = "system".to_owned(),
            "a name in /dev/dma_heap, without a slash"
            if |heap| !heap.is_empty() && heap.len() <= 253 && !heap.contains(['/', '\0']) && !heap.starts_with('.');
        /// "none" or "hugetlb" (reserved huge pages). For udmabuf.
        pub huge_pages: DmaBufPages = DmaBufPages::Normal;
        /// Size of a huge page, a power of two; 0 is 2 MiB.
        pub huge_page_size: usize as ByteSize = 0,
            "a power of two of bytes such as \"2MiB\", or 0" if |size| *size == 0 || size.is_power_of_two();
    }
}

impl ProviderFactory for DmaBufProvider {
    const KIND: &'static str = "dma-buf";
    type Settings = DmaBufSettings;

    fn build(name: &str, settings: DmaBufSettings) -> Result<Arc<dyn Provider>, FactoryError> {
        let builder = match settings.exporter {
            DmaBufExporter::Udmabuf => Self::udmabuf(),
            DmaBufExporter::Heap => Self::heap(&settings.heap),
        }?;
        let builder = match (settings.huge_pages, settings.huge_page_size) {
            (DmaBufPages::Normal, _) => builder,
            (DmaBufPages::Hugetlb, 0) => builder.huge_page(2 << 20),
            (DmaBufPages::Hugetlb, size) => builder.huge_page(size),
        };
        Ok(builder.name(name.to_owned()).build()?)
    }

    fn import(_: &DmaBufSettings) -> Option<Arc<dyn Import>> {
        Some(Arc::new(DmaBufImport::new()))
    }
}
