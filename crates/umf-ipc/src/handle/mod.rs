//! [`Handle`]: 256 bytes that name an exported block or region in every process.

mod codec;

use core::fmt;

pub use codec::SIZE;
pub(crate) use codec::{
    FLAG_DIRECTORY, FLAG_ISOLATED, FLAG_PROCFS, FLAG_READ_ONLY, FLAG_REGION, FLAG_SOCKET,
};
pub(crate) use codec::{Fields, Ticket};

use crate::identity::{BootHalf, Nonce, ProducerId};
use crate::transfer::socket::proof::Key;
use umf_core::ProviderKind;

/// The name of a block or region as a plain value. Copy it through MPI, a socket, a file or argv,
/// and open it in any process that is permitted to.
///
/// The bytes of a `Handle` have been decoded: its lengths are consistent and its checksum is right.
/// Whether the memory still exists, the importer checks at every open.
///
/// The layout is fixed and little-endian; `docs/handle.md` has the table. As text
/// ([`fmt::Display`], [`core::str::FromStr`]) it is `umf1.` and 342 characters of URL-safe base64.
///
/// The checksum (CRC-32) detects accidents, not forgery: any process can compute it. The kernel and
/// the ledger determine what an importer may open, never the handle.
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
        /// Number of bytes.
        length: usize,
    },
    /// Not a handle.
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
        /// The checksum in the handle.
        found: u32,
        /// The checksum of its bytes.
        expected: u32,
    },
    /// A field has a value that no producer writes.
    #[error("the handle is not from umf: field {field} is out of range; get a new handle from its producer")]
    Field {
        /// The field.
        field: &'static str,
    },
    /// The text form is wrong.
    #[error("not the text of a handle: {why}; it is \"umf1.\" followed by 342 characters of URL-safe base64")]
    Text {
        /// The fault.
        why: &'static str,
    },
}

impl Handle {
    /// Decodes a handle. Does not panic for any bytes.
    ///
    /// # Errors
    /// [`DecodeError`] if the bytes are not a handle.
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

    /// Returns the bytes.
    #[must_use]
    pub const fn to_bytes(&self) -> [u8; SIZE] {
        self.bytes
    }

    /// Returns the bytes, borrowed.
    #[must_use]
    pub const fn as_bytes(&self) -> &[u8; SIZE] {
        &self.bytes
    }

    /// Returns the bytes as an unchecked handle, if they are aligned.
    fn view(bytes: &[u8; SIZE]) -> Option<&Self> {
        let handle = core::ptr::from_ref(bytes).cast::<Self>();
        // SAFETY: the pointer is aligned, and every sequence of 256 bytes is a valid value.
        handle.is_aligned().then(|| unsafe { &*handle })
    }

    /// Creates a handle from bytes that were checked before.
    #[inline]
    pub(crate) const fn from_known(bytes: &[u8; SIZE]) -> Self {
        Self { bytes: *bytes }
    }

    /// Returns the process id of the producer, in its own pid namespace.
    #[must_use]
    pub fn pid(&self) -> u32 {
        self.u32_at(codec::PID)
    }

    /// Returns the producer's random number, which distinguishes it from all other processes, past
    /// and future.
    #[must_use]
    pub fn nonce(&self) -> Nonce {
        Nonce::from_bytes(self.array_at(codec::NONCE))
    }

    /// Returns the producer's identity, the key of importers' tables.
    pub(crate) fn producer(&self) -> ProducerId {
        ProducerId {
            nonce: self.nonce(),
            pid: self.pid(),
            pid_namespace: self.pid_namespace(),
            pidfs_inode: self.pidfs_inode(),
        }
    }

    /// Returns the boot of the machine on which the handle was made.
    pub(crate) fn boot(&self) -> BootHalf {
        BootHalf(self.u64_at(codec::BOOT_ID))
    }

    /// Returns whether the handle was made on this machine since it was booted. `true` if the id of
    /// the boot is not known here or there.
    #[must_use]
    pub fn is_of_this_boot(&self) -> bool {
        !crate::identity::boot_id().half().contradicts(self.boot())
    }

    /// Returns the inode of the producer's pid namespace, 0 if it could not be read.
    #[must_use]
    pub fn pid_namespace(&self) -> u64 {
        u64::from(self.u32_at(codec::PID_NAMESPACE))
    }

    /// Returns the inode of the producer in pidfs, unique in this boot; 0 before Linux 6.9.
    #[must_use]
    pub fn pidfs_inode(&self) -> u64 {
        self.u64_at(codec::PIDFS_INODE)
    }

    /// Returns the producer's descriptor number of its ledger.
    #[must_use]
    pub fn ledger_fd(&self) -> i32 {
        self.u32_at(codec::LEDGER_FD).cast_signed()
    }

    /// Returns the producer's descriptor number of the memory; `None` if only a driver's opaque
    /// bytes name it.
    #[must_use]
    pub fn data_fd(&self) -> Option<i32> {
        let fd = self.u32_at(codec::DATA_FD).cast_signed();
        (fd >= 0).then_some(fd)
    }

    /// Returns the device and inode of the file of [`Handle::data_fd`].
    #[must_use]
    pub fn data_identity(&self) -> (u64, u64) {
        (codec::device_of(self.u32_at(codec::DATA_DEVICE)), self.u64_at(codec::DATA_INODE))
    }

    /// Returns the offset of the region in that file, in bytes.
    #[must_use]
    pub fn data_offset(&self) -> u64 {
        self.u64_at(codec::DATA_OFFSET)
    }

    /// Returns the number of the export's slot in the ledger.
    #[must_use]
    pub fn slot(&self) -> u32 {
        self.u32_at(codec::SLOT)
    }

    /// Returns the generation of that slot at the time of the export.
    #[must_use]
    pub fn generation(&self) -> u64 {
        self.u64_at(codec::GENERATION)
    }

    /// Returns the size of the region in bytes.
    #[must_use]
    pub fn region_size(&self) -> u64 {
        self.u64_at(codec::REGION_SIZE)
    }

    /// Returns the region's id in the producer.
    #[must_use]
    pub fn region_id(&self) -> u64 {
        self.u64_at(codec::REGION_ID)
    }

    /// Returns the offset of the block in the region, in bytes.
    #[must_use]
    pub fn offset(&self) -> u64 {
        self.u64_at(codec::BLOCK_OFFSET)
    }

    /// Returns the length of the block in bytes, which its pool has rounded up.
    #[must_use]
    pub fn length(&self) -> u64 {
        self.u64_at(codec::BLOCK_LENGTH)
    }

    /// Returns the requested length in bytes: at most [`Handle::length`], and equal to it if the
    /// exporter did not know the request.
    #[must_use]
    pub fn requested(&self) -> u64 {
        self.u64_at(codec::REQUESTED)
    }

    /// Returns the kind of the memory's provider.
    #[must_use]
    pub fn provider_kind(&self) -> ProviderKind {
        // `check` refuses a handle for which this is `None`.
        ProviderKind::from_bytes(self.array_at(codec::PROVIDER_KIND)).unwrap_or(ProviderKind::HOST)
    }

    /// Returns the driver's id of the allocation, 0 if it has none.
    #[must_use]
    pub fn allocation_id(&self) -> u64 {
        self.u64_at(codec::ALLOCATION_ID)
    }

    /// Returns the driver's own handle (up to 64 bytes), empty if there is none.
    #[must_use]
    pub fn native(&self) -> &[u8] {
        let length = usize::from(self.bytes[codec::NATIVE_LENGTH]);
        &self.bytes[codec::NATIVE][..length]
    }

    /// Returns whether the region has a file of its own, so that an importer can access no other
    /// memory.
    #[must_use]
    pub fn is_isolated(&self) -> bool {
        self.has(FLAG_ISOLATED)
    }

    /// Returns whether the kernel refuses writable imports.
    #[must_use]
    pub fn is_read_only(&self) -> bool {
        self.has(FLAG_READ_ONLY)
    }

    /// Returns whether it names a whole region.
    #[must_use]
    pub fn is_region(&self) -> bool {
        self.has(FLAG_REGION)
    }

    /// Returns whether the producer answers requests on its abstract socket.
    #[must_use]
    pub fn is_served(&self) -> bool {
        self.has(FLAG_SOCKET)
    }

    /// Returns whether the producer answers requests on its socket in a directory.
    #[must_use]
    pub fn is_in_directory(&self) -> bool {
        self.has(FLAG_DIRECTORY)
    }

    /// Returns the secret that the producer and its importers prove to each other.
    pub(crate) fn key(&self) -> Key {
        Key::new(self.array_at(codec::KEY))
    }

    /// Returns whether the handle has a ticket ([`crate::Exporter::send_handle`]).
    #[must_use]
    pub fn has_ticket(&self) -> bool {
        self.ticket().is_some()
    }

    /// Returns whether `now` is the handle's generation or, with a ticket, that of the export after
    /// it was retired: the ticket's sender may keep its memory.
    pub(crate) fn fits(&self, now: u64) -> bool {
        now == self.generation() || (self.has_ticket() && Some(now) == self.generation().checked_add(1))
    }

    /// Returns whether a device may import the memory. It may then write to the memory after the
    /// importer has ended.
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
