//! Why the last allocation of a kind of pool failed, per thread.

use core::cell::Cell;
use core::ffi::c_void;

use crate::boundary::{Code, Failure, SUCCESS};

/// A kind of pool.
#[derive(Clone, Copy)]
pub(crate) enum Kind {
    Disjoint,
    #[cfg(feature = "jemalloc")]
    Jemalloc,
    Preloaded,
    Proxy,
    Scalable,
}

thread_local! {
    static LAST: Cell<[Code; 5]> = const { Cell::new([SUCCESS; 5]) };
}

/// The code of the last failure of the kind.
pub(super) fn last(kind: Kind) -> Code {
    LAST.get()[kind as usize]
}

/// Forgets it, before what may fail.
pub(super) fn forget(kind: Kind) {
    let mut all = LAST.get();
    all[kind as usize] = SUCCESS;
    LAST.set(all);
}

/// Remembers a failure, which for C is NULL.
#[cold]
pub(super) fn failed(kind: Kind, failure: &Failure) -> *mut c_void {
    let mut all = LAST.get();
    all[kind as usize] = failure.code();
    LAST.set(all);
    tracing::debug!("an allocation failed: {failure}");
    core::ptr::null_mut()
}
