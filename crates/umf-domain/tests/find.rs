//! Processes that find or create one object at the same time, some of which are killed meanwhile.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on ends")]

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

/// Joins once the writers of `start` are closed, sends the number, and ends once those of `end` are.
fn child(name: &str, mut start: File, mut numbers: File, mut end: File) -> Result<(), Error> {
    let _ = start.read(&mut [0]);
    let mut settings = DomainSettings::default();
    // A busy machine is slow, not stopped.
    settings.timeout = Duration::from_secs(20);
    let domain = Domain::join(name, settings)?;
    let object = domain.find_or_create(8192, KIND)?;
    let _ = numbers.write_all(&u64::from(object.number()).to_ne_bytes());
    let _ = end.read(&mut [0]);
    Ok(())
}

/// Starts processes, kills some of them after `microseconds`, and returns the numbers that the others got.
fn round(name: &str, processes: usize, killed: usize, microseconds: u64) -> Vec<u64> {
    let (start, go) = pipe();
    let (end, stop) = pipe();
    let mut children = Vec::new();
    for _ in 0..processes {
        let (reader, writer) = pipe();
        let (start, end) = (start.try_clone().unwrap(), end.try_clone().unwrap());
        // SAFETY: the child goes on with what the allocator and umf brought through the fork by their handlers.
        let pid = unsafe { libc::fork() };
        if pid == 0 {
            for writer in [&go, &stop] {
                // SAFETY: the parent's objects are not used in the child, which leaves by `_exit`.
                unsafe { libc::close(std::os::fd::AsRawFd::as_raw_fd(writer)) };
            }
            let result = child(name, start, writer, end);
            if let Err(error) = &result {
                eprintln!("in a forked child: {error}");
            }
            // SAFETY: ends the child without running what belongs to the parent.
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
    let mut numbers = Vec::new();
    for (_, reader) in &mut children[killed..] {
        let mut number = [0; 8];
        reader.read_exact(&mut number).unwrap();
        numbers.push(u64::from_ne_bytes(number));
    }
    drop(stop);
    for (number, (pid, _)) in children.iter().enumerate() {
        let mut status = 0;
        // SAFETY: a child of this process; `status` is valid for the write.
        assert_eq!(unsafe { libc::waitpid(*pid, &raw mut status, 0) }, *pid);
        assert!(status == 0 || number < killed, "a child");
    }
    numbers
}

#[test]
fn processes_get_one_object_whichever_are_killed() {
    let mut all = Vec::new();
    for number in 0..40 {
        let name = format!("find-{}-{number}", std::process::id());
        let killed = if number < 10 { 0 } else { 6 };
        let mut numbers = round(&name, 12, killed, number * 200);
        numbers.dedup();
        assert_eq!(numbers.len(), 1, "{numbers:x?}");
        all.extend(numbers);
    }
    all.sort_unstable();
    all.dedup();
    assert_eq!(all.len(), 40, "a domain that died out begins anew");
}
