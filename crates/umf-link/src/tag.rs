//! Tags of messages, and which ones a receive takes.

/// Messages of one context are never taken for those of another one, whatever their tags.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub(crate) enum Context {
    /// Of the application.
    #[default]
    Messages,
    Collectives,
}

/// What a receive takes: the first message that came, of those whose tag fits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct TagMatch {
    tag: u64,
    mask: u64,
    context: Context,
}

impl TagMatch {
    /// Whatever comes first. Who uses no tags sends with tag 0 and receives with this.
    pub const ANY: Self = Self::masked(0, 0);

    /// Messages with this tag.
    #[must_use]
    pub const fn tag(tag: u64) -> Self {
        Self::masked(tag, u64::MAX)
    }

    /// Messages whose tag is `tag` in the bits of `mask`.
    #[must_use]
    pub const fn masked(tag: u64, mask: u64) -> Self {
        Self { tag: tag & mask, mask, context: Context::Messages }
    }

    /// Whether it takes messages with this tag.
    #[inline]
    #[must_use]
    pub const fn fits(self, tag: u64) -> bool {
        tag & self.mask == self.tag
    }

    pub(crate) const fn within(self, context: Context) -> Self {
        Self { context, ..self }
    }

    #[inline]
    pub(crate) fn takes(self, tag: u64, context: Context) -> bool {
        self.fits(tag) && self.context == context
    }
}

impl From<u64> for TagMatch {
    #[inline]
    fn from(tag: u64) -> Self {
        Self::tag(tag)
    }
}
