//! Work of the kill matrix: a producer or an importer that can be killed at any instruction.
//!
//! Producers record their blocks in a [`BlockTable`], and importers open the recorded blocks. Both
//! answer when they are idle again: nothing is allocated, exported, open or cached.

mod import;
mod oracle;
mod produce;

use std::sync::atomic::AtomicU64;
use std::time::{Duration, Instant};

use umf_tests::block_table::BlockTable;

use crate::memory::ActorState;
use crate::process::wait_for;
use crate::{Answer, Failure};

pub(crate) fn execute(actor: &mut ActorState, command: &str, words: &[&str]) -> Option<Answer> {
    Some(match (command, words) {
        ("block-table", [path]) => BlockTable::open(path).map_err(Failure::from).map(|table| {
            actor.block_table = Some(table);
            String::new()
        }),
        ("produce", [incarnation, kind, threads, milliseconds, seed, on_free, max_held]) => {
            let work = Work::new(actor, threads, milliseconds, seed);
            work.and_then(|work| {
                produce::run(&work, incarnation, &produce::PoolKind::new(kind, on_free, max_held)?)
            })
        }
        ("import", [threads, milliseconds, seed]) => {
            Work::new(actor, threads, milliseconds, seed).and_then(|work| import::run(&work))
        }
        ("arm", [failpoint, nth, action]) => arm(actor, failpoint, nth, action),
        ("reached", [failpoint]) => Ok(umf_sync::failpoint::reached(failpoint).to_string()),
        ("disarm", []) => {
            umf_sync::failpoint::disarm();
            actor.may_stop = false;
            Ok(String::new())
        }
        _ => return None,
    })
}

fn arm(actor: &mut ActorState, failpoint: &str, nth: &str, action: &str) -> Answer {
    use umf_sync::failpoint::{self, Action};

    let action = match action.split_once(':').unwrap_or((action, "")) {
        ("kill", "") => Action::Kill,
        ("stop", "") => Action::Stop,
        ("sleep", milliseconds) => Action::Sleep(milliseconds.parse()?),
        _ => return Err(Failure::unknown(action)),
    };
    actor.may_stop |= action == Action::Stop;
    if failpoint::arm(failpoint, nth.parse()?, action) {
        Ok(String::new())
    } else {
        Err(Failure::unknown(failpoint))
    }
}

/// Parameters of a process's work in one round.
pub(crate) struct Work<'a> {
    table: &'a BlockTable,
    threads: u64,
    end: Instant,
    seed: u64,
    /// Counter of the block numbers of this process.
    numbers: &'a AtomicU64,
    /// Whether a failpoint may stop this process.
    may_stop: bool,
}

impl<'a> Work<'a> {
    fn new(actor: &'a ActorState, threads: &str, milliseconds: &str, seed: &str) -> Result<Self, Failure> {
        Ok(Self {
            table: actor.block_table.as_ref().ok_or_else(|| Failure::unknown("block table"))?,
            threads: threads.parse()?,
            end: Instant::now() + Duration::from_millis(milliseconds.parse()?),
            seed: seed.parse()?,
            numbers: &actor.numbers,
            may_stop: actor.may_stop,
        })
    }

    fn has_ended(&self) -> bool {
        Instant::now() >= self.end
    }

    /// Runs `work` in the threads of this process, with the number of each.
    fn in_threads(&self, work: impl Fn(u64) -> Result<(), Failure> + Sync) -> Result<(), Failure> {
        let results: Vec<_> = std::thread::scope(|scope| {
            let work = &work;
            let started: Vec<_> = (0..self.threads).map(|thread| scope.spawn(move || work(thread))).collect();
            started.into_iter().map(std::thread::ScopedJoinHandle::join).collect()
        });
        results
            .into_iter()
            .try_for_each(|result| result.unwrap_or_else(|_| Err(Failure::new("Panic", "in a thread"))))
    }

    /// Forks a child that runs `work` and ends. Returns whether the child was killed at a
    /// failpoint.
    fn in_child(&self, work: impl FnOnce() -> Result<(), Failure>) -> Result<bool, Failure> {
        // SAFETY: umf and the allocator have fork handlers, so that the child can use both.
        let pid = unsafe { libc::fork() };
        if pid == 0 {
            for number in [0, 1] {
                // The test sees the end of the parent when these pipes close, so the child closes
                // them. SAFETY: the child does not use stdin and stdout.
                unsafe { libc::close(number) };
            }
            // The test continues a stopped parent, and not a stopped child.
            if self.may_stop {
                umf_sync::failpoint::disarm();
            }
            let code = match work() {
                Ok(()) => 0,
                Err(failure) => {
                    self.table.report(&format!("in a forked child: {failure}"));
                    1
                }
            };
            // SAFETY: ends the child without running exit handlers of the parent.
            unsafe { libc::_exit(code) };
        }
        if pid < 0 {
            return Err(std::io::Error::last_os_error().into());
        }
        match wait_for(pid)?.as_str() {
            "0" => Ok(false),
            "9" => Ok(true),
            status => Err(Failure::new("Child", format!("it ended with status {status}"))),
        }
    }
}
