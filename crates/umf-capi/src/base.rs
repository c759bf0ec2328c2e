//! `umf.h`: start and end of the library.

use core::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use crate::boundary::{Code, call};
use crate::{ctl, log};

/// Number of `umfInit` calls without a matching `umfTearDown`.
static USERS: AtomicUsize = AtomicUsize::new(0);
static STARTED: AtomicBool = AtomicBool::new(false);

/// `UMF_VERSION_CURRENT`.
const VERSION: i32 = 1 << 16;

/// Starts the log and reads the configuration, unless that was done. Calling `umfInit` is optional.
pub(crate) fn ensure() {
    if !STARTED.load(Ordering::Acquire) && !STARTED.swap(true, Ordering::AcqRel) {
        log::start();
        ctl::registry::apply_config();
    }
}

#[unsafe(no_mangle)]
extern "C" fn umfInit() -> Code {
    call("umfInit", || {
        USERS.fetch_add(1, Ordering::AcqRel);
        ensure();
        Ok(())
    })
}

/// Frees nothing that is in use: pools and providers end when they are destroyed.
#[unsafe(no_mangle)]
extern "C" fn umfTearDown() -> Code {
    call("umfTearDown", || {
        let less = |users: usize| users.checked_sub(1);
        if USERS.fetch_update(Ordering::AcqRel, Ordering::Acquire, less) == Ok(1) {
            ctl::registry::forget_defaults();
            log::flush();
            STARTED.store(false, Ordering::Release);
        }
        Ok(())
    })
}

#[unsafe(no_mangle)]
extern "C" fn umfGetCurrentVersion() -> i32 {
    VERSION
}
