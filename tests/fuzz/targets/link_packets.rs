//! Decodes the packets of a handshake, and the records of offers and blocks. Decoding never panics.
//! A decoded packet or record encodes to the same bytes.

#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| umf_link::fuzz::packets(data));
