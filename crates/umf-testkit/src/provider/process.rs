//! Cases about the process: what it holds, and what its children do.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};

use super::export::{access_of, request};
use super::memory::{allocate, assert_filled, fill, free, is_accessible};
use super::{Make, passed_over};
use umf_core::{Error, Layout, Provider, Visibility};
use umf_runtime::Upstream;

/// Cases that count what the process holds keep the others out meanwhile.
static CASES: RwLock<()> = RwLock::new(());

/// For a case that may run beside others.
pub(super) fn beside_others() -> RwLockReadGuard<'static, ()> {
    CASES.read().unwrap_or_else(PoisonError::into_inner)
}

/// For a case that counts, or that looks at addresses which others may get.
pub(super) fn alone() -> RwLockWriteGuard<'static, ()> {
    CASES.write().unwrap_or_else(PoisonError::into_inner)
}

fn descriptors() -> usize {
    std::fs::read_dir("/proc/self/fd").map_or(0, Iterator::count)
}

fn mappings() -> usize {
    std::fs::read_to_string("/proc/self/maps").map_or(0, |maps| maps.lines().count())
}

/// What other tests of the same binary, which are not cases of a suite, may come to hold meanwhile.
const NOISE: usize = 40;

#[track_caller]
fn assert_no_growth(before: (usize, usize), what: &str) {
    let (fds, maps) = (descriptors(), mappings());
    assert!(fds <= before.0 + NOISE, "{what}: {} open files became {fds}", before.0);
    assert!(maps <= before.1 + NOISE, "{what}: {} mappings became {maps}", before.1);
}

/// A thousand times through the whole life of a region leaves no descriptor and no mapping behind.
pub fn cycles_leak_nothing(make: Make<'_>) {
    let _alone = alone();
    let provider = make();
    let cycle = |size| {
        let region = allocate(&*provider, size, 1);
        if let Some(exports) = provider.export() {
            let exported = exports.export(&region).expect("exporting");
            if let Some(imports) = provider.import() {
                let request = request(&exported, region.size(), access_of(&exported));
                let imported = imports.import(request).expect("importing");
                // SAFETY: released once and not used.
                unsafe { imports.release(imported) }.expect("releasing");
            }
            exports.unexport(&region, exported).expect("taking back an export");
        }
        free(&*provider, region);
    };
    let page = provider.page_size();
    // Of huge pages rarely more than one: the kernel clears each.
    let huge = page >= 1 << 20;
    let size = |number: usize| page * if huge && !number.is_multiple_of(10) { 1 } else { 1 + number % 3 };
    (0..20).for_each(|number| cycle(size(number)));
    let before = (descriptors(), mappings());
    (0..1000).for_each(|number| cycle(size(number)));
    assert_no_growth(before, "1000 cycles of allocating, exporting, importing and freeing");
}

/// A hundred providers, each used and dropped, leave no descriptor and no mapping behind.
pub fn dropped_providers_leave_nothing(make: Make<'_>) {
    let _alone = alone();
    let once = || {
        let provider = make();
        let region = allocate(&*provider, 1, 1);
        free(&*provider, region);
    };
    once();
    let before = (descriptors(), mappings());
    (0..100).for_each(|_| once());
    assert_no_growth(before, "100 providers made and dropped");
}

/// How a child ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Ended {
    /// It exited with this code.
    Exit(i32),
    /// A signal ended it.
    Signal(i32),
}

/// Seconds until a child is taken to hang.
const PATIENCE: u32 = 20;

/// Runs `body` in a forked child, which exits with what it returns. A child that hangs ends by SIGALRM.
pub(super) fn in_child(body: impl FnOnce() -> i32) -> Ended {
    // SAFETY: the child runs `body`, which calls the code under test and nothing that needs other threads or
    // another thread's locks, and leaves by _exit.
    let pid = unsafe { libc::fork() };
    assert!(pid >= 0, "fork failed");
    if pid == 0 {
        // SAFETY: plain system calls on this process, which is about to end.
        unsafe {
            let none = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
            libc::setrlimit(libc::RLIMIT_CORE, &raw const none);
            for signal in [libc::SIGSEGV, libc::SIGBUS, libc::SIGALRM] {
                libc::signal(signal, libc::SIG_DFL);
            }
            libc::alarm(PATIENCE);
        }
        let code = body();
        // SAFETY: ends the child at once, without destructors.
        unsafe { libc::_exit(code) };
    }
    let mut status = 0;
    // SAFETY: waits for the child made above.
    while unsafe { libc::waitpid(pid, &raw mut status, 0) } != pid {
        assert_eq!(std::io::Error::last_os_error().raw_os_error(), Some(libc::EINTR));
    }
    if libc::WIFSIGNALED(status) {
        Ended::Signal(libc::WTERMSIG(status))
    } else {
        Ended::Exit(libc::WEXITSTATUS(status))
    }
}

/// In a child, private memory is a copy and the provider works on, whatever other threads of the parent were
/// doing; shared memory is the parent's, and freeing it there changes nothing.
pub fn a_forked_child_does_no_harm(make: Make<'_>) {
    let _beside = beside_others();
    let provider = make();
    if !is_accessible(&*provider) {
        return passed_over(&*provider, "drivers do not survive a fork");
    }
    let upstream = Upstream::new(Arc::clone(&provider)).expect("an upstream");
    let layout = Layout::new(2 * provider.page_size(), 1).expect("a valid layout");
    let (region, _) = upstream.allocate(layout).expect("a region");
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let _ends = crate::Ends(&stop);
        scope.spawn(|| {
            while !stop.load(Ordering::Relaxed) {
                let region = allocate(&*provider, 1, 1);
                free(&*provider, region);
            }
        });
        for round in 0..10 {
            fill(region.base(), region.size(), round);
            let ended = in_child(|| child(&*provider, &upstream, layout, region));
            let seen_by_parent = match provider.visibility() {
                Visibility::Private => round,
                Visibility::Shared => 200,
            };
            let what = "1: old content, 2: not frozen, 3: freeing, 4: allocating, 5: new memory";
            assert_eq!(ended, Ended::Exit(0), "{what}");
            assert_filled(region.base(), region.size(), seen_by_parent);
        }
    });
    // SAFETY: this test's own, not used any more.
    unsafe { upstream.free(region) }.expect("freeing in the parent");
}

fn child(provider: &dyn Provider, upstream: &Upstream, layout: Layout, region: umf_core::Region) -> i32 {
    // Marked first, so that a failure to do so is seen as well as the parent's memory being touched.
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
