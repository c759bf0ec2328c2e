//! Compares the extents with a model.

use core::mem::MaybeUninit;
use std::collections::BTreeMap;

use proptest::prelude::*;
use umf_core::{Address, AddressSpace};

use super::*;

use crate::types::Cold;

/// Extents with their metadata and regions.
struct Fixture {
    meta: Metadata,
    extents: Extents,
    regions: Vec<(u32, u32)>,
}

impl Fixture {
    fn new() -> Self {
        Self { meta: Metadata::new().unwrap(), extents: Extents::new(), regions: Vec::new() }
    }

    fn add(&mut self, units: u32) {
        let (table_run, _) = self.meta.runs.allocate(table_bytes(units)).unwrap();
        let (number, span) = self.meta.allocate_span().unwrap();
        let base = Address::in_space(AddressSpace::new(9).unwrap(), u64::from(number) * (7 << 24)).unwrap();
        // SAFETY: no other thread knows the number yet.
        unsafe {
            *span.cold() = Cold { unit: units, table_run: MaybeUninit::new(table_run), ..Cold::EMPTY };
        }
        span.publish_region(base, u64::from(units) * 4096, (0, u64::from(units) * 4096));
        self.extents.add_region(&self.meta, number);
        self.regions.push((number, units));
    }
}

#[derive(Clone, Debug)]
enum Step {
    Allocate { size: u32, align: u32 },
    Free(usize),
    Add(u32),
    Remove(usize),
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        6 => (1_u32..200, 0_u32..7).prop_map(|(size, bits)| Step::Allocate { size, align: 1 << bits }),
        5 => any::<prop::sample::Index>().prop_map(|index| Step::Free(index.index(1 << 20))),
        1 => (1_u32..2_000).prop_map(Step::Add),
        1 => any::<prop::sample::Index>().prop_map(|index| Step::Remove(index.index(1 << 20))),
    ]
}

/// Returns the length of the longest free range of a region.
fn longest(used: &BTreeMap<(u32, u32), u32>, region: u32, units: u32) -> u32 {
    let (mut at, mut best) = (0, 0);
    for (&(_, first), &size) in used.range((region, 0)..(region + 1, 0)) {
        best = best.max(first - at);
        at = first + size;
    }
    best.max(units - at)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    #[test]
    fn extents_agree_with_a_model(steps in prop::collection::vec(step(), 1..400)) {
        let mut fixture = Fixture::new();
        let mut used: BTreeMap<(u32, u32), u32> = BTreeMap::new();
        for step in steps {
            match step {
                Step::Add(units) if fixture.regions.len() < 20 => fixture.add(units),
                Step::Add(_) => {}
                Step::Allocate { size, align } => {
                    let meta = &fixture.meta;
                    let Some(range) = fixture.extents.allocate(meta, size, align, 5) else {
                        // The search may miss a fit, but not in a range that is much longer.
                        let sure = (size + align - 1).next_power_of_two() * 2;
                        for &(region, units) in &fixture.regions {
                            prop_assert!(longest(&used, region, units) < sure);
                        }
                        continue;
                    };
                    let units = fixture.regions.iter().find(|&&(number, _)| number == range.region).unwrap().1;
                    prop_assert!(range.first + size <= units);
                    let base = fixture.meta.span(range.region).unwrap().base().value() / 4096;
                    prop_assert_eq!((base + u64::from(range.first)) % u64::from(align), 0);
                    let place = (range.region, range.first);
                    if let Some((&(region, first), &length)) = used.range(..(place.0, place.1 + size)).next_back() {
                        prop_assert!(region != range.region || first + length <= range.first);
                    }
                    used.insert(place, size);
                }
                Step::Free(index) => {
                    let meta = &fixture.meta;
                    let Some((&(region, first), &size)) = used.iter().nth(index % used.len().max(1)) else { continue };
                    for unit in [first, first + size / 2, first + size - 1] {
                        prop_assert_eq!(extent_around(meta, region, unit), Some((first, size, 5)));
                    }
                    used.remove(&(region, first));
                    let (freed, whole) = fixture.extents.free(meta, Range { region, first }).unwrap();
                    prop_assert_eq!(freed, size);
                    prop_assert_eq!(whole, used.range((region, 0)..(region + 1, 0)).next().is_none());
                    prop_assert_eq!(fixture.extents.free(meta, Range { region, first }), None);
                    prop_assert_eq!(extent_around(meta, region, first), None);
                }
                Step::Remove(index) => {
                    let meta = &fixture.meta;
                    if fixture.regions.is_empty() {
                        continue;
                    }
                    let index = index % fixture.regions.len();
                    let (region, _) = fixture.regions[index];
                    let idle = used.range((region, 0)..(region + 1, 0)).next().is_none();
                    prop_assert_eq!(fixture.extents.remove_region(meta, region, 0), idle);
                    if idle {
                        fixture.regions.swap_remove(index);
                    }
                }
            }
            let all: u64 = fixture.regions.iter().map(|&(_, units)| u64::from(units)).sum();
            let taken: u64 = used.values().map(|&size| u64::from(size)).sum();
            prop_assert_eq!(fixture.extents.free_units(), all - taken);
            let idle = fixture.regions.iter().filter(|&&(number, _)| used.range((number, 0)..(number + 1, 0)).next().is_none());
            let idle: Vec<u64> = idle.map(|&(_, units)| u64::from(units)).collect();
            prop_assert_eq!(fixture.extents.idle(), (idle.iter().sum(), idle.len() as u32));
        }
    }
}

/// Two threads search for idle regions. The number of the region that one of them found is reused
/// before it removes the region.
#[test]
fn removed_region_is_not_removed_again() {
    let mut fixture = Fixture::new();
    fixture.add(256);
    let (removed, _) = fixture.regions[0];
    assert!(fixture.extents.remove_region(&fixture.meta, removed, 0));
    let span = fixture.meta.span(removed).unwrap();
    span.retract();
    // SAFETY: the region was removed above, and no other thread uses it.
    fixture.meta.runs.release(unsafe { span.cold().table_run.assume_init() });
    fixture.add(256);
    let (present, _) = fixture.regions[1];
    let meta = &fixture.meta;
    assert!(!fixture.extents.remove_region(meta, removed, 0));
    assert_eq!(fixture.extents.units(), 256);
    let range = fixture.extents.allocate(meta, 256, 1, 5).unwrap();
    assert_eq!(range.region, present);
}
