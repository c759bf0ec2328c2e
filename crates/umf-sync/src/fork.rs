//! Fork handling: the gates that keep locks usable in a child, the generation of a process, and
//! hooks around each fork.
//!
//! - Each [`crate::Lock`] passes a [gate](ForkGate), which a fork closes (`gate.rs` has the
//!   protocol). Locks are not registered anywhere.
//! - An object that a child must not use stores the [`generation`] in which it was made and
//!   compares.
//! - [`add_hooks`] adds functions that run before and after each fork.

use core::marker::PhantomData;
use core::sync::atomic::{AtomicBool, AtomicPtr, AtomicU32, AtomicUsize, Ordering};

use crate::chunks::{Chunks, Zeroable};
use crate::gate::{Gate, GateWord, Machine, Patience};
use crate::generation;
pub use crate::generation::generation;
use umf_core::{Error, Result};

use crate::{BlockedSignals, failpoint, fence, sys, thread};

/// The gates, by [`ForkGate::NUMBER`].
static GATES: [Gate<AtomicUsize>; 2] = [const {
    let [owner, depth, is_closed, openings, others] = [const { AtomicUsize::new(0) }; 5];
    Gate::from_words(owner, depth, is_closed, openings, others)
}; 2];

/// The count words of a thread, by gate: the number of locks that it holds or waits for. Only that
/// thread writes them.
#[derive(Debug)]
#[repr(align(128))]
struct CountWords([AtomicUsize; 2]);

// SAFETY: zeros are valid atomics, which need no drop.
unsafe impl Zeroable for CountWords {}

/// By thread index.
static COUNT_WORDS: Chunks<CountWords, 16> = Chunks::new();

/// The fork gate that a lock passes, as a type: [`Outer`], [`Leaf`] or [`LeafUnindexed`].
pub trait ForkGate {
    #[doc(hidden)]
    const NUMBER: usize;
    /// Whether threads use their own count words. False for locks that are acquired to get one.
    #[doc(hidden)]
    const BY_WORD: bool = true;
    /// Blocks signals while a thread is inside, if the gate needs that.
    #[doc(hidden)]
    type Signals: core::fmt::Debug;
    #[doc(hidden)]
    fn signals() -> Self::Signals;
}

/// The gate of most locks. A fork closes it first.
#[derive(Clone, Copy, Debug, Default)]
pub struct Outer;

/// The gate of locks that are acquired while locks of another library with fork handlers are held
/// (jemalloc's, in extent hooks). A fork closes it after those handlers ran.
#[derive(Clone, Copy, Debug, Default)]
pub struct Leaf;

/// The leaf gate for locks that may be acquired while the calling thread gets its index: those of
/// an allocator that serves [`thread::current`], which calls `pthread_setspecific(3)`. Signals are
/// blocked while a thread is inside. Costs two system calls and two atomic additions.
#[derive(Clone, Copy, Debug, Default)]
pub struct LeafUnindexed;

impl ForkGate for Outer {
    const NUMBER: usize = 0;
    type Signals = ();
    fn signals() {}
}

impl ForkGate for Leaf {
    const NUMBER: usize = 1;
    type Signals = ();
    fn signals() {}
}

impl ForkGate for LeafUnindexed {
    const NUMBER: usize = 1;
    const BY_WORD: bool = false;
    // A signal handler that forks would wait for its own thread: the shared count word does not say
    // which threads are inside.
    type Signals = BlockedSignals;
    fn signals() -> BlockedSignals {
        BlockedSignals::new()
    }
}

/// A scope in which no other thread of this process forks. The calling thread is inside of the gate
/// `G` until this is dropped.
///
/// A [`Lock`](crate::Lock) has one. A section that other threads wait for, and in which a lock is
/// acquired, needs one that begins before the section.
#[derive(Debug)]
pub struct ForkGuard<G: ForkGate = Outer> {
    /// The thread's count word; `None` for a thread without an index.
    word: Option<&'static AtomicUsize>,
    /// Dropped after the thread has exited the gate.
    _signals: G::Signals,
    /// The count word is the calling thread's.
    not_send: PhantomData<(G, *const ())>,
}

impl<G: ForkGate> ForkGuard<G> {
    /// Enters the gate. Waits for a fork that another thread has begun, unless the calling thread
    /// is already inside.
    #[inline]
    #[must_use]
    pub fn new() -> Self {
        let signals = G::signals();
        let word = if G::BY_WORD { count_words().map(|words| &words.0[G::NUMBER]) } else { None };
        match word {
            Some(word) => GATES[G::NUMBER].enter::<Kernel>(word),
            None => GATES[G::NUMBER].enter_without_word::<Kernel>(),
        }
        Self { word, _signals: signals, not_send: PhantomData }
    }
}

impl<G: ForkGate> Default for ForkGuard<G> {
    fn default() -> Self {
        Self::new()
    }
}

impl<G: ForkGate> Drop for ForkGuard<G> {
    #[inline]
    fn drop(&mut self) {
        match self.word {
            Some(word) => GATES[G::NUMBER].exit(word),
            None => GATES[G::NUMBER].exit_without_word(),
        }
    }
}

#[inline]
fn count_words() -> Option<&'static CountWords> {
    let index = thread::current()?.get();
    match COUNT_WORDS.get(index) {
        Some(words) => Some(words),
        None => COUNT_WORDS.get_or_grow(index).ok(),
    }
}

/// Resets the count words of an ending thread, for the next thread with its index.
pub(crate) fn reset_count_words(index: u32) {
    if let Some(words) = COUNT_WORDS.get(index) {
        words.0.iter().for_each(|word| word.store(0, Ordering::Release));
    }
}

impl GateWord for AtomicUsize {
    #[inline(always)]
    fn load(&self, order: Ordering) -> usize {
        self.load(order)
    }

    #[inline(always)]
    fn store(&self, value: usize, order: Ordering) {
        self.store(value, order);
    }

    fn add(&self, value: usize, order: Ordering) -> usize {
        self.fetch_add(value, order)
    }

    fn sub(&self, value: usize, order: Ordering) -> usize {
        self.fetch_sub(value, order)
    }

    fn replace(&self, current: usize, new: usize) -> core::result::Result<(), usize> {
        self.compare_exchange(current, new, Ordering::SeqCst, Ordering::SeqCst).map(drop)
    }
}

/// The kernel and processor that the program runs on.
struct Kernel;

impl Machine for Kernel {
    type Word = AtomicUsize;
    type Patience = Span;

    fn thread_id() -> usize {
        sys::this_thread()
    }

    #[inline(always)]
    fn light() {
        fence::light_or_full();
    }

    fn heavy() {
        fence::heavy();
    }

    fn sleep(word: &AtomicUsize, expected: usize) {
        sys::futex_wait(sys::low_half(word), expected as u32);
    }

    fn wake_all(word: &AtomicUsize) {
        sys::futex_wake(sys::low_half(word), i32::MAX);
    }

    fn uninterrupted<T>(act: impl FnOnce() -> T) -> T {
        let _signals = BlockedSignals::new();
        act()
    }
}

/// A span of time on the monotonic clock.
struct Span {
    nanoseconds: u64,
    end: u64,
    pauses: u32,
}

impl Span {
    fn of(nanoseconds: u64) -> Self {
        Self { nanoseconds, end: sys::now().saturating_add(nanoseconds), pauses: 0 }
    }
}

impl Patience for Span {
    /// 20 ms: longer than any lock is held, except around driver calls.
    fn start() -> Self {
        Self::of(20_000_000)
    }

    fn double(self) -> Self {
        Self::of(self.nanoseconds.saturating_mul(2))
    }

    fn again(&mut self) {
        *self = Self::of(self.nanoseconds);
    }

    fn pause(&mut self) -> bool {
        self.pauses = self.pauses.saturating_add(1);
        match self.pauses {
            0..100 => core::hint::spin_loop(),
            100..200 => sys::pause(0),
            _ => sys::pause(50_000),
        }
        sys::now() < self.end
    }
}

/// Returns the count words of all threads for one gate.
fn count_words_of_all(gate: usize) -> impl Iterator<Item = &'static AtomicUsize> {
    (0..thread::end()).filter_map(move |index| Some(&COUNT_WORDS.get(index)?.0[gate]))
}

/// Returns the count word of the calling thread; `None` for a thread without an index. Does not
/// assign an index: a signal handler that forks may have interrupted that.
fn count_word_if_indexed(gate: usize) -> Option<&'static AtomicUsize> {
    Some(&COUNT_WORDS.get(thread::known()?.get())?.0[gate])
}

fn close(gate: usize) {
    GATES[gate].close::<Kernel, _>(count_word_if_indexed(gate), || count_words_of_all(gate));
}

fn open(gate: usize) {
    GATES[gate].open::<Kernel>();
}

fn open_in_child(gate: usize) {
    GATES[gate].open_in_child::<Kernel, _>(count_word_if_indexed(gate), || count_words_of_all(gate));
}

extern "C" fn prepare() {
    SEQUENCE.fetch_add(1, Ordering::Relaxed);
    close(Outer::NUMBER);
    close(Leaf::NUMBER);
    for_each_hooks(|hooks| (hooks.prepare)());
    failpoint!("fork.prepared");
}

extern "C" fn parent() {
    // A second time, so that a value that was read during the fork differs.
    SEQUENCE.fetch_add(1, Ordering::Relaxed);
    for_each_hooks(|hooks| (hooks.parent)());
    open(Leaf::NUMBER);
    open(Outer::NUMBER);
    failpoint!("fork.returned");
}

extern "C" fn child() {
    OF_PARENT.store(SEQUENCE.load(Ordering::Relaxed), Ordering::Relaxed);
    failpoint!("fork.child_begun");
    generation::begin_child();
    open_in_child(Leaf::NUMBER);
    open_in_child(Outer::NUMBER);
    for_each_hooks(|hooks| (hooks.child)());
    failpoint!("fork.child_ready");
}

/// Incremented when a fork begins and when it ends.
static SEQUENCE: AtomicU32 = AtomicU32::new(0);

/// Returns a number that changes when a fork of this process by `fork(3)` begins, and when it ends.
/// Two equal values mean that no fork happened in between.
#[must_use]
pub fn sequence() -> u32 {
    generation();
    SEQUENCE.load(Ordering::Relaxed)
}

/// The value of [`SEQUENCE`] at the begin of this process: its parent's.
static OF_PARENT: AtomicU32 = AtomicU32::new(0);

/// Returns whether this process itself has forked children by `fork(3)`, since it used umf first.
#[must_use]
pub fn has_forked() -> bool {
    sequence() != OF_PARENT.load(Ordering::Relaxed)
}

/// Makes a fork close the outer gate before it runs the handlers that another library has
/// registered up to now (`pthread_atfork(3)` runs the latest first). For a library whose functions
/// are called while locks with the outer gate are held.
///
/// # Errors
/// [`Error::Native`] if there is no memory for it.
pub fn close_outer_gate_earlier() -> Result<()> {
    extern "C" fn prepare() {
        close(Outer::NUMBER);
    }
    extern "C" fn parent() {
        open(Outer::NUMBER);
    }
    extern "C" fn child() {
        open_in_child(Outer::NUMBER);
    }
    // SAFETY: the handlers are functions of this crate, which stays loaded.
    match unsafe { libc::pthread_atfork(Some(prepare), Some(parent), Some(child)) } {
        0 => Ok(()),
        native => Err(Error::native("pthread_atfork", native)),
    }
}

/// Functions that run around each fork. No other thread holds a lock meanwhile.
///
/// The functions must not wait. If a signal handler forks, the code that it interrupted may hold a
/// lock; so they use [`crate::Lock::try_lock`].
#[derive(Clone, Copy, Debug)]
pub struct Hooks {
    /// Before the fork.
    pub prepare: fn(),
    /// After it, in the parent.
    pub parent: fn(),
    /// After it, in the child.
    pub child: fn(),
}

impl Hooks {
    /// Hooks that do nothing.
    pub const NONE: Self = Self { prepare: || {}, parent: || {}, child: || {} };
}

/// The capacity of [`HOOKS`].
const MAX_HOOKS: usize = 32;

static HOOKS: [AtomicPtr<Hooks>; MAX_HOOKS] = [const { AtomicPtr::new(core::ptr::null_mut()) }; MAX_HOOKS];

/// Runs `hooks` around each fork from now on, in no particular order. Adding the same hooks again
/// has no effect.
///
/// # Errors
/// [`Error::TooMany`] past 32 hooks.
pub fn add_hooks(hooks: &'static Hooks) -> Result<()> {
    generation();
    // Otherwise a fork could run `child` without having run `prepare`.
    let _no_fork = ForkGuard::<Outer>::new();
    let hooks = core::ptr::from_ref(hooks).cast_mut();
    for slot in &HOOKS {
        match slot.compare_exchange(core::ptr::null_mut(), hooks, Ordering::AcqRel, Ordering::Acquire) {
            Ok(_) => return Ok(()),
            Err(other) if other == hooks => return Ok(()),
            Err(_) => {}
        }
    }
    Err(Error::TooMany { what: "fork hooks", limit: MAX_HOOKS })
}

fn for_each_hooks(run: impl Fn(&'static Hooks)) {
    for slot in &HOOKS {
        // SAFETY: a slot is null, or `add_hooks` stored a reference to a static in it.
        if let Some(hooks) = unsafe { slot.load(Ordering::Acquire).as_ref() } {
            run(hooks);
        }
    }
}

/// Installs the handlers when the program or library is loaded. Later, a thread could hold a lock
/// during another thread's fork that began without the handlers.
///
/// A linker may drop this from an archive of objects. Then the first use installs the handlers.
#[used]
#[unsafe(link_section = ".init_array")]
static AT_LOAD: extern "C" fn() = {
    extern "C" fn at_load() {
        generation();
        stay_loaded(at_load);
    }
    at_load
};

/// Pins the shared library that contains `code`, unless that is the program itself. A thread with
/// an index calls into it at thread exit, possibly after a `dlclose` of the library (a plugin).
///
/// Runs when the library is loaded, under the loader's locks. Later, these locks could be acquired
/// under locks of umf, against the lock order.
fn stay_loaded(code: extern "C" fn()) {
    let mut info = core::mem::MaybeUninit::<libc::Dl_info>::uninit();
    // SAFETY: `info` is valid for the write; `dladdr` accepts any address.
    if unsafe { libc::dladdr(code as *const libc::c_void, info.as_mut_ptr()) } == 0 {
        return;
    }
    // SAFETY: `dladdr` succeeded, so it wrote `info`.
    let info = unsafe { info.assume_init() };
    // The program headers follow the ELF header in the first page of the program.
    // SAFETY: `getauxval` takes a number.
    let headers = unsafe { libc::getauxval(libc::AT_PHDR) } as usize;
    let begin = info.dli_fbase.addr();
    if info.dli_fname.is_null() || (begin..begin.saturating_add(sys::PAGE)).contains(&headers) {
        return;
    }
    // SAFETY: the name comes from the loader. `RTLD_NOLOAD` loads nothing, so no constructor runs.
    // The handle is leaked on purpose.
    unsafe { libc::dlopen(info.dli_fname, libc::RTLD_NOW | libc::RTLD_NOLOAD | libc::RTLD_NODELETE) };
}

/// Registers the fork handlers and makes the canary page. Does not block on another thread, as
/// `std::sync::Once` would: a child that is forked meanwhile does not have that thread.
pub(crate) fn install() {
    static INSTALLING: AtomicBool = AtomicBool::new(false);
    if !INSTALLING.swap(true, Ordering::AcqRel) {
        // SAFETY: the handlers stay loaded with this crate, and only acquire and release locks. If
        // there is no memory for them, forks happen without the gate.
        let _ = unsafe { libc::pthread_atfork(Some(prepare), Some(parent), Some(child)) };
    }
    generation::make_canary();
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Lock;

    /// Runs `act` in a forked child. Returns its result.
    fn in_fork(act: impl FnOnce() -> bool) -> bool {
        // SAFETY: the child acquires locks of this crate only, and exits within a bounded time.
        let pid = unsafe { libc::fork() };
        if pid == 0 {
            // SAFETY: sets an alarm for this child.
            unsafe { libc::alarm(20) };
            let code = i32::from(!act());
            // SAFETY: `_exit` runs no code of this process.
            unsafe { libc::_exit(code) };
        }
        let mut status = 0;
        // SAFETY: waits for the child made above.
        assert_eq!(unsafe { libc::waitpid(pid, &raw mut status, 0) }, pid);
        status == 0
    }

    /// Pairs of numbers that are equal whenever their lock is free. The locks have different gates,
    /// and are nested.
    static OUTER: Lock<(u64, u64)> = Lock::new((0, 0));
    static LEAF: Lock<(u64, u64), Leaf> = Lock::new((0, 0));

    fn change() {
        let mut outer = OUTER.lock();
        outer.0 += 1;
        {
            let mut leaf = LEAF.lock();
            leaf.0 += 1;
            std::hint::spin_loop();
            leaf.1 += 1;
        }
        outer.1 += 1;
    }

    fn are_consistent() -> bool {
        let (outer, leaf) = (*OUTER.lock(), *LEAF.lock());
        outer.0 == outer.1 && leaf.0 == leaf.1
    }

    #[test]
    fn locks_are_free_and_their_values_consistent_in_a_child() {
        let stop = AtomicBool::new(false);
        let before = generation();
        std::thread::scope(|scope| {
            for _ in 0..3 {
                scope.spawn(|| {
                    while !stop.load(Ordering::Relaxed) {
                        change();
                    }
                });
            }
            // Two threads fork.
            let forks = || (0..200).all(|_| in_fork(|| generation() == before + 1 && are_consistent()));
            let other = scope.spawn(forks);
            let all = forks() & other.join().unwrap();
            stop.store(true, Ordering::Relaxed);
            assert!(all);
        });
        assert_eq!(generation(), before);
    }

    /// Runs `act` in a new thread, without the standard library, which would acquire a lock.
    fn in_plain_thread(act: extern "C" fn(*mut libc::c_void) -> *mut libc::c_void) -> bool {
        let mut thread = 0;
        let none = core::ptr::null_mut();
        // SAFETY: `thread` is valid for the write, and joined once.
        unsafe {
            libc::pthread_create(&raw mut thread, core::ptr::null(), act, none) == 0
                && libc::pthread_join(thread, core::ptr::null_mut()) == 0
        }
    }

    #[test]
    fn threads_of_a_forked_child_pass_both_gates() {
        extern "C" fn take_both(_: *mut libc::c_void) -> *mut libc::c_void {
            change();
            core::ptr::null_mut()
        }
        assert!(in_fork(|| in_plain_thread(take_both) && are_consistent()));
    }

    #[test]
    fn signals_are_blocked_inside_without_a_word() {
        static WORDLESS: Lock<(), LeafUnindexed> = Lock::new(());
        let is_blocked = || {
            let mut mask = core::mem::MaybeUninit::<libc::sigset_t>::uninit();
            // SAFETY: `mask` is valid for the write, and written before it is read.
            unsafe {
                libc::pthread_sigmask(libc::SIG_SETMASK, core::ptr::null(), mask.as_mut_ptr());
                libc::sigismember(mask.as_ptr(), libc::SIGALRM) == 1
            }
        };
        assert!(!is_blocked());
        let inside = WORDLESS.lock();
        assert!(is_blocked());
        drop(inside);
        assert!(!is_blocked());
    }

    #[test]
    fn lock_held_by_the_forking_thread_is_held_in_both_processes() {
        // No other thread waits for this lock.
        static HELD: Lock<()> = Lock::new(());
        let inside = HELD.lock();
        assert!(in_fork(|| HELD.try_lock().is_none()));
        drop(inside);
        assert!(in_fork(|| HELD.try_lock().is_some()));
    }

    /// Rule 3 of the gate: a thread that holds a lock for long delays the fork, and does not block
    /// other threads meanwhile.
    #[test]
    fn slow_lock_holder_does_not_block_others_until_the_fork() {
        static SLOW: Lock<()> = Lock::new(());
        let (begun, end) = (AtomicBool::new(false), AtomicBool::new(false));
        std::thread::scope(|scope| {
            scope.spawn(|| {
                let _slow = SLOW.lock();
                begun.store(true, Ordering::Release);
                // Waits for the other thread, which must pass the gate.
                while !end.load(Ordering::Acquire) {
                    std::thread::yield_now();
                }
            });
            while !begun.load(Ordering::Acquire) {
                std::thread::yield_now();
            }
            let other = scope.spawn(|| {
                std::thread::sleep(core::time::Duration::from_millis(5));
                change();
                end.store(true, Ordering::Release);
            });
            assert!(in_fork(are_consistent));
            other.join().unwrap();
        });
    }

    #[test]
    fn hooks_run_once_per_fork() {
        static RAN: [AtomicU32; 3] = [const { AtomicU32::new(0) }; 3];
        static COUNT: Hooks = Hooks {
            prepare: || _ = RAN[0].fetch_add(1, Ordering::Relaxed),
            parent: || _ = RAN[1].fetch_add(1, Ordering::Relaxed),
            child: || _ = RAN[2].fetch_add(1, Ordering::Relaxed),
        };
        let ran = || [0, 1, 2].map(|index: usize| RAN[index].load(Ordering::Relaxed));
        add_hooks(&COUNT).unwrap();
        add_hooks(&COUNT).unwrap();
        // Other tests of this program fork too, so counts of this process may be larger.
        let before = ran();
        assert!(in_fork(|| ran()[2] == 1));
        let after = ran();
        assert!(after[0] > before[0] && after[1] > before[1] && after[2] == 0, "{before:?} {after:?}");
    }
}
