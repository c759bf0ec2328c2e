//! `find_or_create` in several processes at once, while some of them are killed.

#![allow(clippy::unwrap_used, reason = "a failed step ends the test")]

use std::fs::File;
use std::io::{Read, Write};
use std::os::fd::OwnedFd;
use std::time::Duration;

use umf_domain::{Domain, DomainSettings, Error};

const KIND: u32 = 5;

fn pipe() -> (File, File) {
    let (reader, writer): (OwnedFd, OwnedFd) =
        rustix::pipe::pipe_with(rustix::pipe::PipeFlags::CLOEXEC).unwrap();
    (File::from(reader), File::from(writer))
}

/// Joins once the writers of `start` are closed, sends the object id, and ends once those of `end`
/// are.
fn child(name: &str, mut start: File, mut ids: File, mut end: File) -> Result<(), Error> {
    let _ = start.read(&mut [0]);
    let mut settings = DomainSettings::default();
    // A busy machine is slow, not stopped.
    settings.timeout = Duration::from_secs(20);
    let domain = Domain::join(name, settings)?;
    let object = domain.find_or_create(8192, KIND)?;
    let _ = ids.write_all(&u64::from(object.id()).to_ne_bytes());
    let _ = end.read(&mut [0]);
    Ok(())
}

/// Starts processes, kills some of them after `microseconds`, and returns the object ids that the
/// others got.
fn find_in_processes(name: &str, processes: usize, killed: usize, microseconds: u64) -> Vec<u64> {
    let (start, go) = pipe();
    let (end, stop) = pipe();
    let mut children = Vec::new();
    for _ in 0..processes {
        let (reader, writer) = pipe();
        let (start, end) = (start.try_clone().unwrap(), end.try_clone().unwrap());
        // SAFETY: the fork handlers of the allocator and of umf keep both usable in the child.
        let pid = unsafe { libc::fork() };
        if pid == 0 {
            for writer in [&go, &stop] {
                // SAFETY: the child does not use the parent's files, and leaves by `_exit`.
                unsafe { libc::close(std::os::fd::AsRawFd::as_raw_fd(writer)) };
            }
            let result = child(name, start, writer, end);
            if let Err(error) = &result {
                eprintln!("in a forked child: {error}");
            }
            // SAFETY: `_exit` runs no handlers or destructors of the parent.
            unsafe { libc::_exit(i32::from(result.is_err())) };
        }
        assert!(pid > 0);
        children.push((pid, reader));
    }
    drop((go, start, end));
    std::thread::sleep(Duration::from_micros(microseconds));
    for (pid, _) in &children[..killed] {
        // SAFETY: a child of this process that was not reaped.
        unsafe { libc::kill(*pid, libc::SIGKILL) };
    }
    let mut ids = Vec::new();
    for (_, reader) in &mut children[killed..] {
        let mut id = [0; 8];
        reader.read_exact(&mut id).unwrap();
        ids.push(u64::from_ne_bytes(id));
    }
    drop(stop);
    for (index, (pid, _)) in children.iter().enumerate() {
        let mut status = 0;
        // SAFETY: a child of this process; `status` is valid for the write.
        assert_eq!(unsafe { libc::waitpid(*pid, &raw mut status, 0) }, *pid);
        assert!(status == 0 || index < killed, "a child failed");
    }
    ids
}

#[test]
fn killed_processes_do_not_split_object() {
    let mut all = Vec::new();
    for round in 0..40 {
        let name = format!("find-{}-{round}", std::process::id());
        let killed = if round < 10 { 0 } else { 6 };
        let mut ids = find_in_processes(&name, 12, killed, round * 200);
        ids.dedup();
        assert_eq!(ids.len(), 1, "{ids:x?}");
        all.extend(ids);
    }
    all.sort_unstable();
    all.dedup();
    assert_eq!(all.len(), 40, "each domain has another incarnation");
}
