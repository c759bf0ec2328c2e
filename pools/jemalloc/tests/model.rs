//! Compares the pool with a model: a map of live blocks.

#![allow(clippy::unwrap_used, reason = "tests")]

use std::collections::BTreeMap;

use proptest::prelude::*;
use umf_core::{Address, BlockSpan, Error, Inspect, Layout, Pool, ProviderRef};
use umf_pool_jemalloc::{JemallocPool, JemallocSettings};
use umf_testkit::pool::{AddressOnlyProvider, MmapProvider};

#[derive(Clone, Debug)]
enum Step {
    Allocate {
        size: usize,
        align: usize,
    },
    Free(usize),
    /// Free in another thread, which then ends.
    FreeElsewhere(usize),
    /// Look up, and try to free, an address inside a live block.
    Inside {
        index: usize,
        offset: u64,
    },
    /// Free a block for the second time.
    FreeAgain(usize),
    Trim(usize),
    FailAfter(u64),
    Recover,
}

fn step() -> impl Strategy<Value = Step> {
    let size = (0_u32..23, any::<u64>()).prop_map(|(bits, random)| (random as usize & ((2 << bits) - 1)) + 1);
    prop_oneof![
        20 => (size, 0_u32..22).prop_map(|(size, bits)| Step::Allocate { size, align: 1 << bits }),
        14 => any::<usize>().prop_map(Step::Free),
        1 => any::<usize>().prop_map(Step::FreeElsewhere),
        4 => (any::<usize>(), any::<u64>()).prop_map(|(index, offset)| Step::Inside { index, offset }),
        2 => any::<usize>().prop_map(Step::FreeAgain),
        1 => (0_usize..1 << 24).prop_map(Step::Trim),
        1 => (0_u64..4).prop_map(Step::FailAfter),
        1 => Just(Step::Recover),
    ]
}

/// The interface of both test providers.
trait Source {
    fn fail_after(&self, n: Option<u64>);
    fn live_bytes(&self) -> usize;
    fn contains(&self, address: Address, size: usize) -> bool;
}

macro_rules! source {
    ($($provider:ty),*) => {
        $(impl Source for $provider {
            fn fail_after(&self, n: Option<u64>) {
                self.fail_after(n);
            }
            fn live_bytes(&self) -> usize {
                self.live_bytes()
            }
            fn contains(&self, address: Address, size: usize) -> bool {
                self.contains(address, size)
            }
        })*
    };
}
source!(AddressOnlyProvider, MmapProvider);

fn free(pool: &JemallocPool, address: Address) -> Result<(), Error> {
    // SAFETY: a block of the test that no thread uses, or no block, which is an error.
    unsafe { pool.free(address) }
}

fn run(source: &dyn Source, provider: ProviderRef, steps: &[Step]) -> Result<(), TestCaseError> {
    let pool = JemallocPool::with_settings(provider, JemallocSettings::default().arenas(2)).unwrap();
    let mut live: BTreeMap<u64, usize> = BTreeMap::new();
    let mut freed = Vec::new();
    let pick = |live: &BTreeMap<u64, usize>, index: usize| {
        let place = index.checked_rem(live.len())?;
        live.iter().nth(place).map(|(&address, &size)| (Address::from_bits(address), size))
    };
    let mut fails = false;
    for step in steps {
        match *step {
            Step::Allocate { size, align } => match pool.allocate(Layout::new(size, align).unwrap()) {
                Ok(address) => {
                    let block = pool.block_at(address).unwrap();
                    prop_assert!(
                        block.address == address && block.size >= size && address.is_aligned_to(align)
                    );
                    prop_assert!(source.contains(address, block.size), "{block:?} lies outside");
                    let (begin, end) = (address.to_bits(), address.to_bits() + block.size as u64);
                    let below = live.range(..end).next_back();
                    prop_assert!(
                        below.is_none_or(|(&other, &size)| other + size as u64 <= begin),
                        "{block:?}"
                    );
                    live.insert(begin, block.size);
                }
                Err(error) => prop_assert!(fails && matches!(error, Error::OutOfMemory { .. }), "{error}"),
            },
            Step::Free(index) => {
                if let Some((address, _)) = pick(&live, index) {
                    prop_assert_eq!(free(&pool, address), Ok(()));
                    live.remove(&address.to_bits());
                    freed.push(address);
                }
            }
            Step::FreeElsewhere(index) => {
                if let Some((address, _)) = pick(&live, index) {
                    let result =
                        std::thread::scope(|scope| scope.spawn(|| free(&pool, address)).join().unwrap());
                    prop_assert_eq!(result, Ok(()));
                    live.remove(&address.to_bits());
                }
            }
            Step::Inside { index, offset } => {
                if let Some((address, size)) = pick(&live, index) {
                    let inside = address.checked_add(offset % size as u64).unwrap();
                    prop_assert_eq!(pool.block_at(inside), Ok(BlockSpan { address, size }));
                    if inside != address {
                        prop_assert_eq!(free(&pool, inside), Err(Error::InteriorAddress { address: inside }));
                    }
                }
            }
            Step::FreeAgain(index) => {
                if let Some(&address) = index.checked_rem(freed.len()).and_then(|place| freed.get(place))
                    && !live.contains_key(&address.to_bits())
                {
                    prop_assert!(free(&pool, address).is_err());
                }
            }
            Step::Trim(keep) => {
                let before = pool.statistics();
                let released = pool.trim(keep).unwrap() as u64;
                let after = pool.statistics();
                prop_assert_eq!(before.reserved_bytes - released, after.reserved_bytes);
                if keep == 0 && live.is_empty() {
                    prop_assert_eq!(after.reserved_bytes, 0);
                }
            }
            Step::FailAfter(n) => {
                source.fail_after(Some(n));
                fails = true;
            }
            Step::Recover => {
                source.fail_after(None);
                fails = false;
            }
        }
        let statistics = pool.statistics();
        prop_assert_eq!(statistics.live_blocks, live.len() as u64);
        prop_assert_eq!(statistics.live_bytes, live.values().sum::<usize>() as u64);
        prop_assert_eq!(statistics.reserved_bytes, source.live_bytes() as u64);
    }
    let mut counted = (0, 0);
    prop_assert!(pool.leaks(&mut |report| counted = (report.blocks, report.bytes)));
    prop_assert_eq!(counted, (live.len() as u64, live.values().sum::<usize>() as u64));
    drop(pool);
    prop_assert_eq!(source.live_bytes(), 0);
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 48, failure_persistence: None, ..ProptestConfig::default() })]

    /// Memory that jemalloc knows by shadow addresses.
    #[test]
    fn agrees_with_a_map_over_numbers(steps in proptest::collection::vec(step(), 1..400)) {
        let provider = AddressOnlyProvider::new(4096);
        run(&*provider, provider.clone().into(), &steps)?;
    }

    /// Memory that the CPU cannot touch, at its own addresses.
    #[test]
    fn agrees_with_a_map_over_pages(steps in proptest::collection::vec(step(), 1..400)) {
        let provider = MmapProvider::untouchable();
        run(&*provider, provider.clone().into(), &steps)?;
    }
}
