//! [`CollectiveTag`]: the collective and the step of a message.

use crate::TagMatch;

/// A kind of collective.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum CollectiveKind {
    Barrier = 1,
    Broadcast,
    Reduce,
    AllGather,
    AllToAll,
    ReduceScatter,
    AllReduceShort,
    AllReduce,
}

/// Kind (8 bits), reduction (8), step (8) and number of the collective (40).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct CollectiveTag(u64);

impl CollectiveTag {
    pub(super) const fn new(kind: CollectiveKind, code: u8, number: u64) -> Self {
        Self((kind as u64) << 56 | (code as u64) << 48 | number & ((1 << 40) - 1))
    }

    pub(super) const fn step(self, step: u8) -> Self {
        Self(self.0 & !(0xff << 40) | (step as u64) << 40)
    }

    pub(super) const fn value(self) -> u64 {
        self.0
    }

    /// Returns a match of the same step of the same number, whatever collective the sender calls.
    pub(super) const fn any_kind(self) -> TagMatch {
        TagMatch::masked(self.0, (1 << 48) - 1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tag_mask_ignores_collective_and_not_step() {
        let tag = CollectiveTag::new(CollectiveKind::AllReduce, 79, 5).step(3);
        assert!(tag.any_kind().fits(CollectiveTag::new(CollectiveKind::Barrier, 0, 5).step(3).value()));
        assert!(!tag.any_kind().fits(tag.step(2).value()));
        assert!(!tag.any_kind().fits(CollectiveTag::new(CollectiveKind::AllReduce, 79, 6).step(3).value()));
        assert_ne!(tag.value(), CollectiveTag::new(CollectiveKind::AllReduce, 78, 5).step(3).value());
        assert_eq!(tag.step(4).step(3), tag);
    }
}
