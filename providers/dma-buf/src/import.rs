//! [`DmaBufImport`]: maps dma-bufs that another process exported.

use core::ptr::NonNull;

use umf_core::{Access, Error, HostAccess, Import, ImportRequest, Imported, ProviderKind, Result};
use umf_os::{FileRange, Mapping, page_size};

use crate::buffer::DmaBuf;
use crate::mappings::{self, CpuSync};

/// The kind of provider.
pub(crate) const KIND: ProviderKind = match ProviderKind::new("dma-buf") {
    Some(kind) => kind,
    None => panic!("a valid name"),
};

/// An importer of dma-bufs: maps a part of a dma-buf that another process exported. It needs
/// neither a provider nor a device, because a process that has the fd may map it.
///
/// Before the fd is used, the importer checks that it is a dma-buf, without a call into the file,
/// and that the range lies in it. A dma-buf never shrinks, and its pages exist as long as it is
/// mapped, even if the exporter exits. A read-only import is not enforced: the fd can be mapped for
/// writing.
///
/// Thread-safe.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DmaBufImport;

impl DmaBufImport {
    /// Returns an importer.
    #[must_use]
    pub const fn new() -> Self {
        Self
    }
}

// SAFETY: the mapped file is a dma-buf, whose size never changes and whose pages exist as long as
// it is mapped. The range lies in it.
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
        // Removed before it is unmapped: afterwards another thread may get the same address.
        let buffer = mappings::remove(base).ok_or(foreign)?;
        let pointer = base.as_ptr().and_then(NonNull::new).ok_or(foreign)?;
        // SAFETY: `import` created this mapping, and by the caller's contract it is not in use.
        unsafe { Mapping::from_parts(pointer, imported.size) }.unmap().map_err(|(mapping, error)| {
            mappings::add(mapping.leak(), imported.size, buffer, !imported.read_only);
            error
        })
    }
}
