//! [`ReceivedFd`]: a descriptor that came from another process.

use core::sync::atomic::{AtomicU32, Ordering};
use std::os::fd::{AsFd, BorrowedFd, FromRawFd, IntoRawFd, OwnedFd};

use crate::background;

/// A descriptor that another process sent, of an unknown file.
///
/// Closing it can wait: for a file server (FUSE), or for the linger time of a socket (`SO_LINGER`,
/// `socket(7)`). Dropping this does not wait: a thread of its own closes what is not shared memory.
/// At most 64 such threads run at a time. If there is no further thread, the descriptor stays open.
#[derive(Debug)]
pub struct ReceivedFd(Option<OwnedFd>);

const MOST_CLOSERS: u32 = 64;

static CLOSERS: AtomicU32 = AtomicU32::new(0);

impl ReceivedFd {
    /// Returns the descriptor, which the caller closes. For a caller that knows that closing cannot
    /// block.
    #[must_use]
    pub fn into_inner(mut self) -> OwnedFd {
        self.0.take().unwrap_or_else(|| unreachable!("only dropping takes it, too"))
    }
}

impl From<OwnedFd> for ReceivedFd {
    fn from(fd: OwnedFd) -> Self {
        Self(Some(fd))
    }
}

impl AsFd for ReceivedFd {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_ref().unwrap_or_else(|| unreachable!("only dropping takes it, too")).as_fd()
    }
}

impl Drop for ReceivedFd {
    fn drop(&mut self) {
        // The kernel answers this itself, and only for shared memory, which closes without a wait.
        if let Some(fd) = self.0.take()
            && rustix::fs::fcntl_get_seals(&fd).is_err()
        {
            close_in_thread(fd);
        }
    }
}

#[cold]
fn close_in_thread(fd: OwnedFd) {
    let more = |closers: u32| (closers < MOST_CLOSERS).then_some(closers + 1);
    // A number, so that nothing is closed here if no thread begins.
    let number = fd.into_raw_fd();
    if CLOSERS.fetch_update(Ordering::Relaxed, Ordering::Relaxed, more).is_err() {
        tracing::warn!(number, "a descriptor of another process stays open: too many are being closed");
        return;
    }
    let begun = background::spawn(c"umf-close", 256 << 10, move || {
        // SAFETY: it was given up above, to this thread alone.
        drop(unsafe { OwnedFd::from_raw_fd(number) });
        CLOSERS.fetch_sub(1, Ordering::Relaxed);
    });
    if let Err(error) = begun {
        CLOSERS.fetch_sub(1, Ordering::Relaxed);
        tracing::warn!(number, %error, "a descriptor of another process stays open: no thread closes it");
    }
}
