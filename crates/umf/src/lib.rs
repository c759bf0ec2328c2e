//! umf: pools over host and device memory, and IPC handles that are plain bytes.
//!
//! ```
//! fn main() -> umf::Result<()> {
//!     let pool = umf::Pool::shared()?;
//!     let block = pool.allocate(4096)?;
//!     block.write(0, b"hello")?;
//!     let handle = block.handle()?; // 256 plain bytes; as text: handle.to_string()
//!
//!     // In any other process of this user (here: in the same one):
//!     let mapping = umf::open(&handle)?;
//!     let mut text = [0; 5];
//!     mapping.read(0, &mut text)?;
//!     assert_eq!(&text, b"hello");
//!     Ok(())
//! }
//! ```
//!
//! | what | where |
//! |---|---|
//! | pools and blocks | [`Pool`], [`Block`], [`OwnedBlock`], [`PoolBuilder`] |
//! | a pool in `Vec` and `HashMap`, or as the global allocator | `&Pool` is an `allocator_api2` allocator; [`GlobalPool`] |
//! | handles | [`Handle`], [`Block::handle`], [`Block::export`], [`open`], [`Mapping`]; [`ipc`] |
//! | freed memory that other processes still have open | [`OnFree`], [`drain`], [`Pool::drain`] |
//! | freed memory that a device still uses | [`Block::free_after`], [`Completion`] |
//! | typed views of memory that other processes may write | [`Block::view`], [`Mapping::view`], [`View`], [`Plain`] |
//! | reserve, automatic release | [`Pool::reserve`], [`PoolBuilder::max_cached`], [`PoolBuilder::release_after`] |
//! | out of memory | [`Pool::on_out_of_memory`], [`OutOfMemoryEvent`], [`OutOfMemoryAction`] |
//! | statistics, maps, history, leaks | [`Pool::statistics`], [`statistics()`], [`map`], [`history`], [`leaks`], [`CheckSettings`] |
//! | settings | [`init`], `umf.toml`, `UMF_*` variables: [`settings`](mod@settings) |
//! | providers and pools of other crates | [`registry`] |
//! | messages between two processes; ranks of a job | [`link`] |
//! | memory of processes on other machines | [`remote`] |
//! | regions that belong to a named set of processes | [`domain`] |
//! | NUMA nodes, and memory on the fastest, nearest or largest of them | [`topology`], [`memory_space`] |
//! | providers | [`host`], [`dma_buf`], [`cuda`], [`level_zero`], [`mod@file`], [`plugin`] |
//! | memory that the CPU and devices access in turn | [`Block::cpu_access`], [`cpu_access`]; [`Block::read`] copies with the device |
//! | pool implementations | [`pools`], [`Pool::from_pool`] |
//!
//! Cargo features leave out what a program does not use; the README has the table. A crate that
//! implements a provider depends on `umf-core`, one that implements a pool also on `umf-runtime`.

// The documentation links to items of all features.
#![cfg_attr(
    not(all(
        feature = "config",
        feature = "cuda",
        feature = "dma-buf",
        feature = "domain",
        feature = "file",
        feature = "host",
        feature = "level-zero",
        feature = "link",
        feature = "plugin",
        feature = "remote",
        feature = "slab",
        feature = "topology"
    )),
    allow(rustdoc::broken_intra_doc_links)
)]

#[cfg(feature = "config")]
mod assembly;
mod block;
#[cfg(feature = "slab")]
mod builder;
#[cfg(feature = "domain")]
pub mod domain;
mod error;
#[cfg(all(feature = "host", feature = "slab"))]
mod global;
pub mod history;
mod kinds;
pub mod leaks;
#[cfg(feature = "link")]
pub mod link;
#[cfg(feature = "log")]
mod logging;
pub mod map;
#[cfg(all(feature = "host", feature = "topology"))]
pub mod memory_space;
mod pool;
mod process;
#[cfg(feature = "config")]
pub mod registry;
#[cfg(feature = "remote")]
pub mod remote;
#[cfg(feature = "config")]
pub mod settings;
mod statistics;

pub use block::{Block, OwnedBlock, cpu_access};
#[cfg(feature = "slab")]
pub use builder::PoolBuilder;
pub use error::{Error, Result};
#[cfg(all(feature = "host", feature = "slab"))]
pub use global::GlobalPool;
pub use pool::Pool;
pub use process::{
    cancel_handle, exporter, handles_in_transit, importer, is_in_transit, known_exporter, open,
    open_read_only,
};
#[cfg(feature = "config")]
pub use process::{init, settings, warnings};
pub use statistics::{NamedPoolStatistics, ProcessStatistics, statistics};
pub use umf_core::deferred::{DeferredStatistics, OnFree};
pub use umf_core::out_of_memory::{OutOfMemoryAction, OutOfMemoryEvent};
pub use umf_core::statistics::PoolStatistics;
#[cfg(feature = "bytemuck")]
pub use umf_core::view::AsPod;
#[cfg(feature = "zerocopy")]
pub use umf_core::view::AsZerocopy;
pub use umf_core::{
    Access, Address, Completion, CpuAccess, Error as MemoryError, Layout, MemoryKind, Plain, Progress,
    ProviderKind, ReadView, View, Visibility,
};
#[cfg(feature = "derive")]
pub use umf_derive::Plain;
pub use umf_ipc::{Exchange, Export, Exporter, Handle, Importer, Mapping, Mode};
pub use umf_runtime::checked::{CheckSettings, Leaks, Poison};
pub use umf_runtime::deferred::drain;

/// Registration of importers; with the feature `config` also of kinds of provider and pool.
#[cfg(not(feature = "config"))]
pub mod registry {
    pub use crate::process::register_import;
}

/// Handles, exporters and importers: the layer below [`Block::handle`] and [`open`].
pub mod ipc {
    #[doc(inline)]
    pub use umf_ipc::{
        Allow, BootId, CacheStatistics, DecodeError, Error, Exchange, Export, Exporter, ExporterSettings,
        FailedAttempt, HANDLE_SIZE, Handle, Importer, ImporterBuilder, ImporterSettings, LimitPolicy,
        Mapping, Mode, Nonce, Ptracer, Result, fd_socket, inspect, rendezvous, transit,
    };
}

/// Pool implementations, for [`Pool::from_pool`].
pub mod pools {
    #[doc(inline)]
    pub use umf_core::limit::{SharedLimit, SharedLimitRef};
    #[cfg(feature = "jemalloc")]
    #[doc(inline)]
    pub use umf_pool_jemalloc::{JemallocPool, JemallocSettings};
    #[doc(inline)]
    pub use umf_pool_proxy::{ProxyPool, ProxySettings};
    #[cfg(feature = "slab")]
    #[doc(inline)]
    pub use umf_pool_slab::{SlabPool, SlabSettings};
}

/// Host memory: private or shared, huge pages, NUMA placement.
#[cfg(feature = "host")]
pub mod host {
    pub use crate::kinds::HostSettings;
    #[doc(inline)]
    pub use umf_provider_host::{
        CreatorMark, HostBuilder, HostImport, HostProvider, HugePages, NodeSet, NodeShare, Numa,
    };
}

/// Memory that devices share: dma-bufs.
#[cfg(feature = "dma-buf")]
pub mod dma_buf {
    #[doc(inline)]
    pub use umf_provider_dma_buf::{
        DmaBuf, DmaBufBuilder, DmaBufImport, DmaBufProvider, DmaBufSettings, FilePart, Heap, HeapReport,
        Udmabuf, UdmabufReport, cpu_access,
    };
}

/// Memory of NVIDIA devices.
#[cfg(feature = "cuda")]
pub mod cuda {
    #[doc(inline)]
    pub use umf_provider_cuda::{
        CudaBuilder, CudaHandles, CudaImport, CudaMemory, CudaProvider, CudaSettings, DeviceInfo, Driver,
        DriverInfo, StreamEvent, driver_api, survey,
    };
}

/// Memory of Level Zero devices.
#[cfg(feature = "level-zero")]
pub mod level_zero {
    #[doc(inline)]
    pub use umf_provider_level_zero::{
        DeviceInfo, DeviceSelector, DriverInfo, FdFormat, FreePolicy, HandleFormat, LevelZeroBuilder,
        LevelZeroImport, LevelZeroMemory, LevelZeroProvider, LevelZeroSettings, last_failure, release_unused,
        survey,
    };
}

/// Memory of a file, of a DAX device, or memory that the program already owns.
#[cfg(feature = "file")]
pub mod file {
    #[doc(inline)]
    pub use umf_provider_file::{
        DevDaxImport, DevDaxProvider, DevDaxSettings, FileImport, FileProvider, FileSettings, FixedProvider,
        FixedSettings,
    };
}

/// Providers from shared objects.
#[cfg(feature = "plugin")]
pub mod plugin {
    pub use crate::kinds::PluginSettings;
    #[doc(inline)]
    pub use umf_provider_plugin::{
        DEFAULT_KIND, DEFAULT_SYMBOL, FdImport, PluginError, PluginImport, PluginLoader, PluginProvider,
        ProviderInfo, TableError, load, table,
    };
}

/// NUMA nodes: memory, distances and performance.
#[cfg(feature = "topology")]
pub mod topology {
    #[doc(inline)]
    pub use umf_topology::{
        AccessClass, Attribute, Basis, Choice, Error, HugePool, IdList, Initiator, Memory, MemorySpace, Node,
        ParseIdListError, ParseSpaceNameError, Performance, Recording, Result, SideCache, Source, SpaceName,
        Tier, Topology,
    };
}

/// The example in the README compiles.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;

/// The examples in the pages for users run. They need the default features.
#[cfg(all(doctest, feature = "host", feature = "slab", feature = "link"))]
mod pages {
    #[doc = include_str!("../../../docs/share-a-vec.md")]
    struct ShareAVec;
    #[doc = include_str!("../../../docs/who-frees-what.md")]
    struct Ownership;
    #[doc = include_str!("../../../docs/worker-dies.md")]
    struct DeathOfAProcess;
    #[doc = include_str!("../../../docs/tickets.md")]
    struct Tickets;
}
