//! A fork while a registration replaces another one, which drops the pool of the replaced one.

#![allow(clippy::unwrap_used, reason = "tests")]

use crate::alone::ran_alone;
use std::sync::{Arc, mpsc};
use std::time::Duration;

use umf_core::{Import, ImportRequest, Imported, ProviderKind, Visibility};
use umf_pool_proxy::ProxyPool;
use umf_provider_host::HostProvider;

fn pool() -> Arc<ProxyPool> {
    let provider: Arc<HostProvider> =
        HostProvider::builder().visibility(Visibility::Private).build().unwrap();
    ProxyPool::new(provider).unwrap()
}

fn fork_and_wait() {
    // SAFETY: the child ends at once.
    let pid = unsafe { libc::fork() };
    if pid == 0 {
        // SAFETY: as above.
        unsafe { libc::_exit(0) };
    }
    // SAFETY: waits for the child made above.
    assert_eq!(unsafe { libc::waitpid(pid, core::ptr::null_mut(), 0) }, pid);
}

/// Owns a pool. While it is dropped, another thread forks.
struct Owner(Option<Arc<ProxyPool>>);

impl Drop for Owner {
    fn drop(&mut self) {
        let fork = std::thread::spawn(fork_and_wait);
        // Time for the other thread to reach the locks of the fork.
        std::thread::sleep(Duration::from_millis(200));
        drop(self.0.take());
        fork.join().unwrap();
    }
}

/// An import that opens nothing.
struct Opening {
    _owner: Option<Owner>,
}

// SAFETY: nothing is imported.
unsafe impl Import for Opening {
    fn kind(&self) -> ProviderKind {
        ProviderKind::new("registry-fork").unwrap()
    }

    fn import(&self, _: ImportRequest) -> umf_core::Result<Imported> {
        Err(umf_core::Error::TooMany { what: "of these", limit: 0 })
    }

    unsafe fn release(&self, _: Imported) -> umf_core::Result<()> {
        Ok(())
    }
}

#[test]
fn replaced_import_is_dropped_without_the_lock() {
    if ran_alone("registry_fork::replaced_import_is_dropped_without_the_lock") {
        return;
    }
    let (done, when_done) = mpsc::channel();
    // The thread is not joined, because it never ends if the test fails.
    std::thread::spawn(move || {
        umf::registry::register_import(Arc::new(Opening { _owner: Some(Owner(Some(pool()))) }));
        umf::registry::register_import(Arc::new(Opening { _owner: None }));
        done.send(()).unwrap();
    });
    when_done
        .recv_timeout(Duration::from_secs(20))
        .expect("a fork and the end of a pool wait for each other");
}
