//! Providers behind UMF's table of C functions: from a shared object that is loaded at run time
//! ([`PluginLoader`]), or from a C program ([`PluginProvider::new`]).
//!
//! A plugin is a shared object that exports one function, `const umf_memory_provider_ops_t
//! *umfPluginProviderOps(void)`. The table is that of UMF's `umf/memory_provider_ops.h`, in version
//! 1.0, 1.1 or 1.2. The function may have any name: see [`PluginLoader::symbol`]. A provider that
//! was written for UMF is a plugin if its `initialize` understands JSON or nothing at all. One
//! whose `initialize` takes a structure must not be handed JSON: wrap it in a function that makes
//! the structure of the JSON. `examples/plugin` is a plugin in Rust.
//!
//! ```toml
//! [provider.mine]
//! kind = "plugin"
//! path = "/opt/mine/libmine.so"
//! params = { name = "mine", limit = 1073741824 }
//! ```
//!
//! | what | how |
//! |---|---|
//! | `initialize(params)` | gets the address of a NUL-terminated JSON text: the table `params`, or NULL where there is none. The text is gone when `initialize` returns |
//! | `ext_ctl` | called once, from version 1.1 on, for `post_initialize`, as UMF does; nothing else is asked of it |
//! | members that are missing | `alloc`, `free`, `get_last_native_error`, the page sizes, `get_name`, `initialize`, `finalize` and (1.2) `get_cache_line_size` must be there; split and merge, the five IPC members and the two for properties go together |
//! | sizes and alignments | are whole multiples of `get_min_page_size(NULL)`, which must be a power of two |
//! | split and merge | are never called |
//! | IPC handles | up to 1 MiB. One of more than 64 bytes travels in a file of its own. `put` is called once for each `get` |
//! | POINTER_TYPE, CONTEXT, DEVICE | asked for where the plugin has properties |
//! | results | become [`umf_core::Error`], with the native number and the text of `get_last_native_error` |
//! | `finalize` | is called once, when the provider and its importer are gone; never while a region is not freed |
//!
//! A plugin is code that runs with the rights of this process. So its path must be absolute; the
//! file must belong to root or to the effective user; and neither it nor a directory above it may
//! be writable by everybody (sticky directories such as `/tmp` excepted). Symbolic links are
//! followed first.
//!
//! | module | holds |
//! |---|---|
//! | `table` | the table as C has it, and how one is checked |
//! | `instance` | every call into foreign code, with its result checked |
//! | `provider` | the provider over it |
//! | `ipc` | its exports and imports |
//! | `load` | from a path to a provider |

mod error;
mod instance;
mod ipc;
mod load;
mod provider;
#[allow(missing_docs, reason = "the names are those of the C header, which documents them")]
pub mod table;

pub use error::{PluginError, TableError};
pub use instance::Instance;
pub use ipc::PluginImport;
pub use load::{DEFAULT_KIND, DEFAULT_SYMBOL, PluginLoader, load};
pub use provider::PluginProvider;
pub use provider::ProviderInfo;
