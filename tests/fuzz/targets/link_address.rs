//! Decodes link addresses from bytes and text. Decoding never panics. A decoded address encodes to
//! the same bytes.

#![no_main]

use libfuzzer_sys::fuzz_target;
use umf_link::{ADDRESS_SIZE, LinkAddress};

fuzz_target!(|data: &[u8]| {
    if let Ok(text) = std::str::from_utf8(data)
        && let Ok(address) = text.parse::<LinkAddress>()
    {
        assert_eq!(address.to_string(), text.trim_ascii());
    }
    // With a valid checksum, inputs reach the checks of the fields.
    let mut bytes = data.to_vec();
    bytes.resize(ADDRESS_SIZE, 0);
    bytes[..6].copy_from_slice(b"UMFL\x02\x00");
    let checksum = crc32(&bytes[..ADDRESS_SIZE - 4]);
    bytes[ADDRESS_SIZE - 4..].copy_from_slice(&checksum.to_le_bytes());
    for bytes in [data, &bytes] {
        if let Ok(address) = LinkAddress::from_bytes(bytes) {
            assert_eq!(address.to_bytes().as_slice(), bytes);
            assert!(address.socket().starts_with("umf-link-"));
            assert_eq!(address.to_string().parse(), Ok(address));
            let _ = format!("{address:?} {}", address.pid());
        }
    }
});

/// CRC-32 (IEEE), bit by bit, independent of the decoder's implementation.
fn crc32(bytes: &[u8]) -> u32 {
    !bytes.iter().fold(!0, |crc, &byte| {
        (0..8).fold(crc ^ u32::from(byte), |crc, _| (crc >> 1) ^ (0xEDB8_8320 & (crc & 1).wrapping_neg()))
    })
}
