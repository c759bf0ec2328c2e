//! [`CudaImport`]: opens memory that another process exported.

use std::collections::{BTreeMap, HashMap};
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};

use cuda_sys::*;
use umf_core::{Access, Address, Error, Import, ImportRequest, Imported, ProviderKind, Result, Transfer};
use umf_sync::{Lock, fork};

use crate::allocated::{DEVICE_PAGE, Raw};
use crate::context::Context;
use crate::copies::Copies;
use crate::driver::{Driver, error};
use crate::form::{self, ExportForm, KIND};
use crate::live::{self, Origin};
use crate::physical::{self, Physical};

/// Opens CUDA memory that another process exported. Needs no provider; the driver is opened by the first import.
///
/// Memory is opened in the primary context of the device that it is on, found by the device's UUID, whatever its number is in this
/// process. What came along is asked of the driver, which looks at file descriptors by its kernel module alone.
///
/// A read-only import of memory kind `virtual` is one where the device can do that, and a courtesy otherwise.
///
/// Thread-safe.
#[derive(Debug)]
pub struct CudaImport {
    library: Option<PathBuf>,
    /// The fork generation in which it was made: in a child its lock is not taken.
    generation: u32,
    /// The contexts of devices, by fingerprint. A provider's own is there from the beginning.
    contexts: Mutex<HashMap<u64, Arc<Context>>>,
}

/// What is open here.
enum Opened {
    /// Physical memory, mapped at addresses of its own.
    Mapped { context: Arc<Context>, size: usize },
    /// What the driver opened once, and how often it is in use.
    Legacy { handle: [u8; 64] },
    /// Memory of this very process.
    Own { raw: Arc<Raw> },
}

/// A handle that the driver has open.
struct Legacy {
    context: Arc<Context>,
    address: CUdeviceptr,
    size: usize,
    count: usize,
}

#[derive(Default)]
struct Table {
    /// By where they begin; several where a handle was opened more than once.
    by_base: BTreeMap<u64, Vec<Opened>>,
    legacy: HashMap<[u8; 64], Legacy>,
}

static TABLE: Lock<Option<Table>> = Lock::new(None);

impl CudaImport {
    /// An importer over `libcuda.so.1`, or the library at `path`.
    #[must_use]
    pub fn new(path: Option<PathBuf>) -> Self {
        Self { library: path, generation: fork::generation(), contexts: Mutex::default() }
    }

    pub(crate) fn in_context(context: Arc<Context>, library: Option<PathBuf>) -> Self {
        let known = HashMap::from([(form::fingerprint(context.uuid()), context)]);
        Self { library, generation: fork::generation(), contexts: Mutex::new(known) }
    }

    /// The context for memory of the device with this fingerprint.
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

    /// The primary context of the device with this fingerprint.
    fn find_context(&self, fingerprint: u64) -> Result<Arc<Context>> {
        let driver = Driver::open(self.library.as_deref())?;
        for ordinal in 0..driver.devices()? {
            if form::fingerprint(driver.uuid(driver.handle_of(ordinal)?)?) == fingerprint {
                return Ok(Arc::new(Context::primary(driver, ordinal)?));
            }
        }
        Err(Error::NotSupported {
            what: "memory of a device that this process does not see (look at CUDA_VISIBLE_DEVICES)",
            owner: "the CUDA driver in this process",
            native: 0,
        })
    }

    /// Maps physical memory at addresses of its own.
    fn map(
        context: &Arc<Context>,
        made: Physical,
        size: usize,
        access: Access,
    ) -> Result<(CUdeviceptr, Access)> {
        // What is mapped keeps the memory.
        let mapped = physical::reserve(context, size, 0).and_then(|address| {
            let devices = core::iter::once(context.device());
            let mapped = made.map(context, address, size, devices, access);
            mapped.map(|granted| (address, granted)).inspect_err(|_| {
                let _ = physical::give_back(context, address, size);
            })
        });
        let released = made.release(context);
        let (address, granted) = mapped?;
        if let Err(error) = released {
            let _ = physical::unmap(context, address, size);
            let _ = physical::give_back(context, address, size);
            return Err(error);
        }
        Ok((address, granted))
    }

    fn open_physical(&self, request: &ImportRequest, fingerprint: u64) -> Result<Imported> {
        let untrusted = |why| Error::Untrusted { why };
        let native = request.native.get(..request.native_len).unwrap_or_default();
        let (size, fabric) = match &request.fd {
            Some(_) => {
                let (uuid, size) = form::read_with_fd(native)?;
                if form::fingerprint(uuid) != fingerprint {
                    return Err(untrusted("the handle names two devices"));
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
            return Err(untrusted("the range is not that of the physical memory"));
        }
        if size > 1 << 46 || !size.is_multiple_of(DEVICE_PAGE) {
            return Err(untrusted("the size is not one of physical memory"));
        }
        let context = self.context_for(fingerprint)?;
        let _current = context.enter()?;
        let made = match (&request.fd, fabric) {
            (Some(fd), _) => Physical::of_fd(&context, std::os::fd::AsFd::as_fd(fd)),
            (None, Some(handle)) => Physical::of_fabric(&context, handle),
            (None, None) => return Err(untrusted("no file descriptor came along")),
        }?;
        // The driver refuses to map more than there is.
        let (address, granted) = Self::map(&context, made, size, request.access)?;
        let base = usize::try_from(address).ok().and_then(Address::new);
        let base = base.ok_or(Error::OutOfMemory { size, owner: "this process's addresses", native: 0 })?;
        live::add(Origin::Imported, base, size, &context);
        let opened = Opened::Mapped { context: Arc::clone(&context), size };
        TABLE.lock().get_or_insert_default().by_base.entry(base.to_bits()).or_default().push(opened);
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
            return Err(untrusted("such memory has no file descriptor, and at least one byte"));
        }
        let context = self.context_for(fingerprint)?;
        let current = context.enter()?;
        if let Some(raw) = live::find_handle(&handle) {
            let found = range_of(&current, raw.address)?;
            let base = part(raw.address, found, request)?;
            live::add(Origin::Imported, base, request.size, &context);
            let opened = Opened::Own { raw };
            TABLE.lock().get_or_insert_default().by_base.entry(base.to_bits()).or_default().push(opened);
            return Ok(Imported::device(base, request.size));
        }
        // Held while the driver opens it: once is all that it does.
        let mut locked = TABLE.lock();
        let table = locked.get_or_insert_default();
        let opened = Opened::Legacy { handle };
        let base = match table.legacy.get_mut(&handle) {
            Some(known) => {
                let base = part(known.address, known.size, request)?;
                known.count += 1;
                base
            }
            None => {
                let mut address = 0;
                let wanted = CUipcMemHandle { reserved: handle };
                // SAFETY: a place for the answer; the driver looks at the bytes.
                unsafe {
                    let flags = CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS;
                    current.api().cuIpcOpenMemHandle(&raw mut address, wanted, flags).map_err(error)?;
                }
                let size = range_of(&current, address);
                let base = size.and_then(|size| Ok((size, part(address, size, request)?)));
                let (size, base) = base.inspect_err(|_| {
                    // SAFETY: opened above.
                    let _ = unsafe { current.api().cuIpcCloseMemHandle(address) };
                })?;
                table
                    .legacy
                    .insert(handle, Legacy { context: Arc::clone(&context), address, size, count: 1 });
                base
            }
        };
        table.by_base.entry(base.to_bits()).or_default().push(opened);
        drop(locked);
        live::add(Origin::Imported, base, request.size, &context);
        Ok(Imported::device(base, request.size))
    }
}

/// How many bytes the allocation at an address has.
fn range_of(current: &crate::context::Current<'_>, address: CUdeviceptr) -> Result<usize> {
    let (mut base, mut size) = (0, 0);
    // SAFETY: places for the answers.
    unsafe { current.api().cuMemGetAddressRange(&raw mut base, &raw mut size, address) }.map_err(error)?;
    Ok(usize::try_from(address.saturating_sub(base)).map_or(0, |before| size.saturating_sub(before)))
}

/// Where what is asked for lies in an allocation of `size` bytes at `address`.
fn part(address: CUdeviceptr, size: usize, request: &ImportRequest) -> Result<Address> {
    let untrusted = Error::Untrusted { why: "the range is not inside of the allocation" };
    let offset = usize::try_from(request.offset).map_err(|_| untrusted)?;
    if offset.checked_add(request.size).is_none_or(|end| end > size) {
        return Err(untrusted);
    }
    usize::try_from(address).ok().and_then(|start| Address::new(start.checked_add(offset)?)).ok_or(untrusted)
}

// SAFETY: what is opened is mapped in this process until `release`, whatever its exporter does: physical memory lives as long as
// anyone has it mapped. None of it is host-accessible.
unsafe impl Import for CudaImport {
    fn kind(&self) -> ProviderKind {
        KIND
    }

    fn import(&self, request: ImportRequest) -> Result<Imported> {
        let unknown = Error::Untrusted { why: "the handle is not one of CUDA memory" };
        match form::form_of(request.allocation_id).ok_or(unknown)? {
            (ExportForm::Fd, _) if request.fd.is_none() => {
                Err(Error::Untrusted { why: "no file descriptor came along" })
            }
            (ExportForm::Fabric, _) if request.fd.is_some() => Err(unknown),
            (ExportForm::Fd | ExportForm::Fabric, fingerprint) => self.open_physical(&request, fingerprint),
            (ExportForm::Legacy, fingerprint) => self.open_legacy(&request, fingerprint),
        }
    }

    fn transfer(&self) -> Option<&dyn Transfer> {
        Some(&Copies::OF_IMPORTS)
    }

    unsafe fn release(&self, imported: Imported) -> Result<()> {
        let key = imported.base.to_bits();
        let opened =
            take(key).ok_or(Error::ForeignAddress { address: imported.base, owner: "the CUDA importer" })?;
        live::remove(Origin::Imported, imported.base);
        let closed = match &opened {
            // Mappings belong to no context: they can go without.
            Opened::Mapped { context, size } => {
                let _current = context.enter().ok();
                physical::unmap(context, imported.base.value(), *size)
                    .and_then(|()| physical::give_back(context, imported.base.value(), *size))
            }
            Opened::Legacy { handle } => close(handle),
            Opened::Own { .. } => Ok(()),
        };
        match closed {
            // (With a context that is gone, or in a forked child, there is nothing left to release.)
            Err(error) if !crate::allocated::is_gone(&error) && !matches!(error, Error::Frozen { .. }) => {
                if let Ok(context) = context_of(&opened) {
                    live::add(Origin::Imported, imported.base, imported.size, &context);
                }
                TABLE.lock().get_or_insert_default().by_base.entry(key).or_default().push(opened);
                Err(error)
            }
            _ => Ok(()),
        }
    }
}

/// One of those that begin there.
fn take(base: u64) -> Option<Opened> {
    let mut table = TABLE.lock();
    let table = table.as_mut()?;
    let there = table.by_base.get_mut(&base)?;
    let opened = there.pop();
    if there.is_empty() {
        table.by_base.remove(&base);
    }
    opened
}

/// In which context it is open.
fn context_of(opened: &Opened) -> Result<Arc<Context>> {
    let gone = Error::Untrusted { why: "it is not open any more" };
    match opened {
        Opened::Mapped { context, .. } => Ok(Arc::clone(context)),
        Opened::Own { raw } => Ok(Arc::clone(raw.context())),
        Opened::Legacy { handle } => {
            let table = TABLE.lock();
            let known = table.as_ref().and_then(|table| table.legacy.get(handle));
            known.map(|known| Arc::clone(&known.context)).ok_or(gone)
        }
    }
}

/// Closes a handle, if nobody else in this process has it open. After an error it is still open.
fn close(handle: &[u8; 64]) -> Result<()> {
    let mut locked = TABLE.lock();
    let Some(table) = locked.as_mut() else { return Ok(()) };
    let Some(known) = table.legacy.get_mut(handle) else { return Ok(()) };
    if known.count > 1 {
        known.count -= 1;
        return Ok(());
    }
    // With the lock, so that nobody opens it before it is closed.
    let closed = known.context.enter().and_then(|current| {
        // SAFETY: the driver opened it, and nobody uses it any more.
        unsafe { current.api().cuIpcCloseMemHandle(known.address) }.map_err(error)
    });
    let removed = if closed.as_ref().is_err_and(|error| !crate::allocated::is_gone(error)) {
        None
    } else {
        table.legacy.remove(handle)
    };
    drop(locked);
    // Without the lock: it may be the last to have its context.
    drop(removed);
    closed
}
