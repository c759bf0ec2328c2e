//! Cases about forks while other threads use the pool.
//!
//! A child that fails writes the reason to a pipe, and the case panics with that text. A child that
//! is blocked by a lock is found by its state in `/proc`, and one that spins by `RLIMIT_CPU`.

use core::sync::atomic::{AtomicBool, Ordering};
use core::time::Duration;
use std::fs::File;
use std::io::{Read as _, Write as _};
use std::os::fd::FromRawFd as _;
use std::sync::Arc;

use super::threads::join;
use super::{MakePool, MmapProvider, Random, allocate, free, layout, try_free};
use crate::SetOnDrop;
use umf_core::{Error, Layout, MemoryKind, Pool, Provider, ProviderKind, Region, Result, Reuse, Visibility};
use umf_runtime::tracker;

const FORKS: usize = 50;
/// The documentation of fork handling, for error texts.
const DOCS: &str = "see the section \"Fork\" of docs/extending.md";
/// The interval between two looks at a child.
const LOOK: Duration = Duration::from_millis(10);
/// Looks without progress of a sleeping child after which it counts as blocked.
const BLOCKED_LOOKS: u32 = 100;
/// CPU seconds after which the kernel kills a child that spins.
const CPU_SECONDS: u64 = 10;

/// The result of a child: an error is the text for the panic of the case.
pub(super) type ChildResult = core::result::Result<(), String>;

/// Returns the error `text` unless `holds`.
pub(super) fn require(holds: bool, text: &str) -> ChildResult {
    if holds { Ok(()) } else { Err(text.to_owned()) }
}

/// Forks `FORKS` times while two threads allocate and free.
fn fork_during_traffic(pool: &dyn Pool, child: impl Fn() -> ChildResult) {
    // The threads never free all blocks, so a pool without reuse grows all the time.
    let bits = if pool.reuse() == Reuse::WhenEmpty { 8 } else { 18 };
    let traffic = |seed, stop: &AtomicBool| {
        let mut random = Random(seed);
        let mut live = Vec::new();
        while !stop.load(Ordering::Relaxed) {
            live.push(allocate(pool, random.size(bits)));
            if live.len() > 200 {
                live.drain(random.below(200)..).for_each(|address| free(pool, address));
            }
        }
        live.into_iter().for_each(|address| free(pool, address));
    };
    fork_during(traffic, child);
}

/// Forks `FORKS` times while two threads run `traffic` until their flag is set.
pub(super) fn fork_during(traffic: impl Fn(u64, &AtomicBool) + Sync, child: impl Fn() -> ChildResult) {
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let _ends = SetOnDrop(&stop);
        let (stop, traffic) = (&stop, &traffic);
        let threads = (0..2).map(|seed| scope.spawn(move || traffic(seed, stop))).collect();
        let failed = (1..=FORKS).find_map(|number| fork_once(&child).err().map(|error| (number, error)));
        stop.store(true, Ordering::Relaxed);
        join(threads);
        if let Some((number, error)) = failed {
            panic!("child of fork {number}, forked while two threads used the pool: {error}; {DOCS}");
        }
    });
}

/// Runs `child` in a forked child, and returns its error or how it ended.
fn fork_once(child: &impl Fn() -> ChildResult) -> ChildResult {
    let mut pipe = [0; 2];
    // SAFETY: the array has room for both descriptors.
    assert_eq!(unsafe { libc::pipe2(pipe.as_mut_ptr(), libc::O_CLOEXEC) }, 0, "a pipe for the child's error");
    // SAFETY: the descriptors are new, and no other code owns them.
    let [mut reader, mut writer] = pipe.map(|fd| unsafe { File::from_raw_fd(fd) });
    // SAFETY: the child runs pool code, whose locks are valid after a fork, and leaves by `_exit`.
    let pid = unsafe { libc::fork() };
    assert!(pid >= 0, "fork: {}", std::io::Error::last_os_error());
    if pid == 0 {
        let limit = libc::rlimit { rlim_cur: CPU_SECONDS, rlim_max: CPU_SECONDS };
        // SAFETY: limits the child itself.
        unsafe { libc::setrlimit(libc::RLIMIT_CPU, &raw const limit) };
        let failed = child().is_err_and(|error| {
            let _ = writer.write_all(error.as_bytes());
            true
        });
        // SAFETY: ends the child without the destructors of the parent's values.
        unsafe { libc::_exit(i32::from(failed)) };
    }
    drop(writer);
    let status = wait_or_kill(pid)?;
    let mut error = String::new();
    // Not `read_to_end` before the wait: a child of another test may have a copy of the writer.
    let mut buffer = [0; 512];
    if status != 0
        && libc::WIFEXITED(status)
        && let Ok(length) = reader.read(&mut buffer)
    {
        error.push_str(&String::from_utf8_lossy(&buffer[..length]));
        return Err(error);
    }
    match libc::WTERMSIG(status) {
        _ if status == 0 => Ok(()),
        libc::SIGXCPU | libc::SIGKILL => Err(format!(
            "it ran for {CPU_SECONDS} s of CPU time and did not end: it spins, most likely on a lock that a \
             thread of the parent held at the fork; use `umf_sync::Lock`, which is free in a child"
        )),
        signal => Err(format!("signal {signal} ended it")),
    }
}

/// Waits for a child, and returns its wait status. Kills a child that is blocked.
fn wait_or_kill(pid: i32) -> core::result::Result<i32, String> {
    let wait = |flags| {
        let mut status = 0;
        // SAFETY: waits for a child of this process.
        let waited = unsafe { libc::waitpid(pid, &raw mut status, flags) };
        assert!(waited >= 0, "waitpid: {}", std::io::Error::last_os_error());
        (waited == pid).then_some(status)
    };
    let (mut last, mut looks) = (None, 0);
    loop {
        // Short children are the common case: no sleep before the first look.
        if let Some(status) = wait(libc::WNOHANG) {
            return Ok(status);
        }
        std::thread::sleep(LOOK);
        let now = sleeping_switches(pid);
        looks = if now.is_some() && now == last { looks + 1 } else { 0 };
        last = now;
        if looks >= BLOCKED_LOOKS {
            // SAFETY: a child of this process that was not waited for.
            unsafe { libc::kill(pid, libc::SIGKILL) };
            wait(0);
            return Err("it is blocked: it waits for a lock that a thread of the parent held at the fork, or for \
                        a thread that the child does not have; locks of a pool must be `umf_sync::Lock`, which \
                        is free in a child"
                .to_owned());
        }
    }
}

/// Returns the number of context switches of a process that sleeps; `None` if it runs. A sleeping
/// process whose number stays the same was not woken.
fn sleeping_switches(pid: i32) -> Option<String> {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
    let line = |key: &str| status.lines().find_map(|line| line.strip_prefix(key)).map(str::trim);
    line("State:")?.starts_with('S').then(|| line("voluntary_ctxt_switches:").unwrap_or_default().to_owned())
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
            let allocated = pool.allocate(layout(size, 8));
            let address =
                allocated.map_err(|error| format!("`allocate` failed over private memory: {error}"))?;
            if let Some(pointer) = address.as_ptr() {
                // SAFETY: a live block of this size.
                unsafe { pointer.write_bytes(7, size) };
            }
            live.push(address);
            if live.len() == 100 {
                let all_freed = live.drain(..).all(|address| try_free(pool, address).is_ok());
                require(all_freed, "`free` failed for a block that the child allocated")?;
            }
        }
        let all_freed = inherited.iter().all(|&address| try_free(pool, address).is_ok());
        require(all_freed, "`free` failed for an inherited block of private memory")?;
        let all_refused = inherited.iter().all(|&address| try_free(pool, address).is_err());
        require(all_refused, "`free` succeeded for a block that the child had freed before")
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
            let result = pool.allocate(layout(size, 8));
            require(
                matches!(result, Err(Error::Frozen { .. })),
                "`allocate` used shared memory of the parent: return `Error::Frozen` if `Upstream::is_frozen`",
            )?;
        }
        for &address in inherited.iter().chain(&inherited) {
            require(
                try_free(pool, address).is_ok() && pool.block_at(address).is_ok(),
                "`free` of an inherited block of shared memory freed it or failed: return `Ok` without effect \
                 if `Upstream::is_frozen`",
            )?;
        }
        require(
            pool.trim(0) == Ok(0),
            "`trim` released shared memory of the parent: return `Ok(0)` if `Upstream::is_frozen`",
        )
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
            Ok(())
        });
        provider.may_continue.store(true, Ordering::SeqCst);
        join(vec![dropping]);
    });
    assert_eq!(provider.pages.live_regions(), 0);
}
