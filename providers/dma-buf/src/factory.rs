//! The kind `dma-buf` of settings.

use std::sync::Arc;

use umf_core::settings::ByteSize;
use umf_core::{FactoryError, Import, Provider, ProviderFactory};

use crate::{DmaBufImport, DmaBufProvider};

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
