//! [`ProxySettings`]: what can be set.

/// The knobs of a [`crate::ProxyPool`].
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct ProxySettings {
    /// The name of the pool, for people. Default: `proxy`.
    pub name: String,
    /// Bytes that the pool may hold; 0 is unlimited. Default: 0.
    pub memory_limit: u64,
}

impl Default for ProxySettings {
    fn default() -> Self {
        Self { name: "proxy".to_owned(), memory_limit: 0 }
    }
}

impl ProxySettings {
    /// Sets the name.
    #[must_use]
    pub fn name(mut self, name: impl Into<String>) -> Self {
        self.name = name.into();
        self
    }

    /// Sets the most bytes that the pool may hold; 0 is unlimited.
    #[must_use]
    pub const fn memory_limit(mut self, bytes: u64) -> Self {
        self.memory_limit = bytes;
        self
    }
}
