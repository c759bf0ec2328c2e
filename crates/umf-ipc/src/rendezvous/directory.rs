//! [`Directory`]: binds names, connects to them, and tests their locks.

use std::os::fd::{AsRawFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use rustix::fs::{AtFlags, CWD, FileType, Mode, OFlags};
use rustix::io::Errno;
use rustix::net::sockopt::{Timeout, set_socket_timeout};
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType};
use umf_sync::{failpoint, fork};

use super::error::{DirectoryError, DirectoryResult as Result};
use super::exit;
use super::lock::{self, HeldLock, LockFile, Record};
use umf_os::{CloseOnFork, FileIdentity, SystemResult};

/// Suffix of a socket that does not listen yet.
pub(super) const NEW: &str = ".new";
/// How often a name is tried whose lock file disappears meanwhile.
const ATTEMPTS: u32 = 16;
/// How long a bind waits for a lock: a process that looks for left-overs holds it for a moment.
const LOCK_PATIENCE: Duration = Duration::from_millis(20);
/// The longest path of a socket address.
const MAX_ADDRESS: usize = 107;

/// A directory in which sockets have names. Every operation opens it anew, so that it holds no
/// descriptor. Thread-safe.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Directory {
    path: PathBuf,
}

/// The state of a name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NameState {
    /// No process has bound it.
    Absent,
    /// The process that has bound it runs. It may be stopped.
    Alive,
    /// The process that bound it has ended.
    Dead,
    /// Cannot be known: no permission, or the lock file is not the one that its owner locked.
    Unknown,
}

impl Directory {
    /// Returns the directory at `path`, from the working directory of now if it is relative. The
    /// first operation checks it.
    #[must_use]
    pub fn new(path: impl Into<PathBuf>) -> Self {
        let path = path.into();
        Self { path: std::path::absolute(&path).unwrap_or(path) }
    }

    /// Returns the path.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Returns whether this process may make files in the directory.
    #[must_use]
    pub fn is_writable(&self) -> bool {
        let access = rustix::fs::Access::WRITE_OK | rustix::fs::Access::EXEC_OK;
        rustix::fs::accessat(CWD, &self.path, access, AtFlags::EACCESS).is_ok()
    }

    /// Checks that the directory exists, and that other users cannot replace what is in it.
    ///
    /// # Errors
    /// [`DirectoryError`].
    pub fn check(&self) -> Result<()> {
        self.open(OFlags::PATH).map(drop)
    }

    /// Returns the error of an operation that failed.
    #[must_use]
    pub fn error(&self, operation: &'static str, errno: Errno) -> DirectoryError {
        DirectoryError::of(&self.path, operation, errno)
    }

    fn failed(&self, operation: &'static str) -> impl Fn(Errno) -> DirectoryError {
        move |errno| self.error(operation, errno)
    }

    pub(super) fn open(&self, flags: OFlags) -> Result<OwnedFd> {
        let flags = flags | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let opened = rustix::fs::open(&self.path, flags, Mode::empty());
        let directory = opened.map_err(|errno| match errno {
            Errno::NOENT => DirectoryError::Missing { path: self.path.clone() },
            Errno::NOTDIR => DirectoryError::NotDirectory { path: self.path.clone() },
            errno => self.error("opening it", errno),
        })?;
        let found = rustix::fs::fstat(&directory).map_err(self.failed("fstat"))?;
        let is_sticky = found.st_mode & 0o1000 != 0;
        // The owner of a directory that a group may write trusts the group's users.
        if found.st_mode & 0o002 != 0 && !is_sticky {
            let mode = found.st_mode & 0o7777;
            return Err(DirectoryError::WritableByOthers { path: self.path.clone(), mode });
        }
        Ok(directory)
    }

    /// Binds a name and listens. Returns `None` if a running process has the name. `mode` is that
    /// of the socket: processes that may write it may connect.
    ///
    /// # Errors
    /// [`DirectoryError`]. Nothing is left in the directory.
    pub fn bind(&self, name: &str, mode: u32, backlog: i32) -> Result<Option<NamedSocket>> {
        let Some(lock) = self.lock_within(LOCK_PATIENCE, name, lock_mode(mode))? else { return Ok(None) };
        lock.listen(mode, backlog).map(Some)
    }

    /// Binds as [`Directory::bind`] does, and does not wait for a process that looks for
    /// left-overs: then the name counts as taken.
    ///
    /// # Errors
    /// As [`Directory::bind`].
    pub fn try_bind(&self, name: &str, mode: u32, backlog: i32) -> Result<Option<NamedSocket>> {
        let Some(lock) = self.try_lock(name, lock_mode(mode))? else { return Ok(None) };
        lock.listen(mode, backlog).map(Some)
    }

    /// Acquires the lock of a name, without a socket. Does not wait. Returns `None` if another
    /// process holds it. `mode` is that of the lock file: processes that may write it may take the
    /// lock.
    ///
    /// # Errors
    /// [`DirectoryError`].
    pub fn try_lock(&self, name: &str, mode: u32) -> Result<Option<NamedLock>> {
        self.lock_within(Duration::ZERO, name, mode)
    }

    fn lock_within(&self, patience: Duration, name: &str, mode: u32) -> Result<Option<NamedLock>> {
        let directory = self.open(OFlags::PATH)?;
        let lock = self.lock_name(&directory, name, Mode::from_raw_mode(mode), patience)?;
        failpoint!("directory.locked");
        Ok(lock.map(|lock| NamedLock {
            directory: self.clone(),
            name: name.to_owned(),
            files: BoundFiles { lock: lock.identity(), socket: None, has_socket: false },
            _lock: lock,
            generation: fork::generation(),
        }))
    }

    /// Acquires the lock of a name.
    fn lock_name(
        &self,
        directory: &OwnedFd,
        name: &str,
        mode: Mode,
        patience: Duration,
    ) -> Result<Option<HeldLock>> {
        let file_name = lock::name_of(name);
        let begun = Instant::now();
        for _ in 0..ATTEMPTS {
            let file = match LockFile::open(directory, &file_name, true) {
                Ok(file) => {
                    while !file.try_lock().map_err(self.failed("locking a file"))? {
                        if begun.elapsed() >= patience {
                            return Ok(None);
                        }
                        std::thread::sleep(Duration::from_millis(1));
                    }
                    // A process that looks for left-overs may have removed it before it was locked
                    // here.
                    if !file.is_at(directory, &file_name) {
                        continue;
                    }
                    let foreign = file.foreign(mode).map_err(self.failed("fstat of a lock file"))?;
                    if let Some((owner, links)) = foreign {
                        return Err(DirectoryError::ForeignFile {
                            path: self.path.join(file_name),
                            owner,
                            links,
                        });
                    }
                    file.write_record(mode).map(|()| file)
                }
                Err(Errno::NOENT) => match LockFile::create(directory, &file_name, mode) {
                    Err(Errno::EXIST) => continue,
                    created => Ok(created.map_err(self.failed("creating a lock file"))?),
                },
                Err(errno) => return Err(self.failed("opening a lock file")(errno)),
            };
            let held = file.and_then(|file| file.into_held(directory, &file_name));
            return match held {
                Ok(held) => Ok(Some(held)),
                Err(errno) => {
                    // The lock file last: without it, no process would find a left-over socket.
                    for file in [name, &file_name] {
                        let _ = rustix::fs::unlinkat(directory, file, AtFlags::empty());
                    }
                    Err(self.failed("writing and mapping a lock file")(errno))
                }
            };
        }
        // Other processes lock and unlock the name all the time.
        Ok(None)
    }

    /// Binds a socket and listens. Returns it with the identity of its file.
    fn listen(
        &self,
        directory: &OwnedFd,
        name: &str,
        mode: u32,
        backlog: i32,
    ) -> Result<(CloseOnFork, FileIdentity)> {
        let new = format!("{name}{NEW}");
        let error = |operation| self.failed(operation);
        match rustix::fs::unlinkat(directory, &new, AtFlags::empty()) {
            Ok(()) | Err(Errno::NOENT) => {}
            Err(errno) => return Err(error("removing a left-over socket")(errno)),
        }
        let address = self.address(directory, &new).map_err(error("naming a socket"))?;
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let make = || rustix::net::socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None);
        let socket = CloseOnFork::make(make).map_err(error("making a socket"))?;
        rustix::net::bind(&socket, &address).map_err(error("binding a socket"))?;
        failpoint!("directory.socket_bound");
        // The kernel applies the umask to the mode of a bound socket.
        let mode = Mode::from_raw_mode(mode & 0o777);
        rustix::fs::chmodat(directory, &new, mode, AtFlags::empty()).map_err(error("chmod of a socket"))?;
        rustix::net::listen(&socket, backlog).map_err(error("listen"))?;
        failpoint!("directory.listening");
        let identity =
            lock::identity_at(directory, &new, FileType::Socket).map_err(error("stat of a socket"))?;
        rustix::fs::renameat(directory, &new, directory, name).map_err(error("renaming a socket"))?;
        Ok((socket, identity))
    }

    /// Returns the address of the file `name`.
    fn address(&self, directory: &OwnedFd, name: &str) -> SystemResult<SocketAddrUnix> {
        let path = format!("/proc/thread-self/fd/{}/{name}", directory.as_raw_fd());
        if umf_os::process::sees_itself_in_proc() {
            return SocketAddrUnix::new(path);
        }
        let path = self.path.join(name);
        if path.as_os_str().len() > MAX_ADDRESS { Err(Errno::NAMETOOLONG) } else { SocketAddrUnix::new(path) }
    }

    /// Connects to a name. Waits for a place in the backlog for `timeout` at most; `None` waits
    /// without a limit.
    ///
    /// # Errors
    /// [`DirectoryError`]; its errno is `ENOENT` if there is no such name, `ECONNREFUSED` if no
    /// process listens, `EAGAIN` after the timeout, `EINTR` after a signal, `ENOTSOCK` and `ELOOP`
    /// if the name is a file of another type or a symbolic link.
    pub fn connect(&self, name: &str, timeout: Option<Duration>) -> Result<OwnedFd> {
        let directory = self.open(OFlags::PATH)?;
        let error = |operation| self.failed(operation);
        let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let file =
            rustix::fs::openat(&directory, name, flags, Mode::empty()).map_err(error("finding a socket"))?;
        // The descriptor keeps the file, whatever its name becomes.
        let found = rustix::fs::fstat(&file).map_err(error("fstat of a socket"))?;
        match FileType::from_raw_mode(found.st_mode) {
            FileType::Socket => {}
            FileType::Symlink => return Err(error("connecting to a symbolic link")(Errno::LOOP)),
            _ => return Err(error("connecting to a file")(Errno::NOTSOCK)),
        }
        let address = if umf_os::process::sees_itself_in_proc() {
            SocketAddrUnix::new(format!("/proc/thread-self/fd/{}", file.as_raw_fd()))
        } else {
            self.address(&directory, name)
        };
        let address = address.map_err(error("naming a socket"))?;
        let flags = SocketFlags::CLOEXEC;
        let socket = rustix::net::socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None)
            .map_err(error("making a socket"))?;
        // Only a blocking connect waits for a place in the backlog: poll does not report one.
        set_socket_timeout(&socket, Timeout::Send, timeout).map_err(error("setting a timeout"))?;
        rustix::net::connect(&socket, &address).map_err(|errno| match errno {
            // The mode of a socket does not refuse its owner.
            Errno::ACCESS | Errno::PERM if found.st_uid != umf_os::process::effective_uid() => {
                DirectoryError::OtherUser { path: self.path.clone(), owner: found.st_uid }
            }
            Errno::ACCESS | Errno::PERM => DirectoryError::SecurityModule { path: self.path.clone(), errno },
            errno => self.error("connecting to a socket", errno),
        })?;
        Ok(socket)
    }

    /// Returns whether the process that bound a name runs.
    ///
    /// # Errors
    /// [`DirectoryError`] of the directory itself.
    pub fn state(&self, name: &str) -> Result<NameState> {
        let directory = self.open(OFlags::PATH)?;
        let file = match LockFile::open(&directory, &lock::name_of(name), false) {
            Ok(file) => file,
            Err(Errno::NOENT) => return Ok(NameState::Absent),
            Err(_) => return Ok(NameState::Unknown),
        };
        Ok(match (file.read_record(), file.is_locked()) {
            (Ok(Record::Same), Ok(false)) => NameState::Dead,
            (Ok(Record::Same | Record::Empty), Ok(true)) => NameState::Alive,
            (Ok(Record::Empty), Ok(false)) => NameState::Dead,
            _ => NameState::Unknown,
        })
    }

    /// Returns the owner of the lock file of a name.
    ///
    /// # Errors
    /// [`DirectoryError`]; its errno is `ENOENT` if there is no such name.
    pub fn owner(&self, name: &str) -> Result<u32> {
        let directory = self.open(OFlags::PATH)?;
        let found = rustix::fs::statat(directory, lock::name_of(name), AtFlags::SYMLINK_NOFOLLOW);
        found.map(|found| found.st_uid).map_err(self.failed("stat of a lock file"))
    }

    /// Returns the names with this prefix, sorted. A name may be free by now.
    ///
    /// # Errors
    /// [`DirectoryError`].
    pub fn names(&self, prefix: &str) -> Result<Vec<String>> {
        let mut names = Vec::new();
        self.list(usize::MAX, |name| {
            if name.starts_with(prefix) && !name.ends_with(lock::SUFFIX) && !name.ends_with(NEW) {
                names.push(name.to_owned());
            }
        })?;
        names.sort();
        Ok(names)
    }

    /// Calls `f` with the first `most` entries. Names that are not UTF-8 are none of umf's.
    pub(super) fn list(&self, most: usize, mut f: impl FnMut(&str)) -> Result<()> {
        let directory = self.open(OFlags::RDONLY)?;
        let entries = rustix::fs::Dir::new(directory).map_err(self.failed("listing it"))?;
        for entry in entries.take(most) {
            let entry = entry.map_err(self.failed("listing it"))?;
            if let Ok(name) = entry.file_name().to_str() {
                f(name);
            }
        }
        Ok(())
    }
}

/// The files of a name whose lock this process holds.
#[derive(Clone, Copy, Debug)]
pub(super) struct BoundFiles {
    /// The lock file.
    pub(super) lock: FileIdentity,
    /// The socket that this process has bound.
    pub(super) socket: Option<FileIdentity>,
    /// Whether the name may have a socket, of this process or of an ended one.
    pub(super) has_socket: bool,
}

impl BoundFiles {
    /// Removes the files, unless the lock file is another one by now. If another program has
    /// removed the lock file, removes the socket that this process has bound.
    ///
    /// Goes by paths: this needs no descriptor, and works in a directory that has become unsuitable.
    pub(super) fn remove(&self, directory: &Directory, name: &str) {
        let path = |file: &str| directory.path.join(file);
        let remove = |path: &Path| {
            let _ = rustix::fs::unlink(path);
        };
        let (socket, lock) = (path(name), path(&lock::name_of(name)));
        match lock::identity_at(CWD, &lock, FileType::RegularFile) {
            Ok(found) if found == self.lock => {
                if self.has_socket {
                    remove(&socket);
                }
                remove(&lock);
            }
            Err(Errno::NOENT)
                if self
                    .socket
                    .is_some_and(|own| lock::identity_at(CWD, &socket, FileType::Socket) == Ok(own)) =>
            {
                remove(&socket);
            }
            _ => {}
        }
    }
}

/// Returns the mode of a lock file whose lock only its owner may take: readers can test the lock.
const fn lock_mode(socket_mode: u32) -> u32 {
    0o600 | socket_mode & 0o044
}

/// The lock of a name, which this process holds. Dropping it removes the files of the name.
/// Dropping it in a forked child does nothing.
#[derive(Debug)]
pub struct NamedLock {
    directory: Directory,
    name: String,
    files: BoundFiles,
    /// Released after the files are removed.
    _lock: HeldLock,
    /// [`fork::generation`] of the process that acquired it.
    generation: u32,
}

impl NamedLock {
    /// Binds a socket with this mode to the name, and listens.
    fn listen(mut self, mode: u32, backlog: i32) -> Result<NamedSocket> {
        let directory = self.directory.open(OFlags::PATH)?;
        self.files.has_socket = true;
        match self.directory.listen(&directory, &self.name, mode, backlog) {
            Ok((listener, socket)) => {
                self.files.socket = Some(socket);
                exit::add(&self.directory, &self.name, self.files);
                failpoint!("directory.bound");
                Ok(NamedSocket { listener: Some(listener), lock: self })
            }
            Err(error) => {
                let _ = rustix::fs::unlinkat(&directory, format!("{}{NEW}", self.name), AtFlags::empty());
                Err(error)
            }
        }
    }
}

impl Drop for NamedLock {
    fn drop(&mut self) {
        if self.generation != fork::generation() {
            return;
        }
        if self.files.has_socket {
            exit::forget(self.files.lock);
        }
        self.files.remove(&self.directory, &self.name);
        failpoint!("directory.unbound");
    }
}

/// A name that this process has bound, with the listening socket. Dropping it removes both files.
/// Dropping it in a forked child does nothing.
#[derive(Debug)]
pub struct NamedSocket {
    // Closed before the files are removed: a client that finds neither knows that the name is free.
    /// `None` once taken.
    listener: Option<CloseOnFork>,
    lock: NamedLock,
}

impl NamedSocket {
    /// Takes the listening socket, which is non-blocking. The name lasts until `self` is dropped.
    pub fn take_listener(&mut self) -> Option<CloseOnFork> {
        self.listener.take()
    }

    /// Returns the name.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.lock.name
    }
}
