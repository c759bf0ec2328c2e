//! Providers from shared objects: loaded at run time, written in any language that can export a C function.
//!
//! A plugin exports one function, `const umf_memory_provider_ops_t *umfPluginProviderOps(void)`. The table is
//! that of UMF's `umf/memory_provider_ops.h`, in version 1.0, 1.1 or 1.2 (any name will do for the function: see
//! [`PluginLoader::symbol`]). So a provider that was written for UMF is a plugin, if its `initialize` understands JSON
//! or nothing at all. One whose `initialize` takes a structure of its own must not be handed JSON: wrap it in a function
//! that makes the structure of the JSON. `examples/plugin` is a plugin in Rust.
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
//! | IPC handles | up to 64 bytes, without a descriptor beside them; larger ones are an error when something is exported. `put` is called once for each `get` |
//! | POINTER_TYPE, CONTEXT, DEVICE | asked for where the plugin has properties |
//! | results | become [`umf_core::Error`], with the native number and the text of `get_last_native_error` |
//! | `finalize` | is called once, when the provider, its importer and all imports are gone; never while a region is not freed |
//!
//! A plugin is code that runs with the rights of this process. So its path must be absolute; the file must belong to
//! root or to the effective user; and neither it nor a directory above it may be writable by everybody (sticky
//! directories such as `/tmp` excepted). Symbolic links are followed first.

mod error;
mod export;
mod file;
mod import;
mod instance;
mod load;
#[doc(hidden)]
#[allow(missing_docs, reason = "the names are those of the C header, which documents them")]
pub mod ops;
mod properties;
mod provider;
mod purge;
mod regions;
mod result;
mod split_merge;
mod text;

use std::sync::Arc;

pub use error::{PluginError, TableFault};
pub use import::PluginImport;
pub use load::{DEFAULT_KIND, DEFAULT_SYMBOL, PluginLoader, load};
pub use provider::PluginProvider;

/// What opens handles of the plugin, for those who keep importers by kind.
pub(crate) fn import_of(provider: &Arc<PluginProvider>) -> Option<Arc<dyn umf_core::Import>> {
    provider.importer().map(|import| -> Arc<dyn umf_core::Import> { import })
}
