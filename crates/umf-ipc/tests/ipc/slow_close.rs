//! Descriptors of peers whose last close waits.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

use std::io::{ErrorKind, IoSlice, Write};
use std::mem::MaybeUninit;
use std::net::{TcpListener, TcpStream};
use std::os::fd::{AsFd, OwnedFd};
use std::sync::mpsc;
use std::time::Duration;

use rustix::net::{
    AddressFamily, SendAncillaryBuffer, SendAncillaryMessage, SendFlags, SocketFlags, SocketType,
};
use umf_core::{Access, Error, Import, ImportRequest};
use umf_ipc::fd_socket::{Answer, Deadline, receive};
use umf_provider_host::HostImport;

/// A TCP socket whose close waits an hour for its unsent bytes (`SO_LINGER`), and its peer, which
/// reads none of them.
fn lingering() -> (OwnedFd, TcpStream) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let mut socket = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    let (peer, _) = listener.accept().unwrap();
    rustix::net::sockopt::set_socket_linger(&socket, Some(Duration::from_secs(3600))).unwrap();
    socket.set_nonblocking(true).unwrap();
    let full = loop {
        if let Err(error) = socket.write(&[1; 1 << 16]) {
            break error;
        }
    };
    assert_eq!(full.kind(), ErrorKind::WouldBlock);
    socket.set_nonblocking(false).unwrap();
    (socket.into(), peer)
}

/// Runs `call` in a thread; fails if it does not return.
fn returns<T: Send + 'static>(call: impl FnOnce() -> T + Send + 'static) -> T {
    let (done, result) = mpsc::channel();
    std::thread::spawn(move || done.send(call()));
    result.recv_timeout(Duration::from_secs(30)).expect("a call that waits for no peer")
}

#[test]
fn descriptors_of_answer_are_closed_without_wait() {
    // One, as the answer has it; more; and more than any answer has room for.
    for count in [1, 2, 9] {
        let (fds, _peers): (Vec<_>, Vec<_>) = (0..count).map(|_| lingering()).unzip();
        let (producer, importer) =
            rustix::net::socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)
                .unwrap();
        let borrowed: Vec<_> = fds.iter().map(AsFd::as_fd).collect();
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(9))];
        let mut control = SendAncillaryBuffer::new(&mut space);
        assert!(control.push(SendAncillaryMessage::ScmRights(&borrowed)));
        let ok = IoSlice::new(b"UMFA\0\0\0\0\0\0\0\0\0\0\0\0");
        rustix::net::sendmsg(&producer, &[ok], &mut control, SendFlags::NOSIGNAL).unwrap();
        // Those in flight are the last.
        drop(fds);
        let is_fd = returns(move || {
            let answer = receive(&importer, Deadline::after(Duration::from_secs(5))).unwrap();
            matches!(answer, Answer::Fd { .. })
        });
        assert_eq!(is_fd, count == 1);
    }
}

#[test]
fn refused_import_is_closed_without_wait() {
    let (fd, _peer) = lingering();
    let request = ImportRequest::new(Some(fd), 0, 4096, Access::ReadWrite);
    let imported = returns(move || HostImport::new().import(request));
    assert!(matches!(imported, Err(Error::Untrusted { .. })), "{imported:?}");
}
