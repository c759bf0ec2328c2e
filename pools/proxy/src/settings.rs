//! [`ProxySettings`]: what can be set.

use std::sync::Arc;

use umf_core::{FactoryError, Pool, PoolFactory, PoolRequest};

use crate::ProxyPool;

umf_core::pool_settings! {
    /// Settings of a [`crate::ProxyPool`]. The kind has no keys of its own.
    #[non_exhaustive]
    pub struct ProxySettings {}
    name: String = "proxy"
}

impl PoolFactory for ProxyPool {
    const KIND: &'static str = "proxy";
    type Settings = ProxySettings;

    fn build(request: PoolRequest<'_>, settings: ProxySettings) -> Result<Arc<dyn Pool>, FactoryError> {
        let settings = settings.requested(&request);
        Ok(Self::with_settings(request.provider, settings)?)
    }
}
