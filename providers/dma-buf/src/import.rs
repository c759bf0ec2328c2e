//! [`DmaBufImport`]: opens dma-bufs that another process exported.

use std::collections::BTreeMap;
use std::os::fd::AsFd;

use umf_core::global::Global;
use umf_core::{Access, Error, Import, ImportRequest, Imported, ProviderKind, Result};

use crate::buffer::DmaBuf;
use crate::mapping::Mapping;
use crate::{live, sys};

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

/// The mappings of imports, by address.
static MAPPED: Global<BTreeMap<u64, Mapping>> = Global::new(BTreeMap::new());

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

    fn import(&self, request: ImportRequest) -> Result<Imported> {
        let page = sys::page_size();
        if !request.offset.is_multiple_of(page as u64) {
            return Err(Error::Untrusted { why: "the offset is not a multiple of the page size" });
        }
        let size = Some(request.size)
            .filter(|&size| size > 0)
            .and_then(|size| size.checked_next_multiple_of(page))
            .filter(|&size| isize::try_from(size).is_ok())
            .ok_or(Error::Untrusted { why: "the size is 0 or exceeds an address space" })?;
        let fd = request.fd.ok_or(Error::Untrusted { why: "no file descriptor came along" })?;
        let buffer = DmaBuf::from_fd(fd)?;
        let end = request.offset.checked_add(size as u64);
        if end.is_none_or(|end| end > buffer.size()) {
            return Err(Error::Untrusted { why: "the range does not lie inside the dma-buf" });
        }
        let writable = request.access == Access::ReadWrite;
        let mapping = Mapping::new(buffer.as_fd(), request.offset, size, page, writable)?;
        let base = mapping.address();
        live::add(base, size, buffer, writable);
        MAPPED.lock().insert(base.to_bits(), mapping);
        Ok(Imported::host(base, size, request.access))
    }

    unsafe fn release(&self, imported: Imported) -> Result<()> {
        let base = imported.base;
        let foreign = Error::ForeignAddress { address: base, owner: "the dma-buf importer" };
        let mapping = MAPPED.lock().remove(&base.to_bits()).ok_or(foreign)?;
        // Forgotten first: once unmapped, another thread may get the same address.
        let buffer = live::remove(base);
        mapping.unmap().map_err(|(mapping, error)| {
            if let Some(buffer) = buffer {
                live::add(base, mapping.size(), buffer, !imported.read_only);
            }
            MAPPED.lock().insert(base.to_bits(), mapping);
            error
        })
    }
}
