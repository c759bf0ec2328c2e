//! Transfer of an fd to the process that opens a handle, for drivers that do it themselves: with
//! `pidfd_getfd(2)`, or over a socket on which the exporter serves ([`FdServer`]).

use std::io::{IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use rustix::io::Errno;
use rustix::net::sockopt::{Timeout, set_socket_timeout, socket_peercred};
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, Shutdown, SocketAddrUnix, SocketFlags, SocketType,
};

use crate::{Error, Result, sys};

/// How long each side of a connection waits for the other.
const PEER_TIMEOUT: Duration = Duration::from_secs(2);

/// Lets all processes of this user take fds from this one with `pidfd_getfd`.
///
/// # Errors
/// [`Error::System`] if the kernel does not have yama.
pub fn allow_fd_transfer() -> Result<()> {
    Ok(sys::allow_tracing_by_all()?)
}

/// Takes an fd from another process with `pidfd_getfd`.
///
/// # Errors
/// [`Error::Invalid`] if the kernel does not allow it.
pub fn fetch_fd_by_pidfd(pid: i32, fd: i32) -> Result<OwnedFd> {
    sys::fd_of_process(pid, fd).map_err(|_| Error::Invalid)
}

fn address(name: &str, pid: i32) -> core::result::Result<SocketAddrUnix, Errno> {
    SocketAddrUnix::new_abstract_name(format!("{name}_{pid}").as_bytes())
}

fn socket() -> core::result::Result<OwnedFd, Errno> {
    let socket =
        rustix::net::socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)?;
    set_socket_timeout(&socket, Timeout::Send, Some(PEER_TIMEOUT))?;
    set_socket_timeout(&socket, Timeout::Recv, Some(PEER_TIMEOUT))?;
    Ok(socket)
}

/// Requests an fd from another process, in which an [`FdServer`] of this name runs.
///
/// # Errors
/// [`Error::Invalid`] if the process does not reply, or sends no fd.
pub fn fetch_fd_by_socket(name: &str, pid: i32, fd: i32) -> Result<OwnedFd> {
    let ask = || -> core::result::Result<OwnedFd, Errno> {
        let socket = socket()?;
        rustix::net::connect(&socket, &address(name, pid)?)?;
        rustix::net::send(&socket, &fd.to_ne_bytes(), SendFlags::NOSIGNAL)?;
        let mut answer = [0_u8];
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
        let mut control = RecvAncillaryBuffer::new(&mut space);
        rustix::net::recvmsg(
            &socket,
            &mut [IoSliceMut::new(&mut answer)],
            &mut control,
            RecvFlags::CMSG_CLOEXEC,
        )?;
        let fds = control.drain().filter_map(|message| match message {
            RecvAncillaryMessage::ScmRights(fds) => Some(fds),
            _ => None,
        });
        let fd = fds.flatten().next().ok_or(Errno::ACCESS);
        // Waits until the server has closed the connection, and with it its copy of the fd.
        let _ = rustix::net::recv(&socket, &mut [0_u8], RecvFlags::empty());
        fd
    };
    ask().map_err(|_| Error::Invalid)
}

/// A thread that serves fds of this process to processes of the same user.
pub struct FdServer {
    listener: Arc<OwnedFd>,
    is_over: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl FdServer {
    /// Starts serving on the abstract socket `<name>_<pid>`. `find` returns the fd of a number if
    /// it is exported.
    ///
    /// # Errors
    /// [`Error::System`] if the socket or the thread cannot be created.
    pub fn start(name: &str, find: impl Fn(i32) -> Option<OwnedFd> + Send + 'static) -> Result<Self> {
        let listen = || -> core::result::Result<_, Errno> {
            let listener = rustix::net::socket_with(
                AddressFamily::UNIX,
                SocketType::SEQPACKET,
                SocketFlags::CLOEXEC,
                None,
            )?;
            rustix::net::bind(&listener, &address(name, rustix::process::getpid().as_raw_nonzero().get())?)?;
            rustix::net::listen(&listener, 64)?;
            Ok(Arc::new(listener))
        };
        let listener = listen()?;
        let shared = Arc::clone(&listener);
        let is_over = Arc::<AtomicBool>::default();
        let over = Arc::clone(&is_over);
        let thread = std::thread::Builder::new()
            .name("soft-device-ipc".into())
            .spawn(move || {
                while !over.load(Ordering::Acquire) {
                    match rustix::net::accept_with(&shared, SocketFlags::CLOEXEC) {
                        // Errors of a connection affect that client only.
                        Ok(connection) => drop(serve(&connection, &find)),
                        // Most likely the process is out of fds: retry later.
                        Err(_) => std::thread::sleep(Duration::from_millis(10)),
                    }
                }
            })
            .map_err(|error| Error::System(Errno::from_io_error(&error).unwrap_or(Errno::AGAIN)))?;
        Ok(Self { listener, is_over, thread: Some(thread) })
    }
}

fn serve(connection: &OwnedFd, find: &impl Fn(i32) -> Option<OwnedFd>) -> core::result::Result<(), Errno> {
    set_socket_timeout(connection, Timeout::Send, Some(PEER_TIMEOUT))?;
    set_socket_timeout(connection, Timeout::Recv, Some(PEER_TIMEOUT))?;
    let peer = socket_peercred(connection)?.uid;
    let mut number = [0; size_of::<i32>()];
    let (_, received) = rustix::net::recv(connection, &mut number, RecvFlags::empty())?;
    let is_ours = peer == rustix::process::geteuid() || peer.is_root();
    let found = (is_ours && received == number.len()).then(|| find(i32::from_ne_bytes(number))).flatten();
    let fds: Vec<_> = found.iter().map(AsFd::as_fd).collect();
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    if !fds.is_empty() {
        control.push(SendAncillaryMessage::ScmRights(&fds));
    }
    rustix::net::sendmsg(connection, &[IoSlice::new(&[0])], &mut control, SendFlags::NOSIGNAL)?;
    Ok(())
}

impl Drop for FdServer {
    fn drop(&mut self) {
        self.is_over.store(true, Ordering::Release);
        // Wakes the thread in `accept`.
        let _ = rustix::net::shutdown(&*self.listener, Shutdown::Both);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}
