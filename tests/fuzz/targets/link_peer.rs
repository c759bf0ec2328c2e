//! A link whose other side writes what it likes into the memory that both have: calls end, with a result or an error, and touch nothing
//! but their own memory.

#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| umf_link::fuzz::hostile_peer(data));
