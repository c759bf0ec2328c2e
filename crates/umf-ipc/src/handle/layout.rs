//! Where each field of a handle lies. `docs/handle.md` has the same table with words.

use core::ops::Range;

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
// 168..176: device; 176..186: ticket. Zeros so far: see docs/handle.md.
pub(crate) const NATIVE_LENGTH: usize = 186;
pub(crate) const RESERVED: Range<usize> = 187..188;
pub(crate) const NATIVE: Range<usize> = 188..252;
pub(crate) const CHECKSUM: Range<usize> = 252..256;
/// The CRC-32 of anything that ends with its own CRC-32, in little-endian order: a property of the polynomial.
pub(crate) const CHECKSUM_OF_ALL: u32 = 0x2144_df1c;

/// The region has a file of its own: importing it shows nothing else.
pub(crate) const FLAG_ISOLATED: u16 = 1;
/// The kernel refuses writable imports.
pub(crate) const FLAG_READ_ONLY: u16 = 1 << 1;
/// The producer answers on its socket.
pub(crate) const FLAG_SOCKET: u16 = 1 << 2;
/// The export names a whole region and not a block.
pub(crate) const FLAG_REGION: u16 = 1 << 3;
/// `/proc/<pid>/fd/<n>` can open the data fd, which is then a plain file. Otherwise a device may import the memory.
pub(crate) const FLAG_PROCFS: u16 = 1 << 4;
pub(crate) const FLAGS_KNOWN: u16 = FLAG_ISOLATED | FLAG_READ_ONLY | FLAG_SOCKET | FLAG_REGION | FLAG_PROCFS;
