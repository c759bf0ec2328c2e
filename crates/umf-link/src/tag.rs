//! Tags of messages, and which ones a receive takes.

/// What a receive takes: the first message that came, of those whose tag fits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct TagMatch {
    tag: u64,
    mask: u64,
}

impl TagMatch {
    /// Whatever comes first. Who uses no tags sends with tag 0 and receives with this.
    pub const ANY: Self = Self { tag: 0, mask: 0 };

    /// Messages with this tag.
    #[must_use]
    pub const fn tag(tag: u64) -> Self {
        Self { tag, mask: u64::MAX }
    }

    /// Messages whose tag is `tag` in the bits of `mask`.
    #[must_use]
    pub const fn masked(tag: u64, mask: u64) -> Self {
        Self { tag: tag & mask, mask }
    }

    /// Whether it takes messages with this tag.
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
