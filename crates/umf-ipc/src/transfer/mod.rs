//! Exchange of descriptors: how an importer gets a descriptor of a producer. The same for all
//! providers.
//!
//! | mode | how | needs | not for |
//! |---|---|---|---|
//! | `pidfd` | `pidfd_open(2)` + `pidfd_getfd(2)` (Linux 5.6) | ptrace attach rights; refused between siblings under yama 1 | other pid namespaces |
//! | `procfs` | opening `/proc/<pid>/fd/<n>` (`proc_pid_fd(5)`) | ptrace read rights: the same user, at every yama scope | dma-buf; other pid namespaces |
//! | `socket` | `SCM_RIGHTS` (`unix(7)`) over an abstract socket named by the nonce | a shared network namespace, the same user; a thread in the producer | producers that did not start it |
//! | `directory` | the same over a socket in a directory | a directory that both have mounted; a thread in the producer | producers that did not start it |
//!
//! `auto` tries the modes in this order. If the settings name modes, no other mode is tried.

mod channel;
mod diagnosis;
pub(crate) mod socket;

pub(crate) use channel::{ChannelSettings, FdChannel, Fetched, RemoteFd};
pub(crate) use diagnosis::yama_scope;

use core::fmt;
use core::str::FromStr;

umf_core::words! {
    /// A mode of exchange. `ALL` is in the order of `auto`.
    #[non_exhaustive]
    pub enum Mode {
        /// `pidfd_getfd(2)`.
        Pidfd = "pidfd",
        /// `/proc/<pid>/fd/<n>`.
        Procfs = "procfs",
        /// `SCM_RIGHTS` over the producer's abstract socket.
        Socket = "socket",
        /// `SCM_RIGHTS` over the producer's socket in a directory.
        Directory = "directory",
    }
}

impl Mode {
    /// Returns the name in settings.
    #[must_use]
    pub const fn name(self) -> &'static str {
        self.as_str()
    }
}

/// The modes that may be used, in order of preference (`UMF_IPC_EXCHANGE`).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Exchange {
    /// `pidfd`, `procfs`, `socket`, `directory`. The producer starts its abstract socket only if
    /// importers will probably need it, and the socket in the directory if one is set.
    #[default]
    Auto,
    /// These modes, in this order. If `socket` or `directory` is among them, the producer starts
    /// that socket.
    Order(Vec<Mode>),
}

impl Exchange {
    /// Allows this mode alone.
    #[must_use]
    pub fn only(mode: Mode) -> Self {
        Self::Order(vec![mode])
    }

    pub(crate) fn modes(&self) -> &[Mode] {
        match self {
            Self::Auto => &Mode::ALL,
            Self::Order(modes) => modes,
        }
    }
}

/// The error of parsing a word that is no exchange mode.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "{0:?} is not an exchange mode; valid are auto, pidfd, procfs, socket, directory, or several of the last four with \
     commas"
)]
pub struct UnknownMode(String);

impl FromStr for Exchange {
    type Err = UnknownMode;

    fn from_str(text: &str) -> Result<Self, UnknownMode> {
        let unknown = || UnknownMode(text.chars().take(64).collect());
        if text.trim() == "auto" {
            return Ok(Self::Auto);
        }
        let modes: Result<Vec<Mode>, _> = text.split(',').map(|word| word.trim().parse()).collect();
        modes.ok().and_then(Self::in_order).ok_or_else(unknown)
    }
}

impl Exchange {
    /// Allows these modes. `None` if there are none, or one is repeated.
    fn in_order(modes: Vec<Mode>) -> Option<Self> {
        let is_new = |index: usize| !modes[..index].contains(&modes[index]);
        (!modes.is_empty() && (0..modes.len()).all(is_new)).then_some(Self::Order(modes))
    }
}

umf_core::text_form!(
    Exchange,
    "\"auto\", one of \"pidfd\" \"procfs\" \"socket\" \"directory\", or several of them in the order to try \
     ([\"procfs\", \"pidfd\"] or \"procfs,pidfd\")"
);

impl fmt::Display for Exchange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Auto => f.write_str("auto"),
            Self::Order(modes) => {
                for (index, mode) in modes.iter().enumerate() {
                    write!(f, "{}{mode}", if index > 0 { "," } else { "" })?;
                }
                Ok(())
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn exchange_orders_parse_and_print() {
        assert_eq!("auto".parse(), Ok(Exchange::Auto));
        assert_eq!("procfs".parse(), Ok(Exchange::only(Mode::Procfs)));
        let two = Exchange::Order(vec![Mode::Socket, Mode::Pidfd]);
        assert_eq!("socket, pidfd".parse(), Ok(two.clone()));
        assert_eq!(two.to_string(), "socket,pidfd");
        for bad in ["", "pidfd,", "ptrace", "auto,pidfd"] {
            assert!(bad.parse::<Exchange>().is_err(), "{bad}");
        }
    }
}
