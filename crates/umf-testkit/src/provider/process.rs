//! Cases about leaks and forked children, and the guards with which cases run concurrently or
//! alone.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};

use super::export::{access_of, request};
use super::{MakeProvider, allocate, assert_filled, fill, free, is_accessible, skip};
use umf_core::{Error, Layout, Provider, Visibility};
use umf_runtime::Upstream;

/// A case that counts resources of the process holds it for writing, so that no other case runs.
static CASES: RwLock<()> = RwLock::new(());

/// Returns the guard of a case that may run concurrently with others.
pub(super) fn run_shared() -> RwLockReadGuard<'static, ()> {
    CASES.read().unwrap_or_else(PoisonError::into_inner)
}

/// Returns the guard of a case that counts resources, or that needs addresses to stay free.
pub(super) fn run_exclusive() -> RwLockWriteGuard<'static, ()> {
    CASES.write().unwrap_or_else(PoisonError::into_inner)
}

fn descriptors() -> usize {
    std::fs::read_dir("/proc/self/fd").map_or(0, Iterator::count)
}

fn mappings() -> usize {
    std::fs::read_to_string("/proc/self/maps").map_or(0, |maps| maps.lines().count())
}

/// Number of resources that other tests of the same binary may use meanwhile.
const NOISE: usize = 40;

#[track_caller]
fn assert_no_growth(before: (usize, usize), what: &str) {
    let (fds, maps) = (descriptors(), mappings());
    assert!(fds <= before.0 + NOISE, "{what}: {} open files became {fds}", before.0);
    assert!(maps <= before.1 + NOISE, "{what}: {} mappings became {maps}", before.1);
}

/// A thousand cycles of allocate, export, import and free leak no descriptor and no mapping.
pub fn cycles_leak_nothing(make: MakeProvider<'_>) {
    let _guard = run_exclusive();
    let provider = make();
    let cycle = |size| {
        let region = allocate(&*provider, size, 1);
        if let Some(exports) = provider.export() {
            let exported = exports.export(&region).expect("exporting");
            if let Some(imports) = provider.import() {
                let request = request(&exported, region.size(), access_of(&exported));
                let imported = imports.import(request).expect("importing");
                // SAFETY: released once, and not used.
                unsafe { imports.release(imported) }.expect("releasing");
            }
            exports.unexport(&region, exported).expect("ending an export");
        }
        free(&*provider, region);
    };
    let page = provider.page_size();
    // Rarely more than one huge page, because the kernel clears each.
    let huge = page >= 1 << 20;
    let size = |number: usize| page * if huge && !number.is_multiple_of(10) { 1 } else { 1 + number % 3 };
    (0..20).for_each(|number| cycle(size(number)));
    let before = (descriptors(), mappings());
    (0..1000).for_each(|number| cycle(size(number)));
    assert_no_growth(before, "1000 cycles of allocating, exporting, importing and freeing");
}

/// A hundred providers, used and dropped, leak no descriptor and no mapping.
pub fn dropped_providers_leak_nothing(make: MakeProvider<'_>) {
    let _guard = run_exclusive();
    let once = || {
        let provider = make();
        let region = allocate(&*provider, 1, 1);
        free(&*provider, region);
    };
    once();
    let before = (descriptors(), mappings());
    (0..100).for_each(|_| once());
    assert_no_growth(before, "100 providers created and dropped");
}

/// How a child process ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ExitReason {
    /// Exited with this code.
    Exit(i32),
    /// Killed by this signal.
    Signal(i32),
}

/// Seconds after which a hanging child is killed.
const CHILD_TIMEOUT: u32 = 20;

/// Runs `body` in a forked child, which exits with its return value. SIGALRM ends a child that
/// hangs.
pub(super) fn in_child(body: impl FnOnce() -> i32) -> ExitReason {
    // SAFETY: the child only runs `body`, which needs no other thread and no lock of another
    // thread, and leaves by `_exit`.
    let pid = unsafe { libc::fork() };
    assert!(pid >= 0, "fork failed");
    if pid == 0 {
        // SAFETY: plain system calls on the child process.
        unsafe {
            let none = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
            libc::setrlimit(libc::RLIMIT_CORE, &raw const none);
            for signal in [libc::SIGSEGV, libc::SIGBUS, libc::SIGALRM] {
                libc::signal(signal, libc::SIG_DFL);
            }
            libc::alarm(CHILD_TIMEOUT);
        }
        let code = body();
        // SAFETY: ends the child without running destructors.
        unsafe { libc::_exit(code) };
    }
    let mut status = 0;
    // SAFETY: waits for the child forked above.
    while unsafe { libc::waitpid(pid, &raw mut status, 0) } != pid {
        assert_eq!(std::io::Error::last_os_error().raw_os_error(), Some(libc::EINTR));
    }
    if libc::WIFSIGNALED(status) {
        ExitReason::Signal(libc::WTERMSIG(status))
    } else {
        ExitReason::Exit(libc::WEXITSTATUS(status))
    }
}

/// A forked child has a copy of private memory, and can use the provider. Shared memory stays the
/// parent's: a free in the child has no effect there.
pub fn forked_child_leaves_shared_memory_alone(make: MakeProvider<'_>) {
    let _guard = run_shared();
    let provider = make();
    if !is_accessible(&*provider) {
        return skip(&*provider, "drivers do not survive a fork");
    }
    let upstream = Upstream::new(Arc::clone(&provider)).expect("an upstream");
    let layout = Layout::new(2 * provider.page_size(), 1).expect("a valid layout");
    let (region, _) = upstream.allocate(layout).expect("a region");
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let _ends = crate::SetOnDrop(&stop);
        scope.spawn(|| {
            while !stop.load(Ordering::Relaxed) {
                let region = allocate(&*provider, 1, 1);
                free(&*provider, region);
            }
        });
        for round in 0..10 {
            fill(region.base(), region.size(), round);
            let ended = in_child(|| child(&*provider, &upstream, layout, region));
            let expected = match provider.visibility() {
                Visibility::Private => round,
                Visibility::Shared => 200,
            };
            let what = "2: not frozen, 3: freeing failed, 4: allocating failed";
            assert_eq!(ended, ExitReason::Exit(0), "{what}");
            assert_filled(region.base(), region.size(), expected);
        }
    });
    // SAFETY: the region belongs to this test and is not used any more.
    unsafe { upstream.free(region) }.expect("freeing in the parent");
}

fn child(provider: &dyn Provider, upstream: &Upstream, layout: Layout, region: umf_core::Region) -> i32 {
    // Writes first, so that a missing freeze also shows as changed memory in the parent.
    fill(region.base(), region.size(), 200);
    if provider.visibility() == Visibility::Shared {
        if !matches!(upstream.allocate(layout), Err(Error::Frozen { .. })) {
            return 2;
        }
        // SAFETY: not used in this process any more.
        return if unsafe { upstream.free(region) }.is_ok() { 0 } else { 3 };
    }
    // SAFETY: not used in this process any more.
    if unsafe { upstream.free(region) }.is_err() {
        return 3;
    }
    let Ok((fresh, _)) = upstream.allocate(layout) else { return 4 };
    fill(fresh.base(), fresh.size(), 5);
    // SAFETY: allocated above.
    if unsafe { upstream.free(fresh) }.is_err() { 3 } else { 0 }
}
