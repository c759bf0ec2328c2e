//! Decodes packets of producers' sockets, and takes packets of proofs. Decoding never panics. A
//! decoded packet encodes to the same bytes.

#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| {
    umf_ipc::fuzz::packets(data);
    umf_ipc::fuzz::proofs(data);
});
