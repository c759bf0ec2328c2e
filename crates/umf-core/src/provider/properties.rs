//! What else a provider tells about its regions.

use crate::{Region, Result};

/// A property that can be asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Property {
    /// A number that differs for each allocation, even at the same address.
    AllocationId,
    /// The NUMA node or device ordinal that the memory lies on.
    Node,
    /// The native context handle (a `ze_context_handle_t`, a `CUcontext`).
    Context,
    /// The native device handle.
    Device,
    /// Size in bytes of a cache line of the processor or device that works on this memory.
    CacheLine,
}

/// The value of a property.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum PropertyValue {
    /// A number.
    Number(u64),
    /// A native handle, as a number that is not to be dereferenced.
    Handle(usize),
}

/// Tells more about regions than base and size.
pub trait Properties: Send + Sync {
    /// The property of `region`.
    ///
    /// # Errors
    /// [`crate::Error::NotSupported`] if this provider does not know the property,
    /// [`crate::Error::ForeignAddress`] if the region is not one of its own.
    fn property(&self, region: &Region, property: Property) -> Result<PropertyValue>;
}
