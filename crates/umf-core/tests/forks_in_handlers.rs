//! A handler of signals that forks, in a process of one thread, wherever the signal comes: amid a change of what takes part in forks,
//! amid a lock that it has, amid a fork. Without libtest, which has threads: the C library has one fork at a time where there are some.

use core::ptr::NonNull;
use core::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use umf_core::fork::{self, ForkAware};
use umf_core::lock::Lock;

/// Forks of the handler, each in a child of the one process.
const FORKS: u32 = 300;
/// As many as make a change of the list a matter of microseconds.
const OBJECTS: usize = 3000;

struct Watched {
    lock: Lock<()>,
    prepared: AtomicU32,
    released: AtomicU32,
}

static WATCHED: [Watched; OBJECTS] =
    [const { Watched { lock: Lock::new(()), prepared: AtomicU32::new(0), released: AtomicU32::new(0) } };
        OBJECTS];

/// Registered and unregistered all the time.
static OTHER: Watched =
    Watched { lock: Lock::new(()), prepared: AtomicU32::new(0), released: AtomicU32::new(0) };

/// Whose lock was free in the middle of a fork.
static LET_GO: AtomicU32 = AtomicU32::new(0);
static DONE: AtomicU32 = AtomicU32::new(0);
static FAILED: AtomicU32 = AtomicU32::new(0);

impl ForkAware for Watched {
    fn prepare(&self) {
        self.lock.lock_for_fork();
        add(&self.prepared, 1);
    }

    fn parent(&self) {
        if self.lock.try_lock().is_some() {
            add(&LET_GO, 1);
        }
        // SAFETY: `prepare` was called in this thread, or in the one of which this is the copy.
        unsafe { self.lock.unlock_after_fork() };
        add(&self.released, 1);
    }

    fn child(&self) {
        self.parent();
    }
}

fn add(word: &AtomicU32, more: u32) {
    word.fetch_add(more, Ordering::Relaxed);
}

fn get(word: &AtomicU32) -> u32 {
    word.load(Ordering::Relaxed)
}

fn watched() -> impl Iterator<Item = &'static Watched> {
    // What is moved first and last in a list, and some between.
    WATCHED.iter().step_by(37)
}

/// Forks; whether what is watched took part once on both sides, on top of what it had.
fn fork_and_look() -> bool {
    let words = || watched().map(|object| (get(&object.prepared), get(&object.released)));
    let mut before = [(0, 0); OBJECTS / 37 + 1];
    before.iter_mut().zip(words()).for_each(|(place, words)| *place = words);
    let took_part =
        || words().zip(before).all(|(now, before)| now == (before.0 + 1, before.1 + 1)) && get(&LET_GO) == 0;
    // SAFETY: the child looks at words, and ends.
    let pid = unsafe { libc::fork() };
    if pid == 0 {
        // SAFETY: ends the child at once.
        unsafe { libc::_exit(i32::from(!took_part())) };
    }
    let mut status = 0;
    // SAFETY: waits for the child made above. (Interrupted by the signal it begins again: `SA_RESTART`.)
    let ended = unsafe { libc::waitpid(pid, &raw mut status, 0) } == pid;
    let went_well = ended && status == 0 && took_part();
    // As it was, for the fork that this one came amid.
    for (object, before) in watched().zip(before) {
        object.prepared.store(before.0, Ordering::Relaxed);
        object.released.store(before.1, Ordering::Relaxed);
    }
    went_well
}

extern "C" fn on_alarm(_: i32) {
    if !fork_and_look() {
        add(&FAILED, 1);
    }
    add(&DONE, 1);
    arm();
}

/// Has one signal come a little later, each time another little.
fn arm() {
    let after = 20 + i64::from(get(&DONE) * 17 % 301);
    let timer = libc::itimerval {
        it_interval: libc::timeval { tv_sec: 0, tv_usec: 0 },
        it_value: libc::timeval { tv_sec: 0, tv_usec: after },
    };
    // SAFETY: `timer` is valid.
    unsafe { libc::setitimer(libc::ITIMER_REAL, &raw const timer, core::ptr::null_mut()) };
}

/// In a process of one thread.
fn run() -> bool {
    for object in &WATCHED {
        // SAFETY: statics; under their locks nothing is done.
        if unsafe { fork::register_leaf(NonNull::from(object as &'static dyn ForkAware)) }.is_err() {
            return false;
        }
    }
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
    let other = NonNull::from(&OTHER as &'static dyn ForkAware);
    let mut went_well = true;
    for turn in 0_u32.. {
        if get(&DONE) >= FORKS || get(&FAILED) > 0 || !went_well {
            break;
        }
        // SAFETY: a static.
        went_well &= unsafe { fork::register_leaf(other) }.is_ok();
        drop(WATCHED.last().map(|object| object.lock.lock()));
        fork::unregister(other);
        if turn % 64 == 0 {
            went_well &= fork_and_look();
        }
    }
    went_well && get(&FAILED) == 0 && WATCHED.iter().all(|object| object.lock.try_lock().is_some())
}

fn main() {
    // SAFETY: this process has one thread.
    let pid = unsafe { libc::fork() };
    if pid == 0 {
        // SAFETY: this process and its children are a group of their own from here on.
        unsafe { libc::setpgid(0, 0) };
        let went_well = run();
        println!("{} forks in the handler", get(&DONE));
        std::process::exit(i32::from(!went_well));
    }
    let begin = Instant::now();
    let mut status = 0;
    // SAFETY: asks for the child made above.
    while unsafe { libc::waitpid(pid, &raw mut status, libc::WNOHANG) } == 0 {
        if begin.elapsed() > Duration::from_secs(120) {
            // SAFETY: the group of a child that was not waited for.
            unsafe { libc::kill(-pid, libc::SIGKILL) };
        }
        std::thread::sleep(Duration::from_millis(10));
    }
    assert_eq!(status, 0);
}
