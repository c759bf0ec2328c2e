//! What a process holds that it could leave behind.

use serde::{Deserialize, Serialize};

use crate::info::kernel_files;

/// What a process holds. Its metadata, which grows once and is used again, is not counted.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Census {
    /// What each file descriptor refers to.
    pub(crate) fds: Vec<String>,
    /// The files behind mappings that are shared with other processes.
    pub(crate) mappings: Vec<String>,
    pub(crate) children: Vec<String>,
}

impl Census {
    /// Counts what this process holds now.
    pub(crate) fn now() -> Census {
        let links = |entry: Result<std::fs::DirEntry, std::io::Error>| {
            // The descriptor of this very folder is gone when it is looked up.
            Some(std::fs::read_link(entry.ok()?.path()).ok()?.to_string_lossy().into_owned())
        };
        let fds = std::fs::read_dir("/proc/self/fd").into_iter().flatten().filter_map(links);
        let own = format!("/proc/{}/fd", std::process::id());
        let mut fds: Vec<String> = fds.filter(|target| *target != own).collect();
        let maps = kernel_files::text("/proc/self/maps").unwrap_or_default();
        // A row of leases for each importer is metadata.
        let is_metadata = |name: &String| name.starts_with("/memfd:umf-leases");
        let mut mappings: Vec<String> =
            maps.lines().filter_map(shared_file).filter(|name| !is_metadata(name)).collect();
        let mut children: Vec<String> = Vec::new();
        for task in std::fs::read_dir("/proc/self/task").into_iter().flatten().flatten() {
            let list = kernel_files::text(task.path().join("children")).unwrap_or_default();
            children.extend(list.split_whitespace().map(str::to_owned));
        }
        fds.sort();
        mappings.sort();
        children.sort();
        Census { fds, mappings, children }
    }

    /// What is here and was not there `before`, in words; empty if nothing.
    pub(crate) fn more_than(&self, before: &Census) -> Vec<String> {
        let mut more = Vec::new();
        for (kind, now, then) in [
            ("file descriptor", &self.fds, &before.fds),
            ("mapping", &self.mappings, &before.mappings),
            ("child", &self.children, &before.children),
        ] {
            let mut then = then.clone();
            for name in now {
                match then.iter().position(|other| other == name) {
                    Some(place) => drop(then.swap_remove(place)),
                    None => more.push(format!("{kind} {name}")),
                }
            }
        }
        more
    }

    /// The names in `/dev/shm` that it has in use.
    pub(crate) fn shared_memory_names(&self) -> impl Iterator<Item = &String> {
        self.fds.iter().chain(&self.mappings).filter(|name| name.starts_with("/dev/shm/"))
    }
}

/// The file behind a line of `/proc/self/maps`, if others can see it change.
fn shared_file(line: &str) -> Option<String> {
    // START-END rwxs OFFSET DEV INODE NAME
    let (place, name) = line.split_at(line.find('/')?);
    place.split(' ').nth(1)?.ends_with('s').then(|| name.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_open_file_is_told_by_name() {
        let before = Census::now();
        assert!(!before.fds.is_empty());
        let file = std::fs::File::open("/proc/self/status").unwrap();
        let more = Census { fds: [before.fds.clone(), vec!["/x".to_owned()]].concat(), ..before.clone() };
        assert_eq!(more.more_than(&before), ["file descriptor /x"]);
        drop(file);
    }

    #[test]
    fn shared_mappings_of_files_count() {
        let line = "7f00-7f10 rw-s 00000000 00:01 1024                       /memfd:umf (deleted)";
        assert_eq!(shared_file(line).unwrap(), "/memfd:umf (deleted)");
        assert_eq!(shared_file(&line.replace("rw-s", "rw-p")), None);
        assert_eq!(shared_file("7f00-7f10 rw-p 00000000 00:00 0 "), None);
    }
}
