//! [`LevelZeroImport`]: opens device memory that another process exported, and checks it.

use std::os::fd::OwnedFd;
use std::sync::Arc;

use level_zero_sys::ZE_MEMORY_TYPE_DEVICE;
use umf_core::{Address, Error, Import, ImportRequest, Imported, ProviderKind, Result, Transfer};
use umf_sync::Lock;

use crate::context::{self, DeviceSelector};
use crate::copy_engine::{CopyEngine, NO_DEVICE};
use crate::handles;
use crate::native::{self, driver_error};

/// The kind of provider.
pub(crate) const KIND: ProviderKind = match ProviderKind::new("level-zero") {
    Some(kind) => kind,
    None => panic!("a valid name"),
};

/// An importer of device memory that another process exported, for a device of this process. Needs
/// no provider.
///
/// The importer checks what it received. Before the driver gets an fd, it has to be a dma-buf or a
/// memfd sealed against shrinking. What the driver opened has to be device memory of at least the
/// handle's size. The bytes of a driver's own handle are validated by the driver alone.
///
/// A driver may map an allocation once for several opens. The importer counts them, and closes the
/// mapping with the last release. Level Zero has no read-only mappings: a read-only import is
/// advisory.
///
/// Thread-safe. In a forked child every import fails, and imports of the parent are gone.
#[derive(Debug)]
pub struct LevelZeroImport(EngineSource);

#[derive(Debug)]
enum EngineSource {
    /// The engine of a provider.
    Provider(Arc<CopyEngine>),
    /// An engine in [`ENGINES`], created by the first import.
    Selected(DeviceSelector),
}

/// The engines of importers without a provider. They stay while imports are open, which are closed
/// through them, and until [`release_unused`].
static ENGINES: Lock<Vec<(DeviceSelector, Arc<CopyEngine>)>> = Lock::new(Vec::new());

impl LevelZeroImport {
    /// Returns an importer for this device. The first import initializes the driver.
    #[must_use]
    pub const fn new(device: DeviceSelector) -> Self {
        Self(EngineSource::Selected(device))
    }

    pub(crate) const fn for_provider(engine: Arc<CopyEngine>) -> Self {
        Self(EngineSource::Provider(engine))
    }

    /// Returns the engine if it exists.
    fn existing_engine(&self) -> Option<Arc<CopyEngine>> {
        match &self.0 {
            EngineSource::Provider(engine) => Some(Arc::clone(engine)),
            EngineSource::Selected(device) => find_engine(&ENGINES.lock(), device),
        }
    }

    /// Returns the engine, created on first use.
    fn engine(&self) -> Result<Arc<CopyEngine>> {
        if let Some(engine) = self.existing_engine() {
            return Ok(engine);
        }
        let EngineSource::Selected(device) = &self.0 else {
            return Err(Error::Frozen { what: "Level Zero memory" });
        };
        // Without the lock: initializing a driver can take seconds.
        let created = Arc::new(CopyEngine::select(device)?);
        let mut engines = ENGINES.lock();
        if let Some(engine) = find_engine(&engines, device) {
            return Ok(engine);
        }
        engines.push((device.clone(), Arc::clone(&created)));
        Ok(created)
    }

    /// Returns the engine that copies imported memory. Without an engine there are no imports.
    fn engine_for_copy(&self, address: Address) -> Result<Arc<CopyEngine>> {
        let foreign =
            Error::ForeignAddress { address, owner: "the Level Zero importer, which has no open imports" };
        self.existing_engine().ok_or(foreign)
    }
}

/// Destroys the driver's objects that this process keeps for later use and does not use now: command
/// lists of importers without open imports, and contexts without providers. Providers and importers
/// create them again on their next use.
///
/// Without this call they stay until the process exits. It is for programs that exit under a leak
/// checker of the driver. Thread-safe.
pub fn release_unused() {
    let unused = |(_, engine): &mut (DeviceSelector, Arc<CopyEngine>)| {
        Arc::strong_count(engine) == 1 && !engine.context().address_map.lock().has_imports()
    };
    let unused: Vec<_> = ENGINES.lock().extract_if(.., unused).collect();
    drop(unused);
    context::release_unused();
}

fn find_engine(
    engines: &[(DeviceSelector, Arc<CopyEngine>)],
    device: &DeviceSelector,
) -> Option<Arc<CopyEngine>> {
    let matches = |(selector, engine): &&(DeviceSelector, Arc<CopyEngine>)| {
        selector == device && engine.context().is_usable()
    };
    engines.iter().find(matches).map(|(_, engine)| Arc::clone(engine))
}

/// Opens a handle, and checks the memory behind it.
fn open(engine: &CopyEngine, request: &ImportRequest, fd: Option<&OwnedFd>) -> Result<Imported> {
    let context = engine.context();
    if engine.device().is_none() {
        return Err(NO_DEVICE);
    }
    let bytes = handles::handle_from_request(context, fd, &request.native, request.native_len)?;
    // The lock is held from the driver's open until the import is counted. Otherwise another thread
    // could close the same mapping in between.
    let mut address_map = context.address_map.lock();
    let base = native::open_ipc_handle(context, engine.device().handle, bytes).map_err(driver_error)?;
    let base =
        base.ok_or(Error::Untrusted { why: "the driver returned an invalid address for the handle" })?;
    let checked = match check(engine, base, request.size) {
        Ok(size) => size,
        Err(error) => {
            if !address_map.is_imported(base) {
                // The error of `check` is the one to report.
                let _ = native::close_ipc_handle(context, base);
            }
            return Err(error);
        }
    };
    address_map.add_import(base, checked);
    Ok(Imported::device(base, checked))
}

/// Checks that opened memory is device memory of at least `wanted` bytes. Returns its size in
/// bytes.
fn check(engine: &CopyEngine, base: Address, wanted: usize) -> Result<usize> {
    let context = engine.context();
    if native::allocation_info(context, base).map_err(driver_error)?.kind != ZE_MEMORY_TYPE_DEVICE {
        return Err(Error::Untrusted { why: "the opened memory is not device memory" });
    }
    let (start, size) = native::address_range(context, base)
        .map_err(driver_error)?
        .ok_or(Error::Untrusted { why: "the driver does not know the size of the opened memory" })?;
    let before = base.offset_from(start).and_then(|before| usize::try_from(before).ok());
    match before.and_then(|before| size.checked_sub(before)) {
        Some(size) if size >= wanted => Ok(size),
        _ => Err(Error::Untrusted { why: "the opened memory is smaller than the size in the handle" }),
    }
}

// SAFETY: the driver keeps imported memory mapped until `release`, even if the exporter frees it or
// exits. `Imported::device` declares that the CPU must not access it.
unsafe impl Import for LevelZeroImport {
    fn kind(&self) -> ProviderKind {
        KIND
    }

    fn import(&self, mut request: ImportRequest) -> Result<Imported> {
        let engine = self.engine()?;
        engine.context().check()?;
        if request.offset != 0 || request.size == 0 {
            return Err(Error::Untrusted { why: "a Level Zero handle refers to a whole allocation" });
        }
        // Closed on return: the driver holds its own reference to the memory.
        let fd = request.fd.take();
        open(&engine, &request, fd.as_ref())
    }

    fn transfer(&self) -> Option<&dyn Transfer> {
        Some(self)
    }

    unsafe fn release(&self, imported: Imported) -> Result<()> {
        let foreign = Error::ForeignAddress { address: imported.base, owner: "the Level Zero importer" };
        let Some(engine) = self.existing_engine() else {
            // Imported before a fork: the driver does not work in the child.
            return Ok(());
        };
        let context = engine.context();
        if !context.is_usable() {
            return Ok(());
        }
        let mut address_map = context.address_map.lock();
        if address_map.remove_import(imported.base).ok_or(foreign)? {
            native::close_ipc_handle(context, imported.base).map_err(driver_error)?;
        }
        Ok(())
    }
}

impl Transfer for LevelZeroImport {
    unsafe fn read(&self, from: Address, into: &mut [u8]) -> Result<()> {
        // SAFETY: the caller upholds the same contract, here and below.
        unsafe { self.engine_for_copy(from)?.read(from, into) }
    }

    unsafe fn write(&self, to: Address, bytes: &[u8]) -> Result<()> {
        // SAFETY: as above.
        unsafe { self.engine_for_copy(to)?.write(to, bytes) }
    }

    unsafe fn fill(&self, to: Address, size: usize, byte: u8) -> Result<()> {
        // SAFETY: as above.
        unsafe { self.engine_for_copy(to)?.fill(to, size, byte) }
    }

    unsafe fn copy(&self, from: Address, to: Address, size: usize) -> Result<()> {
        // SAFETY: as above.
        unsafe { self.engine_for_copy(to)?.copy(from, to, size) }
    }
}
