//! Fork: how this process learns that it is a child, and how locks come through.
//!
//! Two mechanisms, both without a cost on common paths:
//!
//! - [`generation`] reads one page that the kernel wipes in a forked child (`MADV_WIPEONFORK`). State
//!   that must not be used by a child (shared memory pools, ledgers) remembers the generation that it
//!   was made in and compares.
//! - [`register`]ed objects have their locks taken before a fork and let go after it, in the parent
//!   and in the child, so that a child never inherits a lock that a thread it does not have holds.

use core::cell::UnsafeCell;
use core::ptr::NonNull;
use core::sync::atomic::{AtomicBool, AtomicPtr, AtomicU32, AtomicUsize, Ordering};

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

/// When the program or library that this is part of is loaded: before there are threads, one of which could have a lock in the
/// middle of another's fork that began without the handlers.
///
/// A linker that is handed an archive of objects may leave it out; then the first use installs them.
#[used]
#[unsafe(link_section = ".init_array")]
static AT_LOAD: extern "C" fn() = {
    extern "C" fn at_load() {
        generation();
        stay_loaded(at_load);
        // The first reading of a clock calls `dlsym`, which takes a lock of the loader: not later,
        // when it might come after locks of umf.
        let _ = crate::clock::coarse();
    }
    at_load
};

/// Keeps the library that `own` is part of loaded, if it is not the program: a thread that has a number calls into it when it
/// ends, which may be after a `dlclose` (of a plugin, say).
///
/// Called by the loader, which has its locks: not later, when they might come after locks of umf.
fn stay_loaded(own: extern "C" fn()) {
    let mut info = core::mem::MaybeUninit::<libc::Dl_info>::uninit();
    // SAFETY: `info` is valid for the write; any address may be asked about.
    if unsafe { libc::dladdr(own as *const libc::c_void, info.as_mut_ptr()) } == 0 {
        return;
    }
    // SAFETY: it was found, so `info` was written.
    let info = unsafe { info.assume_init() };
    // SAFETY: asks for a number. The program headers follow the ELF header, in the first page of the program.
    let headers = unsafe { libc::getauxval(libc::AT_PHDR) } as usize;
    let begin = info.dli_fbase.addr();
    if info.dli_fname.is_null() || (begin..begin.saturating_add(PAGE)).contains(&headers) {
        return;
    }
    // SAFETY: a name that the loader gave; nothing is loaded that is not, so no code runs. The handle is for ever.
    unsafe { libc::dlopen(info.dli_fname, libc::RTLD_NOW | libc::RTLD_NOLOAD | libc::RTLD_NODELETE) };
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

/// The latest entry is locked first.
struct List {
    entries: [Option<Registered>; LIMIT],
    len: usize,
    /// How many of the entries, at the end, are locked before all others.
    first: usize,
}

/// Two lists, of which one counts. A change is made to the other one, which counts from then on: a handler of signals that came
/// amid the change, and forks, finds a whole list.
struct Lists {
    lists: [UnsafeCell<List>; 2],
    current: AtomicUsize,
}

// SAFETY: the list that counts is only read, and the other one is touched with the lock of `REGISTRY` alone.
unsafe impl Sync for Lists {}

static LISTS: Lists = Lists {
    lists: [const { UnsafeCell::new(List { entries: [None; LIMIT], len: 0, first: 0 }) }; 2],
    current: AtomicUsize::new(0),
};

/// Who may change the lists.
struct Registry;

static REGISTRY: Lock<Registry> = Lock::new(Registry);

/// When the locks of an object are taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Order {
    /// Before all others, whenever they are registered.
    First,
    /// Before those that were registered earlier.
    Nested,
    /// After all others.
    Leaf,
}

/// Has `object` told of forks, until [`unregister`]ed. Later registered objects are locked first: what
/// is built on another is registered after it.
///
/// # Errors
/// [`Error::TooMany`] past 4096 objects.
///
/// # Safety
/// `object` stays valid until it is unregistered.
pub unsafe fn register(object: NonNull<dyn ForkAware>) -> Result<()> {
    generation();
    REGISTRY.lock().add(object, Order::Nested)
}

/// As [`register`], but locked after all others, whenever it is registered: for locks under which no other
/// lock is taken.
///
/// # Errors
/// As [`register`].
///
/// # Safety
/// As [`register`], and whoever holds one of the object's locks takes no lock of another object.
pub unsafe fn register_leaf(object: NonNull<dyn ForkAware>) -> Result<()> {
    generation();
    REGISTRY.lock().add(object, Order::Leaf)
}

/// As [`register`], for a `static`, and only the first time; `is_registered` is its own and says so.
///
/// Not a `std::sync::Once` around [`register`]: that waits for a fork which is going on, and the child would find the
/// `Once` running for ever. This word changes only when no fork is going on.
///
/// # Errors
/// As [`register`]; the next call tries again.
pub fn register_static(object: &'static dyn ForkAware, is_registered: &AtomicBool) -> Result<()> {
    once(object, is_registered, Order::Nested)
}

/// As [`register_static`], but locked after all others, whenever it is registered: for locks under which no other lock is taken.
///
/// # Errors
/// As [`register_static`].
///
/// The first call must not be made with a lock that a registered object takes: registering waits for forks.
///
/// # Safety
/// A thread that holds one of the object's locks takes no lock of another object, and calls no allocator.
pub unsafe fn register_static_leaf(object: &'static dyn ForkAware, is_registered: &AtomicBool) -> Result<()> {
    once(object, is_registered, Order::Leaf)
}

/// As [`register_static`], in any order.
pub(crate) fn once(object: &'static dyn ForkAware, is_registered: &AtomicBool, order: Order) -> Result<()> {
    if is_registered.load(Ordering::Acquire) {
        return Ok(());
    }
    generation();
    let mut registry = REGISTRY.lock();
    if !is_registered.load(Ordering::Relaxed) {
        registry.add(NonNull::from(object), order)?;
        is_registered.store(true, Ordering::Release);
    }
    Ok(())
}

impl Lists {
    /// The list that counts.
    ///
    /// # Safety
    /// The caller holds the lock of [`REGISTRY`], or interrupted who does and is what goes on next; the reference is gone by the
    /// next change.
    unsafe fn current(&self) -> &List {
        // SAFETY: nobody changes the list that counts, and the caller vouches that it does so until the reference is gone.
        unsafe { &*self.lists[self.current.load(Ordering::Acquire)].get() }
    }
}

impl Registry {
    fn list(&self) -> &List {
        // SAFETY: the only `Registry` is behind the lock, and a change takes `&mut self`.
        unsafe { LISTS.current() }
    }

    /// Copies all entries but those in `without`, with one in their place if `entry` is one, and has the copy count.
    fn replace(&mut self, without: core::ops::Range<usize>, entry: Option<Registered>, first: usize) {
        let other = 1 - LISTS.current.load(Ordering::Relaxed);
        let list = self.list();
        // SAFETY: it does not count; so only who has the lock, as the caller does, touches it.
        let new = unsafe { &mut *LISTS.lists[other].get() };
        let (before, after) = (&list.entries[..without.start], &list.entries[without.end..list.len]);
        new.entries[..before.len()].copy_from_slice(before);
        let mut len = before.len();
        if entry.is_some() {
            new.entries[len] = entry;
            len += 1;
        }
        new.entries[len..len + after.len()].copy_from_slice(after);
        (new.len, new.first) = (len + after.len(), first);
        LISTS.current.store(other, Ordering::Release);
    }

    fn add(&mut self, object: NonNull<dyn ForkAware>, order: Order) -> Result<()> {
        let &List { len, first, .. } = self.list();
        if len == LIMIT {
            return Err(Error::TooMany { what: "pools and providers that take part in forks", limit: LIMIT });
        }
        let place = match order {
            Order::First => len,
            Order::Nested => len - first,
            Order::Leaf => 0,
        };
        self.replace(place..place, Some(Registered(object)), first + usize::from(order == Order::First));
        Ok(())
    }

    fn place(&self, object: NonNull<dyn ForkAware>) -> Option<usize> {
        let list = self.list();
        let same = |entry: &Option<Registered>| {
            entry.is_some_and(|entry| core::ptr::addr_eq(entry.0.as_ptr(), object.as_ptr()))
        };
        list.entries[..list.len].iter().position(same)
    }

    fn remove(&mut self, object: NonNull<dyn ForkAware>) {
        if let Some(place) = self.place(object) {
            let &List { len, first, .. } = self.list();
            self.replace(place..place + 1, None, first - usize::from(place >= len - first));
        }
    }
}

/// Ends what [`register`] began. Waits for a fork that is going on.
pub fn unregister(object: NonNull<dyn ForkAware>) {
    REGISTRY.lock().remove(object);
}

/// Runs `step` on each registered object, the latest first.
///
/// # Safety
/// [`prepare`] began in this thread, or in the one of which it is the forked copy, and the fork is not over.
unsafe fn each(step: impl Fn(&dyn ForkAware)) {
    // SAFETY: the lock was asked for: where it was not taken, a handler of signals forks, and who has it goes on after that.
    let list = unsafe { LISTS.current() };
    for entry in list.entries[..list.len].iter().rev().flatten() {
        // SAFETY: registered objects stay valid until unregistered, which takes the registry's lock.
        step(unsafe { entry.0.as_ref() });
    }
}

extern "C" fn prepare() {
    REGISTRY.lock_for_fork();
    // SAFETY: this is `prepare`.
    unsafe { each(|object| object.prepare()) };
    crate::shortage::lock_for_fork();
    crate::held::lock_for_fork();
    crate::tracker::lock_for_fork();
    crate::thread::lock_for_fork();
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
    // SAFETY: `prepare` took the lock of whom pools ask.
    unsafe { crate::shortage::unlock_after_fork() };
    // SAFETY: passed on to the caller.
    unsafe { each(step) };
    // SAFETY: `prepare` took it.
    unsafe { REGISTRY.unlock_after_fork() };
}

#[cfg(test)]
mod tests {
    use super::*;

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
        unregister(object);
        assert_eq!(generation(), before);
        // (Other tests of this program fork as well.)
        assert!(counted.prepared.load(Ordering::Relaxed) >= 50);
    }

    #[test]
    fn some_are_locked_first_and_leaves_last() {
        struct Nothing;
        impl ForkAware for Nothing {
            fn prepare(&self) {}
            fn parent(&self) {}
            fn child(&self) {}
        }
        // Of some size, so that their addresses differ.
        static OBJECTS: [(Nothing, u64); 4] = [(Nothing, 0), (Nothing, 1), (Nothing, 2), (Nothing, 3)];
        let object = |index: usize| NonNull::from(&OBJECTS[index].0 as &'static dyn ForkAware);
        let known = AtomicBool::new(false);
        for _ in 0..2 {
            once(&OBJECTS[3].0, &known, Order::First).unwrap();
        }
        // SAFETY: statics, with no locks at all.
        unsafe {
            register(object(0)).unwrap();
            register(object(1)).unwrap();
            register_leaf(object(2)).unwrap();
        }
        let place = |index| REGISTRY.lock().place(object(index));
        // The latest entry is locked first.
        assert!(place(3) > place(1) && place(1) > place(0) && place(0) > place(2) && place(2).is_some());
        for index in [3, 0] {
            unregister(object(index));
            assert_eq!(place(index), None);
        }
        assert!(place(1) > place(2) && place(2).is_some());
        unregister(object(1));
        unregister(object(2));
    }
}
