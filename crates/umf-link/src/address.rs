//! [`LinkAddress`]: where a process can be reached, as plain bytes.

use core::fmt;
use core::str::FromStr;

use data_encoding::{BASE64URL_NOPAD, HEXLOWER};
use serde_core::de::{Error as _, SeqAccess, Visitor};
use serde_core::{Deserialize, Deserializer, Serialize, Serializer};
use umf_ipc::Allow;
use umf_ipc::fd_socket::{Key, directory_prefix};
use umf_ipc::system::boot_id_bytes;
use umf_os::process::{pid, random};

use crate::{Error, LinkSettings, sys};

/// Bytes of an address.
pub const ADDRESS_SIZE: usize = 64;

const MAGIC: [u8; 4] = *b"UMFL";
const VERSION: u16 = 2;
const PREFIX: &str = "umfl2.";
/// Prefix of the names of the sockets of endpoints.
const SOCKET: &str = "umf-link-";
const PLACE: core::ops::Range<usize> = 6..8;
/// Values of [`PLACE`].
const ABSTRACT: u16 = 0;
const DIRECTORY: u16 = 1;
const BOOT_ID: core::ops::Range<usize> = 8..24;
const NONCE: core::ops::Range<usize> = 32..48;
const CHECKSUM: usize = ADDRESS_SIZE - 4;
/// Longest name of an endpoint.
const LONGEST_NAME: usize = 64;

/// The address of an [`crate::Endpoint`]: 64 plain bytes, which an application passes through MPI,
/// a socket, a file or argv.
///
/// A value is well-formed. Only connecting shows whether a process listens there. If the endpoint
/// is in a directory ([`LinkSettings::directory`]), a process needs the address to connect, so that
/// it is a secret: `Debug` and the name of the socket do not show it, the text and the bytes do.
/// `docs/link.md` has the layout. Its text is `umfl2.` and 86 characters of URL-safe base64.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct LinkAddress {
    bytes: [u8; ADDRESS_SIZE],
}

/// The reason why bytes or a text are not an address.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum AddressError {
    /// Wrong length.
    #[error("an address of a link has 64 bytes, not {length}: it was cut or extended; get it again")]
    Length {
        /// Bytes given.
        length: usize,
    },
    /// Not an address at all.
    #[error(
        "the bytes are no address of a link: they do not begin with \"UMFL\"; pass those of `LinkAddress::to_bytes`"
    )]
    Magic,
    /// Another version.
    #[error(
        "cannot read the address: it has version {version}, this umf reads version 2; use the same release in both processes"
    )]
    Version {
        /// Its version.
        version: u16,
    },
    /// It is damaged.
    #[error("the address is damaged: its checksum does not match; get it again")]
    Checksum,
    /// A field has a value that no endpoint writes.
    #[error("the address is not from umf: field {field} is out of range; get it again")]
    Field {
        /// The field.
        field: &'static str,
    },
    /// The text form is wrong.
    #[error(
        "not the text of an address: {why}; it is \"umfl2.\" followed by 86 characters of URL-safe base64"
    )]
    Text {
        /// What is wrong.
        why: &'static str,
    },
}

impl LinkAddress {
    fn new(boot_id: [u8; 16], pid: u32, nonce: [u8; 16], place: u16) -> Self {
        let mut bytes = [0; ADDRESS_SIZE];
        bytes[0..4].copy_from_slice(&MAGIC);
        bytes[4..6].copy_from_slice(&VERSION.to_le_bytes());
        bytes[PLACE].copy_from_slice(&place.to_le_bytes());
        bytes[BOOT_ID].copy_from_slice(&boot_id);
        bytes[24..28].copy_from_slice(&pid.to_le_bytes());
        bytes[NONCE].copy_from_slice(&nonce);
        let sum = crc32fast::hash(&bytes[..CHECKSUM]);
        bytes[CHECKSUM..].copy_from_slice(&sum.to_le_bytes());
        Self { bytes }
    }

    /// Makes an address for a new endpoint of this process.
    pub(crate) fn unique(settings: &LinkSettings) -> crate::Result<Self> {
        let nonce = random().map_err(Error::system("getrandom"))?;
        let place = if settings.directory.is_some() { DIRECTORY } else { ABSTRACT };
        Ok(Self::new(boot_id_bytes(), pid(), nonce, place))
    }

    /// Returns the address of the endpoint that a process with these settings has made with this
    /// name.
    pub(crate) fn of_name_by(settings: &LinkSettings, name: &str) -> crate::Result<Self> {
        if settings.directory.is_none() {
            return Self::of_name(name);
        }
        check_name(name, LONGEST_NAME)?;
        let key = match settings.allow {
            Allow::SameUser => Key::of_name("endpoint", &format!("{} {name}", sys::effective_uid())),
            Allow::Group | Allow::Handle => Key::of_name("endpoint", name),
        };
        Ok(Self::new(boot_id_bytes(), 0, *key.as_bytes(), DIRECTORY))
    }

    /// Returns the address of the endpoint that a process of this user has made with this name, on
    /// this machine and not in a directory ([`crate::LinkBuilder::address_of`]). A name has 1 to 64
    /// letters, digits and `._:/+=@-`.
    ///
    /// # Errors
    /// [`Error::BadName`].
    pub fn of_name(name: &str) -> crate::Result<Self> {
        check_name(name, LONGEST_NAME)?;
        // FNV-1a with 128 bits: names of one user do not collide by accident.
        let hash = |state: u128, byte: &u8| {
            (state ^ u128::from(*byte)).wrapping_mul(0x0000_0000_0100_0000_0000_0000_0000_013b)
        };
        let start = 0x6c62_272e_07bb_0142_62b8_2175_6295_c58d;
        let nonce = sys::effective_uid().to_le_bytes().iter().chain(name.as_bytes()).fold(start, hash);
        Ok(Self::new(boot_id_bytes(), 0, nonce.to_le_bytes(), ABSTRACT))
    }

    /// Decodes an address. Never panics, whatever the bytes.
    ///
    /// # Errors
    /// [`AddressError`] if the bytes are not an address.
    pub fn from_bytes(bytes: &[u8]) -> Result<Self, AddressError> {
        let Ok(bytes) = <[u8; ADDRESS_SIZE]>::try_from(bytes) else {
            return Err(AddressError::Length { length: bytes.len() });
        };
        if bytes[0..4] != MAGIC {
            return Err(AddressError::Magic);
        }
        let version = u16::from_le_bytes([bytes[4], bytes[5]]);
        if version != VERSION {
            return Err(AddressError::Version { version });
        }
        if crc32fast::hash(&bytes[..CHECKSUM]).to_le_bytes() != bytes[CHECKSUM..] {
            return Err(AddressError::Checksum);
        }
        if u16::from_le_bytes([bytes[6], bytes[7]]) > DIRECTORY {
            return Err(AddressError::Field { field: "place" });
        }
        let reserved = [&bytes[28..NONCE.start], &bytes[NONCE.end..CHECKSUM]];
        if reserved.into_iter().flatten().any(|byte| *byte != 0) {
            return Err(AddressError::Field { field: "reserved" });
        }
        Ok(Self { bytes })
    }

    /// Returns the bytes.
    #[must_use]
    pub const fn to_bytes(&self) -> [u8; ADDRESS_SIZE] {
        self.bytes
    }

    /// Returns the pid of the process that has the endpoint, in its own pid namespace; 0 if the
    /// address was made from a name.
    #[must_use]
    pub fn pid(&self) -> u32 {
        u32::from_le_bytes(core::array::from_fn(|byte| self.bytes[24 + byte]))
    }

    /// Returns the name of its abstract socket, or of its socket in the directory.
    #[must_use]
    pub fn socket(&self) -> String {
        match self.key() {
            None => format!("{SOCKET}{}", HEXLOWER.encode(&self.bytes[NONCE])),
            Some(key) => format!("{}link-{}", directory_prefix(), key.public_name()),
        }
    }

    /// Returns whether a process needs the address to connect, so that it is a secret.
    #[must_use]
    pub fn is_secret(&self) -> bool {
        self.key().is_some()
    }

    /// Returns the key that both processes prove to each other, if the endpoint is in a directory.
    pub(crate) fn key(&self) -> Option<Key> {
        let is_in_directory = self.bytes[PLACE] == DIRECTORY.to_le_bytes();
        is_in_directory.then(|| Key::new(core::array::from_fn(|byte| self.bytes[NONCE.start + byte])))
    }

    /// Returns whether the address may be of this boot of this machine. An unknown boot id is 0.
    #[must_use]
    pub fn is_of_this_boot(&self) -> bool {
        let (boot_id, own_boot_id) = (&self.bytes[BOOT_ID], boot_id_bytes());
        boot_id == [0; 16] || own_boot_id == [0; 16] || boot_id == own_boot_id
    }
}

/// Checks a name of an endpoint or a job.
pub(crate) fn check_name(name: &str, longest: usize) -> crate::Result<()> {
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b"._:/+=@-".contains(&byte);
    let why = if name.is_empty() {
        "it is empty"
    } else if name.len() > longest {
        "it is longer than 64 characters (endpoint) or 32 characters (job)"
    } else if !name.bytes().all(is_plain) {
        "it has other characters"
    } else {
        return Ok(());
    };
    Err(Error::BadName { name: name.chars().take(64).collect(), why })
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

    /// Reads the text form. White space around it is ignored, since it often travels as a line.
    fn from_str(text: &str) -> Result<Self, AddressError> {
        let wrong = |why| AddressError::Text { why };
        let body = text.trim_ascii().strip_prefix(PREFIX);
        let body = body.ok_or(wrong("it does not begin with \"umfl2.\""))?;
        let mut bytes = [0; ADDRESS_SIZE];
        if BASE64URL_NOPAD.decode_len(body.len()) != Ok(ADDRESS_SIZE) {
            return Err(wrong("its length is wrong"));
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
        LinkAddress::new([7; 16], 4711, [0xab; 16], ABSTRACT)
    }

    #[test]
    fn addresses_round_trip_as_bytes_and_text() {
        let address = sample();
        assert_eq!(LinkAddress::from_bytes(&address.to_bytes()), Ok(address));
        let text = address.to_string();
        assert_eq!(text.len(), 6 + 86);
        assert_eq!(format!(" {text}\n").parse(), Ok(address));
        assert_eq!((address.pid(), address.socket()), (4711, format!("umf-link-{}", "ab".repeat(16))));
        let json = serde_json::to_string(&address).unwrap();
        assert_eq!(serde_json::from_str::<LinkAddress>(&json).unwrap(), address);
    }

    #[test]
    fn damaged_bytes_have_specific_errors() {
        let good = sample().to_bytes();
        let with = |at: usize, is_summed: bool| {
            let mut bytes = good;
            bytes[at] ^= 1;
            if is_summed {
                let sum = crc32fast::hash(&bytes[..CHECKSUM]);
                bytes[CHECKSUM..].copy_from_slice(&sum.to_le_bytes());
            }
            LinkAddress::from_bytes(&bytes)
        };
        assert_eq!(LinkAddress::from_bytes(&good[1..]), Err(AddressError::Length { length: 63 }));
        assert_eq!(with(0, true), Err(AddressError::Magic));
        assert_eq!(with(4, true), Err(AddressError::Version { version: 3 }));
        assert_eq!(with(9, false), Err(AddressError::Checksum));
        assert_eq!(with(7, true), Err(AddressError::Field { field: "place" }));
        for at in [30, 48, 59] {
            assert_eq!(with(at, true), Err(AddressError::Field { field: "reserved" }), "{at}");
        }
        for text in ["", "umf2.AAAA", "umfl2.", "umfl2.AAAA", &format!("umfl2.{}", "!".repeat(86))] {
            assert!(matches!(text.parse::<LinkAddress>(), Err(AddressError::Text { .. })), "{text}");
        }
    }

    #[test]
    fn addresses_of_two_names_differ() {
        let [one, same, other] = ["one", "one", "other"].map(|name| LinkAddress::of_name(name).unwrap());
        assert!(one == same && one != other && one.pid() == 0);
        for bad in ["", "a b", "ä", &"x".repeat(65)] {
            assert!(matches!(LinkAddress::of_name(bad), Err(Error::BadName { .. })), "{bad}");
        }
    }

    #[test]
    fn address_in_directory_does_not_show_its_key() {
        let settings =
            |allow| LinkSettings { directory: Some("/d".into()), allow, ..LinkSettings::default() };
        let unique = LinkAddress::unique(&settings(Allow::Handle)).unwrap();
        let named = Allow::ALL.map(|allow| LinkAddress::of_name_by(&settings(allow), "one").unwrap());
        for address in named.into_iter().chain([unique]) {
            let key = HEXLOWER.encode(address.key().unwrap().as_bytes());
            let shown = format!("{address:?}");
            assert!(shown.contains(&address.socket()) && !shown.contains(&key), "{shown}");
            assert!(address.socket().starts_with(&directory_prefix()));
            assert_eq!(address.to_string().parse(), Ok(address));
        }
        assert!(named[0] != named[1] && named[1] == named[2]);
        let other = LinkAddress::of_name_by(&settings(Allow::Handle), "other").unwrap();
        assert_ne!(other.socket(), named[2].socket());
        let without = LinkAddress::of_name_by(&LinkSettings::default(), "one");
        assert_eq!((without.unwrap(), sample().key()), (LinkAddress::of_name("one").unwrap(), None));
    }

    proptest! {
        #[test]
        fn decoding_never_panics(bytes in prop::collection::vec(any::<u8>(), 0..100), is_summed in any::<bool>()) {
            let mut bytes = bytes;
            if let (true, Some((body, end))) = (is_summed, bytes.split_at_mut_checked(CHECKSUM)) {
                body[..8].copy_from_slice(b"UMFL\x02\x00\x00\x00");
                if end.len() >= 4 {
                    end[..4].copy_from_slice(&crc32fast::hash(body).to_le_bytes());
                }
            }
            if let Ok(address) = LinkAddress::from_bytes(&bytes) {
                prop_assert!(address.key().is_some() || address.socket().starts_with(SOCKET));
                prop_assert_eq!(address.to_string().parse(), Ok(address));
            }
        }
    }
}
