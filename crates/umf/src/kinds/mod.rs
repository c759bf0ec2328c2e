//! The kinds of provider and pool of umf. Two have their settings here, which need more than the
//! provider does.

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

/// Hands all kinds of provider to a macro: the feature that has the kind, its name, its factory.
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

/// Hands all kinds of pool but the proxy pool, which is always there, to a macro, as `providers!`
/// does.
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
