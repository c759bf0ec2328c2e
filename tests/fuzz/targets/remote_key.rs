//! Decodes keys of registered ranges. Decoding never panics. A decoded key encodes to the same
//! bytes.

#![no_main]

use libfuzzer_sys::fuzz_target;
use umf_link::{KEY_SIZE, RemoteKey};

fuzz_target!(|data: &[u8]| {
    // With a valid checksum, inputs reach the checks of the fields.
    let mut bytes = data.to_vec();
    bytes.resize(KEY_SIZE, 0);
    bytes[..5].copy_from_slice(b"UMFR\x02");
    let checksum = crc32fast::hash(&bytes[..KEY_SIZE - 4]);
    bytes[KEY_SIZE - 4..].copy_from_slice(&checksum.to_le_bytes());
    for bytes in [data, &bytes] {
        if let Ok(key) = RemoteKey::from_bytes(bytes) {
            assert_eq!(key.to_bytes().as_slice(), bytes);
            assert!(key.access().allows_get() || key.access().allows_put());
            let _ = format!("{key:?} {}", key.len());
        }
    }
});
