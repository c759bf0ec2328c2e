//! The memory limit that the control groups put on this process, of either version.

use std::path::{Path, PathBuf};

use super::kernel_files;

/// The tightest limit above this process.
pub(crate) struct Limit {
    /// The limit in bytes.
    pub(crate) bytes: u64,
    /// What its group uses now, where that can be read.
    pub(crate) used: Option<u64>,
    /// The folder of its group.
    pub(crate) group: String,
}

/// Version 1 writes "none" as a number of pages that fills a signed word.
const NONE_IN_VERSION_1: u64 = 1 << 62;

/// Finds the tightest limit from this process's group up to the root of what is mounted.
///
/// # Errors
/// The file that could not be read.
pub(crate) fn tightest() -> Result<Option<Limit>, String> {
    let groups = kernel_files::text("/proc/self/cgroup")?;
    let mounts = kernel_files::text("/proc/self/mountinfo")?;
    let folders = [folder_version_2(&groups, &mounts), folder_version_1(&groups, &mounts)];
    let mut tightest: Option<Limit> = None;
    for (top, group) in folders.into_iter().flatten() {
        for folder in group.ancestors().take_while(|folder| folder.starts_with(&top)) {
            if let Some(limit) = limit_of(folder)
                && tightest.as_ref().is_none_or(|known| limit.bytes < known.bytes)
            {
                tightest = Some(limit);
            }
        }
    }
    Ok(tightest)
}

fn limit_of(folder: &Path) -> Option<Limit> {
    let limits = [("memory.max", "memory.current"), ("memory.limit_in_bytes", "memory.usage_in_bytes")];
    limits.iter().find_map(|(limit, usage)| {
        // "max" is not a number.
        let bytes =
            kernel_files::number(folder.join(limit)).ok().filter(|bytes| *bytes < NONE_IN_VERSION_1)?;
        let used = kernel_files::number(folder.join(usage)).ok();
        Some(Limit { bytes, used, group: folder.display().to_string() })
    })
}

/// The mount point and the group's folder, from `0::/path`.
fn folder_version_2(groups: &str, mounts: &str) -> Option<(PathBuf, PathBuf)> {
    let group = groups.lines().find_map(|line| line.strip_prefix("0::"))?;
    folder(group, mounts, |kind, _| kind == "cgroup2")
}

/// The mount point and the group's folder, from `4:memory:/path`.
fn folder_version_1(groups: &str, mounts: &str) -> Option<(PathBuf, PathBuf)> {
    let group = groups.lines().find_map(|line| {
        let mut parts = line.splitn(3, ':');
        let (_, controllers, group) = (parts.next()?, parts.next()?, parts.next()?);
        controllers.split(',').any(|controller| controller == "memory").then_some(group)
    })?;
    folder(group, mounts, |kind, options| {
        kind == "cgroup" && options.split(',').any(|option| option == "memory")
    })
}

/// Finds the mount that `wanted(type, super options)` accepts, and the folder of `group` in it.
fn folder(group: &str, mounts: &str, wanted: impl Fn(&str, &str) -> bool) -> Option<(PathBuf, PathBuf)> {
    mounts.lines().find_map(|line| {
        // ID PARENT MAJ:MIN ROOT MOUNT-POINT OPTIONS [TAGS] - TYPE SOURCE SUPER-OPTIONS
        let (mount, details) = line.split_once(" - ")?;
        let mut details = details.split(' ');
        let (kind, options) = (details.next()?, details.nth(1)?);
        if !wanted(kind, options) {
            return None;
        }
        let mut mount = mount.split(' ').skip(3);
        let (root, top) = (mount.next()?, PathBuf::from(mount.next()?));
        let below = Path::new(group).strip_prefix(root).unwrap_or(Path::new(""));
        // A group outside of what is mounted shows as "/../..".
        let known = below.components().all(|part| matches!(part, std::path::Component::Normal(_)));
        let folder = if known { top.join(below) } else { top.clone() };
        Some((top, folder))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const MOUNTS: &str = "\
29 24 0:26 / /sys/fs/cgroup rw,nosuid shared:9 - cgroup2 cgroup2 rw,nsdelegate
31 24 0:27 /docker/abc /sys/fs/cgroup/memory ro - cgroup cgroup rw,memory";

    #[test]
    fn finds_the_folder_of_either_version() {
        let (top, folder) = folder_version_2("0::/user.slice/a b\n", MOUNTS).unwrap();
        assert_eq!((top, folder), ("/sys/fs/cgroup".into(), "/sys/fs/cgroup/user.slice/a b".into()));
        let (top, folder) = folder_version_1("4:cpu,memory:/docker/abc/job\n", MOUNTS).unwrap();
        assert_eq!((top, folder), ("/sys/fs/cgroup/memory".into(), "/sys/fs/cgroup/memory/job".into()));
    }

    #[test]
    fn a_group_outside_the_mount_is_its_top() {
        let (top, folder) = folder_version_2("0::/../other", MOUNTS).unwrap();
        assert_eq!(top, folder);
        assert!(folder_version_1("0::/", MOUNTS).is_none());
        assert!(folder_version_2("garbage", "more garbage").is_none());
    }
}
