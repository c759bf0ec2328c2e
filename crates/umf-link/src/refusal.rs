//! What follows from a refusal: of the kernel, or of who opens memory.

use core::sync::atomic::Ordering;

use rustix::io::Errno;

use crate::Error;
use crate::shared::Shared;

impl Shared {
    /// Memory of the peer that cannot be opened. Of a peer that is gone it says that, and not what follows from it.
    pub(crate) fn not_opened(&self, error: umf_ipc::Error) -> Error {
        use umf_ipc::Error as Ipc;
        match (self.look(), error) {
            (Err(end), _) => end,
            // Others' memory may be handed on.
            (Ok(()), Ipc::ProducerGone { pid } | Ipc::ProducerReplaced { pid, .. })
                if i64::from(pid) == i64::from(self.pid) =>
            {
                Error::PeerGone { pid: self.pid }
            }
            (Ok(()), error) => Error::Open { pid: self.pid, error },
        }
    }

    /// A copy that the kernel refuses. What will not change is remembered.
    pub(crate) fn refused(&self, errno: Errno, call: &'static str) -> Error {
        if let Err(end) = self.look() {
            return end;
        }
        // Its memory goes before its socket is closed.
        if errno == Errno::SRCH {
            return Error::PeerGone { pid: self.pid };
        }
        if matches!(errno, Errno::PERM | Errno::NOSYS) {
            self.cma.store(false, Ordering::Relaxed);
        }
        Error::system(call)(errno)
    }
}
