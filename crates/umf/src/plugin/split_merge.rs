//! Splitting and merging.

use umf_core::{Error, Region, Result, SplitMerge};

use super::provider::PluginProvider;

impl PluginProvider {
    /// Puts back what of `old` is still exported, and makes `new` known in their place.
    fn replace<const N: usize>(&self, old: &[Region], new: [Region; N]) -> Result<[Region; N]> {
        for region in old {
            self.put_export_of(&*self.regions.remove(region)?);
        }
        let mut entered = new;
        for place in &mut entered {
            *place = self.enter(place.base(), place.size())?;
        }
        Ok(entered)
    }
}

impl SplitMerge for PluginProvider {
    unsafe fn split(&self, region: Region, first: usize) -> Result<(Region, Region)> {
        self.check_not_frozen()?;
        self.regions.check(&region)?;
        let wrong = Error::InvalidArgument {
            what: "split",
            why: "must be at a multiple of the page size, and leave something on both sides",
        };
        let rest = region.size().checked_sub(first).filter(|&rest| rest > 0 && first > 0).ok_or(wrong)?;
        let middle = region.base().checked_add(first as u64).ok_or(wrong)?;
        if !first.is_multiple_of(self.page) {
            return Err(wrong);
        }
        // SAFETY: a live region, which the caller owns.
        unsafe { self.instance.split(region.base(), region.size(), first) }?;
        let parts = [Region::new(region.base(), first), Region::new(middle, rest)];
        self.replace(&[region], parts).map(|[low, high]| (low, high))
    }

    unsafe fn merge(&self, low: Region, high: Region) -> Result<Region> {
        self.check_not_frozen()?;
        self.regions.check(&low)?;
        self.regions.check(&high)?;
        let apart = Error::InvalidArgument {
            what: "merge",
            why: "the second region must begin where the first ends",
        };
        if low.base().checked_add(low.size() as u64) != Some(high.base()) {
            return Err(apart);
        }
        let total = low.size().checked_add(high.size()).ok_or(apart)?;
        // SAFETY: live regions, one behind the other, which the caller owns.
        unsafe { self.instance.merge(low.base(), high.base(), total) }?;
        self.replace(&[low, high], [Region::new(low.base(), total)]).map(|[merged]| merged)
    }
}
