//! The rows of `umf bench ipc` about leases and arenas.

use std::hint::black_box;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering, fence};

use umf::core::Visibility;
use umf::host::{HostImport, HostProvider};
use umf::proxy::ProxyPool;
use umf::{Block, Handle, Importer, Pool};

use super::Bench;
use super::measure::{self, told};
use super::producer::Producer;
use crate::failure::Failure;
use crate::timing;

/// Regions of an arena that are opened one after the other, each for the first time.
const REGIONS: usize = 8192;
/// Blocks that are freed in a batch.
const BLOCKS: usize = 256;
const SIZE: usize = 4096;

/// A pool in which each block is a region of its own, carved from one memory file.
pub(super) fn arena() -> Result<Pool, Failure> {
    let provider = HostProvider::builder().name("arena").visibility(Visibility::Shared).build();
    Ok(Pool::from_pool(ProxyPool::new(provider.map_err(told)?).map_err(told)?))
}

fn importer() -> Result<Importer, Failure> {
    Importer::builder().import(Arc::new(HostImport::new())).build().map_err(told)
}

/// Adds the rows.
pub(super) fn measure(bench: &mut Bench, producer: &mut Producer) -> Result<(), Failure> {
    check(bench)?;
    frees(bench)?;
    opens_in_an_arena(bench, producer)
}

/// What lease and ledger check add to a cached open and its close: the words that these write and read, and in the peer's
/// column the same with the lease's and the generation's left out.
fn check(bench: &mut Bench) -> Result<(), Failure> {
    const TIMES: u64 = 10_000;
    let words: [AtomicU64; 64] = std::array::from_fn(|_| AtomicU64::new(1));
    let [pin, lease, stamp, generation] = [0, 16, 32, 48].map(|at| black_box(&words[at]));
    let add = |word: &AtomicU64, count: u64| {
        word.store(word.load(Ordering::Relaxed).wrapping_add(count), Ordering::Release);
    };
    bench.rows.begin("ipc.ledger_check");
    let without = measure::one(bench.time, || {
        let mut good = 0;
        for _ in 0..TIMES {
            add(pin, 1);
            fence(Ordering::SeqCst);
            good += stamp.load(Ordering::Acquire);
            add(pin, u64::MAX);
        }
        Ok::<u64, std::fmt::Error>(black_box(good))
    })?;
    let with = measure::one(bench.time, || {
        let mut good = 0;
        for _ in 0..TIMES {
            add(pin, 1);
            add(lease, 1);
            fence(Ordering::SeqCst);
            good += stamp.load(Ordering::Acquire) & generation.load(Ordering::Acquire);
            add(lease, u64::MAX);
            add(pin, u64::MAX);
        }
        Ok::<u64, std::fmt::Error>(black_box(good))
    })?;
    bench.rows.add("ipc.ledger_check", with, Some(("without", without)))
}

/// What a free costs by what was done with the block before.
fn frees(bench: &mut Bench) -> Result<(), Failure> {
    let pool = Pool::shared().map_err(told)?;
    let importer = importer()?;
    let free = |bench: &mut Bench, name: &str, prepare: &dyn Fn(&[Block<'_>]) -> Result<(), Failure>| {
        bench.rows.begin(name);
        let measured = measure::singly(bench.time, || {
            let blocks: Vec<_> =
                (0..BLOCKS).map(|_| pool.allocate(SIZE)).collect::<Result<_, _>>().map_err(told)?;
            prepare(&blocks)?;
            let (time, ()) = timing::nanoseconds(|| drop(black_box(blocks)));
            Ok::<f64, Failure>(time / BLOCKS as f64)
        })?;
        bench.rows.add(name, measured, None)
    };
    free(bench, "ipc.free.never_exported", &|_| Ok(()))?;
    free(bench, "ipc.free.exported", &|blocks| {
        blocks.iter().try_for_each(|block| block.handle().map(drop)).map_err(told)
    })?;
    free(bench, "ipc.free.opened_and_closed", &|blocks| {
        blocks
            .iter()
            .try_for_each(|block| importer.open(&block.handle().map_err(told)?).map(drop).map_err(told))
    })
}

fn opens_in_an_arena(bench: &mut Bench, producer: &mut Producer) -> Result<(), Failure> {
    let handles: Vec<Handle> = producer.arena(REGIONS, SIZE)?;
    bench.rows.begin("ipc.open_in_arena");
    let measured = measure::singly(bench.time, || {
        let importer = importer()?;
        let (first, others) = handles.split_first().ok_or_else(|| told("the producer exported nothing"))?;
        drop(importer.open(first).map_err(told)?);
        let (time, opened) = timing::nanoseconds(|| {
            others.iter().try_for_each(|handle| {
                importer.open(black_box(handle)).map(|mapping| drop(black_box(mapping)))
            })
        });
        opened.map_err(told)?;
        Ok::<f64, Failure>(time / others.len() as f64)
    })?;
    bench.rows.add("ipc.open_in_arena", measured, None)
}
