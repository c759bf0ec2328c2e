//! The kind `plugin` of settings. It is here because a plugin's importer is registered when the plugin is
//! loaded.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;

use umf_core::settings::Code;
use umf_core::{Error, FactoryError, Provider, ProviderFactory, ProviderKind};

use crate::imports;

umf_core::settings! {
    /// The keys of the kind `plugin`.
    pub struct PluginSettings {
        /// Absolute path of the shared object. Refused in ./umf.toml and from a variable: this is code, and
        /// only the file that UMF_TOML names, the user's file, the system's file or the program may choose
        /// it.
        pub path: Option<PathBuf> as Option<Code<PathBuf>> = None, "an absolute path (empty for none)"
            if |path| path.as_ref().is_none_or(|path| path.is_absolute());
        /// Name of its table of functions; empty for its usual name. Refused where a path is.
        pub symbol: Option<String> as Option<Code<String>> = None;
        /// A table that the plugin is handed as JSON.
        pub params: BTreeMap<String, serde_json::Value> = BTreeMap::new();
    }
}

/// The kind `plugin`.
pub(crate) enum Plugin {}

impl ProviderFactory for Plugin {
    const KIND: &'static str = "plugin";
    type Settings = PluginSettings;

    fn build(name: &str, settings: PluginSettings) -> Result<Arc<dyn Provider>, FactoryError> {
        let why = "a plugin needs path = \"/where/it/is.so\"";
        let path = settings.path.ok_or(Error::InvalidArgument { what: "path", why })?;
        let why = "the name of a plugin set stands in handles: 1 to 16 of a-z, 0-9, - and _";
        let kind = ProviderKind::new(name).ok_or(Error::InvalidArgument { what: "name", why })?;
        let params =
            (!settings.params.is_empty()).then(|| serde_json::to_value(&settings.params)).transpose()?;
        let provider = umf_provider_plugin::load(&path, settings.symbol.as_deref(), params.as_ref(), kind)?;
        if let Some(import) = provider.importer() {
            imports::register_import(import);
        }
        Ok(provider)
    }
}
