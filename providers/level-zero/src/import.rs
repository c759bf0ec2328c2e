//! [`LevelZeroImport`]: opens device memory that another process exported.

use std::os::fd::OwnedFd;
use std::sync::Arc;

use level_zero_sys::ZE_MEMORY_TYPE_DEVICE;
use umf_core::{Address, Error, Import, ImportRequest, Imported, ProviderKind, Result, Transfer};
use umf_sync::Lock;

use crate::context::Choice;
use crate::engine::{Engine, WITHOUT_DEVICE};
use crate::failure::error;
use crate::handles;
use crate::native;

/// The kind of provider.
pub(crate) const KIND: ProviderKind = match ProviderKind::new("level-zero") {
    Some(kind) => kind,
    None => panic!("a valid name"),
};

/// Opens device memory that another process exported, for a device of this one. Needs no provider.
///
/// What comes along is checked: an fd has to be a dma-buf or a memfd that cannot shrink before the driver gets it, and what the
/// driver opened has to be device memory of at least the size that the handle says. What the bytes of a driver's own handle
/// mean only the driver knows.
///
/// The driver may open one allocation once however often it is asked; it is closed with the last. Who may write is not limited:
/// a read-only import is a courtesy. Thread-safe. In a forked child nothing is opened, and what the parent opened is gone.
#[derive(Debug)]
pub struct LevelZeroImport(Source);

#[derive(Debug)]
enum Source {
    /// The provider's.
    Engine(Arc<Engine>),
    /// Started when it is needed.
    Choice(Choice),
}

/// The devices that importers were told to use. They stay: what is open in them has to be closed by them.
static ENGINES: Lock<Vec<(Choice, Arc<Engine>)>> = Lock::new(Vec::new());

impl LevelZeroImport {
    /// An importer for this device. The driver is started when the first handle is opened.
    #[must_use]
    pub const fn new(device: Choice) -> Self {
        Self(Source::Choice(device))
    }

    pub(crate) const fn of(engine: Arc<Engine>) -> Self {
        Self(Source::Engine(engine))
    }

    /// The device, if it was started.
    fn started(&self) -> Option<Arc<Engine>> {
        match &self.0 {
            Source::Engine(engine) => Some(Arc::clone(engine)),
            Source::Choice(choice) => {
                let engines = ENGINES.lock();
                let is_it =
                    |(of, engine): &&(Choice, Arc<Engine>)| of == choice && engine.context().belongs_here();
                engines.iter().find(is_it).map(|(_, engine)| Arc::clone(engine))
            }
        }
    }

    fn engine(&self) -> Result<Arc<Engine>> {
        if let Some(engine) = self.started() {
            return Ok(engine);
        }
        let Source::Choice(choice) = &self.0 else { return Err(Error::Frozen { what: "Level Zero memory" }) };
        // Not under the lock: the driver takes its time.
        let made = Arc::new(Engine::chosen(choice)?);
        let mut engines = ENGINES.lock();
        let same = |(of, engine): &&(Choice, Arc<Engine>)| of == choice && engine.context().belongs_here();
        if let Some((_, engine)) = engines.iter().find(same) {
            return Ok(Arc::clone(engine));
        }
        engines.push((choice.clone(), Arc::clone(&made)));
        Ok(made)
    }

    /// A device for copies: addresses that were never opened are nobody's.
    fn copier(&self, of: Address) -> Result<Arc<Engine>> {
        let nobody =
            Error::ForeignAddress { address: of, owner: "the Level Zero importer, which opened nothing" };
        self.started().ok_or(nobody)
    }
}

/// Opens a handle, and checks what was opened.
fn open(engine: &Engine, request: &ImportRequest, fd: Option<&OwnedFd>) -> Result<Imported> {
    let context = engine.context();
    if engine.device().is_absent() {
        return Err(WITHOUT_DEVICE);
    }
    let bytes = handles::import(context, fd, &request.native, request.native_len)?;
    // The driver's answer and what is known of it are one: else another thread might close the address in between.
    let mut ranges = context.ranges.lock();
    let base = native::handle::open(context, engine.device().handle, bytes).map_err(error)?;
    let base = base.ok_or(Error::Untrusted { why: "the driver opened it where no address can be" })?;
    let checked = match check(engine, base, request.size) {
        Ok(size) => size,
        Err(error) => {
            if !ranges.is_opened(base) {
                // What it says of that is of no more use.
                let _ = native::handle::close(context, base);
            }
            return Err(error);
        }
    };
    ranges.open(base, checked);
    Ok(Imported::device(base, checked))
}

/// How many bytes there are at what was opened, if it is what it should be.
fn check(engine: &Engine, base: Address, wanted: usize) -> Result<usize> {
    let context = engine.context();
    if native::memory::facts(context, base).map_err(error)?.kind != ZE_MEMORY_TYPE_DEVICE {
        return Err(Error::Untrusted { why: "the driver says that it is no device memory" });
    }
    let (start, size) = native::memory::extent(context, base)
        .map_err(error)?
        .ok_or(Error::Untrusted { why: "the driver does not know how large it is" })?;
    let before = base.offset_from(start).and_then(|before| usize::try_from(before).ok());
    match before.and_then(|before| size.checked_sub(before)) {
        Some(size) if size >= wanted => Ok(size),
        _ => Err(Error::Untrusted { why: "it is smaller than its handle says" }),
    }
}

// SAFETY: what is opened stays as long as it is open: the driver keeps the memory, whatever its exporter does. The CPU is told
// not to touch it.
unsafe impl Import for LevelZeroImport {
    fn kind(&self) -> ProviderKind {
        KIND
    }

    fn import(&self, mut request: ImportRequest) -> Result<Imported> {
        let engine = self.engine()?;
        engine.context().check()?;
        if request.offset != 0 || request.size == 0 {
            return Err(Error::Untrusted { why: "a Level Zero handle names whole allocations" });
        }
        // Closed when the driver has what it needs of it.
        let fd = request.fd.take();
        open(&engine, &request, fd.as_ref())
    }

    fn transfer(&self) -> Option<&dyn Transfer> {
        Some(self)
    }

    unsafe fn release(&self, imported: Imported) -> Result<()> {
        let foreign = Error::ForeignAddress { address: imported.base, owner: "the Level Zero importer" };
        let Some(engine) = self.started() else {
            // A parent's: the driver does not come through forks.
            return Ok(());
        };
        let context = engine.context();
        if !context.belongs_here() {
            return Ok(());
        }
        let mut ranges = context.ranges.lock();
        if ranges.close(imported.base).ok_or(foreign)? {
            native::handle::close(context, imported.base).map_err(error)?;
        }
        Ok(())
    }
}

impl Transfer for LevelZeroImport {
    unsafe fn read(&self, from: Address, into: &mut [u8]) -> Result<()> {
        // SAFETY: passed on to the caller, here and below.
        unsafe { self.copier(from)?.read(from, into) }
    }

    unsafe fn write(&self, to: Address, bytes: &[u8]) -> Result<()> {
        // SAFETY: as above.
        unsafe { self.copier(to)?.write(to, bytes) }
    }

    unsafe fn fill(&self, to: Address, size: usize, byte: u8) -> Result<()> {
        // SAFETY: as above.
        unsafe { self.copier(to)?.fill(to, size, byte) }
    }

    unsafe fn copy(&self, from: Address, to: Address, size: usize) -> Result<()> {
        // SAFETY: as above.
        unsafe { self.copier(to)?.copy(from, to, size) }
    }
}
