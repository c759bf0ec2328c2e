//! Packets of producers' sockets. Decoding never panics, and what decodes encodes to the same
//! bytes.

#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| umf_ipc::fuzz::packets(data));
