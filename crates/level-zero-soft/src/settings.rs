//! Settings, from the environment: `ZE_SOFT_*`.

use std::time::Duration;

use level_zero_sys::{ZE_API_VERSION_1_0, ZE_API_VERSION_CURRENT, make_version, ze_api_version_t};
use soft_device::Variables;

/// How handles for other processes work.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Ipc {
    /// The first four bytes are an fd of the process that opens.
    Classic,
    /// The driver brings the fd over: by `pidfd_getfd`, or by a socket where `PR_SET_PTRACER` is refused.
    Opaque,
    /// As opaque, with `pidfd_getfd` whatever `PR_SET_PTRACER` says.
    OpaquePidfd,
    /// As opaque, with the socket.
    OpaqueSocket,
}

#[derive(Clone, Debug)]
pub(crate) struct Settings {
    pub(crate) devices: u32,
    pub(crate) sub_devices: u32,
    /// Bytes of each device.
    pub(crate) memory: u64,
    /// The largest allocation that is not asked for as an exception.
    pub(crate) largest: u64,
    /// Where device memory has its addresses; anywhere if absent.
    pub(crate) addresses: Option<(usize, usize)>,
    pub(crate) ipc: Ipc,
    /// Opening one handle twice gives one address.
    pub(crate) opens_once: bool,
    pub(crate) peers: bool,
    /// A peer's memory has to be made resident before it is used.
    pub(crate) strict_residency: bool,
    pub(crate) api: ze_api_version_t,
    pub(crate) fds: u64,
    pub(crate) delay: Duration,
    pub(crate) faults: String,
}

impl Settings {
    /// Reads them.
    ///
    /// # Errors
    /// The variable that is wrong, and what would be right.
    pub(crate) fn read(find: impl Fn(&str) -> Option<String>) -> Result<Self, String> {
        let variables = Variables(find);
        let find = |name: &str| variables.text(name);
        let number =
            |name: &str, default: u64, least: u64, most: u64| variables.number(name, default, least, most);
        let choice = |name: &str, choices: &[&str]| variables.choice(name, choices);
        let memory = number("ZE_SOFT_MEMORY", 1 << 30, 1 << 16, 1 << 46)?;
        Ok(Self {
            devices: small(number("ZE_SOFT_DEVICES", 2, 1, 64)?),
            sub_devices: small(number("ZE_SOFT_SUBDEVICES", 0, 0, 16)?),
            memory,
            largest: number("ZE_SOFT_MAX_ALLOCATION", memory, 1, u64::MAX)?,
            addresses: match find("ZE_SOFT_ADDRESSES") {
                None => None,
                Some(text) => Some(range(&text).ok_or(format!(
                    "ZE_SOFT_ADDRESSES={text}: two hexadecimal addresses are expected, as in 0x100000000000-0x100100000000"
                ))?),
            },
            ipc: [Ipc::Classic, Ipc::Opaque, Ipc::OpaquePidfd, Ipc::OpaqueSocket]
                [choice("ZE_SOFT_IPC", &["classic", "opaque", "opaque-pidfd", "opaque-socket"])?],
            opens_once: choice("ZE_SOFT_OPEN", &["once", "each"])? == 0,
            peers: choice("ZE_SOFT_PEERS", &["all", "none"])? == 0,
            strict_residency: choice("ZE_SOFT_RESIDENCY", &["lazy", "strict"])? == 1,
            api: match find("ZE_SOFT_API") {
                None => ZE_API_VERSION_CURRENT,
                Some(text) => version(&text).ok_or(format!("ZE_SOFT_API={text}: a version from 1.0 to 1.17 is expected"))?,
            },
            fds: number("ZE_SOFT_MAX_FDS", u64::MAX, 0, u64::MAX)?,
            delay: Duration::from_micros(number("ZE_SOFT_DELAY", 0, 0, 60_000_000)?),
            faults: find("ZE_SOFT_FAULTS").unwrap_or_default(),
        })
    }
}

fn small(value: u64) -> u32 {
    u32::try_from(value).unwrap_or(u32::MAX)
}

fn range(text: &str) -> Option<(usize, usize)> {
    let hexadecimal = |text: &str| usize::from_str_radix(text.trim().trim_start_matches("0x"), 16).ok();
    let (begin, end) = text.split_once('-')?;
    let (begin, end) = (hexadecimal(begin)?, hexadecimal(end)?);
    (begin >= 1 << 16 && begin < end && end <= 1 << 47).then_some((begin, end))
}

fn version(text: &str) -> Option<ze_api_version_t> {
    let minor: u32 = text.strip_prefix("1.")?.parse().ok()?;
    let version = ze_api_version_t(make_version(1, minor));
    (ZE_API_VERSION_1_0..=ZE_API_VERSION_CURRENT).contains(&version).then_some(version)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(name: &str, value: &str) -> Result<Settings, String> {
        Settings::read(|wanted| (wanted == name).then(|| value.to_owned()))
    }

    #[test]
    fn values_are_read() {
        assert_eq!(read("", "").unwrap().devices, 2);
        assert_eq!(read("ZE_SOFT_MEMORY", "64M").unwrap().memory, 64 << 20);
        assert_eq!(read("ZE_SOFT_MEMORY", "64M").unwrap().largest, 64 << 20);
        assert_eq!(read("ZE_SOFT_IPC", "opaque-socket").unwrap().ipc, Ipc::OpaqueSocket);
        assert_eq!(read("ZE_SOFT_API", "1.5").unwrap().api, ze_api_version_t(make_version(1, 5)));
        assert_eq!(
            read("ZE_SOFT_ADDRESSES", "0x100000000000-100000200000").unwrap().addresses,
            Some((0x1000_0000_0000, 0x1000_0020_0000))
        );
    }

    #[test]
    fn wrong_values_name_the_variable() {
        for (name, value) in [
            ("ZE_SOFT_DEVICES", "0"),
            ("ZE_SOFT_DEVICES", "many"),
            ("ZE_SOFT_MEMORY", "99999999999T"),
            ("ZE_SOFT_MEMORY", "G"),
            ("ZE_SOFT_IPC", "magic"),
            ("ZE_SOFT_OPEN", "twice"),
            ("ZE_SOFT_PEERS", "some"),
            ("ZE_SOFT_RESIDENCY", "x"),
            ("ZE_SOFT_API", "1.99"),
            ("ZE_SOFT_API", "2.0"),
            ("ZE_SOFT_ADDRESSES", "0x2000000-0x1000000"),
            ("ZE_SOFT_ADDRESSES", "0-0x1000000"),
            ("ZE_SOFT_DELAY", "-1"),
        ] {
            let error = read(name, value).unwrap_err();
            assert!(error.starts_with(&format!("{name}={value}: ")), "{error}");
        }
    }
}
