//! Forks, in the middle of everything.

use core::sync::atomic::{AtomicBool, Ordering};
use std::sync::Arc;

use super::threads::join;
use super::{Make, Pages, Random, allocate, free, layout, try_free};
use crate::Ends;
use umf_core::{Error, Layout, MemoryKind, Pool, Provider, ProviderKind, Region, Result, Visibility};
use umf_runtime::tracker;

const FORKS: usize = 50;

/// Forks `FORKS` times while two other threads allocate and free; `child` yields the exit status of a child, 0
/// for good.
fn fork_amid_traffic(pool: &dyn Pool, child: impl Fn() -> i32) {
    let traffic = |seed, stop: &AtomicBool| {
        let mut random = Random(seed);
        let mut live = Vec::new();
        while !stop.load(Ordering::Relaxed) {
            live.push(allocate(pool, random.size(18)));
            if live.len() > 200 {
                live.drain(random.below(200)..).for_each(|address| free(pool, address));
            }
        }
        live.into_iter().for_each(|address| free(pool, address));
    };
    fork_amid(traffic, child);
}

/// Forks `FORKS` times while two other threads run `traffic`, until they are told to stop.
pub(super) fn fork_amid(traffic: impl Fn(u64, &AtomicBool) + Sync, child: impl Fn() -> i32) {
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let _ends = Ends(&stop);
        let (stop, traffic) = (&stop, &traffic);
        let threads = (0..2).map(|seed| scope.spawn(move || traffic(seed, stop))).collect();
        let mut bad = None;
        for round in 0..FORKS {
            // SAFETY: the child runs pool code, whose locks come through a fork, and ends without unwinding.
            let pid = unsafe { libc::fork() };
            if pid == 0 {
                // A child that hangs is killed, so that the parent learns of it.
                // SAFETY: sets a timer of this process; ends it at once.
                unsafe {
                    libc::alarm(20);
                    libc::_exit(child());
                }
            }
            let mut status = 0;
            // SAFETY: waits for the child made above.
            let waited = unsafe { libc::waitpid(pid, &raw mut status, 0) };
            if waited != pid || status != 0 {
                bad = Some((round, status));
                break;
            }
        }
        stop.store(true, Ordering::Relaxed);
        join(threads);
        assert_eq!(bad, None, "fork number and wait status");
    });
}

/// Over private memory a child allocates and frees on, its own blocks and inherited ones.
pub fn private_memory_works_on_in_a_child(make: Make<'_>) {
    let provider = Pages::private();
    let pool = make(provider.clone().into());
    let pool = &*pool;
    let inherited: Vec<_> = (0..50).map(|n| allocate(pool, 100 << (n % 12))).collect();
    fork_amid_traffic(pool, || {
        let mut random = Random(99);
        let mut live = Vec::new();
        for _ in 0..2_000 {
            let size = random.size(17);
            let Ok(address) = pool.allocate(layout(size, 8)) else { return 1 };
            if let Some(pointer) = address.as_ptr() {
                // SAFETY: the block is ours and of that size.
                unsafe { pointer.write_bytes(7, size) };
            }
            live.push(address);
            if live.len() == 100 && live.drain(..).any(|address| try_free(pool, address).is_err()) {
                return 2;
            }
        }
        if inherited.iter().any(|&address| try_free(pool, address).is_err()) {
            return 3;
        }
        if inherited.iter().any(|&address| try_free(pool, address).is_ok()) {
            return 4;
        }
        0
    });
    for address in inherited {
        free(pool, address);
    }
    pool.trim(0).expect("the provider takes everything back");
    assert_eq!(provider.live_regions(), 0);
}

/// Over shared memory a child gets nothing, and what it frees stays the parent's.
pub fn shared_memory_is_frozen_in_a_child(make: Make<'_>) {
    let provider = Pages::shared();
    let pool = make(provider.clone().into());
    let pool = &*pool;
    let inherited: Vec<_> = (0..50).map(|n| allocate(pool, 100 << (n % 12))).collect();
    fork_amid_traffic(pool, || {
        for size in [8, 100, 5000, 100_000, 10 << 20] {
            if !matches!(pool.allocate(layout(size, 8)), Err(Error::Frozen { .. })) {
                return 1;
            }
        }
        for &address in inherited.iter().chain(&inherited) {
            if try_free(pool, address).is_err() || pool.block_at(address).is_err() {
                return 2;
            }
        }
        if pool.trim(0) != Ok(0) {
            return 3;
        }
        0
    });
    for address in inherited {
        free(pool, address);
    }
    pool.trim(0).expect("the provider takes everything back");
    assert_eq!(provider.live_regions(), 0);
}

/// Host memory that a thread gives back only once it may.
struct Waiting {
    pages: Arc<Pages>,
    /// A thread waits in `free`.
    is_waiting: AtomicBool,
    goes_on: AtomicBool,
}

// SAFETY: the promises are those of the pages.
unsafe impl Provider for Waiting {
    fn kind(&self) -> ProviderKind {
        self.pages.kind()
    }

    fn name(&self) -> &str {
        "waiting"
    }

    fn memory_kind(&self) -> MemoryKind {
        self.pages.memory_kind()
    }

    fn visibility(&self) -> Visibility {
        self.pages.visibility()
    }

    fn page_size(&self) -> usize {
        self.pages.page_size()
    }

    fn allocate(&self, layout: Layout) -> Result<Region> {
        self.pages.allocate(layout)
    }

    unsafe fn free(&self, region: Region) -> Result<()> {
        while !self.goes_on.load(Ordering::SeqCst) {
            self.is_waiting.store(true, Ordering::SeqCst);
            std::thread::yield_now();
        }
        // SAFETY: passed on to the caller.
        unsafe { self.pages.free(region) }
    }
}

/// A pool that another thread drops at the fork does not lock a child that is shown it.
pub fn a_child_is_shown_a_pool_that_is_dropped(make: Make<'_>) {
    let (is_waiting, goes_on) = (AtomicBool::new(false), AtomicBool::new(true));
    let provider = Arc::new(Waiting { pages: Pages::private(), is_waiting, goes_on });
    let pool = make(provider.clone().into());
    // It is live when the pool is dropped, so that the pool has a region to give back then.
    allocate(&*pool, 100);
    provider.goes_on.store(false, Ordering::SeqCst);
    // What takes the pool's locks while it is shown.
    let look = || {
        tracker::for_each_pool(|pool| {
            let provider_of_pool: &dyn Provider = &**pool.provider();
            if core::ptr::addr_eq(provider_of_pool, Arc::as_ptr(&provider)) {
                let _ = pool.statistics();
                let _ = pool.inspect().map(|inspect| inspect.leaks(&mut |_| ()));
            }
        });
    };
    std::thread::scope(|scope| {
        let _ends = Ends(&provider.goes_on);
        let dropping = scope.spawn(move || drop(pool));
        while !provider.is_waiting.load(Ordering::SeqCst) {
            std::thread::yield_now();
        }
        let traffic = |_: u64, stop: &AtomicBool| {
            while !stop.load(Ordering::Relaxed) {
                look();
            }
        };
        fork_amid(traffic, || {
            look();
            0
        });
        provider.goes_on.store(true, Ordering::SeqCst);
        join(vec![dropping]);
    });
    assert_eq!(provider.pages.live_regions(), 0);
}
