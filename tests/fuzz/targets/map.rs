//! Text of pool maps. Parsing accepts or refuses any text; drawing and summing a map stay within
//! bounds.

#![no_main]

use libfuzzer_sys::fuzz_target;
use umf::map::{from_json, to_json, to_svg};

fuzz_target!(|text: &str| {
    let Ok(map) = from_json(text) else { return };
    let totals = map.totals();
    for part in [totals.internal_fragmentation(), totals.external_fragmentation()] {
        assert!((0.0..=1.0).contains(&part));
    }
    assert!(to_svg(&map).len() < 64 << 20);
    assert_eq!(from_json(&to_json(&map)).expect("what was written is read"), map);
});
