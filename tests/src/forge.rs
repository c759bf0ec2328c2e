//! Forged handles: a valid handle with changed fields and a matching checksum.

use core::ops::Range;

use umf::Handle;

/// Byte ranges of the fields, as in the table of `docs/handle.md`. They are repeated here so that a
/// change of the format fails the tests.
pub mod field {
    use core::ops::Range;

    /// Version of the format.
    pub const VERSION: Range<usize> = 4..6;
    /// Flag bits.
    pub const FLAGS: Range<usize> = 6..8;
    /// First half of the boot id.
    pub const BOOT_ID: Range<usize> = 8..16;
    /// Nonce of the producer.
    pub const NONCE: Range<usize> = 16..32;
    /// Key of the producer.
    pub const KEY: Range<usize> = 32..48;
    /// Pid of the producer.
    pub const PID: Range<usize> = 48..52;
    /// Inode of the producer's pid namespace.
    pub const PID_NAMESPACE: Range<usize> = 52..56;
    /// Inode of the producer in pidfs.
    pub const PIDFS_INODE: Range<usize> = 56..64;
    /// Fd number of the ledger in the producer.
    pub const LEDGER_FD: Range<usize> = 64..68;
    /// Slot of the ledger.
    pub const SLOT: Range<usize> = 68..72;
    /// Generation of the slot.
    pub const GENERATION: Range<usize> = 72..80;
    /// Fd number of the memory's file in the producer.
    pub const DATA_FD: Range<usize> = 80..84;
    /// Device of the memory's file.
    pub const DATA_DEVICE: Range<usize> = 84..88;
    /// Inode of the memory's file.
    pub const DATA_INODE: Range<usize> = 88..96;
    /// Offset of the region in the file.
    pub const DATA_OFFSET: Range<usize> = 96..104;
    /// Id of the region.
    pub const REGION_ID: Range<usize> = 104..112;
    /// Size of the region.
    pub const REGION_SIZE: Range<usize> = 112..120;
    /// Offset of the block in the region.
    pub const BLOCK_OFFSET: Range<usize> = 120..128;
    /// Length of the block.
    pub const BLOCK_LENGTH: Range<usize> = 128..136;
    /// Requested size of the block.
    pub const REQUESTED: Range<usize> = 136..144;
    /// Kind of the provider.
    pub const PROVIDER_KIND: Range<usize> = 144..160;
    /// Length of the native bytes.
    pub const NATIVE_LENGTH: Range<usize> = 186..187;
    /// Native bytes.
    pub const NATIVE: Range<usize> = 188..252;
    /// CRC-32 of the bytes before it.
    pub const CHECKSUM: Range<usize> = 252..256;
}

/// Stores the matching checksum.
pub fn seal(bytes: &mut [u8; 256]) {
    let sum = crc32fast::hash(&bytes[..field::CHECKSUM.start]);
    bytes[field::CHECKSUM].copy_from_slice(&sum.to_le_bytes());
}

/// Returns a handle with one field changed and a matching checksum, as the hexadecimal digits that
/// actors accept. `value` is little-endian and is cut to the length of the field.
#[must_use]
pub fn with(handle: &Handle, range: Range<usize>, value: u64) -> String {
    with_all(handle, &[(range, value)])
}

/// Returns a handle with several fields changed, as [`with`] does for one.
#[must_use]
pub fn with_all(handle: &Handle, changes: &[(Range<usize>, u64)]) -> String {
    let mut bytes = handle.to_bytes();
    for (range, value) in changes {
        let mut long = [0; 64];
        long[..8].copy_from_slice(&value.to_le_bytes());
        bytes[range.clone()].copy_from_slice(&long[..range.len()]);
    }
    seal(&mut bytes);
    hex(&bytes)
}

/// Returns the hexadecimal digits of bytes.
#[must_use]
pub fn hex(bytes: &[u8]) -> String {
    use std::fmt::Write;
    bytes.iter().fold(String::new(), |mut text, byte| {
        let _ = write!(text, "{byte:02x}");
        text
    })
}
