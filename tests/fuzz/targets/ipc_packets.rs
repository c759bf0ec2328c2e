//! Decodes packets of producers' sockets. Decoding never panics. A decoded packet encodes to the
//! same bytes.

#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| umf_ipc::fuzz::packets(data));
