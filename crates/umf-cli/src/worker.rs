//! Other processes of this program that do a part of the work, spoken to in lines of JSON through pipes.
//!
//! A worker is exec'ed anew, so that it shares nothing with this process or with other workers. Every wait for workers
//! is bounded, and a worker does not outlive its [`Worker`], nor this process.

use std::io::{BufRead, BufReader, ErrorKind, Read, Write};
use std::os::fd::AsFd;
use std::process::{Child, ChildStdin, ChildStdout, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::sys::pipes::{self, Await};

/// Longer lines than this are not from a worker of ours.
const LONGEST_LINE: usize = 1 << 30;
/// How long a worker that was told to end, or killed, is waited for.
const BURIAL: Duration = Duration::from_secs(5);
/// How often somebody who waits is told that time passes.
const TICK: Duration = Duration::from_millis(100);

/// A process of this program.
pub(crate) struct Worker {
    child: Child,
    stdin: Option<ChildStdin>,
    stdout: ChildStdout,
    unsent: Vec<u8>,
    sent: usize,
    received: Vec<u8>,
    /// Up to where no line end was found in `received`.
    searched: usize,
}

/// What became of a worker that does not answer.
#[derive(Debug)]
pub(crate) enum Silence {
    /// It ended.
    Ended(ExitStatus),
    /// It lives, and said nothing for this long.
    Late(Duration),
    /// What it said is not a line that was to come.
    Nonsense(String),
    /// The pipes failed.
    Pipe(String),
}

impl std::fmt::Display for Silence {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Silence::Ended(status) => write!(f, "ended ({status})"),
            Silence::Late(time) => write!(f, "did not answer within {} s", time.as_secs_f32()),
            Silence::Nonsense(what) => write!(f, "said something else than was to come: {what}"),
            Silence::Pipe(error) => write!(f, "cannot be reached: {error}"),
        }
    }
}

impl Worker {
    /// Starts this program with `arguments`, and `variables` added to its environment. Standard error is shared.
    ///
    /// # Errors
    /// Why it could not be started, in words.
    pub(crate) fn start(arguments: &[&str], variables: &[(&str, &str)]) -> Result<Worker, String> {
        // The same file even if its name is gone by now.
        let mut child = Command::new("/proc/self/exe")
            .args(arguments)
            .envs(variables.iter().copied())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .map_err(|error| format!("no process could be started: {error}"))?;
        let (Some(stdin), Some(stdout)) = (child.stdin.take(), child.stdout.take()) else {
            end(&mut child);
            return Err("a process was started without pipes".to_owned());
        };
        let (unsent, received) = (Vec::new(), Vec::new());
        let worker = Worker { child, stdin: Some(stdin), stdout, unsent, sent: 0, received, searched: 0 };
        let pipes = worker.stdin.as_ref().map_or(Ok(()), pipes::do_not_block);
        pipes.and(pipes::do_not_block(&worker.stdout)).map_err(|error| format!("a pipe: {error}"))?;
        Ok(worker)
    }

    /// Its process id.
    pub(crate) fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Adds a line to what it is told by the next [`converse`].
    pub(crate) fn say(&mut self, line: &str) {
        self.unsent.extend_from_slice(line.as_bytes());
        self.unsent.push(b'\n');
    }

    /// The answer that [`converse`] waited for.
    pub(crate) fn answer<T: DeserializeOwned>(&mut self) -> Result<T, Silence> {
        let length = self.find_line().ok_or_else(|| Silence::Nonsense("half a line".to_owned()))?;
        let line: Vec<u8> = self.received.drain(..=length).collect();
        self.searched = 0;
        serde_json::from_slice(&line).map_err(|error| Silence::Nonsense(error.to_string()))
    }

    /// Asks it to end by closing its standard input, and waits for it.
    pub(crate) fn finish(mut self) -> Result<(), Silence> {
        self.stdin = None;
        match wait(&mut self.child, BURIAL) {
            Some(status) if status.success() => Ok(()),
            Some(status) => Err(Silence::Ended(status)),
            None => Err(Silence::Late(BURIAL)),
        }
    }

    fn find_line(&mut self) -> Option<usize> {
        let found = self.received[self.searched..].iter().position(|byte| *byte == b'\n');
        let found = found.map(|position| self.searched + position);
        self.searched = found.unwrap_or(self.received.len());
        found
    }

    /// Sends and receives what can be without waiting. True when all is sent and an answer is there.
    fn advance(&mut self) -> Result<bool, Silence> {
        while self.sent < self.unsent.len() {
            let Some(stdin) = &mut self.stdin else { break };
            match stdin.write(&self.unsent[self.sent..]) {
                Ok(written) => self.sent += written,
                Err(error) if error.kind() == ErrorKind::WouldBlock => break,
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => return Err(self.last_words(error)),
            }
        }
        if self.sent == self.unsent.len() {
            (self.unsent, self.sent) = (Vec::new(), 0);
        }
        let mut chunk = [0_u8; 64 << 10];
        while self.find_line().is_none() {
            match self.stdout.read(&mut chunk) {
                Ok(0) => return Err(self.last_words(ErrorKind::UnexpectedEof.into())),
                Ok(read) => self.received.extend_from_slice(&chunk[..read]),
                Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(false),
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => return Err(self.last_words(error)),
            }
            if self.received.len() > LONGEST_LINE {
                return Err(Silence::Nonsense("an endless line".to_owned()));
            }
        }
        Ok(self.unsent.is_empty())
    }

    /// Why the pipes do not work any more.
    fn last_words(&mut self, error: std::io::Error) -> Silence {
        match wait(&mut self.child, Duration::from_secs(1)) {
            Some(status) => Silence::Ended(status),
            None => Silence::Pipe(error.to_string()),
        }
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        end(&mut self.child);
    }
}

/// Tells the workers what was put down with [`Worker::say`], and waits until each has said a line. `tick` is called while
/// waiting.
///
/// # Errors
/// The first worker that failed, and how.
pub(crate) fn converse(
    workers: &mut [&mut Worker],
    time: Duration,
    mut tick: impl FnMut(),
) -> Result<(), (usize, Silence)> {
    let deadline = Instant::now() + time;
    loop {
        let mut ends = Vec::new();
        let mut late = None;
        for (index, worker) in workers.iter_mut().enumerate() {
            if worker.advance().map_err(|silence| (index, silence))? {
                continue;
            }
            late.get_or_insert(index);
            ends.push(Await::Input(worker.stdout.as_fd()));
            if let (Some(stdin), false) = (&worker.stdin, worker.unsent.is_empty()) {
                ends.push(Await::Room(stdin.as_fd()));
            }
        }
        let Some(late) = late else { return Ok(()) };
        let left = deadline.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Err((late, Silence::Late(time)));
        }
        pipes::wait(&ends, left.min(TICK)).map_err(|errno| (late, Silence::Pipe(errno.to_string())))?;
        tick();
    }
}

/// Kills a child and waits until it is gone; one that is stuck in the kernel is given up after [`BURIAL`].
fn end(child: &mut Child) {
    // It may have ended by itself.
    let _ = child.kill();
    wait(child, BURIAL);
}

fn wait(child: &mut Child, time: Duration) -> Option<ExitStatus> {
    let deadline = Instant::now() + time;
    loop {
        match child.try_wait() {
            Ok(Some(status)) => return Some(status),
            Ok(None) if Instant::now() < deadline => std::thread::sleep(Duration::from_millis(1)),
            _ => return None,
        }
    }
}

/// In a worker: the launcher at the other end of standard input and output.
pub(crate) struct Launcher {
    orders: BufReader<std::io::Stdin>,
    answers: std::fs::File,
}

impl Launcher {
    /// Begins the conversation in a worker that `parent` started. `None` if that has ended.
    ///
    /// # Errors
    /// What the system says.
    pub(crate) fn listen(parent: u32) -> std::io::Result<Option<Launcher>> {
        if !pipes::die_with(parent) {
            return Ok(None);
        }
        let answers = pipes::take_stdout()?.into();
        Ok(Some(Launcher { orders: BufReader::new(std::io::stdin()), answers }))
    }

    /// The next order; `None` when there are no more.
    pub(crate) fn order<T: DeserializeOwned>(&mut self) -> std::io::Result<Option<T>> {
        let mut line = Vec::new();
        self.orders.read_until(b'\n', &mut line)?;
        if line.is_empty() { Ok(None) } else { Ok(Some(serde_json::from_slice(&line)?)) }
    }

    /// Answers an order.
    pub(crate) fn answer(&mut self, answer: &impl Serialize) -> std::io::Result<()> {
        let mut line = serde_json::to_vec(answer)?;
        line.push(b'\n');
        self.answers.write_all(&line)
    }
}
