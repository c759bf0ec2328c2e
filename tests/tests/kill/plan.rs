//! Who is ended in a round, and how; how the processes of some rounds are set up.

use std::sync::LazyLock;

use umf_sync::failpoint;

use super::Failpoint;
use umf_tests::{Sequence, machine};

/// The steps at which this campaign ends processes. Those of domains and links have campaigns of their own.
pub(crate) fn steps() -> &'static [Failpoint] {
    static STEPS: LazyLock<Vec<Failpoint>> = LazyLock::new(|| {
        let of_others = |step: Failpoint| is_of_domains(step) || is_of_links(step);
        let mine = |step: &Failpoint| !of_others(step) && (!is_over_dma_bufs() || !lacks_dma_buf(step));
        failpoint::names().into_iter().filter(mine).collect()
    });
    &STEPS
}

/// Whether so many rounds are enough for a kill at each step.
pub(crate) fn can_get_to_all(rounds: u64) -> bool {
    rounds >= 2 * steps().len() as u64
}

/// Whether the regions are dma-bufs: `UMF_KILL_PROVIDER=dma-buf`.
pub(crate) fn is_over_dma_bufs() -> bool {
    match std::env::var("UMF_KILL_PROVIDER").as_deref() {
        Ok("dma-buf") => true,
        Ok("host") | Err(_) => false,
        Ok(other) => panic!("UMF_KILL_PROVIDER={other} is neither host nor dma-buf"),
    }
}

/// The kinds of pools of producers.
fn kinds() -> &'static [String] {
    static KINDS: LazyLock<Vec<String>> = LazyLock::new(|| {
        if !is_over_dma_bufs() {
            // (As often as they have steps.)
            return ["shared", "shared", "isolated", "isolated", "proxy", "read-only"]
                .map(str::to_owned)
                .to_vec();
        }
        let sources = machine::dma_buf_sources("whoever_is_killed_and_whenever");
        sources.iter().flat_map(|it| ["slab", "proxy"].map(|pool| format!("dma-buf-{pool}-{it}"))).collect()
    });
    &KINDS
}

/// Whether there is anything to make regions of.
pub(crate) fn has_kinds() -> bool {
    !kinds().is_empty()
}

/// Steps that nobody gets to whose regions are dma-bufs: those can neither be purged nor mapped by windows, and `/proc` does not
/// open them.
fn lacks_dma_buf(step: Failpoint) -> bool {
    matches!(
        step,
        "window.fetched" | "window.mapped" | "held.purged" | "fetched.by_procfs" | "found.in_procfs"
    )
}

/// Whether a step is one of umf-domain's.
pub(crate) fn is_of_domains(step: Failpoint) -> bool {
    step.starts_with("domain.")
}

/// Whether a step is one of umf-link's.
pub(crate) fn is_of_links(step: Failpoint) -> bool {
    step.starts_with("link.")
}

/// A step that takes longer if somebody is to be ended at another one: what comes in between is what leads there.
pub(crate) fn slow_before(step: Failpoint) -> Option<Failpoint> {
    match step {
        // The block is freed between the look at it and the lease.
        "lease.too_late" => Some("lease.counted"),
        _ => None,
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Role {
    Producer,
    Importer,
}

/// How a process ends.
#[derive(Clone, Copy, Debug)]
pub(crate) enum End {
    /// By itself, the `nth` time that it gets to a step.
    AtStep { step: Failpoint, nth: u32 },
    /// It stops at a step, is left so for some milliseconds, and is killed, or goes on.
    StopsAtStep { step: Failpoint, nth: u32, milliseconds: u64, goes_on: bool },
    /// By the test, after so many microseconds.
    AtRandom { microseconds: u64 },
}

/// The variables of all processes for some rounds.
#[derive(Clone, Debug)]
pub(crate) struct Setup {
    pub(crate) mode: &'static str,
    pub(crate) kind: &'static str,
    pub(crate) max_opened: &'static str,
    pub(crate) max_created: &'static str,
    pub(crate) shards: &'static str,
    pub(crate) threads: u64,
    pub(crate) on_free: &'static str,
    pub(crate) max_held: u64,
    /// Importers are in pid namespaces of their own.
    pub(crate) elsewhere: bool,
}

impl Setup {
    pub(crate) fn new(sequence: &mut Sequence, todo: &[Todo], can_be_elsewhere: bool) -> Self {
        let wanted = if todo.is_empty() { None } else { Some(sequence.of(todo).step) };
        let mode = wanted.and_then(mode_for);
        let modes: &[_] = if is_over_dma_bufs() {
            &["pidfd", "socket", "auto"]
        } else {
            &["pidfd", "procfs", "socket", "auto"]
        };
        let mode = mode.unwrap_or_else(|| *sequence.of(modes));
        let elsewhere = sequence.one_in(4);
        Self {
            mode,
            elsewhere: elsewhere && can_be_elsewhere && mode == "socket",
            on_free: *sequence.of(&["hold", "release"]),
            max_held: *sequence.of(&[0, 0, 20_000, 200_000]),
            kind: sequence.of(kinds()).as_str(),
            // One entry is the case in which others gave wrong data (MPICH #7977).
            max_opened: *sequence.of(&["1", "1", "2", "0"]),
            max_created: *sequence.of(&["0", "2"]),
            shards: *sequence.of(&["1", "16"]),
            threads: 1 + sequence.below(3),
        }
    }

    /// Whether a process that is set up so gets to a step.
    fn allows(&self, step: Failpoint) -> bool {
        let mode =
            mode_for(step).is_none_or(|mode| mode == self.mode || (mode == "pidfd" && self.mode == "auto"));
        let memory = match step {
            "window.fetched" | "window.mapped" => matches!(self.kind, "shared" | "proxy"),
            "import.fetched" | "import.mapped" => {
                matches!(self.kind, "isolated" | "read-only") || is_over_dma_bufs()
            }
            "held.purged" => self.on_free == "release" && self.kind != "read-only",
            _ => true,
        };
        mode && memory
    }
}

/// The exchange mode that a step belongs to.
fn mode_for(step: Failpoint) -> Option<&'static str> {
    match step {
        "fetched.by_pidfd" => Some("pidfd"),
        "fetched.by_procfs" | "found.in_procfs" => Some("procfs"),
        "server.accepted" | "server.answered" | "server.answering" | "server.closed" | "socket.answered"
        | "socket.asked" | "socket.connected" | "socket.connecting" => Some("socket"),
        _ => None,
    }
}

/// The step that is next, of those at which nobody ended yet, and how often it was planned before.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Todo {
    pub(crate) step: Failpoint,
    pub(crate) tries: u64,
}

/// Plans that may fail before a step is tried in whatever process, mode and place in a round.
const HINTS: u64 = 2;

/// Who most often gets to a step; `None` for both. A hint, as the modes are: without it the first kill takes longer.
fn role_for(step: Failpoint) -> Option<Role> {
    match step {
        "cache.inserted"
        | "cache.unlinked"
        | "cache.unlinking"
        | "fork.child_begun"
        | "fork.child_ready"
        | "fork.descriptor_closed"
        | "fork.prepared"
        | "fork.returned"
        | "file.mapped"
        | "lock.taken"
        | "memory.created"
        | "memory.mapped"
        | "memory.unmapped"
        | "process.opened"
        | "unmapped" => None,
        "board.posted"
        | "board.taken_down"
        | "fetched.by_pidfd"
        | "fetched.by_procfs"
        | "found.in_procfs"
        | "import.fetched"
        | "import.mapped"
        | "import.opened"
        | "import.released"
        | "lease.closing"
        | "lease.counted"
        | "lease.counted_again"
        | "lease.given_back"
        | "lease.marked"
        | "lease.table_checked"
        | "lease.table_missing"
        | "lease.table_opened"
        | "lease.too_late"
        | "ledger.opened"
        | "producer.found"
        | "row.cleared"
        | "row.closed"
        | "row.closing"
        | "row.locked"
        | "row.mapped"
        | "row.opened"
        | "row.populated"
        | "row.raised"
        | "row.ready"
        | "socket.answered"
        | "socket.asked"
        | "socket.connected"
        | "socket.connecting"
        | "window.fetched"
        | "window.mapped" => Some(Role::Importer),
        _ => Some(Role::Producer),
    }
}

/// The end of one process in a round of so many milliseconds. First of all those steps at which nobody ended yet.
pub(crate) fn end(sequence: &mut Sequence, setup: &Setup, todo: &[Todo], milliseconds: u64) -> (Role, End) {
    let any = *sequence.of(&[Role::Producer, Role::Importer]);
    let todo: Vec<Todo> =
        todo.iter().copied().filter(|todo| todo.tries >= HINTS || setup.allows(todo.step)).collect();
    if todo.is_empty() && sequence.one_in(3) {
        return (any, End::AtRandom { microseconds: sequence.below(milliseconds * 1000) });
    }
    let (step, nth, hinted) = if todo.is_empty() {
        let all: Vec<Failpoint> = steps().iter().copied().filter(|step| setup.allows(step)).collect();
        let nth = *sequence.of(&[1, 1, 8, 8, 64]);
        (*sequence.of(&all), 1 + u32::try_from(sequence.below(nth)).unwrap(), sequence.one_in(2))
    } else {
        let next = sequence.of(&todo);
        (next.step, 1, next.tries < HINTS)
    };
    let role = role_for(step).filter(|_| hinted).unwrap_or(any);
    let end = if sequence.one_in(12) {
        // Up to longer than an open waits for an answer.
        let milliseconds = *sequence.of(&[2, 20, 20, 450]);
        End::StopsAtStep { step, nth, milliseconds, goes_on: sequence.one_in(2) }
    } else {
        End::AtStep { step, nth }
    };
    (role, end)
}
