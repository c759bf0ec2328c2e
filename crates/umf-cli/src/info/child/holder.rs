//! The child that holds the secret.

use std::os::fd::{AsFd, AsRawFd};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixListener};
use std::time::{Duration, Instant};

use rustix::fs::MemfdFlags;

use super::say;
use super::siblings::{Announcement, Held, Refusal};
use crate::sys;

/// Announces the secret and hands it to whoever asks on the socket, until standard input closes or `time` is over.
pub(super) fn hold(time: Duration) -> std::io::Result<()> {
    let deadline = Instant::now() + time;
    let secret = sys::random()?;
    let memory = Box::new(secret);
    let memfd = sys::memfd(sys::page_size(), MemfdFlags::empty())?;
    sys::write_word(memfd.as_fd(), secret)?;

    let name = format!("umf-info-{:016x}", sys::random()?);
    let listener = listen(&name).map_err(Refusal::of_io("bind"));
    let held = Held {
        fd: memfd.as_raw_fd(),
        address: (&raw const *memory).expose_provenance() as u64,
        socket: listener.as_ref().map(|_| name).map_err(Clone::clone),
    };
    say(&Announcement { secret, held })?;

    let stdin = std::io::stdin();
    let mut fds = vec![stdin.as_fd()];
    fds.extend(listener.as_ref().ok().map(AsFd::as_fd));
    loop {
        let left = deadline.saturating_duration_since(Instant::now());
        if left.is_zero() || sys::wait_readable(&fds[..1], Duration::ZERO)? {
            break;
        }
        if sys::wait_readable(&fds, left)?
            && let Ok(listener) = &listener
            && let Ok((peer, _)) = listener.accept()
            && sys::peer_uid(peer.as_fd()) == Ok(sys::effective_uid())
        {
            // The reacher reports what it did not get.
            let _ = sys::send_fd(peer.as_fd(), memfd.as_fd());
        }
    }
    // The word stays where the announcement says that it is until here.
    std::hint::black_box(&memory);
    Ok(())
}

fn listen(name: &str) -> std::io::Result<UnixListener> {
    let listener = UnixListener::bind_addr(&SocketAddr::from_abstract_name(name)?)?;
    listener.set_nonblocking(true)?;
    Ok(listener)
}
