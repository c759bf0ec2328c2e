//! [`Cgroup`]: the control groups that limit the memory of this process, of version 1 and 2.

use std::ffi::CString;
use std::fmt;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use crate::available_memory::{number, read_into};

/// A control group that limits the memory of this process.
#[derive(Clone, Debug)]
pub struct Cgroup {
    folder: PathBuf,
    limit: CString,
    used: CString,
    statistics: CString,
}

/// A file of `/proc` that could not be read.
#[derive(Debug)]
pub struct UnreadableFile {
    /// The file.
    pub path: &'static str,
    /// The system's error.
    pub error: std::io::Error,
}

impl fmt::Display for UnreadableFile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.path, self.error)
    }
}

impl std::error::Error for UnreadableFile {}

/// Version 1 writes a number above this for "no limit".
const UNLIMITED_VERSION_1: u64 = 1 << 62;

/// The files of version 2 and of version 1 with the limit and the used bytes.
const FILES: [(&str, &str); 2] =
    [("memory.max", "memory.current"), ("memory.limit_in_bytes", "memory.usage_in_bytes")];

/// Fields of `memory.stat` that the kernel reclaims before a group is out of memory: the page cache
/// and reclaimable slabs. Shared memory is in none of them. In version 1, the prefix "total_"
/// includes child groups.
const RECLAIMABLE: [&str; 6] = [
    "inactive_file",
    "active_file",
    "slab_reclaimable",
    "total_inactive_file",
    "total_active_file",
    "total_slab_reclaimable",
];

impl Cgroup {
    /// Returns the group of a folder, if it can limit memory.
    fn of(folder: &Path) -> Option<Self> {
        let (limit, used) = FILES.into_iter().find(|(limit, _)| folder.join(limit).exists())?;
        let file = |name| CString::new(folder.join(name).as_os_str().as_bytes()).ok();
        Some(Self {
            folder: folder.to_owned(),
            limit: file(limit)?,
            used: file(used)?,
            statistics: file("memory.stat")?,
        })
    }

    /// Returns the folder of the group.
    #[must_use]
    pub fn folder(&self) -> &Path {
        &self.folder
    }

    /// Returns the current limit in bytes; `None` if there is none.
    #[must_use]
    pub fn limit(&self) -> Option<u64> {
        // "max" is not a number.
        number(&self.limit).filter(|&bytes| bytes < UNLIMITED_VERSION_1)
    }

    /// Returns the bytes that the group uses now; `None` if the file cannot be read.
    #[must_use]
    pub fn used(&self) -> Option<u64> {
        number(&self.used)
    }

    /// Returns the bytes that the group can still use, including what the kernel can reclaim.
    /// `None` without a limit, or if the files cannot be read.
    #[must_use]
    pub fn available(&self) -> Option<u64> {
        let left = self.limit()?.saturating_sub(self.used()?);
        let mut buffer = [0; 8192];
        let statistics = read_into(&self.statistics, &mut buffer).unwrap_or_default();
        Some(left.saturating_add(reclaimable(statistics)))
    }
}

/// Returns the reclaimable bytes of a `memory.stat`: of the group, or with its child groups.
fn reclaimable(statistics: &[u8]) -> u64 {
    let fields = statistics.split(|&byte| byte == b'\n').filter_map(|line| {
        let (name, value) = str::from_utf8(line).ok()?.split_once(' ')?;
        let index = RECLAIMABLE.iter().position(|known| *known == name)?;
        Some((index, value.trim().parse::<u64>().ok()?))
    });
    let (mut group, mut total) = (0_u64, 0_u64);
    for (index, bytes) in fields {
        let sum = if index < RECLAIMABLE.len() / 2 { &mut group } else { &mut total };
        *sum = sum.saturating_add(bytes);
    }
    group.max(total)
}

/// Returns the groups that can limit this process's memory: its own, and its ancestors up to the
/// root of the mount.
///
/// # Errors
/// The file of `/proc` that cannot be read.
pub fn hierarchy() -> Result<Vec<Cgroup>, UnreadableFile> {
    let read = |path| {
        let bytes = std::fs::read(path).map_err(|error| UnreadableFile { path, error })?;
        Ok(String::from_utf8_lossy(&bytes).into_owned())
    };
    let groups: String = read("/proc/self/cgroup")?;
    let mounts = read("/proc/self/mountinfo")?;
    let mut found = Vec::new();
    let folders = [folder_version_2(&groups, &mounts), folder_version_1(&groups, &mounts)];
    for (top, group) in folders.into_iter().flatten() {
        found.extend(group.ancestors().take_while(|folder| folder.starts_with(&top)).filter_map(Cgroup::of));
    }
    Ok(found)
}

/// Returns the group with the lowest limit, and that limit in bytes; `None` if there is no limit.
///
/// # Errors
/// As [`hierarchy`].
pub fn tightest() -> Result<Option<(Cgroup, u64)>, UnreadableFile> {
    let limited = hierarchy()?.into_iter().filter_map(|group| {
        let limit = group.limit()?;
        Some((group, limit))
    });
    Ok(limited.min_by_key(|(_, limit)| *limit))
}

/// Returns the mount point and the group's folder, from the line `0::/path`.
fn folder_version_2(groups: &str, mounts: &str) -> Option<(PathBuf, PathBuf)> {
    let group = groups.lines().find_map(|line| line.strip_prefix("0::"))?;
    folder(group, mounts, |kind, _| kind == "cgroup2")
}

/// Returns the mount point and the group's folder, from the line `4:memory:/path`.
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
        // The path of a group outside of the mount begins with "/..".
        let is_inside = below.components().all(|part| matches!(part, std::path::Component::Normal(_)));
        let folder = if is_inside { top.join(below) } else { top.clone() };
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
    fn folder_is_found_for_both_versions() {
        let (top, folder) = folder_version_2("0::/user.slice/a b\n", MOUNTS).unwrap();
        assert_eq!((top, folder), ("/sys/fs/cgroup".into(), "/sys/fs/cgroup/user.slice/a b".into()));
        let (top, folder) = folder_version_1("4:cpu,memory:/docker/abc/job\n", MOUNTS).unwrap();
        assert_eq!((top, folder), ("/sys/fs/cgroup/memory".into(), "/sys/fs/cgroup/memory/job".into()));
    }

    #[test]
    fn folder_of_a_group_outside_of_the_mount_is_the_mount_point() {
        let (top, folder) = folder_version_2("0::/../other", MOUNTS).unwrap();
        assert_eq!(top, folder);
        assert!(folder_version_1("0::/", MOUNTS).is_none());
        assert!(folder_version_2("garbage", "more garbage").is_none());
    }

    #[test]
    fn reclaimable_memory_is_counted_once() {
        assert_eq!(
            reclaimable(b"anon 7\ninactive_file 10\nactive_file 3\nslab_reclaimable 1\nfile 99\n"),
            14
        );
        let version_1 =
            b"cache 5\ninactive_file 1\nactive_file 1\ntotal_inactive_file 4\ntotal_active_file 2\n";
        assert_eq!(reclaimable(version_1), 6);
        assert_eq!(reclaimable(b""), 0);
        assert_eq!(reclaimable(b"inactive_file lots\n\xff\xff 3\nactive_file"), 0);
    }
}
