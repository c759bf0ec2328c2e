//! [`Handle`]: 256 plain bytes that name a block or region in any process.

mod codec;
mod text;

use core::fmt;

pub(crate) use codec::Fields;
pub use codec::SIZE;
pub(crate) use codec::{FLAG_ISOLATED, FLAG_PROCFS, FLAG_READ_ONLY, FLAG_REGION, FLAG_SOCKET};

use crate::identity::{BootHalf, Nonce, ProducerId};
use umf_core::ProviderKind;

/// The by-value name of a block or region: copy it through MPI, a socket, a file or argv, and open
/// it in any process that may.
///
/// A `Handle` that exists has been decoded: its lengths fit, its checksum is right. That says
/// nothing about whether what it names still exists, which the importer finds out at every open.
///
/// The layout is fixed and little-endian; `docs/handle.md` has the table. As text
/// ([`fmt::Display`], [`core::str::FromStr`]) it is `umf1.` and 342 characters of URL-safe base64.
///
/// The checksum (CRC-32) finds accidents, not forgery: any process can compute it. What an
/// importer may open is decided by the kernel and by the ledger, never by the handle.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
#[repr(C, align(8))]
pub struct Handle {
    bytes: [u8; SIZE],
}

/// Why bytes are not a handle.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum DecodeError {
    /// Wrong length.
    #[error(
        "a handle has 256 bytes, not {length}: it was cut, or something was added; send all of its bytes"
    )]
    Length {
        /// Bytes given.
        length: usize,
    },
    /// Not a handle at all.
    #[error("not a umf handle: the bytes do not begin with \"UMFH\"; pass the bytes of an exported handle")]
    Magic,
    /// Another version.
    #[error(
        "the handle has version {version}, this umf reads version 2: let both processes use the same release"
    )]
    Version {
        /// Its version.
        version: u16,
    },
    /// The checksum does not match.
    #[error(
        "the handle is damaged: its checksum is {found:#010x} and should be {expected:#010x}; send its bytes unchanged"
    )]
    Checksum {
        /// In the handle.
        found: u32,
        /// Computed from its bytes.
        expected: u32,
    },
    /// A field has a value that no producer writes.
    #[error("the handle is not from umf: field {field} is out of range; get a new handle from its producer")]
    Field {
        /// Which field.
        field: &'static str,
    },
    /// The text form is wrong.
    #[error("not the text of a handle: {why}; it is \"umf1.\" followed by 342 characters of URL-safe base64")]
    Text {
        /// What is wrong.
        why: &'static str,
    },
}

impl Handle {
    /// Decodes a handle. Never panics, whatever the bytes.
    ///
    /// # Errors
    /// [`DecodeError`]: each says what is wrong with them.
    pub fn from_bytes(bytes: &[u8]) -> Result<Self, DecodeError> {
        let bytes: &[u8; SIZE] = bytes.try_into().map_err(|_| DecodeError::Length { length: bytes.len() })?;
        let copy;
        // In place if aligned: reading bytes right after copying them stalls on store forwarding.
        let handle = match Self::view(bytes) {
            Some(handle) => handle,
            None => {
                copy = Self::from_known(bytes);
                &copy
            }
        };
        handle.check()?;
        Ok(*handle)
    }

    /// The bytes.
    #[must_use]
    pub const fn to_bytes(&self) -> [u8; SIZE] {
        self.bytes
    }

    /// The bytes, borrowed.
    #[must_use]
    pub const fn as_bytes(&self) -> &[u8; SIZE] {
        &self.bytes
    }

    /// The bytes as a handle that is yet to be checked, if they are aligned.
    fn view(bytes: &[u8; SIZE]) -> Option<&Self> {
        let handle = core::ptr::from_ref(bytes).cast::<Self>();
        // SAFETY: aligned; and a handle is its bytes and nothing else, whatever they are.
        handle.is_aligned().then(|| unsafe { &*handle })
    }

    /// A handle from the bytes of one.
    #[inline]
    pub(crate) const fn from_known(bytes: &[u8; SIZE]) -> Self {
        Self { bytes: *bytes }
    }

    /// Process id of the producer, in its own pid namespace.
    #[must_use]
    pub fn pid(&self) -> u32 {
        self.u32_at(codec::PID)
    }

    /// The random number that tells this producer from every other process, past and future.
    #[must_use]
    pub fn nonce(&self) -> Nonce {
        Nonce::from_bytes(self.array_at(codec::NONCE))
    }

    /// The producer, as an importer knows it.
    pub(crate) fn producer(&self) -> ProducerId {
        ProducerId {
            nonce: self.nonce(),
            pid: self.pid(),
            pid_namespace: self.pid_namespace(),
            pidfs_inode: self.pidfs_inode(),
        }
    }

    /// The boot of the machine on which it was made.
    pub(crate) fn boot(&self) -> BootHalf {
        BootHalf(self.u64_at(codec::BOOT_ID))
    }

    /// Inode of the producer's pid namespace, 0 if it could not be read.
    #[must_use]
    pub fn pid_namespace(&self) -> u64 {
        u64::from(self.u32_at(codec::PID_NAMESPACE))
    }

    /// Inode of the producer in pidfs (Linux 6.9 and later), which no other process of this boot
    /// has; else 0.
    #[must_use]
    pub fn pidfs_inode(&self) -> u64 {
        self.u64_at(codec::PIDFS_INODE)
    }

    /// The producer's fd of its ledger.
    #[must_use]
    pub fn ledger_fd(&self) -> i32 {
        self.u32_at(codec::LEDGER_FD).cast_signed()
    }

    /// The producer's fd of the memory; `None` if a driver's opaque bytes name it alone.
    #[must_use]
    pub fn data_fd(&self) -> Option<i32> {
        let fd = self.u32_at(codec::DATA_FD).cast_signed();
        (fd >= 0).then_some(fd)
    }

    /// Device and inode of the file behind [`Handle::data_fd`].
    #[must_use]
    pub fn data_identity(&self) -> (u64, u64) {
        (codec::device_of(self.u32_at(codec::DATA_DEVICE)), self.u64_at(codec::DATA_INODE))
    }

    /// Where the region begins in that file, in bytes.
    #[must_use]
    pub fn data_offset(&self) -> u64 {
        self.u64_at(codec::DATA_OFFSET)
    }

    /// Number of the export's slot in the ledger.
    #[must_use]
    pub fn slot(&self) -> u32 {
        self.u32_at(codec::SLOT)
    }

    /// Generation of that slot when the export was made.
    #[must_use]
    pub fn generation(&self) -> u64 {
        self.u64_at(codec::GENERATION)
    }

    /// Size of the region in bytes.
    #[must_use]
    pub fn region_size(&self) -> u64 {
        self.u64_at(codec::REGION_SIZE)
    }

    /// The region's id in the producer.
    #[must_use]
    pub fn region_id(&self) -> u64 {
        self.u64_at(codec::REGION_ID)
    }

    /// Where the block begins in the region, in bytes.
    #[must_use]
    pub fn offset(&self) -> u64 {
        self.u64_at(codec::BLOCK_OFFSET)
    }

    /// Length of the block in bytes, as its pool rounded it up.
    #[must_use]
    pub fn length(&self) -> u64 {
        self.u64_at(codec::BLOCK_LENGTH)
    }

    /// How many bytes of the block were asked for: at most [`Handle::length`], and equal to it
    /// where the pool does not keep it.
    #[must_use]
    pub fn requested(&self) -> u64 {
        self.u64_at(codec::REQUESTED)
    }

    /// The kind of provider that the memory came from.
    #[must_use]
    pub fn provider_kind(&self) -> ProviderKind {
        // `check` refuses a handle for which this is `None`.
        ProviderKind::from_bytes(self.array_at(codec::PROVIDER_KIND)).unwrap_or(ProviderKind::HOST)
    }

    /// The driver's id of the allocation, 0 if it has none.
    #[must_use]
    pub fn allocation_id(&self) -> u64 {
        self.u64_at(codec::ALLOCATION_ID)
    }

    /// The driver's own handle (up to 64 bytes), empty if there is none.
    #[must_use]
    pub fn native(&self) -> &[u8] {
        let length = usize::from(self.bytes[codec::NATIVE_LENGTH]);
        &self.bytes[codec::NATIVE][..length]
    }

    /// Whether the region has a file of its own, so that opening it shows nothing but it.
    #[must_use]
    pub fn is_isolated(&self) -> bool {
        self.has(FLAG_ISOLATED)
    }

    /// Whether the kernel refuses to let importers write.
    #[must_use]
    pub fn is_read_only(&self) -> bool {
        self.has(FLAG_READ_ONLY)
    }

    /// Whether it names a whole region.
    #[must_use]
    pub fn is_region(&self) -> bool {
        self.has(FLAG_REGION)
    }

    /// Whether the producer answers requests on its socket.
    #[must_use]
    pub fn is_served(&self) -> bool {
        self.has(FLAG_SOCKET)
    }

    /// Whether a device may import the memory, and so write to it after the process that opened it
    /// has ended.
    pub(crate) fn may_be_imported_by_device(&self) -> bool {
        !self.has(FLAG_PROCFS)
    }

    pub(crate) fn has(&self, flag: u16) -> bool {
        self.u16_at(codec::FLAGS) & flag != 0
    }
}

impl AsRef<[u8]> for Handle {
    fn as_ref(&self) -> &[u8] {
        &self.bytes
    }
}

impl TryFrom<&[u8]> for Handle {
    type Error = DecodeError;

    fn try_from(bytes: &[u8]) -> Result<Self, DecodeError> {
        Self::from_bytes(bytes)
    }
}

impl fmt::Debug for Handle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Handle")
            .field("kind", &self.provider_kind())
            .field("pid", &self.pid())
            .field("slot", &self.slot())
            .field("generation", &self.generation())
            .field("region_size", &self.region_size())
            .field("offset", &self.offset())
            .field("length", &self.length())
            .field("nonce", &self.nonce())
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests;
