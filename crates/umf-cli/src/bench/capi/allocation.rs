//! The rows about blocks: allocating, freeing, and finding their pool.

use std::ffi::c_void;
use std::time::Duration;

use super::libraries::{Libraries, Side};
use super::row;
use crate::bench::Bench;
use crate::bench::c_umf::{CAPACITY, CUmf, Kind, Memory, Refused, Settings};
use crate::bench::measure::told;
use crate::bench::pool::{self, MIDDLE, Order, SMALL, WithoutPool};
use crate::failure::Failure;
use crate::timing;

/// Blocks that are used in turn.
pub(super) const SET: usize = 8;
/// Bytes of a block whose pool is looked up.
const SIZE: usize = 1 << 10;
/// How often the set is gone through in a batch.
const PASSES: usize = 1024;

/// A pool as programs make it that set nothing.
const DEFAULT: Settings = Settings::default_over(Memory::Private);

/// Adds the rows.
pub(super) fn measure(bench: &mut Bench, libraries: &Libraries) -> Result<(), Failure> {
    let quick = bench.quick;
    let keeping = Settings { capacity: Some(CAPACITY), ..DEFAULT };
    for (name, order, sizes, threads, settings) in [
        ("capi.small.pair.1t", Order::Pair, SMALL, 1, DEFAULT),
        ("capi.small.pair.2t", Order::Pair, SMALL, 2, DEFAULT),
        ("capi.small.random.1t", Order::Random, SMALL, 1, DEFAULT),
        ("capi.small.random.2t", Order::Random, SMALL, 2, DEFAULT),
        ("capi.1k_64k.random.1t", Order::Random, MIDDLE, 1, DEFAULT),
        ("capi.1k_64k.random.2t", Order::Random, MIDDLE, 2, DEFAULT),
        ("capi.1k_64k.random.1t.capacity_64", Order::Random, MIDDLE, 1, keeping),
        ("capi.1k_64k.random.2t.capacity_64", Order::Random, MIDDLE, 2, keeping),
        ("capi.small.xfree.1t", Order::CrossFree, SMALL, 1, DEFAULT),
    ] {
        let plan = pool::plan(quick, order, sizes, threads, false);
        row(bench, libraries, name, settings, |side| pool::run(&side.library, &plan))?;
    }
    jemalloc(bench, libraries)?;
    let plan = pool::plan(quick, Order::Random, SMALL, 1, false);
    let free_any = |side: &Side| pool::run(&WithoutPool(&side.library), &plan);
    row(bench, libraries, "capi.free_any", DEFAULT, free_any)?;

    let time = bench.turn();
    row(bench, libraries, "capi.pool_by_ptr", DEFAULT, |side| {
        over_blocks(&side.library, SIZE, time, PASSES, |pointer| side.library.find_pool(pointer))
    })
}

/// The rows of jemalloc pools, which either library may have been built without: then it is left out.
fn jemalloc(bench: &mut Bench, libraries: &Libraries) -> Result<(), Failure> {
    let settings = Settings { kind: Kind::Jemalloc, ..DEFAULT };
    for (name, order, sizes, threads) in [
        ("capi.jemalloc.small.pair.1t", Order::Pair, SMALL, 1),
        ("capi.jemalloc.small.random.1t", Order::Random, SMALL, 1),
        ("capi.jemalloc.small.random.2t", Order::Random, SMALL, 2),
        ("capi.jemalloc.1k_64k.random.1t", Order::Random, MIDDLE, 1),
        ("capi.jemalloc.small.xfree.1t", Order::CrossFree, SMALL, 1),
    ] {
        let plan = pool::plan(bench.quick, order, sizes, threads, false);
        row(bench, libraries, name, settings, |side| pool::run(&side.library, &plan))?;
    }
    Ok(())
}

/// Nanoseconds of what is done with each of a few blocks of a pool, again and again.
pub(super) fn over_blocks(
    library: &CUmf,
    size: usize,
    time: Duration,
    passes: usize,
    each: impl Fn(*mut c_void) -> Result<(), Refused>,
) -> Result<Vec<f64>, Failure> {
    let pointers: Result<Vec<_>, Refused> = (0..SET).map(|_| library.allocate(size)).collect();
    let pointers = pointers.map_err(told)?;
    let values = timing::batches(time, || {
        for _ in 0..passes {
            pointers.iter().try_for_each(|pointer| each(*pointer))?;
        }
        Ok::<u64, Refused>((passes * SET) as u64)
    });
    for pointer in pointers {
        // SAFETY: it was allocated above, and nobody uses it.
        unsafe { library.free_in_pool(pointer) }.map_err(told)?;
    }
    values.map_err(told)
}
