//! Kernel objects, as `/proc` shows them: those that a process holds ([`ProcessSnapshot`]), and
//! those of a domain in all processes ([`domain`]).

use std::collections::BTreeMap;
use std::fs;
use std::time::Duration;

use crate::{Actor, Patience};

/// Kernel objects of a process at one time. A test compares the snapshots before and after an
/// action.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ProcessSnapshot {
    /// Number of fds for each file.
    pub fds: BTreeMap<String, usize>,
    /// Number of mappings for each shared-memory file.
    pub mappings: BTreeMap<String, usize>,
    /// Number of threads.
    pub threads: usize,
    /// Number of child processes, zombies included.
    pub children: usize,
    /// Entries of `/dev/shm` whose name contains the pid. The names that tests choose do.
    pub names: Vec<String>,
    /// Bound abstract sockets named `umf-*`.
    pub sockets: Vec<String>,
}

impl ProcessSnapshot {
    /// Takes a snapshot of an actor.
    ///
    /// # Panics
    /// If the actor is gone.
    #[must_use]
    pub fn of(actor: &Actor) -> Self {
        Self::of_pid(actor.pid())
    }

    /// Takes a snapshot of a process.
    ///
    /// # Panics
    /// If the process is gone.
    #[must_use]
    pub fn of_pid(pid: u32) -> Self {
        wait_for_closing_threads(pid);
        let mut fds = BTreeMap::new();
        let mut inodes = Vec::new();
        for entry in fs::read_dir(format!("/proc/{pid}/fd")).unwrap() {
            // The process may close an fd after it was listed.
            let Ok(link) = fs::read_link(entry.unwrap().path()) else { continue };
            let link = link.to_string_lossy().into_owned();
            let kind = match link.split_once(":[") {
                // A file without a path or inode number, as pidfds were before Linux 6.9.
                Some(("anon_inode", name)) => name.trim_end_matches(']').to_owned(),
                Some((kind, inode)) => {
                    inodes.push(inode.trim_end_matches(']').to_owned());
                    kind.to_owned()
                }
                None => link,
            };
            *fds.entry(kind).or_default() += 1;
        }
        let mut mappings = BTreeMap::new();
        let maps = fs::read_to_string(format!("/proc/{pid}/maps")).unwrap();
        for line in maps.lines() {
            if let Some(at) = ["/memfd:", "/dev/shm/", "/dmabuf:"].iter().find_map(|file| line.find(file)) {
                *mappings.entry(line[at..].to_owned()).or_default() += 1;
            }
        }
        let tasks: Vec<_> = fs::read_dir(format!("/proc/{pid}/task")).unwrap().flatten().collect();
        let children = |task: &fs::DirEntry| {
            fs::read_to_string(task.path().join("children")).map_or(0, |list| list.split_whitespace().count())
        };
        let tag = format!("-{pid}-");
        let mut names: Vec<_> = fs::read_dir("/dev/shm")
            .map(|entries| entries.flatten().map(|entry| entry.file_name().to_string_lossy().into_owned()))
            .map(|names| names.filter(|name| name.contains(&tag)).collect())
            .unwrap_or_default();
        names.sort();
        let table = fs::read_to_string(format!("/proc/{pid}/net/unix")).unwrap_or_default();
        let mut sockets: Vec<_> = table
            .lines()
            .filter_map(|line| {
                let mut fields = line.split_ascii_whitespace();
                let (inode, name) = (fields.nth(6)?, fields.next()?);
                // An accepted connection has the name of the listening socket, too.
                let listens = line.split_ascii_whitespace().nth(3) == Some("00010000");
                // One in a directory has the path by which it was bound.
                let name = name.strip_prefix('@').or_else(|| Some(name.rsplit_once('/')?.1))?;
                (listens && name.starts_with("umf-") && inodes.iter().any(|socket| socket == inode))
                    .then(|| name.to_owned())
            })
            .collect();
        sockets.sort();
        Self {
            fds,
            mappings,
            threads: tasks.len(),
            children: tasks.iter().map(children).sum(),
            names,
            sockets,
        }
    }

    /// Waits until the actor holds what this snapshot shows, with as many threads or fewer. A
    /// thread of the actor closes the objects of a dead peer with a delay, and a thread that was
    /// joined stays in `/proc` for a moment.
    ///
    /// # Panics
    /// If the actor still holds anything else after 10 s, as [`Patience`] counts them.
    #[track_caller]
    pub fn assert_restored(&self, actor: &Actor) {
        let mut patience = Patience::new(Duration::from_secs(10));
        while patience.sleep() {
            let now = Self::of(actor);
            if (Self { threads: self.threads, ..now.clone() }) == *self && now.threads <= self.threads {
                return;
            }
        }
        assert_eq!(Self::of(actor), *self, "actor {} has more or less than before", actor.pid());
    }

    /// Returns the number of fds.
    #[must_use]
    pub fn fd_count(&self) -> usize {
        self.fds.values().sum()
    }

    /// Returns whether any process has bound an abstract socket of this name.
    #[must_use]
    pub fn is_bound(socket: &str) -> bool {
        let table = fs::read_to_string("/proc/net/unix").unwrap_or_default();
        table.lines().any(|line| line.ends_with(&format!(" @{socket}")))
    }
}

/// Waits until the process has no thread that only closes received fds, for 2 s at most. Some tests
/// block such threads.
fn wait_for_closing_threads(pid: u32) {
    let closes = |task: fs::DirEntry| {
        fs::read_to_string(task.path().join("comm")).is_ok_and(|name| name.trim_end() == "umf-close")
    };
    for _ in 0..1_000 {
        if !fs::read_dir(format!("/proc/{pid}/task")).unwrap().flatten().any(closes) {
            return;
        }
        std::thread::sleep(Duration::from_millis(2));
    }
}

/// Kernel objects of a domain in all processes.
pub mod domain {
    use std::fs;
    use std::os::unix::fs::MetadataExt;
    use std::time::{Duration, Instant};

    /// Returns a domain name that no other test uses, in this or a concurrent run.
    #[must_use]
    pub fn name(test: &str) -> String {
        format!("{test}-{}", std::process::id())
    }

    /// Counts the fds and mappings of the domain's memory in all processes, and its bound sockets.
    /// If the sum is 0, the kernel has freed the domain.
    ///
    /// # Panics
    /// Without `/proc`.
    #[must_use]
    pub fn traces(domain: &str) -> usize {
        let memory = [format!("/memfd:umf-domain/{domain} "), format!("/memfd:umf-domain-table/{domain} ")];
        let is_trace = |text: &str| memory.iter().any(|name| text.contains(name));
        let mut found = 0;
        for process in fs::read_dir("/proc").unwrap().flatten() {
            if !process.file_name().to_string_lossy().bytes().all(|byte| byte.is_ascii_digit()) {
                continue;
            }
            let maps = fs::read_to_string(process.path().join("maps")).unwrap_or_default();
            found += maps.lines().filter(|line| is_trace(line)).count();
            let fds = fs::read_dir(process.path().join("fd")).into_iter().flatten().flatten();
            found += fds
                .filter_map(|fd| fs::read_link(fd.path()).ok())
                .filter(|to| is_trace(&to.to_string_lossy()))
                .count();
        }
        let sockets = fs::read_to_string("/proc/net/unix").unwrap();
        found
            + sockets
                .lines()
                .filter(|line| line.contains(" @umf-domain-") && line.ends_with(&format!("-{domain}")))
                .count()
    }

    /// Waits until the domain has no [`traces`].
    ///
    /// # Panics
    /// If it still has traces after 5 s.
    #[track_caller]
    pub fn assert_nothing_left(domain: &str) {
        // A reaped process holds nothing, but its children end later and hold copies.
        let end = Instant::now() + Duration::from_secs(5);
        while traces(domain) > 0 {
            assert!(Instant::now() < end, "{} traces of {domain}", traces(domain));
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    /// Returns the user id of this process and its actors. The socket names of a domain contain it.
    ///
    /// # Panics
    /// Without `/proc`.
    #[must_use]
    pub fn uid() -> u32 {
        fs::metadata("/proc/self").unwrap().uid()
    }
}
