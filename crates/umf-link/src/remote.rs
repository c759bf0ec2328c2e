//! One-sided transfers: `put` and `get` on ranges that a peer has registered.
//!
//! The requesting process copies by a mapping or by the kernel. Where it cannot, the owner copies
//! at its request ([`crate::requests`]).

use core::sync::atomic::Ordering;
use std::sync::Arc;

use umf_core::Access;
use umf_ipc::HANDLE_SIZE;
use umf_sync::failpoint;

use crate::buffer::{Buffer, Cursor};
use crate::channel::Channel;
use crate::inbox::Inbox;
use crate::kernel_copy::{self, Direction, Iov};
use crate::key::{KeyError, RemoteAccess, RemoteKey};
use crate::layout;
use crate::protocol::{self, Load};
use crate::receive::impossible;
use crate::registry::{HAS_HANDLE, READ_ONLY};
use crate::spans::{CheckedSpans, Spans};
use crate::{Engine, Error, Result};

/// The direction of a transfer, as seen by the requesting process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Direct {
    Get = 1,
    Put = 2,
}

impl Direct {
    /// Returns the access to the local memory.
    pub(crate) const fn local(self) -> Access {
        if matches!(self, Self::Get) { Access::ReadWrite } else { Access::ReadOnly }
    }

    const fn remote(self) -> Access {
        if matches!(self, Self::Get) { Access::ReadOnly } else { Access::ReadWrite }
    }

    pub(crate) const fn is_allowed(self, access: RemoteAccess) -> bool {
        if matches!(self, Self::Get) { access.allows_get() } else { access.allows_put() }
    }
}

/// A transfer that was checked.
#[derive(Debug)]
pub(crate) struct Transfer<'t> {
    pub direction: Direct,
    pub key: RemoteKey,
    pub spans: CheckedSpans,
    pub local: &'t Buffer<'t>,
}

impl Transfer<'_> {
    /// Returns whether the owner still publishes the registration.
    pub(crate) fn is_current(&self, channel: &Channel) -> bool {
        let word = channel.peer_catalog.word(layout::range(self.key.slot).0);
        word.load(Ordering::Acquire) == self.key.generation
    }

    pub(crate) fn expired(&self) -> Error {
        Error::Expired { slot: self.key.slot, generation: self.key.generation }
    }

    pub(crate) fn not_allowed(&self) -> Error {
        let what = if self.direction == Direct::Get { "get" } else { "put" };
        Error::NotAllowed { what, allowed: self.key.access }
    }
}

/// A guard of this process being in a registered range of a peer. The end of the registration waits
/// until it is dropped.
struct Inside<'c> {
    channel: &'c Channel,
    transfer: &'c Transfer<'c>,
}

impl<'c> Inside<'c> {
    fn enter(channel: &'c Channel, transfer: &'c Transfer<'c>) -> Option<Self> {
        let RemoteKey { slot, generation, .. } = transfer.key;
        let current = channel.peer_catalog.word(layout::range(slot).0);
        let is_inside = protocol::enter(channel.own_lane.word(layout::INSIDE), &current, slot, generation);
        is_inside.then_some(Self { channel, transfer })
    }
}

impl Drop for Inside<'_> {
    fn drop(&mut self) {
        protocol::leave(self.channel.own_lane.word(layout::INSIDE));
        failpoint!("link.range_left");
        // The owner waits for this if it is ending the registration.
        if !self.transfer.is_current(self.channel) {
            self.channel.notify();
        }
    }
}

/// The location of a range, as its owner publishes it.
#[derive(Clone, Copy, Debug)]
struct Location {
    address: u64,
    flags: u64,
    offset: u64,
}

impl Inbox {
    /// Copies between spans of a registered range of a peer and local memory of the same length.
    pub(crate) fn transfer(
        &mut self,
        index: usize,
        direction: Direct,
        key: &RemoteKey,
        spans: Spans<'_>,
        local: &Buffer<'_>,
    ) -> Result<Engine> {
        self.peer(index).check_open()?;
        let channel = Arc::clone(&self.peer(index).channel);
        if key.nonce != channel.peer_nonce {
            return Err(Error::ForeignKey);
        }
        if local.reduction().is_some() {
            return Err(Error::NotCombined);
        }
        let spans = spans.within(key.len(), local.len())?;
        let transfer = Transfer { direction, key: *key, spans, local };
        if !direction.is_allowed(key.access) {
            return Err(transfer.not_allowed());
        }
        channel.populate_catalog(layout::range(key.slot))?;
        if !transfer.is_current(&channel) {
            return Err(transfer.expired());
        }
        // `inline` and `both` are for messages: the engine is chosen here.
        let forced = channel.settings().engine;
        let forced = forced.filter(|engine| !matches!(engine, Engine::Inline | Engine::Both));
        let direct = match forced {
            Some(Engine::Bounce) => Err(String::new()),
            forced => self.transfer_directly(index, &channel, &transfer, forced)?,
        };
        let engine = match (direct, forced) {
            (Ok(engine), _) => engine,
            (Err(_), None | Some(Engine::Bounce)) => {
                self.transfer_by_requests(index, &transfer)?;
                Engine::Bounce
            }
            (Err(why), Some(engine)) => return Err(impossible(engine, why)),
        };
        let statistics = &mut self.peer(index).statistics;
        match direction {
            Direct::Get => statistics.got.add(local.len()),
            Direct::Put => statistics.put.add(local.len()),
        }
        Ok(engine)
    }

    /// Copies by a mapping or by the kernel. Returns the engine that copied, or the reason why none
    /// could. Bytes that were copied before an error may be copied again.
    fn transfer_directly(
        &mut self,
        index: usize,
        channel: &Channel,
        transfer: &Transfer<'_>,
        forced: Option<Engine>,
    ) -> Result<Result<Engine, String>> {
        let key = &transfer.key;
        let _inside = Inside::enter(channel, transfer).ok_or_else(|| transfer.expired())?;
        failpoint!("link.range_entered");
        let word =
            |number| channel.peer_catalog.word(layout::range_word(key.slot, number)).load(Ordering::Relaxed);
        let [address, length, flags, offset] = [0, 1, 2, 3].map(word);
        if length != key.length {
            return Err(KeyError::Field { field: "length" }.into());
        }
        if RemoteAccess::from_bits(flags & 0xff) != Some(key.access) {
            return Err(KeyError::Field { field: "access" }.into());
        }
        let location = Location { address, flags, offset };
        let mut why = "the range is not memory of an exportable pool (Memory)".to_owned();
        if flags & HAS_HANDLE != 0 && matches!(forced, None | Some(Engine::Mapped)) {
            match copy_mapped_range(channel, transfer, location) {
                Ok(()) => return Ok(Ok(Engine::Mapped)),
                Err(error) if error.is_final() => return Err(error),
                Err(error) => {
                    tracing::debug!(%error, "registered memory of a peer cannot be mapped");
                    self.peer(index).statistics.refused_mapped += 1;
                    why = error.to_string();
                }
            }
        }
        if forced == Some(Engine::Mapped) {
            return Ok(Err(why));
        }
        if !channel.kernel_copies.load(Ordering::Relaxed) {
            let refused = channel.engines.cma().err();
            return Ok(Err(refused.unwrap_or("the kernel has refused it before").to_owned()));
        }
        match copy_range_by_kernel(channel, transfer, location) {
            Ok(()) => Ok(Ok(Engine::Cma)),
            Err(error) if error.is_final() => Err(error),
            Err(error) => {
                tracing::debug!(%error, "registered memory of a peer cannot be reached by the kernel");
                self.peer(index).statistics.refused_cma += 1;
                Ok(Err(error.to_string()))
            }
        }
    }
}

fn copy_mapped_range(channel: &Channel, transfer: &Transfer<'_>, location: Location) -> Result<()> {
    let why = |why: &str| impossible(Engine::Mapped, why);
    let importer = channel.shared.importer.ok_or_else(|| why("this process's link has no importer"))?;
    let mut bytes = [0; HANDLE_SIZE];
    let from = channel.peer_catalog.bytes(layout::range_handle(transfer.key.slot), HANDLE_SIZE);
    // SAFETY: both have that many bytes. What the peer wrote is checked by the importer.
    unsafe { core::ptr::copy(from, bytes.as_mut_ptr(), HANDLE_SIZE) };
    let access = if location.flags & READ_ONLY != 0 { Access::ReadOnly } else { Access::ReadWrite };
    let mapping = importer.open_bytes(&bytes, access).map_err(|error| channel.not_opened(error))?;
    let base = mapping.address().as_ptr().filter(|_| mapping.is_host_accessible());
    let base = base.ok_or_else(|| why("the memory is on a device"))?;
    let start = usize::try_from(location.offset).unwrap_or(usize::MAX);
    if start.checked_add(transfer.key.len()).is_none_or(|end| end > mapping.len()) {
        return Err(channel.misbehaved("a range that it registered reaches past the end of its memory"));
    }
    if transfer.direction == Direct::Put && mapping.is_read_only() {
        return Err(why("it was exported for reading only"));
    }
    let remote_guard =
        mapping.cpu_access(transfer.direction.remote()).map_err(|error| channel.not_opened(error))?;
    let local_guard = transfer.local.begin_access(transfer.direction.local())?;
    let mut local = Cursor::new(transfer.local.segments());
    for span in transfer.spans.as_slice() {
        let at = base.wrapping_add(start + span.offset);
        match transfer.direction {
            // SAFETY: `Spans::within` has checked that the span is in the range, which is in the
            // mapping by the check above; the caller's memory has as many bytes as all spans.
            Direct::Get => unsafe { local.copy_in(at, span.length) },
            // SAFETY: as above; the mapping can be written.
            Direct::Put => unsafe { local.copy_out(at, span.length) },
        }
    }
    drop((remote_guard, local_guard));
    Ok(())
}

fn copy_range_by_kernel(channel: &Channel, transfer: &Transfer<'_>, location: Location) -> Result<()> {
    if location.address.checked_add(transfer.key.length).is_none() {
        return Err(channel.misbehaved("a range that it registered is at an impossible address"));
    }
    let iov = |span: &crate::Span| Iov {
        address: location.address + span.offset as u64,
        length: span.length as u64,
    };
    let remote: Vec<Iov> = transfer.spans.as_slice().iter().map(iov).collect();
    let local = Cursor::new(transfer.local.segments()).ranges(transfer.local.len());
    let guard = transfer.local.begin_access(transfer.direction.local())?;
    let (copied, call) = match transfer.direction {
        Direct::Get => {
            // SAFETY: the caller's memory; the pid is that of the peer, whose socket is open.
            let copied = unsafe { kernel_copy::read_with_gaps(channel.pid, &local, &remote) };
            (copied, "process_vm_readv")
        }
        Direct::Put => {
            // SAFETY: as above.
            let copied = unsafe { kernel_copy::copy(channel.pid, Direction::Write, &local, &remote) };
            (copied, "process_vm_writev")
        }
    };
    drop(guard);
    copied.map_err(|errno| channel.refused(errno, call))
}
