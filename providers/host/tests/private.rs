//! Private memory: the guarantees that a pool needs to be the global allocator.

#[path = "host/machine.rs"]
mod machine;

use core::cell::Cell;
use std::alloc::{GlobalAlloc, System};

use machine::{free, in_child, layout, touch};
use umf_core::{Error, Provider};
use umf_provider_host::HostProvider;

static HOST: HostProvider = HostProvider::private_static();

struct Counting;

thread_local! {
    static ALLOCATIONS: Cell<usize> = const { Cell::new(0) };
}

// SAFETY: passes everything on to the system's allocator.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: core::alloc::Layout) -> *mut u8 {
        ALLOCATIONS.set(ALLOCATIONS.get() + 1);
        // SAFETY: passed on to the caller.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: core::alloc::Layout) {
        ALLOCATIONS.set(ALLOCATIONS.get() + 1);
        // SAFETY: passed on to the caller.
        unsafe { System.dealloc(pointer, layout) }
    }
}

#[global_allocator]
static GLOBAL: Counting = Counting;

#[test]
fn static_provider_does_not_use_the_global_allocator() {
    // Used by this test only, which compares the allocated bytes.
    static ALONE: HostProvider = HostProvider::private_static();
    let before = ALLOCATIONS.get();
    let mut regions = [None; 300];
    for (number, place) in regions.iter_mut().enumerate() {
        let align = if number % 3 == 0 { 1 << 16 } else { 1 };
        let Ok(layout) = umf_core::Layout::new(4096 * (1 + number % 5), align) else { continue };
        *place = ALONE.allocate(layout).ok();
    }
    let count = regions.iter().flatten().count();
    for region in regions.into_iter().flatten() {
        // SAFETY: allocated above, and not used.
        let _ = unsafe { ALONE.free(region) };
    }
    let used = ALLOCATIONS.get() - before;
    assert_eq!((count, used), (300, 0));
    assert_eq!(ALONE.statistics().bytes(), 0);
}

#[test]
fn regions_of_other_private_providers_are_foreign() {
    let (one, two) = (HostProvider::builder().build().unwrap(), HostProvider::builder().build().unwrap());
    let region = one.allocate(layout(4096)).unwrap();
    // SAFETY: an error is expected.
    let result = unsafe { two.free(region) };
    assert!(matches!(result, Err(Error::ForeignAddress { .. })), "{result:?}");
    touch(&region, 1);
    free(&one, region);
}

/// Unmapping the middle of a mapping adds a mapping, which fails at `vm.max_map_count`.
#[test]
fn region_stays_live_if_unmapping_fails() {
    in_child(|| {
        let limit = std::fs::read_to_string("/proc/sys/vm/max_map_count").unwrap();
        let limit: usize = limit.trim().parse().unwrap();
        if limit > 200_000 {
            println!("umf-skip: host provider: vm.max_map_count is {limit}");
            return;
        }
        let provider = HostProvider::builder().build().unwrap();
        let regions: Vec<_> = (0..3 * limit).map_while(|_| provider.allocate(layout(4096)).ok()).collect();
        let mut live = Vec::new();
        let mut failed = None;
        for (number, region) in regions.into_iter().enumerate() {
            if number % 2 == 1 || failed.is_some() {
                live.push(region);
                continue;
            }
            // SAFETY: allocated above, and not used after it is freed.
            if let Err(error) = unsafe { provider.free(region) } {
                failed = Some((region, error));
            }
        }
        let Some((region, error)) = failed else {
            println!("umf-skip: host provider: the kernel did not merge the mappings");
            return;
        };
        assert!(error.to_string().contains("max_map_count"), "{error}");
        touch(&region, 3);
        // The free succeeds after others have reduced the number of mappings.
        live.drain(..1000).for_each(|region| free(&provider, region));
        free(&provider, region);
        live.into_iter().for_each(|region| {
            // SAFETY: allocated above.
            let _ = unsafe { provider.free(region) };
        });
    });
}

#[test]
fn exhausted_mappings_leave_shared_memory_consistent() {
    in_child(|| {
        let provider = machine::shared().build().unwrap();
        let mut regions = Vec::new();
        let error = loop {
            match provider.allocate(layout(4096)) {
                Ok(region) => regions.push(region),
                Err(error) => break error,
            }
            if regions.len() == 200_000 {
                println!("umf-skip: host provider: no limit of mappings was reached");
                return;
            }
        };
        assert!(matches!(error, Error::OutOfMemory { .. }), "{error}");
        regions.drain(..).for_each(|region| free(&provider, region));
        let region = provider.allocate(layout(1 << 30)).unwrap();
        assert_eq!(machine::export(&provider, &region).offset, 0, "the whole file is free again");
        free(&provider, region);
    });
}

#[test]
fn child_of_a_threaded_process_can_allocate() {
    let stop = std::sync::atomic::AtomicBool::new(false);
    std::thread::scope(|scope| {
        let _ends = umf_testkit::SetOnDrop(&stop);
        for _ in 0..3 {
            scope.spawn(|| {
                while !stop.load(std::sync::atomic::Ordering::Relaxed) {
                    free(&HOST, HOST.allocate(layout(4096)).unwrap());
                }
            });
        }
        let region = HOST.allocate(layout(8192)).unwrap();
        for _ in 0..50 {
            in_child(|| {
                touch(&region, 1);
                free(&HOST, region);
                let other = HOST.allocate(layout(1 << 20)).unwrap();
                touch(&other, 2);
                free(&HOST, other);
            });
        }
        touch(&region, 2);
        free(&HOST, region);
    });
}
