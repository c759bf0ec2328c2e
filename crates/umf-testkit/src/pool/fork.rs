//! Cases about forks while other threads use the pool.

use core::sync::atomic::{AtomicBool, Ordering};
use std::sync::Arc;

use super::threads::join;
use super::{MakePool, MmapProvider, Random, allocate, free, layout, try_free};
use crate::SetOnDrop;
use umf_core::{Error, Layout, MemoryKind, Pool, Provider, ProviderKind, Region, Result, Visibility};
use umf_runtime::tracker;

const FORKS: usize = 50;

/// Forks `FORKS` times while two threads allocate and free. `child` returns the exit status of a
/// child, 0 for success.
fn fork_during_traffic(pool: &dyn Pool, child: impl Fn() -> i32) {
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
    fork_during(traffic, child);
}

/// Forks `FORKS` times while two threads run `traffic` until their flag is set.
pub(super) fn fork_during(traffic: impl Fn(u64, &AtomicBool) + Sync, child: impl Fn() -> i32) {
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let _ends = SetOnDrop(&stop);
        let (stop, traffic) = (&stop, &traffic);
        let threads = (0..2).map(|seed| scope.spawn(move || traffic(seed, stop))).collect();
        let mut bad = None;
        for round in 0..FORKS {
            // SAFETY: the child runs pool code, whose locks are valid after a fork, and leaves by
            // `_exit`.
            let pid = unsafe { libc::fork() };
            if pid == 0 {
                // The alarm kills a child that hangs, so that the parent sees it.
                // SAFETY: sets a timer of the child process and ends it.
                unsafe {
                    libc::alarm(20);
                    libc::_exit(child());
                }
            }
            let mut status = 0;
            // SAFETY: waits for the child forked above.
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

/// Over private memory, a child can allocate, and can free its own blocks and inherited ones.
pub fn private_pool_works_in_forked_child(make: MakePool<'_>) {
    let provider = MmapProvider::private();
    let pool = make(provider.clone().into());
    let pool = &*pool;
    let inherited: Vec<_> = (0..50).map(|n| allocate(pool, 100 << (n % 12))).collect();
    fork_during_traffic(pool, || {
        let mut random = Random(99);
        let mut live = Vec::new();
        for _ in 0..2_000 {
            let size = random.size(17);
            let Ok(address) = pool.allocate(layout(size, 8)) else { return 1 };
            if let Some(pointer) = address.as_ptr() {
                // SAFETY: a live block of this size.
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
    pool.trim(0).expect("the provider frees all regions");
    assert_eq!(provider.live_regions(), 0);
}

/// Over shared memory, a child cannot allocate, and its frees leave the parent's blocks alone.
pub fn shared_pool_is_frozen_in_forked_child(make: MakePool<'_>) {
    let provider = MmapProvider::shared();
    let pool = make(provider.clone().into());
    let pool = &*pool;
    let inherited: Vec<_> = (0..50).map(|n| allocate(pool, 100 << (n % 12))).collect();
    fork_during_traffic(pool, || {
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
    pool.trim(0).expect("the provider frees all regions");
    assert_eq!(provider.live_regions(), 0);
}

/// A provider whose `free` blocks until the test allows it.
struct BlockingProvider {
    pages: Arc<MmapProvider>,
    /// Whether a thread is blocked in `free`.
    is_waiting: AtomicBool,
    may_continue: AtomicBool,
}

// SAFETY: forwards to `pages`, which keeps the promises.
unsafe impl Provider for BlockingProvider {
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
        while !self.may_continue.load(Ordering::SeqCst) {
            self.is_waiting.store(true, Ordering::SeqCst);
            std::thread::yield_now();
        }
        // SAFETY: the caller keeps the contract of `free`.
        unsafe { self.pages.free(region) }
    }
}

/// A child that lists pools does not deadlock if another thread drops a pool at the time of the
/// fork.
pub fn fork_during_pool_drop_does_not_deadlock(make: MakePool<'_>) {
    let (is_waiting, may_continue) = (AtomicBool::new(false), AtomicBool::new(true));
    let provider = Arc::new(BlockingProvider { pages: MmapProvider::private(), is_waiting, may_continue });
    let pool = make(provider.clone().into());
    // A live block, so that the dropped pool has a region to free.
    allocate(&*pool, 100);
    provider.may_continue.store(false, Ordering::SeqCst);
    // Takes the pool's locks while the tracker shows it.
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
        let _ends = SetOnDrop(&provider.may_continue);
        let dropping = scope.spawn(move || drop(pool));
        while !provider.is_waiting.load(Ordering::SeqCst) {
            std::thread::yield_now();
        }
        let traffic = |_: u64, stop: &AtomicBool| {
            while !stop.load(Ordering::Relaxed) {
                look();
            }
        };
        fork_during(traffic, || {
            look();
            0
        });
        provider.may_continue.store(true, Ordering::SeqCst);
        join(vec![dropping]);
    });
    assert_eq!(provider.pages.live_regions(), 0);
}
