//! Tags of messages, and which ones a receive takes.

/// Selects the messages that a receive takes: the first whose tag matches.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct TagMatch {
    tag: u64,
    mask: u64,
}

impl TagMatch {
    /// Any tag. A program without tags sends with tag 0 and receives with this.
    pub const ANY: Self = Self::masked(0, 0);

    /// Returns a match of one tag.
    #[must_use]
    pub const fn tag(tag: u64) -> Self {
        Self::masked(tag, u64::MAX)
    }

    /// Returns a match of all tags that are `tag` in the bits of `mask`.
    #[must_use]
    pub const fn masked(tag: u64, mask: u64) -> Self {
        Self { tag: tag & mask, mask }
    }

    /// Returns whether a tag matches.
    #[inline]
    #[must_use]
    pub const fn fits(self, tag: u64) -> bool {
        tag & self.mask == self.tag
    }
}

impl From<u64> for TagMatch {
    #[inline]
    fn from(tag: u64) -> Self {
        Self::tag(tag)
    }
}
