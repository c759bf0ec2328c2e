//! Providers from shared objects. (Placeholder while the module is being written: replace this file.)

use std::path::Path;
use std::sync::Arc;

use umf_core::{Import, ProviderKind};

/// Why a plugin could not be loaded.
#[derive(Debug, thiserror::Error)]
#[error("plugins are not built in yet")]
pub struct PluginError;

/// A provider from a shared object.
pub type PluginProvider = umf_provider_host::HostProvider;

/// Loads a plugin.
pub fn load(
    _: &Path,
    _: Option<&str>,
    _: Option<&serde_json::Value>,
    _: ProviderKind,
) -> Result<Arc<PluginProvider>, PluginError> {
    Err(PluginError)
}

pub(crate) fn import_of(_: &Arc<PluginProvider>) -> Option<Arc<dyn Import>> {
    None
}
