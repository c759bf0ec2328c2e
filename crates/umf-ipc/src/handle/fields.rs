//! Encoding and checking of the fields.

use core::ops::Range;

use umf_core::{NativeBytes, ProviderKind};

use super::layout::{self, SIZE};
use super::{DecodeError, Handle};
use crate::identity::{BootHalf, Nonce};

/// All that goes into a handle. For the exporter.
#[derive(Clone, Debug)]
pub(crate) struct Fields {
    pub flags: u16,
    pub boot: BootHalf,
    pub nonce: Nonce,
    pub key: [u8; 16],
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
        put(layout::MAGIC, &layout::MAGIC_VALUE);
        put(layout::VERSION, &layout::VERSION_VALUE.to_le_bytes());
        put(layout::FLAGS, &self.flags.to_le_bytes());
        put(layout::BOOT_ID, &self.boot.0.to_le_bytes());
        put(layout::NONCE, self.nonce.as_bytes());
        put(layout::KEY, &self.key);
        put(layout::PID, &self.pid.to_le_bytes());
        put(layout::LEDGER_FD, &self.ledger_fd.to_le_bytes());
        put(layout::PID_NAMESPACE, &namespace_number(self.pid_namespace).to_le_bytes());
        put(layout::PIDFS_INODE, &self.pidfs_inode.to_le_bytes());
        put(layout::DATA_FD, &self.data_fd.to_le_bytes());
        put(layout::SLOT, &self.slot.to_le_bytes());
        put(layout::GENERATION, &self.generation.to_le_bytes());
        put(layout::DATA_DEVICE, &device_number(self.data_device).to_le_bytes());
        put(layout::DATA_INODE, &self.data_inode.to_le_bytes());
        put(layout::DATA_OFFSET, &self.data_offset.to_le_bytes());
        put(layout::REGION_SIZE, &self.region_size.to_le_bytes());
        put(layout::REGION_ID, &self.region_id.to_le_bytes());
        put(layout::BLOCK_OFFSET, &self.offset.to_le_bytes());
        put(layout::BLOCK_LENGTH, &self.length.to_le_bytes());
        put(layout::REQUESTED, &self.requested.to_le_bytes());
        put(layout::PROVIDER_KIND, &self.kind.to_bytes());
        put(layout::ALLOCATION_ID, &self.allocation_id.to_le_bytes());
        let native = self.native.as_slice();
        put(layout::NATIVE.start..layout::NATIVE.start + native.len(), native);
        bytes[layout::NATIVE_LENGTH] = u8::try_from(native.len()).unwrap_or(0);
        let checksum = crc32fast::hash(&bytes[..layout::CHECKSUM.start]);
        bytes[layout::CHECKSUM].copy_from_slice(&checksum.to_le_bytes());
        Handle { bytes }
    }
}

/// Inodes of namespaces have 32 bits (`ns_common.inum` in the kernel). 0 is unknown.
fn namespace_number(inode: u64) -> u32 {
    u32::try_from(inode).unwrap_or(0)
}

/// A device number as the kernel encodes it in 32 bits (`new_encode_dev`): 12 bits of major, 20 of minor.
pub(super) fn device_number(device: u64) -> u32 {
    let (major, minor) = (rustix::fs::major(device), rustix::fs::minor(device));
    (minor & 0xff) | (major & 0xfff) << 8 | (minor & !0xff) << 12
}

/// The opposite of [`device_number`].
pub(super) fn device_of(number: u32) -> u64 {
    rustix::fs::makedev((number >> 8) & 0xfff, (number & 0xff) | (number >> 12) & !0xff)
}

/// Looks at all bytes, which is faster than to stop early.
fn is_zero(bytes: &[u8]) -> bool {
    bytes.iter().fold(0, |all, byte| all | byte) == 0
}

impl Handle {
    pub(crate) fn check(&self) -> Result<(), DecodeError> {
        if self.bytes[layout::MAGIC] != layout::MAGIC_VALUE {
            return Err(DecodeError::Magic);
        }
        let version = self.u16_at(layout::VERSION);
        if version != layout::VERSION_VALUE {
            return Err(DecodeError::Version { version });
        }
        // A CRC behind the bytes that it is of leaves the same remainder whatever they are; and all 256 are hashed in two thirds of
        // the time of the first 252.
        if crc32fast::hash(&self.bytes) != layout::CHECKSUM_OF_ALL {
            let found = self.u32_at(layout::CHECKSUM);
            let expected = crc32fast::hash(&self.bytes[..layout::CHECKSUM.start]);
            return Err(DecodeError::Checksum { found, expected });
        }
        let field = |field| Err(DecodeError::Field { field });
        if self.u16_at(layout::FLAGS) & !layout::FLAGS_KNOWN != 0 {
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
        // Sizes and offsets fit into an address space, so that sums of two of them cannot overflow.
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
        if ProviderKind::from_bytes(self.array_at(layout::PROVIDER_KIND)).is_none() {
            return field("provider kind");
        }
        let native = usize::from(self.bytes[layout::NATIVE_LENGTH]);
        let native = self.bytes[layout::NATIVE].get(native..);
        if !native.is_some_and(is_zero) {
            return field("native length");
        }
        if !is_zero(&self.bytes[layout::RESERVED]) {
            return field("reserved");
        }
        Ok(())
    }

    /// The `N` bytes of a field. `range` is one of the constants of [`layout`].
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
