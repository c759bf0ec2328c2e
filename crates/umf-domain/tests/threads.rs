//! Threads of one process in one domain, and forks in the middle of what they do.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on ends")]

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use umf_domain::{Domain, DomainSettings, Error, Number, Object};

fn fds() -> usize {
    std::fs::read_dir("/proc/self/fd").unwrap().count()
}

/// What a forked child can do with what it inherited, and by itself.
fn child(domain: &Domain, object: &Object, name: &str) -> Result<(), String> {
    let text = |error: Error| error.to_string();
    let inherited = object.view::<u64>().map_err(|error| error.to_string())?.get(0).ok_or("no memory")?;
    if inherited != u64::from(object.number()) || object.is_registered() {
        return Err(format!("{inherited:#x} in {object:?}"));
    }
    if !matches!(domain.create(1, 1), Err(Error::Forked)) {
        return Err("a child creates in its parent's domain".to_owned());
    }
    let mut settings = DomainSettings::default();
    settings.timeout = Duration::from_secs(20);
    let own = Domain::join(name, settings).map_err(text)?;
    let same = own.register(object.number(), 1).map_err(text)?;
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
fn threads_and_forks() {
    let name = format!("threads-{}", std::process::id());
    let before = fds();
    let mut settings = DomainSettings::default();
    // A busy machine is slow, not stopped.
    settings.timeout = Duration::from_secs(20);
    let domain = Domain::join(&name, settings.clone()).unwrap();
    let object = domain.create(4096, 1).unwrap();
    object.view().unwrap().set(0, u64::from(object.number())).unwrap();
    let stop = AtomicBool::new(false);
    let mut rounds = 0;
    std::thread::scope(|scope| {
        let (domain, object, stop, name) = (&domain, &object, &stop, &name);
        let work = move || {
            let mut rounds = 0_u64;
            let mut last = Number::from(0);
            while !stop.load(Ordering::Relaxed) {
                // The same participant, whichever way.
                let again = Domain::join(name, DomainSettings::default()).unwrap();
                let same = again.register(object.number(), 1).unwrap();
                let own = domain.create(4096, 2).unwrap();
                assert_ne!(own.number(), last);
                last = own.number();
                let twice = domain.register(last, 2).unwrap();
                assert!(matches!(domain.register(last, 3), Err(Error::WrongKind { kind: 2, wanted: 3, .. })));
                drop(own);
                assert!(twice.is_registered() && same.is_registered());
                drop(twice);
                assert!(matches!(domain.register(last, 2), Err(Error::NoSuchNumber { .. })));
                rounds += 1;
            }
            rounds
        };
        let threads: Vec<_> = (0..3).map(|_| scope.spawn(work)).collect();
        for _ in 0..40 {
            // SAFETY: the child goes on with what the allocator and umf brought through the fork by their handlers.
            let pid = unsafe { libc::fork() };
            if pid == 0 {
                let code = match child(domain, object, name) {
                    Ok(()) => 0,
                    Err(error) => {
                        eprintln!("in a forked child: {error}");
                        1
                    }
                };
                // SAFETY: ends the child without running what belongs to the parent.
                unsafe { libc::_exit(code) };
            }
            assert!(pid > 0);
            let status = wait_for(pid);
            if status != 0 {
                stop.store(true, Ordering::Relaxed);
            }
            assert_eq!(status, 0, "a child");
        }
        stop.store(true, Ordering::Relaxed);
        rounds = threads.into_iter().map(|thread| thread.join().unwrap()).sum();
    });
    assert!(rounds > 0);
    let listed = domain.objects().unwrap();
    assert_eq!(listed.len(), 1, "{listed:?}");
    assert_eq!((listed[0].number, listed[0].registrants), (object.number(), 1));
    drop((object, domain));
    assert_eq!(fds(), before);
}
