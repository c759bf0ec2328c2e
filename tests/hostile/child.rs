//! Forked children of a worker. A child checks its inherited mappings, opens handles, uses pools,
//! and exits.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::{Duration, Instant};

use umf_core::{Layout, pool};

use crate::checker::{Guarantee, violation};
use crate::diagnosis::Watch;
use crate::importer::{self, OpenBlock, check_inherited, open_in_child};
use crate::shared::{Activity, Counter, count};
use crate::worker::Thread;

/// Maximum number of children of a thread at one time.
const CHILDREN: usize = 2;
/// Seconds after which an alarm ends a child. By then the parent has reported a hang.
const MAX_LIFE_S: u32 = 120;

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

    /// Forks a child, unless there are [`CHILDREN`] already.
    pub fn fork(&mut self, thread: &mut Thread<'_>, open: &mut Vec<OpenBlock<'_>>) {
        if self.0.len() >= CHILDREN {
            return;
        }
        // SAFETY: umf and the allocator have fork handlers, so that the child can use both; it ends
        // with _exit.
        let pid = unsafe { libc::fork() };
        if pid == 0 {
            // The child must not outlive a worker that is killed.
            // SAFETY: both calls affect this child only.
            unsafe {
                libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL);
                libc::alarm(MAX_LIFE_S);
            }
            let ended = catch_unwind(AssertUnwindSafe(|| run_child(thread, open)));
            // SAFETY: ends the child without running destructors, which belong to the parent.
            unsafe { libc::_exit(i32::from(ended.is_err())) };
        }
        if pid > 0 {
            count(Counter::Forks);
            self.0.push(Child { pid, since: Instant::now(), watch: Watch::new() });
        }
    }

    /// Reaps children that have ended, and reports and kills children that hang.
    pub fn reap(&mut self) {
        self.0.retain_mut(|child| {
            let mut status = 0;
            // SAFETY: a child that was not reaped; `status` is valid for the write.
            let reaped = unsafe { libc::waitpid(child.pid, &raw mut status, libc::WNOHANG) };
            if reaped == child.pid {
                if status != 0 {
                    let (pid, life) = (child.pid, child.since.elapsed());
                    violation(
                        Guarantee::NoCrash,
                        format_args!("forked child {pid} ended with status {status:#x} after {life:?}"),
                    );
                }
                return false;
            }
            // A child reports no progress, but it usually lives for milliseconds only.
            if let Some(description) = child.watch.look(child.pid.cast_unsigned(), 0) {
                violation(Guarantee::NoHang, format_args!("forked child {}: {description}", child.pid));
                // SAFETY: a child that was not reaped; `status` is valid for the write.
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

/// Runs a child.
fn run_child(thread: &mut Thread<'_>, open: &mut Vec<OpenBlock<'_>>) {
    for inherited in &*open {
        check_inherited(inherited);
    }
    for _ in 0..4 {
        open_in_child(thread);
    }
    use_private_pool(thread);
    if thread.random.one_in(2) {
        export_in_child(thread);
    }
    open.clear();
}

/// Allocates and frees a block of the inherited private pool.
fn use_private_pool(thread: &Thread<'_>) {
    let private = &*thread.worker.private;
    let Ok(layout) = Layout::new(100, 8) else { return };
    let address = match pool::allocate(private, layout) {
        Ok(address) => address,
        Err(error) => {
            return violation(
                Guarantee::Interface,
                format_args!("a private pool in a forked child: {error}"),
            );
        }
    };
    if let Some(start) = address.as_ptr() {
        // SAFETY: the block has 100 bytes.
        unsafe { start.write_volatile(1) };
    }
    // SAFETY: the block was allocated above.
    if let Err(error) = unsafe { pool::free(private, address) } {
        violation(Guarantee::Interface, format_args!("freeing private memory in a forked child: {error}"));
    }
}

/// Creates a pool, and exports a block with the inherited exporter, which restarts in the child.
fn export_in_child(thread: &mut Thread<'_>) {
    let Ok(made) = thread.worker.maker.make(&mut thread.random) else { return };
    let Ok(layout) = Layout::new(64, 8) else { return };
    let Ok(address) = pool::allocate(&*made.pool, layout) else { return };
    // SAFETY: this process holds no reference into the block.
    if let Ok(handle) = unsafe { thread.worker.exporters[0].exporter.handle(address) } {
        let own = &thread.worker.importers[0].importer;
        if let Err(error) = importer::open_own_export(own, &handle) {
            violation(
                Guarantee::Interface,
                format_args!("a forked child cannot open its own export: {error}"),
            );
        }
    }
    // SAFETY: the block was allocated above, and no pointer into it is used afterwards.
    if let Err(error) = unsafe { pool::free(&*made.pool, address) } {
        violation(Guarantee::Interface, format_args!("freeing a block in a forked child: {error}"));
    }
}
