//! Documents of maps: what was written is read again, and any other text is refused, or read within
//! bounds.

#![allow(clippy::unwrap_used, reason = "tests")]

use proptest::prelude::*;
use umf::Address;
use umf::map::{ClassMap, Piece, PieceState, PoolMap, RegionMap, from_json, to_json, to_svg};

fn region() -> impl Strategy<Value = RegionMap> {
    use PieceState::{Cached, Free, Held, Live, Quarantined};
    let state = prop::sample::select(vec![Live, Held, Quarantined, Cached, Free]);
    let piece = (0_u64..1000, 1_u64..1 << 40, 1_u64..1 << 20, state);
    (any::<u64>(), prop::collection::vec(piece, 0..20), 0_u64..100).prop_map(|(base, parts, rest)| {
        let mut end = 0;
        let pieces = parts.into_iter().map(|(gap, block_size, count, state)| {
            let piece = Piece { offset: end + gap, block_size, count, state };
            end = piece.offset + piece.size();
            piece
        });
        let pieces = pieces.collect();
        RegionMap { base: Address::from_bits(base), size: end + rest, pieces }
    })
}

fn map() -> impl Strategy<Value = PoolMap> {
    let class = (any::<u64>(), any::<u64>(), any::<u64>(), any::<u64>());
    let class = class.prop_map(|(block_size, slabs, waste, requested)| ClassMap {
        block_size,
        slabs,
        waste,
        requested,
    });
    (any::<String>(), any::<u64>(), prop::collection::vec(region(), 0..5), prop::collection::vec(class, 0..5))
        .prop_map(|(pool, peak_reserved, regions, classes)| PoolMap { pool, peak_reserved, regions, classes })
}

/// Whatever it says, sums and pictures are made of it.
fn use_it(map: &PoolMap) {
    let totals = map.totals();
    for part in [totals.internal_fragmentation(), totals.external_fragmentation()] {
        assert!((0.0..=1.0).contains(&part), "{part}");
    }
    assert!(to_svg(map).len() < 4 << 20);
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(200) })]

    #[test]
    fn map_survives_json(map in map()) {
        prop_assert_eq!(from_json(&to_json(&map)).unwrap(), map.clone());
        use_it(&map);
    }

    #[test]
    fn from_json_never_panics(map in map(), changes in prop::collection::vec((any::<usize>(), any::<u8>()), 1..8), end in any::<usize>()) {
        let mut bytes = to_json(&map).into_bytes();
        for (place, byte) in changes {
            let place = place % bytes.len();
            // Digits and what surrounds them, mostly.
            bytes[place] = if byte < 200 { b"0123456789,[]{}\"-.e"[usize::from(byte) % 19] } else { byte };
        }
        bytes.truncate(if end % 2 == 0 { bytes.len() } else { end % (bytes.len() + 1) });
        if let Ok(map) = from_json(&String::from_utf8_lossy(&bytes)) {
            use_it(&map);
        }
    }
}

#[test]
fn documents_of_format_1_are_read() {
    let old = r#"{"format":1,"pool":"p","totals":{"live_bytes":10},"regions":[{"base":0,"size":100,"pieces":[[0,10,2,"live"]]}]}"#;
    let map = from_json(old).unwrap();
    assert_eq!((map.totals().live, map.totals().requested, map.peak_reserved), (20, 20, 0));
}
