//! [`RemoteKey`]: the key by which a peer reaches a registered range, as plain bytes.

use core::fmt;

use crate::layout::RANGES;

/// Bytes of a key.
pub const KEY_SIZE: usize = 48;

const MAGIC: [u8; 4] = *b"UMFR";
const VERSION: u8 = 2;
const CHECKSUM: usize = KEY_SIZE - 4;

/// The access of peers to a registered range.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum RemoteAccess {
    /// Read it: [`crate::Link::get`].
    Get = 1,
    /// Write it: [`crate::Link::put`].
    Put = 2,
    /// Both.
    GetPut = 3,
}

impl RemoteAccess {
    pub(crate) const fn from_bits(bits: u64) -> Option<Self> {
        match bits {
            1 => Some(Self::Get),
            2 => Some(Self::Put),
            3 => Some(Self::GetPut),
            _ => None,
        }
    }

    /// Returns whether the range may be read.
    #[must_use]
    pub const fn allows_get(self) -> bool {
        self as u8 & Self::Get as u8 != 0
    }

    /// Returns whether the range may be written.
    #[must_use]
    pub const fn allows_put(self) -> bool {
        self as u8 & Self::Put as u8 != 0
    }
}

/// A key of a registered range: 48 plain bytes, which the owner passes to its peers in any way. It
/// grants one access to one range.
///
/// It names the range and has no address: the owner publishes the location to its peers only. The
/// key expires with the registration ([`crate::Registration`]). `docs/link.md` has the layout.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct RemoteKey {
    pub(crate) access: RemoteAccess,
    pub(crate) slot: usize,
    pub(crate) generation: u64,
    pub(crate) length: u64,
    /// The nonce of the catalog that has the range.
    pub(crate) nonce: u128,
}

/// The reason why bytes are not a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum KeyError {
    /// Wrong length.
    #[error("a key of a registered range has 48 bytes, not {length}: it was cut or extended; get it again")]
    Length {
        /// Bytes given.
        length: usize,
    },
    /// Not a key at all.
    #[error(
        "the bytes are no key of a registered range: they do not begin with \"UMFR\"; pass those of `RemoteKey::to_bytes`"
    )]
    Magic,
    /// Another version.
    #[error(
        "cannot read the key: it has version {version}, this umf reads version 2; use the same release in both processes"
    )]
    Version {
        /// Its version.
        version: u8,
    },
    /// It is damaged.
    #[error("the key is damaged: its checksum does not match; ask its owner for it again")]
    Checksum,
    /// A field has a value that no process writes.
    #[error("the key is not from umf: field {field} is out of range; get it again")]
    Field {
        /// The field.
        field: &'static str,
    },
}

impl RemoteKey {
    /// Decodes a key. Never panics, whatever the bytes.
    ///
    /// # Errors
    /// [`KeyError`] if the bytes are not a key.
    pub fn from_bytes(bytes: &[u8]) -> Result<Self, KeyError> {
        let Ok(bytes) = <&[u8; KEY_SIZE]>::try_from(bytes) else {
            return Err(KeyError::Length { length: bytes.len() });
        };
        if bytes[0..4] != MAGIC {
            return Err(KeyError::Magic);
        }
        if bytes[4] != VERSION {
            return Err(KeyError::Version { version: bytes[4] });
        }
        if crc32fast::hash(&bytes[..CHECKSUM]).to_le_bytes() != bytes[CHECKSUM..] {
            return Err(KeyError::Checksum);
        }
        let field = |field| KeyError::Field { field };
        let long = |at: usize| u64::from_le_bytes(core::array::from_fn(|index| bytes[at + index]));
        let access = RemoteAccess::from_bits(bytes[5].into()).ok_or(field("access"))?;
        let slot = usize::from(u16::from_le_bytes([bytes[6], bytes[7]]));
        let (generation, length) = (long(8), long(16));
        let nonce = u128::from(long(24)) | u128::from(long(32)) << 64;
        match (slot, generation, usize::try_from(length), &bytes[40..CHECKSUM]) {
            (RANGES.., ..) => Err(field("slot")),
            (_, 0, ..) => Err(field("generation")),
            (_, _, Err(_), _) => Err(field("length")),
            (_, _, _, [0, 0, 0, 0]) => Ok(Self { access, slot, generation, length, nonce }),
            _ => Err(field("reserved")),
        }
    }

    /// Returns the bytes.
    #[must_use]
    pub fn to_bytes(&self) -> [u8; KEY_SIZE] {
        let mut bytes = [0; KEY_SIZE];
        bytes[0..4].copy_from_slice(&MAGIC);
        bytes[4..6].copy_from_slice(&[VERSION, self.access as u8]);
        bytes[6..8].copy_from_slice(&(self.slot as u16).to_le_bytes());
        bytes[8..16].copy_from_slice(&self.generation.to_le_bytes());
        bytes[16..24].copy_from_slice(&self.length.to_le_bytes());
        bytes[24..40].copy_from_slice(&self.nonce.to_le_bytes());
        let sum = crc32fast::hash(&bytes[..CHECKSUM]);
        bytes[CHECKSUM..].copy_from_slice(&sum.to_le_bytes());
        bytes
    }

    /// Returns the length of the range in bytes.
    #[must_use]
    #[expect(clippy::len_without_is_empty, reason = "a length of a range, not of a container")]
    pub const fn len(&self) -> usize {
        // `from_bytes` has checked that it fits.
        self.length as usize
    }

    /// Returns the access that the key grants.
    #[must_use]
    pub const fn access(&self) -> RemoteAccess {
        self.access
    }
}

impl fmt::Debug for RemoteKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RemoteKey")
            .field("access", &self.access)
            .field("length", &self.length)
            .field("slot", &self.slot)
            .field("generation", &self.generation)
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn sample() -> RemoteKey {
        RemoteKey {
            access: RemoteAccess::Put,
            slot: RANGES - 1,
            generation: 1 << 60 | 5,
            length: 1 << 33,
            nonce: 7 << 90 | 1,
        }
    }

    #[test]
    fn keys_round_trip() {
        let key = sample();
        assert_eq!(RemoteKey::from_bytes(&key.to_bytes()), Ok(key));
        assert_eq!((key.len(), key.access()), (1 << 33, RemoteAccess::Put));
    }

    #[test]
    fn damaged_bytes_have_specific_errors() {
        let good = sample().to_bytes();
        let with = |at: usize, value: u8, is_summed: bool| {
            let mut bytes = good;
            bytes[at] = value;
            if is_summed {
                let sum = crc32fast::hash(&bytes[..CHECKSUM]);
                bytes[CHECKSUM..].copy_from_slice(&sum.to_le_bytes());
            }
            RemoteKey::from_bytes(&bytes)
        };
        assert_eq!(RemoteKey::from_bytes(&good[1..]), Err(KeyError::Length { length: 47 }));
        assert_eq!(with(0, 0, true), Err(KeyError::Magic));
        assert_eq!(with(4, 1, true), Err(KeyError::Version { version: 1 }));
        assert_eq!(with(9, 1, false), Err(KeyError::Checksum));
        for (at, value, field) in [(5, 0, "access"), (5, 4, "access"), (7, 128, "slot"), (43, 1, "reserved")]
        {
            assert_eq!(with(at, value, true), Err(KeyError::Field { field }), "{at} {value}");
        }
        let zero = RemoteKey { generation: 0, ..sample() }.to_bytes();
        assert_eq!(RemoteKey::from_bytes(&zero), Err(KeyError::Field { field: "generation" }));
    }

    proptest! {
        #[test]
        fn decoding_never_panics(bytes in prop::collection::vec(any::<u8>(), 0..60), is_summed in any::<bool>()) {
            let mut bytes = bytes;
            if is_summed && bytes.len() >= KEY_SIZE {
                bytes.truncate(KEY_SIZE);
                bytes[..5].copy_from_slice(b"UMFR\x02");
                let sum = crc32fast::hash(&bytes[..CHECKSUM]);
                bytes[CHECKSUM..].copy_from_slice(&sum.to_le_bytes());
            }
            if let Ok(key) = RemoteKey::from_bytes(&bytes) {
                prop_assert_eq!(&key.to_bytes()[..], &bytes[..]);
                prop_assert!(key.slot < RANGES);
            }
        }
    }
}
