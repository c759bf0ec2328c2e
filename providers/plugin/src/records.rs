//! The live regions of all providers of this crate, so that a provider is never handed memory that
//! is not its own.
//!
//! Under the lock no memory is allocated or freed and no foreign code runs, so that a fork can wait
//! for it.

use core::sync::atomic::{AtomicU64, Ordering};

use intrusive_collections::{Bound, KeyAdapter, RBTree, RBTreeLink, intrusive_adapter};
use umf_core::{Address, Error, Region, Result};
use umf_sync::Lock;

/// A live region.
struct Record {
    link: RBTreeLink,
    provider: u64,
    region: Region,
}

intrusive_adapter!(ByPlace = Box<Record>: Record { link: RBTreeLink });

impl<'a> KeyAdapter<'a> for ByPlace {
    type Key = (u64, u64);

    fn get_key(&self, record: &'a Record) -> (u64, u64) {
        (record.provider, record.region.base().to_bits())
    }
}

/// By provider, then by address: the memory of a provider over a pool lies in that of another.
static RECORDS: Lock<Option<RBTree<ByPlace>>> = Lock::new(None);

/// The records of one provider.
pub(crate) struct Records {
    provider: u64,
    owner: &'static str,
}

fn end(region: &Region) -> u64 {
    region.base().to_bits() + region.size() as u64
}

impl Records {
    pub(crate) fn new(owner: &'static str) -> Self {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        Self { provider: NEXT.fetch_add(1, Ordering::Relaxed), owner }
    }

    /// Adds a region. Returns `false` if it overlaps one that is live, or the end of the address
    /// space.
    pub(crate) fn insert(&self, region: Region) -> bool {
        if region.base().checked_add(region.size() as u64).is_none() {
            return false;
        }
        let record = Box::new(Record { link: RBTreeLink::new(), provider: self.provider, region });
        let (first, last) = (region.base().to_bits(), end(&region) - 1);
        let mut records = RECORDS.lock();
        let records = records.get_or_insert_with(|| RBTree::new(ByPlace::NEW));
        let below = records.upper_bound(Bound::Included(&(self.provider, last)));
        let overlaps =
            below.get().is_some_and(|other| other.provider == self.provider && end(&other.region) > first);
        if !overlaps {
            records.insert(record);
        }
        !overlaps
    }

    /// Removes exactly this region.
    pub(crate) fn remove(&self, region: &Region) -> Result<()> {
        let mut records = RECORDS.lock();
        let tree = records.as_mut().ok_or(self.foreign(region.base()))?;
        let mut cursor = tree.find_mut(&(self.provider, region.base().to_bits()));
        self.same(cursor.get(), region)?;
        let removed = cursor.remove();
        drop(records);
        drop(removed);
        Ok(())
    }

    /// Checks that exactly this region is live.
    pub(crate) fn check(&self, region: &Region) -> Result<()> {
        let records = RECORDS.lock();
        let tree = records.as_ref().ok_or(self.foreign(region.base()))?;
        self.same(tree.find(&(self.provider, region.base().to_bits())).get(), region)
    }

    /// Checks that `size` bytes from `address` on lie in one live region.
    pub(crate) fn check_range(&self, address: Address, size: usize) -> Result<()> {
        let records = RECORDS.lock();
        let tree = records.as_ref().ok_or(self.foreign(address))?;
        let below = tree.upper_bound(Bound::Included(&(self.provider, address.to_bits())));
        let around = below.get().filter(|record| record.provider == self.provider);
        let region = around.map(|record| record.region).filter(|region| region.contains(address));
        let region = region.ok_or(self.foreign(address))?;
        match address.to_bits().checked_add(size as u64) {
            Some(last) if last <= end(&region) => Ok(()),
            _ => Err(Error::InvalidArgument { what: "range", why: "must lie inside one live region" }),
        }
    }

    const fn foreign(&self, address: Address) -> Error {
        Error::ForeignAddress { address, owner: self.owner }
    }

    fn same(&self, found: Option<&Record>, region: &Region) -> Result<()> {
        let record = found.ok_or(self.foreign(region.base()))?;
        if record.region == *region {
            return Ok(());
        }
        Err(Error::NotAllocated { address: region.base() })
    }

    /// Forgets all regions. Returns how many there were.
    pub(crate) fn clear(&self) -> usize {
        let remove_one = || {
            let mut records = RECORDS.lock();
            let mut cursor = records.as_mut()?.lower_bound_mut(Bound::Included(&(self.provider, 0)));
            cursor.get().filter(|record| record.provider == self.provider)?;
            cursor.remove()
        };
        core::iter::from_fn(remove_one).count()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn region(base: usize, size: usize) -> Region {
        Region::new(Address::new(base).unwrap(), size)
    }

    #[test]
    fn regions_of_one_provider_do_not_overlap() {
        let (records, other) = (Records::new("the test"), Records::new("another test"));
        let first = region(0x2000, 0x2000);
        assert!(records.insert(first));
        for (base, size) in [(0x2000, 1), (0x3fff, 1), (0x1000, 0x1001), (0x1000, 0x9000)] {
            assert!(!records.insert(region(base, size)), "{base:#x}");
        }
        assert!(records.insert(region(0x4000, 0x1000)) && records.insert(region(0x1000, 0x1000)));
        assert!(other.insert(region(0x2000, 0x1000)), "another provider's");
        let at = |base| Address::new(base).unwrap();
        assert!(records.check_range(at(0x3000), 0x1000).is_ok());
        assert!(records.check_range(at(0x3000), 0x1001).is_err());
        assert!(other.check_range(at(0x4000), 1).is_err());
        let older = region(0x2000, 0x2000);
        assert!(matches!(records.check(&older), Err(Error::NotAllocated { .. })));
        assert!(records.remove(&first).is_ok());
        assert!(matches!(records.remove(&first), Err(Error::ForeignAddress { .. })));
        assert_eq!((records.clear(), records.clear(), other.clear()), (2, 0, 1));
    }
}
