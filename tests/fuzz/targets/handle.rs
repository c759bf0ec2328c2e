//! Decodes handles from bytes and text. Decoding never panics. A decoded handle encodes to the same
//! bytes.

#![no_main]

use libfuzzer_sys::fuzz_target;
use umf_ipc::Handle;

fuzz_target!(|data: &[u8]| {
    if let Ok(text) = std::str::from_utf8(data)
        && let Ok(handle) = text.parse::<Handle>()
    {
        assert_eq!(handle.to_string(), text.trim_ascii());
    }
    // With a valid checksum, inputs reach the checks of the fields.
    let mut bytes = data.to_vec();
    bytes.resize(256, 0);
    bytes[..6].copy_from_slice(b"UMFH\x01\x00");
    let checksum = crc32(&bytes[..252]);
    bytes[252..].copy_from_slice(&checksum.to_le_bytes());
    for bytes in [data, &bytes] {
        if let Ok(handle) = Handle::from_bytes(bytes) {
            assert_eq!(handle.as_bytes().as_slice(), bytes);
            assert!(handle.offset() + handle.length() <= handle.region_size());
            assert!(handle.native().len() <= 64);
            assert_eq!(handle.to_string().parse(), Ok(handle));
            let _ = format!("{handle:?} {}", handle.provider_kind());
        }
    }
});

/// CRC-32 (IEEE), bit by bit, independent of the decoder's implementation.
fn crc32(bytes: &[u8]) -> u32 {
    !bytes.iter().fold(!0, |crc, &byte| {
        (0..8).fold(crc ^ u32::from(byte), |crc, _| (crc >> 1) ^ (0xEDB8_8320 & (crc & 1).wrapping_neg()))
    })
}
