//! [`ProviderRef`]: how pools keep their provider.

use core::fmt;
use core::ops::Deref;
use std::sync::Arc;

use crate::Provider;

/// A provider that is kept alive by a reference count, or for ever.
///
/// The second form is for a pool that is the global allocator: it is made before anything can be
/// allocated.
#[derive(Clone)]
pub enum ProviderRef {
    /// Reference counted.
    Shared(Arc<dyn Provider>),
    /// Static.
    Static(&'static dyn Provider),
}

impl ProviderRef {
    /// Returns whether both are the same provider object.
    #[must_use]
    pub fn is(&self, other: &dyn Provider) -> bool {
        core::ptr::addr_eq(core::ptr::from_ref(&**self), core::ptr::from_ref(other))
    }
}

impl Deref for ProviderRef {
    type Target = dyn Provider;

    fn deref(&self) -> &Self::Target {
        match self {
            Self::Shared(provider) => &**provider,
            Self::Static(provider) => *provider,
        }
    }
}

impl fmt::Debug for ProviderRef {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} provider {:?}", self.kind(), self.name())
    }
}

impl<P: Provider + 'static> From<Arc<P>> for ProviderRef {
    fn from(provider: Arc<P>) -> Self {
        Self::Shared(provider)
    }
}

impl From<Arc<dyn Provider>> for ProviderRef {
    fn from(provider: Arc<dyn Provider>) -> Self {
        Self::Shared(provider)
    }
}
