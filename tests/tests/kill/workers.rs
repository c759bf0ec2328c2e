//! [`Worker`]: a process of a campaign, and the checks of what it holds.

use std::collections::BTreeSet;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::OnceLock;
use std::time::{Duration, Instant};

use super::Failpoint;
use tempfile::TempDir;
use umf_tests::block_table::BlockTable;
use umf_tests::domain::name;
use umf_tests::{Actor, Outcome, ProcessSnapshot, Spawn, machine, spawn};

use super::plan::{Role, Setup};
use super::tally::FailpointTally;

/// Returns the limit for any command. An open takes 2 s at most, and importers wait 6 s for the
/// record that a producer is dead.
pub(crate) fn bound() -> Duration {
    // QEMU may interpret a guest on a busy processor: a round takes seconds there.
    Duration::from_secs(if machine::is_guest() { 90 } else { 20 })
}

/// Returns the directory of the sockets of this campaign's processes.
fn directory() -> &'static Path {
    static DIRECTORY: OnceLock<TempDir> = OnceLock::new();
    DIRECTORY.get_or_init(|| tempfile::tempdir().unwrap()).path()
}

/// Returns the files that the next producer leaves in the directory besides its own two. Killed
/// processes have left some before. Removes the directory.
pub(crate) fn files_left_in_directory() -> Vec<String> {
    let mut next = spawn!().env("UMF_IPC_DIR", directory().to_str().unwrap()).start();
    next.ok("pool p shared");
    next.ok("alloc p 4096 -> p.b");
    next.handle("handle p.b");
    let files = std::fs::read_dir(directory()).unwrap();
    let files: Vec<_> = files.map(|file| file.unwrap().file_name().into_string().unwrap()).collect();
    let nonce = next.ok("nonce");
    let own = nonce.split(' ').next().unwrap().strip_prefix("umf-").unwrap_or_default().to_owned();
    next.kill();
    std::fs::remove_dir_all(directory()).unwrap();
    files.into_iter().filter(|file| own.is_empty() || !file.contains(&own)).collect()
}

/// Prepares the start of a process, which finds others in a directory if there is one.
pub(super) fn spawn_in(directory: Option<&Path>) -> Spawn {
    match directory {
        None => spawn!(),
        Some(path) => spawn!().env("UMF_IPC_DIR", path.to_str().unwrap()),
    }
}

/// Runs a campaign in a new directory. Then checks that the next process removes what the killed
/// ones have left there.
pub(super) fn in_directory(campaign: impl FnOnce(&Path) -> FailpointTally) -> FailpointTally {
    let folder = tempfile::tempdir().unwrap();
    let tally = campaign(folder.path());
    let mut next = spawn_in(Some(folder.path())).start();
    let domain = name("last");
    next.ok(&format!("join {domain} 9000"));
    next.ok(&format!("leave {domain}"));
    next.finish();
    let files: Vec<_> =
        std::fs::read_dir(folder.path()).unwrap().map(|entry| entry.unwrap().path()).collect();
    assert!(files.is_empty(), "{files:?}");
    tally
}

/// Process of a campaign.
pub(crate) struct Worker {
    pub(crate) actor: Actor,
    pub(crate) role: Role,
    /// Unique number of the process.
    pub(crate) incarnation: u64,
    /// What the process holds when idle, except [`LeaseFootprint`].
    at_rest: ProcessSnapshot,
    /// Shared memory of the idle process, in KiB.
    memory: u64,
    armed: Option<Failpoint>,
    /// Time in which a producer did all its activities once.
    pub(crate) activity_time: Option<Duration>,
    /// Whether the answer to this round's work was read.
    pub(crate) has_answered: bool,
}

impl Worker {
    /// Starts a process, with this pid if one is given. Returns `None` if the pid is not free.
    ///
    /// # Errors
    /// If the process cannot be started, or its first command fails.
    pub(crate) fn start(
        role: Role,
        incarnation: u64,
        setup: &Setup,
        table: &BlockTable,
        pid: Option<u32>,
    ) -> Result<Option<Self>, String> {
        let mut spawn = spawn!()
            .env("UMF_IPC_EXCHANGE", setup.mode)
            .env("UMF_IPC_OPEN_TIMEOUT_MS", "400")
            .env("UMF_MAX_OPENED_IPC_HANDLES", setup.max_opened)
            .env("UMF_MAX_CREATED_IPC_HANDLES", setup.max_created)
            .env("UMF_IPC_IMPORTER_SHARDS", setup.shards);
        if setup.mode == "directory" {
            spawn = spawn.env("UMF_IPC_DIR", directory().to_str().unwrap());
        }
        if let Some(pid) = pid {
            spawn = spawn.pid(pid);
        }
        if role == Role::Importer && setup.in_pid_namespace {
            spawn = spawn.namespaces(libc::CLONE_NEWPID);
        }
        let mut actor = match (spawn.try_start(), pid) {
            (Ok(actor), _) => actor,
            (Err(_), Some(_)) => return Ok(None),
            (Err(error), None) => return Err(format!("no process can be started: {error}")),
        };
        actor.ok(&format!("block-table {}", table.path()));
        let mut activity_time = None;
        if role == Role::Producer {
            table.clear(incarnation);
            let begun = Instant::now();
            // Work creates the ledger and the socket, which belong to the idle state.
            let command = format!(
                "produce {incarnation} {} 1 0 {incarnation} {} {}",
                setup.kind, setup.on_free, setup.max_held
            );
            let outcome = {
                actor.send(&command);
                actor.outcome(bound())
            };
            if !matches!(outcome, Outcome::Answer(Ok(_))) {
                return Err(format!("a new producer failed: {outcome:?}"));
            }
            activity_time = Some(begun.elapsed());
        }
        let at_rest = snapshot_at_rest(&actor, role);
        let memory = shared_memory(actor.pid());
        Ok(Some(Self {
            actor,
            role,
            incarnation,
            at_rest,
            memory,
            armed: None,
            activity_time,
            has_answered: false,
        }))
    }

    /// Starts the work of a round. If the process is dead, waiting for its answer will report that.
    pub(crate) fn work(&mut self, setup: &Setup, milliseconds: u64, seed: u64) {
        let Setup { threads, kind, on_free, max_held, .. } = setup;
        let incarnation = self.incarnation;
        self.actor.try_send(&match self.role {
            Role::Producer => {
                format!("produce {incarnation} {kind} {threads} {milliseconds} {seed} {on_free} {max_held}")
            }
            Role::Importer => format!("import {threads} {milliseconds} {seed}"),
        });
    }

    pub(crate) fn arm(&mut self, failpoint: Failpoint, nth: u32, action: &str) {
        self.actor.ok(&format!("arm {failpoint} {nth} {action}"));
        self.armed = Some(failpoint);
    }

    /// Disarms the planned failpoint. Returns the failpoint if the process was killed there after
    /// its work, which its umf threads may reach.
    ///
    /// # Errors
    /// Any other outcome.
    pub(crate) fn disarm(&mut self, table: &BlockTable) -> Result<Option<Failpoint>, Outcome> {
        let Some(failpoint) = self.armed.take() else { return Ok(None) };
        match self.actor.try_send("disarm").then(|| self.actor.outcome(bound())) {
            Some(Outcome::Answer(Ok(_))) => Ok(None),
            None | Some(Outcome::Ended) => {
                table.set_dead(self.incarnation);
                if is_kill_status(&self.actor.reap()) { Ok(Some(failpoint)) } else { Err(Outcome::Ended) }
            }
            Some(other) => Err(other),
        }
    }

    /// Waits until the process has no deferred frees, as no process has anything open. Returns a
    /// description if some remain.
    pub(crate) fn remaining_deferred_frees(&mut self) -> Option<String> {
        match self.actor.try_send("drain 5000").then(|| self.actor.outcome(bound())) {
            Some(Outcome::Answer(Ok(bytes))) if bytes == "0" => None,
            other => Some(format!("frees are deferred though nothing is open, bytes: {other:?}")),
        }
    }

    /// Waits until the process holds what it held when idle. Returns a description if it does not.
    /// Connections close a little later than their peers end.
    pub(crate) fn find_leak(&mut self) -> Option<String> {
        let begun = Instant::now();
        loop {
            let mut now = ProcessSnapshot::of(&self.actor);
            let footprint = LeaseFootprint::take_out(&mut now, self.actor.pid(), self.role);
            // A joined thread stays in `/proc` for a moment, and may have been counted at the
            // start.
            self.at_rest.threads = self.at_rest.threads.min(now.threads);
            let memory = shared_memory(self.actor.pid());
            let grown = memory > self.memory + footprint.memory();
            if now == self.at_rest && !footprint.exceeds_bound() && !grown {
                return None;
            }
            if begun.elapsed() > Duration::from_secs(5) {
                return Some(format!(
                    "at rest it had {:?} and {} kB, now {now:?}, {footprint:?} and {memory} kB",
                    self.at_rest, self.memory
                ));
            }
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    /// Waits up to `timeout` until the process has stopped. Returns whether it has.
    pub(crate) fn wait_for_stop(&mut self, timeout: Duration) -> bool {
        let begun = Instant::now();
        while begun.elapsed() < timeout {
            let stat =
                std::fs::read_to_string(format!("/proc/{}/stat", self.actor.pid())).unwrap_or_default();
            if stat.rsplit_once(") ").is_some_and(|(_, fields)| fields.starts_with('T')) {
                return true;
            }
            std::thread::sleep(Duration::from_micros(300));
        }
        false
    }

    /// Kills and reaps the process, unless it was reaped.
    pub(crate) fn kill_if_alive(&mut self) {
        if !self.actor.is_reaped() {
            self.actor.signal(libc::SIGKILL);
            self.actor.reap();
        }
    }

    /// Returns the name of the dead process's socket if it stays bound. A child of an interrupted
    /// fork closes its copy first of all.
    pub(crate) fn bound_socket(&self) -> Option<String> {
        let begun = Instant::now();
        loop {
            let socket = self.at_rest.sockets.iter().find(|socket| ProcessSnapshot::is_bound(socket))?;
            if begun.elapsed() > Duration::from_secs(2) {
                return Some(format!("its socket {socket} is still bound"));
            }
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    /// Returns the dma-bufs of the dead or idle process that exist although nothing is open. The
    /// kernel frees those of a killed process with a delay.
    pub(crate) fn remaining_dma_bufs(&self) -> Option<String> {
        let begun = Instant::now();
        loop {
            let left = machine::dma_bufs_of(self.actor.pid()).filter(|left| !left.is_empty())?;
            if begun.elapsed() > Duration::from_secs(5) {
                return Some(format!("of its buffers are left: {left:?}"));
            }
            std::thread::sleep(Duration::from_millis(2));
        }
    }

    /// Removes the names that the process left in `/dev/shm`, and returns their number.
    pub(crate) fn remove_names(&self) -> u64 {
        let tag = format!("umf-kill-{}-", self.actor.pid());
        let entries = std::fs::read_dir("/dev/shm").into_iter().flatten().flatten();
        let left = entries.filter(|entry| entry.file_name().to_string_lossy().starts_with(&tag));
        left.map(|entry| u64::from(std::fs::remove_file(entry.path()).is_ok())).sum()
    }
}

/// Returns what an idle process has, without what may differ when it is idle again.
fn snapshot_at_rest(actor: &Actor, role: Role) -> ProcessSnapshot {
    let mut at_rest = ProcessSnapshot::of(actor);
    LeaseFootprint::take_out(&mut at_rest, actor.pid(), role);
    // An idle process has no connections, and has left its ended exporters. One that has just
    // started has not noticed their end yet.
    at_rest.fds.remove("socket");
    if role == Role::Producer {
        at_rest.fds.remove("pidfd");
    }
    // It does not send the file of a freed region, and has no freed region mapped.
    at_rest.fds.remove("/memfd:umf (deleted)");
    at_rest.mappings.remove("/memfd:umf (deleted)");
    // The name of a dma-buf contains the pid of its creator.
    at_rest.fds.retain(|file, _| !file.starts_with("/dmabuf:"));
    at_rest.mappings.retain(|file, _| !file.starts_with("/dmabuf:"));
    // A region whose free is deferred keeps its provider, and so the provider's device.
    at_rest.fds.retain(|file, _| !file.starts_with("/dev/dma_heap/") && file != "/dev/udmabuf");
    if !at_rest.sockets.is_empty() {
        at_rest.fds.insert("socket".to_owned(), at_rest.sockets.len());
    }
    at_rest
}

/// Returns whether this is the exit status of a process that was killed. The init process of a pid
/// namespace cannot kill itself, and exits with 137 at a failpoint.
pub(crate) fn is_kill_status(how: &str) -> bool {
    matches!(how, "signal 9" | "code 137")
}

/// The memory that a producer keeps after its importers have ended: a mapping of each lease-table
/// row that it ever read. Rows are reused, so that their number is bounded.
#[derive(Clone, Copy, Debug)]
struct LeaseFootprint {
    row_mappings: usize,
    /// Rows of the lease table that were ever in use: its height.
    rows: usize,
}

impl LeaseFootprint {
    /// Bound for the rows. Importers and their children have a few rows each. An importer without a
    /// free row reclaims those of dead importers, a few at a time.
    const ROWS: usize = 192;

    /// Removes the mappings of rows from a snapshot, and returns them.
    fn take_out(snapshot: &mut ProcessSnapshot, pid: u32, role: Role) -> Self {
        if role == Role::Importer {
            // An importer reads no rows of others.
            return Self { row_mappings: 0, rows: 0 };
        }
        let table = "/memfd:umf-leases (deleted)";
        let mappings = snapshot.mappings.remove(table).unwrap_or(0);
        let of_table = usize::from(snapshot.fds.contains_key(table));
        Self { row_mappings: mappings.saturating_sub(of_table), rows: height_of(pid, table) }
    }

    const fn exceeds_bound(&self) -> bool {
        self.rows > Self::ROWS || self.row_mappings > self.rows
    }

    /// Returns the shared memory that these mappings and a grown ledger may add, in KiB.
    const fn memory(&self) -> u64 {
        1024 + 16 * self.rows as u64
    }
}

/// Returns the height of a process's lease table (`docs/leases.md`).
fn height_of(pid: u32, table: &str) -> usize {
    let mut height = 0;
    for entry in std::fs::read_dir(format!("/proc/{pid}/fd")).into_iter().flatten().flatten() {
        let is_table = std::fs::read_link(entry.path()).is_ok_and(|link| link.as_os_str() == table);
        let mut bytes = [0; 4];
        if is_table
            && std::fs::File::open(entry.path()).is_ok_and(|file| file.read_exact_at(&mut bytes, 64).is_ok())
        {
            height = height.max(u32::from_le_bytes(bytes) as usize);
        }
    }
    height
}

/// Returns the resident shared memory of a process in KiB (`proc_pid_status(5)`).
fn shared_memory(pid: u32) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    let field = status.lines().find_map(|line| line.strip_prefix("RssShmem:"));
    field.and_then(|field| field.trim().trim_end_matches(" kB").parse().ok()).unwrap_or(0)
}

/// Makes this process the parent of the orphans of killed processes, so that it can reap them.
pub(crate) fn adopt_orphans() {
    // SAFETY: numbers only.
    assert_eq!(unsafe { libc::prctl(libc::PR_SET_CHILD_SUBREAPER, 1) }, 0);
}

/// Kills the children of a process that is dead or about to be killed.
pub(crate) fn kill_children(pid: u32) {
    for task in std::fs::read_dir(format!("/proc/{pid}/task")).into_iter().flatten().flatten() {
        let children = std::fs::read_to_string(task.path().join("children")).unwrap_or_default();
        for child in children.split_whitespace().filter_map(|pid| pid.parse().ok()) {
            // The pid is not reused: only a thread of the dead process could have reaped the child.
            // SAFETY: numbers only.
            unsafe { libc::kill(child, libc::SIGKILL) };
        }
    }
}

/// Reaps the children of killed processes. Returns those that did not end, which it kills.
pub(crate) fn reap_orphans(known: &BTreeSet<u32>) -> Vec<u32> {
    let begun = Instant::now();
    loop {
        let mut left = Vec::new();
        for task in std::fs::read_dir("/proc/self/task").unwrap().flatten() {
            let children = std::fs::read_to_string(task.path().join("children")).unwrap_or_default();
            let pids = children.split_whitespace().filter_map(|pid| pid.parse().ok());
            for pid in pids.filter(|pid| !known.contains(pid)) {
                let mut status = 0;
                // SAFETY: a child that no other thread reaps; `status` is valid for the write.
                if unsafe { libc::waitpid(pid as i32, &raw mut status, libc::WNOHANG) } == 0 {
                    left.push(pid);
                }
            }
        }
        if left.is_empty() || begun.elapsed() > Duration::from_secs(10) {
            for pid in &left {
                // SAFETY: a child of this process, which was not reaped.
                unsafe {
                    libc::kill(*pid as i32, libc::SIGKILL);
                    libc::waitpid(*pid as i32, std::ptr::null_mut(), 0);
                }
            }
            return left;
        }
        std::thread::sleep(Duration::from_micros(500));
    }
}
