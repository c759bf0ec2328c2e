//! Handles that no producer made: fields changed, the checksum made to fit.

use core::ops::Range;

use umf::Handle;

/// Where the fields lie (the table of `docs/handle.md`, written down a second time on purpose).
pub mod field {
    use core::ops::Range;

    /// Of the format.
    pub const VERSION: Range<usize> = 4..6;
    /// Bits.
    pub const FLAGS: Range<usize> = 6..8;
    /// Of the machine's boot, its first half.
    pub const BOOT_ID: Range<usize> = 8..16;
    /// Of the producer.
    pub const NONCE: Range<usize> = 16..32;
    /// Of the producer.
    pub const KEY: Range<usize> = 32..48;
    /// Of the producer.
    pub const PID: Range<usize> = 48..52;
    /// Inode.
    pub const PID_NAMESPACE: Range<usize> = 52..56;
    /// Of the producer.
    pub const PIDFS_INODE: Range<usize> = 56..64;
    /// Number in the producer.
    pub const LEDGER_FD: Range<usize> = 64..68;
    /// In the ledger.
    pub const SLOT: Range<usize> = 68..72;
    /// Of the slot.
    pub const GENERATION: Range<usize> = 72..80;
    /// Number in the producer.
    pub const DATA_FD: Range<usize> = 80..84;
    /// Of the file.
    pub const DATA_DEVICE: Range<usize> = 84..88;
    /// Of the file.
    pub const DATA_INODE: Range<usize> = 88..96;
    /// Of the region in the file.
    pub const DATA_OFFSET: Range<usize> = 96..104;
    /// Id of the region.
    pub const REGION_ID: Range<usize> = 104..112;
    /// Of the region.
    pub const REGION_SIZE: Range<usize> = 112..120;
    /// In the region.
    pub const BLOCK_OFFSET: Range<usize> = 120..128;
    /// Of the block.
    pub const BLOCK_LENGTH: Range<usize> = 128..136;
    /// Of the block.
    pub const REQUESTED: Range<usize> = 136..144;
    /// Of the provider.
    pub const PROVIDER_KIND: Range<usize> = 144..160;
    /// Of the native bytes.
    pub const NATIVE_LENGTH: Range<usize> = 186..187;
    /// Native bytes.
    pub const NATIVE: Range<usize> = 188..252;
    /// CRC-32 of all before it.
    pub const CHECKSUM: Range<usize> = 252..256;
}

/// Makes the checksum fit.
pub fn seal(bytes: &mut [u8; 256]) {
    let sum = crc32fast::hash(&bytes[..field::CHECKSUM.start]);
    bytes[field::CHECKSUM].copy_from_slice(&sum.to_le_bytes());
}

/// A handle with one field changed and a checksum that fits, as the hexadecimal form that actors take. `value`
/// is little-endian and may be longer than the field.
#[must_use]
pub fn with(handle: &Handle, range: Range<usize>, value: u64) -> String {
    with_all(handle, &[(range, value)])
}

/// As [`with`], for several fields.
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

/// The hexadecimal form of bytes.
#[must_use]
pub fn hex(bytes: &[u8]) -> String {
    use std::fmt::Write;
    bytes.iter().fold(String::new(), |mut text, byte| {
        let _ = write!(text, "{byte:02x}");
        text
    })
}
