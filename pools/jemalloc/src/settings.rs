//! [`JemallocSettings`]: what can be set.

use std::sync::Arc;

use umf_core::held::OnFree;
use umf_core::limit::SharedLimitRef;
use umf_core::shortage::OutOfMemory;
use umf_core::{FactoryError, Pool, PoolFactory, PoolRequest};

use crate::JemallocPool;

umf_core::settings! {
    /// Settings of a [`crate::JemallocPool`].
    #[non_exhaustive]
    pub struct JemallocSettings {
        /// How many arenas threads are spread over; there are about 4,090 for all pools of a process. 0 is
        /// one for each processor, but no more than four, and fewer where there are no more.
        pub arenas: u32 = 0;
    }
    values {
        /// The most bytes that the pool may hold; 0 is unlimited. Default: 0.
        pub memory_limit: u64 = 0;
        /// What becomes of the contents of a block that is freed while other processes have it open.
        /// Default: [`OnFree::Hold`].
        pub on_free: OnFree = OnFree::Hold;
        /// The most bytes of freed memory that may be held because other processes have it open, before
        /// allocating fails as [`umf_core::Error::HeldLimit`]; 0 is unlimited. Default: 0.
        pub max_held: u64 = 0;
    }
    parts {
        /// The name of the pool, for people. Default: `jemalloc`.
        pub name: String = "jemalloc".to_owned();
        /// A limit that the pool shares with others. Default: none.
        pub shared_limit: Option<SharedLimitRef> = None;
        /// Called when an allocation would fail for lack of memory ([`umf_core::shortage`]). Default: none.
        pub out_of_memory: Option<Arc<dyn OutOfMemory>> = None;
    }
}

impl JemallocSettings {
    /// Sets the name.
    #[must_use]
    pub fn name(mut self, name: impl Into<String>) -> Self {
        self.name = name.into();
        self
    }

    /// Sets a limit that the pool shares with others: an `Arc<SharedLimit>` or a `&'static SharedLimit`.
    #[must_use]
    pub fn shared_limit(mut self, limit: impl Into<SharedLimitRef>) -> Self {
        self.shared_limit = Some(limit.into());
        self
    }

    /// Sets who is asked when an allocation would fail for lack of memory; any closure.
    #[must_use]
    pub fn out_of_memory(mut self, callback: impl OutOfMemory + 'static) -> Self {
        self.out_of_memory = Some(Arc::new(callback));
        self
    }
}

impl PoolFactory for JemallocPool {
    const KIND: &'static str = "jemalloc";
    type Settings = JemallocSettings;

    fn build(request: PoolRequest<'_>, settings: JemallocSettings) -> Result<Arc<dyn Pool>, FactoryError> {
        let mut settings = settings.name(request.name).memory_limit(request.memory_limit);
        settings.shared_limit = request.shared_limit;
        Ok(Self::with_settings(request.provider, settings)?)
    }
}
