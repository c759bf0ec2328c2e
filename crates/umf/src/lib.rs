//! umf: pools over host and device memory, and handles that are plain bytes.
//!
//! ```
//! fn main() -> umf::Result<()> {
//!     let pool = umf::Pool::shared()?;
//!     let block = pool.allocate(4096)?;
//!     block.write(0, b"hello")?;
//!     let handle = block.handle()?; // 256 plain bytes; as text: handle.to_string()
//!
//!     // In any other process that may (or, here, in this one):
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
//! | pools and blocks | [`Pool`], [`Block`], [`PoolBuilder`] |
//! | a pool in `Vec` and `HashMap`, or as the global allocator | `&Pool` is an `allocator_api2` allocator; [`GlobalPool`] |
//! | freed memory that others still have open | [`OnFree`], [`drain`], [`Pool::drain`] |
//! | memory ahead, and back again unasked | [`Pool::reserve`], [`PoolBuilder::max_cached`], [`PoolBuilder::release_after`] |
//! | lack of memory | [`Pool::on_shortage`], [`Shortage`], [`Relief`] |
//! | freed memory that a device still works on | [`Block::free_after`], [`Completion`] |
//! | what a pool's regions look like | [`Pool::map`], [`map`] |
//! | what happened in a pool, what was never freed, who writes to what was freed | [`Pool::history`], [`Pool::leaks`], [`CheckSettings`] |
//! | NUMA nodes, and memory on the fastest, nearest or largest of them | [`topology`], [`memory_space`] |
//! | memory as numbers, arrays and structs, while other processes write it | [`Block::view`], [`Mapping::view`], [`View`], [`Plain`] |
//! | handles | [`Handle`], [`Block::handle`], [`Block::export`], [`open`] |
//! | regions that belong to a named set of processes | [`domain`] |
//! | messages between two processes | [`link`] |
//! | settings | [`init`], `umf.toml`, `UMF_*` variables: [`settings`](fn@settings), [`Settings`](settings::Settings) |
//! | kinds of provider and pool from elsewhere | [`registry`], [`plugin`] |
//! | memory that devices share | [`dma_buf`], [`Block::cpu_access`], [`cpu_access`] |
//! | memory of NVIDIA's devices | [`cuda`] |
//! | memory of Level Zero devices | [`level_zero`]; [`Block::read`] and [`Mapping::read`] have the device copy |
//! | parts for those who build their own | [`core`], [`ipc`], [`host`], [`slab`], [`proxy`] |

mod allocator;
mod assembly;
mod behind;
mod block;
mod cpu_access;
mod error;
mod global;
pub mod history;
mod kinds;
pub mod leaks;
pub mod link;
mod logging;
pub mod map;
pub mod memory_space;
mod pool;
mod process;
pub mod registry;
pub mod settings;

pub use block::{Block, OwnedBlock};
pub use cpu_access::cpu_access;
pub use error::{Error, Result};
pub use global::GlobalPool;
pub use kinds::{HostSettings, PluginSettings};
pub use pool::{Pool, PoolBuilder};
pub use process::{exporter, importer, init, open, open_read_only, settings, warnings};
pub use umf_core::held::{HeldStatistics, OnFree};
pub use umf_core::shortage::{Relief, Shortage};
#[cfg(feature = "bytemuck")]
pub use umf_core::view::AsPod;
#[cfg(feature = "zerocopy")]
pub use umf_core::view::AsZerocopy;
pub use umf_core::{
    Access, Address, Completion, CpuAccess, Layout, MemoryKind, Plain, Progress, ProviderKind, ReadView,
    View, Visibility,
};
#[cfg(feature = "derive")]
pub use umf_derive::Plain;
pub use umf_ipc::{Exchange, Export, Exporter, Handle, Importer, Mapping, Mode};
pub use umf_runtime::checked::{CheckSettings, Leaks, Poison};
pub use umf_runtime::held::drain;

#[doc(inline)]
pub use umf_config as config;
#[doc(inline)]
pub use umf_core as core;
#[doc(inline)]
pub use umf_domain as domain;
#[doc(inline)]
pub use umf_ipc as ipc;
#[doc(inline)]
pub use umf_pool_proxy as proxy;
#[doc(inline)]
pub use umf_pool_slab as slab;
#[doc(inline)]
pub use umf_provider_cuda as cuda;
#[doc(inline)]
pub use umf_provider_dma_buf as dma_buf;
#[doc(inline)]
pub use umf_provider_host as host;
#[doc(inline)]
pub use umf_provider_level_zero as level_zero;
#[doc(inline)]
pub use umf_provider_plugin as plugin;
/// What pools and exporters share: tracker, upstream, deferred free.
pub use umf_runtime as runtime;
#[doc(inline)]
pub use umf_topology as topology;
