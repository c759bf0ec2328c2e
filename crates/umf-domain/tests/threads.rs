//! Threads of one process that use one domain, while the process forks.

#![allow(clippy::unwrap_used, reason = "a failed step ends the test")]

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use umf_domain::{Domain, DomainSettings, Error, Object, ObjectId};

fn fds() -> usize {
    std::fs::read_dir("/proc/self/fd").unwrap().count()
}

/// Checks inherited objects in a forked child, and joins there.
fn child(domain: &Domain, object: &Object, name: &str) -> Result<(), String> {
    let text = |error: Error| error.to_string();
    let inherited = object.view::<u64>().map_err(|error| error.to_string())?.get(0).ok_or("no memory")?;
    if inherited != u64::from(object.id()) || object.is_registered() {
        return Err(format!("{inherited:#x} in {object:?}"));
    }
    if !matches!(domain.create(1, 1), Err(Error::Forked)) {
        return Err("a child created an object in its parent's domain".to_owned());
    }
    let mut settings = DomainSettings::default();
    settings.timeout = Duration::from_secs(20);
    let own = Domain::join(name, settings).map_err(text)?;
    let same = own.register(object.id(), 1).map_err(text)?;
    if same.view::<u64>().ok().and_then(|view| view.get(0)) != Some(inherited) {
        return Err("another object".to_owned());
    }
    own.create(1, 2).map_err(text)?.unregister().map_err(text)
}

fn wait_for(pid: i32) -> i32 {
    let end = Instant::now() + Duration::from_secs(60);
    let mut status = 0;
    // SAFETY: a child of this process; `status` is valid for the write.
    while unsafe { libc::waitpid(pid, &raw mut status, libc::WNOHANG) } == 0 {
        if Instant::now() > end {
            // SAFETY: the child exists, since it was not reaped.
            unsafe { libc::kill(pid, libc::SIGKILL) };
        }
        std::thread::sleep(Duration::from_millis(1));
    }
    status
}

#[test]
fn concurrent_threads_and_forked_children_share_domain() {
    let name = format!("threads-{}", std::process::id());
    let before = fds();
    let mut settings = DomainSettings::default();
    // A busy machine is slow, not stopped.
    settings.timeout = Duration::from_secs(20);
    let domain = Domain::join(&name, settings.clone()).unwrap();
    let object = domain.create(4096, 1).unwrap();
    object.view().unwrap().set(0, u64::from(object.id())).unwrap();
    let stop = AtomicBool::new(false);
    let mut rounds = 0;
    std::thread::scope(|scope| {
        let (domain, object, stop, name) = (&domain, &object, &stop, &name);
        let work = move || {
            let mut rounds = 0_u64;
            let mut last = ObjectId::from(0);
            while !stop.load(Ordering::Relaxed) {
                // Joining again returns the same participant.
                let again = Domain::join(name, DomainSettings::default()).unwrap();
                let same = again.register(object.id(), 1).unwrap();
                let own = domain.create(4096, 2).unwrap();
                assert_ne!(own.id(), last);
                last = own.id();
                let twice = domain.register(last, 2).unwrap();
                assert!(matches!(domain.register(last, 3), Err(Error::WrongKind { kind: 2, wanted: 3, .. })));
                drop(own);
                assert!(twice.is_registered() && same.is_registered());
                drop(twice);
                assert!(matches!(domain.register(last, 2), Err(Error::NoSuchObject { .. })));
                rounds += 1;
            }
            rounds
        };
        let threads: Vec<_> = (0..3).map(|_| scope.spawn(work)).collect();
        for _ in 0..40 {
            // SAFETY: the fork handlers of the allocator and of umf keep both usable in the child.
            let pid = unsafe { libc::fork() };
            if pid == 0 {
                let code = match child(domain, object, name) {
                    Ok(()) => 0,
                    Err(error) => {
                        eprintln!("in a forked child: {error}");
                        1
                    }
                };
                // SAFETY: `_exit` runs no handlers or destructors of the parent.
                unsafe { libc::_exit(code) };
            }
            assert!(pid > 0);
            let status = wait_for(pid);
            if status != 0 {
                stop.store(true, Ordering::Relaxed);
            }
            assert_eq!(status, 0, "a child failed");
        }
        stop.store(true, Ordering::Relaxed);
        rounds = threads.into_iter().map(|thread| thread.join().unwrap()).sum();
    });
    assert!(rounds > 0);
    let listed = domain.objects().unwrap();
    assert_eq!(listed.len(), 1, "{listed:?}");
    assert_eq!((listed[0].id, listed[0].registrants), (object.id(), 1));
    drop((object, domain));
    assert_eq!(fds(), before);
}
