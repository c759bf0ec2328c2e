//! [`Spawn`] starts an actor process, [`Actor`] sends it commands and reads the answers.
//!
//! An actor is the program `umf-actor` (`src/actor/`). It shares only two pipes with the test. It
//! reads one command per line, and answers each with one line.

use std::ffi::{CString, OsString};
use std::fmt;
use std::fs::File;
use std::io::{self, Read, Write};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::time::Duration;

use umf::Handle;

use crate::Patience;

/// Default limit for an answer.
const TIMEOUT: Duration = Duration::from_secs(10);

/// Error answer of an actor.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Failure {
    /// Name of the error's variant, such as `Stale`.
    pub variant: String,
    /// Text of the error, as a user reads it.
    pub message: String,
}

/// Result of a command to an actor that may be killed meanwhile.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// The actor answered.
    Answer(Result<String, Failure>),
    /// The kernel closed the actor's pipe: the process is ending and runs no more code.
    /// [`Actor::reap`] returns its exit status, which can take seconds on a busy machine.
    Ended,
    /// The actor did not answer in time.
    TimedOut,
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.variant, self.message)
    }
}

/// Actor process. Dropping it kills and reaps the process.
#[derive(Debug)]
pub struct Actor {
    pid: u32,
    pidfd: OwnedFd,
    input: Option<File>,
    output: File,
    pending: Vec<u8>,
    reaped: bool,
    /// Pidfds of the children that the actor forked.
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

    /// Returns the process id.
    #[must_use]
    pub fn pid(&self) -> u32 {
        self.pid
    }

    /// Sends a command without waiting. [`Actor::answer`] waits for the answer.
    ///
    /// # Panics
    /// If the process is gone.
    pub fn send(&mut self, command: &str) {
        assert!(self.try_send(command), "actor {} is gone before {command:?}", self.pid);
    }

    /// Sends a command without waiting. Returns `false` if the process is gone.
    pub fn try_send(&mut self, command: &str) -> bool {
        let line = format!("{command}\n");
        self.input.as_mut().is_some_and(|input| input.write_all(line.as_bytes()).is_ok())
    }

    /// Waits for the answer to a command.
    ///
    /// # Errors
    /// The actor's error answer.
    ///
    /// # Panics
    /// If the process ends, or does not answer within `timeout`, as [`Patience`] counts it.
    pub fn answer(&mut self, timeout: Duration) -> Result<String, Failure> {
        match self.outcome(timeout) {
            Outcome::Answer(answer) => answer,
            Outcome::Ended => {
                let (pid, end) = (self.pid, self.reap());
                panic!("actor {pid} ended instead of answering: {end}");
            }
            Outcome::TimedOut => panic!("actor {} does not answer within {timeout:?}: a hang", self.pid),
        }
    }

    /// Waits up to `timeout` (as [`Patience`] counts it) for the answer or the end of an actor that may be killed meanwhile.
    ///
    /// # Panics
    /// If the answer begins with neither `ok` nor `err`.
    pub fn outcome(&mut self, timeout: Duration) -> Outcome {
        let mut patience = Patience::new(timeout);
        let line = loop {
            if let Some(length) = self.pending.iter().position(|&byte| byte == b'\n') {
                let rest = self.pending.split_off(length + 1);
                let mut line = std::mem::replace(&mut self.pending, rest);
                line.pop();
                break String::from_utf8(line).unwrap();
            }
            let Some(wait) = patience.next_wait() else { return Outcome::TimedOut };
            if !ready(&self.output, wait) {
                continue;
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

    /// Sends a command and waits up to 10 s for its answer.
    ///
    /// # Errors
    /// The actor's error answer.
    pub fn ask(&mut self, command: &str) -> Result<String, Failure> {
        self.ask_within(command, TIMEOUT)
    }

    /// Sends a command and waits up to `timeout` for its answer.
    ///
    /// # Errors
    /// The actor's error answer.
    pub fn ask_within(&mut self, command: &str, timeout: Duration) -> Result<String, Failure> {
        self.send(command);
        self.answer(timeout)
    }

    /// Sends a command that must succeed, and returns its answer.
    ///
    /// # Panics
    /// If the command fails.
    #[track_caller]
    pub fn ok(&mut self, command: &str) -> String {
        self.ask(command).unwrap_or_else(|failure| panic!("{}: {failure}", abbreviate(command)))
    }

    /// Sends a command that must fail with an error of this variant, and returns the error's text.
    ///
    /// # Panics
    /// If the command succeeds, or fails with another variant.
    #[track_caller]
    pub fn fails(&mut self, command: &str, variant: &str) -> String {
        match self.ask(command) {
            Ok(answer) => panic!("{} works ({answer}) and should fail as {variant}", abbreviate(command)),
            Err(failure) => {
                assert_eq!(failure.variant, variant, "{}: {failure}", abbreviate(command));
                failure.message
            }
        }
    }

    /// Sends a command that must answer with a handle, and returns the handle.
    ///
    /// # Panics
    /// If the answer is not a handle.
    #[track_caller]
    pub fn handle(&mut self, command: &str) -> Handle {
        self.ok(command).parse().unwrap()
    }

    /// Asserts that a block or mapping holds what the command `fill` wrote with this seed.
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

    /// Sends a command and returns the number of `key` in its answer, which has the form `a=1 b=2`.
    ///
    /// # Panics
    /// If the answer has no such key.
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

    /// Forks the actor and returns the child's pid. The actor forwards commands that begin with
    /// `child` to the child.
    ///
    /// # Panics
    /// If the actor cannot fork.
    pub fn fork(&mut self) -> u32 {
        let pid: u32 = self.ok("fork").parse().unwrap();
        // SAFETY: no memory is touched; the process is the actor's child, which waits for a
        // command.
        let pidfd = unsafe { libc::syscall(libc::SYS_pidfd_open, pid, 0) };
        assert!(pidfd >= 0, "{}", io::Error::last_os_error());
        // SAFETY: the fd is new, and owned here alone.
        self.forked.push(unsafe { OwnedFd::from_raw_fd(i32::try_from(pidfd).unwrap()) });
        pid
    }

    /// Sends the process a signal, by its pidfd.
    ///
    /// # Panics
    /// If the process is gone.
    pub fn signal(&self, signal: i32) {
        assert!(send_signal(&self.pidfd, signal), "{}", io::Error::last_os_error());
    }

    /// Sends SIGSTOP and waits until all threads have stopped.
    ///
    /// # Panics
    /// If they do not stop in time.
    pub fn stop(&self) {
        self.signal(libc::SIGSTOP);
        let is_stopped = |task: io::Result<std::fs::DirEntry>| {
            let stat = std::fs::read_to_string(task.unwrap().path().join("stat")).unwrap();
            stat.rsplit_once(") ").is_some_and(|(_, fields)| fields.starts_with('T'))
        };
        let mut patience = Patience::new(TIMEOUT);
        while !std::fs::read_dir(format!("/proc/{}/task", self.pid)).unwrap().all(is_stopped) {
            assert!(patience.sleep(), "actor {} does not stop", self.pid);
        }
    }

    /// Kills the process with SIGKILL and reaps it.
    ///
    /// # Panics
    /// If the process is gone already.
    pub fn kill(&mut self) {
        self.signal(libc::SIGKILL);
        assert_eq!(self.reap(), "signal 9");
    }

    /// Kills the process with SIGKILL and leaves it as a zombie.
    ///
    /// # Panics
    /// If the process is gone already.
    pub fn kill_unreaped(&mut self) {
        self.signal(libc::SIGKILL);
        assert!(ready_in_time(&self.pidfd), "a killed process ends");
    }

    /// Sends `exit` and reaps the process.
    ///
    /// # Panics
    /// If the exit code is not 0.
    pub fn finish(mut self) {
        self.send("exit");
        assert_eq!(self.reap(), "code 0", "end of actor {}", self.pid);
    }

    /// Returns whether the process was reaped.
    #[must_use]
    pub fn is_reaped(&self) -> bool {
        self.reaped
    }

    /// Waits for the end of the process and returns `code N` or `signal N`.
    ///
    /// # Panics
    /// If the process does not end in time.
    pub fn reap(&mut self) -> String {
        assert!(ready_in_time(&self.pidfd), "actor {} does not end: a hang", self.pid);
        if self.reaped {
            return "reaped before".to_owned();
        }
        // SAFETY: zeroes are a value of this plain structure.
        let mut info: libc::siginfo_t = unsafe { std::mem::zeroed() };
        // SAFETY: the structure is valid for the write; the pidfd is of this process's own child.
        let waited = unsafe {
            libc::waitid(libc::P_PIDFD, self.pidfd.as_raw_fd().cast_unsigned(), &raw mut info, libc::WEXITED)
        };
        assert_eq!(waited, 0, "{}", io::Error::last_os_error());
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
            // `reap` panics if the process does not end. A second panic would abort the test
            // program.
            if !std::thread::panicking() || ready_in_time(&self.pidfd) {
                self.reap();
            }
        }
    }
}

/// Shortens the handles in a command for a message.
fn abbreviate(command: &str) -> String {
    let words = command.split(' ').map(|word| if word.len() > 40 { &word[..12] } else { word });
    format!("{:?}", words.collect::<Vec<_>>().join(" "))
}

fn send_signal(pidfd: &OwnedFd, signal: i32) -> bool {
    let none: *const libc::siginfo_t = std::ptr::null();
    // SAFETY: no memory is passed.
    unsafe { libc::syscall(libc::SYS_pidfd_send_signal, pidfd.as_raw_fd(), signal, none, 0) == 0 }
}

fn ready(fd: &impl AsRawFd, timeout: Duration) -> bool {
    let mut poll = libc::pollfd { fd: fd.as_raw_fd(), events: libc::POLLIN, revents: 0 };
    // SAFETY: one valid structure.
    let count = unsafe { libc::poll(&raw mut poll, 1, i32::try_from(timeout.as_millis()).unwrap() + 1) };
    count > 0
}

/// Waits up to [`TIMEOUT`] until an fd is readable.
fn ready_in_time(fd: &impl AsRawFd) -> bool {
    let mut patience = Patience::new(TIMEOUT);
    while let Some(wait) = patience.next_wait() {
        if ready(fd, wait) {
            return true;
        }
    }
    false
}

/// Builder of an [`Actor`]. The process inherits only the two pipes, and no variables `UMF_*`.
#[derive(Clone, Debug)]
pub struct Spawn {
    program: CString,
    variables: Vec<(OsString, OsString)>,
    namespaces: i32,
    pid: Option<i32>,
    directory: Option<CString>,
}

impl Spawn {
    /// Creates a builder for the program at `path`, or at `TESTS_ACTOR` if that variable is set.
    #[must_use]
    pub fn new(path: impl AsRef<Path>) -> Self {
        // `tests/cuda/run` moves the program out of the build folder.
        let moved = std::env::var_os("TESTS_ACTOR").map(std::path::PathBuf::from);
        let path = moved.as_deref().unwrap_or(path.as_ref());
        let variables =
            std::env::vars_os().filter(|(name, _)| !name.as_bytes().starts_with(b"UMF_")).collect();
        let program = CString::new(path.as_os_str().as_bytes()).unwrap();
        Self { program, variables, namespaces: 0, pid: None, directory: None }
    }

    /// Sets an environment variable.
    #[must_use]
    pub fn env(mut self, name: &str, value: &str) -> Self {
        self.variables.push((name.into(), value.into()));
        self
    }

    /// Sets an environment variable to bytes that need not be UTF-8.
    #[must_use]
    pub fn env_bytes(mut self, name: &str, value: &[u8]) -> Self {
        self.variables.push((name.into(), std::ffi::OsStr::from_bytes(value).into()));
        self
    }

    /// Starts the process in new namespaces, given as `CLONE_NEW*` flags.
    #[must_use]
    pub fn namespaces(mut self, flags: i32) -> Self {
        self.namespaces |= flags;
        self
    }

    /// Starts the process with this process id, which must be free. Needs `CAP_CHECKPOINT_RESTORE`.
    #[must_use]
    pub fn pid(mut self, pid: u32) -> Self {
        self.pid = Some(pid.cast_signed());
        self
    }

    /// Starts the process in this working directory.
    #[must_use]
    pub fn directory(mut self, path: &Path) -> Self {
        self.directory = Some(CString::new(path.as_os_str().as_bytes()).unwrap());
        self
    }

    /// Starts the actor and waits until it answers.
    ///
    /// # Panics
    /// If the process cannot be started.
    #[must_use]
    pub fn start(self) -> Actor {
        self.try_start().unwrap_or_else(|error| panic!("the actor does not start: {error}"))
    }

    /// Starts the actor and waits until it answers.
    ///
    /// # Errors
    /// Those of `clone3(2)`.
    pub fn try_start(self) -> io::Result<Actor> {
        let (actor_input, input) = pipe()?;
        let (output, actor_output) = pipe()?;
        let variable = |(name, value): &(OsString, OsString)| {
            let mut pair = name.as_bytes().to_vec();
            pair.push(b'=');
            pair.extend_from_slice(value.as_bytes());
            CString::new(pair).unwrap()
        };
        let variables: Vec<CString> = self.variables.iter().map(variable).collect();
        let pointers = |texts: &[CString]| -> Vec<*const libc::c_char> {
            texts.iter().map(|text| text.as_ptr()).chain([std::ptr::null()]).collect()
        };
        let arguments = [self.program.clone()];
        let (argv, envp) = (pointers(&arguments), pointers(&variables));
        let mut pidfd: i32 = -1;
        // SAFETY: plain numbers, for which zero is a value.
        let mut request: libc::clone_args = unsafe { std::mem::zeroed() };
        request.flags = (libc::CLONE_PIDFD as u64) | u64::from(self.namespaces.cast_unsigned());
        request.pidfd = (&raw mut pidfd).expose_provenance() as u64;
        request.exit_signal = libc::SIGCHLD as u64;
        let wanted = self.pid.unwrap_or(0);
        if self.pid.is_some() {
            request.set_tid = (&raw const wanted).expose_provenance() as u64;
            request.set_tid_size = 1;
        }
        // SAFETY: the arguments are valid for the call. The child has a copy of all memory, as
        // after fork, and makes only system calls on what was prepared above.
        let pid =
            unsafe { libc::syscall(libc::SYS_clone3, &raw const request, size_of::<libc::clone_args>()) };
        if pid == 0 {
            // SAFETY: only async-signal-safe calls, with arguments that outlive them. The child
            // then calls exec or _exit.
            unsafe {
                libc::dup2(actor_input.as_raw_fd(), 0);
                libc::dup2(actor_output.as_raw_fd(), 1);
                // The actor must not outlive a test that is killed.
                libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL);
                if let Some(directory) = &self.directory {
                    libc::chdir(directory.as_ptr());
                }
                libc::execve(self.program.as_ptr(), argv.as_ptr(), envp.as_ptr());
                libc::_exit(127);
            }
        }
        if pid < 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: the kernel stored a new fd there.
        let pidfd = unsafe { OwnedFd::from_raw_fd(pidfd) };
        let mut actor = Actor::attach(u32::try_from(pid).unwrap(), pidfd, input, output);
        // Waits for exec. Until then the process has a copy of each fd and mapping of the test.
        actor.ok("ping");
        Ok(actor)
    }
}

fn pipe() -> io::Result<(OwnedFd, OwnedFd)> {
    let mut ends = [0; 2];
    // SAFETY: the array has room for two fds.
    if unsafe { libc::pipe2(ends.as_mut_ptr(), libc::O_CLOEXEC) } != 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the fds are new, and owned here alone.
    Ok(unsafe { (OwnedFd::from_raw_fd(ends[0]), OwnedFd::from_raw_fd(ends[1])) })
}

/// Name for an actor's shared memory in `/dev/shm`. Dropping it removes the name: a failing test
/// kills its actors before they can.
#[derive(Debug)]
pub struct ShmName(String);

impl ShmName {
    /// Creates the name for a purpose of an actor.
    #[must_use]
    pub fn new(actor: &Actor, purpose: &str) -> Self {
        Self(format!("/umf-tests-{}-{purpose}", actor.pid()))
    }
}

impl fmt::Display for ShmName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl Drop for ShmName {
    fn drop(&mut self) {
        // The actor has usually removed it.
        let _ = std::fs::remove_file(format!("/dev/shm{}", self.0));
    }
}
