//! Parses pool maps. The parser accepts or rejects any text. The totals and the drawing of a parsed
//! map stay within bounds.

#![no_main]

use libfuzzer_sys::fuzz_target;
use umf::map::{from_json, to_json, to_svg};

fuzz_target!(|text: &str| {
    let Ok(map) = from_json(text) else { return };
    let totals = map.totals();
    for fraction in [totals.internal_fragmentation(), totals.external_fragmentation()] {
        assert!((0.0..=1.0).contains(&fraction));
    }
    assert!(to_svg(&map).len() < 64 << 20);
    assert_eq!(from_json(&to_json(&map)).expect("a written map is valid"), map);
});
