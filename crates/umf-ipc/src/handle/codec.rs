//! Encodings of a handle: its bytes, with the offset of each field (`docs/handle.md` has the table)
//! and the checks of a decoded handle; and its text form, with serde.

use core::fmt;
use core::ops::Range;
use core::str::FromStr;

use data_encoding::BASE64URL_NOPAD;
use serde_core::de::{Error as _, SeqAccess, Visitor};
use serde_core::{Deserialize, Deserializer, Serialize, Serializer};
use umf_core::{NativeBytes, ProviderKind};

use super::{DecodeError, Handle};
use crate::identity::{BootHalf, Nonce};
use crate::transfer::socket::proof::Key;

/// Size of a handle in bytes.
pub const SIZE: usize = 256;

/// `"UMFH"`.
pub(crate) const MAGIC_VALUE: [u8; 4] = *b"UMFH";
/// The version that this code reads and writes.
pub(crate) const VERSION_VALUE: u16 = 2;

pub(crate) const MAGIC: Range<usize> = 0..4;
pub(crate) const VERSION: Range<usize> = 4..6;
pub(crate) const FLAGS: Range<usize> = 6..8;
pub(crate) const BOOT_ID: Range<usize> = 8..16;
pub(crate) const NONCE: Range<usize> = 16..32;
pub(crate) const KEY: Range<usize> = 32..48;
pub(crate) const PID: Range<usize> = 48..52;
pub(crate) const PID_NAMESPACE: Range<usize> = 52..56;
pub(crate) const PIDFS_INODE: Range<usize> = 56..64;
pub(crate) const LEDGER_FD: Range<usize> = 64..68;
pub(crate) const SLOT: Range<usize> = 68..72;
pub(crate) const GENERATION: Range<usize> = 72..80;
pub(crate) const DATA_FD: Range<usize> = 80..84;
pub(crate) const DATA_DEVICE: Range<usize> = 84..88;
pub(crate) const DATA_INODE: Range<usize> = 88..96;
pub(crate) const DATA_OFFSET: Range<usize> = 96..104;
pub(crate) const REGION_ID: Range<usize> = 104..112;
pub(crate) const REGION_SIZE: Range<usize> = 112..120;
pub(crate) const BLOCK_OFFSET: Range<usize> = 120..128;
pub(crate) const BLOCK_LENGTH: Range<usize> = 128..136;
pub(crate) const REQUESTED: Range<usize> = 136..144;
pub(crate) const PROVIDER_KIND: Range<usize> = 144..160;
pub(crate) const ALLOCATION_ID: Range<usize> = 160..168;
// 168..176: device. Zeros so far: see docs/handle.md.
pub(crate) const TICKET_NUMBER: Range<usize> = 176..182;
pub(crate) const TICKET_ROW: Range<usize> = 182..184;
pub(crate) const TICKET_WORD: Range<usize> = 184..186;
pub(crate) const NATIVE_LENGTH: usize = 186;
pub(crate) const RESERVED: Range<usize> = 187..188;
pub(crate) const NATIVE: Range<usize> = 188..252;
pub(crate) const CHECKSUM: Range<usize> = 252..256;
/// The CRC-32 of any bytes followed by their CRC-32 in little-endian order.
pub(crate) const CHECKSUM_OF_ALL: u32 = 0x2144_df1c;

/// The region has a file of its own, so that an importer can access no other memory.
pub(crate) const FLAG_ISOLATED: u16 = 1;
/// The kernel refuses writable imports.
pub(crate) const FLAG_READ_ONLY: u16 = 1 << 1;
/// The producer answers on its socket.
pub(crate) const FLAG_SOCKET: u16 = 1 << 2;
/// The export is a whole region and not a block.
pub(crate) const FLAG_REGION: u16 = 1 << 3;
/// The data fd can be opened through `/proc/<pid>/fd/<n>`, because it is a plain file. Otherwise a
/// device may import the memory.
pub(crate) const FLAG_PROCFS: u16 = 1 << 4;
/// The producer answers on its socket in a directory.
pub(crate) const FLAG_DIRECTORY: u16 = 1 << 5;
pub(crate) const FLAGS_KNOWN: u16 =
    FLAG_ISOLATED | FLAG_READ_ONLY | FLAG_SOCKET | FLAG_REGION | FLAG_PROCFS | FLAG_DIRECTORY;

/// Names a ticket: a word in the producer's lease table, and the number that it has until all
/// readers have claimed it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Ticket {
    /// 1 to 2^48 - 1.
    pub number: u64,
    pub row: u16,
    pub word: u16,
}

/// The fields of a handle, which the exporter encodes.
#[derive(Clone, Debug)]
pub(crate) struct Fields {
    pub flags: u16,
    pub boot: BootHalf,
    pub nonce: Nonce,
    pub key: Key,
    pub pid: u32,
    pub ledger_fd: i32,
    pub pid_namespace: u64,
    pub pidfs_inode: u64,
    pub data_fd: i32,
    pub slot: u32,
    pub generation: u64,
    pub data_device: u64,
    pub data_inode: u64,
    pub data_offset: u64,
    pub region_size: u64,
    pub region_id: u64,
    pub offset: u64,
    pub length: u64,
    pub requested: u64,
    pub kind: ProviderKind,
    pub allocation_id: u64,
    pub native: NativeBytes,
}

impl Fields {
    pub(crate) fn encode(&self) -> Handle {
        let mut bytes = [0; SIZE];
        let mut put = |range: Range<usize>, value: &[u8]| {
            bytes[range].copy_from_slice(value);
        };
        put(MAGIC, &MAGIC_VALUE);
        put(VERSION, &VERSION_VALUE.to_le_bytes());
        put(FLAGS, &self.flags.to_le_bytes());
        put(BOOT_ID, &self.boot.0.to_le_bytes());
        put(NONCE, self.nonce.as_bytes());
        put(KEY, self.key.as_bytes());
        put(PID, &self.pid.to_le_bytes());
        put(LEDGER_FD, &self.ledger_fd.to_le_bytes());
        put(PID_NAMESPACE, &namespace_number(self.pid_namespace).to_le_bytes());
        put(PIDFS_INODE, &self.pidfs_inode.to_le_bytes());
        put(DATA_FD, &self.data_fd.to_le_bytes());
        put(SLOT, &self.slot.to_le_bytes());
        put(GENERATION, &self.generation.to_le_bytes());
        put(DATA_DEVICE, &device_number(self.data_device).to_le_bytes());
        put(DATA_INODE, &self.data_inode.to_le_bytes());
        put(DATA_OFFSET, &self.data_offset.to_le_bytes());
        put(REGION_SIZE, &self.region_size.to_le_bytes());
        put(REGION_ID, &self.region_id.to_le_bytes());
        put(BLOCK_OFFSET, &self.offset.to_le_bytes());
        put(BLOCK_LENGTH, &self.length.to_le_bytes());
        put(REQUESTED, &self.requested.to_le_bytes());
        put(PROVIDER_KIND, &self.kind.to_bytes());
        put(ALLOCATION_ID, &self.allocation_id.to_le_bytes());
        let native = self.native.as_slice();
        put(NATIVE.start..NATIVE.start + native.len(), native);
        bytes[NATIVE_LENGTH] = u8::try_from(native.len()).unwrap_or(0);
        Handle { bytes }.sealed()
    }
}

/// Returns the inode of a namespace, which has 32 bits (`ns_common.inum` in the kernel). 0:
/// unknown.
fn namespace_number(inode: u64) -> u32 {
    u32::try_from(inode).unwrap_or(0)
}

/// Returns a device number in the kernel's encoding of 32 bits (`new_encode_dev`): 12 bits of
/// major, 20 of minor.
pub(super) fn device_number(device: u64) -> u32 {
    let (major, minor) = (rustix::fs::major(device), rustix::fs::minor(device));
    (minor & 0xff) | (major & 0xfff) << 8 | (minor & !0xff) << 12
}

/// Reverses [`device_number`].
pub(super) fn device_of(number: u32) -> u64 {
    rustix::fs::makedev((number >> 8) & 0xfff, (number & 0xff) | (number >> 12) & !0xff)
}

/// Returns whether all bytes are 0. Reads all of them, which is faster than stopping early.
fn is_zero(bytes: &[u8]) -> bool {
    bytes.iter().fold(0, |all, byte| all | byte) == 0
}

impl Handle {
    /// Returns the handle with this ticket, or without one.
    pub(crate) fn with_ticket(mut self, ticket: Option<Ticket>) -> Self {
        let (number, row, word) = ticket.map_or((0, 0, 0), |ticket| (ticket.number, ticket.row, ticket.word));
        self.bytes[TICKET_NUMBER].copy_from_slice(&number.to_le_bytes()[..6]);
        self.bytes[TICKET_ROW].copy_from_slice(&row.to_le_bytes());
        self.bytes[TICKET_WORD].copy_from_slice(&word.to_le_bytes());
        self.sealed()
    }

    /// Returns the plain handle of the memory of this one: without a ticket. It is stale once the
    /// memory is freed.
    #[must_use]
    pub fn plain(self) -> Self {
        if self.has_ticket() { self.with_ticket(None) } else { self }
    }

    /// Returns the handle with the checksum of its bytes.
    fn sealed(mut self) -> Self {
        let checksum = crc32fast::hash(&self.bytes[..CHECKSUM.start]);
        self.bytes[CHECKSUM].copy_from_slice(&checksum.to_le_bytes());
        self
    }

    /// Returns the ticket; `None` if the handle has none.
    pub(crate) fn ticket(&self) -> Option<Ticket> {
        let mut number = [0; 8];
        number[..6].copy_from_slice(&self.bytes[TICKET_NUMBER]);
        let number = u64::from_le_bytes(number);
        (number != 0).then(|| Ticket { number, row: self.u16_at(TICKET_ROW), word: self.u16_at(TICKET_WORD) })
    }

    /// Checks all fields.
    pub(crate) fn check(&self) -> Result<(), DecodeError> {
        if self.bytes[MAGIC] != MAGIC_VALUE {
            return Err(DecodeError::Magic);
        }
        let version = self.u16_at(VERSION);
        if version != VERSION_VALUE {
            return Err(DecodeError::Version { version });
        }
        // The CRC of bytes with their CRC is a constant. Hashing all 256 bytes takes two thirds of
        // the time of hashing 252.
        if crc32fast::hash(&self.bytes) != CHECKSUM_OF_ALL {
            let found = self.u32_at(CHECKSUM);
            let expected = crc32fast::hash(&self.bytes[..CHECKSUM.start]);
            return Err(DecodeError::Checksum { found, expected });
        }
        let field = |field| Err(DecodeError::Field { field });
        if self.u16_at(FLAGS) & !FLAGS_KNOWN != 0 {
            return field("flags");
        }
        if self.pid() == 0 || self.pid() > i32::MAX.cast_unsigned() {
            return field("pid");
        }
        if self.ledger_fd() < 0 {
            return field("ledger fd");
        }
        if self.generation() & 1 == 0 {
            return field("generation");
        }
        // Sizes and offsets fit into an address space, so that a sum of two of them cannot
        // overflow.
        let limit = 1 << umf_core::Address::BITS;
        if self.region_size() == 0 || self.region_size() > limit {
            return field("region size");
        }
        if self.data_offset() > i64::MAX.cast_unsigned() - limit {
            return field("data offset");
        }
        if self.length() == 0 || self.length() > self.region_size() {
            return field("length");
        }
        if self.offset() > self.region_size() - self.length() {
            return field("offset");
        }
        if self.requested() == 0 || self.requested() > self.length() {
            return field("requested length");
        }
        if self.region_id() == 0 {
            return field("region id");
        }
        if ProviderKind::from_bytes(self.array_at(PROVIDER_KIND)).is_none() {
            return field("provider kind");
        }
        let native = usize::from(self.bytes[NATIVE_LENGTH]);
        let native = self.bytes[NATIVE].get(native..);
        if !native.is_some_and(is_zero) {
            return field("native length");
        }
        if !is_zero(&self.bytes[RESERVED]) {
            return field("reserved");
        }
        Ok(())
    }

    /// Returns the `N` bytes of a field. `range` is one of the constants above.
    pub(super) fn array_at<const N: usize>(&self, range: Range<usize>) -> [u8; N] {
        let mut array = [0; N];
        array.copy_from_slice(&self.bytes[range]);
        array
    }

    pub(super) fn u16_at(&self, range: Range<usize>) -> u16 {
        u16::from_le_bytes(self.array_at(range))
    }

    pub(super) fn u32_at(&self, range: Range<usize>) -> u32 {
        u32::from_le_bytes(self.array_at(range))
    }

    pub(super) fn u64_at(&self, range: Range<usize>) -> u64 {
        u64::from_le_bytes(self.array_at(range))
    }
}

// The text form: `umf1.` and URL-safe base64 without padding. Serde uses the text form in formats
// for people, and the bytes in others.

const PREFIX: &str = "umf1.";

impl fmt::Display for Handle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{PREFIX}{}", BASE64URL_NOPAD.encode_display(&self.bytes))
    }
}

impl FromStr for Handle {
    type Err = DecodeError;

    /// Parses the text form. Ignores white space around it, because it is often a line of text.
    fn from_str(text: &str) -> Result<Self, DecodeError> {
        let text = text.trim_ascii();
        let wrong = |why| DecodeError::Text { why };
        let body = text.strip_prefix(PREFIX).ok_or(wrong("it does not begin with \"umf1.\""))?;
        let mut bytes = [0; SIZE];
        match BASE64URL_NOPAD.decode_len(body.len()) {
            Ok(length) if length == SIZE => {}
            Ok(_) | Err(_) => return Err(wrong("its length is wrong, it was cut or something was added")),
        }
        BASE64URL_NOPAD
            .decode_mut(body.as_bytes(), &mut bytes)
            .map_err(|_| wrong("it contains characters outside A-Z a-z 0-9 - _"))?;
        Self::from_bytes(&bytes)
    }
}

impl Serialize for Handle {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        if serializer.is_human_readable() {
            serializer.collect_str(self)
        } else {
            serializer.serialize_bytes(&self.bytes)
        }
    }
}

impl<'de> Deserialize<'de> for Handle {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        if deserializer.is_human_readable() {
            deserializer.deserialize_str(Text)
        } else {
            deserializer.deserialize_bytes(Bytes)
        }
    }
}

struct Text;

impl Visitor<'_> for Text {
    type Value = Handle;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the text of a umf handle")
    }

    fn visit_str<E: serde_core::de::Error>(self, text: &str) -> Result<Handle, E> {
        text.parse().map_err(E::custom)
    }
}

struct Bytes;

impl<'de> Visitor<'de> for Bytes {
    type Value = Handle;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the 256 bytes of a umf handle")
    }

    fn visit_bytes<E: serde_core::de::Error>(self, bytes: &[u8]) -> Result<Handle, E> {
        Handle::from_bytes(bytes).map_err(E::custom)
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut sequence: A) -> Result<Handle, A::Error> {
        let mut bytes = [0; SIZE];
        for (index, byte) in bytes.iter_mut().enumerate() {
            *byte = sequence.next_element()?.ok_or_else(|| A::Error::invalid_length(index, &self))?;
        }
        Handle::from_bytes(&bytes).map_err(A::Error::custom)
    }
}
