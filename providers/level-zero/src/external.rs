//! Fds of memory, for other interfaces and from them.

use std::os::fd::{AsFd, OwnedFd};

use level_zero_sys::{
    ZE_EXTERNAL_MEMORY_TYPE_FLAG_DMA_BUF, ZE_EXTERNAL_MEMORY_TYPE_FLAG_OPAQUE_FD,
    ze_external_memory_type_flags_t,
};
use umf_core::{Error, Layout, Region, Result};
use umf_os::is_dma_buf;

use crate::failure::error;
use crate::native;
use crate::provider::LevelZeroProvider;

/// What an fd of memory is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum FdForm {
    /// A dma-buf, which all devices and the dma-buf provider know.
    DmaBuf,
    /// What only this driver knows.
    Opaque,
}

impl FdForm {
    pub(crate) const fn flag(self) -> ze_external_memory_type_flags_t {
        match self {
            Self::DmaBuf => ZE_EXTERNAL_MEMORY_TYPE_FLAG_DMA_BUF,
            Self::Opaque => ZE_EXTERNAL_MEMORY_TYPE_FLAG_OPAQUE_FD,
        }
    }

    const fn refusal(self, exported: bool) -> Error {
        let what = match (self, exported) {
            (Self::DmaBuf, true) => "exporting memory as a dma-buf",
            (Self::DmaBuf, false) => "making memory of a dma-buf",
            (Self::Opaque, true) => "exporting memory as an fd",
            (Self::Opaque, false) => "making memory of an fd",
        };
        Error::NotSupported {
            what,
            owner: "this device's driver (zeDeviceGetExternalMemoryProperties)",
            native: 0,
        }
    }
}

impl LevelZeroProvider {
    /// Whether the device's driver makes fds of this form of its memory.
    ///
    /// # Errors
    /// [`Error::Driver`].
    pub fn exports(&self, form: FdForm) -> Result<bool> {
        let forms = self.forms()?;
        Ok(forms.memoryAllocationExportTypes & form.flag() != 0)
    }

    fn forms(&self) -> Result<level_zero_sys::ze_device_external_memory_properties_t> {
        self.context().check()?;
        let device = self.device_or_refusal()?;
        native::device::forms(self.context().api(), device).map_err(error)
    }

    /// # Errors
    /// [`Error::NotSupported`] if the driver does not make such fds.
    pub(crate) fn check_exportable(&self, form: FdForm) -> Result<()> {
        if self.exports(form)? { Ok(()) } else { Err(form.refusal(true)) }
    }

    /// An fd of a region, which whoever has it may use as long as he likes. The provider was made for that
    /// ([`crate::LevelZeroBuilder::exportable`]).
    ///
    /// # Errors
    /// [`Error::NotSupported`] if the driver does not make such fds, [`Error::Driver`] if the region was not allocated for that,
    /// [`Error::ForeignAddress`].
    pub fn export_fd(&self, region: &Region, form: FdForm) -> Result<OwnedFd> {
        self.check_exportable(form)?;
        self.records().live.get(region)?;
        let fd = native::memory::export_fd(self.context(), region.base(), form.flag()).map_err(error)?;
        let fd = fd.ok_or(form.refusal(true))?;
        if form == FdForm::DmaBuf && !is_dma_buf(fd.as_fd())? {
            return Err(Error::Native {
                call: "zeMemGetAllocProperties",
                native: 0,
                hint: "the driver says that the fd is a dma-buf, and it is none: ask for FdForm::Opaque",
            });
        }
        Ok(fd)
    }

    /// A region over the first `size` bytes of memory that somebody else has made: a dma-buf of another provider, an fd of this
    /// driver's in another process. Freed as all regions are; its memory stays as long as anybody has it.
    ///
    /// # Errors
    /// [`Error::NotSupported`] if the driver takes no such fds, [`Error::Untrusted`] if this is none or too small for the driver,
    /// [`Error::OutOfMemory`], [`Error::Driver`].
    pub fn import_fd(&self, fd: &OwnedFd, size: usize, form: FdForm) -> Result<Region> {
        if self.forms()?.memoryAllocationImportTypes & form.flag() == 0 {
            return Err(form.refusal(false));
        }
        if is_dma_buf(fd.as_fd())? != (form == FdForm::DmaBuf) {
            return Err(Error::Untrusted {
                why: match form {
                    FdForm::DmaBuf => "the descriptor is not a dma-buf",
                    FdForm::Opaque => "the descriptor is a dma-buf: say so (FdForm::DmaBuf)",
                },
            });
        }
        self.allocate_of(Layout::new(size, 1)?, Some((fd.as_fd(), form.flag())))
    }
}
