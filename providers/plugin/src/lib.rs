//! Providers behind UMF's table of C functions: from a shared object that is loaded at run time
//! ([`PluginLoader`]), or from a C program ([`PluginProvider::new`]).
//!
//! A plugin is a shared object that exports one function, `const umf_memory_provider_ops_t
//! *umfPluginProviderOps(void)`. The table is that of UMF's `umf/memory_provider_ops.h`, in version
//! 1.0, 1.1 or 1.2. The function may have any name: see [`PluginLoader::symbol`]. A provider that
//! was written for UMF is a plugin if its `initialize` accepts JSON or no parameters. If its
//! `initialize` expects a structure, wrap it in a function that builds the structure from JSON.
//! `examples/plugin` is a plugin in Rust.
//!
//! ```toml
//! [provider.mine]
//! kind = "plugin"
//! path = "/opt/mine/libmine.so"
//! params = { name = "mine", limit = 1073741824 }
//! ```
//!
//! | function | use |
//! |---|---|
//! | `initialize(params)` | `params` is a NUL-terminated JSON text, the table `params` of the settings, or NULL without one. The text is freed after `initialize` returns |
//! | `ext_ctl` | called from version 1.1 on: once for `post_initialize`, as UMF does, and for `umf-rs.export_fd` (below) |
//! | mandatory members | `alloc`, `free`, `get_last_native_error`, the page sizes, `get_name`, `initialize`, `finalize` and (1.2) `get_cache_line_size`; split and merge, the five IPC members and the two for properties are each complete or absent |
//! | sizes and alignments | are multiples of `get_min_page_size(NULL)`, which must be a power of two |
//! | split and merge | are never called |
//! | IPC handles | up to 1 MiB. A handle of more than 64 bytes is passed in a memfd. `put` is called once per `get` |
//! | POINTER_TYPE, CONTEXT, DEVICE | queried if the plugin has properties |
//! | results | are converted to [`umf_core::Error`], with the native error and the text of `get_last_native_error` |
//! | `finalize` | called once, after the provider and its importer are dropped; never while a region is live |
//!
//! # Memory of files
//!
//! A plugin over files may name the descriptor of an allocation. Its memory is then exported by
//! descriptor, like host memory, and the plugin needs no IPC handles. The table is that of UMF; the
//! extension is one entry of `ext_ctl`, a read query (`CTL_QUERY_READ`) named `umf-rs.export_fd`.
//! Its argument, of 32 bytes, is:
//!
//! ```c
//! struct umf_rs_export_fd {
//!     const void *memory; /* in: an allocation, or NULL */
//!     size_t size;        /* in: its size in bytes */
//!     uint64_t offset;    /* out: the offset of the allocation in the file, in whole pages */
//!     int fd;             /* out: the descriptor */
//!     uint32_t version;   /* out: 1 */
//! };
//! ```
//!
//! Loading queries once with NULL: if the plugin writes the version, exports use descriptors. The
//! plugin owns the descriptor, and keeps it open while the allocation is live. A memfd must be
//! sealed against shrinking. A plugin without the entry returns `UMF_RESULT_ERROR_INVALID_CTL_PATH`.
//!
//! In the other process, either the same plugin is loaded, or [`FdImport`] is registered.
//!
//! # Trust
//!
//! A plugin is code that runs with the rights of this process. Its path must be absolute. The file
//! must belong to root or to the effective user. Neither the file nor a directory above it may be
//! world-writable, except for sticky directories such as `/tmp`. Symbolic links are resolved first.
//!
//! | module | content |
//! |---|---|
//! | `table` | the table of functions, and its validation |
//! | `instance` | all calls into foreign code, and the validation of their results |
//! | `provider` | the provider over an instance |
//! | `ipc` | exports and imports |
//! | `load` | loading a plugin from a path |

mod error;
mod instance;
mod ipc;
mod load;
mod provider;
#[allow(missing_docs, reason = "the names are those of the C header, which documents them")]
pub mod table;

pub use error::{PluginError, TableError};
pub use instance::Instance;
pub use ipc::{FdImport, PluginImport};
pub use load::{DEFAULT_KIND, DEFAULT_SYMBOL, PluginLoader, load};
pub use provider::PluginProvider;
pub use provider::ProviderInfo;
