//! [`Process`]: the merged contents of all ledgers of one process; and durations as text.

use serde::{Serialize, Serializer};
use umf::ipc::CacheStatistics;
use umf::ipc::inspect::{FoundLedger, OwnerStatus, PoolFigures, Search, Slot, Statistics};
use umf::ipc::rendezvous::Directory;
use umf::remote::{self, ListedGrant};
use umf::settings::{Loader, Settings};

use crate::output::Failure;
use crate::sys;

/// A process that uses or used umf, merged from all of its ledgers.
#[derive(Debug, Serialize)]
pub(super) struct Process {
    /// The process id in this pid namespace; if it has none here, the id in its own namespace.
    pub pid: u32,
    #[serde(rename = "state", serialize_with = "state")]
    pub owner: OwnerStatus,
    pub name: String,
    /// The user id at the creation of its first ledger.
    pub uid: u32,
    /// The number of current exports.
    pub exports: u64,
    pub exporter: CacheStatistics,
    pub importer: CacheStatistics,
    pub leases: u64,
    pub held_bytes: u64,
    pub importers: u64,
    /// Handles that it has sent, and whose claims it has not noticed yet.
    pub in_transit: u64,
    pub pools: Vec<PoolFigures>,
    pub pools_in_all: u64,
    /// The boot-clock time of its last publication of counters, in nanoseconds; 0 for none.
    #[serde(rename = "published_ns")]
    pub time: u64,
    #[serde(skip)]
    pub slots: LastSlots,
    /// Other processes that have one of its ledgers open.
    #[serde(rename = "known_to")]
    pub holders: Vec<u32>,
}

impl Process {
    pub(super) const fn state(&self) -> &'static str {
        state_of(self.owner)
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

    fn new(found: &FoundLedger) -> Self {
        let identity = found.ledger.identity();
        Self { uid: identity.uid, ..Self::empty(found.owner.pid().unwrap_or(identity.pid), found.owner) }
    }

    /// Returns a process without exports and counters.
    pub(super) fn empty(pid: u32, owner: OwnerStatus) -> Self {
        Self {
            pid,
            owner,
            name: String::new(),
            uid: 0,
            exports: 0,
            exporter: CacheStatistics::default(),
            importer: CacheStatistics::default(),
            leases: 0,
            held_bytes: 0,
            importers: 0,
            in_transit: 0,
            pools: Vec::new(),
            pools_in_all: 0,
            time: 0,
            slots: LastSlots::default(),
            holders: Vec::new(),
        }
    }

    fn add(&mut self, found: &FoundLedger, pools_time: &mut u64) {
        if is_running(found.owner) {
            // A process may have dropped one exporter and created another.
            self.owner = found.owner;
        }
        for slot in found.ledger.slots() {
            self.exports = self.exports.saturating_add(slot.generation & 1);
            self.slots.add(slot);
        }
        self.holders.extend(found.holders.iter().filter(|&&pid| pid != self.pid));
        let Some(statistics) = found.ledger.statistics() else { return };
        self.add_counters(&statistics);
        if statistics.pools_time >= *pools_time {
            *pools_time = statistics.pools_time;
            (self.pools_in_all, self.pools) = (statistics.pools_in_all, statistics.pools);
        }
    }

    fn add_counters(&mut self, statistics: &Statistics) {
        if self.name.is_empty() {
            self.name.clone_from(&statistics.name);
        }
        self.exporter = self.exporter.saturating_add(&statistics.exporter.unwrap_or_default());
        self.importer = self.importer.saturating_add(&statistics.importer.unwrap_or_default());
        self.leases = self.leases.saturating_add(statistics.leases);
        self.held_bytes = self.held_bytes.saturating_add(statistics.held_bytes);
        self.importers = self.importers.saturating_add(statistics.importers);
        self.in_transit = self.in_transit.saturating_add(statistics.in_transit);
        self.time = self.time.max(statistics.time);
    }
}

/// The slots that changed last.
#[derive(Debug, Default)]
pub(super) struct LastSlots(Vec<Slot>);

impl LastSlots {
    const CAPACITY: usize = 8;

    fn add(&mut self, slot: Slot) {
        let index = self.0.partition_point(|other| last_change(other) >= last_change(&slot));
        if index < Self::CAPACITY {
            self.0.insert(index, slot);
            self.0.truncate(Self::CAPACITY);
        }
    }

    /// Returns at most [`LastSlots::CAPACITY`] slots, the latest change first.
    pub(super) fn get(&self) -> &[Slot] {
        &self.0
    }
}

/// Returns the time at which the latest export of a slot began or ended; 0 if it is unknown.
pub(super) fn last_change(slot: &Slot) -> u64 {
    slot.exported.or(slot.ended.map(|end| end.time)).unwrap_or(0)
}

const fn is_running(owner: OwnerStatus) -> bool {
    matches!(owner, OwnerStatus::Alive { .. } | OwnerStatus::Elsewhere { .. })
}

const fn state_of(owner: OwnerStatus) -> &'static str {
    match owner {
        OwnerStatus::Alive { .. } => "runs",
        OwnerStatus::Elsewhere { .. } => "elsewhere",
        OwnerStatus::Detached { .. } => "left",
        OwnerStatus::Ended => "ended",
        OwnerStatus::Unknown => "?",
    }
}

fn state<S: Serializer>(owner: &OwnerStatus, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_str(state_of(*owner))
}

/// Returns the saturating sum of counters. Another process wrote them, so they can have any value.
fn sum(numbers: impl Iterator<Item = u64>) -> u64 {
    numbers.fold(0, u64::saturating_add)
}

/// Scans for all ledgers of this machine.
pub(super) fn find() -> Result<Search, Failure> {
    // One fd for each ledger of the machine.
    sys::raise_fd_limit();
    scan().map_err(Failure::Message)
}

/// Scans as [`find`] does, with the limit of open files as it is.
pub(super) fn scan() -> Result<Search, String> {
    let found = umf::ipc::inspect::find();
    let mut search = found.map_err(|error| format!("cannot scan for processes: {error}; mount /proc"))?;
    if let Some(directory) = directory() {
        // What is wrong with the directory is for `umf info`.
        let _ = search.add_directory(&directory);
    }
    Ok(search)
}

/// Returns the directory of sockets that the settings name.
pub(super) fn directory() -> Option<Directory> {
    let settings = Settings::load(Loader::new()).ok()?;
    settings.ipc.directory_in_force().map(Directory::new)
}

/// Merges ledgers into processes, ordered by process id. Running processes come first.
pub(super) fn from_ledgers(search: &Search) -> Vec<Process> {
    let key = |found: &FoundLedger| {
        let identity = found.ledger.identity();
        (identity.pid, identity.pid_namespace, identity.start_time, identity.pidfs_inode)
    };
    let mut found: Vec<&FoundLedger> = search.found.iter().collect();
    found.sort_by_key(|found| key(found));
    let groups = found.chunk_by(|one, other| key(one) == key(other));
    let mut processes: Vec<Process> = groups
        .map(|group| {
            let mut process = Process::new(group[0]);
            let mut pools_time = 0;
            group.iter().for_each(|found| process.add(found, &mut pools_time));
            process.holders.sort_unstable();
            process.holders.dedup();
            if process.name.is_empty() {
                process.name = read_name(process.owner);
            }
            process
        })
        .collect();
    processes.sort_by_key(|process| (!is_running(process.owner), process.pid));
    processes
}

/// Returns the grants to write that processes have given to importers on other machines, with the
/// ids of the processes.
pub(super) fn remote_grants(processes: &[Process]) -> Vec<(u32, ListedGrant)> {
    let running = processes.iter().filter(|process| matches!(process.owner, OwnerStatus::Alive { .. }));
    let grants = running.flat_map(|it| remote::grants_of(it.pid).into_iter().map(|grant| (it.pid, grant)));
    grants.collect()
}

/// Returns a line for each grant.
pub(super) fn grants_note(grants: &[(u32, ListedGrant)]) -> String {
    let line = |(pid, grant): &(u32, ListedGrant)| {
        let left = format_duration(grant.time_left().as_nanos() as u64);
        format!(
            "grant: pid {pid}, slot {}: a remote importer at {} may write for {left}\n",
            grant.slot, grant.importer
        )
    };
    grants.iter().map(line).collect()
}

/// Reads the name of a running process whose ledger has none.
fn read_name(owner: OwnerStatus) -> String {
    let name =
        owner.pid().and_then(|pid| std::fs::read(format!("/proc/{pid}/comm")).ok()).unwrap_or_default();
    plain(String::from_utf8_lossy(&name).trim_end())
}

pub(super) use umf::ipc::inspect::plain;

/// Returns a note on processes that could not be inspected, with a remedy. Empty if there are none.
pub(super) fn denied_note(search: &Search) -> String {
    let mut text = String::new();
    match search.denied.len() {
        0 => {}
        1 => {
            text +=
                "1 process cannot be inspected (another user's, or not dumpable); run as root to inspect it\n"
        }
        n => {
            text += &format!(
                "{n} processes cannot be inspected (other users', or not dumpable); run as root to inspect them\n"
            );
        }
    }
    if search.unreadable > 0 {
        text += &format!(
            "{} ledgers cannot be read: another version of umf wrote them, or no fds are left; use the same version, or \
             raise the limit of open files (ulimit -n)\n",
            search.unreadable
        );
    }
    if search.silent > 0 {
        let producers =
            if search.silent == 1 { "1 producer".to_owned() } else { format!("{} producers", search.silent) };
        text += &format!(
            "{producers} in the directory did not answer: stopped, or not permitted to this user; run as root to see them\n"
        );
    }
    text
}

/// Formats a duration in nanoseconds in the unit that fits.
pub(super) fn format_duration(nanoseconds: u64) -> String {
    let time = nanoseconds as f64;
    match nanoseconds {
        0..1_000 => format!("{nanoseconds} ns"),
        1_000..1_000_000 => format!("{:.1} us", time / 1e3),
        1_000_000..1_000_000_000 => format!("{:.1} ms", time / 1e6),
        1_000_000_000..60_000_000_000 => format!("{:.1} s", time / 1e9),
        60_000_000_000..3_600_000_000_000 => format!("{:.0} min", time / 60e9),
        _ => format!("{:.1} h", time / 3_600e9),
    }
}

/// Formats how long ago another process recorded a time. The time may be wrong, and the clocks of
/// two processors may differ a little.
pub(super) fn format_age(now: u64, then: u64) -> String {
    match now.checked_sub(then) {
        Some(_) if then == 0 => "at an unknown time".to_owned(),
        Some(since) => format!("{} ago", format_duration(since)),
        None if then - now < 1_000_000_000 => "just now".to_owned(),
        None => "in the future (wrong clock)".to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_have_fitting_units() {
        let texts = [
            (0, "0 ns"),
            (3_200_000, "3.2 ms"),
            (2_000_000_000, "2.0 s"),
            (90_000_000_000, "2 min"),
            (7_200_000_000_000, "2.0 h"),
        ];
        for (nanoseconds, text) in texts {
            assert_eq!(format_duration(nanoseconds), text);
        }
        assert!(format_duration(u64::MAX).ends_with(" h"));
        assert_eq!(format_age(5_000, 2_000), "3.0 us ago");
        assert_eq!(format_age(5_000, 0), "at an unknown time");
        assert_eq!(format_age(5_000, 6_000), "just now");
        assert_eq!(format_age(5_000, u64::MAX), "in the future (wrong clock)");
    }
}
