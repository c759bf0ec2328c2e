//! [`Child`]: a producer or an importer that a test starts, commands and kills.

use std::collections::{BTreeMap, HashSet};
use std::io::{BufRead, BufReader, Write};
use std::process::{ChildStdin, Command, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::{Duration, Instant};

use crate::machine;
use crate::patience::Patience;

pub(crate) const ROLE: &str = "TESTS_REMOTE_ROLE";
pub(crate) const SETTINGS: &str = "TESTS_REMOTE_SETTINGS";
pub(crate) const USER: &str = "TESTS_REMOTE_USER";
/// A command in front of that of a producer, such as one that enters a network namespace.
const PRODUCER: &str = "TESTS_REMOTE_PRODUCER";
/// What lines of children begin with.
const MARK: &str = "umf-child: ";

/// How long a test waits for anything. No time that a test sets is as long.
pub(crate) const LONG: Duration = Duration::from_secs(60);

/// Prints a line for the test that started this process.
pub(crate) fn say(text: &str) {
    let mut output = std::io::stdout().lock();
    // The harness may have begun a line.
    let _ = write!(output, "\n{MARK}{text}\n");
    let _ = output.flush();
}

/// Calls `obey` with the words of each command, and prints its replies, until the test ends.
pub(crate) fn obey(mut obey: impl FnMut(&[&str]) -> Option<String>) {
    for line in std::io::stdin().lock().lines() {
        let Ok(line) = line else { return };
        let words: Vec<&str> = line.split_whitespace().collect();
        match words.as_slice() {
            ["quit"] => return,
            words => {
                if let Some(reply) = obey(words) {
                    say(&reply);
                }
            }
        }
    }
}

/// Returns the name of an error's variant.
pub(crate) fn kind(error: &umf_remote::Error) -> String {
    format!("{error:?}").chars().take_while(|letter| letter.is_alphanumeric()).collect()
}

/// Limits the fds of this process: it can open `more`, or as many as the system permits.
pub(crate) fn limit_fds(more: Option<u64>) {
    let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    let set = |limit: &libc::rlimit| {
        // SAFETY: `limit` is valid.
        assert_eq!(unsafe { libc::setrlimit(libc::RLIMIT_NOFILE, limit) }, 0);
    };
    // SAFETY: `limit` is valid.
    assert_eq!(unsafe { libc::getrlimit(libc::RLIMIT_NOFILE, &raw mut limit) }, 0);
    limit.rlim_cur = limit.rlim_max;
    set(&limit);
    let Some(more) = more else { return };
    // umf keeps some fds at high numbers.
    let entries = std::fs::read_dir("/proc/self/fd").unwrap();
    let names = entries.flatten().filter_map(|entry| entry.file_name().to_str()?.parse::<u64>().ok());
    // The folder's own fd is closed by now.
    let is_open = |number: &u64| std::fs::read_link(format!("/proc/self/fd/{number}")).is_ok();
    let open: HashSet<u64> = names.collect::<Vec<_>>().into_iter().filter(is_open).collect();
    let first_refused = (0..).filter(|number| !open.contains(number)).nth(more as usize);
    limit.rlim_cur = first_refused.unwrap().min(limit.rlim_max);
    set(&limit);
}

/// A process in a role. Dropping it kills the process.
pub(crate) struct Child {
    child: std::process::Child,
    input: Option<ChildStdin>,
    lines: Receiver<String>,
    /// What it said first.
    pub ready: String,
}

impl Child {
    /// Starts a process. Returns `None` if there is no libfabric, and prints that.
    pub(crate) fn start(test: &str, role: &str, changes: &str) -> Option<Self> {
        Self::start_with(test, role, changes, |_| {})
    }

    /// As [`Child::start`], with changes of the command.
    pub(crate) fn start_with(
        test: &str,
        role: &str,
        changes: &str,
        change: impl FnOnce(&mut Command),
    ) -> Option<Self> {
        let prefix = std::env::var(PRODUCER).ok().filter(|_| role == "producer").unwrap_or_default();
        let program = std::env::current_exe().unwrap();
        let mut words = prefix.split_whitespace().map(std::ffi::OsStr::new).chain([program.as_os_str()]);
        let mut command = Command::new(words.next().unwrap());
        command.args(words).args(["--exact", "role_of_this_process", "--nocapture"]);
        command.env(ROLE, role).env(SETTINGS, changes).stdin(Stdio::piped()).stdout(Stdio::piped());
        change(&mut command);
        let mut child = command.spawn().unwrap();
        let (input, output) = (child.stdin.take(), child.stdout.take().unwrap());
        let (sender, lines) = channel();
        std::thread::spawn(move || {
            for line in BufReader::new(output).lines().map_while(Result::ok) {
                if let Some((_, text)) = line.split_once(MARK)
                    && sender.send(text.to_owned()).is_err()
                {
                    return;
                }
            }
        });
        let mut child = Self { child, input, lines, ready: String::new() };
        child.ready = child.reply();
        if let Some(why) = child.ready.strip_prefix("skip ") {
            machine::skip(test, why);
            return None;
        }
        Some(child)
    }

    pub(crate) fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Sends a command. One that has ended reads nothing.
    pub(crate) fn tell(&mut self, command: &str) {
        let _ = writeln!(self.input.as_mut().unwrap(), "{command}");
    }

    /// Returns the next line.
    ///
    /// # Panics
    /// If it does not come, or the process has ended.
    #[track_caller]
    pub(crate) fn reply(&mut self) -> String {
        let mut patience = Patience::new(LONG);
        while let Some(wait) = patience.next_wait() {
            match self.lines.recv_timeout(wait) {
                Ok(line) => return line,
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => panic!("it has ended: {:?}", self.child.wait()),
            }
        }
        panic!("process {} does not reply", self.pid());
    }

    /// Sends a command, and returns the reply.
    #[track_caller]
    pub(crate) fn ask(&mut self, command: &str) -> String {
        self.tell(command);
        self.reply()
    }

    /// Sends a command that succeeds with this reply.
    #[track_caller]
    pub(crate) fn does(&mut self, command: &str, reply: &str) {
        assert_eq!(self.ask(command), reply, "{command}");
    }

    /// Asks until the reply is accepted.
    #[track_caller]
    pub(crate) fn ask_until(&mut self, command: &str, mut accept: impl FnMut(&str) -> bool) -> String {
        let mut patience = Patience::new(LONG);
        loop {
            let reply = self.ask(command);
            if accept(&reply) {
                return reply;
            }
            assert!(patience.sleep(), "{command}: {reply}");
        }
    }

    pub(crate) fn signal(&self, signal: i32) {
        // SAFETY: a child that was not waited for.
        assert_eq!(unsafe { libc::kill(self.pid() as i32, signal) }, 0);
    }

    /// Stops the process, and waits until all its threads have stopped.
    pub(crate) fn freeze(&self) {
        self.signal(libc::SIGSTOP);
        let pid = libc::pid_t::try_from(self.pid()).unwrap();
        // SAFETY: a child of this process; the status is not asked for.
        assert_eq!(unsafe { libc::waitpid(pid, std::ptr::null_mut(), libc::WUNTRACED) }, pid);
    }

    pub(crate) fn thaw(&self) {
        self.signal(libc::SIGCONT);
    }

    pub(crate) fn kill(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }

    pub(crate) fn holds(&self) -> Held {
        Held::of(self.pid())
    }

    /// Waits until the process has no more than this.
    #[track_caller]
    pub(crate) fn has_again(&self, before: &Held) {
        let mut patience = Patience::new(Duration::from_secs(20));
        while patience.sleep() {
            if self.holds().is_within(before) {
                return;
            }
        }
        panic!("process {} has {:?}, and had {before:?}", self.pid(), self.holds());
    }
}

impl Drop for Child {
    fn drop(&mut self) {
        self.kill();
    }
}

/// Waits until something is so.
#[track_caller]
pub(crate) fn wait_until(what: &str, mut is_so: impl FnMut() -> bool) {
    let mut patience = Patience::new(LONG);
    while !is_so() {
        assert!(patience.sleep(), "never: {what}");
    }
}

/// Kernel objects of a process.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Held {
    /// Fds of each kind.
    fds: BTreeMap<String, usize>,
    /// Mappings of shared memory.
    mappings: usize,
    threads: usize,
}

impl Held {
    fn of(pid: u32) -> Self {
        let mut fds = BTreeMap::new();
        for entry in std::fs::read_dir(format!("/proc/{pid}/fd")).unwrap().flatten() {
            let Ok(link) = std::fs::read_link(entry.path()) else { continue };
            let link = link.to_string_lossy();
            let kind = link.split_once(":[").map_or(&*link, |(kind, _)| kind);
            *fds.entry(kind.to_owned()).or_default() += 1;
        }
        let maps = std::fs::read_to_string(format!("/proc/{pid}/maps")).unwrap();
        let is_shared = |line: &&str| line.split_whitespace().nth(1).is_some_and(|mode| mode.ends_with('s'));
        let mappings = maps.lines().filter(is_shared).count();
        let threads = std::fs::read_dir(format!("/proc/{pid}/task")).unwrap().count();
        Self { fds, mappings, threads }
    }
}

impl Held {
    /// Returns whether nothing is more than before.
    fn is_within(&self, before: &Self) -> bool {
        let is_within =
            |(kind, count): (&String, &usize)| *count <= before.fds.get(kind).copied().unwrap_or(0);
        self.fds.iter().all(is_within) && self.mappings <= before.mappings && self.threads <= before.threads
    }
}

/// Prints how long something took. Tests do not check it.
pub(crate) fn note_time(what: &str, since: Instant) {
    println!("{what}: {} ms", since.elapsed().as_millis());
}
