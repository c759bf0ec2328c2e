//! Error numbers as people know them.

use rustix::io::Errno;

/// The symbol of an error number, such as `EPERM`.
pub(crate) fn name(errno: Errno) -> String {
    let known = match errno {
        Errno::ACCESS => "EACCES",
        Errno::AGAIN => "EAGAIN",
        Errno::BADF => "EBADF",
        Errno::BUSY => "EBUSY",
        Errno::CONNREFUSED => "ECONNREFUSED",
        Errno::FAULT => "EFAULT",
        Errno::INVAL => "EINVAL",
        Errno::IO => "EIO",
        Errno::MFILE => "EMFILE",
        Errno::NFILE => "ENFILE",
        Errno::NODEV => "ENODEV",
        Errno::NOENT => "ENOENT",
        Errno::NOMEM => "ENOMEM",
        Errno::NOPROTOOPT => "ENOPROTOOPT",
        Errno::NOSPC => "ENOSPC",
        Errno::NOSYS => "ENOSYS",
        Errno::NOTSUP => "EOPNOTSUPP",
        Errno::NOTTY => "ENOTTY",
        Errno::PERM => "EPERM",
        Errno::SRCH => "ESRCH",
        Errno::TIMEDOUT => "ETIMEDOUT",
        _ => return format!("errno {}", errno.raw_os_error()),
    };
    known.to_owned()
}

/// Whether the error says that something ran short just now, so that nothing is known about what was tried.
pub(crate) fn ran_short(errno: Errno) -> bool {
    matches!(errno, Errno::MFILE | Errno::NFILE | Errno::NOMEM | Errno::AGAIN | Errno::BUSY | Errno::NOBUFS)
}

/// Whether the error says that this process may not.
pub(crate) fn refused(errno: Errno) -> bool {
    matches!(errno, Errno::PERM | Errno::ACCESS)
}

/// What to do when something ran short.
pub(crate) fn make_room(errno: Errno) -> &'static str {
    match errno {
        Errno::MFILE => "Raise the limit of open files (ulimit -n) and run again.",
        Errno::NFILE => "The whole system is out of open files: raise fs.file-max.",
        Errno::NOMEM => "Free some memory or raise ulimit -v, and run again.",
        _ => "Run again when the machine is less busy.",
    }
}
