//! [`Driver`]: the CUDA driver, loaded once per process; its devices; its results as errors of umf.

use std::collections::BTreeMap;
use std::ffi::{CStr, c_int};
use std::path::{Path, PathBuf};

use cuda_sys::*;
use umf_core::{Error, Result};
use umf_sync::{Lock, fork};

/// The loaded CUDA driver: one per library path and process, never unloaded.
///
/// Thread-safe.
#[derive(Debug)]
pub struct Driver {
    api: Api,
    /// The fork generation in which it was initialized: the driver does not work in a forked child.
    generation: u32,
}

/// A device that this process sees.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct DeviceInfo {
    /// Its ordinal among those that the process sees (`CUDA_VISIBLE_DEVICES`).
    pub ordinal: i32,
    /// The driver's name for it.
    pub name: String,
    /// Its globally unique id.
    pub uuid: [u8; 16],
    /// Size of its memory in bytes.
    pub memory: u64,
    /// Supports mapping physical memory at reserved addresses: memory kind `virtual`.
    pub has_virtual: bool,
    /// Exports physical memory as file descriptors.
    pub has_fds: bool,
    /// Exports physical memory as fabric handles, for other machines of the same fabric.
    pub has_fabric: bool,
    /// Exports memory as dma-bufs, for other drivers.
    pub has_dma_buf: bool,
    /// Supports managed memory.
    pub has_managed: bool,
}

static DRIVERS: Lock<BTreeMap<PathBuf, &'static Driver>> = Lock::new(BTreeMap::new());

impl Driver {
    /// Loads and initializes the driver: `libcuda.so.1`, or the library at `path`.
    ///
    /// # Errors
    /// - [`Error::NotSupported`] if the library cannot be loaded.
    /// - [`Error::Driver`] if `cuInit` fails.
    /// - [`Error::Frozen`] in a forked child of a process that had initialized it.
    pub fn open(path: Option<&Path>) -> Result<&'static Self> {
        let path = path.unwrap_or(Path::new(LIBRARY));
        let known = DRIVERS.lock().get(path).copied();
        if let Some(driver) = known {
            driver.check_not_inherited()?;
            return Ok(driver);
        }
        // Without the lock: the driver may fork during initialization (nvidia-modprobe), and forks
        // wait for this lock. Initializing twice is harmless. SAFETY: the path is the system's CUDA
        // driver, or comes from trusted settings or the program.
        let api = unsafe { Api::load_from(path) }.map_err(|_| Error::NotSupported {
            what: "opening libcuda.so.1 (install NVIDIA's driver; umf info shows the linker's error)",
            owner: "this system",
            native: 0,
        })?;
        // SAFETY: `cuInit` takes no pointers.
        unsafe { api.cuInit(0) }.map_err(driver_error)?;
        let generation = fork::generation();
        let made = || -> &'static Self { Box::leak(Box::new(Self { api, generation })) };
        Ok(DRIVERS.lock().entry(path.to_owned()).or_insert_with(made))
    }

    /// Returns the dynamic linker's error for the library at `path` (default: `libcuda.so.1`).
    /// `None` if it can be loaded.
    #[must_use]
    pub fn load_error(path: Option<&Path>) -> Option<String> {
        // SAFETY: as in `open`.
        unsafe { Api::load_from(path.unwrap_or(Path::new(LIBRARY))) }.err().map(|error| error.to_string())
    }

    /// Returns the driver's functions.
    #[must_use]
    pub const fn api(&self) -> &Api {
        &self.api
    }

    /// Returns the version of the interface: 12040 is 12.4.
    ///
    /// # Errors
    /// [`Error::Driver`].
    pub fn version(&self) -> Result<i32> {
        let mut version = 0;
        // SAFETY: the pointer to the result is valid for writes.
        unsafe { self.api.cuDriverGetVersion(&raw mut version) }.map_err(driver_error)?;
        Ok(version)
    }

    /// Returns the number of devices that the process sees.
    ///
    /// # Errors
    /// [`Error::Driver`].
    pub fn device_count(&self) -> Result<i32> {
        let mut count = 0;
        // SAFETY: the pointer to the result is valid for writes.
        unsafe { self.api.cuDeviceGetCount(&raw mut count) }.map_err(driver_error)?;
        Ok(count)
    }

    /// Returns the description of a device.
    ///
    /// # Errors
    /// [`Error::Driver`], for example if there is no device of this ordinal.
    pub fn device_info(&self, ordinal: i32) -> Result<DeviceInfo> {
        let (device, mut name, mut memory) = (self.device_handle(ordinal)?, [0_u8; 128], 0);
        // SAFETY: the pointers to the results are valid for writes; `name` has 128 bytes.
        unsafe {
            self.api.cuDeviceGetName(name.as_mut_ptr().cast(), 128, device).map_err(driver_error)?;
            self.api.cuDeviceTotalMem(&raw mut memory, device).map_err(driver_error)?;
        }
        let has = |attribute| Ok::<_, Error>(self.attribute(attribute, device)? != 0);
        Ok(DeviceInfo {
            ordinal,
            name: CStr::from_bytes_until_nul(&name).unwrap_or_default().to_string_lossy().into_owned(),
            uuid: self.uuid(device)?,
            memory: memory as u64,
            has_virtual: has(CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED)?,
            has_fds: has(CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED)?,
            // Older drivers do not have these attributes.
            has_fabric: has(CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_FABRIC_SUPPORTED).unwrap_or(false),
            has_dma_buf: has(CU_DEVICE_ATTRIBUTE_DMA_BUF_SUPPORTED).unwrap_or(false),
            has_managed: has(CU_DEVICE_ATTRIBUTE_MANAGED_MEMORY)?,
        })
    }

    pub(crate) fn device_handle(&self, ordinal: i32) -> Result<CUdevice> {
        let mut device = 0;
        // SAFETY: the pointer to the result is valid for writes.
        unsafe { self.api.cuDeviceGet(&raw mut device, ordinal) }.map_err(driver_error)?;
        Ok(device)
    }

    pub(crate) fn uuid(&self, device: CUdevice) -> Result<[u8; 16]> {
        let mut uuid = CUuuid::default();
        // SAFETY: the pointer to the result is valid for writes.
        unsafe { self.api.cuDeviceGetUuid(&raw mut uuid, device) }.map_err(driver_error)?;
        Ok(uuid.bytes)
    }

    fn attribute(&self, attribute: CUdevice_attribute, device: CUdevice) -> Result<c_int> {
        let mut value = 0;
        // SAFETY: the pointer to the result is valid for writes.
        unsafe { self.api.cuDeviceGetAttribute(&raw mut value, attribute, device) }.map_err(driver_error)?;
        Ok(value)
    }

    /// Returns whether this process is a forked child of the one that initialized it.
    pub(crate) fn is_inherited(&self) -> bool {
        self.generation != fork::generation()
    }

    pub(crate) fn check_not_inherited(&self) -> Result<()> {
        if self.is_inherited() { Err(Error::Frozen { what: "the CUDA driver" }) } else { Ok(()) }
    }
}

/// The owner of regions in errors.
pub(crate) const OWNER: &str = "the CUDA driver";

/// Converts a failed call to an error.
pub(crate) fn driver_error(failure: Failure) -> Error {
    let result = failure.result();
    match failure {
        Failure::Absent { function } => {
            Error::NotSupported { what: function, owner: "this CUDA driver; install a newer one", native: 0 }
        }
        _ if result == CUDA_ERROR_NOT_SUPPORTED => {
            Error::NotSupported { what: failure.function(), owner: "this CUDA device or system", native: 0 }
        }
        _ => Error::Driver {
            call: failure.function(),
            code: i64::from(result.0),
            name: result.name().unwrap_or("an unknown CUresult"),
            meaning: result.meaning(),
        },
    }
}

/// Converts a failed allocation of `size` bytes to an error.
pub(crate) fn allocation_error(size: usize) -> impl Fn(Failure) -> Error {
    move |failure| match failure.result() {
        CUDA_ERROR_OUT_OF_MEMORY => Error::OutOfMemory { size, owner: "the CUDA device", native: 0 },
        _ => driver_error(failure),
    }
}

/// The driver of this machine and its devices.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct DriverInfo {
    /// The version of the interface: 12040 is 12.4.
    pub version: i32,
    /// The devices that the process sees.
    pub devices: Vec<DeviceInfo>,
}

/// Loads and initializes the driver (`libcuda.so.1`, or the library at `path`), and describes each
/// device. Creates no context.
///
/// # Errors
/// Those of [`Driver::open`]. [`Driver::load_error`] returns the linker's error if the library
/// cannot be loaded.
pub fn survey(path: Option<&Path>) -> Result<DriverInfo> {
    let driver = Driver::open(path)?;
    let devices = (0..driver.device_count()?).map(|ordinal| driver.device_info(ordinal));
    Ok(DriverInfo { version: driver.version()?, devices: devices.collect::<Result<_>>()? })
}
