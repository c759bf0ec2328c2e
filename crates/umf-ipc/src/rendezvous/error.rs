//! [`DirectoryError`]: what is wrong with a directory or a name in it.

use std::path::{Path, PathBuf};

use rustix::io::Errno;

/// The result of an operation on a directory.
pub type DirectoryResult<T> = Result<T, DirectoryError>;

/// The error of an operation on a rendezvous directory.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum DirectoryError {
    /// There is no such directory.
    #[error(
        "cannot use the directory {}: it does not exist here; mount the same volume into this container, create the \
         directory (mkdir -m 1777), and set UMF_IPC_DIR to its path in this container",
        path.display()
    )]
    Missing {
        /// The directory.
        path: PathBuf,
    },
    /// The path is no directory.
    #[error("cannot use {} as the directory of sockets: it is no directory; set UMF_IPC_DIR to a directory", path.display())]
    NotDirectory {
        /// The path.
        path: PathBuf,
    },
    /// Other users could replace the sockets of this process.
    #[error(
        "cannot use the directory {}: its mode is {mode:04o}, so that other users can replace the sockets in it; \
         chmod 1777 it (or 0700 for one user), or create such a directory in the volume",
        path.display()
    )]
    WritableByOthers {
        /// The directory.
        path: PathBuf,
        /// Its permissions (`chmod(2)`).
        mode: u32,
    },
    /// The socket is another user's, and its mode does not let this process connect.
    #[error("cannot connect to a socket in the directory {}: it belongs to uid {owner}, and its mode refuses this process", path.display())]
    OtherUser {
        /// The directory.
        path: PathBuf,
        /// The owner of the socket, in this user namespace.
        owner: u32,
    },
    /// A file has the name of a lock file, and is not one that this process may take.
    #[error(
        "cannot take the lock file {}: it belongs to uid {owner} and has {links} names, so that it may be another user's, \
         or a hard link of another file; remove it, and let only trusted users write to the directory",
        path.display()
    )]
    ForeignFile {
        /// The file.
        path: PathBuf,
        /// Its owner, in this user namespace.
        owner: u32,
        /// The number of its hard links.
        links: u64,
    },
    /// The kernel refuses a connection that the modes of the files permit.
    #[error(
        "cannot connect to a socket in the directory {} ({errno}): a security module (SELinux, AppArmor) forbids it; run \
         both with one SELinux label (--security-opt label=level:..., seLinuxOptions in the pod), or mount the volume with :z",
        path.display()
    )]
    SecurityModule {
        /// The directory.
        path: PathBuf,
        /// The error.
        errno: Errno,
    },
    /// The kernel refuses an operation.
    #[error("cannot use the directory {}: {operation} is not permitted ({errno}); {remedy}", path.display())]
    NotPermitted {
        /// The directory.
        path: PathBuf,
        /// What this process tried.
        operation: &'static str,
        /// The error.
        errno: Errno,
        /// What to do.
        remedy: &'static str,
    },
    /// Another error of the kernel.
    #[error("cannot use the directory {}: {operation} failed: {errno}; {hint}", path.display())]
    System {
        /// The directory.
        path: PathBuf,
        /// What failed.
        operation: &'static str,
        /// The error.
        errno: Errno,
        /// What to do.
        hint: &'static str,
    },
}

impl DirectoryError {
    /// Returns the error of an operation in the directory at `path`.
    pub(super) fn of(path: &Path, operation: &'static str, errno: Errno) -> Self {
        let path = path.to_owned();
        let remedy = match errno {
            Errno::ACCESS | Errno::PERM => {
                "give this process's user write and search permission (chown, chmod 1777, or fsGroup in Kubernetes), and search \
                 permission for the folders above it"
            }
            Errno::ROFS => "mount the volume writable (without :ro, or with readOnly: false)",
            _ => {
                let hint = match errno {
                    Errno::NOSPC | Errno::DQUOT => "free space or inodes in that file system",
                    Errno::NAMETOOLONG => "use a shorter path, or mount /proc",
                    Errno::NOLCK | Errno::NOSYS | Errno::NODEV | Errno::OPNOTSUPP => {
                        "its file system has no locks, sockets or shared mappings: use tmpfs or a local file system"
                    }
                    Errno::NOTSOCK | Errno::LOOP | Errno::PROTOTYPE => {
                        "another program has replaced the socket: let only trusted users write to the directory, and \
                         start again the process that had it"
                    }
                    Errno::MFILE => "raise RLIMIT_NOFILE (ulimit -n), or close descriptors",
                    Errno::NOENT => {
                        "the directory was removed, or its file system makes no files: use tmpfs or a local file system"
                    }
                    _ => "try another directory, on tmpfs or a local file system",
                };
                return Self::System { path, operation, errno, hint };
            }
        };
        Self::NotPermitted { path, operation, errno, remedy }
    }

    /// Returns the kernel's error; `None` if the directory itself is unsuitable.
    #[must_use]
    pub const fn errno(&self) -> Option<Errno> {
        match self {
            Self::NotPermitted { errno, .. }
            | Self::System { errno, .. }
            | Self::SecurityModule { errno, .. } => Some(*errno),
            Self::OtherUser { .. } => Some(Errno::ACCESS),
            _ => None,
        }
    }
}
