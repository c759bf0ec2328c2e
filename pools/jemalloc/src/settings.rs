//! [`JemallocSettings`]: what can be set.

use std::sync::Arc;

use umf_core::held::OnFree;
use umf_core::limit::SharedLimitRef;
use umf_core::shortage::OutOfMemory;

/// The knobs of a [`crate::JemallocPool`].
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct JemallocSettings {
    /// The name of the pool, for people. Default: `jemalloc`.
    pub name: String,
    /// How many arenas threads are spread over; there are about 4,090 for all pools of a process. Default: 0, one for each
    /// processor, but no more than four, and fewer where there are no more.
    pub arenas: u32,
    /// Bytes that the pool may hold; 0 is unlimited. Default: 0.
    pub memory_limit: u64,
    /// A limit that the pool shares with others. Default: none.
    pub shared_limit: Option<SharedLimitRef>,
    /// Who is asked when an allocation would fail for lack of memory ([`umf_core::shortage`]). Default: nobody.
    pub out_of_memory: Option<Arc<dyn OutOfMemory>>,
    /// What becomes of the contents of a block that is freed while other processes have it open. Default:
    /// [`OnFree::Hold`].
    pub on_free: OnFree,
    /// Bytes of freed memory that may be held because other processes have it open, before allocating fails as
    /// [`umf_core::Error::HeldLimit`]; 0 is unlimited. Default: 0.
    pub max_held: u64,
}

impl Default for JemallocSettings {
    fn default() -> Self {
        Self {
            name: "jemalloc".to_owned(),
            arenas: 0,
            memory_limit: 0,
            shared_limit: None,
            out_of_memory: None,
            on_free: OnFree::Hold,
            max_held: 0,
        }
    }
}

impl JemallocSettings {
    /// Sets the name.
    #[must_use]
    pub fn name(mut self, name: impl Into<String>) -> Self {
        self.name = name.into();
        self
    }

    /// Sets how many arenas threads are spread over; 0 is by the number of processors.
    #[must_use]
    pub const fn arenas(mut self, arenas: u32) -> Self {
        self.arenas = arenas;
        self
    }

    /// Sets the most bytes that the pool may hold; 0 is unlimited.
    #[must_use]
    pub const fn memory_limit(mut self, bytes: u64) -> Self {
        self.memory_limit = bytes;
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

    /// Sets what becomes of blocks that are freed while other processes have them open.
    #[must_use]
    pub const fn on_free(mut self, on_free: OnFree) -> Self {
        self.on_free = on_free;
        self
    }

    /// Sets the most bytes that may be held for other processes; 0 is unlimited.
    #[must_use]
    pub const fn max_held(mut self, bytes: u64) -> Self {
        self.max_held = bytes;
        self
    }
}
