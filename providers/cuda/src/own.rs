//! Which 64-byte handles are of memory of this process: its own driver refuses to open those.

use std::collections::HashMap;
use std::sync::{Arc, Weak};

use umf_sync::Lock;

use crate::allocated::Raw;

/// Where an allocation is, and what keeps it.
type Known = (u64, Weak<Raw>);

static OWN: Lock<Option<HashMap<[u8; 64], Known>>> = Lock::new(None);

/// Notes the handle of an allocation.
pub(crate) fn add(handle: [u8; 64], raw: &Arc<Raw>) {
    OWN.lock().get_or_insert_default().insert(handle, (raw.address, Arc::downgrade(raw)));
}

/// The allocation that a handle is of, if that is one of this process.
pub(crate) fn find(handle: &[u8; 64]) -> Option<Arc<Raw>> {
    OWN.lock().as_ref()?.get(handle)?.1.upgrade()
}

/// An allocation is freed.
pub(crate) fn forget(address: u64) {
    if let Some(own) = &mut *OWN.lock() {
        own.retain(|_, (known, _)| *known != address);
    }
}
