//! What a provider is made with.

use std::fmt;
use std::str::FromStr;

use umf_core::{Error, MemoryKind};

/// The kinds of CUDA memory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum CudaMemory {
    /// Memory of a device, `cuMemAlloc`. Other processes open it by the driver's 64-byte handle: each region by itself, once in a
    /// process.
    Device,
    /// Memory of the host that devices reach at full speed, `cuMemHostAlloc`. Not for other processes.
    Host,
    /// Memory that moves between host and devices as it is used, `cuMemAllocManaged`. Not for other processes.
    Managed,
    /// Memory of a device that is mapped into one large reserved range, `cuMemCreate` and `cuMemMap`. Other processes open it by a
    /// file descriptor, as they do memory of the host.
    #[default]
    Virtual,
}

impl CudaMemory {
    /// All kinds, by the names that settings have for them.
    pub const NAMES: [(&'static str, Self); 4] = [
        ("virtual", Self::Virtual),
        ("device", Self::Device),
        ("host", Self::Host),
        ("managed", Self::Managed),
    ];

    /// Who may touch it.
    #[must_use]
    pub const fn memory_kind(self) -> MemoryKind {
        match self {
            Self::Device | Self::Virtual => MemoryKind::Device,
            Self::Host => MemoryKind::Host,
            Self::Managed => MemoryKind::Managed,
        }
    }
}

impl fmt::Display for CudaMemory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let named = Self::NAMES.iter().find(|(_, kind)| kind == self);
        f.write_str(named.map_or("virtual", |(name, _)| name))
    }
}

impl FromStr for CudaMemory {
    type Err = Error;

    fn from_str(name: &str) -> Result<Self, Error> {
        let found = Self::NAMES.iter().find(|(known, _)| *known == name).map(|(_, kind)| *kind);
        found
            .ok_or(Error::InvalidArgument { what: "memory", why: "must be virtual, device, host or managed" })
    }
}
