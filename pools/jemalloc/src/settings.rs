//! [`JemallocSettings`]: what can be set.

use std::sync::Arc;

use umf_core::{FactoryError, Pool, PoolFactory, PoolRequest};

use crate::JemallocPool;

umf_core::pool_settings! {
    /// Settings of a [`crate::JemallocPool`].
    #[non_exhaustive]
    pub struct JemallocSettings {
        /// How many arenas threads are spread over; there are about 4,090 for all pools of a process. 0 is
        /// one for each processor, but no more than four, and fewer where there are no more.
        pub arenas: u32 = 0;
    }
    name: String = "jemalloc"
}

impl PoolFactory for JemallocPool {
    const KIND: &'static str = "jemalloc";
    type Settings = JemallocSettings;

    fn build(request: PoolRequest<'_>, settings: JemallocSettings) -> Result<Arc<dyn Pool>, FactoryError> {
        let settings = settings.requested(&request);
        Ok(Self::with_settings(request.provider, settings)?)
    }
}
