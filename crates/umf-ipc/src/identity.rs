//! Identities of processes and of the boot, which are never reused.

use core::fmt;
use core::str::FromStr;
use core::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::os::fd::OwnedFd;

/// 128 random bits, drawn when a ledger is created. No two producers share a nonce, even if a pid
/// is reused.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Nonce([u8; 16]);

impl Nonce {
    /// Creates a nonce from these bytes, for a name that both processes know beforehand.
    #[must_use]
    pub const fn from_bytes(bytes: [u8; 16]) -> Self {
        Self(bytes)
    }

    /// Parses the 32 digits of [`fmt::Display`].
    pub(crate) fn from_hex(text: &str) -> Option<Self> {
        let mut bytes = [0; 16];
        let is_long = text.len() == 2 * bytes.len();
        (is_long && data_encoding::HEXLOWER.decode_mut(text.as_bytes(), &mut bytes).is_ok())
            .then_some(Self(bytes))
    }

    /// Returns the bytes.
    #[must_use]
    pub const fn as_bytes(&self) -> &[u8; 16] {
        &self.0
    }

    /// Returns the bytes as two words.
    pub(crate) fn halves(&self) -> [u64; 2] {
        let whole = u128::from_le_bytes(self.0);
        [whole as u64, (whole >> 64) as u64]
    }

    pub(crate) fn random() -> Result<Self, rustix::io::Errno> {
        Ok(Self(umf_os::process::random()?))
    }
}

/// Identity of a producer, the key of the importers' tables. The nonce alone does not identify a
/// producer: it is public (the name of the socket contains it), and any process can write it into
/// its own ledger and handles.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct ProducerId {
    pub nonce: Nonce,
    pub pid: u32,
    pub pid_namespace: u64,
    /// 0 before Linux 6.9.
    pub pidfs_inode: u64,
}

impl fmt::Display for Nonce {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

impl fmt::Debug for Nonce {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// The boot of a machine (`/proc/sys/kernel/random/boot_id`, `random(4)`): differs on every machine
/// and after every boot.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct BootId([u8; 16]);

impl BootId {
    /// The value if `/proc` is not mounted.
    pub(crate) const UNKNOWN: Self = Self([0; 16]);

    pub(crate) const fn from_bytes(bytes: [u8; 16]) -> Self {
        Self(bytes)
    }

    /// Returns the bytes as two words.
    pub(crate) fn halves(&self) -> [u64; 2] {
        let whole = u128::from_le_bytes(self.0);
        [whole as u64, (whole >> 64) as u64]
    }

    /// Returns the half that handles contain.
    pub(crate) fn half(self) -> BootHalf {
        BootHalf(self.halves()[0])
    }
}

/// The first eight bytes of a [`BootId`], which suffice to tell machines and boots apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct BootHalf(pub u64);

impl BootHalf {
    /// Returns whether both are known and differ.
    pub(crate) const fn contradicts(self, other: Self) -> bool {
        self.0 != 0 && other.0 != 0 && self.0 != other.0
    }
}

impl FromStr for BootId {
    type Err = ();

    fn from_str(text: &str) -> Result<Self, ()> {
        let mut bytes = [0; 16];
        let digits: Vec<u8> = text.trim().bytes().filter(|&byte| byte != b'-').collect();
        if digits.len() != 2 * bytes.len() {
            return Err(());
        }
        data_encoding::HEXLOWER.decode_mut(&digits, &mut bytes).map_err(|_| ())?;
        Ok(Self(bytes))
    }
}

impl fmt::Debug for BootId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", data_encoding::HEXLOWER.encode_display(&self.0))
    }
}

/// The identity that a producer writes into its handles and its ledger.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ProcessIdentity {
    pub boot_id: BootId,
    pub pid: u32,
    pub pid_namespace: u64,
    /// 0 before Linux 6.9.
    pub pidfs_inode: u64,
    pub start_time: u64,
}

/// Inode of the pid namespace that the machine booted with (`PROC_PID_INIT_INO` in the kernel).
const INITIAL_PID_NAMESPACE: u64 = 0xEFFF_FFFC;

impl ProcessIdentity {
    /// Returns the identity of this process. A field that cannot be read (no `/proc`, an old
    /// kernel) is 0 and is not compared.
    pub(crate) fn current() -> Self {
        let pid = umf_os::process::pid();
        Self {
            boot_id: boot_id(),
            pid,
            pid_namespace: pid_namespace(),
            pidfs_inode: umf_os::process::pidfd_open(pid)
                .ok()
                .and_then(|pidfd| pidfs_inode(&pidfd))
                .unwrap_or(0),
            start_time: start_time(pid).unwrap_or(0),
        }
    }

    pub(crate) const fn is_in_initial_pid_namespace(&self) -> bool {
        self.pid_namespace == INITIAL_PID_NAMESPACE
    }
}

/// Returns the boot id of this machine. It is read once: every open uses it, and reading it costs 5
/// us.
pub(crate) fn boot_id() -> BootId {
    // Not a OnceLock: a child that is forked while another thread initializes it would wait for
    // ever. Concurrent threads store the same value.
    static HALVES: [AtomicU64; 2] = [AtomicU64::new(0), AtomicU64::new(0)];
    static KNOWN: AtomicBool = AtomicBool::new(false);
    if !KNOWN.load(Ordering::Acquire) {
        let text = std::fs::read_to_string("/proc/sys/kernel/random/boot_id").ok();
        let Some(id) = text.and_then(|text| text.parse::<BootId>().ok()) else { return BootId::UNKNOWN };
        let id = u128::from_ne_bytes(id.0);
        HALVES[0].store(id as u64, Ordering::Relaxed);
        HALVES[1].store((id >> 64) as u64, Ordering::Relaxed);
        KNOWN.store(true, Ordering::Release);
    }
    let [low, high] = &HALVES;
    let id = u128::from(low.load(Ordering::Relaxed)) | u128::from(high.load(Ordering::Relaxed)) << 64;
    BootId(id.to_ne_bytes())
}

/// Returns the boot id of this machine; zeros if it is unknown.
#[must_use]
pub fn boot_id_bytes() -> [u8; 16] {
    boot_id().0
}

pub(crate) fn pid_namespace() -> u64 {
    std::fs::metadata("/proc/thread-self/ns/pid")
        .map_or(0, |metadata| std::os::unix::fs::MetadataExt::ino(&metadata))
}

/// Returns the process's inode in pidfs, which is never reused within a boot. `None` before Linux
/// 6.9.
pub(crate) fn pidfs_inode(pidfd: &OwnedFd) -> Option<u64> {
    const PID_FS_MAGIC: u64 = 0x5049_4446;
    let identity = umf_os::file::identity(pidfd).ok()?;
    (umf_os::file::filesystem(pidfd).ok()? == PID_FS_MAGIC).then_some(identity.inode)
}

/// Returns when a process was started, in clock ticks since boot: field 22 of `/proc/<pid>/stat`
/// (`proc_pid_stat(5)`).
#[must_use]
pub fn start_time(pid: u32) -> Option<u64> {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // The command name is in parentheses and may contain anything; fields are counted behind it.
    let (_, fields) = stat.rsplit_once(')')?;
    fields.split_ascii_whitespace().nth(19)?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn identity_of_this_process_is_complete() {
        let identity = ProcessIdentity::current();
        assert_eq!(identity.pid, std::process::id());
        assert_ne!(identity.pid_namespace, 0);
        assert!(identity.start_time > 0);
        assert_ne!(identity.boot_id, BootId::UNKNOWN);
        assert_eq!(start_time(0), None);
    }

    #[test]
    fn boot_ids_parse_and_unknown_ones_contradict_none() {
        let text = "0123abcd-0123-4567-89ab-0123456789ab\n";
        let id: BootId = text.parse().unwrap();
        assert_eq!(format!("{id:?}"), "0123abcd0123456789ab0123456789ab");
        for bad in ["", "0", "zz", &"0".repeat(31), &"g".repeat(32), &"0".repeat(34)] {
            assert!(bad.parse::<BootId>().is_err(), "{bad}");
        }
        let other = BootId([1; 16]).half();
        assert!(!id.half().contradicts(BootId::UNKNOWN.half()) && id.half().contradicts(other));
        assert!(!id.half().contradicts(id.half()));
    }
}
