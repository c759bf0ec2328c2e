//! Devices that have a provider's memory at hand.

use level_zero_sys::ze_device_handle_t;
use umf_core::{Error, Region, Result};

use crate::context::Context;
use crate::failure::error;
use crate::native::memory::set_resident;
use crate::provider::LevelZeroProvider;

fn extent(region: &Region) -> (umf_core::Address, usize) {
    (region.base(), region.size())
}

/// Makes a region resident on all of the devices, or on none.
pub(crate) fn make(context: &Context, region: &Region, devices: &[ze_device_handle_t]) -> Result<()> {
    for (number, device) in devices.iter().enumerate() {
        if let Err(failure) = set_resident(context, *device, extent(region), true) {
            let failed = error(failure);
            evict(context, region, &devices[..number]);
            return Err(failed);
        }
    }
    Ok(())
}

/// Ends that. A device that does not let go loses the memory when it is freed.
pub(crate) fn evict(context: &Context, region: &Region, devices: &[ze_device_handle_t]) {
    for device in devices {
        let _ = set_resident(context, *device, extent(region), false).map_err(error);
    }
}

impl LevelZeroProvider {
    /// Makes all regions resident on one more device of the driver, those that are live and those to come; or on one less. Returns
    /// whether anything changed.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] if the driver has no such device, [`Error::Driver`] if it refuses for any region: then all is as
    /// it was before.
    pub fn set_resident(&self, device: u32, is_resident: bool) -> Result<bool> {
        let device = self.peer(device)?;
        self.set_resident_on(device, is_resident)
    }

    /// As [`LevelZeroProvider::set_resident`], with a device's own handle.
    ///
    /// # Errors
    /// As there; a handle that is none is what the driver answers to that.
    pub fn set_resident_on(&self, device: ze_device_handle_t, is_resident: bool) -> Result<bool> {
        let context = self.context();
        context.check()?;
        let mut records = self.records();
        if records.residents.contains(&device) == is_resident {
            return Ok(false);
        }
        let mut changed: Vec<Region> = Vec::new();
        for (region, _) in records.live.iter() {
            if let Err(failure) = set_resident(context, device, extent(&region), is_resident) {
                let failed = error(failure);
                for region in &changed {
                    let _ = set_resident(context, device, extent(region), !is_resident).map_err(error);
                }
                return Err(failed);
            }
            changed.push(region);
        }
        records.residents.retain(|resident| *resident != device);
        if is_resident {
            records.residents.push(device);
        }
        Ok(true)
    }

    /// A device of the same driver by its number.
    fn peer(&self, number: u32) -> Result<ze_device_handle_t> {
        self.context().check()?;
        let devices =
            crate::native::device::devices(self.context().api(), self.context().driver()).map_err(error)?;
        devices.get(number as usize).copied().ok_or(Error::InvalidArgument {
            what: "device",
            why: "the Level Zero driver has fewer; they are counted from 0",
        })
    }
}
