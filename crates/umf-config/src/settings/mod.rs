//! The settings in force, typed.

mod device;
mod ipc;
mod link;
mod log;
mod pool;
mod provider;

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use serde::Serialize;

pub use device::{DeviceHandles, DeviceMemory, FreePolicy};
pub use ipc::{Exchange, ExchangeMethod, Ipc, LeasePolicy, LimitPolicy, Ptracer, Shards};
pub use link::{Link, LinkEngine};
pub use log::{Log, LogLevel, LogOutput};
pub use pool::{Leaks, OnFree, Poison, Pool, Pools, SharedLimit};
pub use provider::{DmaBufExporter, HugePages, NumaMode, NumaWeight, Params, Provider, Visibility};

use crate::{ByteSize, Origin, RecognisedVariable};

/// Every setting of umf, and where each came from.
///
/// Made by a [`Loader`](crate::Loader); [`Settings::default`] is what holds where nobody set anything.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[non_exhaustive]
pub struct Settings {
    /// `[ipc]`.
    pub ipc: Ipc,
    /// `[pool.defaults]` and `[pool.<name>]`.
    pub pool: Pools,
    /// `[provider.<name>]`; the set `host` is always there.
    pub provider: BTreeMap<String, Provider>,
    /// `[shared_limits]`: how many bytes the pools that name a limit may hold together; 0 is
    /// unlimited.
    pub shared_limits: BTreeMap<String, ByteSize>,
    /// `[link]`.
    pub link: Link,
    /// `[log]`.
    pub log: Log,
    /// Where each key that somebody set came from.
    #[serde(skip)]
    pub(crate) origins: BTreeMap<String, Origin>,
    #[serde(skip)]
    pub(crate) files: Vec<PathBuf>,
    #[serde(skip)]
    pub(crate) recognised: Vec<RecognisedVariable>,
}

impl Settings {
    /// Where the value of `key` (such as `ipc.exchange`) came from.
    ///
    /// A key of `pool.<name>` that is taken from `pool.defaults` has the origin that it has there.
    pub fn origin(&self, key: &str) -> &Origin {
        self.origins.get(key).unwrap_or(&Origin::Default)
    }

    /// The provider set of this name, or what a kind of device memory ([`Provider::DEVICE_KINDS`]) has by default.
    pub fn provider_set(&self, name: &str) -> Option<Cow<'_, Provider>> {
        let by_kind = || Provider::DEVICE_KINDS.contains(&name).then(|| Cow::Owned(Provider::of_name(name)));
        self.provider.get(name).map(Cow::Borrowed).or_else(by_kind)
    }

    /// The settings files that were read, weakest first.
    pub fn files(&self) -> impl Iterator<Item = &Path> {
        self.files.iter().map(PathBuf::as_path)
    }

    /// Variables that are set and known, and that another part of umf obeys.
    pub fn recognised(&self) -> &[RecognisedVariable] {
        &self.recognised
    }
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            ipc: Ipc::default(),
            pool: Pools::default(),
            provider: BTreeMap::from([("host".to_owned(), Provider::default())]),
            shared_limits: BTreeMap::new(),
            link: Link::default(),
            log: Log::default(),
            origins: BTreeMap::new(),
            files: Vec::new(),
            recognised: Vec::new(),
        }
    }
}
