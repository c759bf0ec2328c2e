//! [`Campaign`]: starts workers, stops and kills them, watches their progress, and prints the
//! result.

use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use umf_tests::{ProcessSnapshot, Rng};

use crate::checker::{Guarantee, violation};
use crate::diagnosis::{self, Watch};
use crate::pools::name_prefix;
use crate::settings::Settings;
use crate::shared::{self, Counter, INHERITED_FD, Identity, Shared, THREADS, activity_name, count};
use crate::worker::{Assignment, Role, run_tag};

/// The user of some workers, if this process is root.
const OTHER_USER: u32 = 65534;
/// Maximum time between two signals.
const MAX_SIGNAL_INTERVAL: Duration = Duration::from_millis(150);
/// Maximum time for which a worker is stopped.
const MAX_STOP: Duration = Duration::from_millis(400);
/// If a turn of the campaign takes longer, the machine is is_overloaded.
const OVERLOAD: Duration = Duration::from_secs(2);
/// Number of searches for remaining processes at the end of a run.
const FINAL_SEARCHES: u32 = 200;
/// Pause between two of these searches.
const FINAL_PAUSE: Duration = Duration::from_millis(50);

/// A running worker.
struct Running {
    process: Child,
    incarnation: u64,
    role: Role,
    stopped_until: Option<Instant>,
    watches: [Watch; THREADS],
}

impl Running {
    /// Sends a signal to the worker. If the worker has its own pid namespace, it is a child of
    /// `process`.
    fn signal(&self, worker: u32, signal: i32) -> bool {
        // SAFETY: numbers only.
        let pidfd = unsafe { libc::syscall(libc::SYS_pidfd_open, worker, 0) };
        if pidfd < 0 {
            return false;
        }
        let pidfd = pidfd as i32;
        // The pid may have been reused. If it still belongs to the started process, the pidfd
        // refers to the worker.
        let is_worker = worker == self.process.id() || parent_of(worker) == Some(self.process.id());
        // SAFETY: the fd is a pidfd, which is closed once; a null `siginfo_t` is permitted.
        unsafe {
            let sent = is_worker
                && libc::syscall(libc::SYS_pidfd_send_signal, pidfd, signal, std::ptr::null::<()>(), 0) == 0;
            libc::close(pidfd);
            sent
        }
    }
}

fn parent_of(pid: u32) -> Option<u32> {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    stat.rsplit_once(") ")?.1.split_ascii_whitespace().nth(1)?.parse().ok()
}

/// One run of the campaign.
pub struct Campaign<'s> {
    settings: &'s Settings,
    shared: &'static Shared,
    random: Rng,
    running: Vec<Option<Running>>,
    incarnations: u64,
    run: u32,
}

impl<'s> Campaign<'s> {
    /// Creates the shared file.
    pub fn new(settings: &'s Settings) -> Self {
        Self {
            settings,
            shared: shared::create(),
            random: Rng::new(settings.seed),
            running: (0..settings.workers).map(|_| None).collect(),
            incarnations: 0,
            run: std::process::id(),
        }
    }

    /// Runs to the end. Returns whether no violation was found.
    pub fn run(mut self) -> bool {
        let before = ProcessSnapshot::of_pid(std::process::id());
        let end = Instant::now() + Duration::from_secs(self.settings.seconds);
        let mut next_signal = Instant::now();
        let mut last_turn = Instant::now();
        while Instant::now() < end {
            let is_overloaded = last_turn.elapsed() > OVERLOAD;
            last_turn = Instant::now();
            for index in 0..self.running.len() {
                self.reap(index);
                if self.running[index].is_none() {
                    self.start(index, end);
                }
                self.resume(index, false);
                self.watch(index, is_overloaded);
            }
            if self.settings.signals && Instant::now() >= next_signal {
                let pause = self.random.below(MAX_SIGNAL_INTERVAL.as_micros() as u64);
                next_signal = Instant::now() + Duration::from_micros(pause);
                self.disturb();
            }
            std::thread::sleep(Duration::from_millis(2));
        }
        self.finish();
        self.find_leftovers(&before);
        self.print_result()
    }

    fn start(&mut self, index: usize, end: Instant) {
        self.incarnations += 1;
        let incarnation = self.incarnations;
        let left = end.saturating_duration_since(Instant::now()).as_secs().max(1);
        let life = Duration::from_secs((1 + self.random.below(self.settings.life_s)).min(left));
        let roles = [Role::Domains, Role::Links, Role::SecondCopy];
        let role = if self.settings.roles && self.random.one_in(5) {
            *self.random.choose(&roles)
        } else {
            Role::Blocks
        };
        let namespace = self.settings.namespaces && role == Role::Blocks && self.random.one_in(6);
        let user = self.settings.users && !namespace && self.random.one_in(4);
        let identity = Identity { index, incarnation };
        let seed = self.random.next_u64();
        let assignment = Assignment { run: self.run, identity, seed, life, role, namespace };
        let mut arguments = assignment.arguments();
        if namespace {
            arguments.insert(0, "in-namespace".to_owned());
        }
        self.shared.workers[index].begin(incarnation);
        let mut command = Command::new("/proc/self/exe");
        command.args(arguments).stdin(Stdio::null()).stdout(Stdio::null());
        if user {
            command.uid(OTHER_USER).gid(OTHER_USER);
        }
        let campaign = self.run;
        // SAFETY: the closure makes system calls only.
        unsafe { command.pre_exec(move || inherit_and_die_with(campaign)) };
        match command.spawn() {
            Ok(process) => {
                count(Counter::Starts);
                let watches = std::array::from_fn(|_| Watch::new());
                self.running[index] =
                    Some(Running { process, incarnation, role, stopped_until: None, watches });
            }
            Err(error) => {
                self.shared.workers[index].incarnation.store(0, Ordering::SeqCst);
                violation(Guarantee::Interface, format_args!("a worker cannot be started: {error}"));
                std::thread::sleep(Duration::from_millis(200));
            }
        }
    }

    /// Reaps a worker that has ended, and checks its exit status.
    fn reap(&mut self, index: usize) {
        let Some(running) = &mut self.running[index] else { return };
        let Ok(Some(status)) = running.process.try_wait() else { return };
        let state = &self.shared.workers[index];
        let expected = state.ending.load(Ordering::SeqCst) >= running.incarnation;
        if !is_expected_exit(status, expected) {
            violation(
                Guarantee::NoCrash,
                format_args!(
                    "worker {index} incarnation {} ({:?}) ended: {status}",
                    running.incarnation, running.role
                ),
            );
        }
        state.ending.store(running.incarnation, Ordering::SeqCst);
        state.incarnation.store(0, Ordering::SeqCst);
        self.running[index] = None;
    }

    /// Continues a stopped worker after its stop time, or now if `at_once`.
    fn resume(&mut self, index: usize, at_once: bool) {
        let pid = self.shared.workers[index].pid.load(Ordering::SeqCst);
        let Some(running) = &mut self.running[index] else { return };
        if running.stopped_until.is_some_and(|until| at_once || Instant::now() >= until) {
            running.signal(pid, libc::SIGCONT);
            running.stopped_until = None;
            running.watches.iter_mut().for_each(Watch::restart);
        }
    }

    /// Checks the progress of each thread of a worker. Reports and kills a worker that hangs.
    fn watch(&mut self, index: usize, is_overloaded: bool) {
        let state = &self.shared.workers[index];
        let pid = state.pid.load(Ordering::SeqCst);
        let Some(running) = &mut self.running[index] else { return };
        if is_overloaded || running.stopped_until.is_some() || pid == 0 {
            return running.watches.iter_mut().for_each(Watch::restart);
        }
        let mut hung = None;
        for (thread, (watch, progress)) in running.watches.iter_mut().zip(state.progress()).enumerate() {
            let Some((progress, activity)) = progress else {
                watch.restart();
                continue;
            };
            if let Some(description) = watch.look(pid, progress) {
                hung = Some(format!("thread {thread} ({}): {description}", activity_name(activity)));
            }
        }
        if let Some(description) = hung {
            violation(Guarantee::NoHang, format_args!("worker {index} pid {pid}, {description}"));
            state.ending.store(running.incarnation, Ordering::SeqCst);
            running.signal(pid, libc::SIGKILL);
        }
    }

    /// Kills or stops a random worker, or does nothing.
    fn disturb(&mut self) {
        let index = self.random.below(self.running.len() as u64) as usize;
        let state = &self.shared.workers[index];
        let pid = state.pid.load(Ordering::SeqCst);
        let Some(running) = &mut self.running[index] else { return };
        if pid == 0 {
            return;
        }
        match self.random.below(10) {
            0..3 => {
                // Before the signal, so that other workers do not expect a live producer.
                state.ending.store(running.incarnation, Ordering::SeqCst);
                if running.signal(pid, libc::SIGKILL) {
                    count(Counter::Kills);
                }
            }
            3..6 if running.stopped_until.is_none() && running.signal(pid, libc::SIGSTOP) => {
                count(Counter::Stops);
                let pause = Duration::from_micros(self.random.below(MAX_STOP.as_micros() as u64));
                running.stopped_until = Some(Instant::now() + pause);
            }
            _ => {}
        }
    }

    /// Waits until all workers have ended. Reports a worker that makes no progress.
    fn finish(&mut self) {
        for index in 0..self.running.len() {
            self.resume(index, true);
        }
        self.shared.stop();
        let mut last_turn = Instant::now();
        while self.running.iter().any(Option::is_some) {
            let is_overloaded = last_turn.elapsed() > OVERLOAD;
            last_turn = Instant::now();
            for index in 0..self.running.len() {
                self.reap(index);
                self.watch(index, is_overloaded);
            }
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    /// Reports processes, fds and children that remain of the run, and removes its names.
    fn find_leftovers(&self, before: &ProcessSnapshot) {
        let mut left = processes_of(self.run);
        for _ in 0..FINAL_SEARCHES {
            if left.is_empty() {
                break;
            }
            std::thread::sleep(FINAL_PAUSE);
            left = processes_of(self.run);
        }
        for pid in left {
            let description = diagnosis::describe(pid);
            violation(
                Guarantee::NothingLeft,
                format_args!("process {pid} of the run still exists\n{description}"),
            );
            // SAFETY: the arguments of the process contain this run's tag, so this run started it.
            unsafe { libc::kill(pid.cast_signed(), libc::SIGKILL) };
        }
        // Killed workers leave names, and so do workers that ended while others held their memory.
        let prefix = name_prefix(self.run);
        for folder in [std::path::Path::new("/dev/shm"), &std::env::temp_dir()] {
            for entry in std::fs::read_dir(folder).into_iter().flatten().flatten() {
                if entry.file_name().to_string_lossy().starts_with(&prefix) {
                    // A failure does not matter: names are not checked.
                    let _ = std::fs::remove_file(entry.path());
                }
            }
        }
        let now = ProcessSnapshot::of_pid(std::process::id());
        if now.fds != before.fds || now.children != before.children {
            violation(
                Guarantee::NothingLeft,
                format_args!("the campaign began with {before:?} and ends with {now:?}"),
            );
        }
    }

    /// Prints counters and violations. Returns whether there is no violation.
    fn print_result(&self) -> bool {
        for (counter, name) in Counter::ALL {
            println!("hostile: {:>10} {name}", self.shared.value(*counter));
        }
        let violations =
            |guarantee: Guarantee| self.shared.violations[guarantee as usize].load(Ordering::SeqCst);
        let all: u64 = Guarantee::ALL.into_iter().map(violations).sum();
        for guarantee in Guarantee::ALL.into_iter().filter(|guarantee| violations(*guarantee) > 0) {
            println!("hostile: {:>10} violations of {guarantee}", violations(guarantee));
        }
        let (crashes, hangs) = (violations(Guarantee::NoCrash), violations(Guarantee::NoHang));
        println!("hostile: {} violations, {crashes} crashes, {hangs} hangs", all - crashes - hangs);
        let opened = self.shared.value(Counter::Opens) > 0;
        if !opened {
            println!("hostile: no block was opened, so that the run tested nothing");
        }
        all == 0 && opened
    }
}

/// Prepares a child between fork and exec: it inherits the shared file, and dies with the campaign.
fn inherit_and_die_with(campaign: u32) -> std::io::Result<()> {
    // SAFETY: the calls affect this process only.
    unsafe {
        if libc::fcntl(INHERITED_FD, libc::F_SETFD, 0) != 0 {
            return Err(std::io::Error::last_os_error());
        }
        libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL);
        if libc::getppid().cast_unsigned() != campaign {
            libc::_exit(1);
        }
    }
    Ok(())
}

/// Returns whether a worker exited with success, or was killed by the campaign (`expected`). The
/// parent of a worker in a pid namespace exits with the worker's code, or 137 after SIGKILL.
fn is_expected_exit(status: ExitStatus, expected: bool) -> bool {
    let killed = status.signal() == Some(libc::SIGKILL) || status.code() == Some(128 + libc::SIGKILL);
    status.success() || killed && expected
}

/// Returns the processes whose arguments contain the tag of a run.
fn processes_of(run: u32) -> Vec<u32> {
    let tag = run_tag(run);
    let pids = std::fs::read_dir("/proc").into_iter().flatten().flatten();
    let pids = pids.filter_map(|entry| entry.file_name().to_str()?.parse().ok());
    pids.filter(|pid: &u32| {
        let arguments = std::fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
        arguments.split(|byte| *byte == 0).any(|argument| argument == tag.as_bytes())
    })
    .collect()
}

/// Runs a worker as the init process of a new pid namespace. Returns the exit code of the worker.
pub fn in_namespace(arguments: &[String]) -> i32 {
    // SAFETY: affects the children of this process only.
    if unsafe { libc::unshare(libc::CLONE_NEWPID) } != 0 {
        violation(Guarantee::Interface, format_args!("unshare: {}", std::io::Error::last_os_error()));
        return 1;
    }
    let mut command = Command::new("/proc/self/exe");
    command.args(arguments);
    // SAFETY: the closure makes one system call, which affects the child only.
    unsafe {
        command.pre_exec(|| {
            libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL);
            Ok(())
        });
    }
    match command.status() {
        Ok(status) => status.code().unwrap_or_else(|| 128 + status.signal().unwrap_or(0)),
        Err(error) => {
            violation(
                Guarantee::Interface,
                format_args!("a worker in a pid namespace cannot be started: {error}"),
            );
            1
        }
    }
}
