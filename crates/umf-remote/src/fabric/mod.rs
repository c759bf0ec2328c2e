//! The part of libfabric that this crate uses, with owned objects. All of the crate's calls of
//! libfabric are here.
//!
//! An [`Endpoint`] keeps the buffers of its operations until they have completed, or until it is
//! closed. So the rest of the crate cannot free memory that the fabric still writes.

mod buffer;
mod endpoint;
mod handlers;
mod info;

pub(crate) use buffer::{Buffer, BufferPool, Registration};
pub(crate) use endpoint::{Addresses, Done, Endpoint, Queue};
pub(crate) use info::{Info, Query, offered, socket_address};

use core::ptr;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use libfabric_sys::{Library, fi_close, fi_domain, fid, fid_domain, fid_fabric};
use umf_sync::{Lock, fork};

use crate::{Error, Result};

/// The version of the interface whose structures this crate passes.
const VERSION: u32 = libfabric_sys::make_version(1, 17);

/// Returns the library at a path. It is opened once, and never closed.
pub(crate) fn library(path: &Path) -> Result<&'static Library> {
    static OPENED: Lock<Vec<(PathBuf, &'static Library)>> = Lock::new(Vec::new());
    // Other threads wait until it is loaded.
    let mut opened = OPENED.lock();
    if let Some((_, library)) = opened.iter().find(|(known, _)| known == path) {
        return Ok(library);
    }
    let library: &'static Library = handlers::keep_handlers(|| {
        // SAFETY: the path is the operator's setting, or the system's library of this name.
        let library = unsafe { Library::open(path) }.map_err(|error| Error::NoLibrary(error.to_string()))?;
        let library = &*Box::leak(Box::new(library));
        info::load_providers(library);
        Ok::<_, Error>(library)
    })?;
    opened.push((path.to_owned(), library));
    Ok(library)
}

/// A fabric, and a domain in it.
#[derive(Debug)]
pub(crate) struct Domain {
    info: Info,
    fabric: *mut fid_fabric,
    domain: *mut fid_domain,
    /// [`fork::generation`] of the process that opened it.
    generation: u32,
}

// SAFETY: the domain is opened for several threads (FI_THREAD_SAFE).
unsafe impl Send for Domain {}
// SAFETY: as above.
unsafe impl Sync for Domain {}

impl Domain {
    pub(crate) fn open(info: Info) -> Result<Arc<Self>> {
        let mut opened =
            Self { info, fabric: ptr::null_mut(), domain: ptr::null_mut(), generation: fork::generation() };
        let attributes = opened.info.fabric_attributes();
        // SAFETY: the attributes are of this library, and `fabric` is valid for a write.
        let result =
            unsafe { opened.info.library().fi_fabric(attributes, &raw mut opened.fabric, ptr::null_mut()) };
        opened.check("fi_fabric", result as isize)?;
        let (fabric, info) = (opened.fabric, opened.info.as_ptr());
        // SAFETY: the fabric is live, the entry is one of it, and `domain` is valid for a write.
        let result = unsafe { fi_domain(fabric, info, &raw mut opened.domain, ptr::null_mut()) };
        opened.check("fi_domain", result as isize)?;
        Ok(Arc::new(opened))
    }

    pub(crate) const fn info(&self) -> &Info {
        &self.info
    }

    /// Returns whether an endpoint may be closed while a read is being received. The provider rxm
    /// frees memory twice then, until libfabric 1.18.
    pub(crate) fn closes_during_reads(&self) -> bool {
        let is_layered = self.info.provider().split(';').any(|part| part == "ofi_rxm");
        !is_layered || self.info.library().version() >= libfabric_sys::make_version(1, 18)
    }

    const fn as_ptr(&self) -> *mut fid_domain {
        self.domain
    }

    /// Returns the error of a call, if `result` is negative.
    fn check(&self, call: &'static str, result: isize) -> Result<()> {
        if result >= 0 {
            return Ok(());
        }
        let number = i32::try_from(result.unsigned_abs()).unwrap_or(i32::MAX);
        let reason = self.info.library().text_of(number);
        Err(Error::Fabric { call, reason, provider: self.info.provider().to_owned() })
    }
}

impl Drop for Domain {
    fn drop(&mut self) {
        // SAFETY: both are closed once, the domain first; all objects in it have an `Arc` of it.
        unsafe {
            if !self.domain.is_null() {
                self.close("domain", self.domain.cast());
            }
            if !self.fabric.is_null() {
                self.close("fabric", self.fabric.cast());
            }
        }
    }
}

impl Domain {
    /// Closes an object. Returns whether it is closed: otherwise the fabric may still use what
    /// belongs to it. Objects that a forked child has inherited stay open, for its parent's sake.
    ///
    /// # Safety
    /// The object is one of the domain, or the domain or fabric itself. It is live, and not used
    /// any more.
    unsafe fn close(&self, what: &'static str, object: *mut fid) -> bool {
        if self.generation != fork::generation() {
            return false;
        }
        // SAFETY: by the contract.
        let result = unsafe { fi_close(object) };
        if result != 0 {
            tracing::warn!(what, error = -result, "libfabric cannot close an object; it stays open");
        }
        result == 0
    }
}
