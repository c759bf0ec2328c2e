//! The processes of a campaign.

use std::collections::BTreeSet;
use std::os::unix::fs::FileExt;
use std::time::{Duration, Instant};

use super::Failpoint;
use umf_tests::board::Board;
use umf_tests::{Actor, Census, Outcome, machine, spawn};

use super::plan::{Role, Setup};

/// How long anything may take. Opens take 2 s at most, and the board has 6 s for the news of a death.
pub(crate) fn bound() -> Duration {
    // A guest is interpreted, by a processor that others use, too: a round of one takes seconds.
    Duration::from_secs(if machine::is_guest() { 90 } else { 20 })
}

/// One process.
pub(crate) struct Member {
    pub(crate) actor: Actor,
    pub(crate) role: Role,
    /// Its incarnation: no other process has this number.
    pub(crate) who: u64,
    /// What it has at rest, but for [`Watching`].
    at_rest: Census,
    /// Its shared memory then, in KiB.
    memory: u64,
    armed: Option<Failpoint>,
    /// How long it took a producer to do all that its threads do, once.
    pub(crate) tour: Option<Duration>,
    /// Its answer to this round's work was read.
    pub(crate) has_answered: bool,
}

impl Member {
    /// Starts a process, under this pid if one is given. `None` if the pid is not to be had.
    ///
    /// # Errors
    /// What the process did instead of getting ready.
    pub(crate) fn start(
        role: Role,
        who: u64,
        setup: &Setup,
        board: &Board,
        pid: Option<u32>,
    ) -> Result<Option<Self>, String> {
        let mut spawn = spawn!()
            .env("UMF_IPC_EXCHANGE", setup.mode)
            .env("UMF_IPC_OPEN_TIMEOUT_MS", "400")
            .env("UMF_MAX_OPENED_IPC_HANDLES", setup.max_opened)
            .env("UMF_MAX_CREATED_IPC_HANDLES", setup.max_created)
            .env("UMF_IPC_IMPORTER_SHARDS", setup.shards);
        if let Some(pid) = pid {
            spawn = spawn.pid(pid);
        }
        if role == Role::Importer && setup.elsewhere {
            spawn = spawn.namespaces(libc::CLONE_NEWPID);
        }
        let mut actor = match (spawn.try_start(), pid) {
            (Ok(actor), _) => actor,
            (Err(_), Some(_)) => return Ok(None),
            (Err(error), None) => return Err(format!("no process can be started: {error}")),
        };
        actor.ok(&format!("board {}", board.path()));
        let mut tour = None;
        if role == Role::Producer {
            board.clear(who);
            let begun = Instant::now();
            // So that its ledger, and its socket, are there.
            let command =
                format!("produce {who} {} 1 0 {who} {} {}", setup.kind, setup.on_free, setup.max_held);
            let outcome = {
                actor.send(&command);
                actor.outcome(bound())
            };
            if !matches!(outcome, Outcome::Answer(Ok(_))) {
                return Err(format!("a new producer: {outcome:?}"));
            }
            tour = Some(begun.elapsed());
        }
        let mut at_rest = Census::of(&actor);
        Watching::take_out(&mut at_rest, actor.pid(), role);
        let memory = shared_memory(actor.pid());
        // At rest nobody is connected to it. (Others may be already, if they are at work.)
        at_rest.fds.remove("socket");
        // Nor does it send them a file that it has freed meanwhile.
        at_rest.fds.remove("/memfd:umf (deleted)");
        // Nor have they anything open that it has freed.
        at_rest.mappings.remove("/memfd:umf (deleted)");
        // (Each dma-buf is called by its maker.)
        at_rest.fds.retain(|file, _| !file.starts_with("/dmabuf:"));
        at_rest.mappings.retain(|file, _| !file.starts_with("/dmabuf:"));
        // A region that is held because it is open keeps its provider, with the provider's device.
        at_rest.fds.retain(|file, _| !file.starts_with("/dev/dma_heap/") && file != "/dev/udmabuf");
        if !at_rest.sockets.is_empty() {
            at_rest.fds.insert("socket".to_owned(), at_rest.sockets.len());
        }
        Ok(Some(Self { actor, role, who, at_rest, memory, armed: None, tour, has_answered: false }))
    }

    /// Begins a round's work.
    /// (Who is gone already is noticed when its answer is awaited.)
    pub(crate) fn work(&mut self, setup: &Setup, milliseconds: u64, seed: u64) {
        let Setup { threads, kind, on_free, max_held, .. } = setup;
        let who = self.who;
        self.actor.try_send(&match self.role {
            Role::Producer => {
                format!("produce {who} {kind} {threads} {milliseconds} {seed} {on_free} {max_held}")
            }
            Role::Importer => format!("import {threads} {milliseconds} {seed}"),
        });
    }

    pub(crate) fn arm(&mut self, step: Failpoint, nth: u32, action: &str) {
        self.actor.ok(&format!("arm {step} {nth} {action}"));
        self.armed = Some(step);
    }

    /// Forgets what was planned. The step at which it ended instead, if it did: threads of umf go on when the work is done.
    ///
    /// # Errors
    /// Anything else that came of it.
    pub(crate) fn disarm(&mut self, board: &Board) -> Result<Option<Failpoint>, Outcome> {
        let Some(step) = self.armed.take() else { return Ok(None) };
        match self.actor.try_send("disarm").then(|| self.actor.outcome(bound())) {
            Some(Outcome::Answer(Ok(_))) => Ok(None),
            None | Some(Outcome::Ended) => {
                board.set_dead(self.who);
                if was_killed(&self.actor.reap()) { Ok(Some(step)) } else { Err(Outcome::Ended) }
            }
            Some(other) => Err(other),
        }
    }

    /// Waits until it holds nothing any more that it freed: nobody has anything open. Says what is wrong otherwise.
    pub(crate) fn still_holds(&mut self) -> Option<String> {
        match self.actor.try_send("drain 5000").then(|| self.actor.outcome(bound())) {
            Some(Outcome::Answer(Ok(bytes))) if bytes == "0" => None,
            other => Some(format!("nobody has anything open, and it holds bytes: {other:?}")),
        }
    }

    /// Waits until it has again what it had at rest; says what it has otherwise. Connections end a little later than
    /// their peers.
    pub(crate) fn leaks(&mut self) -> Option<String> {
        let begun = Instant::now();
        loop {
            let mut now = Census::of(&self.actor);
            let watching = Watching::take_out(&mut now, self.actor.pid(), self.role);
            // A thread that was joined is seen a moment longer: when it was counted at first, too.
            self.at_rest.threads = self.at_rest.threads.min(now.threads);
            let memory = shared_memory(self.actor.pid());
            let grown = memory > self.memory + watching.memory();
            if now == self.at_rest && !watching.is_too_much() && !grown {
                return None;
            }
            if begun.elapsed() > Duration::from_secs(5) {
                return Some(format!(
                    "at rest it had {:?} and {} kB, now {now:?}, {watching:?} and {memory} kB",
                    self.at_rest, self.memory
                ));
            }
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    /// Waits until all of it has stopped; `false` if it does not.
    pub(crate) fn has_stopped(&mut self, patience: Duration) -> bool {
        let begun = Instant::now();
        while begun.elapsed() < patience {
            let stat =
                std::fs::read_to_string(format!("/proc/{}/stat", self.actor.pid())).unwrap_or_default();
            if stat.rsplit_once(") ").is_some_and(|(_, fields)| fields.starts_with('T')) {
                return true;
            }
            std::thread::sleep(Duration::from_micros(300));
        }
        false
    }

    /// Kills it, if that has not happened.
    pub(crate) fn end_it(&mut self) {
        if !self.actor.is_reaped() {
            self.actor.signal(libc::SIGKILL);
            self.actor.reap();
        }
    }

    /// What is left of it once it is dead: its socket's name. (A child that it was just forking closes that first of all.)
    pub(crate) fn remains(&self) -> Option<String> {
        let begun = Instant::now();
        loop {
            let socket = self.at_rest.sockets.iter().find(|socket| Census::is_bound(socket))?;
            if begun.elapsed() > Duration::from_secs(2) {
                return Some(format!("its socket {socket} is still bound"));
            }
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    /// The dma-bufs that are left of it, dead or at rest, when nobody has anything open. What was killed lets go of them in its
    /// own time.
    pub(crate) fn buffers_left(&self) -> Option<String> {
        let begun = Instant::now();
        loop {
            let left = machine::dma_bufs_of(self.actor.pid()).filter(|left| !left.is_empty())?;
            if begun.elapsed() > Duration::from_secs(5) {
                return Some(format!("of its buffers are left: {left:?}"));
            }
            std::thread::sleep(Duration::from_millis(2));
        }
    }

    /// The names that it left in `/dev/shm`, taken away.
    pub(crate) fn take_names_away(&self) -> u64 {
        let tag = format!("umf-kill-{}-", self.actor.pid());
        let entries = std::fs::read_dir("/dev/shm").into_iter().flatten().flatten();
        let left = entries.filter(|entry| entry.file_name().to_string_lossy().starts_with(&tag));
        left.map(|entry| u64::from(std::fs::remove_file(entry.path()).is_ok())).sum()
    }
}

/// Whether a process ended as those do that are killed, or kill themselves: the first one of a pid namespace has to do so in
/// a way of its own.
pub(crate) fn was_killed(how: &str) -> bool {
    matches!(how, "signal 9" | "code 137")
}

/// What a producer keeps of its importers when they are gone: a mapping of each row that it ever looked at, of which there are no
/// more than were in use at one time, more or less.
#[derive(Clone, Copy, Debug)]
struct Watching {
    row_mappings: usize,
    /// Rows of the lease table that ever counted.
    rows: usize,
}

impl Watching {
    /// Importers and the children that they fork have a few rows each. An importer that finds no free row looks for those of the
    /// dead a few at a time.
    const ROWS: usize = 192;

    /// Separates them from what else a process has.
    fn take_out(census: &mut Census, pid: u32, role: Role) -> Self {
        if role == Role::Importer {
            // It keeps nothing.
            return Self { row_mappings: 0, rows: 0 };
        }
        let table = "/memfd:umf-leases (deleted)";
        let mappings = census.mappings.remove(table).unwrap_or(0);
        let own = usize::from(census.fds.contains_key(table));
        Self { row_mappings: mappings.saturating_sub(own), rows: height_of(pid, table) }
    }

    const fn is_too_much(&self) -> bool {
        self.rows > Self::ROWS || self.row_mappings > self.rows
    }

    /// What these mappings may show, in KiB, and what it takes for the ledger to grow.
    const fn memory(&self) -> u64 {
        1024 + 16 * self.rows as u64
    }
}

/// The height of a process's lease table (`docs/leases.md`).
fn height_of(pid: u32, table: &str) -> usize {
    let mut height = 0;
    for entry in std::fs::read_dir(format!("/proc/{pid}/fd")).into_iter().flatten().flatten() {
        let is_it = std::fs::read_link(entry.path()).is_ok_and(|link| link.as_os_str() == table);
        let mut bytes = [0; 4];
        if is_it
            && std::fs::File::open(entry.path()).is_ok_and(|file| file.read_exact_at(&mut bytes, 64).is_ok())
        {
            height = height.max(u32::from_le_bytes(bytes) as usize);
        }
    }
    height
}

/// In KiB (`proc_pid_status(5)`).
fn shared_memory(pid: u32) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    let field = status.lines().find_map(|line| line.strip_prefix("RssShmem:"));
    field.and_then(|field| field.trim().trim_end_matches(" kB").parse().ok()).unwrap_or(0)
}

/// Makes orphans of killed processes children of this one, so that they are seen.
pub(crate) fn adopt_orphans() {
    // SAFETY: numbers only.
    assert_eq!(unsafe { libc::prctl(libc::PR_SET_CHILD_SUBREAPER, 1) }, 0);
}

/// Kills the children of a process that is dead or about to be.
pub(crate) fn kill_children(pid: u32) {
    for task in std::fs::read_dir(format!("/proc/{pid}/task")).into_iter().flatten().flatten() {
        let children = std::fs::read_to_string(task.path().join("children")).unwrap_or_default();
        for child in children.split_whitespace().filter_map(|pid| pid.parse().ok()) {
            // SAFETY: numbers only; nobody but a thread of the dead reaps the child, so that the pid is its own.
            unsafe { libc::kill(child, libc::SIGKILL) };
        }
    }
}

/// Waits for the children of killed processes to end; yields those that do not.
pub(crate) fn reap_orphans(known: &BTreeSet<u32>) -> Vec<u32> {
    let begun = Instant::now();
    loop {
        let mut left = Vec::new();
        for task in std::fs::read_dir("/proc/self/task").unwrap().flatten() {
            let children = std::fs::read_to_string(task.path().join("children")).unwrap_or_default();
            let pids = children.split_whitespace().filter_map(|pid| pid.parse().ok());
            for pid in pids.filter(|pid| !known.contains(pid)) {
                let mut status = 0;
                // SAFETY: a child of this process that nobody else waits for; `status` is valid for the write.
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
