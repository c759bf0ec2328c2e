//! What a pool that is watched tells of mistakes.

#![allow(clippy::unwrap_used, reason = "tests")]

use std::sync::{Arc, Mutex};
use std::time::Duration;

use umf_core::conformance::pool::{Numbers, Pages};
use umf_core::history::{Event, EventKind};
use umf_core::leaks::{LeakTime, Stack};
use umf_core::map::PieceState;
use umf_core::{Address, Error, Inspect, Layout, Pool, history};
use umf_pool_slab::{Leaks, Poison, SlabPool, SlabSettings};

fn allocate(pool: &SlabPool, size: usize) -> Address {
    pool.allocate(Layout::new(size, 8).unwrap()).unwrap()
}

fn free(pool: &SlabPool, address: Address) -> umf_core::Result<()> {
    // SAFETY: the block is the caller's and nobody uses it, or an error is expected.
    unsafe { pool.free(address) }
}

fn byte_at(address: Address, offset: usize) -> *mut u8 {
    address.as_ptr().unwrap().wrapping_add(offset)
}

fn kinds(pool: &SlabPool) -> Vec<EventKind> {
    pool.history().unwrap().events.iter().map(|event| event.kind).collect()
}

#[test]
fn a_history_tells_what_happened_and_in_which_thread() {
    let pool = SlabPool::new(Pages::private(), SlabSettings::new().history(100).name("told")).unwrap();
    let small = allocate(&pool, 100);
    let other = std::thread::scope(|scope| {
        let freeing = scope.spawn(|| {
            free(&pool, small).unwrap();
            history::thread_id()
        });
        freeing.join().unwrap()
    });
    let Err(Error::FreedTwice { address, by }) = free(&pool, small) else { panic!("freed twice") };
    assert_eq!((address, by.thread), (small, other));
    assert!(by.ago < Duration::from_secs(60));
    let huge = allocate(&pool, 20 << 20);
    free(&pool, huge).unwrap();
    assert!(pool.allocate(Layout::new(1 << 50, 8).unwrap()).is_err());
    pool.trim(0).unwrap();
    use EventKind::{Allocate, AllocateRefused, Free, FreeRefused, RegionReturned, RegionTaken, Trim};
    let history = pool.history().unwrap();
    assert_eq!((history.pool.as_str(), history.forgotten), ("told", 0));
    let expected = [RegionTaken, Allocate, Free, FreeRefused, RegionTaken, Allocate, Free, RegionReturned];
    assert_eq!(kinds(&pool)[..8], expected);
    let rest = &kinds(&pool)[8..];
    assert!(rest.contains(&AllocateRefused) && rest.contains(&RegionReturned), "{rest:?}");
    assert_eq!(rest.last(), Some(&Trim));
    let [_, allocated, freed, refused, ..] = history.events[..] else { panic!("eight and more") };
    assert_eq!((allocated.address, allocated.size, allocated.block_size), (small, 100, 104));
    assert_eq!((allocated.thread, allocated.reason), (history::thread_id(), ""));
    assert_eq!((freed.address, freed.thread, freed.block_size), (small, other, 104));
    assert_eq!((refused.address, refused.reason), (small, "freed twice"));
    assert!(history.events.is_sorted_by_key(|event| event.at));
    assert!(history.to_string().contains("100 bytes in 104"), "{history}");
}

#[test]
fn a_history_forgets_what_is_long_ago() {
    let pool = SlabPool::new(Pages::private(), SlabSettings::new().history(10)).unwrap();
    let first = allocate(&pool, 8);
    free(&pool, first).unwrap();
    let mut last = first;
    for _ in 0..50 {
        last = allocate(&pool, 5000);
        free(&pool, last).unwrap();
    }
    let history = pool.history().unwrap();
    // (And a region or two.)
    assert_eq!(history.events.len(), 10);
    assert!(history.forgotten >= 92, "{}", history.forgotten);
    assert_eq!(free(&pool, first), Err(Error::NotAllocated { address: first }));
    assert!(matches!(free(&pool, last), Err(Error::FreedTwice { .. })));
    let none = SlabPool::new(Pages::private(), SlabSettings::new()).unwrap();
    assert!(none.history().is_none());
    let too_long = SlabSettings::new().history(SlabSettings::LONGEST_HISTORY + 1);
    assert!(matches!(
        SlabPool::new(Pages::private(), too_long),
        Err(Error::InvalidArgument { what: "history", .. })
    ));
}

#[test]
fn histories_are_read_while_threads_write_them() {
    let pool = SlabPool::new(Pages::private(), SlabSettings::new().history(64)).unwrap();
    let stop = std::sync::atomic::AtomicBool::new(false);
    std::thread::scope(|scope| {
        let _ends = umf_core::conformance::Ends(&stop);
        for size in [24_usize, 1000, 100_000] {
            let (pool, stop) = (&pool, &stop);
            scope.spawn(move || {
                while !stop.load(std::sync::atomic::Ordering::Relaxed) {
                    let address = allocate(pool, size);
                    free(pool, address).unwrap();
                }
            });
        }
        for _ in 0..300 {
            let history = pool.history().unwrap();
            for event in &history.events {
                match event.kind {
                    EventKind::Allocate => {
                        assert!(
                            [(24, 24), (1000, 1024), (100_000, 106_496)]
                                .contains(&(event.size, event.block_size)),
                            "{event}"
                        );
                    }
                    EventKind::Free => assert!([24, 1024, 106_496].contains(&event.block_size), "{event}"),
                    _ => {}
                }
            }
            assert!(history.events.is_sorted_by_key(|event| event.at));
        }
    });
}

/// Reports as text, with what the tests ask for.
type Reports = Arc<Mutex<Vec<(LeakTime, u64, u64, Vec<(u64, u64)>)>>>;

fn keeping(reports: &Reports, settings: SlabSettings) -> SlabSettings {
    let reports = Arc::clone(reports);
    settings.on_leaks(move |report| {
        let sites = report.sites.iter().map(|site| (site.blocks, site.bytes)).collect();
        reports.lock().unwrap().push((report.time, report.blocks, report.bytes, sites));
    })
}

#[inline(never)]
fn one_place(pool: &SlabPool) -> Address {
    std::hint::black_box(allocate(pool, 1000))
}

#[inline(never)]
fn another_place(pool: &SlabPool) -> Address {
    std::hint::black_box(allocate(pool, 70_000))
}

#[test]
fn leaks_are_told_with_their_sites_when_the_pool_goes() {
    if Stack::capture().frames().next().is_none() {
        println!("umf-skip: this C library does not tell where something is called");
        return;
    }
    let reports = Reports::default();
    let settings = SlabSettings::new().leaks(Leaks::Sites);
    let pool = SlabPool::new(Pages::private(), keeping(&reports, settings)).unwrap();
    let blocks: Vec<_> =
        (0..10).map(|n| if n < 7 { one_place(&pool) } else { another_place(&pool) }).collect();
    // Freed ones are no leaks, whoever frees them.
    free(&pool, blocks[0]).unwrap();
    std::thread::scope(|scope| scope.spawn(|| free(&pool, blocks[9]).unwrap()).join().unwrap());
    let mut asked = 0;
    assert!(pool.leaks(&mut |report| asked = report.sites.len()));
    assert_eq!(asked, 2);
    drop(pool);
    let reports = reports.lock().unwrap();
    let [(LeakTime::PoolEnd, 8, bytes, sites)] = &reports[..] else { panic!("{reports:?}") };
    assert_eq!((*bytes, &sites[..]), (6 * 1024 + 2 * 73_728, &[(2, 140_000), (6, 6000)][..]));
}

#[test]
fn leaks_are_counted_without_being_watched_and_only_where_there_are_some() {
    let reports = Reports::default();
    let counting = || keeping(&reports, SlabSettings::new().leaks(Leaks::Count));
    let clean = SlabPool::new(Pages::private(), counting()).unwrap();
    free(&clean, allocate(&clean, 10)).unwrap();
    drop(clean);
    assert!(reports.lock().unwrap().is_empty());
    let pool = SlabPool::new(Pages::private(), counting()).unwrap();
    allocate(&pool, 100);
    allocate(&pool, 20 << 20);
    pool.leaks(&mut |report| {
        let sizes: Vec<_> = report.sizes.iter().map(|size| (size.block_size, size.blocks)).collect();
        assert_eq!(sizes, [(104, 1), (20 << 20, 1)]);
        assert_eq!((report.sampled, report.time), (0, LeakTime::Asked));
    });
    drop(pool);
    let quiet = SlabPool::new(Pages::private(), keeping(&reports, SlabSettings::new())).unwrap();
    allocate(&quiet, 100);
    drop(quiet);
    assert_eq!(reports.lock().unwrap()[..], [(LeakTime::PoolEnd, 2, 104 + (20 << 20), Vec::new())]);
}

#[test]
fn of_many_allocations_a_few_are_remembered() {
    if Stack::capture().frames().next().is_none() {
        println!("umf-skip: this C library does not tell where something is called");
        return;
    }
    let settings = SlabSettings::new().leaks(Leaks::Sites).leak_sample(10);
    let pool = SlabPool::new(Pages::private(), settings).unwrap();
    let blocks: Vec<_> = (0..1000).map(|_| one_place(&pool)).collect();
    let remembered = || {
        let mut sum = 0;
        pool.leaks(&mut |report| {
            assert_eq!(report.sampled, 10);
            sum = report.sites.iter().map(|site| site.blocks).sum();
        });
        sum
    };
    assert_eq!(remembered(), 100);
    blocks.into_iter().for_each(|block| free(&pool, block).unwrap());
    assert_eq!(remembered(), 0);
}

/// Faults that a pool has told of.
type Told = Arc<Mutex<Vec<Error>>>;

fn poisoned(told: &Told, settings: SlabSettings) -> Arc<SlabPool> {
    let told = Arc::clone(told);
    let settings = settings.on_fault(move |fault| told.lock().unwrap().push(*fault));
    SlabPool::new(Pages::private(), settings).unwrap()
}

#[test]
fn whoever_writes_to_what_was_freed_is_found_when_it_is_used_again() {
    for size in [8, 100, 5000, 100_000] {
        let told = Told::default();
        let pool = poisoned(&told, SlabSettings::new().poison(Poison::All).history(100));
        let block = allocate(&pool, size);
        // SAFETY: ours.
        assert_eq!(unsafe { byte_at(block, size - 1).read() }, SlabSettings::NEW_BYTE);
        free(&pool, block).unwrap();
        // SAFETY: what is freed stays in the pool, in memory that nobody uses: the mistake that is looked for.
        unsafe {
            assert_eq!(byte_at(block, 0).read(), SlabSettings::FREED_BYTE);
            byte_at(block, size / 2).write(7);
        }
        // The pool hands out others too; this one it does not before it has said so.
        let mut found = None;
        let mut others = Vec::new();
        while found.is_none() && others.len() < 1000 {
            match pool.allocate(Layout::new(size, 8).unwrap()) {
                Ok(other) => others.push(other),
                Err(error) => found = Some(error),
            }
        }
        let Some(Error::WrittenAfterFree { address, offset, by: Some(by), size: whole }) = found else {
            panic!("{size}: {found:?}")
        };
        assert_eq!((address, offset, by.thread), (block, size / 2, history::thread_id()));
        assert!(whole >= size && !others.contains(&block));
        assert_eq!(told.lock().unwrap()[..], [found.unwrap()]);
        assert!(kinds(&pool).contains(&EventKind::WrittenAfterFree));
        // It is whole again, and so are the books.
        assert_eq!(pool.statistics().live_blocks, others.len() as u64);
        (0..1000).for_each(|_| others.push(allocate(&pool, size)));
        assert!(others.contains(&block));
        others.into_iter().for_each(|other| free(&pool, other).unwrap());
        pool.trim(0).unwrap();
        assert_eq!(pool.statistics().reserved_bytes, 0);
        assert_eq!(told.lock().unwrap().len(), 1);
    }
}

#[test]
fn whoever_writes_to_what_was_freed_is_found_before_it_goes() {
    for size in [24_usize, 100_000] {
        for trims in [true, false] {
            let told = Told::default();
            let pool = poisoned(&told, SlabSettings::new().poison(Poison::Freed));
            let (block, keep) = (allocate(&pool, size), allocate(&pool, size));
            free(&pool, block).unwrap();
            // SAFETY: its region stays while `keep` is live: the mistake that is looked for.
            unsafe { byte_at(block, 9).write(7) };
            if trims {
                free(&pool, keep).unwrap();
                pool.trim(0).unwrap();
                assert_eq!(pool.statistics().reserved_bytes, 0);
            }
            drop(pool);
            let told = told.lock().unwrap();
            assert!(
                matches!(&told[..], [Error::WrittenAfterFree { address, offset: 9, by: None, .. }] if *address == block),
                "{size}: {told:?}"
            );
        }
    }
}

#[test]
fn a_quarantine_lets_go_of_what_waits_longest() {
    let told = Told::default();
    let pool = poisoned(&told, SlabSettings::new().quarantine(10 * 1024).poison(Poison::Freed));
    let blocks: Vec<_> = (0..20).map(|_| allocate(&pool, 1000)).collect();
    // SAFETY: ours.
    blocks.iter().for_each(|&block| unsafe { byte_at(block, 1).write(1) });
    blocks.iter().for_each(|&block| free(&pool, block).unwrap());
    let statistics = pool.statistics();
    assert_eq!((statistics.quarantined_bytes, statistics.live_blocks, statistics.frees), (10 * 1024, 0, 20));
    let map = pool.map().unwrap();
    assert_eq!(map.totals().quarantined, 10 * 1024);
    assert!(
        map.regions
            .iter()
            .flat_map(|region| &region.pieces)
            .any(|piece| piece.state == PieceState::Quarantined)
    );
    // None of the last ten comes back yet.
    let again: Vec<_> = (0..200).map(|_| allocate(&pool, 1000)).collect();
    assert!(blocks[..10].iter().all(|block| again.contains(block)));
    assert!(blocks[10..].iter().all(|block| !again.contains(block)));
    for &waiting in &blocks[10..] {
        assert!(matches!(free(&pool, waiting), Err(Error::NotAllocated { .. })));
    }
    // SAFETY: it is in a region of the pool: the mistake that is looked for.
    unsafe { byte_at(blocks[12], 1023).write(1) };
    assert!(told.lock().unwrap().is_empty());
    again[..3].iter().for_each(|&block| free(&pool, block).unwrap());
    let found = told.lock().unwrap().clone();
    assert!(
        matches!(found[..], [Error::WrittenAfterFree { address, offset: 1023, .. }] if address == blocks[12]),
        "{found:?}"
    );
    // What is too large does not wait, and trimming ends it all.
    let large = allocate(&pool, 20_000);
    free(&pool, large).unwrap();
    assert_eq!(pool.statistics().quarantined_bytes, 10 * 1024);
    again[3..].iter().for_each(|&block| free(&pool, block).unwrap());
    pool.trim(0).unwrap();
    let statistics = pool.statistics();
    assert_eq!((statistics.quarantined_bytes, statistics.reserved_bytes), (0, 0));
    assert_eq!(told.lock().unwrap().len(), 1);
}

#[test]
fn a_quarantine_does_not_make_an_allocation_fail() {
    let settings = SlabSettings::new().quarantine(1 << 30).memory_limit(32 << 20);
    let pool = SlabPool::new(Numbers::new(4096), settings).unwrap();
    for _ in 0..100 {
        // Of regions too.
        for size in [1 << 20, 10 << 20] {
            let block = allocate(&pool, size);
            free(&pool, block).unwrap();
        }
    }
    assert!(pool.statistics().quarantined_bytes > 0);
    pool.trim(0).unwrap();
    assert_eq!(pool.statistics().reserved_bytes, 0);
}

#[test]
fn what_the_cpu_cannot_touch_is_not_poisoned() {
    let made = SlabPool::new(Pages::untouchable(), SlabSettings::new().poison(Poison::Freed));
    assert!(matches!(made, Err(Error::InvalidArgument { what: "poison", .. })), "{made:?}");
    // A quarantine touches nothing.
    let settings = SlabSettings::new().quarantine(1 << 20).history(10).leaks(Leaks::Sites);
    let pool = SlabPool::new(Pages::untouchable(), settings).unwrap();
    for size in [8, 1000, 100_000, 10 << 20] {
        let block = allocate(&pool, size);
        free(&pool, block).unwrap();
        assert!(matches!(free(&pool, block), Err(Error::FreedTwice { .. } | Error::ForeignAddress { .. })));
    }
}

#[test]
fn a_child_leaves_what_is_shared_to_its_parent() {
    let told = Told::default();
    let hook = Arc::clone(&told);
    let settings = SlabSettings::new().poison(Poison::Freed).quarantine(1 << 20).leaks(Leaks::Count);
    let settings = settings.on_fault(move |fault| hook.lock().unwrap().push(*fault));
    let reports = Reports::default();
    let pool = SlabPool::new(Pages::shared(), keeping(&reports, settings)).unwrap();
    let (block, _left) = (allocate(&pool, 100), allocate(&pool, 100));
    free(&pool, block).unwrap();
    // SAFETY: it waits in the pool's quarantine: the mistake that is looked for.
    unsafe { byte_at(block, 3).write(3) };
    // SAFETY: the child drops its copy of the pool, and ends.
    let child = unsafe { libc::fork() };
    if child == 0 {
        drop(pool);
        let found = told.lock().unwrap().len() + reports.lock().unwrap().len();
        // SAFETY: ends the child at once.
        unsafe { libc::_exit(i32::try_from(found).unwrap()) };
    }
    let mut status = 1;
    // SAFETY: waits for the child made above.
    assert_eq!(unsafe { libc::waitpid(child, &raw mut status, 0) }, child);
    assert_eq!(status, 0, "the child told of what is its parent's");
    // SAFETY: as above.
    assert_eq!(unsafe { byte_at(block, 3).read() }, 3);
    drop(pool);
    assert_eq!((told.lock().unwrap().len(), reports.lock().unwrap().len()), (1, 1));
}

#[test]
fn threads_are_watched_all_at_once() {
    let told = Told::default();
    let settings = SlabSettings::new().history(50).leaks(Leaks::Sites).leak_sample(7);
    let pool = poisoned(&told, settings.poison(Poison::All).quarantine(100_000));
    let handed_over = Mutex::new(Vec::new());
    std::thread::scope(|scope| {
        for seed in 0..4_usize {
            let (pool, handed_over) = (&pool, &handed_over);
            scope.spawn(move || {
                let mut size = 17 + seed;
                for round in 0..3000 {
                    size = size * 13 % 150_001 + 1;
                    let block = allocate(pool, size);
                    // SAFETY: ours.
                    unsafe { block.as_ptr().unwrap().write_bytes(seed as u8, size) };
                    handed_over.lock().unwrap().push(block);
                    let other = handed_over.lock().unwrap().swap_remove(0);
                    free(pool, other).unwrap();
                    if round % 1000 == 999 {
                        pool.trim(0).unwrap();
                    }
                }
            });
        }
    });
    assert_eq!(told.lock().unwrap()[..], []);
    let statistics = pool.statistics();
    assert_eq!((statistics.live_blocks, statistics.allocations), (0, 12_000));
    assert!(pool.leaks(&mut |report| assert_eq!((report.blocks, report.sites.len()), (0, 0))));
    pool.trim(0).unwrap();
    assert_eq!(pool.statistics().reserved_bytes, 0);
    let frees = |event: &&Event| event.kind == EventKind::Free;
    assert!(pool.history().unwrap().events.iter().filter(frees).count() > 50);
}

/// A panic in a function that is called at the end of a pool leaves nothing of the pool: a fork
/// after it finds no dangling entry.
#[test]
fn panic_in_a_report_is_caught() {
    for _ in 0..50 {
        let settings = SlabSettings::new().leaks(Leaks::Count).on_leaks(|_| panic!("in a report"));
        let pool = SlabPool::new(Pages::private(), settings).unwrap();
        allocate(&pool, 100);
        drop(pool);
        // SAFETY: the child ends at once.
        let child = unsafe { libc::fork() };
        if child == 0 {
            // SAFETY: ends the child.
            unsafe { libc::_exit(0) };
        }
        let mut status = 1;
        // SAFETY: waits for the child made above.
        assert_eq!(unsafe { libc::waitpid(child, &raw mut status, 0) }, child);
        assert_eq!(status, 0);
    }
}
