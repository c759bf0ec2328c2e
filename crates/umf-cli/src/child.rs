//! Child processes of this command: the same program, exchanging lines of JSON over a socket pair;
//! and other programs, of which the output is read ([`output_of`]).
//!
//! A child is started by `exec`, so it shares no memory with this process or with other children.
//! Each wait has a time limit. A child is killed when its [`Child`] is dropped and when this
//! process dies.

use std::io::{BufRead, BufReader, ErrorKind, Read, Write};
use std::net::Shutdown;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::Path;
use std::process::{Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec};
use serde::Serialize;
use serde::de::DeserializeOwned;

/// The longest wait for the exit of a child that was killed or whose channel was closed.
const EXIT_TIMEOUT: Duration = Duration::from_secs(5);
/// The interval between two calls of the `tick` callback while a reply is awaited.
const TICK_INTERVAL: Duration = Duration::from_millis(100);

/// A child that runs this program. Killed when dropped.
pub(crate) struct Child {
    process: std::process::Child,
    channel: BufReader<UnixStream>,
}

/// The reason why a child sent no reply.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ChildError {
    #[error("was killed by a seccomp filter for a system call")]
    SeccompKill,
    #[error("exited ({0})")]
    Exited(ExitStatus),
    #[error("did not answer within {} s", .0.as_secs_f32())]
    TimedOut(Duration),
    #[error("sent an invalid line: {0}")]
    InvalidReply(#[from] serde_json::Error),
    #[error("lost its channel: {0}")]
    Channel(#[from] std::io::Error),
}

impl Child {
    /// Starts this program with `arguments`, and with `variables` added to its environment.
    /// Connects its standard output and error to `output`.
    pub(crate) fn start(
        arguments: &[&str],
        variables: &[(&str, &str)],
        output: impl Fn() -> Stdio,
    ) -> std::io::Result<Child> {
        let (channel, child_end) = UnixStream::pair()?;
        let program = crate::START.get().map(Vec::as_slice).unwrap_or_default();
        let (file, first) = program.split_first().ok_or(ErrorKind::NotFound)?;
        let process = Command::new(file)
            .args(first)
            .args(arguments)
            .envs(variables.iter().copied())
            .stdin(OwnedFd::from(child_end))
            .stdout(output())
            .stderr(output())
            .spawn()
            .map_err(explain_start)?;
        Ok(Child { process, channel: BufReader::new(channel) })
    }

    /// Returns the process id of the child.
    pub(crate) fn pid(&self) -> u32 {
        self.process.id()
    }

    /// Sends a request, which is one line of JSON. Fails if the child does not read it within
    /// `time`.
    pub(crate) fn send(&mut self, request: &str, time: Duration) -> Result<(), ChildError> {
        let channel = self.channel.get_mut();
        channel.set_write_timeout(Some(time))?;
        match channel.write_all(request.as_bytes()).and_then(|()| channel.write_all(b"\n")) {
            Err(error) if error.kind() == ErrorKind::WouldBlock => Err(ChildError::TimedOut(time)),
            Err(error) => Err(self.exit_reason(error)),
            Ok(()) => Ok(()),
        }
    }

    /// Waits at most `time` for the reply to a request. Calls `tick` about every 100 ms meanwhile.
    pub(crate) fn receive<T: DeserializeOwned>(
        &mut self,
        time: Duration,
        mut tick: impl FnMut(),
    ) -> Result<T, ChildError> {
        let deadline = Instant::now() + time;
        let mut line = Vec::new();
        while line.last() != Some(&b'\n') {
            let left = deadline.saturating_duration_since(Instant::now()).min(TICK_INTERVAL);
            if left.is_zero() {
                return Err(ChildError::TimedOut(time));
            }
            self.channel.get_ref().set_read_timeout(Some(left))?;
            match self.channel.read_until(b'\n', &mut line) {
                // A line without a line end is truncated: the child has exited.
                Ok(_) if line.last() == Some(&b'\n') => {}
                Ok(_) => return Err(self.exit_reason(ErrorKind::UnexpectedEof.into())),
                Err(error) if error.kind() == ErrorKind::WouldBlock => tick(),
                Err(error) => return Err(self.exit_reason(error)),
            }
        }
        Ok(serde_json::from_slice(&line)?)
    }

    /// Closes the channel, upon which the child exits, and waits for its exit.
    pub(crate) fn finish(mut self) -> Result<(), ChildError> {
        self.channel.get_ref().shutdown(Shutdown::Both)?;
        match wait(&mut self.process, EXIT_TIMEOUT) {
            Some(status) if status.success() => Ok(()),
            Some(status) => Err(ChildError::Exited(status)),
            None => Err(ChildError::TimedOut(EXIT_TIMEOUT)),
        }
    }

    /// Returns the reason why the channel failed: the child's exit status if it has exited.
    fn exit_reason(&mut self, error: std::io::Error) -> ChildError {
        match wait(&mut self.process, Duration::from_secs(1)) {
            Some(status) if status.signal() == Some(libc::SIGSYS) => ChildError::SeccompKill,
            Some(status) => ChildError::Exited(status),
            None => ChildError::Channel(error),
        }
    }
}

impl Drop for Child {
    fn drop(&mut self) {
        let _ = self.process.kill();
        // Gives up on a process that is stuck in the kernel.
        wait(&mut self.process, EXIT_TIMEOUT);
    }
}

/// Names the cause of a failed start. Without `/proc`, the error of the kernel names no file.
fn explain_start(error: std::io::Error) -> std::io::Error {
    if error.kind() == ErrorKind::NotFound && !Path::new("/proc/self/exe").exists() {
        let text = "cannot start a process of this program: /proc is not mounted; run `mount -t proc proc /proc` as root";
        return std::io::Error::new(ErrorKind::NotFound, text);
    }
    error
}

/// The longest output of a program that [`output_of`] reads.
const MAX_OUTPUT: u64 = 64 << 10;

/// Runs another program, and returns what it writes to standard output, up to 64 KiB. After `time`
/// the program is killed. If this process is killed meanwhile, the program goes on to its own end.
pub(crate) fn output_of(program: &Path, arguments: &[&str], time: Duration) -> Result<String, ChildError> {
    let deadline = Instant::now() + time;
    let (mut reader, writer) = std::io::pipe()?;
    let mut command = Command::new(program);
    command.args(arguments).stdin(Stdio::null()).stdout(writer).stderr(Stdio::null());
    // A group of its own, since a script may have started other programs. Nothing runs before its
    // `exec`, so that the process is not forked: umf's handlers of `fork` call `membarrier`, for
    // which a seccomp filter may kill.
    command.process_group(0);
    let mut process = Program(command.spawn()?);
    // Its copy of the pipe would keep the output open.
    drop(command);
    let mut text = Vec::new();
    loop {
        let left = deadline.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Err(ChildError::TimedOut(time));
        }
        let mut polled = [PollFd::new(&reader, PollFlags::IN)];
        let left = Timespec::try_from(left).unwrap_or_default();
        match rustix::event::poll(&mut polled, Some(&left)) {
            Ok(0) | Err(rustix::io::Errno::INTR) => continue,
            Ok(_) => {}
            Err(errno) => return Err(ChildError::Channel(errno.into())),
        }
        let mut part = [0; 4096];
        let length = reader.read(&mut part)?;
        text.extend_from_slice(&part[..length]);
        if length == 0 || text.len() as u64 >= MAX_OUTPUT {
            break;
        }
    }
    // Without an output, the exit status is what there is to tell.
    match wait(&mut process.0, deadline.saturating_duration_since(Instant::now())) {
        Some(status) if text.is_empty() && !status.success() => Err(ChildError::Exited(status)),
        _ => Ok(String::from_utf8_lossy(&text).into_owned()),
    }
}

/// A program, whose process group is killed when this is dropped.
struct Program(std::process::Child);

impl Drop for Program {
    fn drop(&mut self) {
        // The group has the pid of its leader, which is not reaped before.
        if let Some(group) = rustix::process::Pid::from_raw(self.0.id().cast_signed()) {
            let _ = rustix::process::kill_process_group(group, rustix::process::Signal::KILL);
        }
        wait(&mut self.0, EXIT_TIMEOUT);
    }
}

fn wait(process: &mut std::process::Child, time: Duration) -> Option<ExitStatus> {
    let deadline = Instant::now() + time;
    loop {
        match process.try_wait() {
            Ok(Some(status)) => return Some(status),
            Ok(None) if Instant::now() < deadline => std::thread::sleep(Duration::from_millis(1)),
            _ => return None,
        }
    }
}

/// The parent process, as seen from a child.
pub(crate) struct Parent(BufReader<UnixStream>);

impl Parent {
    /// Takes the channel from standard input. Has the kernel kill this process when the parent
    /// dies.
    pub(crate) fn listen() -> std::io::Result<Parent> {
        // If the parent is dead already, the channel is closed.
        rustix::process::set_parent_process_death_signal(Some(rustix::process::Signal::KILL))?;
        let channel = std::io::stdin().as_fd().try_clone_to_owned()?;
        Ok(Parent(BufReader::new(channel.into())))
    }

    /// Returns the next request, or `None` if the parent has closed the channel.
    pub(crate) fn next_request<T: DeserializeOwned>(&mut self) -> std::io::Result<Option<T>> {
        let mut line = Vec::new();
        self.0.read_until(b'\n', &mut line)?;
        if line.is_empty() { Ok(None) } else { Ok(Some(serde_json::from_slice(&line)?)) }
    }

    /// Sends the reply to a request.
    pub(crate) fn reply(&mut self, reply: &impl Serialize) -> std::io::Result<()> {
        let line = serde_json::to_string(reply)? + "\n";
        self.0.get_mut().write_all(line.as_bytes())
    }
}
