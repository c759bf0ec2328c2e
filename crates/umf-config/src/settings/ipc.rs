//! `[ipc]`: how memory is shared with other processes and what the caches may hold.

use std::time::Duration;

use config::Value;
use serde::{Deserialize, Serialize};

use crate::ByteSize;
use crate::field::{Field, Section, Setting, elements_of, field, text_of, words};

words! {
    /// A way for a file descriptor to travel between processes.
    ExchangeMethod {
        /// `pidfd_open` and `pidfd_getfd`; needs the right to ptrace-attach.
        #[default]
        Pidfd = "pidfd",
        /// Open `/proc/<pid>/fd/<n>`; same user, not for dma-buf.
        Procfs = "procfs",
        /// Ask the producer over an abstract socket; costs the producer a thread.
        Socket = "socket",
    }
}

/// Which ways of fetching a descriptor are tried, and in what order.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
#[non_exhaustive]
pub enum Exchange {
    /// Whatever works on this machine, in the order pidfd, procfs, socket.
    #[default]
    Auto,
    /// These and no others, in this order; never empty and without repetition.
    Order(Vec<ExchangeMethod>),
}

impl Setting for Exchange {
    const EXPECTED: &'static str = "\"auto\", one of \"pidfd\" \"procfs\" \"socket\", or several of them in the order to try \
         ([\"procfs\", \"pidfd\"] in a file, procfs,pidfd in the environment)";

    fn read(value: &Value) -> Option<Self> {
        if text_of(value) == Some("auto") {
            return Some(Self::Auto);
        }
        let mut order = Vec::new();
        for element in elements_of(value)? {
            let method = ExchangeMethod::read(&element)?;
            if order.contains(&method) {
                return None;
            }
            order.push(method);
        }
        (!order.is_empty()).then_some(Self::Order(order))
    }

    fn text(&self) -> String {
        match self {
            Self::Auto => "auto".to_owned(),
            Self::Order(methods) => {
                let words: Vec<_> = methods.iter().map(|method| method.as_str()).collect();
                words.join(",")
            }
        }
    }
}

/// Who may ptrace this process, as told to the kernel with `PR_SET_PTRACER`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
#[non_exhaustive]
pub enum Ptracer {
    /// Nothing is told: the call is not made.
    #[default]
    None,
    /// Any process of the same user.
    Any,
    /// The process of this pid and its descendants; never zero.
    Pid(u32),
}

impl Setting for Ptracer {
    const EXPECTED: &'static str = "\"none\", \"any\" or a process id";

    fn read(value: &Value) -> Option<Self> {
        match text_of(value) {
            Some("none") => Some(Self::None),
            Some("any") => Some(Self::Any),
            _ => {
                let pid = u32::read(value)?;
                (pid != 0 && i32::try_from(pid).is_ok()).then_some(Self::Pid(pid))
            }
        }
    }

    fn text(&self) -> String {
        match self {
            Self::None => "none".to_owned(),
            Self::Any => "any".to_owned(),
            Self::Pid(pid) => pid.to_string(),
        }
    }
}

words! {
    /// What happens when a cache is at its limit and everything in it is in use.
    LimitPolicy {
        /// The limit is exceeded until something can be evicted.
        #[default]
        Soft = "soft",
        /// The open fails.
        Hard = "hard",
    }
}

words! {
    /// Whether an open takes a lease, which keeps freed memory from being used again while it is open.
    LeasePolicy {
        /// It does, or fails.
        #[default]
        On = "on",
        /// It does not: a mapping may show other contents once its block is freed.
        Off = "off",
    }
}

/// The number of parts of the importer's cache: chosen from the machine, or a power of two.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
#[non_exhaustive]
pub enum Shards {
    /// Chosen from the number of processors.
    #[default]
    Auto,
    /// This many; a power of two up to 65536.
    Count(u32),
}

impl Setting for Shards {
    const EXPECTED: &'static str = "\"auto\" or a power of two from 1 to 65536";

    fn read(value: &Value) -> Option<Self> {
        if text_of(value) == Some("auto") {
            return Some(Self::Auto);
        }
        let count = u32::read(value)?;
        (count.is_power_of_two() && count <= 65_536).then_some(Self::Count(count))
    }

    fn text(&self) -> String {
        match self {
            Self::Auto => "auto".to_owned(),
            Self::Count(count) => count.to_string(),
        }
    }
}

/// The section `[ipc]`. Environment names are `UMF_IPC_<KEY>`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct Ipc {
    /// How descriptors travel; an explicit choice is obeyed or refused. Default: `auto`.
    pub exchange: Exchange,
    /// Whether `PR_SET_PTRACER` is set, and to what. Default: `none`.
    pub ptracer: Ptracer,
    /// Exports that the exporter keeps; 0 is unlimited. Default: 0. Also read from
    /// `UMF_MAX_CREATED_IPC_HANDLES`.
    pub max_created_handles: u64,
    /// Mappings that the importer keeps; 0 is unlimited. Default: 0. Also read from
    /// `UMF_MAX_OPENED_IPC_HANDLES`.
    pub max_opened_handles: u64,
    /// Bytes of mappings that the importer keeps; 0 is unlimited. Default: 0.
    pub max_opened_bytes: ByteSize,
    /// What an exceeded limit means where nothing can be evicted. Default: `soft`.
    pub limit: LimitPolicy,
    /// Parts of the importer's cache. Default: `auto`.
    pub importer_shards: Shards,
    /// How long an exchange over a socket may take, in milliseconds; at least 1. Default: 2000.
    pub open_timeout_ms: u64,
    /// Whether an open takes a lease. Default: `on`.
    pub leases: LeasePolicy,
}

impl Ipc {
    /// [`Ipc::open_timeout_ms`] as a duration.
    pub const fn open_timeout(&self) -> Duration {
        Duration::from_millis(self.open_timeout_ms)
    }
}

impl Default for Ipc {
    fn default() -> Self {
        Self {
            exchange: Exchange::Auto,
            ptracer: Ptracer::None,
            max_created_handles: 0,
            max_opened_handles: 0,
            max_opened_bytes: ByteSize::ZERO,
            limit: LimitPolicy::Soft,
            importer_shards: Shards::Auto,
            open_timeout_ms: 2000,
            leases: LeasePolicy::On,
        }
    }
}

impl Section for Ipc {
    const FIELDS: &'static [Field<Self>] = &[
        field!(exchange),
        field!(ptracer),
        field!(max_created_handles),
        field!(max_opened_handles),
        field!(max_opened_bytes),
        field!(limit),
        field!(importer_shards),
        field!(open_timeout_ms, "a whole number of milliseconds, at least 1" if |timeout| timeout >= 1),
        field!(leases),
    ];
}

#[cfg(test)]
mod tests {
    use super::*;
    use config::ValueKind;

    fn exchange(text: &str) -> Option<Exchange> {
        Exchange::read(&Value::new(None, text))
    }

    #[test]
    fn an_order_is_a_list_or_a_comma_separated_text() {
        let order = Exchange::Order(vec![ExchangeMethod::Procfs, ExchangeMethod::Pidfd]);
        assert_eq!(exchange("procfs, pidfd"), Some(order.clone()));
        let list = Value::new(None, ValueKind::from(vec!["procfs", "pidfd"]));
        assert_eq!(Exchange::read(&list), Some(order.clone()));
        assert_eq!(exchange(&order.text()), Some(order));
        assert_eq!(exchange("auto"), Some(Exchange::Auto));
    }

    #[test]
    fn an_order_is_not_empty_repeated_or_mixed_with_auto() {
        for text in ["", ",", "pidfd,pidfd", "auto,pidfd", "pidfd,", "smoke"] {
            assert_eq!(exchange(text), None, "{text}");
        }
    }

    #[test]
    fn a_ptracer_is_a_word_or_a_possible_pid() {
        let read = |kind: ValueKind| Ptracer::read(&Value::new(None, kind));
        assert_eq!(read("any".into()), Some(Ptracer::Any));
        assert_eq!(read("123".into()), Some(Ptracer::Pid(123)));
        assert_eq!(read(123.into()), Some(Ptracer::Pid(123)));
        assert_eq!(read(0.into()), None);
        assert_eq!(read((-1).into()), None);
        assert_eq!(read(u32::MAX.into()), None);
    }
}
