//! [`Reserved`]: records of regions that a split or merge is about to make.
//!
//! All memory that can be lacking is got before the provider is asked: what it did cannot always be undone, since a provider may know
//! regions by their numbers. Until [`Reserved::fill`] they are found as parts of what is there, and cannot be freed or exported.

use super::record::REGIONS;
use super::{OwnerId, RegionNumber, change, insert_ended, remove_locked};
use crate::{Region, Result};

/// Up to two records. Those that are not filled go when this is dropped.
pub(super) struct Reserved<const N: usize>([Option<(RegionNumber, Region)>; N]);

impl<const N: usize> Reserved<N> {
    /// Records of regions like these, of which only the ids are not known yet.
    ///
    /// # Errors
    /// [`Error::OutOfMemory`] or [`Error::TooMany`] where there is no room for them; nothing has changed then.
    pub(super) fn new(regions: [Region; N], owner: OwnerId) -> Result<Self> {
        let mut reserved = Self([None; N]);
        for (place, region) in reserved.0.iter_mut().zip(regions) {
            *place = Some((insert_ended(region, owner)?, region));
        }
        Ok(reserved)
    }

    /// Puts `new` regions in the place of `old` ones that cover the same addresses. At each moment every address in them is found,
    /// in an old or a new region. `false`, with nothing changed, if the new ones do not lie where they were to.
    pub(super) fn fill<const M: usize>(
        mut self,
        old: [(RegionNumber, Region); M],
        new: [Region; N],
        owner: OwnerId,
    ) -> bool {
        let lies_there = |(place, new): (&Option<(RegionNumber, Region)>, &Region)| {
            place.is_some_and(|(_, wanted)| (wanted.base(), wanted.size()) == (new.base(), new.size()))
        };
        if !self.0.iter().zip(&new).all(lies_there) {
            return false;
        }
        change(|| {
            for (place, region) in self.0.iter_mut().zip(new) {
                if let Some(record) = place.take().and_then(|(number, _)| REGIONS.get(number.0)) {
                    record.publish(region, owner);
                }
            }
            for (number, region) in old {
                remove_locked(number.0, region);
            }
        });
        true
    }
}

impl<const N: usize> Drop for Reserved<N> {
    fn drop(&mut self) {
        for (number, region) in self.0.into_iter().flatten() {
            super::remove(number, region);
        }
    }
}
