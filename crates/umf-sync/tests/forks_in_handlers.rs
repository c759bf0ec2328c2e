//! A signal handler forks in a process with one thread. The signal arrives while the thread holds a
//! lock, while it acquires one, or during a fork. The test does not use libtest, which has threads.

use core::sync::atomic::{AtomicBool, AtomicU32, Ordering};

use umf_sync::Lock;
use umf_sync::fork::{self, Leaf};

/// How often the handler forks.
const FORKS: u32 = 300;

static OUTER: Lock<u64> = Lock::new(0);
static LEAF: Lock<u64, Leaf> = Lock::new(0);
/// True only while the main loop holds [`OUTER`].
static HOLDS: AtomicBool = AtomicBool::new(false);
/// True only while the main loop does not hold [`OUTER`].
static HOLDS_NOT: AtomicBool = AtomicBool::new(false);
static DONE: AtomicU32 = AtomicU32::new(0);
static FAILED: AtomicU32 = AtomicU32::new(0);

/// Returns whether the state of [`OUTER`] matches the flags.
fn is_right() -> bool {
    // A signal handler may interrupt this function while it holds the lock.
    let holds_not = HOLDS_NOT.swap(false, Ordering::Relaxed);
    let is_free = OUTER.try_lock().is_some();
    HOLDS_NOT.store(holds_not, Ordering::Relaxed);
    !(is_free && HOLDS.load(Ordering::Relaxed) || !is_free && holds_not)
}

/// Forks. Returns whether the locks are unchanged in the parent and in the child.
fn fork_and_look() -> bool {
    let before = fork::generation();
    // SAFETY: the child only tries locks of this crate, then exits.
    let pid = unsafe { libc::fork() };
    if pid == 0 {
        let is_right = is_right() && fork::generation() == before + 1;
        // SAFETY: ends the child at once.
        unsafe { libc::_exit(i32::from(!is_right)) };
    }
    let mut status = 0;
    // SAFETY: waits for the child made above. With `SA_RESTART`, signals do not interrupt the call.
    let ended = unsafe { libc::waitpid(pid, &raw mut status, 0) } == pid;
    ended && status == 0 && is_right() && fork::generation() == before
}

extern "C" fn on_alarm(_: i32) {
    if !fork_and_look() {
        FAILED.fetch_add(1, Ordering::Relaxed);
    }
    DONE.fetch_add(1, Ordering::Relaxed);
    arm();
}

/// Sets a timer that sends the next signal, each time after a different delay.
fn arm() {
    let after = 20 + i64::from(DONE.load(Ordering::Relaxed) * 17 % 301);
    let timer = libc::itimerval {
        it_interval: libc::timeval { tv_sec: 0, tv_usec: 0 },
        it_value: libc::timeval { tv_sec: 0, tv_usec: after },
    };
    // SAFETY: `timer` is valid.
    unsafe { libc::setitimer(libc::ITIMER_REAL, &raw const timer, core::ptr::null_mut()) };
}

fn run() -> bool {
    // SAFETY: the handler is a function of this type.
    let action = unsafe {
        let mut action = core::mem::zeroed::<libc::sigaction>();
        action.sa_sigaction = on_alarm as extern "C" fn(i32) as usize;
        action.sa_flags = libc::SA_RESTART;
        action
    };
    // SAFETY: `action` is valid.
    unsafe { libc::sigaction(libc::SIGALRM, &raw const action, core::ptr::null_mut()) };
    arm();
    for turn in 0_u32.. {
        if DONE.load(Ordering::Relaxed) >= FORKS || FAILED.load(Ordering::Relaxed) > 0 {
            break;
        }
        HOLDS_NOT.store(true, Ordering::Relaxed);
        HOLDS_NOT.store(false, Ordering::Relaxed);
        let mut outer = OUTER.lock();
        HOLDS.store(true, Ordering::Relaxed);
        *outer += 1;
        *LEAF.lock() += 1;
        HOLDS.store(false, Ordering::Relaxed);
        drop(outer);
        HOLDS_NOT.store(true, Ordering::Relaxed);
        if turn.is_multiple_of(64) && !fork_and_look() {
            return false;
        }
        HOLDS_NOT.store(false, Ordering::Relaxed);
    }
    FAILED.load(Ordering::Relaxed) == 0 && OUTER.try_lock().is_some() && LEAF.try_lock().is_some()
}

fn main() {
    // SAFETY: this process has one thread.
    let pid = unsafe { libc::fork() };
    if pid == 0 {
        // SAFETY: ends the child at once.
        unsafe { libc::_exit(i32::from(!run())) };
    }
    let mut status = 0;
    // SAFETY: waits for the child made above.
    assert_eq!(unsafe { libc::waitpid(pid, &raw mut status, 0) }, pid);
    assert_eq!(status, 0, "the locks after forks in a signal handler");
    println!(
        "test forks_in_handlers ... ok\n\ntest result: ok. 1 passed; 0 failed; 0 ignored; 0 measured; 0 filtered out"
    );
}
