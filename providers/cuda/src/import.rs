//! [`CudaImport`]: opens memory that another process exported, and checks it. One table per process
//! counts what is open.

use std::collections::{BTreeMap, HashMap};
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};

use cuda_sys::*;
use umf_core::{Access, Address, Error, Import, ImportRequest, Imported, ProviderKind, Result, Transfer};
use umf_sync::{Lock, fork};

use crate::address_map::Copier;
use crate::address_map::{self, MemoryOrigin};
use crate::context::Context;
use crate::driver::{Driver, driver_error};
use crate::handles::{self, HandleFormat, KIND};
use crate::heap::{Allocation, DEVICE_PAGE};
use crate::virtual_memory::{self, PhysicalMemory};

/// An importer of CUDA memory that another process exported. Needs no provider: the first import
/// loads and initializes the driver.
///
/// Memory is opened in the primary context of its own device, found by the device's UUID. The
/// driver validates what was received; it checks file descriptors with its kernel module.
///
/// A read-only import of memory kind `virtual` is enforced if the device supports it, and advisory
/// otherwise.
///
/// Thread-safe.
#[derive(Debug)]
pub struct CudaImport {
    library: Option<PathBuf>,
    /// The fork generation in which it was created: a forked child does not take its lock.
    generation: u32,
    /// The contexts of devices, by fingerprint of the UUID. An importer of a provider starts with
    /// the provider's context.
    contexts: Mutex<HashMap<u64, Arc<Context>>>,
}

/// A live import.
enum OpenImport {
    /// Physical memory, mapped at newly reserved addresses.
    Mapped { context: Arc<Context>, size: usize },
    /// A 64-byte handle in [`ImportTable::legacy`].
    Legacy { handle: [u8; 64] },
    /// An allocation of this process, opened by its own handle.
    Local { allocation: Arc<Allocation> },
}

/// A 64-byte handle that the driver has open, with the number of its imports.
struct IpcMapping {
    context: Arc<Context>,
    address: CUdeviceptr,
    size: usize,
    count: usize,
}

#[derive(Default)]
struct ImportTable {
    /// Live imports by base address: several if a handle was opened more than once.
    by_base: BTreeMap<u64, Vec<OpenImport>>,
    /// Open 64-byte handles: the driver opens each once per process.
    legacy: HashMap<[u8; 64], IpcMapping>,
}

static IMPORTS: Lock<Option<ImportTable>> = Lock::new(None);

impl CudaImport {
    /// Returns an importer over `libcuda.so.1`, or the library at `path`.
    #[must_use]
    pub fn new(path: Option<PathBuf>) -> Self {
        Self { library: path, generation: fork::generation(), contexts: Mutex::default() }
    }

    pub(crate) fn in_context(context: Arc<Context>, library: Option<PathBuf>) -> Self {
        let known = HashMap::from([(handles::fingerprint(context.uuid()), context)]);
        Self { library, generation: fork::generation(), contexts: Mutex::new(known) }
    }

    /// Returns the context for memory of the device with this fingerprint.
    fn context_for(&self, fingerprint: u64) -> Result<Arc<Context>> {
        if self.generation != fork::generation() {
            return self.find_context(fingerprint);
        }
        let mut contexts = self.contexts.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(context) = contexts.get(&fingerprint) {
            return Ok(Arc::clone(context));
        }
        let context = self.find_context(fingerprint)?;
        contexts.insert(fingerprint, Arc::clone(&context));
        Ok(context)
    }

    /// Returns the primary context of the device with this fingerprint.
    fn find_context(&self, fingerprint: u64) -> Result<Arc<Context>> {
        let driver = Driver::open(self.library.as_deref())?;
        for ordinal in 0..driver.device_count()? {
            if handles::fingerprint(driver.uuid(driver.device_handle(ordinal)?)?) == fingerprint {
                return Ok(Arc::new(Context::primary(driver, ordinal)?));
            }
        }
        Err(Error::NotSupported {
            what: "opening memory of a device that this process does not see (check CUDA_VISIBLE_DEVICES)",
            owner: "the CUDA driver in this process",
            native: 0,
        })
    }

    /// Maps physical memory at newly reserved addresses, and releases its handle.
    fn map(
        context: &Arc<Context>,
        physical: PhysicalMemory,
        size: usize,
        access: Access,
    ) -> Result<(CUdeviceptr, Access)> {
        let mapped = virtual_memory::reserve_addresses(context, size, 0).and_then(|address| {
            let devices = core::iter::once(context.device());
            let mapped = physical.map(context, address, size, devices, access);
            mapped.map(|granted| (address, granted)).inspect_err(|_| {
                let _ = virtual_memory::release_addresses(context, address, size);
            })
        });
        // The mapping keeps the memory.
        let released = physical.release(context);
        let (address, granted) = mapped?;
        if let Err(error) = released {
            let _ = virtual_memory::unmap(context, address, size);
            let _ = virtual_memory::release_addresses(context, address, size);
            return Err(error);
        }
        Ok((address, granted))
    }

    fn open_physical(&self, request: &ImportRequest, fingerprint: u64) -> Result<Imported> {
        let untrusted = |why| Error::Untrusted { why };
        let native = request.native.get(..request.native_len).unwrap_or_default();
        let (size, fabric) = match &request.fd {
            Some(_) => {
                let (uuid, size) = handles::decode_fd_bytes(native)?;
                if handles::fingerprint(uuid) != fingerprint {
                    return Err(untrusted("the handle contains two different devices"));
                }
                (usize::try_from(size).unwrap_or(usize::MAX), None)
            }
            None => {
                let data = <[u8; 64]>::try_from(native);
                let data =
                    data.map_err(|_| untrusted("the native bytes are not those of a fabric handle"))?;
                (request.size, Some(CUmemFabricHandle { data }))
            }
        };
        if request.offset != 0 || request.size == 0 || request.size > size {
            return Err(untrusted("the range is not within the physical memory"));
        }
        if size > 1 << 46 || !size.is_multiple_of(DEVICE_PAGE) {
            return Err(untrusted("the size is not a valid size of physical memory"));
        }
        let context = self.context_for(fingerprint)?;
        let _current = context.enter()?;
        let physical = match (&request.fd, fabric) {
            (Some(fd), _) => PhysicalMemory::from_fd(&context, std::os::fd::AsFd::as_fd(fd)),
            (None, Some(handle)) => PhysicalMemory::from_fabric(&context, handle),
            (None, None) => {
                return Err(untrusted("the handle needs a file descriptor, and none was received"));
            }
        }?;
        // The driver does not map more than the memory's size.
        let (address, granted) = Self::map(&context, physical, size, request.access)?;
        let base = usize::try_from(address).ok().and_then(Address::new);
        let base = base.ok_or(Error::OutOfMemory { size, owner: "this process's addresses", native: 0 })?;
        address_map::add(MemoryOrigin::Imported, base, size, &context);
        let opened = OpenImport::Mapped { context: Arc::clone(&context), size };
        IMPORTS.lock().get_or_insert_default().by_base.entry(base.to_bits()).or_default().push(opened);
        let mut imported = Imported::device(base, size);
        imported.read_only = granted == Access::ReadOnly;
        Ok(imported)
    }

    fn open_legacy(&self, request: &ImportRequest, fingerprint: u64) -> Result<Imported> {
        let untrusted = |why| Error::Untrusted { why };
        let native = request.native.get(..request.native_len).unwrap_or_default();
        let handle = <[u8; 64]>::try_from(native);
        let handle = handle.map_err(|_| untrusted("the native bytes are not those of the driver"))?;
        if request.fd.is_some() || request.size == 0 {
            return Err(untrusted("a 64-byte handle must have at least one byte, and no file descriptor"));
        }
        let context = self.context_for(fingerprint)?;
        let current = context.enter()?;
        if let Some(allocation) = address_map::find_exported_handle(&handle) {
            let found = size_from(&current, allocation.address)?;
            let base = requested_base(allocation.address, found, request)?;
            address_map::add(MemoryOrigin::Imported, base, request.size, &context);
            let opened = OpenImport::Local { allocation };
            IMPORTS.lock().get_or_insert_default().by_base.entry(base.to_bits()).or_default().push(opened);
            return Ok(Imported::device(base, request.size));
        }
        // Held until the driver has opened the handle: it does so once per process.
        let mut locked = IMPORTS.lock();
        let table = locked.get_or_insert_default();
        let opened = OpenImport::Legacy { handle };
        let base = match table.legacy.get_mut(&handle) {
            Some(mapping) => {
                let base = requested_base(mapping.address, mapping.size, request)?;
                mapping.count += 1;
                base
            }
            None => {
                let mut address = 0;
                let wanted = CUipcMemHandle { reserved: handle };
                // SAFETY: the pointer to the result is valid; the driver validates the bytes.
                unsafe {
                    let flags = CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS;
                    current
                        .api()
                        .cuIpcOpenMemHandle(&raw mut address, wanted, flags)
                        .map_err(driver_error)?;
                }
                let size = size_from(&current, address);
                let base = size.and_then(|size| Ok((size, requested_base(address, size, request)?)));
                let (size, base) = base.inspect_err(|_| {
                    // SAFETY: opened above, and not returned.
                    let _ = unsafe { current.api().cuIpcCloseMemHandle(address) };
                })?;
                table
                    .legacy
                    .insert(handle, IpcMapping { context: Arc::clone(&context), address, size, count: 1 });
                base
            }
        };
        table.by_base.entry(base.to_bits()).or_default().push(opened);
        drop(locked);
        address_map::add(MemoryOrigin::Imported, base, request.size, &context);
        Ok(Imported::device(base, request.size))
    }
}

/// Returns the bytes of an allocation from an address to its end.
fn size_from(current: &crate::context::Current<'_>, address: CUdeviceptr) -> Result<usize> {
    let (mut base, mut size) = (0, 0);
    // SAFETY: the pointers to the results are valid for writes.
    unsafe { current.api().cuMemGetAddressRange(&raw mut base, &raw mut size, address) }
        .map_err(driver_error)?;
    Ok(usize::try_from(address.saturating_sub(base)).map_or(0, |before| size.saturating_sub(before)))
}

/// Returns the base of the requested range in an allocation of `size` bytes at `address`.
fn requested_base(address: CUdeviceptr, size: usize, request: &ImportRequest) -> Result<Address> {
    let untrusted = Error::Untrusted { why: "the range is not within the allocation" };
    let offset = usize::try_from(request.offset).map_err(|_| untrusted)?;
    if offset.checked_add(request.size).is_none_or(|end| end > size) {
        return Err(untrusted);
    }
    usize::try_from(address).ok().and_then(|start| Address::new(start.checked_add(offset)?)).ok_or(untrusted)
}

// SAFETY: imported memory stays mapped in this process until `release`: physical memory lives while
// any process has it mapped. None of it is declared host-accessible.
unsafe impl Import for CudaImport {
    fn kind(&self) -> ProviderKind {
        KIND
    }

    fn import(&self, request: ImportRequest) -> Result<Imported> {
        let unknown = Error::Untrusted { why: "the handle is not that of CUDA memory" };
        match handles::parse_allocation_id(request.allocation_id).ok_or(unknown)? {
            (HandleFormat::Fd, _) if request.fd.is_none() => {
                Err(Error::Untrusted { why: "the handle needs a file descriptor, and none was received" })
            }
            (HandleFormat::Fabric, _) if request.fd.is_some() => Err(unknown),
            (HandleFormat::Fd | HandleFormat::Fabric, fingerprint) => {
                self.open_physical(&request, fingerprint)
            }
            (HandleFormat::Legacy, fingerprint) => self.open_legacy(&request, fingerprint),
        }
    }

    fn transfer(&self) -> Option<&dyn Transfer> {
        Some(&Copier::OF_IMPORTS)
    }

    unsafe fn release(&self, imported: Imported) -> Result<()> {
        let key = imported.base.to_bits();
        let opened = take_import(key)
            .ok_or(Error::ForeignAddress { address: imported.base, owner: "the CUDA importer" })?;
        address_map::remove(MemoryOrigin::Imported, imported.base);
        let closed = match &opened {
            // Unmapping works without a current context.
            OpenImport::Mapped { context, size } => {
                let _current = context.enter().ok();
                virtual_memory::unmap(context, imported.base.value(), *size)
                    .and_then(|()| virtual_memory::release_addresses(context, imported.base.value(), *size))
            }
            OpenImport::Legacy { handle } => close_legacy(handle),
            OpenImport::Local { .. } => Ok(()),
        };
        match closed {
            // A destroyed context or a forked child has nothing left to release.
            Err(error) if !crate::heap::is_gone(&error) && !matches!(error, Error::Frozen { .. }) => {
                if let Ok(context) = context_of(&opened) {
                    address_map::add(MemoryOrigin::Imported, imported.base, imported.size, &context);
                }
                IMPORTS.lock().get_or_insert_default().by_base.entry(key).or_default().push(opened);
                Err(error)
            }
            _ => Ok(()),
        }
    }
}

/// Removes one import at a base address.
fn take_import(base: u64) -> Option<OpenImport> {
    let mut table = IMPORTS.lock();
    let table = table.as_mut()?;
    let imports = table.by_base.get_mut(&base)?;
    let opened = imports.pop();
    if imports.is_empty() {
        table.by_base.remove(&base);
    }
    opened
}

/// Returns the context of an import.
fn context_of(opened: &OpenImport) -> Result<Arc<Context>> {
    let released = Error::Untrusted { why: "the import was released" };
    match opened {
        OpenImport::Mapped { context, .. } => Ok(Arc::clone(context)),
        OpenImport::Local { allocation } => Ok(Arc::clone(allocation.context())),
        OpenImport::Legacy { handle } => {
            let table = IMPORTS.lock();
            let known = table.as_ref().and_then(|table| table.legacy.get(handle));
            known.map(|known| Arc::clone(&known.context)).ok_or(released)
        }
    }
}

/// Closes one import of a 64-byte handle; the last one closes the driver's mapping. After an error
/// it is still open.
fn close_legacy(handle: &[u8; 64]) -> Result<()> {
    let mut locked = IMPORTS.lock();
    let Some(table) = locked.as_mut() else { return Ok(()) };
    let Some(mapping) = table.legacy.get_mut(handle) else { return Ok(()) };
    if mapping.count > 1 {
        mapping.count -= 1;
        return Ok(());
    }
    // With the lock held, so that no thread opens the handle before it is closed.
    let closed = mapping.context.enter().and_then(|current| {
        // SAFETY: the driver opened it, and its last import is being released.
        unsafe { current.api().cuIpcCloseMemHandle(mapping.address) }.map_err(driver_error)
    });
    let removed = if closed.as_ref().is_err_and(|error| !crate::heap::is_gone(error)) {
        None
    } else {
        table.legacy.remove(handle)
    };
    drop(locked);
    // Without the lock: this may drop the last reference to the context.
    drop(removed);
    closed
}
