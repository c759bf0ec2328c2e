//! Children of this command: this program again, spoken to in lines of JSON through a socket.
//!
//! A child is started by `exec`, such that it shares nothing with this process or with other
//! children. Each wait is bounded, and a child outlives neither its [`Child`] nor this process.

use std::io::{BufRead, BufReader, ErrorKind, Write};
use std::net::Shutdown;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::os::unix::process::ExitStatusExt;
use std::process::{Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use serde::Serialize;
use serde::de::DeserializeOwned;

/// How long a child that was killed, or told to end, is waited for.
const END: Duration = Duration::from_secs(5);
/// How often a caller that waits for an answer is told that time passes.
const TICK: Duration = Duration::from_millis(100);

/// A process of this program, killed when dropped.
pub(crate) struct Child {
    process: std::process::Child,
    channel: BufReader<UnixStream>,
}

/// Why a child does not answer.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Silence {
    #[error("was killed by a seccomp filter for a system call")]
    BadCall,
    #[error("ended ({0})")]
    Ended(ExitStatus),
    #[error("did not answer within {} s", .0.as_secs_f32())]
    Late(Duration),
    #[error("sent a line that makes no sense: {0}")]
    Nonsense(#[from] serde_json::Error),
    #[error("cannot be reached: {0}")]
    Channel(#[from] std::io::Error),
}

impl Child {
    /// Starts this program with `arguments`, and `variables` added to its environment. What it
    /// prints goes to `output`.
    pub(crate) fn start(
        arguments: &[&str],
        variables: &[(&str, &str)],
        output: impl Fn() -> Stdio,
    ) -> std::io::Result<Child> {
        let (channel, theirs) = UnixStream::pair()?;
        // The same file even if its name is gone by now.
        let process = Command::new("/proc/self/exe")
            .args(arguments)
            .envs(variables.iter().copied())
            .stdin(OwnedFd::from(theirs))
            .stdout(output())
            .stderr(output())
            .spawn()?;
        Ok(Child { process, channel: BufReader::new(channel) })
    }

    /// Returns its process id.
    pub(crate) fn pid(&self) -> u32 {
        self.process.id()
    }

    /// Sends an order, which is JSON. The child reads it within `time`.
    pub(crate) fn order(&mut self, order: &str, time: Duration) -> Result<(), Silence> {
        let channel = self.channel.get_mut();
        channel.set_write_timeout(Some(time))?;
        match channel.write_all(order.as_bytes()).and_then(|()| channel.write_all(b"\n")) {
            Err(error) if error.kind() == ErrorKind::WouldBlock => Err(Silence::Late(time)),
            Err(error) => Err(self.ended(error)),
            Ok(()) => Ok(()),
        }
    }

    /// Waits for the answer to an order for at most `time`, and calls `tick` meanwhile.
    pub(crate) fn answer<T: DeserializeOwned>(
        &mut self,
        time: Duration,
        mut tick: impl FnMut(),
    ) -> Result<T, Silence> {
        let deadline = Instant::now() + time;
        let mut line = Vec::new();
        while line.last() != Some(&b'\n') {
            let left = deadline.saturating_duration_since(Instant::now()).min(TICK);
            if left.is_zero() {
                return Err(Silence::Late(time));
            }
            self.channel.get_ref().set_read_timeout(Some(left))?;
            match self.channel.read_until(b'\n', &mut line) {
                // A line that ends without a line end is the last one.
                Ok(_) if line.last() == Some(&b'\n') => {}
                Ok(_) => return Err(self.ended(ErrorKind::UnexpectedEof.into())),
                Err(error) if error.kind() == ErrorKind::WouldBlock => tick(),
                Err(error) => return Err(self.ended(error)),
            }
        }
        Ok(serde_json::from_slice(&line)?)
    }

    /// Closes the channel, which tells the child to end, and waits for that.
    pub(crate) fn finish(mut self) -> Result<(), Silence> {
        self.channel.get_ref().shutdown(Shutdown::Both)?;
        match wait(&mut self.process, END) {
            Some(status) if status.success() => Ok(()),
            Some(status) => Err(Silence::Ended(status)),
            None => Err(Silence::Late(END)),
        }
    }

    /// Returns why the channel does not work any more.
    fn ended(&mut self, error: std::io::Error) -> Silence {
        match wait(&mut self.process, Duration::from_secs(1)) {
            Some(status) if status.signal() == Some(libc::SIGSYS) => Silence::BadCall,
            Some(status) => Silence::Ended(status),
            None => Silence::Channel(error),
        }
    }
}

impl Drop for Child {
    fn drop(&mut self) {
        let _ = self.process.kill();
        // A process that is stuck in the kernel is given up.
        wait(&mut self.process, END);
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

/// In a child: the process that started it.
pub(crate) struct Parent(BufReader<UnixStream>);

impl Parent {
    /// Takes the channel from standard input. The kernel kills this process when the parent dies.
    pub(crate) fn listen() -> std::io::Result<Parent> {
        // If the parent is dead already, the channel is closed.
        rustix::process::set_parent_process_death_signal(Some(rustix::process::Signal::KILL))?;
        let channel = std::io::stdin().as_fd().try_clone_to_owned()?;
        Ok(Parent(BufReader::new(channel.into())))
    }

    /// Returns the next order; `None` if there are no more.
    pub(crate) fn order<T: DeserializeOwned>(&mut self) -> std::io::Result<Option<T>> {
        let mut line = Vec::new();
        self.0.read_until(b'\n', &mut line)?;
        if line.is_empty() { Ok(None) } else { Ok(Some(serde_json::from_slice(&line)?)) }
    }

    /// Answers an order.
    pub(crate) fn answer(&mut self, answer: &impl Serialize) -> std::io::Result<()> {
        let line = serde_json::to_string(answer)? + "\n";
        self.0.get_mut().write_all(line.as_bytes())
    }
}
