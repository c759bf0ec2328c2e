//! [`Driver`]: the CUDA driver, opened once in a process. What it answers, as errors of umf.

use std::collections::BTreeMap;
use std::ffi::{CStr, c_int};
use std::path::{Path, PathBuf};

use cuda_sys::*;
use umf_core::{Error, Result};
use umf_sync::{Lock, fork};

/// The CUDA driver. There is one for each library in a process, and it stays.
///
/// Thread-safe.
#[derive(Debug)]
pub struct Driver {
    api: Api,
    /// The fork generation in which it was started: no driver works in a forked child.
    generation: u32,
}

/// A device that this process sees.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct DeviceInfo {
    /// Its place among those that the process sees (`CUDA_VISIBLE_DEVICES`).
    pub ordinal: i32,
    /// Its name.
    pub name: String,
    /// What tells it from all others.
    pub uuid: [u8; 16],
    /// Its memory, in bytes.
    pub memory: u64,
    /// Physical memory can be mapped at reserved addresses: memory kind `virtual`.
    pub has_virtual: bool,
    /// Physical memory can be given to other processes as file descriptors.
    pub has_fds: bool,
    /// Physical memory can be given to other machines of the same fabric.
    pub has_fabric: bool,
    /// Memory can be given to other drivers as a dma-buf.
    pub has_dma_buf: bool,
    /// There is managed memory.
    pub has_managed: bool,
}

static DRIVERS: Lock<BTreeMap<PathBuf, &'static Driver>> = Lock::new(BTreeMap::new());

impl Driver {
    /// Opens and starts the driver: `libcuda.so.1`, or the library at `path`.
    ///
    /// # Errors
    /// [`Error::NotSupported`] if there is no such library or device, [`Error::Driver`] if it does not start; [`Error::Frozen`] in
    /// a forked child of a process that had started it.
    pub fn open(path: Option<&Path>) -> Result<&'static Self> {
        let path = path.unwrap_or(Path::new(LIBRARY));
        let known = DRIVERS.lock().get(path).copied();
        if let Some(driver) = known {
            driver.check_not_inherited()?;
            return Ok(driver);
        }
        // Without the lock: drivers fork while they start (nvidia-modprobe), and a fork waits for it. Twice does no harm.
        // SAFETY: the system's CUDA driver, or one that the user names as such.
        let api = unsafe { Api::load_from(path) }.map_err(|_| Error::NotSupported {
            what: "opening libcuda.so.1 (install NVIDIA's driver; umf info shows what the linker says)",
            owner: "this system",
            native: 0,
        })?;
        // SAFETY: it has no pointers.
        unsafe { api.cuInit(0) }.map_err(error)?;
        let generation = fork::generation();
        let made = || -> &'static Self { Box::leak(Box::new(Self { api, generation })) };
        Ok(DRIVERS.lock().entry(path.to_owned()).or_insert_with(made))
    }

    /// Why the library at `path` (`libcuda.so.1`) cannot be opened, in the dynamic linker's words; `None` if it can.
    #[must_use]
    pub fn lacks(path: Option<&Path>) -> Option<String> {
        // SAFETY: as in `open`.
        unsafe { Api::load_from(path.unwrap_or(Path::new(LIBRARY))) }.err().map(|error| error.to_string())
    }

    /// The driver's functions.
    #[must_use]
    pub const fn api(&self) -> &Api {
        &self.api
    }

    /// The version of the interface: 12040 is 12.4.
    ///
    /// # Errors
    /// [`Error::Driver`].
    pub fn version(&self) -> Result<i32> {
        let mut version = 0;
        // SAFETY: a place for the answer.
        unsafe { self.api.cuDriverGetVersion(&raw mut version) }.map_err(error)?;
        Ok(version)
    }

    /// How many devices the process sees.
    ///
    /// # Errors
    /// [`Error::Driver`].
    pub fn devices(&self) -> Result<i32> {
        let mut count = 0;
        // SAFETY: a place for the answer.
        unsafe { self.api.cuDeviceGetCount(&raw mut count) }.map_err(error)?;
        Ok(count)
    }

    /// What there is to know of a device.
    ///
    /// # Errors
    /// [`Error::Driver`]: there is no such device, for one.
    pub fn device(&self, ordinal: i32) -> Result<DeviceInfo> {
        let (device, mut name, mut memory) = (self.handle_of(ordinal)?, [0_u8; 128], 0);
        // SAFETY: places for the answers, and how large the first is.
        unsafe {
            self.api.cuDeviceGetName(name.as_mut_ptr().cast(), 128, device).map_err(error)?;
            self.api.cuDeviceTotalMem(&raw mut memory, device).map_err(error)?;
        }
        let has = |attribute| Ok::<_, Error>(self.attribute(attribute, device)? != 0);
        Ok(DeviceInfo {
            ordinal,
            name: CStr::from_bytes_until_nul(&name).unwrap_or_default().to_string_lossy().into_owned(),
            uuid: self.uuid(device)?,
            memory: memory as u64,
            has_virtual: has(CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED)?,
            has_fds: has(CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED)?,
            // Older drivers do not know the question.
            has_fabric: has(CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_FABRIC_SUPPORTED).unwrap_or(false),
            has_dma_buf: has(CU_DEVICE_ATTRIBUTE_DMA_BUF_SUPPORTED).unwrap_or(false),
            has_managed: has(CU_DEVICE_ATTRIBUTE_MANAGED_MEMORY)?,
        })
    }

    pub(crate) fn handle_of(&self, ordinal: i32) -> Result<CUdevice> {
        let mut device = 0;
        // SAFETY: a place for the answer.
        unsafe { self.api.cuDeviceGet(&raw mut device, ordinal) }.map_err(error)?;
        Ok(device)
    }

    pub(crate) fn uuid(&self, device: CUdevice) -> Result<[u8; 16]> {
        let mut uuid = CUuuid::default();
        // SAFETY: a place for the answer.
        unsafe { self.api.cuDeviceGetUuid(&raw mut uuid, device) }.map_err(error)?;
        Ok(uuid.bytes)
    }

    fn attribute(&self, attribute: CUdevice_attribute, device: CUdevice) -> Result<c_int> {
        let mut value = 0;
        // SAFETY: a place for the answer.
        unsafe { self.api.cuDeviceGetAttribute(&raw mut value, attribute, device) }.map_err(error)?;
        Ok(value)
    }

    /// Whether this is a forked child of the process that started it.
    pub(crate) fn is_inherited(&self) -> bool {
        self.generation != fork::generation()
    }

    pub(crate) fn check_not_inherited(&self) -> Result<()> {
        if self.is_inherited() { Err(Error::Frozen { what: "the CUDA driver" }) } else { Ok(()) }
    }
}

/// Who is asked.
pub(crate) const OWNER: &str = "the CUDA driver";

/// For `map_err`: a call that failed.
pub(crate) fn error(failure: Failure) -> Error {
    let result = failure.result();
    match failure {
        Failure::Absent { function } => {
            Error::NotSupported { what: function, owner: "this CUDA driver", native: 0 }
        }
        _ if result == CUDA_ERROR_NOT_SUPPORTED => {
            Error::NotSupported { what: failure.function(), owner: "this CUDA device or system", native: 0 }
        }
        _ => Error::Driver {
            call: failure.function(),
            code: i64::from(result.0),
            name: result.name().unwrap_or("an answer without a name"),
            meaning: result.meaning(),
        },
    }
}

/// As [`error`] where `size` bytes were asked for.
pub(crate) fn memory_error(size: usize) -> impl Fn(Failure) -> Error {
    move |failure| match failure.result() {
        CUDA_ERROR_OUT_OF_MEMORY => Error::OutOfMemory { size, owner: "the CUDA device", native: 0 },
        _ => error(failure),
    }
}
