//! Work for the kill matrix: producers and importers that meet on a board, and can be killed at any instant.
//!
//! Both answer when they are at rest again: nothing of theirs is live, exported, open or cached.

mod import;
mod judge;
mod produce;

use std::sync::atomic::AtomicU64;
use std::time::{Duration, Instant};

use umf_tests::board::Board;

use crate::memory::Actor;
use crate::process::wait_for;
use crate::{Answer, Failure};

pub(crate) fn obey(actor: &mut Actor, command: &str, words: &[&str]) -> Option<Answer> {
    Some(match (command, words) {
        ("board", [path]) => Board::open(path).map_err(Failure::from).map(|board| {
            actor.board = Some(board);
            String::new()
        }),
        ("produce", [who, kind, threads, milliseconds, seed, on_free, max_held]) => {
            let work = Work::new(actor, threads, milliseconds, seed);
            work.and_then(|work| produce::run(&work, who, &produce::Kind::new(kind, on_free, max_held)?))
        }
        ("import", [threads, milliseconds, seed]) => {
            Work::new(actor, threads, milliseconds, seed).and_then(|work| import::run(&work))
        }
        ("arm", [step, nth, action]) => arm(actor, step, nth, action),
        ("disarm", []) => {
            umf_sync::failpoint::disarm();
            actor.may_stop = false;
            Ok(String::new())
        }
        _ => return None,
    })
}

fn arm(actor: &mut Actor, step: &str, nth: &str, action: &str) -> Answer {
    use umf_sync::failpoint::{self, Action};

    let action = match action.split_once(':').unwrap_or((action, "")) {
        ("kill", "") => Action::Kill,
        ("stop", "") => Action::Stop,
        ("sleep", milliseconds) => Action::Sleep(milliseconds.parse()?),
        _ => return Err(Failure::unknown(action)),
    };
    actor.may_stop |= action == Action::Stop;
    if failpoint::arm(step, nth.parse()?, action) { Ok(String::new()) } else { Err(Failure::unknown(step)) }
}

/// A round's work of one process.
pub(crate) struct Work<'a> {
    board: &'a Board,
    threads: u64,
    end: Instant,
    seed: u64,
    /// Numbers of blocks, which this process uses once.
    numbers: &'a AtomicU64,
    /// Whether this process may stop at a step.
    may_stop: bool,
}

impl<'a> Work<'a> {
    fn new(actor: &'a Actor, threads: &str, milliseconds: &str, seed: &str) -> Result<Self, Failure> {
        Ok(Self {
            board: actor.board.as_ref().ok_or_else(|| Failure::unknown("board"))?,
            threads: threads.parse()?,
            end: Instant::now() + Duration::from_millis(milliseconds.parse()?),
            seed: seed.parse()?,
            numbers: &actor.numbers,
            may_stop: actor.may_stop,
        })
    }

    fn has_ended(&self) -> bool {
        Instant::now() >= self.end || self.board.has_ended()
    }

    /// Runs `work` in that many threads, which are numbered.
    fn in_threads(&self, work: impl Fn(u64) -> Result<(), Failure> + Sync) -> Result<(), Failure> {
        let results: Vec<_> = std::thread::scope(|scope| {
            let work = &work;
            let started: Vec<_> = (0..self.threads).map(|thread| scope.spawn(move || work(thread))).collect();
            started.into_iter().map(std::thread::ScopedJoinHandle::join).collect()
        });
        results
            .into_iter()
            .try_for_each(|it| it.unwrap_or_else(|_| Err(Failure::new("Panic", "in a thread"))))
    }

    /// Forks; the child does `work` and ends. Yields whether it was killed, which it may be at a step.
    fn in_child(&self, work: impl FnOnce() -> Result<(), Failure>) -> Result<bool, Failure> {
        // SAFETY: the child goes on with what umf and the allocator brought through the fork by their handlers.
        let pid = unsafe { libc::fork() };
        if pid == 0 {
            for number in [0, 1] {
                // SAFETY: only the parent talks with the test; its end is to be seen when it comes.
                unsafe { libc::close(number) };
            }
            // Nobody would let a child that stops go on.
            if self.may_stop {
                umf_sync::failpoint::disarm();
            }
            let code = match work() {
                Ok(()) => 0,
                Err(failure) => {
                    self.board.complain(&format!("in a forked child: {failure}"));
                    1
                }
            };
            // SAFETY: ends the child without running what belongs to the parent.
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
