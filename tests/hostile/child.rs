//! Forked children of a worker: each checks what it inherited, opens handles, and uses pools, then
//! ends.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::{Duration, Instant};

use umf_core::{Layout, pool};

use crate::checker::{Promise, broken};
use crate::importer::{self, Open, check_inherited, open_in_child};
use crate::liveness::Watch;
use crate::shared::{Activity, Counter, count};
use crate::worker::Thread;

/// Children of one thread at one time.
const CHILDREN: usize = 2;
/// A child ends by itself after this long: its parent has reported it by then.
const LONGEST_LIFE_S: u32 = 120;

struct Child {
    pid: i32,
    since: Instant,
    watch: Watch,
}

/// The children of one thread.
pub struct Children(Vec<Child>);

impl Children {
    pub const fn new() -> Self {
        Self(Vec::new())
    }

    /// Forks, unless there are enough children.
    pub fn fork(&mut self, thread: &mut Thread<'_>, open: &mut Vec<Open<'_>>) {
        if self.0.len() >= CHILDREN {
            return;
        }
        // SAFETY: the child runs code that the library promises to work in a child of a threaded
        // process, and calls _exit.
        let pid = unsafe { libc::fork() };
        if pid == 0 {
            // SAFETY: both calls affect this child only. It must not outlive a worker that is
            // killed.
            unsafe {
                libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL);
                libc::alarm(LONGEST_LIFE_S);
            }
            let ended = catch_unwind(AssertUnwindSafe(|| live(thread, open)));
            // SAFETY: ends the child without running destructors, which belong to the parent.
            unsafe { libc::_exit(i32::from(ended.is_err())) };
        }
        if pid > 0 {
            count(Counter::Forks);
            self.0.push(Child { pid, since: Instant::now(), watch: Watch::new() });
        }
    }

    /// Reaps children that have ended, and looks whether others hang.
    pub fn reap(&mut self) {
        self.0.retain_mut(|child| {
            let mut status = 0;
            // SAFETY: the pid is that of a child that was not reaped, and the status has a place.
            let reaped = unsafe { libc::waitpid(child.pid, &raw mut status, libc::WNOHANG) };
            if reaped == child.pid {
                if status != 0 {
                    let (pid, life) = (child.pid, child.since.elapsed());
                    broken(
                        Promise::NoCrash,
                        format_args!("forked child {pid} ended with status {status:#x} after {life:?}"),
                    );
                }
                return false;
            }
            // A child has no counter of its own. It lives for milliseconds if it does not hang.
            if let Some(description) = child.watch.look(child.pid.cast_unsigned(), 0) {
                broken(Promise::NoHang, format_args!("forked child {}: {description}", child.pid));
                // SAFETY: the pid is that of a child that was not reaped.
                unsafe {
                    libc::kill(child.pid, libc::SIGKILL);
                    libc::waitpid(child.pid, &raw mut status, 0);
                }
                return false;
            }
            true
        });
    }

    /// Waits for all children.
    pub fn wait(&mut self, thread: &Thread<'_>) {
        while !self.0.is_empty() {
            thread.tick(Activity::WaitForChild);
            self.reap();
            std::thread::sleep(Duration::from_millis(2));
        }
    }
}

/// What a child does.
fn live(thread: &mut Thread<'_>, open: &mut Vec<Open<'_>>) {
    for inherited in &*open {
        check_inherited(inherited);
    }
    for _ in 0..4 {
        open_in_child(thread);
    }
    private_pool_works_on(thread);
    if thread.random.one_in(2) {
        exports_by_itself(thread);
    }
    open.clear();
}

fn private_pool_works_on(thread: &Thread<'_>) {
    let private = &*thread.worker.private;
    let Ok(layout) = Layout::new(100, 8) else { return };
    let address = match pool::allocate(private, layout) {
        Ok(address) => address,
        Err(error) => {
            return broken(Promise::Interface, format_args!("a private pool in a forked child: {error}"));
        }
    };
    if let Some(start) = address.as_ptr() {
        // SAFETY: the block has 100 bytes.
        unsafe { start.write_volatile(1) };
    }
    // SAFETY: the block was allocated above.
    if let Err(error) = unsafe { pool::free(private, address) } {
        broken(Promise::Interface, format_args!("freeing private memory in a forked child: {error}"));
    }
}

/// A pool of the child's own, and an export by the exporter that it inherited, which starts anew.
fn exports_by_itself(thread: &mut Thread<'_>) {
    let Ok(made) = thread.worker.maker.make(&mut thread.random) else { return };
    let Ok(layout) = Layout::new(64, 8) else { return };
    let Ok(address) = pool::allocate(&*made.pool, layout) else { return };
    // SAFETY: this process holds no reference into the block.
    if let Ok(handle) = unsafe { thread.worker.exporters[0].exporter.handle(address) } {
        let own = &thread.worker.importers[0].importer;
        if let Err(error) = importer::opens_own(own, &handle) {
            broken(Promise::Interface, format_args!("a forked child cannot open its own export: {error}"));
        }
    }
    // SAFETY: the block was allocated above, and no pointer into it is used afterwards.
    if let Err(error) = unsafe { pool::free(&*made.pool, address) } {
        broken(Promise::Interface, format_args!("freeing a block in a forked child: {error}"));
    }
}
