#![allow(clippy::unwrap_used, reason = "tests")]

use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
use std::path::Path;
use std::time::Duration;

use rustix::io::Errno;

use super::*;

const MODE: u32 = 0o600;

/// A folder that is removed with all that is in it.
struct Folder(tempfile::TempDir);

impl Folder {
    fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        std::fs::set_permissions(&folder, PermissionsExt::from_mode(0o700)).unwrap();
        Self(folder)
    }

    fn path(&self) -> &Path {
        self.0.path()
    }

    fn directory(&self) -> Directory {
        Directory::new(self.path())
    }

    fn files(&self) -> Vec<String> {
        let entries = std::fs::read_dir(self.path()).unwrap();
        let mut names: Vec<_> =
            entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
        names.sort();
        names
    }

    fn remove_leftovers(&self) -> Leftovers {
        self.visit("umf-", usize::MAX, leftovers::remove_if_dead)
    }

    fn visit(
        &self,
        prefix: &str,
        most: usize,
        act: fn(&std::os::fd::OwnedFd, &str) -> leftovers::Outcome,
    ) -> Leftovers {
        leftovers::visit(&self.directory(), "umf-", prefix, most, act).unwrap()
    }
}

/// Runs `body` in a forked child, which then waits to be killed. Returns its pid after `body`.
fn child(body: impl FnOnce()) -> libc::pid_t {
    let (read, write) = rustix::pipe::pipe().unwrap();
    // SAFETY: the child runs `body` and sleeps; glibc's allocator works in a forked child.
    let pid = unsafe { libc::fork() };
    assert!(pid >= 0);
    if pid == 0 {
        let result = std::panic::catch_unwind(std::panic::AssertUnwindSafe(body));
        let _ = rustix::io::write(&write, &[u8::from(result.is_ok())]);
        loop {
            // SAFETY: waits to be killed.
            unsafe { libc::pause() };
        }
    }
    drop(write);
    let mut done = [0];
    rustix::io::read(&read, &mut done).unwrap();
    assert_eq!(done, [1], "the child failed");
    pid
}

fn kill(pid: libc::pid_t) {
    // SAFETY: a child of this test.
    unsafe { libc::kill(pid, libc::SIGKILL) };
    let mut status = 0;
    // SAFETY: `status` is valid for the write.
    while unsafe { libc::waitpid(pid, &raw mut status, 0) } != pid {}
}

fn connect_errno(directory: &Directory, name: &str) -> Option<Errno> {
    directory.connect(name, Some(Duration::from_millis(50))).unwrap_err().errno()
}

#[test]
fn bound_name_is_found_and_leaves_nothing() {
    let folder = Folder::new();
    let directory = folder.directory();
    assert_eq!(directory.state("umf-a"), Ok(NameState::Absent));
    assert_eq!(connect_errno(&directory, "umf-a"), Some(Errno::NOENT));
    let mut socket = directory.bind("umf-a", 0o660, 4).unwrap().unwrap();
    assert_eq!(folder.files(), ["umf-a", "umf-a.lock"]);
    let mode = |name| folder.path().join(name).metadata().unwrap().mode() & 0o777;
    assert_eq!((mode("umf-a"), mode("umf-a.lock")), (0o660, 0o640));
    assert_eq!(directory.state("umf-a"), Ok(NameState::Alive));
    assert!(directory.bind("umf-a", MODE, 4).unwrap().is_none(), "the name is taken");
    let listener = socket.take_listener().unwrap();
    let client = directory.connect("umf-a", None).unwrap();
    let accepted = rustix::net::accept(&listener).unwrap();
    rustix::net::send(&client, b"x", rustix::net::SendFlags::empty()).unwrap();
    let mut byte = [0];
    assert_eq!(rustix::io::read(&accepted, &mut byte), Ok(1));
    assert_eq!(directory.names("umf-").unwrap(), ["umf-a"]);
    assert_eq!(folder.remove_leftovers(), Leftovers { alive: 1, ..Leftovers::default() });
    drop((socket, listener));
    assert!(folder.files().is_empty());
}

#[test]
fn path_beyond_a_socket_address_works() {
    let folder = Folder::new();
    let mut path = folder.path().to_owned();
    while path.as_os_str().len() < 300 {
        path.push("d".repeat(50));
        std::fs::create_dir(&path).unwrap();
        std::fs::set_permissions(&path, PermissionsExt::from_mode(0o700)).unwrap();
    }
    let directory = Directory::new(&path);
    let socket = directory.bind("umf-a", MODE, 4).unwrap().unwrap();
    directory.connect("umf-a", None).unwrap();
    // The same directory by another path.
    let other = folder.path().join("other");
    symlink(&path, &other).unwrap();
    Directory::new(other).connect("umf-a", None).unwrap();
    drop(socket);
}

#[test]
fn leftovers_of_a_killed_process_are_removed() {
    let folder = Folder::new();
    let directory = folder.directory();
    let names = ["umf-a", "umf-b", "umf-c"];
    let pid = child(|| {
        for name in names {
            core::mem::forget(directory.bind(name, MODE, 4).unwrap().unwrap());
        }
    });
    assert_eq!(directory.state("umf-a"), Ok(NameState::Alive));
    // A stopped process is alive.
    // SAFETY: a child of this test.
    unsafe { libc::kill(pid, libc::SIGSTOP) };
    assert_eq!(folder.remove_leftovers(), Leftovers { alive: 3, ..Leftovers::default() });
    kill(pid);
    assert_eq!(directory.state("umf-a"), Ok(NameState::Dead));
    assert_eq!(connect_errno(&directory, "umf-a"), Some(Errno::CONNREFUSED));
    // A name can be bound again before its left-overs are removed.
    let socket = directory.bind("umf-b", MODE, 4).unwrap().unwrap();
    directory.connect("umf-b", None).unwrap();
    assert_eq!(folder.remove_leftovers(), Leftovers { removed: 2, alive: 1, ..Leftovers::default() });
    assert_eq!(folder.files(), ["umf-b", "umf-b.lock"]);
    drop(socket);
    assert!(folder.files().is_empty());
}

#[test]
fn lock_without_socket_excludes_others_and_is_taken_over() {
    let folder = Folder::new();
    let directory = folder.directory();
    let held = directory.try_lock("umf-a", 0o660).unwrap().unwrap();
    assert_eq!(folder.files(), ["umf-a.lock"]);
    assert_eq!(folder.path().join("umf-a.lock").metadata().unwrap().mode() & 0o777, 0o660);
    assert_eq!(directory.state("umf-a"), Ok(NameState::Alive));
    assert_eq!(directory.owner("umf-a"), Ok(umf_os::process::effective_uid()));
    assert!(directory.try_lock("umf-a", 0o660).unwrap().is_none());
    assert!(directory.try_bind("umf-a", MODE, 4).unwrap().is_none());
    drop(held);
    assert!(folder.files().is_empty());
    assert_eq!(directory.owner("umf-a").unwrap_err().errno(), Some(Errno::NOENT));
    let pid = child(|| core::mem::forget(directory.try_lock("umf-a", 0o660).unwrap().unwrap()));
    assert!(directory.try_lock("umf-a", 0o660).unwrap().is_none());
    kill(pid);
    assert_eq!(directory.state("umf-a"), Ok(NameState::Dead));
    drop(directory.try_lock("umf-a", 0o660).unwrap().unwrap());
    assert!(folder.files().is_empty());
}

/// The files of a name that a process sees are ready: another user would be refused meanwhile.
#[test]
fn lock_file_appears_with_mode_text_and_lock() {
    let folder = Folder::new();
    let fd = std::fs::File::open(folder.path()).unwrap();
    let mode = rustix::fs::Mode::from_raw_mode(0o666);
    let create = |name: &str, is_renamed| match is_renamed {
        true => lock::LockFile::create_renamed(&fd, name, mode),
        false => lock::LockFile::create(&fd, name, mode),
    };
    // With and without O_TMPFILE.
    for is_renamed in [false, true] {
        std::thread::scope(|scope| {
            let observer = scope.spawn(|| {
                let mut seen_files = 0;
                while seen_files < 1000 {
                    let Ok(seen) = lock::LockFile::open(&fd, "umf-a.lock", true) else { continue };
                    let found = (seen.is_locked(), seen.read_record(), seen.mode());
                    // While it has its name, its lock is held.
                    if seen.is_at(&fd, "umf-a.lock") {
                        assert_eq!(found, (Ok(true), Ok(lock::Record::Same), Ok(0o666)));
                        seen_files += 1;
                    }
                }
            });
            while !observer.is_finished() {
                let created = create("umf-a.lock", is_renamed).unwrap();
                assert_eq!(create("umf-a.lock", is_renamed).unwrap_err(), Errno::EXIST);
                drop((std::fs::remove_file(folder.path().join("umf-a.lock")), created));
            }
        });
        assert!(folder.files().is_empty());
    }
    // Killed before the rename: a name without a socket.
    drop(create("umf-b-1.lock", true).unwrap());
    assert_eq!(folder.remove_leftovers().removed, 1);
}

#[test]
fn hard_link_and_other_users_file_are_not_taken() {
    let folder = Folder::new();
    let directory = folder.directory();
    let (victim, lock) = (folder.path().join("victim"), folder.path().join("umf-a.lock"));
    std::fs::write(&victim, "content").unwrap();
    std::fs::hard_link(&victim, &lock).unwrap();
    let refused = directory.try_lock("umf-a", 0o666).unwrap_err();
    assert!(matches!(refused, DirectoryError::ForeignFile { links: 2, .. }), "{refused}");
    assert!(
        refused.to_string().contains("umf-a.lock") && refused.to_string().contains("2 names"),
        "{refused}"
    );
    assert!(directory.bind("umf-a", MODE, 4).is_err());
    assert_eq!(std::fs::read_to_string(&victim).unwrap(), "content");
    std::fs::remove_file(&victim).unwrap();
    drop(directory.try_lock("umf-a", 0o666).unwrap().unwrap());
    if umf_os::process::effective_uid() != 0 {
        println!("umf-skip: hard_link_and_other_users_file_are_not_taken: files of other users need root");
        return;
    }
    std::fs::write(&lock, "").unwrap();
    std::os::unix::fs::chown(&lock, Some(65533), None).unwrap();
    let refused = directory.try_lock("umf-a", 0o644).unwrap_err();
    assert!(matches!(refused, DirectoryError::ForeignFile { owner: 65533, .. }), "{refused}");
    assert_eq!(std::fs::read(&lock).unwrap(), b"");
    // Where several users share a lock, its file may be any one's.
    drop(directory.try_lock("umf-a", 0o660).unwrap().unwrap());
    assert!(folder.files().is_empty());
}

/// Any process that may read a lock file can place a read lock.
#[test]
fn read_lock_does_not_look_like_the_owner() {
    let folder = Folder::new();
    let directory = folder.directory();
    kill(child(|| core::mem::forget(directory.bind("umf-a", MODE, 4).unwrap().unwrap())));
    let file = std::fs::File::open(folder.path().join("umf-a.lock")).unwrap();
    // SAFETY: zeroes are a value of this plain structure: the whole file.
    let mut lock: libc::flock = unsafe { core::mem::zeroed() };
    lock.l_type = libc::F_RDLCK as libc::c_short;
    let fd = std::os::fd::AsRawFd::as_raw_fd(&file);
    // SAFETY: `lock` is valid for the read.
    assert_eq!(unsafe { libc::fcntl(fd, libc::F_OFD_SETLK, &raw const lock) }, 0);
    assert_eq!(directory.state("umf-a"), Ok(NameState::Dead));
    assert_eq!(folder.remove_leftovers(), Leftovers { read_locked: 1, ..Leftovers::default() });
    assert!(directory.try_lock("umf-a", 0o600).unwrap().is_none(), "the lock cannot be taken");
    drop(file);
    assert_eq!(folder.remove_leftovers().removed, 1);
}

#[test]
fn leftovers_are_found_without_removal_and_among_bounded_entries() {
    let folder = Folder::new();
    let directory = folder.directory();
    kill(child(|| core::mem::forget(directory.bind("umf-a", MODE, 4).unwrap().unwrap())));
    let _alive = directory.bind("umf-b", MODE, 4).unwrap().unwrap();
    for _ in 0..2 {
        let found = folder.visit("umf-", usize::MAX, leftovers::test);
        assert_eq!(found, Leftovers { removed: 1, alive: 1, ..Leftovers::default() });
        assert_eq!(folder.files().len(), 4);
    }
    for number in 0..50 {
        std::fs::write(folder.path().join(format!("umf-c{number}.lock")), "").unwrap();
    }
    let found = folder.visit("umf-", 10, leftovers::test);
    assert!((3..=10).contains(&(found.removed + found.alive)), "{found:?}");
    assert_eq!(folder.visit("umf-", usize::MAX, leftovers::test).removed, 51);
    // A directory that is not readable.
    std::fs::set_permissions(folder.path(), PermissionsExt::from_mode(0o300)).unwrap();
    remove_leftovers_before_bind(&directory);
    drop(directory.bind("umf-d", MODE, 4).unwrap().unwrap());
    assert!(directory.is_writable());
    std::fs::set_permissions(folder.path(), PermissionsExt::from_mode(0o700)).unwrap();
}

/// Threads that acquire and release a lock at once hold it one after the other.
#[test]
fn contended_lock_has_one_owner() {
    let folder = Folder::new();
    let (owners, turns) = (std::sync::atomic::AtomicU32::new(0), std::sync::atomic::AtomicU32::new(0));
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                while turns.load(std::sync::atomic::Ordering::Relaxed) < 400 {
                    let Some(held) = folder.directory().try_lock("umf-a", 0o600).unwrap() else { continue };
                    assert_eq!(owners.fetch_add(1, std::sync::atomic::Ordering::SeqCst), 0);
                    turns.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
                    owners.fetch_sub(1, std::sync::atomic::Ordering::SeqCst);
                    drop(held);
                }
            });
        }
    });
    assert!(folder.files().is_empty());
}

#[test]
fn lock_lasts_without_descriptors_and_is_not_inherited() {
    let folder = Folder::new();
    let directory = folder.directory();
    let (read, write) = rustix::pipe::pipe().unwrap();
    let pid = child(|| {
        let socket = directory.bind("umf-a", MODE, 4).unwrap().unwrap();
        core::mem::forget(socket);
        // SAFETY: the grandchild waits until the test closes the pipe, and ends.
        if unsafe { libc::fork() } == 0 {
            // SAFETY: this process does not use its copy of the descriptor otherwise.
            unsafe { libc::close(std::os::fd::AsRawFd::as_raw_fd(&write)) };
            let _ = rustix::io::read(&read, &mut [0]);
            // SAFETY: ends the grandchild.
            unsafe { libc::_exit(0) };
        }
        assert_eq!(directory.state("umf-a"), Ok(NameState::Alive));
    });
    // The grandchild lives and has no lock.
    kill(pid);
    assert_eq!(directory.state("umf-a"), Ok(NameState::Dead));
    assert_eq!(folder.remove_leftovers().removed, 1);
    drop(write);
    // No descriptor of the lock file stays open, so that a program that closes all keeps the lock.
    let socket = directory.bind("umf-a", MODE, 4).unwrap().unwrap();
    let open = std::fs::read_dir("/proc/self/fd").unwrap();
    let lock = folder.path().join("umf-a.lock");
    assert!(open.flatten().all(|entry| std::fs::read_link(entry.path()).ok() != Some(lock.clone())));
    drop(socket);
}

#[test]
fn living_name_is_never_removed() {
    let folder = Folder::new();
    let directory = folder.directory();
    // A full backlog.
    let socket = directory.bind("umf-a", MODE, 0).unwrap().unwrap();
    let mut connections = Vec::new();
    while let Ok(connection) = directory.connect("umf-a", Some(Duration::from_millis(10))) {
        connections.push(connection);
        assert!(connections.len() < 16);
    }
    assert_eq!(connect_errno(&directory, "umf-a"), Some(Errno::AGAIN));
    assert_eq!(folder.remove_leftovers().alive, 1);
    drop(socket);
    // Seen through another file system: the lock file has another inode than its owner wrote.
    let socket = directory.bind("umf-b", MODE, 4).unwrap().unwrap();
    let seen = Folder::new();
    std::fs::copy(folder.path().join("umf-b.lock"), seen.path().join("umf-b.lock")).unwrap();
    assert_eq!(seen.directory().state("umf-b"), Ok(NameState::Unknown));
    assert_eq!(seen.remove_leftovers(), Leftovers { unknown: 1, ..Leftovers::default() });
    // Of another boot.
    let found = folder.visit("umf-boot-", usize::MAX, leftovers::remove_if_dead);
    assert_eq!(found, Leftovers { other_boots: 1, ..Leftovers::default() });
    // Between lock and socket.
    drop(socket);
    std::fs::write(folder.path().join("umf-c.lock"), "").unwrap();
    let folder_fd = std::fs::File::open(folder.path()).unwrap();
    let file = lock::LockFile::open(&folder_fd, "umf-c.lock", true).unwrap();
    assert!(file.try_lock().unwrap());
    let held = file.into_held(&folder_fd, "umf-c.lock").unwrap();
    assert_eq!(directory.state("umf-c"), Ok(NameState::Alive));
    assert_eq!(folder.remove_leftovers().alive, 1);
    drop(held);
    assert_eq!(folder.remove_leftovers().removed, 1);
    assert!(folder.files().is_empty());
}

#[test]
fn unsuitable_directory_is_refused_with_the_reason() {
    let folder = Folder::new();
    let missing = Directory::new(folder.path().join("missing"));
    assert!(matches!(missing.check(), Err(DirectoryError::Missing { .. })));
    let file = folder.path().join("file");
    std::fs::write(&file, "").unwrap();
    assert!(matches!(Directory::new(file).check(), Err(DirectoryError::NotDirectory { .. })));
    let directory = folder.directory();
    for (mode, is_refused) in [(0o777, true), (0o1777, false), (0o700, false), (0o770, false), (0o2777, true)]
    {
        std::fs::set_permissions(folder.path(), PermissionsExt::from_mode(mode)).unwrap();
        let checked = directory.check();
        assert_eq!(matches!(checked, Err(DirectoryError::WritableByOthers { .. })), is_refused, "{mode:o}");
        assert_eq!(directory.bind("umf-a", MODE, 4).is_err(), is_refused);
        assert_eq!(directory.connect("umf-b", None).unwrap_err().errno().is_none(), is_refused);
    }
}

/// Between bind and drop the directory becomes unsuitable, or another program removes the lock file.
#[test]
fn drop_removes_files_in_a_changed_directory() {
    let folder = Folder::new();
    let directory = folder.directory();
    let bind = |name| directory.bind(name, MODE, 4).unwrap().unwrap();
    let path = |file: &str| folder.path().join(file);

    let socket = bind("umf-a");
    std::fs::set_permissions(folder.path(), PermissionsExt::from_mode(0o777)).unwrap();
    drop(socket);
    assert_eq!(folder.files(), [""; 0], "a directory that all users can write");
    std::fs::set_permissions(folder.path(), PermissionsExt::from_mode(0o700)).unwrap();

    let socket = bind("umf-a");
    std::fs::remove_file(path("umf-a.lock")).unwrap();
    drop(socket);
    assert_eq!(folder.files(), [""; 0], "without the lock file");

    // Another process has the name by now.
    let socket = bind("umf-a");
    for file in ["umf-a", "umf-a.lock"] {
        std::fs::remove_file(path(file)).unwrap();
    }
    let next = bind("umf-a");
    drop(socket);
    assert_eq!(folder.files(), ["umf-a", "umf-a.lock"]);
    let socket = bind("umf-b");
    std::fs::remove_file(path("umf-b.lock")).unwrap();
    std::fs::rename(path("umf-a"), path("umf-b")).unwrap();
    drop(socket);
    assert_eq!(folder.files(), ["umf-a.lock", "umf-b"], "another socket");
    drop(next);
}

/// A program that changes its working directory keeps its directory of sockets.
#[test]
fn relative_path_survives_a_change_of_the_working_directory() {
    let folder = Folder::new();
    let pid = child(|| {
        std::env::set_current_dir(folder.path()).unwrap();
        let directory = Directory::new(".");
        let socket = directory.bind("umf-a", MODE, 4).unwrap().unwrap();
        std::env::set_current_dir("/").unwrap();
        assert_eq!(directory.state("umf-a"), Ok(NameState::Alive));
        drop(socket);
        assert_eq!(folder.files(), [""; 0]);
    });
    kill(pid);
}

/// A socket whose lock file another program has removed is counted, and stays.
#[test]
fn socket_without_lock_file_is_counted() {
    let folder = Folder::new();
    let socket = folder.directory().bind("umf-a", MODE, 4).unwrap().unwrap();
    let other = folder.directory().bind("umf-b", MODE, 4).unwrap().unwrap();
    std::fs::remove_file(folder.path().join("umf-a.lock")).unwrap();
    let expected = Leftovers { alive: 1, unknown: 1, ..Leftovers::default() };
    assert_eq!(folder.visit("umf-", usize::MAX, leftovers::test), expected);
    assert_eq!(folder.remove_leftovers(), expected);
    assert_eq!(folder.files(), ["umf-a", "umf-b", "umf-b.lock"]);
    drop((socket, other));
}

/// A process whose table of descriptors is full removes its files when it ends.
#[test]
fn exit_without_descriptors_removes_files() {
    let folder = Folder::new();
    // SAFETY: the child binds, takes all descriptors, and exits; glibc's allocator works in a forked
    // child.
    let pid = unsafe { libc::fork() };
    assert!(pid >= 0);
    if pid == 0 {
        let limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
        let socket = folder.directory().bind("umf-a", MODE, 4);
        // SAFETY: `limit` is valid for the read.
        unsafe { libc::setrlimit(libc::RLIMIT_NOFILE, &raw const limit) };
        let is_bound = matches!(socket, Ok(Some(_)));
        core::mem::forget(socket);
        // SAFETY: no other thread runs in the child.
        unsafe { libc::exit(i32::from(!is_bound)) };
    }
    let mut status = 0;
    // SAFETY: `status` is valid for the write.
    assert_eq!(unsafe { libc::waitpid(pid, &raw mut status, 0) }, pid);
    assert_eq!(status, 0);
    assert_eq!(folder.files(), [""; 0]);
}

#[test]
fn other_files_under_a_name_are_not_followed() {
    let folder = Folder::new();
    let directory = folder.directory();
    let socket = directory.bind("umf-a", MODE, 4).unwrap().unwrap();
    symlink("umf-a", folder.path().join("umf-link")).unwrap();
    symlink("umf-a.lock", folder.path().join("umf-link.lock")).unwrap();
    std::fs::write(folder.path().join("umf-file"), "").unwrap();
    std::fs::create_dir(folder.path().join("umf-folder.lock")).unwrap();
    rustix::fs::mknodat(
        rustix::fs::CWD,
        folder.path().join("umf-pipe.lock"),
        rustix::fs::FileType::Fifo,
        rustix::fs::Mode::from_raw_mode(0o600),
        0,
    )
    .unwrap();
    assert_eq!(connect_errno(&directory, "umf-link"), Some(Errno::LOOP));
    assert_eq!(connect_errno(&directory, "umf-file"), Some(Errno::NOTSOCK));
    for name in ["umf-link", "umf-folder", "umf-pipe"] {
        assert_eq!(directory.state(name), Ok(NameState::Unknown), "{name}");
        assert!(directory.bind(name, MODE, 4).is_err(), "{name}");
    }
    assert_eq!(folder.remove_leftovers(), Leftovers { alive: 1, unknown: 3, ..Leftovers::default() });
    drop(socket);
}

#[test]
fn full_file_system_leaves_nothing() {
    let folder = Folder::new();
    // A file size limit of 0 refuses the record, as a full file system does.
    let pid = child(|| {
        // SAFETY: in the child only.
        unsafe { libc::signal(libc::SIGXFSZ, libc::SIG_IGN) };
        let limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
        // SAFETY: `limit` is valid for the read.
        assert_eq!(unsafe { libc::setrlimit(libc::RLIMIT_FSIZE, &raw const limit) }, 0);
        let error = folder.directory().bind("umf-a", MODE, 4).unwrap_err();
        assert_eq!(error.errno(), Some(Errno::FBIG));
        assert!(folder.files().is_empty());
    });
    kill(pid);
}
