//! Descriptors of the program and of other processes: umf closes only its own, and closing a
//! received one does not wait.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

use std::io::{ErrorKind, IoSlice, Write};
use std::mem::MaybeUninit;
use std::net::{TcpListener, TcpStream};
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::sync::{Arc, mpsc};
use std::time::Duration;

use rustix::net::{
    AddressFamily, SendAncillaryBuffer, SendAncillaryMessage, SendFlags, SocketFlags, SocketType,
};
use umf_core::{Access, Error, Import, ImportRequest, Layout, Pool, Visibility};
use umf_ipc::fd_socket::{Answer, Deadline, receive};
use umf_ipc::{Exchange, Exporter, ExporterSettings, Importer, Mode};
use umf_pool_slab::{SlabPool, SlabSettings};
use umf_provider_host::{HostImport, HostProvider};

use crate::alone::ran_alone;

/// Contents of the program's files.
static CONTENTS: [u8; 1 << 16] = [0x5a; 1 << 16];

/// Returns the numbers of all descriptors but the standard streams; `None` without `/proc`.
fn numbers() -> Option<Vec<i32>> {
    let entries = std::fs::read_dir("/proc/self/fd").ok()?;
    let names = entries.map(|entry| entry.unwrap().file_name());
    let numbers = names.map(|name| name.to_str().unwrap().parse().unwrap());
    Some(numbers.filter(|&number: &i32| number > 2).collect())
}

/// Daemons close all descriptors and open other files under their numbers. Runs alone in a process,
/// whose descriptors it closes.
#[test]
fn descriptors_of_the_program_are_not_closed() {
    if ran_alone("descriptors::descriptors_of_the_program_are_not_closed") {
        return;
    }
    let provider = HostProvider::builder().visibility(Visibility::Shared).build().unwrap();
    let pool = SlabPool::new(provider, SlabSettings::new()).unwrap();
    let mut settings = ExporterSettings::default();
    // Without a socket, whose thread has descriptors too.
    settings.exchange = Exchange::only(Mode::Procfs);
    let exporter = Exporter::new(settings).unwrap();
    let layout = |size| Layout::new(size, 16).unwrap();
    let blocks: Vec<_> = (0..20).map(|_| pool.allocate(layout(100_000)).unwrap()).collect();
    // SAFETY: the test does not touch the memory.
    let handles = [0, 1].map(|block| unsafe { exporter.handle(blocks[block]) }.unwrap());
    let import = Arc::new(HostImport::new());
    let exchange = Exchange::only(Mode::Procfs);
    let importer = Importer::builder().import(import).exchange(exchange).build().unwrap();
    let mapping = importer.open(&handles[0]).unwrap();

    let Some(numbers) = numbers() else {
        println!("umf-skip: closing descriptors: /proc/self/fd does not show them");
        return;
    };
    for &number in &numbers {
        // SAFETY: the test checks that umf detects closed descriptors.
        unsafe { libc::close(number) };
    }
    let mut files: Vec<OwnedFd> = Vec::new();
    while files.last().is_none_or(|file| numbers.iter().any(|&number| number > file.as_raw_fd())) {
        let file = rustix::fs::memfd_create(c"own", rustix::fs::MemfdFlags::CLOEXEC).unwrap();
        assert_eq!(rustix::io::pwrite(&file, &CONTENTS, 0), Ok(CONTENTS.len()));
        files.push(file);
    }

    assert!(mapping.is_current());
    importer.open(&handles[1]).unwrap();
    drop(mapping);
    drop(importer);
    for block in blocks {
        // SAFETY: the test's own block, which nothing uses.
        unsafe { pool.free(block) }.unwrap();
    }
    assert!(pool.trim(0).unwrap() > 0);
    let refused = pool.allocate(layout(64 << 20));
    assert!(matches!(refused, Err(Error::Native { native: libc::EBADF, .. })), "{refused:?}");
    drop(exporter);
    drop(pool);

    for file in files {
        let mut content = vec![0; CONTENTS.len()];
        assert_eq!(rustix::io::pread(&file, &mut content[..], 0), Ok(CONTENTS.len()));
        assert!(content == CONTENTS, "the program's file has changed");
        let size = rustix::fs::fstat(&file).unwrap().st_size;
        assert_eq!(size, i64::try_from(CONTENTS.len()).unwrap());
    }
}

/// Returns a TCP socket whose close waits an hour for its unsent bytes (`SO_LINGER`), and its peer,
/// which reads none of them.
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

/// Calls `call` in a thread. Fails if it does not return.
fn returns<T: Send + 'static>(call: impl FnOnce() -> T + Send + 'static) -> T {
    let (done, result) = mpsc::channel();
    std::thread::spawn(move || done.send(call()));
    result.recv_timeout(Duration::from_secs(30)).expect("the call does not wait for the peer")
}

#[test]
fn descriptors_of_answer_are_closed_without_wait() {
    // One descriptor, as in a valid answer, and two numbers of surplus ones.
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
        // Only those in flight remain.
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
