//! [`CudaBuilder`]: the options of a [`CudaProvider`], checked against the driver; and the provider
//! kind `cuda` of `umf.toml`: [`CudaSettings`] and its [`ProviderFactory`].

use std::borrow::Cow;
use std::path::PathBuf;
use std::sync::Arc;

use cuda_sys::{CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED, CUcontext};
use umf_core::settings::{Auto, Code, Numbers};
use umf_core::{Error, FactoryError, Import, MemoryKind, Provider, ProviderFactory, Result};

use crate::context::Context;
use crate::driver::{Driver, driver_error};
use crate::heap::Heap;
use crate::import::CudaImport;
use crate::provider::{Backend, CudaProvider};
use crate::virtual_memory::VirtualRange;

umf_core::words! {
    /// The kinds of CUDA memory.
    #[derive(Default)]
    #[non_exhaustive]
    pub enum CudaMemory {
        /// Device memory mapped into one reserved range of addresses: `cuMemCreate` and `cuMemMap`.
        /// Exported as a file descriptor, like host memory.
        #[default]
        Virtual = "virtual",
        /// Device memory of `cuMemAlloc`. Exported as the driver's 64-byte handle, which the driver
        /// opens once per process.
        Device = "device",
        /// Pinned host memory of `cuMemHostAlloc`. Not exported.
        Host = "host",
        /// Memory of `cuMemAllocManaged`, which migrates between host and devices. Not exported.
        Managed = "managed" | "shared",
    }
}

impl CudaMemory {
    /// Returns whether the CPU, devices or both access this memory.
    #[must_use]
    pub const fn memory_kind(self) -> MemoryKind {
        match self {
            Self::Device | Self::Virtual => MemoryKind::Device,
            Self::Host => MemoryKind::Host,
            Self::Managed => MemoryKind::Managed,
        }
    }
}

/// A builder of a [`CudaProvider`]. Made with [`CudaProvider::builder`].
#[derive(Debug)]
#[must_use]
pub struct CudaBuilder {
    label: Cow<'static, str>,
    library: Option<PathBuf>,
    memory: CudaMemory,
    device: i32,
    context: Option<CUcontext>,
    peers: Vec<i32>,
    reserve: usize,
    fabric: bool,
    flags: Option<u32>,
}

impl CudaBuilder {
    pub(crate) const fn new() -> Self {
        Self {
            label: Cow::Borrowed("cuda"),
            library: None,
            memory: CudaMemory::Virtual,
            device: 0,
            context: None,
            peers: Vec::new(),
            reserve: 0,
            fabric: false,
            flags: None,
        }
    }

    /// Sets the name in logs, statistics and `umf ps`. Default: `cuda`.
    pub fn name(mut self, name: impl Into<Cow<'static, str>>) -> Self {
        self.label = name.into();
        self
    }

    /// Sets the path of the driver's library. Default: `libcuda.so.1` in the system's search path.
    pub fn library(mut self, path: impl Into<PathBuf>) -> Self {
        self.library = Some(path.into());
        self
    }

    /// Sets the kind of memory. Default: [`CudaMemory::Virtual`].
    pub fn memory(mut self, memory: CudaMemory) -> Self {
        self.memory = memory;
        self
    }

    /// Sets the ordinal of the device among those that the process sees. The provider uses its
    /// primary context, as the CUDA runtime does. Default: 0.
    pub fn device(mut self, ordinal: i32) -> Self {
        self.device = ordinal;
        self
    }

    /// Sets a context of the application (a `CUcontext`) to use instead, with its device.
    ///
    /// # Safety
    /// `context` is a context of the same driver. It is not destroyed before all memory of the
    /// provider was freed. If `cuCtxDestroy` destroys it earlier, the memory is gone, and later
    /// calls return the driver's error.
    pub unsafe fn context(mut self, context: *mut core::ffi::c_void) -> Self {
        self.context = Some(CUcontext(context));
        self
    }

    /// Sets the ordinals of other devices that may access the memory. Default: none.
    pub fn peers(mut self, ordinals: impl IntoIterator<Item = i32>) -> Self {
        self.peers = ordinals.into_iter().collect();
        self
    }

    /// Sets the bytes of addresses to reserve for memory of kind `virtual`, which limits its total
    /// size. Default: 0, which means four times the device's memory.
    pub fn reserve(mut self, bytes: usize) -> Self {
        self.reserve = bytes;
        self
    }

    /// Exports memory of kind `virtual` by fabric handles instead of file descriptors. Default:
    /// `false`.
    pub fn fabric(mut self, fabric: bool) -> Self {
        self.fabric = fabric;
        self
    }

    /// Sets the driver's flags for memory of kinds `host` (`CU_MEMHOSTALLOC_*`) and `managed`
    /// (`CU_MEM_ATTACH_*`); other kinds have none. The driver checks them on allocation. Default:
    /// portable across contexts, attached to all streams.
    pub fn alloc_flags(mut self, flags: u32) -> Self {
        self.flags = Some(flags);
        self
    }

    /// Builds the provider. The first provider of a process loads and initializes the driver.
    ///
    /// # Errors
    /// - [`Error::NotSupported`] if there is no driver, the device lacks this kind of memory, or a
    ///   peer cannot access it.
    /// - [`Error::Driver`] if there is no device of this ordinal.
    /// - [`Error::InvalidArgument`] for options that exclude each other.
    pub fn build(self) -> Result<Arc<CudaProvider>> {
        let driver = Driver::open(self.library.as_deref())?;
        let context = match self.context {
            // SAFETY: the caller of `CudaBuilder::context` upholds the contract.
            Some(handle) => unsafe { Context::from_application(driver, handle) }?,
            None => Context::primary(driver, self.device)?,
        };
        let context = Arc::new(context);
        let mut retained = Vec::new();
        for &peer in &self.peers {
            if peer == context.device() {
                return Err(Error::InvalidArgument {
                    what: "peers",
                    why: "must not contain the provider's own device",
                });
            }
            check_peer(&context, peer)?;
            if self.memory == CudaMemory::Device {
                retained.push(enable_peer_access(&context, peer)?);
            }
        }
        let is_virtual = self.memory == CudaMemory::Virtual;
        if !is_virtual && (self.reserve != 0 || self.fabric) {
            let why = "must be virtual if reserve or fabric is set";
            return Err(Error::InvalidArgument { what: "memory", why });
        }
        let import = CudaImport::in_context(Arc::clone(&context), self.library);
        let form = if is_virtual {
            Backend::Virtual(Box::new(VirtualRange::new(
                Arc::clone(&context),
                self.peers,
                self.reserve,
                self.fabric,
            )?))
        } else {
            Backend::Heap(Box::new(Heap::new(Arc::clone(&context), self.memory, self.flags)))
        };
        Ok(Arc::new(CudaProvider::new(self.label, self.memory, context, retained, form, import)))
    }
}

/// Checks that a peer can access the memory of the context's device.
fn check_peer(context: &Context, peer: i32) -> Result<()> {
    let (mut can, driver) = (0, context.driver());
    let peer = driver.device_handle(peer)?;
    // SAFETY: the pointer to the result is valid for writes.
    unsafe { driver.api().cuDeviceCanAccessPeer(&raw mut can, peer, context.device()) }
        .map_err(driver_error)?;
    if can == 0 {
        return Err(Error::NotSupported {
            what: "peer access (nvidia-smi topo -m shows which devices can access each other)",
            owner: "this pair of CUDA devices",
            native: 0,
        });
    }
    Ok(())
}

/// Enables access to the allocations of a context for a peer's primary context. Returns the latter.
fn enable_peer_access(context: &Context, peer: i32) -> Result<Context> {
    let peer = Context::primary(context.driver(), peer)?;
    {
        let current = peer.enter()?;
        // SAFETY: both contexts are live.
        match unsafe { current.api().cuCtxEnablePeerAccess(context.handle(), 0) } {
            Err(failure) if failure.result() != CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED => {
                return Err(driver_error(failure));
            }
            _ => {}
        }
    }
    Ok(peer)
}

// Settings.

umf_core::words! {
    /// The format in which memory of kind `virtual` is exported.
    #[derive(Default)]
    pub enum CudaHandles {
        /// File descriptors.
        #[default]
        Auto = "auto",
        /// File descriptors.
        Fd = "fd",
        /// Fabric handles.
        Opaque = "opaque",
    }
}

umf_core::settings! {
    /// The keys of the kind `cuda`.
    pub struct CudaSettings {
        /// Which memory: "device" (which the CPU must not access), "host", "managed", or "virtual":
        /// device memory that is mapped into a reserved range. "auto" is "virtual" if the device
        /// supports it, else "device". Only "virtual" and "device" can be opened in other
        /// processes.
        pub memory: Option<CudaMemory> as Auto<CudaMemory> = None;
        /// Which of the devices that the process sees, counted from 0.
        pub device: u32 = 0;
        /// Other devices that may use the memory ([1, 2] or "1-2").
        pub resident: Vec<u32> as Numbers = Vec::new();
        /// The format of exported handles: "auto", "fd" (descriptors, for "virtual" memory only) or
        /// "opaque" (handles of the driver: fabric handles of "virtual" memory, 64-byte handles of
        /// "device" memory). Memory that the device cannot export so is refused.
        pub handles: CudaHandles = CudaHandles::Auto;
        /// Absolute path of the driver's library, if it is not the system's. Refused in ./umf.toml
        /// and from a variable, because it is code.
        pub path: Option<PathBuf> as Option<Code<PathBuf>> = None,
            "an absolute path (empty for none)" if |path| path.as_ref().is_none_or(|path| path.is_absolute());
    }
}

fn ordinal(device: u32) -> i32 {
    i32::try_from(device).unwrap_or(i32::MAX)
}

/// Returns the kind of memory for the settings. That of `memory = "auto"` is `virtual` if the
/// device can export it in the wanted format.
///
/// # Errors
/// [`Error::InvalidArgument`] if the kind has no handles of the wanted format,
/// [`Error::NotSupported`] if the device has none.
fn memory_of(settings: &CudaSettings) -> Result<CudaMemory, Error> {
    let device = || Driver::open(settings.path.as_deref())?.device_info(ordinal(settings.device));
    let memory = match (settings.memory, settings.handles) {
        (Some(memory), _) => memory,
        (None, CudaHandles::Auto) => {
            let device = device()?;
            if device.has_virtual && device.has_fds { CudaMemory::Virtual } else { CudaMemory::Device }
        }
        (None, CudaHandles::Fd) => CudaMemory::Virtual,
        (None, CudaHandles::Opaque) => {
            let device = device()?;
            if device.has_virtual && device.has_fabric { CudaMemory::Virtual } else { CudaMemory::Device }
        }
    };
    let why = match (memory, settings.handles) {
        // For virtual memory, the builder checks that the device has fabric handles.
        (_, CudaHandles::Auto) | (CudaMemory::Virtual | CudaMemory::Device, CudaHandles::Opaque) => {
            return Ok(memory);
        }
        (CudaMemory::Virtual, CudaHandles::Fd) => {
            let device = device()?;
            if device.has_virtual && device.has_fds {
                return Ok(memory);
            }
            return Err(Error::NotSupported {
                what: "export of \"virtual\" memory as file descriptors (use memory = \"device\" with handles = \"auto\")",
                owner: "this CUDA device",
                native: 0,
            });
        }
        (CudaMemory::Device, CudaHandles::Fd) => {
            "cannot be \"fd\", because memory of kind \"device\" is exported as a handle of the driver; use handles = \"auto\", or memory = \"virtual\""
        }
        _ => {
            "must be \"auto\", because memory of kinds \"host\" and \"managed\" is not exported; use memory = \"virtual\" or \"device\" to share it"
        }
    };
    Err(Error::InvalidArgument { what: "handles", why })
}

impl ProviderFactory for CudaProvider {
    const KIND: &'static str = "cuda";
    type Settings = CudaSettings;

    fn build(name: &str, settings: CudaSettings) -> Result<Arc<dyn Provider>, FactoryError> {
        let memory = memory_of(&settings)?;
        let mut builder = Self::builder()
            .name(name.to_owned())
            .memory(memory)
            .device(ordinal(settings.device))
            .peers(settings.resident.iter().map(|device| ordinal(*device)))
            .fabric(memory == CudaMemory::Virtual && settings.handles == CudaHandles::Opaque);
        if let Some(library) = settings.path {
            builder = builder.library(library);
        }
        Ok(builder.build()?)
    }

    /// Returns an importer. The driver is initialized by the first import.
    fn import(settings: &CudaSettings) -> Option<Arc<dyn Import>> {
        Some(Arc::new(CudaImport::new(settings.path.clone())))
    }
}
