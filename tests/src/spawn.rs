//! Starting actors: with variables, in namespaces, under a pid of the test's choice.

use std::ffi::{CString, OsString};
use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use crate::Actor;

/// How an actor is started. It inherits no fds but the two pipes, and no variables named `UMF_*`.
#[derive(Clone, Debug)]
pub struct Spawn {
    program: CString,
    variables: Vec<(OsString, OsString)>,
    namespaces: i32,
    pid: Option<i32>,
    directory: Option<CString>,
}

impl Spawn {
    /// Of the program at `path`.
    #[must_use]
    pub fn new(path: impl AsRef<Path>) -> Self {
        // Elsewhere than it was built: in a bundle.
        let elsewhere = std::env::var_os("TESTS_ACTOR").map(std::path::PathBuf::from);
        let path = elsewhere.as_deref().unwrap_or(path.as_ref());
        let variables =
            std::env::vars_os().filter(|(name, _)| !name.as_bytes().starts_with(b"UMF_")).collect();
        let program = CString::new(path.as_os_str().as_bytes()).unwrap();
        Self { program, variables, namespaces: 0, pid: None, directory: None }
    }

    /// Sets a variable.
    #[must_use]
    pub fn env(mut self, name: &str, value: &str) -> Self {
        self.variables.push((name.into(), value.into()));
        self
    }

    /// Sets a variable to bytes that need not be text.
    #[must_use]
    pub fn env_bytes(mut self, name: &str, value: &[u8]) -> Self {
        self.variables.push((name.into(), std::ffi::OsStr::from_bytes(value).into()));
        self
    }

    /// In new namespaces: `CLONE_NEWUSER` and others.
    #[must_use]
    pub fn namespaces(mut self, flags: i32) -> Self {
        self.namespaces |= flags;
        self
    }

    /// Under this process id, which must be free.
    #[must_use]
    pub fn pid(mut self, pid: u32) -> Self {
        self.pid = Some(pid.cast_signed());
        self
    }

    /// In this working directory.
    #[must_use]
    pub fn directory(mut self, path: &Path) -> Self {
        self.directory = Some(CString::new(path.as_os_str().as_bytes()).unwrap());
        self
    }

    /// Starts the actor.
    ///
    /// # Panics
    /// If it does not start.
    #[must_use]
    pub fn start(self) -> Actor {
        self.try_start().unwrap_or_else(|error| panic!("the actor does not start: {error}"))
    }

    /// Starts the actor, or says why it could not be.
    ///
    /// # Errors
    /// What `clone3(2)` says.
    pub fn try_start(self) -> io::Result<Actor> {
        let (input_theirs, input) = pipe()?;
        let (output, output_theirs) = pipe()?;
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
        // SAFETY: the arguments are valid for the call; as after fork, the child has a copy of all memory, and uses
        // nothing but system calls on what was prepared above.
        let pid =
            unsafe { libc::syscall(libc::SYS_clone3, &raw const request, size_of::<libc::clone_args>()) };
        if pid == 0 {
            // SAFETY: only async-signal-safe calls, with arguments that outlive them; ends in exec or _exit.
            unsafe {
                libc::dup2(input_theirs.as_raw_fd(), 0);
                libc::dup2(output_theirs.as_raw_fd(), 1);
                // An orphan of a test that was killed must not stay.
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
        // Until it has called exec it has a copy of everything that the test has.
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
    // SAFETY: new fds that nobody else owns.
    Ok(unsafe { (OwnedFd::from_raw_fd(ends[0]), OwnedFd::from_raw_fd(ends[1])) })
}
