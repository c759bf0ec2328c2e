//! [`LeaseRow`]: which importers count a slot of a producer's ledger as open.

use core::mem::offset_of;
use std::os::fd::AsFd;

use rustix::fs::SealFlags;

use super::{Found, Owner};
use crate::lease::layout::{Header, MAGIC, MAX_ROWS, Owner as OwnerWords, ROW_HEADER, Shape, VERSION};
use umf_os::Locks;

/// A row of a lease table whose importer describes itself, or that counts something.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct LeaseRow {
    /// Its number in the table.
    pub number: u32,
    /// The importer's number, the same in all of its rows; 0 if the row was given back.
    pub importer: u64,
    /// The importer's process id in its own pid namespace, as it says.
    pub pid: u32,
    /// The importer's effective user id, as it says.
    pub uid: u32,
    /// Whether a living process holds the lock of the row. A row without an owner counts nothing.
    pub is_owned: bool,
    /// How often the importer has the slot's export open, or is about to.
    pub count: u64,
}

impl Found {
    /// The rows of the owner's lease table, with what they count of a slot. Empty if the owner has
    /// none, has ended, or may not be looked into. What another process writes there is copied and
    /// not believed.
    #[must_use]
    pub fn lease_rows(&self, slot: u32) -> Vec<LeaseRow> {
        self.read_lease_rows(slot).unwrap_or_default()
    }

    fn read_lease_rows(&self, slot: u32) -> Option<Vec<LeaseRow>> {
        let Owner::Alive { pid } = self.owner else { return None };
        let (number, rows) = self.ledger.lease_table()?;
        let shape = Shape { slots: self.ledger.capacity(), rows: rows.min(MAX_ROWS) };
        let found = umf_os::file::open_path(&format!("/proc/{pid}/fd/{number}")).ok()?;
        let identity = umf_os::file::identity(&found).ok()?;
        let is_memory =
            umf_os::file::is_regular(&found).ok()? && umf_os::memfd::device().ok()? == Some(identity.device);
        if !is_memory || slot >= shape.slots {
            return None;
        }
        let table = umf_os::file::reopen(found.as_fd(), true).ok()?;
        let locks = Locks::of_file(&table);
        let is_sealed = umf_os::memfd::is_sealed(&table, SealFlags::SHRINK | SealFlags::GROW).ok()?;
        if !is_sealed
            || umf_os::file::size(&table).ok()? != shape.size()
            || umf_os::file::identity(&table).ok()? != identity
        {
            return None;
        }
        let word = |offset: u64| {
            let mut bytes = [0; 8];
            umf_os::file::read_at(&table, &mut bytes, offset).ok()?.then_some(u64::from_le_bytes(bytes))
        };
        let half = |offset: u64| word(offset).map(|word| word as u32);
        if word(0)? != MAGIC || half(offset_of!(Header, version) as u64)? != VERSION {
            return None;
        }
        let height = half(offset_of!(Header, height) as u64)?.min(shape.rows);
        let rows = (0..height).filter_map(|number| {
            let owner = shape.owners() + u64::from(number) * size_of::<OwnerWords>() as u64;
            let row = LeaseRow {
                number,
                importer: word(owner + offset_of!(OwnerWords, importer) as u64)?,
                pid: half(owner + offset_of!(OwnerWords, pid) as u64)?,
                uid: half(owner + offset_of!(OwnerWords, uid) as u64)?,
                is_owned: locks.is_write_locked(shape.row(number)).ok()?,
                // (To read a hole allocates nothing, as to map it would.)
                count: word(shape.row(number) + ROW_HEADER + u64::from(slot) * 8)?,
            };
            (row.importer != 0 || row.count != 0).then_some(row)
        });
        Some(rows.collect())
    }
}
