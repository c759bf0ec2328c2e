//! [`DevDaxImport`]: opens regions that another process has on a DAX device.

use std::fs::File;
use std::os::fd::AsFd;
use std::os::unix::fs::FileTypeExt as _;

use umf_core::{Access, Address, Error, Import, ImportRequest, Imported, ProviderKind, Result};

use crate::provider::KIND;
use crate::sys::{self, PAGE};

/// Opens regions of a DAX device of another process. Needs no provider, and keeps no state.
///
/// A device does not shrink while it is open. What is not one cannot be mapped as one, and is refused by that.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DevDaxImport;

// SAFETY: the mapping keeps the device, and stays until released.
unsafe impl Import for DevDaxImport {
    fn kind(&self) -> ProviderKind {
        KIND
    }

    fn import(&self, request: ImportRequest) -> Result<Imported> {
        let refuse = |why| Error::Untrusted { why };
        let device = request.fd.map(File::from).ok_or(refuse("no file descriptor came along"))?;
        if !device.metadata().is_ok_and(|about| about.file_type().is_char_device()) {
            return Err(refuse("the descriptor is not that of a device"));
        }
        let whole = request.offset.is_multiple_of(PAGE as u64)
            && request.size.is_multiple_of(PAGE)
            && request.size > 0;
        if !whole || isize::try_from(request.size).is_err() {
            return Err(refuse("the range is not whole pages of a DAX device"));
        }
        let start =
            sys::map(device.as_fd(), request.offset, request.size, request.access == Access::ReadWrite)?;
        Ok(Imported::host(Address::from_ptr(start.as_ptr()), request.size, request.access))
    }

    unsafe fn release(&self, imported: Imported) -> Result<()> {
        match imported.base.as_ptr() {
            // SAFETY: mapped by `import`, and nobody uses it, says the caller.
            Some(start) => unsafe { sys::unmap(start, imported.size) },
            None => Ok(()),
        }
    }
}
