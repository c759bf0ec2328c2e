//! Remote memory of the process: one server for all guards, and one importer.

use crate::alone::ran_alone;
use umf::Error;
use umf::remote::{self, Error as RemoteError};
use umf::settings::Loader;

/// Reads memory of this process over the fabric, at the loopback interface.
fn init() {
    let loader = Loader::new().set("remote.local", false).set("remote.timeout_ms", 20_000);
    // A provider that the environment names may have no interfaces.
    let has_provider = std::env::var_os("UMF_REMOTE_PROVIDER").is_some();
    let loader = if has_provider { loader } else { loader.set("remote.interface", "127.0.0.1") };
    umf::init(loader).unwrap();
}

/// Starts the server, or prints why the test is skipped.
fn serve(test: &str) -> Option<remote::Serving> {
    match remote::serve() {
        Err(Error::Remote(error @ (RemoteError::NoLibrary(_) | RemoteError::NoProvider { .. }))) => {
            println!("umf-skip: {test}: {error}");
            None
        }
        serving => Some(serving.unwrap()),
    }
}

/// Returns a block, and the bytes of its remote handle.
fn block() -> (umf::OwnedBlock, Vec<u8>) {
    let block = umf::Pool::shared().unwrap().allocate_owned(100_000).unwrap();
    block.write(99_990, b"remote").unwrap();
    let handle = block.remote_handle().unwrap();
    (block, handle.to_bytes())
}

#[test]
fn guards_share_one_server() {
    if ran_alone("remote::guards_share_one_server") {
        return;
    }
    init();
    let block = umf::Pool::shared().unwrap().allocate_owned(100).unwrap();
    let refused = block.remote_handle();
    assert!(matches!(refused, Err(Error::Remote(RemoteError::NotServing))), "{refused:?}");
    let Some(first) = serve("guards_share_one_server") else { return };
    let second = remote::serve().unwrap();
    assert_eq!(first.address(), second.address());
    drop(first);
    assert!(remote::statistics().is_some());
    block.remote_handle().unwrap();
    drop(second);
    assert!(remote::statistics().is_none());
    assert!(matches!(block.remote_handle(), Err(Error::Remote(RemoteError::NotServing))));
    let third = remote::serve().unwrap();
    assert_eq!(remote::statistics(), Some(third.statistics()));
}

#[test]
fn block_is_read_and_written_over_the_fabric() {
    if ran_alone("remote::block_is_read_and_written_over_the_fabric") {
        return;
    }
    init();
    let Some(serving) = serve("block_is_read_and_written_over_the_fabric") else { return };
    let (block, bytes) = block();
    let opened = remote::open(&bytes).unwrap();
    assert!(opened.mapping().is_none());
    assert_eq!(&*opened.read(99_990, 6).unwrap(), b"remote");
    assert_eq!(&opened.read(0, 100_000).unwrap()[99_990..99_996], b"remote");
    let grant = opened.grant(std::time::Duration::from_secs(5)).unwrap();
    grant.write(3, b"written").unwrap();
    assert_eq!(serving.statistics().grants, 1);
    grant.end().unwrap();
    let mut written = [0; 7];
    block.read(3, &mut written).unwrap();
    assert_eq!(&written, b"written");
    drop(block);
    assert!(matches!(opened.read(0, 6), Err(RemoteError::Stale { .. })));
    assert!(matches!(remote::open(&bytes[..300]), Err(Error::Remote(RemoteError::Route(_)))));
}

#[test]
fn plain_handle_is_mapped() {
    if ran_alone("remote::plain_handle_is_mapped") {
        return;
    }
    let block = umf::Pool::shared().unwrap().allocate_owned(100).unwrap();
    block.write(0, b"here").unwrap();
    let opened = remote::open(block.handle().unwrap().as_bytes()).unwrap();
    assert!(opened.mapping().is_some());
    assert_eq!(&*opened.read(0, 4).unwrap(), b"here");
}

#[test]
fn forked_child_has_no_server() {
    if ran_alone("remote::forked_child_has_no_server") {
        return;
    }
    init();
    let Some(serving) = serve("forked_child_has_no_server") else { return };
    let (_block, bytes) = block();
    // SAFETY: the child uses umf, which supports that after a fork, and ends without destructors of
    // the test harness.
    let child = unsafe { libc::fork() };
    if child == 0 {
        let has_none = remote::statistics().is_none();
        let own = umf::Pool::shared().unwrap().allocate_owned(100).unwrap();
        let refused = matches!(own.remote_handle(), Err(Error::Remote(RemoteError::NotServing)));
        drop(serving);
        let restarts = remote::serve().is_ok_and(|serving| {
            own.remote_handle().is_ok() && remote::statistics() == Some(serving.statistics())
        });
        let code = i32::from(!has_none) | i32::from(!refused) << 1 | i32::from(!restarts) << 2;
        // SAFETY: ends the child.
        unsafe { libc::_exit(code) };
    }
    let mut status = -1;
    // SAFETY: waits for the child made above.
    assert_eq!(unsafe { libc::waitpid(child, &raw mut status, 0) }, child);
    assert_eq!(status, 0, "exit code {}", status >> 8);
    // The server of this process has gone on.
    assert_eq!(&*remote::open(&bytes).unwrap().read(99_990, 6).unwrap(), b"remote");
}
