//! [`Records`]: the live regions of a provider.

use std::collections::BTreeMap;

use level_zero_sys::ze_device_handle_t;
use umf_core::{Error, Region, Result};

use crate::handles::Given;

/// A live region.
#[derive(Debug)]
pub(crate) struct Record {
    pub region: Region,
    /// The driver's own number of the allocation, which no other has, at the same address either.
    pub id: u64,
    /// Handles that are out.
    pub given: Vec<Given>,
}

/// The live regions, by where they begin, and where they are resident.
#[derive(Debug, Default)]
pub(crate) struct Records {
    pub live: BTreeMap<u64, Record>,
    pub residents: Vec<ze_device_handle_t>,
}

impl Records {
    pub(crate) fn find(&mut self, region: &Region) -> Result<&mut Record> {
        let address = region.base();
        self.live
            .get_mut(&address.to_bits())
            .filter(|record| record.region == *region)
            .ok_or(Error::ForeignAddress { address, owner: "the Level Zero provider" })
    }

    pub(crate) fn take(&mut self, region: &Region) -> Result<Record> {
        self.find(region)?;
        let address = region.base();
        self.live.remove(&address.to_bits()).ok_or(Error::NotAllocated { address })
    }

    pub(crate) fn insert(&mut self, record: Record) {
        self.live.insert(record.region.base().to_bits(), record);
    }
}
