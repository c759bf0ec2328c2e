//! Handles of regions, for other processes.

use level_zero_sys::ZE_MEMORY_TYPE_DEVICE;
use umf_core::{Error, Export, NativeExport, Region, Result};

use crate::failure::error;
use crate::handles;
use crate::native;
use crate::provider::LevelZeroProvider;

impl Export for LevelZeroProvider {
    fn export(&self, region: &Region) -> Result<NativeExport> {
        let context = self.context();
        context.check()?;
        if self.native_kind() != ZE_MEMORY_TYPE_DEVICE {
            return Err(Error::NotSupported {
                what: "handles of host or shared memory",
                owner: "Level Zero; use device memory, or the host provider",
                native: 0,
            });
        }
        let mut records = self.records();
        let record = records.live.get_mut(region)?;
        let now = native::memory::facts(context, region.base()).map_err(error)?;
        if now.id != record.id {
            return Err(Error::Native {
                call: "zeMemGetAllocProperties",
                native: 0,
                hint: "another allocation lies at the region's address: somebody has freed it past umf",
            });
        }
        let bytes = native::handle::get(context, region.base()).map_err(error)?;
        match handles::export(context, bytes, record.id, self.probed()) {
            Ok((export, given)) => {
                record.given.push(given);
                Ok(export)
            }
            Err(error) => {
                let _ = native::handle::put(context, bytes);
                Err(error)
            }
        }
    }

    fn unexport(&self, region: &Region, export: NativeExport) -> Result<()> {
        use std::os::fd::AsRawFd;
        let context = self.context();
        context.check()?;
        let fd = export.fd.as_ref().map(|fd| fd.as_raw_fd());
        let given = {
            let mut records = self.records();
            let given = &mut records.live.get_mut(region)?.given;
            let is_it = given.iter().position(|given| given.fd == fd);
            let nothing =
                Error::InvalidArgument { what: "export", why: "is not one that this region has out" };
            given.swap_remove(is_it.ok_or(nothing)?)
        };
        handles::put(context, &given)
    }

    fn fd_opens_through_procfs(&self) -> bool {
        // Those of real drivers are dma-bufs, which have no file that could be opened again.
        false
    }
}
