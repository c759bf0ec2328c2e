//! [`Census`]: what a process has, counted from outside.

use std::collections::BTreeMap;
use std::fs;

use crate::Actor;

/// What a process has open: compare one from before with one from after.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Census {
    /// Fds by what they name.
    pub fds: BTreeMap<String, usize>,
    /// Mappings of shared memory by what they name.
    pub mappings: BTreeMap<String, usize>,
    /// Threads.
    pub threads: usize,
    /// Child processes, zombies too.
    pub children: usize,
    /// Entries of `/dev/shm` that carry its pid, as names that tests give do.
    pub names: Vec<String>,
    /// Abstract sockets named `umf-*` that it has bound.
    pub sockets: Vec<String>,
}

impl Census {
    /// Of an actor.
    ///
    /// # Panics
    /// If it is gone.
    #[must_use]
    pub fn of(actor: &Actor) -> Self {
        Self::of_pid(actor.pid())
    }

    /// Of a process.
    ///
    /// # Panics
    /// If it is gone.
    #[must_use]
    pub fn of_pid(pid: u32) -> Self {
        let mut fds = BTreeMap::new();
        let mut inodes = Vec::new();
        for entry in fs::read_dir(format!("/proc/{pid}/fd")).unwrap() {
            // Between listing and reading a link, one may have been closed.
            let Ok(link) = fs::read_link(entry.unwrap().path()) else { continue };
            let link = link.to_string_lossy().into_owned();
            let kind = match link.split_once(":[") {
                // What stands for a file of the kernel's own, as pidfds were before Linux 6.9.
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
                // An accepted connection has its listener's name.
                let listens = line.split_ascii_whitespace().nth(3) == Some("00010000");
                (listens && name.starts_with("@umf-") && inodes.iter().any(|own| own == inode))
                    .then(|| name[1..].to_owned())
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

    /// Waits until an actor has again what it had then: a peer's end is noticed by its thread when it is scheduled.
    ///
    /// # Panics
    /// If that does not come within 5 s.
    #[track_caller]
    pub fn comes_back(&self, actor: &Actor) {
        for _ in 0..500 {
            if Self::of(actor) == *self {
                return;
            }
            std::thread::sleep(std::time::Duration::from_millis(10));
        }
        assert_eq!(Self::of(actor), *self, "actor {} has more or less than before", actor.pid());
    }

    /// How many fds there are.
    #[must_use]
    pub fn fd_count(&self) -> usize {
        self.fds.values().sum()
    }

    /// Whether any process listens on an abstract socket of this name.
    #[must_use]
    pub fn is_bound(socket: &str) -> bool {
        let table = fs::read_to_string("/proc/net/unix").unwrap_or_default();
        table.lines().any(|line| line.ends_with(&format!(" @{socket}")))
    }
}
