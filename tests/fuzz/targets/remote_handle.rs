//! Decodes remote handles: a handle, and the route to its producer. Decoding never panics. A decoded
//! remote handle encodes to the same bytes.

#![no_main]

use libfuzzer_sys::fuzz_target;

/// The bytes of a handle.
const HANDLE: usize = 256;

fuzz_target!(|data: &[u8]| {
    umf_remote::fuzz::route(data);
    // With valid checksums and lengths, inputs reach the checks of the fields.
    let mut bytes = data.to_vec();
    bytes.resize(bytes.len().clamp(HANDLE + 12, HANDLE + 512), 0);
    bytes[..6].copy_from_slice(b"UMFH\x01\x00");
    let checksum = crc32fast::hash(&bytes[..HANDLE - 4]);
    bytes[HANDLE - 4..HANDLE].copy_from_slice(&checksum.to_le_bytes());
    let length = (bytes.len() - HANDLE) as u16;
    bytes[HANDLE..HANDLE + 6].copy_from_slice(b"UMFR\x01\x00");
    bytes[HANDLE + 6..HANDLE + 8].copy_from_slice(&length.to_le_bytes());
    let end = bytes.len() - 4;
    let checksum = crc32fast::hash(&bytes[..end]);
    bytes[end..].copy_from_slice(&checksum.to_le_bytes());
    umf_remote::fuzz::route(&bytes);
});
