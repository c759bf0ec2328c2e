//! The mapped dma-bufs of this process: their table by address; [`cpu_access`], which brackets
//! accesses of the CPU with `DMA_BUF_IOCTL_SYNC`; and [`DmaBufImport`], which maps dma-bufs that
//! another process exported.

use core::ptr::NonNull;
use std::collections::BTreeMap;

use umf_core::{
    Access, Address, CpuAccess, Error, HostAccess, Import, ImportRequest, Imported, ProviderKind, Result,
};
use umf_os::{FileRange, Mapping, page_size};
use umf_sync::Lock;

use crate::buffer::DmaBuf;

struct MappedBuffer {
    end: u64,
    buffer: DmaBuf,
    writable: bool,
}

static MAPPED: Lock<BTreeMap<u64, MappedBuffer>> = Lock::new(BTreeMap::new());

/// Adds a mapping of a buffer.
pub(crate) fn add(base: Address, size: usize, buffer: DmaBuf, writable: bool) {
    let start = base.to_bits();
    let end = start.saturating_add(size as u64);
    MAPPED.lock().insert(start, MappedBuffer { end, buffer, writable });
}

/// Removes a mapping. Call it before unmapping.
pub(crate) fn remove(base: Address) -> Option<DmaBuf> {
    let removed = MAPPED.lock().remove(&base.to_bits());
    removed.map(|live| live.buffer)
}

/// Returns the buffer that contains the whole range, and whether the mapping is writable.
pub(crate) fn find(base: Address, size: usize) -> Result<(DmaBuf, bool)> {
    let foreign = Error::ForeignAddress { address: base, owner: "a dma-buf that this process has mapped" };
    let start = base.to_bits();
    let end = start.checked_add(size as u64).ok_or(foreign)?;
    let live = MAPPED.lock();
    let (_, found) = live.range(..=start).next_back().ok_or(foreign)?;
    if start >= found.end {
        return Err(foreign);
    }
    if end > found.end {
        return Err(Error::InvalidArgument { what: "range", why: "must lie in one mapped dma-buf" });
    }
    Ok((found.buffer.clone(), found.writable))
}

/// Bracketing of CPU accesses for all dma-bufs that this crate has mapped.
#[derive(Debug)]
pub(crate) struct CpuSync;

impl HostAccess for CpuSync {
    fn begin(&self, base: Address, size: usize, access: Access) -> Result<()> {
        let (buffer, writable) = find(base, size)?;
        if access == Access::ReadWrite && !writable {
            return Err(Error::InvalidArgument {
                what: "access",
                why: "must be read-only, since the memory was imported read-only",
            });
        }
        buffer.begin_cpu_access(access)
    }

    fn end(&self, base: Address, size: usize, access: Access) -> Result<()> {
        let (buffer, _) = find(base, size)?;
        buffer.end_cpu_access(access)
    }
}

/// Begins an access of the CPU to `size` bytes at `base` (`DMA_BUF_IOCTL_SYNC` with `START`);
/// dropping the guard ends it (`END`). The range lies in a region of a [`crate::DmaBufProvider`],
/// in a block of a pool over one, or in an import.
///
/// # Errors
/// - [`Error::ForeignAddress`]: this crate has no dma-buf mapped at `base`.
/// - [`Error::InvalidArgument`]: the range is empty or exceeds the buffer, or a read-only import is
///   to be written.
/// - [`Error::Native`]: the driver's error.
///
/// # Safety
/// Until the access has ended, the memory is neither freed nor closed. Accesses through the guard
/// do not violate the aliasing rules of references (`&[u8]`, `&mut T`) that other code of this
/// process has into the memory.
pub unsafe fn cpu_access(base: Address, size: usize, access: Access) -> Result<CpuAccess<'static>> {
    if size == 0 {
        return Err(Error::InvalidArgument { what: "range", why: "must have at least one byte" });
    }
    // SAFETY: the caller's contract. `CpuSync::begin` checks that the memory is writable if it is
    // to be written.
    unsafe { CpuAccess::begin(Some(&CpuSync), base, size, access) }
}

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
        let fd = request
            .fd
            .take()
            .ok_or(Error::Untrusted { why: "the handle needs a file descriptor, and none was received" })?;
        let buffer = DmaBuf::from_fd(fd)?;
        let page = page_size();
        let FileRange { offset, size } = FileRange::of(&request, page, buffer.size())?;
        let writable = request.access == Access::ReadWrite;
        let mapping = buffer.map(offset, size, page, writable)?;
        add(mapping.address(), size, buffer, writable);
        Ok(Imported::host(mapping.leak(), size, request.access))
    }

    fn host_access(&self) -> Option<&dyn HostAccess> {
        Some(&CpuSync)
    }

    unsafe fn release(&self, imported: Imported) -> Result<()> {
        let base = imported.base;
        let foreign = Error::ForeignAddress { address: base, owner: "the dma-buf importer" };
        // Removed before it is unmapped: afterwards another thread may get the same address.
        let buffer = remove(base).ok_or(foreign)?;
        let pointer = base.as_ptr().and_then(NonNull::new).ok_or(foreign)?;
        // SAFETY: `import` created this mapping, and by the caller's contract it is not in use.
        unsafe { Mapping::from_parts(pointer, imported.size) }.unmap().map_err(|(mapping, error)| {
            add(mapping.leak(), imported.size, buffer, !imported.read_only);
            error
        })
    }
}
