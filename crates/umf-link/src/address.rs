//! [`LinkAddress`]: where a process can be reached, as plain bytes.

use core::fmt;
use core::str::FromStr;

use data_encoding::BASE64URL_NOPAD;
use serde_core::de::{Error as _, SeqAccess, Visitor};
use serde_core::{Deserialize, Deserializer, Serialize, Serializer};

/// Bytes of an address.
pub const ADDRESS_SIZE: usize = 128;

const MAGIC: [u8; 4] = *b"UMFL";
const VERSION: u16 = 1;
const PREFIX: &str = "umfl1.";
/// What the names of the sockets of endpoints begin with.
pub(crate) const SOCKET: &str = "umf-link-";
const NAME: usize = 32;
const LONGEST_NAME: usize = 80;
const CHECKSUM: usize = ADDRESS_SIZE - 4;

/// Where an [`crate::Endpoint`] can be reached: 128 plain bytes, to be copied through MPI, a socket, a file or argv.
///
/// One that exists has been decoded; that says nothing about whether anybody is there, which connecting finds out.
/// `docs/link.md` has the layout. As text it is `umfl1.` and 171 characters of URL-safe base64.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct LinkAddress {
    bytes: [u8; ADDRESS_SIZE],
}

/// Why bytes are not an address.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum AddressError {
    /// Wrong length.
    #[error("an address of a link has 128 bytes, not {length}: it was cut, or something was added")]
    Length {
        /// Bytes given.
        length: usize,
    },
    /// Not an address at all.
    #[error("these bytes do not begin with \"UMFL\": this is no address of a link")]
    Magic,
    /// Another version.
    #[error(
        "the address has version {version}, this umf reads version 1: let both processes use the same release"
    )]
    Version {
        /// Its version.
        version: u16,
    },
    /// It is damaged.
    #[error("the address is damaged: its checksum does not match")]
    Checksum,
    /// A field has a value that no endpoint writes.
    #[error("the address is not from umf: field {field} is out of range")]
    Field {
        /// Which.
        field: &'static str,
    },
    /// The text form is wrong.
    #[error(
        "not the text of an address: {why}; it is \"umfl1.\" followed by 171 characters of URL-safe base64"
    )]
    Text {
        /// What is wrong.
        why: &'static str,
    },
}

/// What a name of an endpoint may be made of.
pub(crate) fn is_plain(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || b"._:/+=@-".contains(&byte)
}

impl LinkAddress {
    /// Of an endpoint of this process, or of one that is known by its name alone (`pid` 0).
    pub(crate) fn new(boot_id: [u8; 16], pid: u32, socket: &str) -> Self {
        let mut bytes = [0; ADDRESS_SIZE];
        bytes[0..4].copy_from_slice(&MAGIC);
        bytes[4..6].copy_from_slice(&VERSION.to_le_bytes());
        // Names are checked before: `SOCKET`, a user's number and 48 characters.
        let length = socket.len().min(LONGEST_NAME);
        bytes[6..8].copy_from_slice(&(length as u16).to_le_bytes());
        bytes[8..24].copy_from_slice(&boot_id);
        bytes[24..28].copy_from_slice(&pid.to_le_bytes());
        bytes[NAME..NAME + length].copy_from_slice(&socket.as_bytes()[..length]);
        let sum = crc32fast::hash(&bytes[..CHECKSUM]);
        bytes[CHECKSUM..].copy_from_slice(&sum.to_le_bytes());
        Self { bytes }
    }

    /// Decodes an address. Never panics, whatever the bytes.
    ///
    /// # Errors
    /// [`AddressError`], with what is wrong.
    pub fn from_bytes(bytes: &[u8]) -> Result<Self, AddressError> {
        let Ok(bytes) = <[u8; ADDRESS_SIZE]>::try_from(bytes) else {
            return Err(AddressError::Length { length: bytes.len() });
        };
        let short = |at: usize| u16::from_le_bytes([bytes[at], bytes[at + 1]]);
        if bytes[0..4] != MAGIC {
            return Err(AddressError::Magic);
        }
        if short(4) != VERSION {
            return Err(AddressError::Version { version: short(4) });
        }
        if crc32fast::hash(&bytes[..CHECKSUM]).to_le_bytes() != bytes[CHECKSUM..] {
            return Err(AddressError::Checksum);
        }
        let length = usize::from(short(6));
        let is_name = length <= LONGEST_NAME && {
            let (name, rest) = bytes[NAME..CHECKSUM].split_at(length);
            name.starts_with(SOCKET.as_bytes())
                && name.iter().all(|&byte| is_plain(byte))
                && rest.iter().all(|&byte| byte == 0)
        };
        if !is_name {
            return Err(AddressError::Field { field: "name" });
        }
        if bytes[28..NAME].iter().any(|&byte| byte != 0) {
            return Err(AddressError::Field { field: "reserved" });
        }
        Ok(Self { bytes })
    }

    /// The bytes.
    #[must_use]
    pub const fn to_bytes(&self) -> [u8; ADDRESS_SIZE] {
        self.bytes
    }

    /// The process that has the endpoint, in its own pid namespace; 0 if the address was made of a name.
    #[must_use]
    pub fn pid(&self) -> u32 {
        u32::from_le_bytes([self.bytes[24], self.bytes[25], self.bytes[26], self.bytes[27]])
    }

    /// The name of its abstract socket.
    #[must_use]
    pub fn socket(&self) -> &str {
        let length = usize::from(u16::from_le_bytes([self.bytes[6], self.bytes[7]])).min(LONGEST_NAME);
        core::str::from_utf8(&self.bytes[NAME..NAME + length]).unwrap_or_default()
    }

    pub(crate) fn boot_id(&self) -> &[u8] {
        &self.bytes[8..24]
    }
}

impl fmt::Display for LinkAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{PREFIX}{}", BASE64URL_NOPAD.encode_display(&self.bytes))
    }
}

impl fmt::Debug for LinkAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LinkAddress").field("socket", &self.socket()).field("pid", &self.pid()).finish()
    }
}

impl FromStr for LinkAddress {
    type Err = AddressError;

    /// Reads the text form. White space around it is passed over, since it often travels as a line.
    fn from_str(text: &str) -> Result<Self, AddressError> {
        let wrong = |why| AddressError::Text { why };
        let body = text.trim_ascii().strip_prefix(PREFIX);
        let body = body.ok_or(wrong("it does not begin with \"umfl1.\""))?;
        let mut bytes = [0; ADDRESS_SIZE];
        if BASE64URL_NOPAD.decode_len(body.len()) != Ok(ADDRESS_SIZE) {
            return Err(wrong("its length is wrong, it was cut or something was added"));
        }
        BASE64URL_NOPAD
            .decode_mut(body.as_bytes(), &mut bytes)
            .map_err(|_| wrong("it contains characters outside A-Z a-z 0-9 - _"))?;
        Self::from_bytes(&bytes)
    }
}

impl Serialize for LinkAddress {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        if serializer.is_human_readable() {
            serializer.collect_str(self)
        } else {
            serializer.serialize_bytes(&self.bytes)
        }
    }
}

impl<'de> Deserialize<'de> for LinkAddress {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        if deserializer.is_human_readable() {
            deserializer.deserialize_str(Form)
        } else {
            deserializer.deserialize_bytes(Form)
        }
    }
}

struct Form;

impl<'de> Visitor<'de> for Form {
    type Value = LinkAddress;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an address of a link")
    }

    fn visit_str<E: serde_core::de::Error>(self, text: &str) -> Result<LinkAddress, E> {
        text.parse().map_err(E::custom)
    }

    fn visit_bytes<E: serde_core::de::Error>(self, bytes: &[u8]) -> Result<LinkAddress, E> {
        LinkAddress::from_bytes(bytes).map_err(E::custom)
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut sequence: A) -> Result<LinkAddress, A::Error> {
        let mut bytes = [0; ADDRESS_SIZE];
        for (index, byte) in bytes.iter_mut().enumerate() {
            *byte = sequence.next_element()?.ok_or_else(|| A::Error::invalid_length(index, &self))?;
        }
        LinkAddress::from_bytes(&bytes).map_err(A::Error::custom)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn sample() -> LinkAddress {
        LinkAddress::new([7; 16], 4711, "umf-link-0123456789abcdef")
    }

    #[test]
    fn it_travels_as_bytes_and_as_text() {
        let address = sample();
        assert_eq!(LinkAddress::from_bytes(&address.to_bytes()), Ok(address));
        let text = address.to_string();
        assert_eq!(text.len(), 6 + 171);
        assert_eq!(format!(" {text}\n").parse(), Ok(address));
        assert_eq!((address.pid(), address.socket()), (4711, "umf-link-0123456789abcdef"));
        let json = serde_json::to_string(&address).unwrap();
        assert_eq!(serde_json::from_str::<LinkAddress>(&json).unwrap(), address);
    }

    #[test]
    fn each_kind_of_damage_has_its_error() {
        let good = sample().to_bytes();
        let with = |change: &dyn Fn(&mut [u8; ADDRESS_SIZE]), summed: bool| {
            let mut bytes = good;
            change(&mut bytes);
            if summed {
                let sum = crc32fast::hash(&bytes[..CHECKSUM]);
                bytes[CHECKSUM..].copy_from_slice(&sum.to_le_bytes());
            }
            LinkAddress::from_bytes(&bytes)
        };
        assert_eq!(LinkAddress::from_bytes(&good[1..]), Err(AddressError::Length { length: 127 }));
        assert_eq!(with(&|bytes| bytes[0] = 0, true), Err(AddressError::Magic));
        assert_eq!(with(&|bytes| bytes[4] = 2, true), Err(AddressError::Version { version: 2 }));
        assert_eq!(with(&|bytes| bytes[9] ^= 1, false), Err(AddressError::Checksum));
        for (at, value) in [(6, 0), (6, 81), (7, 255), (NAME, 0), (NAME + 1, b' '), (NAME + 60, 1)] {
            let damaged = with(&|bytes| bytes[at] = value, true);
            assert_eq!(damaged, Err(AddressError::Field { field: "name" }), "{at} {value}");
        }
        assert_eq!(with(&|bytes| bytes[30] = 1, true), Err(AddressError::Field { field: "reserved" }));
        for text in ["", "umf1.AAAA", "umfl1.", "umfl1.AAAA", &format!("umfl1.{}", "!".repeat(171))] {
            assert!(matches!(text.parse::<LinkAddress>(), Err(AddressError::Text { .. })), "{text}");
        }
    }

    proptest! {
        #[test]
        fn whatever_the_bytes(bytes in prop::collection::vec(any::<u8>(), 0..200), sum in any::<bool>()) {
            let mut bytes = bytes;
            if let (true, Some((body, end))) = (sum, bytes.split_at_mut_checked(CHECKSUM)) {
                body[..6].copy_from_slice(b"UMFL\x01\x00");
                if end.len() >= 4 {
                    end[..4].copy_from_slice(&crc32fast::hash(body).to_le_bytes());
                }
            }
            if let Ok(address) = LinkAddress::from_bytes(&bytes) {
                prop_assert!(address.socket().starts_with(SOCKET));
                prop_assert_eq!(address.to_string().parse(), Ok(address));
            }
        }
    }
}
