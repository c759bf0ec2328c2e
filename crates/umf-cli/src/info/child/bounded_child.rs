//! A child process that ends by a deadline and is waited for, whatever happens to the code that started it.

use std::io::Read;
use std::os::fd::AsFd;
use std::os::unix::process::ExitStatusExt;
use std::process::{Child, ChildStdout, Command, Stdio};
use std::time::{Duration, Instant};

use serde::de::DeserializeOwned;

use super::Role;
use crate::sys;

/// What a child may say.
const LONGEST_LINE: usize = 64 << 10;

/// How long a killed child is waited for.
const BURIAL: Duration = Duration::from_secs(2);

/// Why a child gave no answer.
pub(super) enum Silence {
    /// The kernel killed it for a system call (`SIGSYS`).
    BadCall,
    /// Something else, in a few words.
    Other(String),
}

impl From<String> for Silence {
    fn from(reason: String) -> Silence {
        Silence::Other(reason)
    }
}

impl From<Silence> for String {
    fn from(silence: Silence) -> String {
        match silence {
            Silence::BadCall => "a seccomp filter kills for what every child needs".to_owned(),
            Silence::Other(reason) => reason,
        }
    }
}

/// A child of this command, killed and waited for when dropped.
pub(super) struct BoundedChild {
    child: Child,
    stdout: ChildStdout,
    deadline: Instant,
}

impl BoundedChild {
    /// Starts this program in `role`. Its standard input stays open until the value is dropped.
    pub(super) fn start(role: &Role, deadline: Instant) -> Result<BoundedChild, String> {
        let role = serde_json::to_string(role).map_err(|error| error.to_string())?;
        // The same file even if its name is gone by now.
        let mut child = Command::new("/proc/self/exe")
            .args(["info", "--child", &role])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .map_err(|error| format!("no child could be started: {error}"))?;
        match child.stdout.take() {
            Some(stdout) => Ok(BoundedChild { child, stdout, deadline }),
            None => {
                end(&mut child);
                Err("a child has no standard output".to_owned())
            }
        }
    }

    /// The child's process id.
    pub(super) fn pid(&self) -> Result<i32, String> {
        i32::try_from(self.child.id()).map_err(|error| error.to_string())
    }

    /// What the child says, up to the deadline.
    pub(super) fn answer<Answer: DeserializeOwned>(&mut self) -> Result<Answer, Silence> {
        let line = self.read_line()?;
        serde_json::from_slice(&line)
            .map_err(|error| Silence::Other(format!("a child said nonsense: {error}")))
    }

    fn read_line(&mut self) -> Result<Vec<u8>, Silence> {
        let mut line = Vec::new();
        let mut chunk = [0_u8; 4096];
        while line.last() != Some(&b'\n') {
            let left = self.deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Err("a child did not answer in time".to_owned().into());
            }
            let ready =
                sys::wait_readable(&[self.stdout.as_fd()], left).map_err(|error| error.to_string())?;
            if !ready {
                continue;
            }
            let read = self.stdout.read(&mut chunk).map_err(|error| error.to_string())?;
            if read == 0 || line.len() > LONGEST_LINE {
                return Err(self.last_words());
            }
            line.extend_from_slice(&chunk[..read]);
        }
        Ok(line)
    }

    /// Why the child ended without an answer.
    fn last_words(&mut self) -> Silence {
        wait(&mut self.child, self.deadline);
        match self.child.try_wait() {
            Ok(Some(status)) if status.signal() == Some(libc::SIGSYS) => Silence::BadCall,
            Ok(Some(status)) => format!("a child said nothing ({status})").into(),
            _ => "a child said nothing".to_owned().into(),
        }
    }
}

impl Drop for BoundedChild {
    fn drop(&mut self) {
        end(&mut self.child);
    }
}

/// Kills a child and waits until it is gone; a child stuck in the kernel is given up after [`BURIAL`].
fn end(child: &mut Child) {
    // It may have ended by itself, which `try_wait` tells.
    let _ = child.kill();
    wait(child, Instant::now() + BURIAL);
}

fn wait(child: &mut Child, deadline: Instant) {
    while matches!(child.try_wait(), Ok(None)) && Instant::now() < deadline {
        std::thread::sleep(Duration::from_millis(1));
    }
}
