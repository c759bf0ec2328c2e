//! The CUDA memory of this process by address, with its context. [`Copier`] looks contexts up here.
//! The file also keeps the exported 64-byte handles of this process, which its own driver does not
//! open.

use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Weak};

use cuda_sys::CUdeviceptr;
use umf_core::{Address, Error, Result, Transfer};
use umf_sync::Lock;

use crate::context::{Context, Current};
use crate::driver::driver_error;
use crate::heap::Allocation;
use crate::provider::pointer;

struct MapEntry {
    end: u64,
    /// Number of additions at this address: imports of one handle share an address.
    count: usize,
    context: Arc<Context>,
}

/// The origin of memory in this process. Each origin has a map of its own: an import of the
/// process's own memory is in both.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum MemoryOrigin {
    Allocated,
    Imported,
}

static MAPS: [Lock<BTreeMap<u64, MapEntry>>; 2] = [const { Lock::new(BTreeMap::new()) }; 2];

/// Adds memory.
pub(crate) fn add(origin: MemoryOrigin, base: Address, size: usize, context: &Arc<Context>) {
    let (start, context) = (base.to_bits(), Arc::clone(context));
    let end = start.saturating_add(size as u64);
    let mut map = MAPS[origin as usize].lock();
    let entry = map.entry(start).or_insert(MapEntry { end, count: 0, context });
    entry.count += 1;
    entry.end = entry.end.max(end);
}

/// Removes memory. Called before the driver frees or unmaps it.
pub(crate) fn remove(origin: MemoryOrigin, base: Address) {
    let start = base.to_bits();
    let removed = {
        let mut map = MAPS[origin as usize].lock();
        match map.get_mut(&start) {
            Some(entry) if entry.count > 1 => {
                entry.count -= 1;
                None
            }
            _ => map.remove(&start),
        }
    };
    // Without the lock: this may drop the last reference to the context.
    drop(removed);
}

/// Returns the context of the memory that contains the whole range.
///
/// # Errors
/// [`Error::ForeignAddress`].
pub(crate) fn find(origins: &[MemoryOrigin], base: Address, size: usize) -> Result<Arc<Context>> {
    let foreign = Error::ForeignAddress { address: base, owner: "the CUDA driver's memory" };
    let start = base.to_bits();
    let end = start.checked_add(size as u64).ok_or(foreign)?;
    let found = origins.iter().find_map(|origin| {
        let map = MAPS[*origin as usize].lock();
        let (_, entry) = map.range(..=start).next_back()?;
        (end <= entry.end && start < entry.end).then(|| Arc::clone(&entry.context))
    });
    found.ok_or(foreign)
}

/// The address of an exported allocation, and the allocation while it is live.
type ExportedAllocation = (u64, Weak<Allocation>);

/// The exported 64-byte handles of this process. The driver does not open them in the exporting
/// process.
static EXPORTED_HANDLES: Lock<Option<HashMap<[u8; 64], ExportedAllocation>>> = Lock::new(None);

/// Adds the handle of an allocation.
pub(crate) fn add_exported_handle(handle: [u8; 64], allocation: &Arc<Allocation>) {
    let exported = (allocation.address, Arc::downgrade(allocation));
    EXPORTED_HANDLES.lock().get_or_insert_default().insert(handle, exported);
}

/// Returns the live allocation of a handle, if this process exported it.
pub(crate) fn find_exported_handle(handle: &[u8; 64]) -> Option<Arc<Allocation>> {
    EXPORTED_HANDLES.lock().as_ref()?.get(handle)?.1.upgrade()
}

/// Removes the handles of an allocation. Called when its region is freed.
pub(crate) fn remove_exported_handles(address: u64) {
    if let Some(handles) = &mut *EXPORTED_HANDLES.lock() {
        handles.retain(|_, (exported, _)| *exported != address);
    }
}

/// Copies and fills CUDA memory that this process allocated or imported through umf. It uses the
/// context's own stream, waits for its own operations, and not for work of the application.
#[derive(Debug)]
pub(crate) struct Copier(&'static [MemoryOrigin]);

impl Copier {
    const BOTH: &'static [MemoryOrigin] = &[MemoryOrigin::Allocated, MemoryOrigin::Imported];
    pub(crate) const OF_ALL: Self = Self(Self::BOTH);
    pub(crate) const OF_IMPORTS: Self = Self(&[MemoryOrigin::Imported]);
}

fn host_pointer(memory: *const u8) -> CUdeviceptr {
    memory.expose_provenance() as u64
}

/// Copies between device or host memory, and waits for the copy.
fn copy(current: &Current<'_>, to: CUdeviceptr, from: CUdeviceptr, size: usize) -> Result<()> {
    let stream = current.stream()?;
    // SAFETY: by the contract of `Transfer` both ranges are live until this returns.
    unsafe {
        current.api().cuMemcpyAsync(to, from, size, stream).map_err(driver_error)?;
        current.api().cuStreamSynchronize(stream).map_err(driver_error)
    }
}

impl Transfer for Copier {
    unsafe fn read(&self, from: Address, into: &mut [u8]) -> Result<()> {
        if into.is_empty() {
            return Ok(());
        }
        let context = find(self.0, from, into.len())?;
        copy(&context.enter()?, host_pointer(into.as_mut_ptr()), pointer(from), into.len())
    }

    unsafe fn write(&self, to: Address, bytes: &[u8]) -> Result<()> {
        if bytes.is_empty() {
            return Ok(());
        }
        let context = find(self.0, to, bytes.len())?;
        copy(&context.enter()?, pointer(to), host_pointer(bytes.as_ptr()), bytes.len())
    }

    unsafe fn fill(&self, to: Address, size: usize, byte: u8) -> Result<()> {
        if size == 0 {
            return Ok(());
        }
        let context = find(self.0, to, size)?;
        let current = context.enter()?;
        let stream = current.stream()?;
        // SAFETY: by the contract of `Transfer` the range is live until this returns.
        unsafe {
            current.api().cuMemsetD8Async(pointer(to), byte, size, stream).map_err(driver_error)?;
            current.api().cuStreamSynchronize(stream).map_err(driver_error)
        }
    }

    unsafe fn copy(&self, from: Address, to: Address, size: usize) -> Result<()> {
        if size == 0 {
            return Ok(());
        }
        find(Self::BOTH, from, size)?;
        let context = find(Self::BOTH, to, size)?;
        copy(&context.enter()?, pointer(to), pointer(from), size)
    }
}
