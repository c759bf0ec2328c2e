//! Memory of devices: pools over CUDA and Level Zero, copies to and from the host, the device of a
//! block or mapping, and `__cuda_array_interface__`.

use std::ffi::c_void;
use std::sync::{Arc, Mutex, PoisonError, Weak};

use pyo3::exceptions::{PyAttributeError, PyBufferError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyDict};
use umf::cuda::{CudaMemory, CudaProvider, CudaSettings, Driver, driver_api};
use umf::level_zero::{DeviceSelector, LevelZeroProvider, LevelZeroSettings};
use umf::{Completion, MemoryKind, OwnedBlock, Progress};

use crate::call::contiguous;
use crate::errors::{NotSupportedError, argument, from_umf};
use crate::fork::KeepForChildren;
use crate::handle::{Contents, Mapping};
use crate::memory::Keeper;
use crate::pool::{Block, Pool};

/// Returns the exception for a buffer request of device memory.
pub(crate) fn no_buffer(error: umf::Error) -> PyErr {
    match error {
        umf::Error::Inaccessible(_) | umf::Error::Ipc(umf::ipc::Error::NotHostAccessible) => {
            PyBufferError::new_err(
                "cannot make a buffer of this memory: it is on a device, and the CPU cannot access it; copy it \
                 with to_host() and from_host(), or pass it to a library of the device by DLPack",
            )
        }
        error => from_umf(error),
    }
}

/// Providers that Python programs have made.
static PROVIDERS: Mutex<Vec<DeviceProvider>> = Mutex::new(Vec::new());

#[derive(Clone)]
enum DeviceProvider {
    Cuda(Weak<CudaProvider>),
    /// With the number of its device.
    LevelZero(Weak<LevelZeroProvider>, i32),
}

fn remember(made: DeviceProvider) {
    let mut providers = PROVIDERS.lock().unwrap_or_else(PoisonError::into_inner);
    providers.retain(|provider| match provider {
        DeviceProvider::Cuda(provider) => provider.strong_count() > 0,
        DeviceProvider::LevelZero(provider, _) => provider.strong_count() > 0,
    });
    providers.push(made);
}

/// Calls `find` with the providers until it returns something.
fn find_provider<R>(find: impl Fn(&DeviceProvider) -> Option<R>) -> Option<R> {
    let providers = PROVIDERS.lock().unwrap_or_else(PoisonError::into_inner).clone();
    providers.iter().find_map(find)
}

fn cuda_provider(block: &OwnedBlock) -> Option<Arc<CudaProvider>> {
    find_provider(|provider| match provider {
        DeviceProvider::Cuda(provider) => {
            provider.upgrade().filter(|provider| block.pool().provider().is(&**provider))
        }
        DeviceProvider::LevelZero(..) => None,
    })
}

fn make_cuda(device: u32, memory: Option<CudaMemory>, resident: &[u32]) -> umf::Result<umf::Pool> {
    let settings: CudaSettings = umf::settings()?.loaded().set("provider", "cuda").read()?;
    let path = settings.path;
    let ordinal = |device: u32| i32::try_from(device).unwrap_or(i32::MAX);
    let memory = if let Some(memory) = memory {
        memory
    } else {
        let info = Driver::open(path.as_deref())?.device_info(ordinal(device))?;
        if info.has_virtual && info.has_fds { CudaMemory::Virtual } else { CudaMemory::Device }
    };
    let builder = CudaProvider::builder().memory(memory).device(ordinal(device));
    let mut builder = builder.peers(resident.iter().map(|device| ordinal(*device)));
    if let Some(path) = path {
        builder = builder.library(path);
    }
    let provider = builder.build()?;
    remember(DeviceProvider::Cuda(Arc::downgrade(&provider)));
    umf::Pool::builder().provider(provider).name("cuda").build()
}

fn make_level_zero(device: u32, driver: u32, memory: &str, resident: &[u32]) -> umf::Result<umf::Pool> {
    let mut selector = DeviceSelector::device(device).driver(driver);
    let settings: LevelZeroSettings = umf::settings()?.loaded().set("provider", "level-zero").read()?;
    if let Some(loader) = settings.path {
        selector = selector.loader(loader);
    }
    let builder = match memory {
        "host" => LevelZeroProvider::host(selector),
        "managed" => LevelZeroProvider::managed(selector),
        _ => LevelZeroProvider::device(selector),
    };
    let provider = builder.resident(resident).build()?;
    let number = i32::try_from(device).unwrap_or(i32::MAX);
    remember(DeviceProvider::LevelZero(Arc::downgrade(&provider), number));
    umf::Pool::builder().provider(provider).name("level-zero").build()
}

#[pymethods]
impl Pool {
    /// A pool of memory of a CUDA device.
    ///
    /// `memory` is "virtual" or "device" (memory of the device, which other processes can open),
    /// "host" (pinned), "managed", or "auto": "virtual" where the device has it, else "device".
    /// `resident` has the numbers of other devices that may access the memory.
    #[staticmethod]
    #[pyo3(signature = (device = 0, *, memory = "auto", resident = Vec::new()))]
    fn cuda(python: Python<'_>, device: u32, memory: &str, resident: Vec<u32>) -> PyResult<Self> {
        let memory = match memory {
            "auto" => None,
            "virtual" => Some(CudaMemory::Virtual),
            "device" => Some(CudaMemory::Device),
            "host" => Some(CudaMemory::Host),
            "managed" => Some(CudaMemory::Managed),
            _ => {
                return Err(argument("memory is \"auto\", \"virtual\", \"device\", \"host\" or \"managed\""));
            }
        };
        Self::new(python.detach(|| make_cuda(device, memory, &resident)))
    }

    /// A pool of memory of a Level Zero device, or of host memory for it.
    ///
    /// `memory` is "device" (which other processes can open), "host" or "managed". `driver` is the
    /// number of the driver, `resident` has the numbers of other devices that may access the
    /// memory.
    #[staticmethod]
    #[pyo3(signature = (device = 0, *, driver = 0, memory = "device", resident = Vec::new()))]
    fn level_zero(
        python: Python<'_>,
        device: u32,
        driver: u32,
        memory: &str,
        resident: Vec<u32>,
    ) -> PyResult<Self> {
        if !["device", "host", "managed"].contains(&memory) {
            return Err(argument("memory is \"device\", \"host\" or \"managed\""));
        }
        Self::new(python.detach(|| make_level_zero(device, driver, memory, &resident)))
    }

    /// Where the memory is: "host", "device" or "managed".
    #[getter]
    fn memory_kind(&self) -> PyResult<&'static str> {
        Ok(match self.get()?.provider().memory_kind() {
            MemoryKind::Host => "host",
            MemoryKind::Device => "device",
            MemoryKind::Managed => "managed",
            _ => "unknown",
        })
    }
}

/// The memory of a block or a mapping.
pub(crate) trait DeviceMemory: Send + Sync + 'static {
    fn base(&self) -> u64;
    fn size(&self) -> usize;
    fn for_cpu(&self) -> bool;
    fn for_reading_only(&self) -> bool;
    fn copy_out(&self, offset: usize, into: &mut [u8]) -> umf::Result<()>;
    fn copy_in(&self, offset: usize, from: &[u8]) -> umf::Result<()>;
}

impl DeviceMemory for OwnedBlock {
    fn base(&self) -> u64 {
        self.address().value()
    }

    fn size(&self) -> usize {
        self.len()
    }

    fn for_cpu(&self) -> bool {
        self.pool().provider().memory_kind().is_host_accessible()
    }

    fn for_reading_only(&self) -> bool {
        false
    }

    fn copy_out(&self, offset: usize, into: &mut [u8]) -> umf::Result<()> {
        self.read(offset, into)
    }

    fn copy_in(&self, offset: usize, from: &[u8]) -> umf::Result<()> {
        self.write(offset, from)
    }
}

impl<T: DeviceMemory + KeepForChildren> DeviceMemory for Keeper<T> {
    fn base(&self) -> u64 {
        (**self).base()
    }

    fn size(&self) -> usize {
        (**self).size()
    }

    fn for_cpu(&self) -> bool {
        (**self).for_cpu()
    }

    fn for_reading_only(&self) -> bool {
        (**self).for_reading_only()
    }

    fn copy_out(&self, offset: usize, into: &mut [u8]) -> umf::Result<()> {
        (**self).copy_out(offset, into)
    }

    fn copy_in(&self, offset: usize, from: &[u8]) -> umf::Result<()> {
        (**self).copy_in(offset, from)
    }
}

impl DeviceMemory for Contents {
    fn base(&self) -> u64 {
        match self {
            Self::Open(mapping) => mapping.address().value(),
            Self::Copy(copy) => copy.start().addr() as u64,
        }
    }

    fn size(&self) -> usize {
        match self {
            Self::Open(mapping) => mapping.len(),
            Self::Copy(copy) => copy.length,
        }
    }

    fn for_cpu(&self) -> bool {
        match self {
            Self::Open(mapping) => mapping.is_host_accessible(),
            Self::Copy(_) => true,
        }
    }

    fn for_reading_only(&self) -> bool {
        match self {
            Self::Open(mapping) => mapping.is_read_only(),
            Self::Copy(_) => false,
        }
    }

    fn copy_out(&self, offset: usize, into: &mut [u8]) -> umf::Result<()> {
        match self {
            Self::Open(mapping) => Ok(mapping.read(offset, into)?),
            Self::Copy(copy) => copy.read(offset, into),
        }
    }

    fn copy_in(&self, offset: usize, from: &[u8]) -> umf::Result<()> {
        match self {
            Self::Open(mapping) => Ok(mapping.write(offset, from)?),
            Self::Copy(copy) => copy.write(offset, from),
        }
    }
}

/// Copies to a new `bytes`, or to `into`, and returns it.
fn to_host<'py, T: DeviceMemory>(
    python: Python<'py>,
    memory: &Arc<T>,
    into: Option<Bound<'py, PyAny>>,
    offset: usize,
    size: Option<usize>,
) -> PyResult<Bound<'py, PyAny>> {
    let copy = |to: &mut [u8]| {
        // Drivers know no address at the end of the memory.
        if to.is_empty() { Ok(()) } else { python.detach(|| memory.copy_out(offset, to)).map_err(from_umf) }
    };
    let Some(into) = into else {
        let rest = memory.size().checked_sub(offset);
        let length = size.or(rest).filter(|length| rest.is_some_and(|rest| *length <= rest));
        let length = length.ok_or_else(|| {
            PyValueError::new_err(format!(
                "cannot copy from offset {offset}: that is past the end of memory of {} bytes",
                memory.size()
            ))
        })?;
        return Ok(PyBytes::new_with(python, length, copy)?.into_any());
    };
    let buffer = contiguous(&into, true)?;
    if size.is_some_and(|size| size != buffer.len_bytes()) {
        return Err(argument("size is the length of the buffer, if both are given"));
    }
    let length = buffer.len_bytes();
    if length > 0 {
        // SAFETY: a writable buffer of that length, which `buffer` keeps. Python code that accesses
        // it meanwhile gets old or new bytes.
        copy(unsafe { std::slice::from_raw_parts_mut(buffer.buf_ptr().cast(), length) })?;
    }
    Ok(into)
}

fn from_host<T: DeviceMemory>(
    python: Python<'_>,
    memory: &Arc<T>,
    data: &Bound<'_, PyAny>,
    offset: usize,
) -> PyResult<()> {
    let buffer = contiguous(data, false)?;
    let from: &[u8] = match buffer.len_bytes() {
        0 if offset <= memory.size() => return Ok(()),
        0 => &[],
        // SAFETY: a buffer of that length, which `buffer` keeps.
        length => unsafe { std::slice::from_raw_parts(buffer.buf_ptr().cast(), length) },
    };
    python.detach(|| memory.copy_in(offset, from)).map_err(from_umf)
}

/// A device as DLPack numbers it: its type and its number.
pub(crate) type DlDevice = (u32, i32);

pub(crate) const CPU: DlDevice = (1, 0);
const CUDA: u32 = 2;
const CUDA_HOST: u32 = 3;
const CUDA_MANAGED: u32 = 13;
const ONE_API: u32 = 14;

/// Returns the number of the CUDA device that has an address.
fn cuda_ordinal(address: u64) -> umf::Result<i32> {
    let settings: CudaSettings = umf::settings()?.loaded().set("provider", "cuda").read()?;
    let driver = Driver::open(settings.path.as_deref())?;
    let mut ordinal = 0_i32;
    // SAFETY: the value of this attribute is an int, for which there is a valid pointer.
    let asked = unsafe {
        driver.api().cuPointerGetAttribute(
            (&raw mut ordinal).cast::<c_void>(),
            driver_api::CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL,
            address,
        )
    };
    // Memory of device 0 is most common, and the driver's answer matters only with several devices.
    Ok(if asked.is_ok() { ordinal } else { 0 })
}

/// Returns the number of the device of a set of settings of the kind `level-zero`.
fn level_zero_number(name: Option<&str>) -> umf::Result<i32> {
    let loaded = umf::settings()?.loaded();
    // As the importer of this process chooses its set.
    let first = || loaded.of_kind("provider", "level-zero").next().unwrap_or("level-zero");
    let is_declared = loaded.declares("provider", "level-zero");
    let name = name.unwrap_or_else(|| if is_declared { "level-zero" } else { first() });
    let settings: LevelZeroSettings = loaded.set("provider", name).read()?;
    Ok(i32::try_from(settings.device).unwrap_or(0))
}

fn unknown_device() -> PyErr {
    PyBufferError::new_err(
        "cannot name the device of this memory for DLPack: its provider is none of host, cuda and level-zero; copy it \
         with to_host()",
    )
}

/// Returns the device of a block.
pub(crate) fn block_device(block: &OwnedBlock) -> PyResult<DlDevice> {
    let provider = block.pool().provider();
    let kind = provider.memory_kind();
    match provider.kind().as_str() {
        "cuda" if kind == MemoryKind::Host => Ok((CUDA_HOST, 0)),
        "cuda" => {
            let known = cuda_provider(block).map(|provider| provider.device());
            let ordinal = known.map_or_else(|| cuda_ordinal(block.base()), Ok).map_err(from_umf)?;
            Ok((if kind == MemoryKind::Managed { CUDA_MANAGED } else { CUDA }, ordinal))
        }
        "level-zero" => {
            let known = find_provider(|made| match made {
                DeviceProvider::LevelZero(made, number) => {
                    made.upgrade().filter(|made| provider.is(&**made)).map(|_| *number)
                }
                DeviceProvider::Cuda(_) => None,
            });
            let number = known.map_or_else(|| level_zero_number(Some(provider.name())), Ok);
            Ok((ONE_API, number.map_err(from_umf)?))
        }
        _ if kind.is_host_accessible() => Ok(CPU),
        _ => Err(unknown_device()),
    }
}

/// Returns the device of a mapping.
pub(crate) fn mapping_device(contents: &Contents, handle: &umf::Handle) -> PyResult<DlDevice> {
    let Contents::Open(mapping) = contents else { return Ok(CPU) };
    match handle.provider_kind().as_str() {
        "cuda" => Ok((CUDA, cuda_ordinal(contents.base()).map_err(from_umf)?)),
        "level-zero" => Ok((ONE_API, level_zero_number(None).map_err(from_umf)?)),
        _ if mapping.is_host_accessible() => Ok(CPU),
        _ => Err(unknown_device()),
    }
}

/// Returns the dictionary of `__cuda_array_interface__`.
fn cuda_array<'py, T: DeviceMemory>(
    python: Python<'py>,
    memory: &T,
    (device, _): DlDevice,
) -> PyResult<Bound<'py, PyDict>> {
    if ![CUDA, CUDA_HOST, CUDA_MANAGED].contains(&device) {
        return Err(PyAttributeError::new_err(
            "__cuda_array_interface__: the memory is not CUDA memory; use a pool of Pool.cuda",
        ));
    }
    let interface = PyDict::new(python);
    interface.set_item("shape", (memory.size(),))?;
    interface.set_item("typestr", "|u1")?;
    interface.set_item("data", (memory.base(), memory.for_reading_only()))?;
    interface.set_item("version", 3)?;
    interface.set_item("strides", python.None())?;
    // Copies by umf are complete when they return, so that there is nothing to wait for.
    interface.set_item("stream", python.None())?;
    Ok(interface)
}

#[pymethods]
impl Block {
    /// Whether the CPU can access the memory.
    #[getter]
    fn is_host_accessible(&self) -> PyResult<bool> {
        self.memory.with(|block| Ok(block.for_cpu()))
    }

    /// Copies bytes of the block to the host: to a new `bytes`, or to the buffer `into`, which is
    /// returned. `size` is the rest of the block by default.
    #[pyo3(signature = (into = None, *, offset = 0, size = None))]
    fn to_host<'py>(
        &self,
        python: Python<'py>,
        into: Option<Bound<'py, PyAny>>,
        offset: usize,
        size: Option<usize>,
    ) -> PyResult<Bound<'py, PyAny>> {
        to_host(python, &self.memory.share()?, into, offset, size)
    }

    /// Copies the bytes of a buffer to `offset` in the block.
    #[pyo3(name = "from_host", signature = (data, *, offset = 0))]
    fn copy_from_host(&self, python: Python<'_>, data: &Bound<'_, PyAny>, offset: usize) -> PyResult<()> {
        from_host(python, &self.memory.share()?, data, offset)
    }

    /// Frees the block after the work that was submitted to a CUDA stream before. `stream` is the
    /// `CUstream` as an integer, 0 for the default stream. Does not wait, unless a buffer
    /// uses the memory.
    ///
    /// The driver checks no stream: a number that is none can end the process.
    fn free_after(&self, python: Python<'_>, stream: usize) -> PyResult<()> {
        let block = self.memory.share()?;
        let provider = cuda_provider(&block).ok_or_else(|| {
            NotSupportedError::new_err(
                "cannot free after a stream: the block is not of a pool of Pool.cuda; synchronize the stream, and \
                 call free()",
            )
        })?;
        drop(block);
        python.detach(|| {
            // SAFETY: the caller passes a live stream, as documented.
            let event = unsafe { provider.record_event(stream as *mut c_void) };
            let event = event.map_err(|error| from_umf(error.into()))?;
            let (kept, result): (Box<dyn Send>, _) = match self.memory.take() {
                Ok(block) => match block.free_after(Arc::clone(&event) as Arc<dyn Completion>) {
                    Ok(()) => return Ok(()),
                    Err((block, error)) => (Box::new(block), Err(from_umf(error))),
                },
                // A buffer or a forked child uses the memory, and frees it when it ends.
                Err(keeper) => (Box::new(keeper), Ok(())),
            };
            while event.progress() == Progress::Pending {
                std::thread::sleep(std::time::Duration::from_millis(1));
            }
            drop(kept);
            result
        })
    }

    #[getter]
    fn __cuda_array_interface__<'py>(&self, python: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let block = self.memory.share()?;
        let interface = cuda_array(python, &*block, block_device(&block).map_err(no_attribute)?)?;
        // Consumers keep the object and no buffer.
        self.memory.pin()?;
        Ok(interface)
    }
}

/// `hasattr` returns `False` for memory without a known device.
fn no_attribute(error: PyErr) -> PyErr {
    Python::attach(|python| {
        let is_buffer = error.is_instance_of::<PyBufferError>(python);
        if is_buffer { PyAttributeError::new_err(error.value(python).to_string()) } else { error }
    })
}

#[pymethods]
impl Mapping {
    /// Whether the CPU can access the memory.
    #[getter]
    fn is_host_accessible(&self) -> PyResult<bool> {
        self.memory.with(|mapping| Ok(mapping.for_cpu()))
    }

    /// Copies bytes of the memory to the host: to a new `bytes`, or to the buffer `into`, which is
    /// returned. `size` is the rest of the memory by default.
    #[pyo3(signature = (into = None, *, offset = 0, size = None))]
    fn to_host<'py>(
        &self,
        python: Python<'py>,
        into: Option<Bound<'py, PyAny>>,
        offset: usize,
        size: Option<usize>,
    ) -> PyResult<Bound<'py, PyAny>> {
        to_host(python, &self.memory.share()?, into, offset, size)
    }

    /// Copies the bytes of a buffer to `offset` in the memory.
    #[pyo3(name = "from_host", signature = (data, *, offset = 0))]
    fn copy_from_host(&self, python: Python<'_>, data: &Bound<'_, PyAny>, offset: usize) -> PyResult<()> {
        from_host(python, &self.memory.share()?, data, offset)
    }

    #[getter]
    fn __cuda_array_interface__<'py>(&self, python: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let mapping = self.memory.share()?;
        let device = mapping_device(&mapping, &self.handle).map_err(no_attribute)?;
        let interface = cuda_array(python, &*mapping, device)?;
        self.memory.pin()?;
        Ok(interface)
    }
}
