//! The kinds of provider and pool that settings can name. Two have their settings here, because
//! these need crates that the provider does not depend on.

#[cfg(feature = "host")]
mod host;
#[cfg(feature = "plugin")]
mod plugin;

#[cfg(feature = "host")]
pub(crate) use host::Host;
#[cfg(feature = "host")]
pub use host::HostSettings;
#[cfg(feature = "plugin")]
pub(crate) use plugin::Plugin;
#[cfg(feature = "plugin")]
pub use plugin::PluginSettings;

/// Calls a macro with all kinds of provider: the feature that adds the kind, its name, its factory.
macro_rules! providers {
    ($then:ident $argument:ident) => {
        $then! {
            $argument:
            "cuda" "cuda" umf_provider_cuda::CudaProvider,
            "file" "devdax" umf_provider_file::DevDaxProvider,
            "dma-buf" "dma-buf" umf_provider_dma_buf::DmaBufProvider,
            "file" "file" umf_provider_file::FileProvider,
            "file" "fixed" umf_provider_file::FixedProvider,
            "host" "host" crate::kinds::Host,
            "level-zero" "level-zero" umf_provider_level_zero::LevelZeroProvider,
            "plugin" "plugin" crate::kinds::Plugin,
        }
    };
}
pub(crate) use providers;

/// Calls a macro with all kinds of pool, as `providers!` does. The proxy pool is always built in
/// and not listed.
#[cfg(feature = "config")]
macro_rules! pools {
    ($then:ident $argument:ident) => {
        $then! {
            $argument:
            "jemalloc" "jemalloc" umf_pool_jemalloc::JemallocPool,
            "slab" "slab" umf_pool_slab::SlabPool,
        }
    };
}
#[cfg(feature = "config")]
pub(crate) use pools;
