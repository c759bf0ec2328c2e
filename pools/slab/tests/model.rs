//! The pool against a plain reference: a map of live blocks.

use std::collections::BTreeMap;
use std::sync::Arc;

use proptest::prelude::*;
use umf_core::conformance::pool::Numbers;
use umf_core::{Address, Error, Layout, Pool};
use umf_pool_slab::{SharedLimit, SlabPool, SlabSettings};

#[derive(Clone, Debug)]
enum Step {
    Allocate { size: usize, align: usize },
    Free(usize),
    FreeWrong { index: usize, offset: u64 },
    Trim(usize),
    FailAfter(u64),
    Recover,
}

fn step() -> impl Strategy<Value = Step> {
    let size = (0_u32..23, any::<u64>()).prop_map(|(bits, random)| (random as usize & ((2 << bits) - 1)) + 1);
    prop_oneof![
        20 => (size, 0_u32..22).prop_map(|(size, bits)| Step::Allocate { size, align: 1 << bits }),
        18 => any::<usize>().prop_map(Step::Free),
        4 => (any::<usize>(), 1_u64..100_000).prop_map(|(index, offset)| Step::FreeWrong { index, offset }),
        1 => (0_usize..32 << 20).prop_map(Step::Trim),
        1 => (0_u64..4).prop_map(Step::FailAfter),
        1 => Just(Step::Recover),
    ]
}

fn settings() -> impl Strategy<Value = SlabSettings> {
    let sizes = prop_oneof![Just(0_usize), Just(20_000), Just(2 << 20), Just(16 << 20)];
    (3_u32..13, sizes, 0_u32..5, prop_oneof![Just(64_usize << 10), Just(1 << 20)]).prop_map(
        |(bits, poolable, capacity, slab)| {
            SlabSettings::new()
                .min_block_size(1 << bits)
                .max_poolable_size(poolable)
                .capacity(capacity)
                .slab_min_size(slab)
        },
    )
}

const LIMIT: u64 = 64 << 20;

proptest! {
    #![proptest_config(ProptestConfig::with_cases(150))]

    #[test]
    fn agrees_with_a_plain_reference(
        settings in settings(),
        page in prop_oneof![Just(256_usize), Just(4096), Just(64 << 10), Just(2 << 20)],
        steps in prop::collection::vec(step(), 1..600),
    ) {
        let provider = Numbers::new(page);
        let limit = Arc::new(SharedLimit::new(2 * LIMIT));
        let settings = settings.memory_limit(LIMIT).shared_limit(Arc::clone(&limit));
        let pool = SlabPool::new(provider.clone(), settings).unwrap();
        // Start to end of each live block.
        let mut live: BTreeMap<u64, u64> = BTreeMap::new();
        let nth = |live: &BTreeMap<u64, u64>, index: usize| live.iter().nth(index % live.len().max(1)).map(|(&a, &b)| (a, b));
        for step in steps {
            match step {
                Step::Allocate { size, align } => match pool.allocate(Layout::new(size, align).unwrap()) {
                    Ok(address) => {
                        prop_assert!(address.is_aligned_to(align));
                        let block = pool.block_at(address).unwrap();
                        prop_assert!(block.address == address && block.size >= size);
                        prop_assert!(provider.contains(address, block.size));
                        let (start, end) = (address.to_bits(), address.to_bits() + block.size as u64);
                        let below = live.range(..end).next_back();
                        prop_assert!(below.is_none_or(|(_, &other)| other <= start));
                        live.insert(start, end);
                    }
                    Err(error) => {
                        let expected = matches!(error, Error::OutOfMemory { .. } | Error::LimitReached { .. });
                        prop_assert!(expected, "{:?}", error);
                    }
                },
                Step::Free(index) => if let Some((start, _)) = nth(&live, index) {
                    let address = Address::from_bits(start);
                    // SAFETY: nobody uses the block.
                    prop_assert_eq!(unsafe { pool.free(address) }, Ok(()));
                    // SAFETY: no live block begins there: an error is expected.
                    let second = unsafe { pool.free(address) };
                    let expected = matches!(second, Err(Error::NotAllocated { .. } | Error::ForeignAddress { .. }));
                    prop_assert!(expected, "{:?}", second);
                    live.remove(&start);
                },
                Step::FreeWrong { index, offset } => if let Some((start, _)) = nth(&live, index) {
                    let wrong = start + offset;
                    if live.contains_key(&wrong) {
                        continue;
                    }
                    // SAFETY: no live block begins there: an error is expected.
                    let result = unsafe { pool.free(Address::from_bits(wrong)) };
                    let inside = live.range(..wrong).next_back().is_some_and(|(_, &end)| wrong < end);
                    let interior = matches!(result, Err(Error::InteriorAddress { .. }));
                    prop_assert_eq!(interior, inside, "{:?}", result);
                    prop_assert!(result.is_err());
                },
                Step::Trim(keep) => {
                    let before = pool.statistics().reserved_bytes;
                    let went = pool.trim(keep).unwrap();
                    prop_assert_eq!(pool.statistics().reserved_bytes, before - went as u64);
                }
                Step::FailAfter(n) => provider.fail_after(Some(n)),
                Step::Recover => provider.fail_after(None),
            }
            let statistics = pool.statistics();
            prop_assert_eq!(statistics.live_blocks, live.len() as u64);
            prop_assert_eq!(statistics.live_bytes, live.iter().map(|(start, end)| end - start).sum::<u64>());
            prop_assert_eq!(statistics.reserved_bytes, provider.live_bytes() as u64);
            prop_assert_eq!(statistics.regions, provider.live_regions() as u64);
            prop_assert_eq!(limit.used(), statistics.reserved_bytes);
            prop_assert!(statistics.reserved_bytes <= LIMIT);
        }
        for &start in live.keys() {
            // SAFETY: nobody uses the block.
            prop_assert_eq!(unsafe { pool.free(Address::from_bits(start)) }, Ok(()));
        }
        pool.trim(0).unwrap();
        prop_assert_eq!((provider.live_regions(), limit.used()), (0, 0));
    }
}

#[test]
fn a_pool_that_goes_gives_its_part_of_the_shared_limit_back() {
    let limit = Arc::new(SharedLimit::new(8 << 20));
    let make =
        || SlabPool::new(Numbers::new(4096), SlabSettings::new().shared_limit(Arc::clone(&limit))).unwrap();
    let block = Layout::new(1 << 20, 8).unwrap();
    for _ in 0..20 {
        let (one, two) = (make(), make());
        let mut n = 0;
        while one.allocate(block).is_ok() {
            n += 1;
        }
        assert_eq!(n, 8, "a limit serves to its last byte");
        assert!(matches!(two.allocate(block), Err(Error::LimitReached { what: "shared memory", .. })));
        drop(one);
        assert!(two.allocate(block).is_ok());
    }
    assert_eq!(limit.used(), 0);
}
