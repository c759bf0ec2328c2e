//! The plan of a round: which process is killed, where and how, and the settings of the processes.

use std::sync::LazyLock;

use umf_sync::failpoint;

use super::Failpoint;
use umf_tests::{Rng, machine};

/// Returns the failpoints of this campaign. Domains, links, tickets and the memory of dead
/// producers have their own campaigns.
pub(crate) fn failpoints() -> &'static [Failpoint] {
    static FAILPOINTS: LazyLock<Vec<Failpoint>> = LazyLock::new(|| {
        let is_of_others = |failpoint: Failpoint| {
            is_of_domains(failpoint)
                || is_of_links(failpoint)
                || is_of_tickets(failpoint)
                || is_of_collection(failpoint)
        };
        let is_reachable =
            |failpoint: Failpoint| !uses_dma_bufs() || !is_unreachable_with_dma_bufs(failpoint);
        let names = failpoint::names().into_iter();
        names.filter(|failpoint| !is_of_others(failpoint) && is_reachable(failpoint)).collect()
    });
    &FAILPOINTS
}

/// Returns whether this number of rounds suffices for a kill at each failpoint.
pub(crate) fn can_reach_all(rounds: u64) -> bool {
    rounds >= 2 * failpoints().len() as u64
}

/// Returns whether the regions are dma-bufs: `UMF_KILL_PROVIDER=dma-buf`.
pub(crate) fn uses_dma_bufs() -> bool {
    match std::env::var("UMF_KILL_PROVIDER").as_deref() {
        Ok("dma-buf") => true,
        Ok("host") | Err(_) => false,
        Ok(other) => panic!("UMF_KILL_PROVIDER={other} is neither host nor dma-buf"),
    }
}

/// Returns the kinds of the producers' pools.
fn pool_kinds() -> &'static [String] {
    static KINDS: LazyLock<Vec<String>> = LazyLock::new(|| {
        if !uses_dma_bufs() {
            // Kinds with more failpoints are more frequent.
            return ["shared", "shared", "isolated", "isolated", "proxy", "read-only"]
                .map(str::to_owned)
                .to_vec();
        }
        let sources = machine::dma_buf_sources("kill_at_any_failpoint_leaks_nothing");
        let kinds = |source: &&str| ["slab", "proxy"].map(|pool| format!("dma-buf-{pool}-{source}"));
        sources.iter().flat_map(kinds).collect()
    });
    &KINDS
}

/// Returns whether this machine has memory for the regions.
pub(crate) fn has_pool_kinds() -> bool {
    !pool_kinds().is_empty()
}

/// Returns whether processes with dma-buf regions cannot reach a failpoint. A dma-buf cannot be
/// purged, mapped by a window, or opened through `/proc`.
fn is_unreachable_with_dma_bufs(failpoint: Failpoint) -> bool {
    matches!(
        failpoint,
        "window.fetched" | "window.mapped" | "held.purged" | "fetched.by_procfs" | "found.in_procfs"
    )
}

/// Returns whether a failpoint belongs to umf-domain.
pub(crate) fn is_of_domains(failpoint: Failpoint) -> bool {
    failpoint.starts_with("domain.")
}

/// Returns whether a process of a domain in a directory can reach a failpoint.
pub(crate) fn is_of_domains_in_directory(failpoint: Failpoint) -> bool {
    let is_of_abstract = matches!(failpoint, "domain.bound" | "domain.listening" | "domain.knocked");
    is_of_domains(failpoint) && !is_of_abstract || failpoint.starts_with("directory.")
}

/// Returns whether a failpoint is of links and ranks with abstract sockets.
pub(crate) fn is_of_links_without_directory(failpoint: Failpoint) -> bool {
    is_of_links(failpoint) && failpoint != "link.proven"
}

/// Returns whether a failpoint is of how links and ranks find each other, in a directory.
pub(crate) fn is_of_links_in_directory(failpoint: Failpoint) -> bool {
    let is_of_meeting = matches!(
        failpoint,
        "link.listening"
            | "link.connected"
            | "link.proven"
            | "link.lane_made"
            | "link.proposed"
            | "link.accepted"
            | "link.answering"
            | "link.welcomed"
            | "link.made"
            | "link.closed"
            | "link.left"
            | "link.asleep"
    );
    is_of_meeting || failpoint.starts_with("link.rank_")
}

/// Returns whether a failpoint belongs to umf-link.
pub(crate) fn is_of_links(failpoint: Failpoint) -> bool {
    failpoint.starts_with("link.")
}

/// Returns whether a failpoint is of handles in transit.
pub(crate) fn is_of_tickets(failpoint: Failpoint) -> bool {
    failpoint.starts_with("ticket.")
}

/// Returns whether a failpoint is of the collection of a dead producer's memory.
pub(crate) fn is_of_collection(failpoint: Failpoint) -> bool {
    failpoint.starts_with("collect.")
}

/// Returns the failpoint to delay so that a process can reach `failpoint`, which needs a race.
pub(crate) fn delayed_before(failpoint: Failpoint) -> Option<Failpoint> {
    match failpoint {
        // The block must be freed between the check of its slot and the lease.
        "lease.too_late" => Some("lease.counted"),
        _ => None,
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Role {
    Producer,
    Importer,
}

/// The planned end of the victim of a round.
#[derive(Clone, Copy, Debug)]
pub(crate) enum End {
    /// The process kills itself, the `nth` time that it reaches a failpoint.
    KilledAt { failpoint: Failpoint, nth: u32 },
    /// The process stops at a failpoint for some milliseconds, and then is killed or continues.
    StoppedAt { failpoint: Failpoint, nth: u32, milliseconds: u64, continues: bool },
    /// The test kills the process after this time.
    KilledAfter { microseconds: u64 },
}

/// Settings of all processes for [some rounds](super::campaign).
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
    /// Whether each importer has its own pid namespace.
    pub(crate) in_pid_namespace: bool,
}

impl Setup {
    pub(crate) fn new(rng: &mut Rng, targets: &[Target], can_use_namespaces: bool) -> Self {
        let wanted = if targets.is_empty() { None } else { Some(rng.choose(targets).failpoint) };
        let mode = wanted.and_then(mode_for);
        let modes: &[_] = if uses_dma_bufs() {
            &["pidfd", "socket", "directory", "auto"]
        } else {
            &["pidfd", "procfs", "socket", "directory", "auto"]
        };
        let mode = mode.unwrap_or_else(|| *rng.choose(modes));
        let in_pid_namespace = rng.one_in(4);
        Self {
            mode,
            in_pid_namespace: in_pid_namespace
                && can_use_namespaces
                && matches!(mode, "socket" | "directory"),
            on_free: *rng.choose(&["hold", "release"]),
            max_held: *rng.choose(&[0, 0, 20_000, 200_000]),
            kind: rng.choose(pool_kinds()).as_str(),
            // A cache of one entry returned wrong data in another project (MPICH #7977).
            max_opened: *rng.choose(&["1", "1", "2", "0"]),
            max_created: *rng.choose(&["0", "2"]),
            shards: *rng.choose(&["1", "16"]),
            threads: 1 + rng.below(3),
        }
    }

    /// Returns whether processes with these settings can reach a failpoint.
    fn allows(&self, failpoint: Failpoint) -> bool {
        let mode = mode_for(failpoint)
            .is_none_or(|mode| mode == self.mode || (mode == "pidfd" && self.mode == "auto"))
            || (self.mode == "directory"
                && mode_for(failpoint) == Some("socket")
                && is_of_any_socket(failpoint));
        let memory = match failpoint {
            "window.fetched" | "window.mapped" => matches!(self.kind, "shared" | "proxy"),
            "import.fetched" | "import.mapped" => {
                matches!(self.kind, "isolated" | "read-only") || uses_dma_bufs()
            }
            "held.purged" => self.on_free == "release" && self.kind != "read-only",
            _ => true,
        };
        mode && memory
    }
}

/// Returns the exchange mode of a failpoint, if it belongs to one.
fn mode_for(failpoint: Failpoint) -> Option<&'static str> {
    match failpoint {
        "fetched.by_pidfd" => Some("pidfd"),
        "fetched.by_procfs" | "found.in_procfs" => Some("procfs"),
        "server.accepted" | "server.answered" | "server.answering" | "server.closed" | "socket.answered"
        | "socket.asked" | "socket.connected" | "socket.connecting" => Some("socket"),
        "server.proven" | "socket.challenged" => Some("directory"),
        _ if failpoint.starts_with("directory.") => Some("directory"),
        _ => None,
    }
}

/// Returns whether a failpoint is of both kinds of sockets.
fn is_of_any_socket(failpoint: Failpoint) -> bool {
    failpoint != "socket.connecting"
}

/// Failpoint at which no process was killed yet, and how often a kill there was planned.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Target {
    pub(crate) failpoint: Failpoint,
    pub(crate) tries: u64,
}

/// Failed plans after which a failpoint is tried without the hints for role and settings.
const HINTED_TRIES: u64 = 2;

/// Returns the role that usually reaches a failpoint, or `None` for both. This is a hint, as the
/// mode is: without it the first kill takes longer.
fn role_for(failpoint: Failpoint) -> Option<Role> {
    match failpoint {
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
        | "socket.challenged"
        | "socket.connected"
        | "socket.connecting"
        | "window.fetched"
        | "window.mapped" => Some(Role::Importer),
        _ => Some(Role::Producer),
    }
}

/// Plans the end of one process in a round of this length. Prefers the targets, at which no process
/// was killed yet.
pub(crate) fn end(rng: &mut Rng, setup: &Setup, targets: &[Target], milliseconds: u64) -> (Role, End) {
    let any = *rng.choose(&[Role::Producer, Role::Importer]);
    let targets: Vec<Target> = targets
        .iter()
        .copied()
        .filter(|targets| targets.tries >= HINTED_TRIES || setup.allows(targets.failpoint))
        .collect();
    if targets.is_empty() && rng.one_in(3) {
        return (any, End::KilledAfter { microseconds: rng.below(milliseconds * 1000) });
    }
    let (failpoint, nth, hinted) = if targets.is_empty() {
        let all: Vec<Failpoint> =
            failpoints().iter().copied().filter(|failpoint| setup.allows(failpoint)).collect();
        let nth = *rng.choose(&[1, 1, 8, 8, 64]);
        (*rng.choose(&all), 1 + u32::try_from(rng.below(nth)).unwrap(), rng.one_in(2))
    } else {
        let next = rng.choose(&targets);
        (next.failpoint, 1, next.tries < HINTED_TRIES)
    };
    let role = role_for(failpoint).filter(|_| hinted).unwrap_or(any);
    let end = if rng.one_in(12) {
        // The longest stop is longer than the timeout of an open.
        let milliseconds = *rng.choose(&[2, 20, 20, 450]);
        End::StoppedAt { failpoint, nth, milliseconds, continues: rng.one_in(2) }
    } else {
        End::KilledAt { failpoint, nth }
    };
    (role, end)
}
