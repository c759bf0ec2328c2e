//! System calls of this crate.

mod close_on_fork;
mod files;
mod locks;
mod memory;
mod peers;
mod processes;

pub use close_on_fork::CloseOnFork;
pub use files::TMPFS_MAGIC;
pub(crate) use files::{
    CheckedFd, FileIdentity, filesystem, identity, is_regular, open_path, read_at, reopen, size,
};
pub(crate) use locks::Locks;
pub use locks::Reopened;
pub(crate) use memory::{SharedMapping, add_seals, is_sealed, memfd_device, populate, punch, wipe_on_fork};
pub use memory::{memfd, reserve};
pub use peers::{Peer, peer, peer_of, so_peerpidfd};
pub(crate) use peers::{refuse_descriptors, unread};
pub(crate) use processes::{
    boot_time, fds_of_other_thread, is_dumpable, pid, pidfd_getfd, pidfd_open, sees_itself_in_proc,
    set_ptracer,
};
pub use processes::{has_ended, random};
pub(crate) use umf_os::process::descriptor_limit;
pub use umf_os::process::{effective_uid, file_size_limit};

pub(crate) type Result<T> = core::result::Result<T, rustix::io::Errno>;
