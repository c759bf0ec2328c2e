//! [`Buffer`]: memory for operations of the fabric. [`Registration`]: memory that a peer may read.

use core::ptr::{self, NonNull};
use std::alloc::{Layout, alloc_zeroed, dealloc};
use std::collections::BTreeMap;
use std::sync::Arc;

use libfabric_sys::*;
use umf_sync::Lock;

use super::Domain;
use crate::{Error, Result};

/// Memory that is registered with a domain, until this is dropped.
#[derive(Debug)]
pub(crate) struct Registration {
    domain: Arc<Domain>,
    region: *mut fid_mr,
    base: u64,
}

// SAFETY: the domain is opened for several threads.
unsafe impl Send for Registration {}
// SAFETY: as above; shared references only read it.
unsafe impl Sync for Registration {}

impl Registration {
    /// Registers memory for `access`: `FI_REMOTE_READ`, `FI_READ` and others.
    ///
    /// # Safety
    /// The memory stays mapped as long as the registration exists.
    pub(crate) unsafe fn new(
        domain: &Arc<Domain>,
        base: NonNull<u8>,
        size: usize,
        access: u64,
    ) -> Result<Self> {
        let mut region = ptr::null_mut();
        let info = domain.info();
        for _ in 0..16 {
            let key = if info.has_memory_mode(FI_MR_PROV_KEY) { 0 } else { random_key(info.key_size())? };
            // SAFETY: the domain is live, and the caller keeps the memory.
            let result = unsafe {
                fi_mr_reg(
                    domain.as_ptr(),
                    base.as_ptr().cast(),
                    size,
                    access,
                    0,
                    key,
                    0,
                    &raw mut region,
                    ptr::null_mut(),
                )
            };
            // Another registration has the key.
            if -result == FI_ENOKEY && !info.has_memory_mode(FI_MR_PROV_KEY) {
                continue;
            }
            domain.check("fi_mr_reg", result as isize)?;
            break;
        }
        if region.is_null() {
            domain.check("fi_mr_reg", -(FI_ENOKEY as isize))?;
        }
        let base = if info.has_memory_mode(FI_MR_VIRT_ADDR) { base.addr().get() as u64 } else { 0 };
        Ok(Self { domain: Arc::clone(domain), region, base })
    }

    pub(crate) fn key(&self) -> u64 {
        // SAFETY: the region is live.
        unsafe { fi_mr_key(self.region) }
    }

    /// Returns the address of its first byte for peers.
    pub(crate) const fn base(&self) -> u64 {
        self.base
    }

    fn descriptor(&self) -> *mut core::ffi::c_void {
        // SAFETY: the region is live.
        unsafe { fi_mr_desc(self.region) }
    }
}

impl Registration {
    /// Closes the registration. Returns `false` if that fails: the fabric may still access the
    /// memory, which then must stay as it is.
    pub(crate) fn close(self) -> bool {
        let registration = core::mem::ManuallyDrop::new(self);
        // SAFETY: the domain is not used after this, and `registration` is not dropped.
        let domain = unsafe { ptr::read(&raw const registration.domain) };
        // SAFETY: closed once, here or in `drop`.
        unsafe { domain.close("registration", registration.region.cast()) }
    }
}

impl Drop for Registration {
    fn drop(&mut self) {
        // SAFETY: closed once, here or in `close`, and before its domain.
        unsafe { self.domain.close("registration", self.region.cast()) };
    }
}

/// Returns a random key of `size` bytes.
fn random_key(size: usize) -> Result<u64> {
    let bytes = umf_os::process::random().map_err(|errno| Error::System { call: "getrandom", errno })?;
    let key = u128::from_ne_bytes(bytes) as u64;
    Ok(if size < 8 { key & ((1 << (size.max(1) * 8)) - 1) } else { key })
}

/// Memory of this process for operations of one domain.
#[derive(Debug)]
pub(crate) struct Buffer {
    base: NonNull<u8>,
    size: usize,
    /// Whether peers may read it.
    is_source: bool,
    /// `None` if the provider needs none. Closed before the memory is freed.
    registration: Option<Registration>,
}

// SAFETY: it owns its memory, which is accessed by copies.
unsafe impl Send for Buffer {}
// SAFETY: as above. Copies that race with the fabric or with each other copy any bytes.
unsafe impl Sync for Buffer {}

const ALIGNMENT: usize = 4096;

impl Buffer {
    /// Allocates a buffer of `size` bytes, not 0.
    fn new(domain: &Arc<Domain>, size: usize, is_source: bool) -> Result<Self> {
        let failed = || Error::System { call: "malloc", errno: rustix::io::Errno::NOMEM };
        let layout = Layout::from_size_align(size, ALIGNMENT).map_err(|_| failed())?;
        // SAFETY: the size is not 0.
        let base = NonNull::new(unsafe { alloc_zeroed(layout) }).ok_or_else(failed)?;
        let mut buffer = Self { base, size, is_source, registration: None };
        if is_source || domain.info().has_memory_mode(FI_MR_LOCAL) {
            let source = if is_source { FI_REMOTE_READ } else { 0 };
            let access = FI_SEND | FI_RECV | FI_READ | source;
            // SAFETY: `drop` closes the registration before it frees the memory.
            buffer.registration = Some(unsafe { Registration::new(domain, base, size, access) }?);
        }
        Ok(buffer)
    }

    pub(crate) const fn size(&self) -> usize {
        self.size
    }

    /// Returns the registration of a source.
    pub(crate) const fn registration(&self) -> Option<&Registration> {
        self.registration.as_ref()
    }

    pub(super) fn descriptor(&self) -> *mut core::ffi::c_void {
        self.registration.as_ref().map_or(ptr::null_mut(), Registration::descriptor)
    }

    /// Returns the address of a range.
    ///
    /// # Panics
    /// If it exceeds the buffer.
    pub(super) fn range(&self, offset: usize, length: usize) -> *mut u8 {
        assert!(offset.checked_add(length).is_some_and(|end| end <= self.size), "a range of the buffer");
        self.base.as_ptr().wrapping_add(offset)
    }

    pub(crate) fn copy_in(&self, offset: usize, from: &[u8]) {
        // SAFETY: the range is inside of the buffer, which no reference points to.
        unsafe { ptr::copy_nonoverlapping(from.as_ptr(), self.range(offset, from.len()), from.len()) };
    }

    pub(crate) fn copy_out(&self, offset: usize, into: &mut [u8]) {
        // SAFETY: as above.
        unsafe { ptr::copy_nonoverlapping(self.range(offset, into.len()), into.as_mut_ptr(), into.len()) };
    }

    /// Returns the first bytes of a buffer that landed.
    ///
    /// # Panics
    /// If it has fewer bytes.
    pub(crate) fn landed(&self, length: usize) -> &[u8] {
        // SAFETY: only `Data` calls this, which owns the buffer of a read that has ended: all its
        // operations have completed, and nothing writes it.
        unsafe { core::slice::from_raw_parts(self.range(0, length), length) }
    }

    /// Returns the bytes. A buffer that is not shared belongs to no operation ([`Arc::get_mut`]).
    pub(crate) const fn bytes(&mut self) -> &mut [u8] {
        // SAFETY: allocated with this size, and zeroed. An endpoint keeps an `Arc` of the buffers
        // of its operations, so that with `&mut self` the fabric does not access this one.
        unsafe { core::slice::from_raw_parts_mut(self.base.as_ptr(), self.size) }
    }
}

impl Drop for Buffer {
    fn drop(&mut self) {
        if self.registration.take().is_some_and(|registration| !registration.close()) {
            return;
        }
        // SAFETY: allocated in `new` with this layout, which was valid there.
        unsafe { dealloc(self.base.as_ptr(), Layout::from_size_align_unchecked(self.size, ALIGNMENT)) };
    }
}

/// Buffers of a domain for reuse. Their sizes are powers of two.
#[derive(Debug)]
pub(crate) struct BufferPool {
    domain: Arc<Domain>,
    free: Lock<FreeBuffers>,
}

#[derive(Debug, Default)]
struct FreeBuffers {
    /// By size, and whether they are sources.
    buffers: BTreeMap<(usize, bool), Vec<Buffer>>,
    bytes: usize,
}

/// The most bytes of buffers that are kept.
const KEPT: usize = 64 << 20;
const SMALLEST: usize = 512;

impl BufferPool {
    pub(crate) fn new(domain: &Arc<Domain>) -> Arc<Self> {
        Arc::new(Self { domain: Arc::clone(domain), free: Lock::new(FreeBuffers::default()) })
    }

    /// Returns a buffer of at least `size` bytes, for messages and to read into.
    pub(crate) fn take(&self, size: usize) -> Result<Arc<Buffer>> {
        self.take_kind(size, false)
    }

    /// As [`Self::take`], for memory that the peer reads.
    pub(crate) fn take_source(&self, size: usize) -> Result<Arc<Buffer>> {
        self.take_kind(size, true)
    }

    fn take_kind(&self, size: usize, is_source: bool) -> Result<Arc<Buffer>> {
        let too_large = Error::System { call: "malloc", errno: rustix::io::Errno::NOMEM };
        let size = size.max(SMALLEST).checked_next_power_of_two().ok_or(too_large)?;
        let found = {
            let mut free = self.free.lock();
            let found = free.buffers.get_mut(&(size, is_source)).and_then(Vec::pop);
            free.bytes -= found.as_ref().map_or(0, Buffer::size);
            found
        };
        match found {
            Some(buffer) => Ok(Arc::new(buffer)),
            None => Ok(Arc::new(Buffer::new(&self.domain, size, is_source)?)),
        }
    }

    /// Takes back a buffer. One that an operation still uses is freed at its end.
    pub(crate) fn give_back(&self, buffer: Arc<Buffer>) {
        let Ok(buffer) = Arc::try_unwrap(buffer) else { return };
        let mut free = self.free.lock();
        if free.bytes + buffer.size <= KEPT {
            free.bytes += buffer.size;
            free.buffers.entry((buffer.size, buffer.is_source)).or_default().push(buffer);
        } else {
            drop(free);
            drop(buffer);
        }
    }
}
