//! [`Actor`]: the test's end of a process that obeys lines.

use std::fmt;
use std::fs::File;
use std::io::{Read, Write};
use std::os::fd::{AsRawFd, OwnedFd};
use std::time::{Duration, Instant};

use umf::Handle;

/// How long an answer may take, unless the test says more.
const PATIENCE: Duration = Duration::from_secs(10);

/// What an actor answered that was not `ok`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Failure {
    /// The variant of the error, such as `Stale`.
    pub variant: String,
    /// What a user would read.
    pub message: String,
}

/// What came of a command.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// It was answered.
    Answer(Result<String, Failure>),
    /// It has closed its end, as a process does that ends: none of its code runs any more. How it ended, [`Actor::reap`]
    /// says, which can take the kernel some seconds on a busy machine.
    Ended,
    /// Nothing, in time.
    Silent,
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.variant, self.message)
    }
}

/// A process of its own, related to the test by nothing but two pipes. Killed and reaped when dropped.
#[derive(Debug)]
pub struct Actor {
    pid: u32,
    pidfd: OwnedFd,
    input: Option<File>,
    output: File,
    pending: Vec<u8>,
    reaped: bool,
    /// Pidfds of processes that it forked.
    forked: Vec<OwnedFd>,
}

impl Actor {
    pub(crate) fn attach(pid: u32, pidfd: OwnedFd, input: OwnedFd, output: OwnedFd) -> Self {
        Self {
            pid,
            pidfd,
            input: Some(input.into()),
            output: output.into(),
            pending: Vec::new(),
            reaped: false,
            forked: Vec::new(),
        }
    }

    /// Its process id.
    #[must_use]
    pub fn pid(&self) -> u32 {
        self.pid
    }

    /// Sends a command; the answer is awaited by [`Actor::answer`].
    ///
    /// # Panics
    /// If the process is gone.
    pub fn send(&mut self, command: &str) {
        assert!(self.try_send(command), "actor {} is gone before {command:?}", self.pid);
    }

    /// As [`Actor::send`]; `false` if the process is gone.
    pub fn try_send(&mut self, command: &str) -> bool {
        let line = format!("{command}\n");
        self.input.as_mut().is_some_and(|input| input.write_all(line.as_bytes()).is_ok())
    }

    /// Waits for the answer to a command.
    ///
    /// # Errors
    /// What the actor answers with `err`.
    ///
    /// # Panics
    /// If there is none in time, or the process ended: a hang or a fault.
    pub fn answer(&mut self, patience: Duration) -> Result<String, Failure> {
        match self.outcome(patience) {
            Outcome::Answer(answer) => answer,
            Outcome::Ended => {
                let (pid, end) = (self.pid, self.reap());
                panic!("actor {pid} ended instead of answering: {end}");
            }
            Outcome::Silent => panic!("actor {} does not answer within {patience:?}: a hang", self.pid),
        }
    }

    /// Waits for what comes of a command: of an actor that may be killed meanwhile.
    ///
    /// # Panics
    /// If it answers what is no answer.
    pub fn outcome(&mut self, patience: Duration) -> Outcome {
        let end = Instant::now() + patience;
        let line = loop {
            if let Some(length) = self.pending.iter().position(|&byte| byte == b'\n') {
                let rest = self.pending.split_off(length + 1);
                let mut line = std::mem::replace(&mut self.pending, rest);
                line.pop();
                break String::from_utf8(line).unwrap();
            }
            let left = end.saturating_duration_since(Instant::now());
            if !ready(&self.output, left) {
                return Outcome::Silent;
            }
            let mut bytes = [0; 65536];
            let count = self.output.read(&mut bytes).unwrap();
            if count == 0 {
                return Outcome::Ended;
            }
            self.pending.extend_from_slice(&bytes[..count]);
        };
        match line.split_once(' ').unwrap_or((&line, "")) {
            ("ok", rest) => Outcome::Answer(Ok(rest.to_owned())),
            ("err", rest) => {
                let (variant, message) = rest.split_once(' ').unwrap_or((rest, ""));
                Outcome::Answer(Err(Failure { variant: variant.to_owned(), message: message.to_owned() }))
            }
            _ => panic!("actor {} answered {line:?}", self.pid),
        }
    }

    /// Sends a command and waits for its answer.
    ///
    /// # Errors
    /// What the actor answers with `err`.
    pub fn ask(&mut self, command: &str) -> Result<String, Failure> {
        self.ask_for(command, PATIENCE)
    }

    /// As [`Actor::ask`], with another bound on the wait.
    ///
    /// # Errors
    /// What the actor answers with `err`.
    pub fn ask_for(&mut self, command: &str, patience: Duration) -> Result<String, Failure> {
        self.send(command);
        self.answer(patience)
    }

    /// As [`Actor::ask`], for what must work.
    ///
    /// # Panics
    /// If it does not.
    #[track_caller]
    pub fn ok(&mut self, command: &str) -> String {
        self.ask(command).unwrap_or_else(|failure| panic!("{}: {failure}", shown(command)))
    }

    /// As [`Actor::ask`], for what must fail with the variant given; returns the message.
    ///
    /// # Panics
    /// If it works, or fails otherwise.
    #[track_caller]
    pub fn fails(&mut self, command: &str, variant: &str) -> String {
        match self.ask(command) {
            Ok(answer) => panic!("{} works ({answer}) and should fail as {variant}", shown(command)),
            Err(failure) => {
                assert_eq!(failure.variant, variant, "{}: {failure}", shown(command));
                failure.message
            }
        }
    }

    /// The handle that a command answers with.
    ///
    /// # Panics
    /// If it does not.
    #[track_caller]
    pub fn handle(&mut self, command: &str) -> Handle {
        self.ok(command).parse().unwrap()
    }

    /// Asserts that a block or mapping holds what `fill` put there with this seed.
    ///
    /// # Panics
    /// If it holds anything else.
    #[track_caller]
    pub fn check(&mut self, name: &str, seed: u64) {
        assert_eq!(
            self.ok(&format!("check {name} {seed}")),
            "same",
            "contents of {name} in actor {}",
            self.pid
        );
    }

    /// One number out of an answer of the form `a=1 b=2`.
    ///
    /// # Panics
    /// If it is not there.
    #[track_caller]
    pub fn number(&mut self, command: &str, key: &str) -> u64 {
        let answer = self.ok(command);
        let mut pairs = answer.split(' ').filter_map(|pair| pair.split_once('='));
        pairs
            .find(|(name, _)| *name == key)
            .unwrap_or_else(|| panic!("no {key} in {answer}"))
            .1
            .parse()
            .unwrap()
    }

    /// Forks the actor; commands that begin with `child` go to the child. Returns the child's pid.
    ///
    /// # Panics
    /// If it cannot.
    pub fn fork(&mut self) -> u32 {
        let pid: u32 = self.ok("fork").parse().unwrap();
        // SAFETY: no memory is touched; the process is the actor's child, which waits for a command.
        let pidfd = unsafe { libc::syscall(libc::SYS_pidfd_open, pid, 0) };
        assert!(pidfd >= 0, "{}", std::io::Error::last_os_error());
        // SAFETY: a new fd that nobody else owns.
        self.forked.push(unsafe { std::os::fd::FromRawFd::from_raw_fd(i32::try_from(pidfd).unwrap()) });
        pid
    }

    /// Sends it a signal, by pidfd.
    ///
    /// # Panics
    /// If it is gone.
    pub fn signal(&self, signal: i32) {
        assert!(send_signal(&self.pidfd, signal), "{}", std::io::Error::last_os_error());
    }

    /// Stops it with SIGSTOP, and waits until all of its threads have stopped.
    ///
    /// # Panics
    /// If they do not.
    pub fn stop(&self) {
        self.signal(libc::SIGSTOP);
        let is_stopped = |task: std::io::Result<std::fs::DirEntry>| {
            let stat = std::fs::read_to_string(task.unwrap().path().join("stat")).unwrap();
            stat.rsplit_once(") ").is_some_and(|(_, fields)| fields.starts_with('T'))
        };
        let end = Instant::now() + PATIENCE;
        while !std::fs::read_dir(format!("/proc/{}/task", self.pid)).unwrap().all(is_stopped) {
            assert!(Instant::now() < end, "actor {} does not stop", self.pid);
            std::thread::yield_now();
        }
    }

    /// Kills it with SIGKILL and reaps it.
    ///
    /// # Panics
    /// If it is gone already.
    pub fn kill(&mut self) {
        self.signal(libc::SIGKILL);
        assert_eq!(self.reap(), "signal 9");
    }

    /// Kills it and leaves it as a zombie.
    ///
    /// # Panics
    /// If it is gone already.
    pub fn kill_unreaped(&mut self) {
        self.signal(libc::SIGKILL);
        assert!(ready(&self.pidfd, PATIENCE), "a killed process ends");
    }

    /// Lets it end by itself; it must do so with code 0 and leave no child.
    ///
    /// # Panics
    /// If it does otherwise.
    pub fn finish(mut self) {
        self.send("exit");
        assert_eq!(self.reap(), "code 0", "end of actor {}", self.pid);
    }

    /// Whether its end was waited for.
    #[must_use]
    pub fn is_reaped(&self) -> bool {
        self.reaped
    }

    /// Waits for its end.
    ///
    /// # Panics
    /// If it does not end in time.
    pub fn reap(&mut self) -> String {
        assert!(ready(&self.pidfd, PATIENCE), "actor {} does not end: a hang", self.pid);
        if self.reaped {
            return "reaped before".to_owned();
        }
        // SAFETY: zeroes are a value of this plain structure.
        let mut info: libc::siginfo_t = unsafe { std::mem::zeroed() };
        // SAFETY: the structure is valid for the write; the pidfd is of this process's own child.
        let waited = unsafe {
            libc::waitid(libc::P_PIDFD, self.pidfd.as_raw_fd().cast_unsigned(), &raw mut info, libc::WEXITED)
        };
        assert_eq!(waited, 0, "{}", std::io::Error::last_os_error());
        self.reaped = true;
        // SAFETY: waitid filled the structure in for a child.
        let status = unsafe { info.si_status() };
        if info.si_code == libc::CLD_EXITED { format!("code {status}") } else { format!("signal {status}") }
    }
}

impl Drop for Actor {
    fn drop(&mut self) {
        self.input = None;
        for pidfd in &self.forked {
            send_signal(pidfd, libc::SIGKILL);
        }
        if !self.reaped {
            send_signal(&self.pidfd, libc::SIGKILL);
            // Reaping asserts that it ends, which must not be a second panic.
            if !std::thread::panicking() || ready(&self.pidfd, PATIENCE) {
                self.reap();
            }
        }
    }
}

fn shown(command: &str) -> String {
    let words = command.split(' ').map(|word| if word.len() > 40 { &word[..12] } else { word });
    format!("{:?}", words.collect::<Vec<_>>().join(" "))
}

fn send_signal(pidfd: &OwnedFd, signal: i32) -> bool {
    let none: *const libc::siginfo_t = std::ptr::null();
    // SAFETY: no memory is passed.
    unsafe { libc::syscall(libc::SYS_pidfd_send_signal, pidfd.as_raw_fd(), signal, none, 0) == 0 }
}

fn ready(fd: &impl AsRawFd, patience: Duration) -> bool {
    let mut poll = libc::pollfd { fd: fd.as_raw_fd(), events: libc::POLLIN, revents: 0 };
    // SAFETY: one valid structure.
    let count = unsafe { libc::poll(&raw mut poll, 1, i32::try_from(patience.as_millis()).unwrap() + 1) };
    count > 0
}
