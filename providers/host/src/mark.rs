//! [`NamedMark`]: what a provider writes on named shared memory, so that what a killed process left can be told from
//! what is somebody else's.

use std::fs;

/// Who made an object in `/dev/shm`: an extended attribute of it, where the file system keeps those (tmpfs from Linux 6.6
/// on). Whoever may write the object may write the mark.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NamedMark {
    boot: String,
    namespace: String,
    pid: u32,
    start_time: u64,
}

impl NamedMark {
    /// The name of the attribute (`xattr(7)`).
    pub const ATTRIBUTE: &str = "user.umf.named";

    /// That of this process; `None` where `/proc` does not tell who it is.
    pub(crate) fn current() -> Option<Self> {
        let pid = std::process::id();
        Some(Self { boot: boot()?, namespace: namespace()?, pid, start_time: start_time(pid)? })
    }

    /// The mark that these bytes are; `None` if they are none of this version.
    #[must_use]
    pub fn parse(bytes: &[u8]) -> Option<Self> {
        let mut words = std::str::from_utf8(bytes).ok()?.split(' ');
        let (version, boot, namespace, pid, start_time) =
            (words.next()?, words.next()?, words.next()?, words.next()?, words.next()?);
        if version != "umf1" || words.next().is_some() {
            return None;
        }
        let (pid, start_time) = (pid.parse().ok()?, start_time.parse().ok()?);
        Some(Self { boot: boot.to_owned(), namespace: namespace.to_owned(), pid, start_time })
    }

    pub(crate) fn text(&self) -> String {
        let Self { boot, namespace, pid, start_time } = self;
        format!("umf1 {boot} {namespace} {pid} {start_time}")
    }

    /// The process id of the maker, in its pid namespace.
    #[must_use]
    pub const fn pid(&self) -> u32 {
        self.pid
    }

    /// Whether the maker may still run: that it does not is certain only in its own pid namespace.
    #[must_use]
    pub fn may_be_alive(&self) -> bool {
        if boot().is_some_and(|boot| boot != self.boot) {
            return false;
        }
        namespace().is_none_or(|namespace| namespace != self.namespace)
            || start_time(self.pid).is_some_and(|time| time == self.start_time)
    }
}

fn boot() -> Option<String> {
    let text = fs::read_to_string("/proc/sys/kernel/random/boot_id").ok()?;
    Some(text.trim().to_owned()).filter(|text| !text.is_empty() && !text.contains(' '))
}

/// As `pid:[4026531836]`.
fn namespace() -> Option<String> {
    fs::read_link("/proc/thread-self/ns/pid").ok()?.to_str().map(str::to_owned)
}

/// Field 22 of `/proc/<pid>/stat` (`proc_pid_stat(5)`). A process that ended and was not waited for is no more.
fn start_time(pid: u32) -> Option<u64> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    let (_, fields) = stat.rsplit_once(')')?;
    let mut fields = fields.split_ascii_whitespace();
    if matches!(fields.next()?, "Z" | "X") {
        return None;
    }
    fields.nth(18)?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn a_mark_tells_who_made_it() {
        let mark = NamedMark::current().unwrap();
        assert_eq!(NamedMark::parse(mark.text().as_bytes()), Some(mark.clone()));
        assert_eq!(mark.pid(), std::process::id());
        assert!(mark.may_be_alive());
        assert!(!NamedMark { start_time: mark.start_time + 1, ..mark.clone() }.may_be_alive());
        assert!(!NamedMark { pid: u32::MAX, ..mark.clone() }.may_be_alive());
        assert!(NamedMark { pid: u32::MAX, namespace: "pid:[1]".to_owned(), ..mark.clone() }.may_be_alive());
        assert!(!NamedMark { boot: "other".to_owned(), ..mark }.may_be_alive());
        for bad in ["", "umf1", "umf1 a b 1", "umf2 a b 1 2", "umf1 a b 1 2 3", "umf1 a b -1 2"] {
            assert_eq!(NamedMark::parse(bad.as_bytes()), None, "{bad}");
        }
    }

    proptest! {
        #[test]
        fn any_bytes_are_a_mark_or_none(bytes in proptest::collection::vec(any::<u8>(), 0..100)) {
            if let Some(mark) = NamedMark::parse(&bytes) {
                prop_assert!(NamedMark::parse(mark.text().as_bytes()).is_some());
            }
        }
    }
}
