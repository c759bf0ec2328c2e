//! Decodes the messages between importers and servers of remote memory. Decoding never panics. A
//! decoded message encodes to one that decodes to the same.

#![no_main]

use libfuzzer_sys::fuzz_target;

/// Kinds of messages, and one that there is not.
const KINDS: u8 = 12;
/// The bytes of a header.
const HEADER: usize = 24;

fuzz_target!(|data: &[u8]| {
    umf_remote::fuzz::messages(data);
    // With a valid header, and a valid handle behind it, inputs reach the checks of the fields.
    let Some((kind, body)) = data.split_first() else { return };
    let mut message = [0; HEADER].to_vec();
    message[..4].copy_from_slice(&[b'U', b'R', 1, kind % KINDS]);
    message.extend(body);
    umf_remote::fuzz::messages(&message);
    message.resize(message.len().max(HEADER + 256), 0);
    let handle = &mut message[HEADER..HEADER + 256];
    handle[..6].copy_from_slice(b"UMFH\x01\x00");
    let checksum = crc32fast::hash(&handle[..252]);
    handle[252..].copy_from_slice(&checksum.to_le_bytes());
    umf_remote::fuzz::messages(&message);
});
