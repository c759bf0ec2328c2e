//! [`Queue`], [`Addresses`] and [`Endpoint`]: operations, and how they complete.

use core::ffi::c_void;
use core::ptr;
use core::time::Duration;
use std::sync::Arc;
use std::time::Instant;

use hashbrown::HashMap;
use libfabric_sys::*;
use umf_sync::Lock;

use super::{Buffer, Domain};
use crate::Result;
use crate::route::MAX_NAME;

/// An operation that failed.
#[derive(Clone, Debug)]
pub(crate) struct Fault {
    /// libfabric's text for the error.
    pub reason: String,
}

/// An operation that has ended.
#[derive(Debug)]
pub(crate) struct Done {
    /// The operation.
    pub token: u64,
    /// The bytes of a received message.
    pub length: usize,
    /// Why it failed.
    pub fault: Option<Fault>,
}

/// A completion queue.
#[derive(Debug)]
pub(crate) struct Queue {
    domain: Arc<Domain>,
    queue: *mut fid_cq,
    /// Whether a thread can sleep in it.
    can_wait: bool,
}

// SAFETY: the domain is opened for several threads.
unsafe impl Send for Queue {}
// SAFETY: as above.
unsafe impl Sync for Queue {}

/// Entries that are read at a time.
const ENTRIES: usize = 32;

impl Queue {
    pub(crate) fn open(domain: &Arc<Domain>) -> Result<Arc<Self>> {
        let mut queue = ptr::null_mut();
        let mut result = 0;
        // Not every provider has a queue in which a thread can sleep. (FI_WAIT_UNSPEC may be
        // FI_WAIT_YIELD, which ignores time-outs.)
        for wait_obj in [FI_WAIT_FD, FI_WAIT_NONE] {
            let mut attributes = fi_cq_attr {
                size: 0,
                flags: 0,
                format: FI_CQ_FORMAT_MSG,
                wait_obj,
                signaling_vector: 0,
                wait_cond: FI_CQ_COND_NONE,
                wait_set: ptr::null_mut(),
            };
            // SAFETY: the domain is live, and `queue` is valid for a write.
            result =
                unsafe { fi_cq_open(domain.as_ptr(), &raw mut attributes, &raw mut queue, ptr::null_mut()) };
            if result == 0 {
                let can_wait = wait_obj != FI_WAIT_NONE;
                return Ok(Arc::new(Self { domain: Arc::clone(domain), queue, can_wait }));
            }
        }
        domain.check("fi_cq_open", result as isize)?;
        unreachable!("the last call failed")
    }

    /// Appends the operations that have ended. Makes progress.
    pub(crate) fn read(&self, done: &mut Vec<Done>) -> Result<()> {
        self.read_with(done, |entries| {
            // SAFETY: the queue is live, and the entries have its format.
            unsafe { fi_cq_read(self.queue, entries.as_mut_ptr().cast(), entries.len()) }
        })?;
        Ok(())
    }

    /// As [`Self::read`], and waits for one up to `timeout`, or until [`Self::wake`].
    pub(crate) fn wait(&self, timeout: Duration, done: &mut Vec<Done>) -> Result<()> {
        if !self.can_wait {
            return self.poll(timeout, done);
        }
        let milliseconds = i32::try_from(timeout.as_micros().div_ceil(1000)).unwrap_or(i32::MAX);
        self.read_with(done, |entries| {
            // SAFETY: as above.
            unsafe {
                let (buffer, count) = (entries.as_mut_ptr().cast(), entries.len());
                fi_cq_sread(self.queue, buffer, count, ptr::null(), milliseconds)
            }
        })
    }

    /// Waits without sleeping in the queue.
    fn poll(&self, timeout: Duration, done: &mut Vec<Done>) -> Result<()> {
        let until = Instant::now() + timeout;
        let mut rounds = 0_u32;
        loop {
            self.read(done)?;
            if !done.is_empty() || Instant::now() >= until {
                return Ok(());
            }
            rounds = rounds.saturating_add(1);
            if rounds < 200 {
                std::thread::yield_now();
            } else {
                std::thread::sleep(Duration::from_micros(if rounds < 2000 { 50 } else { 500 }));
            }
        }
    }

    fn read_with(
        &self,
        done: &mut Vec<Done>,
        read: impl FnOnce(&mut [fi_cq_msg_entry; ENTRIES]) -> isize,
    ) -> Result<()> {
        const EMPTY: fi_cq_msg_entry = fi_cq_msg_entry { op_context: ptr::null_mut(), flags: 0, len: 0 };
        let mut entries = [EMPTY; ENTRIES];
        let count = read(&mut entries);
        match count {
            0.. => {
                let entries = entries.iter().take(count.unsigned_abs());
                done.extend(entries.map(|entry| Done {
                    token: entry.op_context.addr() as u64,
                    length: entry.len,
                    fault: None,
                }));
                Ok(())
            }
            _ if count == -(FI_EAVAIL as isize) => self.read_error(done),
            // Also after a signal; then 1.17 may return FI_ENOENT.
            _ if [FI_EAGAIN, FI_EINTR, FI_ENOENT, FI_ECANCELED].contains(&(-count as i32)) => Ok(()),
            _ => self.domain.check("fi_cq_read", count),
        }
    }

    fn read_error(&self, done: &mut Vec<Done>) -> Result<()> {
        // SAFETY: all members may be zero.
        let mut entry: fi_cq_err_entry = unsafe { core::mem::zeroed() };
        // SAFETY: the queue is live, and the entry has the layout of `VERSION`.
        let result = unsafe { fi_cq_readerr(self.queue, &raw mut entry, 0) };
        if result == -(FI_EAGAIN as isize) {
            return Ok(());
        }
        self.domain.check("fi_cq_readerr", result)?;
        let library = self.domain.info().library();
        let reason = library.text_of(entry.err);
        let fault = Some(Fault { reason });
        done.push(Done { token: entry.op_context.addr() as u64, length: 0, fault });
        Ok(())
    }

    /// Wakes a thread that waits.
    pub(crate) fn wake(&self) {
        if self.can_wait {
            // SAFETY: the queue is live. Without this function, threads wake at their next
            // time-out.
            unsafe { fi_cq_signal(self.queue) };
        }
    }
}

impl Drop for Queue {
    fn drop(&mut self) {
        // SAFETY: closed once; endpoints have an `Arc` of it.
        unsafe { self.domain.close("completion queue", self.queue.cast()) };
    }
}

/// An address vector.
#[derive(Debug)]
pub(crate) struct Addresses {
    domain: Arc<Domain>,
    vector: *mut fid_av,
}

// SAFETY: the domain is opened for several threads.
unsafe impl Send for Addresses {}
// SAFETY: as above.
unsafe impl Sync for Addresses {}

impl Addresses {
    pub(crate) fn open(domain: &Arc<Domain>) -> Result<Arc<Self>> {
        let mut attributes = fi_av_attr {
            r#type: FI_AV_UNSPEC,
            rx_ctx_bits: 0,
            count: 64,
            ep_per_node: 0,
            name: ptr::null(),
            map_addr: ptr::null_mut(),
            flags: 0,
        };
        let mut vector = ptr::null_mut();
        // SAFETY: the domain is live, and `vector` is valid for a write.
        let result =
            unsafe { fi_av_open(domain.as_ptr(), &raw mut attributes, &raw mut vector, ptr::null_mut()) };
        domain.check("fi_av_open", result as isize)?;
        Ok(Arc::new(Self { domain: Arc::clone(domain), vector }))
    }

    /// Inserts the name of an endpoint.
    pub(crate) fn insert(&self, name: &[u8]) -> Result<u64> {
        // Providers read as many bytes as their addresses have, or up to a zero.
        let mut whole = [0_u8; MAX_NAME + 1];
        let length = name.len().min(MAX_NAME);
        whole[..length].copy_from_slice(&name[..length]);
        let mut address = FI_ADDR_NOTAVAIL;
        // SAFETY: the vector is live, and the buffer is longer than any address.
        let result = unsafe {
            fi_av_insert(self.vector, whole.as_ptr().cast(), 1, &raw mut address, 0, ptr::null_mut())
        };
        match result {
            1 => Ok(address),
            0.. => self.domain.check("fi_av_insert", -(FI_EINVAL as isize)).map(|()| address),
            _ => self.domain.check("fi_av_insert", result as isize).map(|()| address),
        }
    }

    pub(crate) fn remove(&self, mut address: u64) {
        // SAFETY: the vector is live, and the address is one of it.
        let result = unsafe { fi_av_remove(self.vector, &raw mut address, 1, 0) };
        if result != 0 {
            tracing::debug!(error = -result, "fi_av_remove failed");
        }
    }
}

impl Drop for Addresses {
    fn drop(&mut self) {
        // SAFETY: closed once; endpoints have an `Arc` of it.
        unsafe { self.domain.close("address vector", self.vector.cast()) };
    }
}

/// An endpoint, and the buffers of its operations.
#[derive(Debug)]
pub(crate) struct Endpoint {
    endpoint: *mut fid_ep,
    queue: Arc<Queue>,
    _addresses: Arc<Addresses>,
    /// Buffers of operations that have not ended.
    held: Lock<HashMap<u64, Arc<Buffer>>>,
}

// SAFETY: the domain is opened for several threads.
unsafe impl Send for Endpoint {}
// SAFETY: as above.
unsafe impl Sync for Endpoint {}

impl Endpoint {
    pub(crate) fn open(queue: &Arc<Queue>, addresses: &Arc<Addresses>) -> Result<Self> {
        let domain = &queue.domain;
        let mut endpoint = ptr::null_mut();
        let info = domain.info().as_ptr();
        // SAFETY: the domain is live, the entry is one of it, and `endpoint` is valid for a write.
        let result = unsafe { fi_endpoint(domain.as_ptr(), info, &raw mut endpoint, ptr::null_mut()) };
        domain.check("fi_endpoint", result as isize)?;
        let held = Lock::new(HashMap::new());
        let opened = Self { endpoint, queue: Arc::clone(queue), _addresses: Arc::clone(addresses), held };
        // SAFETY: all objects are live.
        let (to_queue, to_addresses) = unsafe {
            (
                fi_ep_bind(endpoint, queue.queue.cast(), FI_TRANSMIT | FI_RECV),
                fi_ep_bind(endpoint, addresses.vector.cast(), 0),
            )
        };
        domain.check("fi_ep_bind", to_queue as isize)?;
        domain.check("fi_ep_bind", to_addresses as isize)?;
        // SAFETY: the endpoint is live.
        domain.check("fi_enable", unsafe { fi_enable(endpoint) } as isize)?;
        Ok(opened)
    }

    fn domain(&self) -> &Domain {
        &self.queue.domain
    }

    pub(crate) const fn queue(&self) -> &Arc<Queue> {
        &self.queue
    }

    /// Returns the endpoint's address.
    pub(crate) fn name(&self) -> Result<Vec<u8>> {
        let mut name = vec![0; MAX_NAME];
        let mut length = name.len();
        // SAFETY: the endpoint is live, and the buffer has that length.
        let result = unsafe { fi_getname(self.endpoint.cast(), name.as_mut_ptr().cast(), &raw mut length) };
        self.domain().check("fi_getname", result as isize)?;
        name.truncate(length);
        Ok(name)
    }

    /// Posts an operation with `post`, which gets its context. Returns `false` if the endpoint has
    /// no room now.
    fn post(
        &self,
        call: &'static str,
        buffer: &Arc<Buffer>,
        token: u64,
        post: impl FnOnce(*mut c_void) -> isize,
    ) -> Result<bool> {
        // Before the operation begins, so that the buffer outlives it.
        self.held.lock().insert(token, Arc::clone(buffer));
        let result = post(ptr::without_provenance_mut(token as usize));
        if result != 0 {
            self.held.lock().remove(&token);
        }
        if result == -(FI_EAGAIN as isize) {
            return Ok(false);
        }
        self.domain().check(call, result).map(|()| true)
    }

    /// Sends the first `length` bytes of a buffer.
    pub(crate) fn send(&self, to: u64, buffer: &Arc<Buffer>, length: usize, token: u64) -> Result<bool> {
        let (base, descriptor) = (buffer.range(0, length), buffer.descriptor());
        self.post("fi_send", buffer, token, |context| {
            // SAFETY: the endpoint is live, and `held` keeps the buffer until the operation has
            // ended.
            unsafe { fi_send(self.endpoint, base.cast(), length, descriptor, to, context) }
        })
    }

    /// Receives a message into a buffer.
    pub(crate) fn receive(&self, buffer: &Arc<Buffer>, token: u64) -> Result<bool> {
        let (length, descriptor) = (buffer.size(), buffer.descriptor());
        let base = buffer.range(0, length);
        self.post("fi_recv", buffer, token, |context| {
            // SAFETY: as above.
            unsafe { fi_recv(self.endpoint, base.cast(), length, descriptor, FI_ADDR_UNSPEC, context) }
        })
    }

    /// Reads `length` bytes of the peer's memory to `offset` in a buffer.
    pub(crate) fn read(
        &self,
        from: u64,
        (key, address): (u64, u64),
        buffer: &Arc<Buffer>,
        (offset, length): (usize, usize),
        token: u64,
    ) -> Result<bool> {
        let (base, descriptor) = (buffer.range(offset, length), buffer.descriptor());
        self.post("fi_read", buffer, token, |context| {
            // SAFETY: as above.
            unsafe { fi_read(self.endpoint, base.cast(), length, descriptor, from, address, key, context) }
        })
    }

    /// Releases the buffer of an operation that has ended.
    pub(crate) fn release(&self, token: u64) {
        let buffer = self.held.lock().remove(&token);
        drop(buffer);
    }
}

impl Drop for Endpoint {
    fn drop(&mut self) {
        // SAFETY: closed once, before its queue and addresses.
        if !unsafe { self.domain().close("endpoint", self.endpoint.cast()) } {
            // Its operations may still write.
            core::mem::forget(core::mem::take(&mut *self.held.lock()));
        }
    }
}
