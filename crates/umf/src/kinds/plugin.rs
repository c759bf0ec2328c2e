//! The kind `plugin` of settings. It is part of this crate because loading a plugin registers its
//! importer.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;

use umf_core::settings::Code;
use umf_core::{Error, FactoryError, Provider, ProviderFactory, ProviderKind};

use crate::process;

umf_core::settings! {
    /// The keys of the kind `plugin`.
    pub struct PluginSettings {
        /// Absolute path of the shared object. Refused in ./umf.toml and from a variable: this is
        /// code, and only the file that UMF_TOML names, the user's file, the system's file or the
        /// program may choose it.
        pub path: Option<PathBuf> as Option<Code<PathBuf>> = None, "an absolute path (empty for none)"
            if |path| path.as_ref().is_none_or(|path| path.is_absolute());
        /// Name of its table of functions; empty for its usual name. Refused where a path is.
        pub symbol: Option<String> as Option<Code<String>> = None;
        /// A table that is passed to the plugin as JSON.
        pub params: BTreeMap<String, serde_json::Value> = BTreeMap::new();
    }
}

/// The kind `plugin`.
pub(crate) enum Plugin {}

impl ProviderFactory for Plugin {
    const KIND: &'static str = "plugin";
    type Settings = PluginSettings;

    fn build(name: &str, settings: PluginSettings) -> Result<Arc<dyn Provider>, FactoryError> {
        let why = "is missing: set it to the absolute path of the plugin's shared object";
        let path = settings.path.ok_or(Error::InvalidArgument { what: "path", why })?;
        let why = "must be 1 to 16 of a-z, 0-9, - and _, because handles contain the name of a plugin set";
        let kind = ProviderKind::new(name).ok_or(Error::InvalidArgument { what: "name", why })?;
        let params =
            (!settings.params.is_empty()).then(|| serde_json::to_value(&settings.params)).transpose()?;
        let provider = umf_provider_plugin::load(&path, settings.symbol.as_deref(), params.as_ref(), kind)?;
        if let Some(import) = provider.importer() {
            process::register_import(import);
        }
        Ok(provider)
    }
}
