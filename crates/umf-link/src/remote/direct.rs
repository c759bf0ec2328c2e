//! Transfers that the asking side does alone: it maps the owner's memory, or has the kernel copy.

use core::sync::atomic::Ordering;

use umf_core::Access;
use umf_ipc::HANDLE_SIZE;
use umf_sync::failpoint;

use super::registry::{HAS_HANDLE, READ_ONLY};
use super::{Asking, Transfer, Way};
use crate::gaps;
use crate::key::{KeyError, RemoteAccess};
use crate::layout::{self, OFFERS};
use crate::parts::Cursor;
use crate::protocol::{self, Load};
use crate::shared::Shared;
use crate::sys::{self, Direction, Iov};
use crate::{Engine, Error, Result};

/// While it lives the registration that was entered does not end.
struct Inside<'s> {
    shared: &'s Shared,
    slot: usize,
    generation: u64,
}

impl<'s> Inside<'s> {
    fn enter(shared: &'s Shared, slot: usize, generation: u64) -> Option<Self> {
        let (inside, current) = (shared.mine.word(layout::INSIDE), shared.theirs.word(layout::range(slot)));
        protocol::enter(inside, &current, slot, generation).then_some(Self { shared, slot, generation })
    }
}

impl Drop for Inside<'_> {
    fn drop(&mut self) {
        let shared = self.shared;
        protocol::leave(shared.mine.word(layout::INSIDE));
        failpoint!("link.range_left");
        // Whoever ends the registration waits for this, and looks by itself from time to time; nobody else has to be woken.
        if shared.theirs.word(layout::range(self.slot)).load(Ordering::Relaxed) != self.generation {
            shared.notify();
        }
    }
}

/// What the owner says about a range.
#[derive(Clone, Copy, Debug)]
struct Said {
    address: u64,
    flags: u64,
    offset: u64,
}

/// The engine that did it, or why none could. Whatever was copied until then may be copied again.
pub(super) fn by_itself(
    asking: &mut Asking<'_>,
    transfer: &Transfer<'_>,
    forced: Option<Engine>,
) -> Result<Result<Engine, String>> {
    let shared = asking.shared;
    let key = &transfer.key;
    shared.populate(OFFERS)?;
    let inside = Inside::enter(shared, key.slot, key.generation).ok_or_else(|| transfer.expired())?;
    failpoint!("link.range_entered");
    let word = |number| shared.theirs.word(layout::range_word(key.slot, number)).load(Ordering::Relaxed);
    let [address, length, flags, offset] = [0, 1, 2, 3].map(word);
    if length != key.length {
        return Err(KeyError::Field { field: "length" }.into());
    }
    if RemoteAccess::from_bits(flags & 0xff) != Some(key.access) {
        return Err(KeyError::Field { field: "access" }.into());
    }
    let said = Said { address, flags, offset };
    let mut why = "the peer does not tell where the range is (its link.enforce)".to_owned();
    if flags & HAS_HANDLE != 0 && matches!(forced, None | Some(Engine::Mapped)) {
        match by_mapping(shared, transfer, said) {
            Ok(()) => return Ok(Ok(Engine::Mapped)),
            Err(error) if error.is_final() => return Err(error),
            Err(error) => {
                tracing::debug!(%error, "registered memory of a peer cannot be mapped");
                asking.statistics.refused_mapped += 1;
                why = error.to_string();
            }
        }
    }
    if forced == Some(Engine::Mapped) {
        let is_plain = flags & HAS_HANDLE == 0 && address != 0;
        return Ok(Err(if is_plain {
            "the range is not memory of an exportable pool (Memory)".to_owned()
        } else {
            why
        }));
    }
    if address != 0 {
        if !shared.cma.load(Ordering::Relaxed) {
            let refused = shared.engines.cma().err().unwrap_or("it was refused before");
            return Ok(Err(refused.to_owned()));
        }
        match by_kernel(shared, transfer, said) {
            Ok(()) => return Ok(Ok(Engine::Cma)),
            Err(error) if error.is_final() => return Err(error),
            Err(error) => {
                tracing::debug!(%error, "registered memory of a peer cannot be reached by the kernel");
                asking.statistics.refused_cma += 1;
                why = error.to_string();
            }
        }
    }
    drop(inside);
    Ok(Err(why))
}

fn by_mapping(shared: &Shared, transfer: &Transfer<'_>, said: Said) -> Result<()> {
    let impossible = |why: &str| Error::EngineImpossible { engine: Engine::Mapped, why: why.to_owned() };
    let importer = shared.importer.ok_or_else(|| impossible("this process's endpoint has no importer"))?;
    let mut bytes = [0; HANDLE_SIZE];
    let from = shared.theirs.bytes(layout::range_handle(transfer.key.slot), HANDLE_SIZE);
    // SAFETY: both have that many bytes; what comes is checked by who opens it.
    unsafe { core::ptr::copy(from, bytes.as_mut_ptr(), HANDLE_SIZE) };
    let opens = if said.flags & READ_ONLY != 0 { Access::ReadOnly } else { Access::ReadWrite };
    let mapping = importer.open_bytes(&bytes, opens).map_err(|error| shared.not_opened(error))?;
    let base = mapping.address().as_ptr().filter(|_| mapping.is_host_accessible());
    let base = base.ok_or_else(|| impossible("the memory is on a device"))?;
    let begin = usize::try_from(said.offset).unwrap_or(usize::MAX);
    if begin.checked_add(transfer.key.len()).is_none_or(|end| end > mapping.len()) {
        return Err(shared.misbehaved("a range that it registered reaches past the end of its memory"));
    }
    if transfer.way == Way::Put && mapping.is_read_only() {
        return Err(impossible("it was exported for reading only"));
    }
    let (theirs, mine) = match transfer.way {
        Way::Get => (Access::ReadOnly, Access::ReadWrite),
        Way::Put => (Access::ReadWrite, Access::ReadOnly),
    };
    let theirs = mapping.cpu_access(theirs).map_err(|error| shared.not_opened(error))?;
    let mine = transfer.local.touch(mine)?;
    let mut local = Cursor::new(transfer.local.parts());
    for span in transfer.spans.as_slice() {
        let at = base.wrapping_add(begin + span.offset);
        match transfer.way {
            // SAFETY: inside of the range by `Places::within`, which is inside of the mapping, as was just checked, which can be written
            // for `put`; the caller's memory has as many bytes as all spans together.
            Way::Get => unsafe { local.copy_in(at, span.length) },
            // SAFETY: as above.
            Way::Put => unsafe { local.copy_out(at, span.length) },
        }
    }
    drop((theirs, mine));
    Ok(())
}

fn by_kernel(shared: &Shared, transfer: &Transfer<'_>, said: Said) -> Result<()> {
    if said.address.checked_add(transfer.key.length).is_none() {
        return Err(shared.misbehaved("a range that it registered is where nothing can be"));
    }
    let remote: Vec<Iov> = transfer
        .spans
        .as_slice()
        .iter()
        .map(|span| Iov { address: said.address + span.offset as u64, length: span.length as u64 })
        .collect();
    let local = Cursor::new(transfer.local.parts()).ranges(transfer.local.len());
    let access = if transfer.way == Way::Get { Access::ReadWrite } else { Access::ReadOnly };
    let time = transfer.local.touch(access)?;
    let copied = match transfer.way {
        // SAFETY: the caller's memory; the pid is that of the peer, which was there a moment ago.
        Way::Get => unsafe { gaps::read(shared.pid, &local, &remote) },
        // SAFETY: as above.
        Way::Put => unsafe { sys::across(shared.pid, Direction::Write, &local, &remote) },
    };
    drop(time);
    copied.map_err(|errno| {
        shared.refused(errno, if transfer.way == Way::Get { "process_vm_readv" } else { "process_vm_writev" })
    })
}
