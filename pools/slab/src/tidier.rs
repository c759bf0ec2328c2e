//! The thread in the background that gives memory back, for pools that ask for one: one for all of them, as long as there is one.

use core::sync::atomic::{AtomicU32, Ordering};
use core::time::Duration;
use std::thread::Thread;

use umf_os::background;
use umf_runtime::held;
use umf_sync::{Lock, fork};

use crate::roster;

struct State {
    /// Pools that ask for it.
    pools: u32,
    /// The thread, once it runs, and the process that it is of.
    thread: Option<(Option<Thread>, u32)>,
}

static STATE: Lock<State> = Lock::new(State { pools: 0, thread: None });
/// Of which process there is, or cannot be, a thread.
static SEEN_TO: AtomicU32 = AtomicU32::new(0);

/// One more pool asks for it.
pub(crate) fn begin() {
    STATE.lock().pools += 1;
    SEEN_TO.store(0, Ordering::Relaxed);
    see_to_it();
}

/// One pool less does.
pub(crate) fn done() {
    let mut state = STATE.lock();
    state.pools = state.pools.saturating_sub(1);
    if let Some((Some(thread), _)) = state.thread.as_ref().filter(|_| state.pools == 0) {
        thread.unpark();
    }
}

/// Begins the thread, if there is none: after a fork, for instance, which it does not come through.
pub(crate) fn see_to_it() {
    let generation = fork::generation();
    if SEEN_TO.load(Ordering::Relaxed) == generation {
        return;
    }
    let mut state = STATE.lock();
    if SEEN_TO.swap(generation, Ordering::Relaxed) == generation || state.pools == 0 {
        return;
    }
    if state.thread.as_ref().is_some_and(|(_, of)| *of == generation) {
        return;
    }
    match background::spawn(c"umf-tidier", 256 << 10, work) {
        Ok(_) => state.thread = Some((None, generation)),
        Err(error) => {
            tracing::warn!(%error, "no thread to give memory back in the background; pools do it on their slow paths");
        }
    }
}

fn work() {
    let this = std::thread::current();
    if let Some((thread, _)) = &mut STATE.lock().thread {
        *thread = Some(this);
    }
    loop {
        let mut pause = Duration::from_secs(1);
        roster::POOLS.visit(|pool| {
            if pool.settings.background {
                pool.tidy_unpolled();
                pause = pause.min(pool.policy.period());
            }
        });
        // Not while a pool is kept from going: who drops the last of what holds a block may drop its pool.
        held::poll();
        {
            let mut state = STATE.lock();
            if state.pools == 0 {
                state.thread = None;
                SEEN_TO.store(0, Ordering::Relaxed);
                return;
            }
        }
        std::thread::park_timeout(pause);
    }
}
