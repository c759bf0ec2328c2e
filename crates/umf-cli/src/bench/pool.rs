//! `umf bench pool`.

use std::hint::black_box;

use umf::host::HostProvider;
use umf::slab::SlabSettings;
use umf::{Address, Block, Layout, Pool};

use super::Bench;
use super::c_umf::Refused;
use super::measure::{self, Measured, told};
use super::pool_peers::Host;
use super::workload::{self, Allocator, ORDERS, Order, SIZES, Sizes};
use crate::failure::Failure;

/// All sizes of the workloads are pooled.
const LARGEST_POOLED: usize = 8 << 20;
/// Blocks whose pool is looked up in turn.
const LOOKED_UP: usize = 1000;

/// A slab pool over private memory, by the interface that applications use.
struct Slab(Pool);

impl Allocator for Slab {
    type Block = Address;
    type Error = umf::core::Error;

    #[inline]
    fn allocate(&self, size: usize) -> Result<Address, umf::core::Error> {
        self.0.as_core().allocate(Layout::new(size, 8)?)
    }

    #[inline]
    unsafe fn free(&self, block: Address, _size: usize) -> Result<(), umf::core::Error> {
        // SAFETY: the caller's contract.
        unsafe { self.0.as_core().free(block) }
    }
}

/// Adds the rows `pool.*`, one for each peer.
pub(super) fn measure(bench: &mut Bench) -> Result<(), Failure> {
    if cfg!(not(feature = "peers")) {
        crate::output::tell("built without the feature \"peers\": mimalloc and jemalloc are not measured");
    }
    let provider = HostProvider::builder().name("bench").build().map_err(told)?;
    let settings = SlabSettings::new().name("bench").max_poolable_size(LARGEST_POOLED);
    let slab = Slab(Pool::builder().provider(provider).slab(settings).build().map_err(told)?);
    find_pool(bench, &slab.0)?;
    for sizes in SIZES {
        for (order_name, order) in ORDERS {
            for threads in [1, 2] {
                let name = format!("pool.{}.{order_name}.{threads}t", sizes.name);
                bench.rows.begin(&name);
                let ours = workload::run(&slab, sizes, order, threads, bench.time)?;
                for (peer, measured) in peers(bench, sizes, order, threads)? {
                    bench.rows.add(&name, ours, Some((peer, measured)))?;
                }
            }
        }
    }
    Ok(())
}

fn peers(
    bench: &Bench,
    sizes: Sizes,
    order: Order,
    threads: usize,
) -> Result<Vec<(&'static str, Measured)>, Failure> {
    let time = bench.time;
    let mut peers = vec![("glibc", workload::run(&Host::SYSTEM, sizes, order, threads, time)?)];
    #[cfg(feature = "peers")]
    {
        peers.push(("mimalloc", workload::run(&Host::MIMALLOC, sizes, order, threads, time)?));
        peers.push(("jemalloc", workload::run(&Host::JEMALLOC, sizes, order, threads, time)?));
    }
    if let Some(library) = &bench.peer {
        peers.push((super::c_umf::NAME, workload::run(library, sizes, order, threads, time)?));
    }
    Ok(peers)
}

/// From an address to its pool.
fn find_pool(bench: &mut Bench, pool: &Pool) -> Result<(), Failure> {
    let name = "pool.find_pool";
    bench.rows.begin(name);
    let blocks: Vec<Block<'_>> =
        (0..LOOKED_UP).map(|_| pool.allocate(4096).map_err(told)).collect::<Result<_, _>>()?;
    let addresses: Vec<Address> = blocks.iter().map(Block::address).collect();
    let ours = measure::one(bench.time, || {
        let found = addresses.iter().all(|address| {
            black_box(umf::core::tracker::find(black_box(*address)))
                .is_some_and(|found| found.region.size() > 0)
        });
        if found { Ok(LOOKED_UP as u64) } else { Err("a live block has no pool") }
    })?;
    let peer = match &bench.peer {
        Some(library) => {
            let pointers: Vec<_> =
                (0..LOOKED_UP).map(|_| library.allocate(4096)).collect::<Result<_, _>>().map_err(told)?;
            let measured = measure::one(bench.time, || {
                pointers.iter().try_for_each(|pointer| library.find_pool(*pointer))?;
                Ok::<u64, Refused>(LOOKED_UP as u64)
            })?;
            for pointer in pointers {
                // SAFETY: allocated above, and not used.
                unsafe { library.free(pointer) }.map_err(told)?;
            }
            Some((super::c_umf::NAME, measured))
        }
        None => None,
    };
    bench.rows.add(name, ours, peer)
}
