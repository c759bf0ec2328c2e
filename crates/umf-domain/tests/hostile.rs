//! A process of the same user that answers requests of a join with invalid data.

#![allow(clippy::unwrap_used, reason = "a failed step ends the test")]

use std::io::{IoSlice, Write};
use std::mem::MaybeUninit;
use std::net::{TcpListener, TcpStream};
use std::os::fd::{AsFd, OwnedFd};
use std::sync::{Mutex, PoisonError, mpsc};
use std::time::{Duration, Instant};

use rustix::fs::{MemfdFlags, SealFlags};
use rustix::net::{
    AddressFamily, RecvFlags, SendAncillaryBuffer, SendAncillaryMessage, SendFlags, SocketAddrUnix,
    SocketFlags, SocketType,
};
use umf_domain::{Domain, DomainSettings, Error};

/// Listens on the socket name of participant 0.
fn listen(domain: &str) -> OwnedFd {
    let uid = rustix::process::geteuid().as_raw();
    let address =
        SocketAddrUnix::new_abstract_name(format!("umf-domain-{uid}-0-{domain}").as_bytes()).unwrap();
    let flags = SocketFlags::CLOEXEC;
    let socket = rustix::net::socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None).unwrap();
    rustix::net::bind(&socket, &address).unwrap();
    rustix::net::listen(&socket, 8).unwrap();
    socket
}

fn answer(connection: &OwnedFd, bytes: &[u8], fds: &[OwnedFd]) {
    let fds: Vec<_> = fds.iter().map(AsFd::as_fd).collect();
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(4))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    if !fds.is_empty() {
        assert!(control.push(SendAncillaryMessage::ScmRights(&fds)));
    }
    rustix::net::sendmsg(connection, &[IoSlice::new(bytes)], &mut control, SendFlags::NOSIGNAL).unwrap();
}

fn memfd(size: u64, seals: SealFlags) -> OwnedFd {
    let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
    let fd = rustix::fs::memfd_create("umf-hostile", flags).unwrap();
    rustix::fs::ftruncate(&fd, size).unwrap();
    rustix::fs::fcntl_add_seals(&fd, seals).unwrap();
    fd
}

fn fds_of_this_process() -> usize {
    std::fs::read_dir("/proc/self/fd").unwrap().count()
}

/// Serialises the tests, which count the descriptors of the process.
static SERIAL: Mutex<()> = Mutex::new(());

#[test]
fn invalid_answers_fail_join_as_misbehaved() {
    let _serial = SERIAL.lock().unwrap_or_else(PoisonError::into_inner);
    let ok = b"UMFA\0\0\0\0\0\0\0\0\0\0\0\0".as_slice();
    let sealed = SealFlags::SHRINK | SealFlags::GROW;
    let null = || OwnedFd::from(std::fs::File::open("/dev/null").unwrap());
    let table = 45056 + 168 * 1024;
    let cases: Vec<(&str, &[u8], Vec<OwnedFd>)> = vec![
        ("junk", b"junk", vec![]),
        ("empty", b"", vec![null()]),
        ("no fd", ok, vec![]),
        ("two fds", ok, vec![null(), null()]),
        ("too long", &[0; 64], vec![null()]),
        ("a device", ok, vec![null()]),
        ("not sealed", ok, vec![memfd(table, SealFlags::empty())]),
        ("too small", ok, vec![memfd(8, sealed)]),
        ("no multiple", ok, vec![memfd(table + 8, sealed)]),
        ("huge", ok, vec![memfd(1 << 50, sealed)]),
        ("zeros", ok, vec![memfd(table, sealed)]),
    ];
    for (case, bytes, fds) in cases {
        let domain = format!("hostile-{}-{}", std::process::id(), case.replace(' ', "-"));
        let listener = listen(&domain);
        let before = fds_of_this_process();
        std::thread::scope(|scope| {
            let joiner = scope.spawn(|| {
                let began = Instant::now();
                (Domain::join(&domain, DomainSettings::default()), began.elapsed())
            });
            let connection = rustix::net::accept_with(&listener, SocketFlags::CLOEXEC).unwrap();
            rustix::net::recv(&connection, &mut [0; 64], RecvFlags::empty()).unwrap();
            answer(&connection, bytes, &fds);
            let (joined, elapsed) = joiner.join().unwrap();
            assert!(matches!(joined, Err(Error::Misbehaved { .. })), "{case}: {joined:?}");
            assert!(elapsed < Duration::from_secs(2), "{case}");
        });
        // A background thread closes received files that are not memory.
        while fds_of_this_process() > before {
            std::thread::yield_now();
        }
        // The name is free again, so that a domain can be founded.
        drop(listener);
        Domain::join(&domain, DomainSettings::default()).unwrap();
    }
}

/// A descriptor whose last close blocks for an hour on unread bytes (`SO_LINGER`).
#[test]
fn slow_close_of_received_fd_does_not_delay_join() {
    let _serial = SERIAL.lock().unwrap_or_else(PoisonError::into_inner);
    let domain = format!("hostile-{}-slow", std::process::id());
    let listener = listen(&domain);
    let acceptor = TcpListener::bind("127.0.0.1:0").unwrap();
    let mut socket = TcpStream::connect(acceptor.local_addr().unwrap()).unwrap();
    let _peer = acceptor.accept().unwrap();
    rustix::net::sockopt::set_socket_linger(&socket, Some(Duration::from_secs(3600))).unwrap();
    socket.set_nonblocking(true).unwrap();
    while socket.write(&[1; 1 << 16]).is_ok() {}
    let (done, result) = mpsc::channel();
    let joined = domain.clone();
    std::thread::spawn(move || done.send(Domain::join(&joined, DomainSettings::default()).map(drop)));
    let connection = rustix::net::accept_with(&listener, SocketFlags::CLOEXEC).unwrap();
    rustix::net::recv(&connection, &mut [0; 64], RecvFlags::empty()).unwrap();
    socket.set_nonblocking(false).unwrap();
    let fds = [OwnedFd::from(socket)];
    answer(&connection, b"UMFA\0\0\0\0\0\0\0\0\0\0\0\0", &fds);
    // The copy in flight is the last one, unless the other thread is quicker. Then this close
    // blocks.
    std::thread::spawn(move || drop(fds));
    let joined = result.recv_timeout(Duration::from_secs(30)).expect("join does not wait for the close");
    assert!(matches!(joined, Err(Error::Misbehaved { .. })), "{joined:?}");
}
