//! [`Process`]: all that the ledgers of one process say.

use umf::ipc::CacheStatistics;
use umf::ipc::inspect::{Found, Owner, PoolFigures, Recorded, Search, Statistics};

use crate::failure::Failure;
use crate::sys;

/// A process that uses umf, or did.
#[derive(Debug)]
pub(super) struct Process {
    /// Its process id here, or the one that it had.
    pub pid: u32,
    pub owner: Owner,
    pub name: String,
    /// Of its users, as it made the first ledger.
    pub uid: u32,
    /// Exports that are current.
    pub exports: u64,
    pub exporter: CacheStatistics,
    pub importer: CacheStatistics,
    pub leases: u64,
    pub held_bytes: u64,
    pub importers: u64,
    pub pools: Vec<PoolFigures>,
    pub pools_in_all: u64,
    /// When its counters were published last, in nanoseconds of the boot's clock; 0 if never.
    pub time: u64,
    pub events: Vec<Recorded>,
    /// Other processes that have a ledger of it open.
    pub holders: Vec<u32>,
}

impl Process {
    pub(super) const fn state(&self) -> &'static str {
        match self.owner {
            Owner::Alive { .. } => "runs",
            Owner::Left { .. } => "left",
            Owner::Ended => "ended",
            Owner::Unknown => "?",
        }
    }

    pub(super) fn fds(&self) -> u64 {
        self.exporter.fds.saturating_add(self.importer.fds)
    }

    pub(super) fn live_bytes(&self) -> u64 {
        sum(self.pools.iter().map(|pool| pool.live_bytes))
    }

    pub(super) fn reserved_bytes(&self) -> u64 {
        sum(self.pools.iter().map(|pool| pool.reserved_bytes))
    }

    fn new(found: &Found) -> Self {
        let identity = found.ledger.identity();
        Self {
            pid: found.owner.pid().unwrap_or(identity.pid),
            owner: found.owner,
            name: String::new(),
            uid: identity.uid,
            exports: 0,
            exporter: CacheStatistics::default(),
            importer: CacheStatistics::default(),
            leases: 0,
            held_bytes: 0,
            importers: 0,
            pools: Vec::new(),
            pools_in_all: 0,
            time: 0,
            events: Vec::new(),
            holders: Vec::new(),
        }
    }

    fn add(&mut self, found: &Found, pools_time: &mut u64) {
        if matches!(found.owner, Owner::Alive { .. }) {
            // A process may have dropped one exporter and go on with another.
            self.owner = found.owner;
        }
        let current = found.ledger.slots().filter(|slot| slot.generation & 1 == 1).count();
        self.exports = self.exports.saturating_add(current as u64);
        self.events.extend(found.ledger.events().unwrap_or_default().recorded);
        self.holders.extend(found.holders.iter().filter(|&&pid| pid != self.pid));
        let Some(it) = found.ledger.statistics() else { return };
        self.figures(&it);
        if it.pools_time >= *pools_time {
            *pools_time = it.pools_time;
            (self.pools_in_all, self.pools) = (it.pools_in_all, it.pools);
        }
    }

    fn figures(&mut self, it: &Statistics) {
        if self.name.is_empty() {
            self.name.clone_from(&it.name);
        }
        self.exporter = both(&self.exporter, &it.exporter.unwrap_or_default());
        self.importer = both(&self.importer, &it.importer.unwrap_or_default());
        self.leases = self.leases.saturating_add(it.leases);
        self.held_bytes = self.held_bytes.saturating_add(it.held_bytes);
        self.importers = self.importers.saturating_add(it.importers);
        self.time = self.time.max(it.time);
    }
}

/// Numbers that others wrote may be anything.
fn sum(numbers: impl Iterator<Item = u64>) -> u64 {
    numbers.fold(0, u64::saturating_add)
}

fn both(one: &CacheStatistics, other: &CacheStatistics) -> CacheStatistics {
    let mut sum = *one;
    sum.hits = one.hits.saturating_add(other.hits);
    sum.table_hits = one.table_hits.saturating_add(other.table_hits);
    sum.misses = one.misses.saturating_add(other.misses);
    sum.stale = one.stale.saturating_add(other.stale);
    sum.evictions = one.evictions.saturating_add(other.evictions);
    sum.entries = one.entries.saturating_add(other.entries);
    sum.in_use = one.in_use.saturating_add(other.in_use);
    sum.bytes = one.bytes.saturating_add(other.bytes);
    sum.fds = one.fds.saturating_add(other.fds);
    sum
}

/// Looks for all ledgers.
pub(super) fn find() -> Result<Search, Failure> {
    // One fd for each ledger of the machine.
    sys::raise_fd_limit();
    umf::ipc::inspect::find().map_err(|error| Failure::Told(format!("cannot look for processes: {error}")))
}

/// The processes of all ledgers that were found, by process id; those that run before those that ended.
pub(super) fn of(search: &Search) -> Vec<Process> {
    let key = |found: &Found| {
        let identity = found.ledger.identity();
        (identity.pid, identity.pid_namespace, identity.start_time, identity.pidfs_inode)
    };
    let mut found: Vec<&Found> = search.found.iter().collect();
    found.sort_by_key(|found| key(found));
    let groups = found.chunk_by(|one, other| key(one) == key(other));
    let mut processes: Vec<Process> = groups
        .map(|group| {
            let mut process = Process::new(group[0]);
            let mut pools_time = 0;
            group.iter().for_each(|found| process.add(found, &mut pools_time));
            process.events.sort_by_key(|recorded| recorded.time);
            process.holders.sort_unstable();
            process.holders.dedup();
            if process.name.is_empty() {
                process.name = name_of(process.owner);
            }
            process
        })
        .collect();
    processes.sort_by_key(|process| (!matches!(process.owner, Owner::Alive { .. }), process.pid));
    processes
}

/// The name of a process that runs: of one whose ledger does not tell.
fn name_of(owner: Owner) -> String {
    let name =
        owner.pid().and_then(|pid| std::fs::read(format!("/proc/{pid}/comm")).ok()).unwrap_or_default();
    plain(String::from_utf8_lossy(&name).trim_end())
}

pub(super) use umf::ipc::inspect::plain;

/// What could not be looked at, and what to do about it; empty if everything could.
pub(super) fn left_out(search: &Search) -> String {
    let mut text = String::new();
    match search.denied.len() {
        0 => {}
        1 => {
            text +=
                "1 process may not be looked into (another user's, or not dumpable): run as root to see it\n"
        }
        n => {
            text += &format!(
                "{n} processes may not be looked into (other users', or not dumpable): run as root to see them\n"
            );
        }
    }
    if search.unreadable > 0 {
        text += &format!(
            "{} ledgers cannot be read: another version of umf, or no fds left here (ulimit -n)\n",
            search.unreadable
        );
    }
    text
}
