//! [`JemallocSettings`], and the factory of the pool kind `jemalloc`.

use std::sync::Arc;

use umf_core::{FactoryError, Pool, PoolFactory, PoolRequest};

use crate::JemallocPool;

umf_core::pool_settings! {
    /// Settings of a [`crate::JemallocPool`].
    #[non_exhaustive]
    pub struct JemallocSettings {
        /// The number of arenas that threads are spread over. All pools of a process share about
        /// 4,090 arenas. 0 selects one per processor, at most four, and fewer if jemalloc has no
        /// more.
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
