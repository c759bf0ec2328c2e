//! Reads ledgers of other processes. The reader accepts or rejects any bytes, and stays within
//! their bounds.

#![no_main]

use std::sync::LazyLock;

use libfuzzer_sys::fuzz_target;
use umf_ipc::inspect::Ledger;

/// Offset of the statistics in the valid ledger. `docs/ledger.md` has the layout.
const STATISTICS: usize = 12288;
/// Size of the valid ledger.
const SIZE: usize = 28672;
/// Number of its slots, all of which are used.
const SLOTS: u32 = 64;
/// Its rings of two records each: the offset of the ring, and the words of a record.
const RINGS: [(usize, usize); 2] = [(STATISTICS + 8 * 8, 32), (STATISTICS + 88 * 8, 776)];

/// Returns a valid ledger, in which every record was written once and is empty.
fn ledger() -> Vec<u8> {
    let mut bytes = vec![0; SIZE];
    let mut put = |at: usize, value: &[u8]| bytes[at..at + value.len()].copy_from_slice(value);
    put(0, b"UMFLEDGR");
    for (at, half) in [(8, 3), (12, 4096), (80, 128), (84, SLOTS), (88, SLOTS)] {
        put(at, &u32::to_le_bytes(half));
    }
    for (at, word) in [(104, STATISTICS), (STATISTICS, 1), (STATISTICS + 8, 12)] {
        put(at, &word.to_le_bytes());
    }
    for slot in 0..SLOTS as usize {
        put(4096 + slot * 128, &1_u64.to_le_bytes());
    }
    for (ring, words) in RINGS {
        put(ring, &words.to_le_bytes());
        put(ring + 8, &2_u64.to_le_bytes());
        for ticket in 0..2 {
            put(ring + (16 + ticket * words) * 8, &(2 * ticket + 2).to_le_bytes());
        }
    }
    bytes
}

static LEDGER: LazyLock<Vec<u8>> = LazyLock::new(|| {
    let bytes = ledger();
    let ledger = Ledger::from_bytes(&bytes).expect("a valid ledger");
    assert!(ledger.statistics().is_some() && ledger.slots().all(|slot| slot.content.is_some()));
    bytes
});

fuzz_target!(|data: &[u8]| {
    // The input overwrites pieces of the valid ledger. A piece is an offset and up to eight bytes.
    let mut bytes = LEDGER.clone();
    for piece in data.chunks(10) {
        let Some((at, value)) = piece.split_at_checked(2) else { break };
        let at = usize::from(u16::from_le_bytes([at[0], at[1]])) % SIZE;
        let end = SIZE.min(at + value.len());
        bytes[at..end].copy_from_slice(&value[..end - at]);
    }
    for bytes in [data, &bytes] {
        let Some(ledger) = Ledger::from_bytes(bytes) else { continue };
        if let Some(statistics) = ledger.statistics() {
            assert!(statistics.pools.len() <= 64);
            assert!(!statistics.name.chars().any(char::is_control));
        }
        assert!(ledger.slots().count() <= bytes.len() / 128);
        let _ = (ledger.slot(0), ledger.slot(u32::MAX), ledger.identity());
    }
});
