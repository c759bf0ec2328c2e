//! [`ProviderKind`], [`MemoryKind`] and [`Visibility`]: the kinds of providers and memory.

use core::fmt;

/// The name of a kind of provider: 1 to 16 bytes of `a-z`, `0-9`, `-` and `_`.
///
/// Handles contain it, so that an importer finds the driver that opens them. `umf.toml` uses it
/// too.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ProviderKind {
    bytes: [u8; Self::MAX],
}

impl ProviderKind {
    /// The longest name, in bytes.
    pub const MAX: usize = 16;

    /// Host memory.
    pub const HOST: Self = match Self::new("host") {
        Some(kind) => kind,
        None => panic!("a valid name"),
    };

    /// Returns the kind with this name, or `None` if the name is invalid.
    #[must_use]
    pub const fn new(name: &str) -> Option<Self> {
        Self::from_slice(name.as_bytes())
    }

    const fn from_slice(name: &[u8]) -> Option<Self> {
        if name.is_empty() || name.len() > Self::MAX {
            return None;
        }
        let mut bytes = [0; Self::MAX];
        let mut i = 0;
        while i < name.len() {
            if !matches!(name[i], b'a'..=b'z' | b'0'..=b'9' | b'-' | b'_') {
                return None;
            }
            bytes[i] = name[i];
            i += 1;
        }
        Some(Self { bytes })
    }

    /// Returns the kind of which [`ProviderKind::to_bytes`] returned these bytes; `None` if they
    /// are invalid.
    #[must_use]
    pub fn from_bytes(bytes: [u8; Self::MAX]) -> Option<Self> {
        // The common case, on a hot path.
        if bytes == Self::HOST.bytes {
            return Some(Self::HOST);
        }
        let len = bytes.iter().position(|&byte| byte == 0).unwrap_or(Self::MAX);
        let padding_is_zero = bytes[len..].iter().all(|&byte| byte == 0);
        Self::from_slice(&bytes[..len]).filter(|_| padding_is_zero)
    }

    /// Returns the name, padded with zeros to 16 bytes.
    #[must_use]
    pub const fn to_bytes(self) -> [u8; Self::MAX] {
        self.bytes
    }

    /// Returns the name.
    #[must_use]
    pub fn as_str(&self) -> &str {
        let len = self.bytes.iter().position(|&byte| byte == 0).unwrap_or(Self::MAX);
        str::from_utf8(&self.bytes[..len]).unwrap_or_default()
    }
}

impl fmt::Debug for ProviderKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

impl fmt::Display for ProviderKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// The kind of memory, which determines whether CPU and devices may access it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum MemoryKind {
    /// Memory of the host.
    Host,
    /// Memory of a device, which the CPU must not access.
    Device,
    /// Memory that migrates between host and device; the CPU may access it.
    Managed,
}

impl MemoryKind {
    /// Returns whether the CPU may read and write the memory.
    #[must_use]
    pub const fn is_host_accessible(self) -> bool {
        matches!(self, Self::Host | Self::Managed)
    }
}

crate::words! {
    /// Whether a forked child shares memory with its parent.
    pub enum Visibility {
        /// A child gets a copy. Pools of such memory work in both processes.
        Private = "private",
        /// Parent and child see the same bytes. Pools of such memory are frozen in the child,
        /// because both processes would hand out the same blocks.
        Shared = "shared",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn invalid_names_and_padding_are_rejected() {
        assert_eq!(ProviderKind::new("level-zero").unwrap().as_str(), "level-zero");
        for bad in ["", "Host", "a b", "12345678901234567", "ä"] {
            assert!(ProviderKind::new(bad).is_none(), "{bad}");
        }
        let kind = ProviderKind::HOST;
        assert_eq!(ProviderKind::from_bytes(kind.to_bytes()), Some(kind));
        let mut bytes = kind.to_bytes();
        bytes[9] = b'x';
        assert_eq!(ProviderKind::from_bytes(bytes), None);
        assert_eq!(ProviderKind::from_bytes([0; 16]), None);
    }
}
