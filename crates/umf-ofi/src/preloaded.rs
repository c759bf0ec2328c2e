//! Memory of a preloaded `malloc` (`libumf_proxy.so` over shared memory), which other processes map
//! instead of letting the kernel copy it.

use std::sync::Arc;

use umf_core::{Address, View};
use umf_ipc::preloaded::{PreloadedExports, PreloadedHeap, Unexported};
use umf_ipc::{HANDLE_SIZE, Handle};
use umf_link::{Destination, Memory, Source};
use umf_runtime::preloaded_heap::{Block, SHARED_FD};

use crate::conversions::Pieces;

/// The least bytes for which a block is exported. Below, a copy by the kernel costs about as much.
const LEAST: usize = 32 << 10;
/// Exported blocks whose handles are kept, by address.
const KNOWN: usize = 64;

/// The exported blocks of a preloaded `malloc`.
#[derive(Debug, Default)]
pub(crate) struct PreloadedMemory(Option<Exported>);

#[derive(Debug)]
struct Exported {
    heap: PreloadedHeap,
    settings: PreloadedExports,
    known: [Option<Arc<Memory<'static>>>; KNOWN],
}

impl PreloadedMemory {
    /// Looks for the heap of the process.
    pub(crate) fn new() -> Self {
        // Named memory cannot be sealed, and importers refuse it.
        let heap = PreloadedHeap::get().filter(|heap| (heap.functions().kind)() == SHARED_FD);
        let settings = umf::exporter().map(|exporter| PreloadedExports::new(exporter.settings()));
        Self(heap.zip(settings.ok()).map(|(heap, settings)| Exported {
            heap,
            settings,
            known: [const { None }; KNOWN],
        }))
    }

    /// Returns memory to send.
    ///
    /// # Safety
    /// As [`Source::from_raw`].
    #[inline]
    pub(crate) unsafe fn source(&mut self, pieces: Pieces<'_>) -> Source<'static> {
        // SAFETY: by this function's contract.
        unsafe { Source::from_raw(pieces) }.within(self.around(pieces))
    }

    /// Returns memory that receives.
    ///
    /// # Safety
    /// As [`Destination::from_raw`].
    #[inline]
    pub(crate) unsafe fn destination(&mut self, pieces: Pieces<'_>) -> Destination<'static> {
        // SAFETY: by this function's contract.
        unsafe { Destination::from_raw(pieces) }.within(self.around(pieces))
    }

    /// Returns the block that holds the first piece, if exporting it pays.
    #[inline]
    pub(crate) fn around(&mut self, pieces: Pieces<'_>) -> Option<Arc<Memory<'static>>> {
        let exported = self.0.as_mut()?;
        let length: usize = pieces.iter().map(|(_, length)| length).sum();
        if length < LEAST { None } else { exported.around(pieces[0].0) }
    }
}

impl Exported {
    fn around(&mut self, address: *mut u8) -> Option<Arc<Memory<'static>>> {
        let (handle, block) = match self.heap.export(Address::from_ptr(address), &self.settings) {
            Ok(exported) => exported,
            Err(Unexported::NotFound | Unexported::Private) => return None,
            Err(why) => {
                tracing::debug!(?why, "memory of malloc cannot be exported");
                return None;
            }
        };
        let place = &mut self.known[(block.base >> 12) % KNOWN];
        if let Some(known) = place
            && known.handle().as_bytes() == &handle
        {
            return Some(Arc::clone(known));
        }
        let memory = Arc::new(memory(&handle, block)?);
        *place = Some(Arc::clone(&memory));
        Some(memory)
    }
}

fn memory(handle: &[u8; HANDLE_SIZE], block: Block) -> Option<Memory<'static>> {
    let handle = Handle::from_bytes(handle).ok()?;
    let base = core::ptr::with_exposed_provenance_mut(block.base);
    // SAFETY: only the address of the view is used, and parts of the block during operations to
    // which the application has given them.
    let view = unsafe { View::new(base, block.size) }.ok()?;
    Memory::new(&handle, view).ok()
}
