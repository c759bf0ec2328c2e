//! What processes say to each other when they meet, what a ring says of long messages, and the kernel's table of sockets: decoding never
//! panics, and what decodes encodes to the same.

#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| umf_link::fuzz::packets(data));
