//! [`Each`]: a buffer for each region.

use std::collections::BTreeMap;

use umf_core::{Error, Layout, NativeExport, Region, Result};
use umf_os::{Mapping, Room};
use umf_sync::Lock;

use crate::buffer::DmaBuf;
use crate::live;
use crate::source::Source;

struct Record {
    region: Region,
    buffer: DmaBuf,
    mapping: Mapping,
}

/// Regions that are each a dma-buf of their own.
pub(crate) struct Each {
    source: Source,
    /// Some exporters take pages until none is left, and ask the out-of-memory killer for more.
    room: Room,
    /// What buffers are called.
    name: String,
    records: Lock<BTreeMap<u64, Record>>,
}

impl core::fmt::Debug for Each {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        write!(f, "{:?}, {:?}", self.source, self.name)
    }
}

impl Each {
    pub(crate) fn new(source: Source, name: String) -> Self {
        let room = if source.counts_against_groups() { Room::find() } else { Room::default() };
        Self { source, room, name, records: Lock::new(BTreeMap::new()) }
    }

    pub(crate) const fn source(&self) -> &Source {
        &self.source
    }

    pub(crate) fn allocate(&self, layout: Layout) -> Result<Region> {
        let page = self.source.page_size();
        let size = layout.pad_to(page)?.size();
        let align = layout.align().max(page);
        if let Some(owner) = self.source.owner() {
            self.room.check(size, owner)?;
        }
        let buffer = self.source.make(size)?;
        // Where names cannot be given there is nobody to read them.
        match buffer.set_name(&self.name) {
            Ok(()) | Err(Error::NotSupported { .. }) => {}
            Err(error) => return Err(error),
        }
        let mapping = buffer.map(0, size, align, true)?;
        let region = Region::new(mapping.address(), size);
        live::add(region.base(), size, buffer.clone(), true);
        self.records.lock().insert(region.base().to_bits(), Record { region, buffer, mapping });
        Ok(region)
    }

    pub(crate) fn free(&self, region: &Region) -> Result<()> {
        let record = {
            let mut records = self.records.lock();
            check(&records, region)?;
            records.remove(&region.base().to_bits())
        };
        let Some(Record { region, buffer, mapping }) = record else {
            return Err(Error::NotAllocated { address: region.base() });
        };
        // Forgotten first: once unmapped, another thread may get the same address.
        live::remove(region.base());
        mapping.unmap().map_err(|(mapping, error)| {
            live::add(region.base(), region.size(), buffer.clone(), true);
            self.records.lock().insert(region.base().to_bits(), Record { region, buffer, mapping });
            error
        })
    }

    pub(crate) fn check(&self, region: &Region) -> Result<()> {
        check(&self.records.lock(), region).map(drop)
    }

    pub(crate) fn export(&self, region: &Region) -> Result<NativeExport> {
        let records = self.records.lock();
        let mut export = NativeExport::from_fd(check(&records, region)?.buffer.checked_fd()?, 0);
        export.isolated = true;
        Ok(export)
    }
}

fn check<'a>(records: &'a BTreeMap<u64, Record>, region: &Region) -> Result<&'a Record> {
    let address = region.base();
    match records.get(&address.to_bits()) {
        None => Err(Error::ForeignAddress { address, owner: "this dma-buf provider" }),
        // The address is in use again: what the caller has is older.
        Some(record) if record.region != *region => Err(Error::NotAllocated { address }),
        Some(record) => Ok(record),
    }
}

impl Drop for Each {
    fn drop(&mut self) {
        // Regions that were not freed stay mapped: whoever has one may still use it.
        for record in core::mem::take(&mut *self.records.lock()).into_values() {
            core::mem::forget(record.mapping);
        }
    }
}
