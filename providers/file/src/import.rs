//! [`FileImport`]: opens regions that another process has in a file.

use std::fs::File;
use std::os::fd::AsFd;

use umf_core::{Access, Address, Error, Import, ImportRequest, Imported, ProviderKind, Result};

use crate::provider::KIND;
use crate::sys;

/// Opens regions of a file of another process. Needs no provider, and keeps no state.
///
/// A file on a medium cannot be sealed: whoever may write to it may truncate it, and the next touch of what is gone is SIGBUS
/// here. Import only where every process that can write to the file is trusted not to. Otherwise it is checked that it is a
/// regular file that holds the whole range.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FileImport(());

impl FileImport {
    /// An importer for a program that trusts whoever can write to the files that it opens.
    #[must_use]
    pub const fn trusting() -> Self {
        Self(())
    }
}

// SAFETY: the mapping keeps the file, and stays until released. That the file is not truncated is what
// whoever made it trusts others in.
unsafe impl Import for FileImport {
    fn kind(&self) -> ProviderKind {
        KIND
    }

    fn import(&self, request: ImportRequest) -> Result<Imported> {
        let refuse = |why| Error::Untrusted { why };
        let file = request.fd.map(File::from).ok_or(refuse("no file descriptor came along"))?;
        let about = file.metadata().map_err(|_| refuse("the descriptor is no file"))?;
        if !about.is_file() {
            return Err(refuse("the descriptor is not that of a regular file"));
        }
        if sys::is_unsealed_memory(file.as_fd()) {
            return Err(refuse("the descriptor is of a memory file without a name, and not sealed"));
        }
        let page = sys::page_size();
        let size = request
            .size
            .checked_next_multiple_of(page)
            .filter(|&size| size > 0 && size <= isize::MAX as usize);
        let size = size.ok_or(refuse("the size is 0 or exceeds an address space"))?;
        let end = request.offset.checked_add(size as u64);
        if !request.offset.is_multiple_of(page as u64) || end.is_none_or(|end| end > about.len()) {
            return Err(refuse("the range is not whole pages inside the file"));
        }
        let writable = request.access == Access::ReadWrite;
        let start = sys::map(file.as_fd(), request.offset, size, page, sys::Kind::Shared, writable)?;
        Ok(Imported::host(Address::from_ptr(start.as_ptr()), size, request.access))
    }

    unsafe fn release(&self, imported: Imported) -> Result<()> {
        match imported.base.as_ptr() {
            // SAFETY: mapped by `import`, and nobody uses it, says the caller.
            Some(start) => unsafe { sys::unmap(start, imported.size) },
            None => Ok(()),
        }
    }
}
