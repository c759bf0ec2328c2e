//! Ledgers that other processes wrote: any bytes are read, or refused, within bounds.

#![no_main]

use libfuzzer_sys::fuzz_target;
use umf_ipc::inspect::Ledger;

fuzz_target!(|data: &[u8]| {
    // Pages, most of them zeros, into which the input goes in pieces: an offset, and what lies there.
    let mut bytes = vec![0; 64 << 10];
    bytes[..8].copy_from_slice(b"UMFLEDG1");
    bytes[8..12].copy_from_slice(&1_u32.to_le_bytes());
    bytes[12..16].copy_from_slice(&4096_u32.to_le_bytes());
    bytes[80..84].copy_from_slice(&64_u32.to_le_bytes());
    for piece in data.chunks(10) {
        let Some((at, value)) = piece.split_at_checked(2) else { break };
        let at = usize::from(u16::from_le_bytes([at[0], at[1]]));
        let end = bytes.len().min(at + value.len());
        bytes[at..end].copy_from_slice(&value[..end - at]);
    }
    for bytes in [data, &bytes] {
        let Some(ledger) = Ledger::from_bytes(bytes) else { continue };
        if let Some(statistics) = ledger.statistics() {
            assert!(statistics.pools.len() <= 64);
            assert!(!statistics.name.chars().any(char::is_control));
        }
        if let Some(events) = ledger.events() {
            assert!(events.recorded.len() + events.torn <= 1 << 16);
            assert!(events.recorded.windows(2).all(|pair| pair[0].ticket < pair[1].ticket));
        }
        assert!(ledger.slots().count() <= bytes.len() / 64);
        let _ = (ledger.slot(0), ledger.slot(u32::MAX), ledger.identity());
    }
});
