//! Leases that hold freed memory: dropped exporters, many leases at a time, checked reads and the
//! rows that `umf why` shows.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on ends")]

use std::collections::HashSet;
use std::sync::{Arc, Barrier};
use std::time::Duration;

use umf_core::{Address, Layout, Pool, Visibility};
use umf_ipc::{Exporter, ExporterSettings, Handle, Importer};
use umf_pool_slab::{SlabPool, SlabSettings};
use umf_provider_host::{HostImport, HostProvider};
use umf_runtime::deferred;

const SIZE: usize = 4096;

fn pool() -> Arc<SlabPool> {
    let provider: Arc<HostProvider> = HostProvider::builder().visibility(Visibility::Shared).build().unwrap();
    SlabPool::new(provider, SlabSettings::new()).unwrap()
}

fn importer() -> Importer {
    Importer::builder().import(Arc::new(HostImport::new())).build().unwrap()
}

fn allocate(pool: &SlabPool) -> Address {
    pool.allocate(Layout::new(SIZE, 16).unwrap()).unwrap()
}

fn handle(exporter: &Exporter, block: Address) -> Handle {
    // SAFETY: nothing holds a reference into the block.
    unsafe { exporter.handle(block) }.unwrap()
}

fn free(pool: &SlabPool, block: Address) {
    // SAFETY: the test's own block.
    unsafe { pool.free(block) }.unwrap();
}

/// Allocates `count` blocks.
fn next_blocks(pool: &SlabPool, count: usize) -> Vec<Address> {
    (0..count).map(|_| allocate(pool)).collect()
}

#[test]
fn open_block_of_dropped_exporter_is_held() {
    let (pool, importer) = (pool(), importer());
    let exporter = Exporter::new(ExporterSettings::default()).unwrap();
    let block = allocate(&pool);
    let mapping = importer.open(&handle(&exporter, block)).unwrap();
    drop(exporter);
    assert!(!mapping.is_current());
    free(&pool, block);
    assert!(!next_blocks(&pool, 1000).contains(&block), "allocated again while it is open");
    drop(mapping);
    assert_eq!(pool.controls().unwrap().drain(Duration::from_secs(9)).blocks, 0);
    assert!(next_blocks(&pool, 1000).contains(&block), "not reused after it was closed");
}

/// An open block is held, whether it is freed before, while or after its exporter is dropped.
#[test]
fn free_during_exporter_drop_holds_open_blocks() {
    let importer = importer();
    for round in 0..40 {
        let pool = pool();
        let exporter = Exporter::new(ExporterSettings::default()).unwrap();
        let blocks = next_blocks(&pool, 500);
        let mappings: Vec<_> =
            blocks.iter().map(|block| importer.open(&handle(&exporter, *block)).unwrap()).collect();
        let start = Barrier::new(2);
        std::thread::scope(|scope| {
            let start = &start;
            scope.spawn(move || {
                start.wait();
                drop(exporter);
            });
            start.wait();
            blocks.iter().for_each(|block| free(&pool, *block));
        });
        assert_eq!(pool.statistics().held_bytes, (blocks.len() * SIZE) as u64, "round {round}");
        drop(mappings);
        assert_eq!(pool.controls().unwrap().drain(Duration::from_secs(9)).blocks, 0, "round {round}");
    }
}

/// Freed blocks are reused when they are closed, and not before, in any order.
#[test]
fn only_closed_blocks_are_reused() {
    let (pool, importer) = (pool(), importer());
    let exporter = Exporter::new(ExporterSettings::default()).unwrap();
    let blocks = next_blocks(&pool, 3000);
    let mut mappings: Vec<_> =
        blocks.iter().map(|block| Some(importer.open(&handle(&exporter, *block)).unwrap())).collect();
    for block in &blocks {
        free(&pool, *block);
    }
    for round in 0..3 {
        for mapping in mappings.iter_mut().skip(round).step_by(3) {
            drop(mapping.take());
        }
        let open = mappings.iter().flatten().count();
        let is_right = || {
            deferred::poll();
            pool.statistics().held_bytes == (open * SIZE) as u64
        };
        // A thread of another test may be reclaiming some of them.
        assert!(
            (0..500).any(|_| is_right() || {
                std::thread::sleep(Duration::from_millis(10));
                false
            }),
            "round {round}"
        );
        // More than all free blocks, because the pool allocates them in its own order, and may have
        // freed whole regions.
        let again: HashSet<_> = next_blocks(&pool, 30_000).into_iter().collect();
        for (block, mapping) in blocks.iter().zip(&mappings) {
            assert!(
                !again.contains(block) || mapping.is_none(),
                "round {round}: allocated again while it is open"
            );
        }
        let back = blocks.iter().filter(|block| again.contains(*block)).count();
        assert!(back > 0 || open == 0, "round {round}");
        for block in again {
            free(&pool, block);
        }
    }
}

#[test]
fn with_and_read_current_detect_a_free() {
    let (pool, importer) = (pool(), importer());
    let exporter = Exporter::new(ExporterSettings::default()).unwrap();
    let block = allocate(&pool);
    let handle = handle(&exporter, block);
    let mapping = importer.open(&handle).unwrap();
    mapping.write(0, b"hello").unwrap();
    let mut text = [0; 5];
    mapping.read_current(0, &mut text).unwrap();
    assert_eq!(&text, b"hello");
    assert_eq!(mapping.with(|memory| memory.len()).unwrap(), mapping.len());
    // Freed during the use.
    let error = mapping.with(|_| free(&pool, block)).unwrap_err();
    let expected = (std::process::id(), handle.slot(), handle.generation());
    assert!(
        matches!(error, umf_ipc::Error::Stale { pid, slot, generation, now }
            if (pid, slot, generation) == expected && now > generation),
        "{error:?}"
    );
    assert!(matches!(mapping.with(|_| ()), Err(umf_ipc::Error::Stale { .. })), "freed before the use");
    assert!(matches!(mapping.read_current(0, &mut text), Err(umf_ipc::Error::Stale { .. })));
    // With `on_free = "hold"` the contents stay while the block is open.
    mapping.read(0, &mut text).unwrap();
    assert_eq!(&text, b"hello");
}

/// `umf why` shows the rows with leases on a slot, and whether their owners run.
#[test]
fn inspection_shows_lease_rows_of_a_slot() {
    let (pool, importer) = (pool(), importer());
    let exporter = Exporter::new(ExporterSettings::default()).unwrap();
    let block = allocate(&pool);
    let handle = handle(&exporter, block);
    let rows = || {
        let search = umf_ipc::inspect::find().unwrap();
        search.by_nonce(handle.nonce()).unwrap().lease_rows(handle.slot())
    };
    assert!(rows().is_empty());
    let mappings = [importer.open(&handle).unwrap(), importer.open(&handle).unwrap()];
    let leased = rows();
    assert_eq!((leased.len(), leased[0].count, leased[0].pid), (1, 2, std::process::id()));
    assert!(leased[0].is_owned && leased[0].importer != 0);
    drop(mappings);
    assert_eq!(rows()[0].count, 0);
    drop(importer);
    assert!(rows().is_empty());
}
