//! The campaign: starts workers, stops and kills them, watches their progress, and sums up.

use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use umf_tests::{ProcessSnapshot, Rng};

use crate::checker::{Promise, broken};
use crate::liveness::{self, Watch};
use crate::pools::name_prefix;
use crate::settings::Settings;
use crate::shared::{self, Counter, INHERITED_FD, Identity, Shared, THREADS, activity_name, count};
use crate::worker::{Assignment, Role, run_tag};

/// The user of some workers, if this process is root.
const OTHER_USER: u32 = 65534;
/// The longest time between two signals.
const BETWEEN_SIGNALS: Duration = Duration::from_millis(150);
/// The longest time that a worker is stopped.
const STOPPED: Duration = Duration::from_millis(400);
/// A pause of the campaign itself that is longer says that the machine is overloaded.
const LONG_PAUSE: Duration = Duration::from_secs(2);
/// How often the campaign looks for processes that are left at its end, and how long it waits each
/// time.
const LOOKS_AT_END: u32 = 200;
const PAUSE_AT_END: Duration = Duration::from_millis(50);

/// A running worker.
struct Running {
    process: Child,
    incarnation: u64,
    role: Role,
    stopped_until: Option<Instant>,
    watches: [Watch; THREADS],
}

impl Running {
    /// Sends a signal to the worker itself, which is a child of `process` if it has a pid namespace
    /// of its own.
    fn signal(&self, worker: u32, signal: i32) -> bool {
        // SAFETY: the call has no conditions.
        let pidfd = unsafe { libc::syscall(libc::SYS_pidfd_open, worker, 0) };
        if pidfd < 0 {
            return false;
        }
        let pidfd = pidfd as i32;
        // The pidfd is that of the worker if the pid is still related to the process that was
        // started.
        let is_worker = worker == self.process.id() || parent_of(worker) == Some(self.process.id());
        // SAFETY: the fd is a pidfd, and there is no further information to send. It is closed
        // once.
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

/// A run.
pub struct Campaign<'s> {
    settings: &'s Settings,
    shared: &'static Shared,
    random: Rng,
    running: Vec<Option<Running>>,
    incarnations: u64,
    run: u32,
}

impl<'s> Campaign<'s> {
    /// Makes the shared file.
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

    /// Runs to the end. Returns whether all promises were kept.
    pub fn run(mut self) -> bool {
        let before = ProcessSnapshot::of_pid(std::process::id());
        let end = Instant::now() + Duration::from_secs(self.settings.seconds);
        let mut next_signal = Instant::now();
        let mut last_turn = Instant::now();
        while Instant::now() < end {
            let overloaded = last_turn.elapsed() > LONG_PAUSE;
            last_turn = Instant::now();
            for place in 0..self.running.len() {
                self.reap(place);
                if self.running[place].is_none() {
                    self.start(place, end);
                }
                self.resume(place, false);
                self.watch(place, overloaded);
            }
            if self.settings.signals && Instant::now() >= next_signal {
                let pause = self.random.below(BETWEEN_SIGNALS.as_micros() as u64);
                next_signal = Instant::now() + Duration::from_micros(pause);
                self.disturb();
            }
            std::thread::sleep(Duration::from_millis(2));
        }
        self.finish();
        self.look_for_leftovers(&before);
        self.sum_up()
    }

    fn start(&mut self, place: usize, end: Instant) {
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
        let identity = Identity { place, incarnation };
        let seed = self.random.next_u64();
        let assignment = Assignment { run: self.run, identity, seed, life, role, namespace };
        let mut arguments = assignment.arguments();
        if namespace {
            arguments.insert(0, "in-namespace".to_owned());
        }
        self.shared.workers[place].begin(incarnation);
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
                self.running[place] =
                    Some(Running { process, incarnation, role, stopped_until: None, watches });
            }
            Err(error) => {
                self.shared.workers[place].incarnation.store(0, Ordering::SeqCst);
                broken(Promise::Interface, format_args!("a worker cannot be started: {error}"));
                std::thread::sleep(Duration::from_millis(200));
            }
        }
    }

    /// Takes note of a worker that has ended.
    fn reap(&mut self, place: usize) {
        let Some(running) = &mut self.running[place] else { return };
        let Ok(Some(status)) = running.process.try_wait() else { return };
        let state = &self.shared.workers[place];
        let expected = state.ending.load(Ordering::SeqCst) >= running.incarnation;
        if !ended_well(status, expected) {
            broken(
                Promise::NoCrash,
                format_args!(
                    "worker {place} incarnation {} ({:?}) ended: {status}",
                    running.incarnation, running.role
                ),
            );
        }
        state.ending.store(running.incarnation, Ordering::SeqCst);
        state.incarnation.store(0, Ordering::SeqCst);
        self.running[place] = None;
    }

    /// Continues a stopped worker when its time is up, or at once.
    fn resume(&mut self, place: usize, at_once: bool) {
        let pid = self.shared.workers[place].pid.load(Ordering::SeqCst);
        let Some(running) = &mut self.running[place] else { return };
        if running.stopped_until.is_some_and(|until| at_once || Instant::now() >= until) {
            running.signal(pid, libc::SIGCONT);
            running.stopped_until = None;
            running.watches.iter_mut().for_each(Watch::restart);
        }
    }

    /// Looks whether each thread of a worker progresses. A worker that hangs is reported and
    /// killed.
    fn watch(&mut self, place: usize, overloaded: bool) {
        let state = &self.shared.workers[place];
        let pid = state.pid.load(Ordering::SeqCst);
        let Some(running) = &mut self.running[place] else { return };
        if overloaded || running.stopped_until.is_some() || pid == 0 {
            return running.watches.iter_mut().for_each(Watch::restart);
        }
        let mut hung = None;
        for (thread, (watch, progress)) in running.watches.iter_mut().zip(state.progress()).enumerate() {
            let Some((progress, activity)) = progress else {
                watch.restart();
                continue;
            };
            if let Some(description) = watch.look(pid, progress) {
                hung = Some(format!("thread {thread} of it ({}): {description}", activity_name(activity)));
            }
        }
        if let Some(description) = hung {
            broken(Promise::NoHang, format_args!("worker {place} pid {pid}, {description}"));
            state.ending.store(running.incarnation, Ordering::SeqCst);
            running.signal(pid, libc::SIGKILL);
        }
    }

    /// Kills or stops a worker, or leaves all alone.
    fn disturb(&mut self) {
        let place = self.random.below(self.running.len() as u64) as usize;
        let state = &self.shared.workers[place];
        let pid = state.pid.load(Ordering::SeqCst);
        let Some(running) = &mut self.running[place] else { return };
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
                let pause = Duration::from_micros(self.random.below(STOPPED.as_micros() as u64));
                running.stopped_until = Some(Instant::now() + pause);
            }
            _ => {}
        }
    }

    /// Ends all workers. A worker that does not end is reported when it makes no progress.
    fn finish(&mut self) {
        for place in 0..self.running.len() {
            self.resume(place, true);
        }
        self.shared.stop();
        let mut last_turn = Instant::now();
        while self.running.iter().any(Option::is_some) {
            let overloaded = last_turn.elapsed() > LONG_PAUSE;
            last_turn = Instant::now();
            for place in 0..self.running.len() {
                self.reap(place);
                self.watch(place, overloaded);
            }
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    /// Looks for processes, names, fds and children that are left of the run.
    fn look_for_leftovers(&self, before: &ProcessSnapshot) {
        let mut left = processes_of(self.run);
        for _ in 0..LOOKS_AT_END {
            if left.is_empty() {
                break;
            }
            std::thread::sleep(PAUSE_AT_END);
            left = processes_of(self.run);
        }
        for pid in left {
            let what = liveness::describe(pid);
            broken(Promise::NothingLeft, format_args!("process {pid} is left of the run\n{what}"));
            // SAFETY: the process has this run's tag among its arguments, so it was started by this
            // run.
            unsafe { libc::kill(pid.cast_signed(), libc::SIGKILL) };
        }
        // Names are left by workers that were killed, and by those that ended while others held
        // their memory.
        let prefix = name_prefix(self.run);
        for folder in [std::path::Path::new("/dev/shm"), &std::env::temp_dir()] {
            for entry in std::fs::read_dir(folder).into_iter().flatten().flatten() {
                if entry.file_name().to_string_lossy().starts_with(&prefix) {
                    // Another look will not find it.
                    let _ = std::fs::remove_file(entry.path());
                }
            }
        }
        let now = ProcessSnapshot::of_pid(std::process::id());
        if now.fds != before.fds || now.children != before.children {
            broken(
                Promise::NothingLeft,
                format_args!("the campaign began with {before:?} and ends with {now:?}"),
            );
        }
    }

    fn sum_up(&self) -> bool {
        for (counter, name) in Counter::ALL {
            println!("hostile: {:>10} {name}", self.shared.value(*counter));
        }
        let broken = |promise: Promise| self.shared.violations[promise as usize].load(Ordering::SeqCst);
        let all: u64 = Promise::ALL.into_iter().map(broken).sum();
        for promise in Promise::ALL.into_iter().filter(|promise| broken(*promise) > 0) {
            println!("hostile: {:>10} violations of {promise}", broken(promise));
        }
        let (crashes, hangs) = (broken(Promise::NoCrash), broken(Promise::NoHang));
        println!("hostile: {} violations, {crashes} crashes, {hangs} hangs", all - crashes - hangs);
        let opened = self.shared.value(Counter::Opens) > 0;
        if !opened {
            println!("hostile: no block was opened, which tests nothing");
        }
        all == 0 && opened
    }
}

/// Runs in the child, before exec: the shared file is inherited, and the child does not outlive the
/// campaign.
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

/// Whether a worker ended by itself, or by SIGKILL of the campaign. A process that has a worker in
/// a pid namespace ends with the worker's status, and 137 for SIGKILL.
fn ended_well(status: ExitStatus, expected: bool) -> bool {
    let killed = status.signal() == Some(libc::SIGKILL) || status.code() == Some(128 + libc::SIGKILL);
    status.success() || killed && expected
}

/// The processes that have the tag of a run among their arguments.
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

/// Runs a worker as the first process of a new pid namespace, and ends as it does. Returns the exit
/// code.
pub fn in_namespace(arguments: &[String]) -> i32 {
    // SAFETY: affects the children of this process only.
    if unsafe { libc::unshare(libc::CLONE_NEWPID) } != 0 {
        broken(Promise::Interface, format_args!("unshare: {}", std::io::Error::last_os_error()));
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
            broken(
                Promise::Interface,
                format_args!("a worker in a pid namespace cannot be started: {error}"),
            );
            1
        }
    }
}
