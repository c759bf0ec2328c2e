//! [`Behind`]: the pool behind a [`crate::Pool`], with its place known.
//!
//! An `Arc` of a trait object finds its content from the alignment that the type's table says, each time. That would be a tenth of
//! what an allocation costs.

use std::ops::Deref;
use std::ptr::NonNull;
use std::sync::Arc;

use umf_core::Pool;

#[derive(Clone)]
pub(crate) struct Behind {
    /// What `keeper` keeps.
    pool: NonNull<dyn Pool>,
    _keeper: Arc<dyn Pool>,
}

// SAFETY: it is used as the `Arc` that it holds, and that is `Send`.
unsafe impl Send for Behind {}
// SAFETY: as above, and `Sync`.
unsafe impl Sync for Behind {}

impl From<Arc<dyn Pool>> for Behind {
    fn from(keeper: Arc<dyn Pool>) -> Self {
        Self { pool: NonNull::from(&*keeper), _keeper: keeper }
    }
}

impl Deref for Behind {
    type Target = dyn Pool;

    #[inline(always)]
    fn deref(&self) -> &(dyn Pool + 'static) {
        // SAFETY: what is in an `Arc` does not move, and is there as long as this value, which holds one.
        unsafe { self.pool.as_ref() }
    }
}
