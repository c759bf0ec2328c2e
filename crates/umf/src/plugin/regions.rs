//! [`Regions`]: the live regions of a plugin, so that it is never handed memory that is not its own.
//!
//! Under the lock nothing is allocated or freed and no foreign code runs, so that a fork can wait for it.

use core::cell::Cell;

use intrusive_collections::{Bound, KeyAdapter, RBTree, RBTreeLink, intrusive_adapter};
use umf_core::{Address, Error, NativeBytes, Region, Result};
use umf_sync::Lock;

/// A live region.
pub(super) struct Record {
    link: RBTreeLink,
    region: Region,
    /// Its export, until that is taken back.
    export: Cell<Option<Shared>>,
}

/// The export of a region, which everyone who asks for one gets.
#[derive(Clone, Copy)]
struct Shared {
    native: NativeBytes,
    users: u32,
}

impl Record {
    pub(super) fn new(region: Region) -> Box<Self> {
        Box::new(Self { link: RBTreeLink::new(), region, export: Cell::new(None) })
    }

    pub(super) fn take_export(&self) -> Option<NativeBytes> {
        self.export.take().map(|shared| shared.native)
    }
}

intrusive_adapter!(ByBase = Box<Record>: Record { link: RBTreeLink });

impl<'a> KeyAdapter<'a> for ByBase {
    type Key = u64;
    fn get_key(&self, record: &'a Record) -> u64 {
        record.region.base().to_bits()
    }
}

/// The live regions, by address.
pub(super) struct Regions {
    tree: Lock<RBTree<ByBase>>,
    owner: &'static str,
}

fn end(region: &Region) -> u64 {
    region.base().to_bits() + region.size() as u64
}

impl Regions {
    pub(super) fn new(owner: &'static str) -> Self {
        Self { tree: Lock::new(RBTree::new(ByBase::NEW)), owner }
    }

    fn foreign(&self, address: Address) -> Error {
        Error::ForeignAddress { address, owner: self.owner }
    }

    /// Adds a region; gives it back if it overlaps one that is live.
    pub(super) fn insert(&self, record: Box<Record>) -> Result<(), Box<Record>> {
        let mut tree = self.tree.lock();
        let (first, last) = (record.region.base().to_bits(), end(&record.region) - 1);
        let below = tree.upper_bound(Bound::Included(&last));
        if below.get().is_some_and(|other| end(&other.region) > first) {
            drop(tree);
            return Err(record);
        }
        tree.insert(record);
        Ok(())
    }

    /// Takes exactly this region out.
    pub(super) fn remove(&self, region: &Region) -> Result<Box<Record>> {
        let mut tree = self.tree.lock();
        let mut cursor = tree.find_mut(&region.base().to_bits());
        self.same(cursor.get(), region)?;
        cursor.remove().ok_or_else(|| self.foreign(region.base()))
    }

    fn same<'a>(&self, record: Option<&'a Record>, region: &Region) -> Result<&'a Record> {
        let address = region.base();
        match record {
            Some(record) if record.region == *region => Ok(record),
            // The address is in use again: what the caller has is older.
            Some(_) => Err(Error::NotAllocated { address }),
            None => Err(self.foreign(address)),
        }
    }

    /// Whether exactly this region is live.
    pub(super) fn check(&self, region: &Region) -> Result<()> {
        let tree = self.tree.lock();
        self.same(tree.find(&region.base().to_bits()).get(), region).map(|_| ())
    }

    /// Whether `size` bytes from `address` lie in one live region.
    pub(super) fn check_range(&self, address: Address, size: usize) -> Result<()> {
        let tree = self.tree.lock();
        let below = tree.upper_bound(Bound::Included(&address.to_bits()));
        let region = below.get().map(|record| record.region).filter(|region| region.contains(address));
        let region = region.ok_or_else(|| self.foreign(address))?;
        let inside = address.to_bits().checked_add(size as u64).is_some_and(|last| last <= end(&region));
        if inside {
            Ok(())
        } else {
            Err(Error::InvalidArgument { what: "range", why: "must lie inside one live region" })
        }
    }

    /// One more user of the export that a region has, if it has one.
    pub(super) fn share_export(&self, region: &Region) -> Result<Option<NativeBytes>> {
        let tree = self.tree.lock();
        let record = self.same(tree.find(&region.base().to_bits()).get(), region)?;
        Ok(Self::one_more(record))
    }

    fn one_more(record: &Record) -> Option<NativeBytes> {
        let shared = record.export.get()?;
        record.export.set(Some(Shared { users: shared.users.saturating_add(1), ..shared }));
        Some(shared.native)
    }

    /// Gives a region an export, with one user. If it has one by now, that has one user more, and is returned.
    pub(super) fn set_export(&self, region: &Region, native: NativeBytes) -> Result<Option<NativeBytes>> {
        let tree = self.tree.lock();
        let record = self.same(tree.find(&region.base().to_bits()).get(), region)?;
        let had = Self::one_more(record);
        if had.is_none() {
            record.export.set(Some(Shared { native, users: 1 }));
        }
        Ok(had)
    }

    /// One user less; the export if that was the last.
    pub(super) fn leave_export(&self, region: &Region, native: &NativeBytes) -> Result<Option<NativeBytes>> {
        let tree = self.tree.lock();
        let record = self.same(tree.find(&region.base().to_bits()).get(), region)?;
        let Some(shared) = record.export.get().filter(|shared| shared.native == *native) else {
            return Err(Error::InvalidArgument {
                what: "export",
                why: "must be one that this region has, and that was not taken back before",
            });
        };
        if shared.users > 1 {
            record.export.set(Some(Shared { users: shared.users - 1, ..shared }));
            return Ok(None);
        }
        Ok(record.take_export())
    }

    /// How many regions are live.
    pub(super) fn count(&self) -> usize {
        self.tree.lock().iter().count()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn region(base: usize, size: usize) -> Region {
        Region::new(Address::new(base).unwrap(), size)
    }

    #[test]
    fn regions_do_not_overlap_and_are_told_apart() {
        let regions = Regions::new("the test");
        let first = region(0x2000, 0x2000);
        assert!(regions.insert(Record::new(first)).is_ok());
        for (base, size) in [(0x2000, 1), (0x3fff, 1), (0x1000, 0x1001), (0x1000, 0x9000)] {
            assert!(regions.insert(Record::new(region(base, size))).is_err(), "{base:#x}");
        }
        assert!(regions.insert(Record::new(region(0x4000, 0x1000))).is_ok());
        assert!(regions.insert(Record::new(region(0x1000, 0x1000))).is_ok());
        assert!(regions.check_range(Address::new(0x3000).unwrap(), 0x1000).is_ok());
        assert!(regions.check_range(Address::new(0x3000).unwrap(), 0x1001).is_err());
        let older = region(0x2000, 0x2000);
        assert!(matches!(regions.check(&older), Err(Error::NotAllocated { .. })));
        assert!(regions.remove(&first).is_ok());
        assert!(matches!(regions.remove(&first), Err(Error::ForeignAddress { .. })));
    }

    #[test]
    fn an_export_is_taken_by_its_last_user() {
        let regions = Regions::new("the test");
        let first = region(0x2000, 0x2000);
        assert!(regions.insert(Record::new(first)).is_ok());
        let native = NativeBytes::new(b"abc").unwrap();
        assert_eq!(regions.share_export(&first), Ok(None));
        assert_eq!(regions.set_export(&first, native), Ok(None));
        assert_eq!(regions.set_export(&first, NativeBytes::EMPTY), Ok(Some(native)));
        assert_eq!(regions.share_export(&first), Ok(Some(native)));
        assert!(regions.leave_export(&first, &NativeBytes::EMPTY).is_err());
        assert_eq!(regions.leave_export(&first, &native), Ok(None));
        assert_eq!(regions.leave_export(&first, &native), Ok(None));
        assert_eq!(regions.leave_export(&first, &native), Ok(Some(native)));
        assert!(regions.leave_export(&first, &native).is_err());
    }
}
