//! The kind `arena` of settings.

use std::sync::Arc;

use umf_core::settings::ByteSize;
use umf_core::{FactoryError, Provider, ProviderFactory};

use crate::Arena;

umf_core::settings! {
    /// The keys of the kind `arena`.
    pub struct ArenaSettings {
        /// How many bytes of addresses are reserved.
        pub size: usize as ByteSize = 1 << 30, "a number of bytes above 0" if |bytes| *bytes > 0;
    }
}

impl ProviderFactory for Arena {
    const KIND: &'static str = "arena";
    type Settings = ArenaSettings;

    fn build(name: &str, settings: ArenaSettings) -> Result<Arc<dyn Provider>, FactoryError> {
        Ok(Self::new(name, settings.size)?)
    }
}
