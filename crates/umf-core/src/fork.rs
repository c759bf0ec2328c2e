//! Fork: how this process learns that it is a child, and how locks come through.
//!
//! Two mechanisms, both without a cost on common paths:
//!
//! - [`generation`] reads one page that the kernel wipes in a forked child (`MADV_WIPEONFORK`). State
//!   that must not be used by a child (shared memory pools, ledgers) remembers the generation that it
//!   was made in and compares.
//! - [`register`]ed objects have their locks taken before a fork and let go after it, in the parent
//!   and in the child, so that a child never inherits a lock that a thread it does not have holds.

use core::ptr::NonNull;
use core::sync::atomic::{AtomicBool, AtomicPtr, AtomicU32, Ordering};

use crate::lock::Lock;
use crate::step::{Step, step};
use crate::{Error, Result, sys};

const ALIVE: u32 = 0x554d_4601;
const NOTICING: u32 = 1;
const PAGE: usize = 4096;

static CANARY: AtomicPtr<AtomicU32> = AtomicPtr::new(core::ptr::null_mut());
static GENERATION: AtomicU32 = AtomicU32::new(1);

/// How many forks lie between this process and the one in which umf was first used, plus one.
///
/// Two loads. Everything that belongs to one process only remembers this number and compares.
/// A child made by raw `clone` without `CLONE_VM` is noticed as well as one made by `fork(3)`.
#[inline]
pub fn generation() -> u32 {
    let canary = CANARY.load(Ordering::Acquire);
    if let Some(canary) = NonNull::new(canary) {
        // SAFETY: a published canary page is never unmapped.
        if unsafe { canary.as_ref() }.load(Ordering::Relaxed) == ALIVE {
            return GENERATION.load(Ordering::Relaxed);
        }
    }
    notice()
}

#[cold]
fn notice() -> u32 {
    let Some(canary) = NonNull::new(CANARY.load(Ordering::Acquire)) else {
        install();
        return GENERATION.load(Ordering::Relaxed);
    };
    // SAFETY: a published canary page is never unmapped.
    let canary = unsafe { canary.as_ref() };
    // Two threads of a child that notice at the same time must count one fork, not two.
    match canary.compare_exchange(0, NOTICING, Ordering::Acquire, Ordering::Acquire) {
        Ok(_) => {
            GENERATION.fetch_add(1, Ordering::Relaxed);
            canary.store(ALIVE, Ordering::Release);
        }
        Err(_) => {
            while canary.load(Ordering::Acquire) == NOTICING {
                std::thread::yield_now();
            }
        }
    }
    GENERATION.load(Ordering::Relaxed)
}

/// Makes the canary page and the fork handlers. Nobody waits for another thread here (as with `std::sync::Once`): a child
/// forked meanwhile does not have that thread.
fn install() {
    static INSTALLING: AtomicBool = AtomicBool::new(false);
    if !INSTALLING.swap(true, Ordering::AcqRel) {
        // SAFETY: the handlers are functions of this crate that stay loaded with it; they only take and
        // release locks. A failure (no memory) leaves forks with locks unhandled, as if never called.
        let _ = unsafe { libc::pthread_atfork(Some(prepare), Some(parent), Some(child)) };
    }
    let Ok(page) = sys::map_metadata(PAGE) else { return };
    // Without the advice (Linux before 4.14) the handlers alone notice forks.
    // SAFETY: the page was mapped above and is not shared yet.
    let _ = unsafe { sys::wipe_on_fork(page, PAGE) };
    let canary = page.cast::<AtomicU32>();
    // SAFETY: a zeroed page is a valid AtomicU32.
    unsafe { canary.as_ref() }.store(ALIVE, Ordering::Relaxed);
    let none = core::ptr::null_mut();
    if CANARY.compare_exchange(none, canary.as_ptr(), Ordering::AcqRel, Ordering::Acquire).is_err() {
        // SAFETY: another thread was first; nobody has seen this page.
        let _ = unsafe { rustix::mm::munmap(page.as_ptr().cast(), PAGE) };
    }
}

/// Something with locks that have to come through a fork.
pub trait ForkAware: Sync {
    /// Before the fork, in the forking thread: take every lock that a child could need.
    fn prepare(&self);
    /// After it, in the parent: let go.
    fn parent(&self);
    /// After it, in the child: let go; other threads are gone, in the middle of whatever they did
    /// outside these locks.
    fn child(&self);
}

const LIMIT: usize = 4096;

#[derive(Clone, Copy)]
struct Registered(NonNull<dyn ForkAware>);
// SAFETY: `ForkAware` is `Sync`, and `register`'s contract keeps the object alive.
unsafe impl Send for Registered {}

struct Registry {
    entries: [Option<Registered>; LIMIT],
    len: usize,
}

static REGISTRY: Lock<Registry> = Lock::new(Registry { entries: [None; LIMIT], len: 0 });

/// Has `object` told of forks, until [`unregister`]ed. Later registered objects are locked first: what
/// is built on another is registered after it.
///
/// # Errors
/// [`Error::TooMany`] past 4096 objects.
///
/// # Safety
/// `object` stays valid until it is unregistered.
pub unsafe fn register(object: NonNull<dyn ForkAware>) -> Result<()> {
    enter(object, false)
}

/// As [`register`], but locked after all others, whenever it is registered: for locks under which no other
/// lock is taken. So what cannot register itself before its users do (a `static`) can still take part.
///
/// # Errors
/// As [`register`].
///
/// # Safety
/// As [`register`], and whoever holds one of the object's locks takes no lock of another object.
pub unsafe fn register_leaf(object: NonNull<dyn ForkAware>) -> Result<()> {
    enter(object, true)
}

fn enter(object: NonNull<dyn ForkAware>, leaf: bool) -> Result<()> {
    generation();
    let mut registry = REGISTRY.lock();
    let len = registry.len;
    if len == LIMIT {
        return Err(Error::TooMany { what: "pools and providers that take part in forks", limit: LIMIT });
    }
    let place = if leaf { 0 } else { len };
    registry.entries.copy_within(place..len, place + 1);
    registry.entries[place] = Some(Registered(object));
    registry.len += 1;
    Ok(())
}

/// Ends what [`register`] began. Waits for a fork that is going on.
pub fn unregister(object: NonNull<dyn ForkAware>) {
    let mut registry = REGISTRY.lock();
    let len = registry.len;
    let same = |entry: &Option<Registered>| {
        entry.is_some_and(|entry| core::ptr::addr_eq(entry.0.as_ptr(), object.as_ptr()))
    };
    if let Some(place) = registry.entries[..len].iter().position(same) {
        registry.entries.copy_within(place + 1..len, place);
        registry.entries[len - 1] = None;
        registry.len -= 1;
    }
}

/// Runs `step` on each registered object, the latest first.
fn each(registry: &Registry, step: impl Fn(&dyn ForkAware)) {
    for entry in registry.entries[..registry.len].iter().rev().flatten() {
        // SAFETY: registered objects stay valid until unregistered, which takes the registry's lock.
        step(unsafe { entry.0.as_ref() });
    }
}

extern "C" fn prepare() {
    let registry = REGISTRY.lock();
    crate::observer::lock_for_fork();
    each(&registry, |object| object.prepare());
    crate::held::lock_for_fork();
    crate::tracker::lock_for_fork();
    crate::thread::lock_for_fork();
    core::mem::forget(registry);
    step(Step::ForkPrepared);
}

extern "C" fn parent() {
    // SAFETY: `prepare` in this thread took them.
    unsafe { release(|object| object.parent(), || crate::held::unlock_after_fork()) };
    step(Step::ForkReturned);
}

extern "C" fn child() {
    step(Step::ForkChildBegun);
    // Where MADV_WIPEONFORK is refused (before Linux 4.14) this is how a child is noticed.
    if let Some(canary) = NonNull::new(CANARY.load(Ordering::Acquire)) {
        // SAFETY: a published canary page is never unmapped.
        unsafe { canary.as_ref() }.store(0, Ordering::Relaxed);
    }
    // SAFETY: `prepare` in the thread of which this is the copy took them.
    unsafe { release(|object| object.child(), || crate::held::unlock_in_child()) };
    step(Step::ForkChildReady);
}

/// # Safety
/// [`prepare`] ran in this thread, or in the one of which it is the forked copy.
unsafe fn release(step: impl Fn(&dyn ForkAware), held: impl FnOnce()) {
    // SAFETY: `prepare` took the thread numbers' locks.
    unsafe { crate::thread::unlock_after_fork() };
    // SAFETY: `prepare` took the tracker's locks.
    unsafe { crate::tracker::unlock_after_fork() };
    held();
    // SAFETY: `prepare` holds the registry's lock, and forgot its guard: nobody else reaches it.
    let registry = unsafe { REGISTRY.get_locked() };
    each(registry, step);
    // SAFETY: `prepare` took the observers' lock.
    unsafe { crate::observer::unlock_after_fork() };
    // SAFETY: `prepare` took it.
    unsafe { REGISTRY.unlock_after_fork() };
}

#[cfg(test)]
mod tests {
    use super::*;
    use core::sync::atomic::AtomicUsize;

    struct Counted {
        lock: Lock<()>,
        prepared: AtomicUsize,
    }

    impl ForkAware for Counted {
        fn prepare(&self) {
            self.lock.lock_for_fork();
            self.prepared.fetch_add(1, Ordering::Relaxed);
        }
        fn parent(&self) {
            // SAFETY: `prepare` took it.
            unsafe { self.lock.unlock_after_fork() };
        }
        fn child(&self) {
            self.parent();
        }
    }

    #[test]
    fn a_child_knows_that_it_is_one_and_its_locks_are_free() {
        let counted = Counted { lock: Lock::new(()), prepared: AtomicUsize::new(0) };
        let object: &dyn ForkAware = &counted;
        let object: NonNull<dyn ForkAware> = NonNull::from(object);
        // The lifetime of a trait object behind NonNull is erased by this cast alone.
        // SAFETY: only the lifetime changes; unregistered below, before `counted` goes.
        let object: NonNull<dyn ForkAware> = unsafe { core::mem::transmute(object) };
        // SAFETY: `counted` lives until unregistered below.
        unsafe { register(object) }.unwrap();
        let before = generation();
        let stop = AtomicU32::new(0);
        std::thread::scope(|scope| {
            // A second thread takes and leaves the lock all the time.
            scope.spawn(|| {
                while stop.load(Ordering::Relaxed) == 0 {
                    drop(counted.lock.lock());
                }
            });
            for _ in 0..50 {
                // SAFETY: the child only calls async-signal-safe code and this crate's locks.
                let pid = unsafe { libc::fork() };
                if pid == 0 {
                    let free = counted.lock.try_lock().is_some();
                    let code = i32::from(!(free && generation() == before + 1));
                    // SAFETY: ends the child at once.
                    unsafe { libc::_exit(code) };
                }
                let mut status = 0;
                // SAFETY: waits for the child made above.
                assert_eq!(unsafe { libc::waitpid(pid, &raw mut status, 0) }, pid);
                assert_eq!(status, 0);
            }
            stop.store(1, Ordering::Relaxed);
        });
        assert_eq!(generation(), before);
        assert_eq!(counted.prepared.load(Ordering::Relaxed), 50);
        unregister(object);
    }

    #[test]
    fn leaves_are_locked_last() {
        struct Nothing;
        impl ForkAware for Nothing {
            fn prepare(&self) {}
            fn parent(&self) {}
            fn child(&self) {}
        }
        // Of some size, so that their addresses differ.
        static PAIR: [(Nothing, u64); 2] = [(Nothing, 0), (Nothing, 1)];
        let object = |index: usize| NonNull::from(&PAIR[index].0 as &'static dyn ForkAware);
        // SAFETY: statics, with no locks at all.
        unsafe {
            register(object(0)).unwrap();
            register_leaf(object(1)).unwrap();
        }
        let place = |index| {
            let wanted = object(index);
            let registry = REGISTRY.lock();
            registry.entries[..registry.len].iter().position(|entry| {
                entry.is_some_and(|entry| core::ptr::addr_eq(entry.0.as_ptr(), wanted.as_ptr()))
            })
        };
        // The latest entry is locked first.
        assert!(place(1) < place(0));
        unregister(object(0));
        unregister(object(1));
    }
}
