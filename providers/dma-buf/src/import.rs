//! [`DmaBufImport`]: opens dma-bufs that another process exported.

use core::ptr::NonNull;

use umf_core::{Access, Error, HostAccess, Import, ImportRequest, Imported, ProviderKind, Result};
use umf_os::{FileRange, Mapping, page_size};

use crate::buffer::DmaBuf;
use crate::mappings;
use crate::mappings::CpuSync;

/// The kind of provider.
pub(crate) const KIND: ProviderKind = match ProviderKind::new("dma-buf") {
    Some(kind) => kind,
    None => panic!("a valid name"),
};

/// Opens dma-bufs that another process exported: maps a part of one. Needs no provider, and no device: whoever has the
/// descriptor may map it.
///
/// What came along is asked about before it is touched: that it is a dma-buf (the kernel alone answers) and that the range lies
/// in it. A dma-buf never shrinks, and its pages stay as long as it is mapped, whatever its exporter does. A read-only import is a
/// courtesy: the descriptor would let itself be mapped for writing.
///
/// Thread-safe.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DmaBufImport;

impl DmaBufImport {
    /// An importer.
    #[must_use]
    pub const fn new() -> Self {
        Self
    }
}

// SAFETY: what is mapped is a dma-buf, whose size never changes and whose pages stay as long as it is mapped; the range lies in
// it.
unsafe impl Import for DmaBufImport {
    fn kind(&self) -> ProviderKind {
        KIND
    }

    fn import(&self, mut request: ImportRequest) -> Result<Imported> {
        let fd = request.fd.take().ok_or(Error::Untrusted { why: "no file descriptor came along" })?;
        let buffer = DmaBuf::from_fd(fd)?;
        let page = page_size();
        let FileRange { offset, size } = FileRange::of(&request, page, buffer.size())?;
        let writable = request.access == Access::ReadWrite;
        let mapping = buffer.map(offset, size, page, writable)?;
        mappings::add(mapping.address(), size, buffer, writable);
        Ok(Imported::host(mapping.leak(), size, request.access))
    }

    fn host_access(&self) -> Option<&dyn HostAccess> {
        Some(&CpuSync)
    }

    unsafe fn release(&self, imported: Imported) -> Result<()> {
        let base = imported.base;
        let foreign = Error::ForeignAddress { address: base, owner: "the dma-buf importer" };
        // Forgotten first: once unmapped, another thread may get the same address.
        let buffer = mappings::remove(base).ok_or(foreign)?;
        let pointer = base.as_ptr().and_then(NonNull::new).ok_or(foreign)?;
        // SAFETY: `import` mapped this much there, and the caller says that nobody uses it any more.
        unsafe { Mapping::from_parts(pointer, imported.size) }.unmap().map_err(|(mapping, error)| {
            mappings::add(mapping.leak(), imported.size, buffer, !imported.read_only);
            error
        })
    }
}
