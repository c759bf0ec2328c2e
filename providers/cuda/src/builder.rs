//! [`CudaBuilder`]: how a [`CudaProvider`] is set up.

use std::borrow::Cow;
use std::path::PathBuf;
use std::sync::Arc;

use cuda_sys::{CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED, CUcontext};
use umf_core::{Error, MemoryKind, Result};

use crate::allocated::Allocated;
use crate::context::Context;
use crate::driver::{Driver, error};
use crate::import::CudaImport;
use crate::provider::{CudaProvider, Form};
use crate::space::Space;

umf_core::words! {
    /// The kinds of CUDA memory.
    #[derive(Default)]
    #[non_exhaustive]
    pub enum CudaMemory {
        /// Memory of a device that is mapped into one large reserved range, `cuMemCreate` and `cuMemMap`. Other processes open it
        /// by a file descriptor, as they do memory of the host.
        #[default]
        Virtual = "virtual",
        /// Memory of a device, `cuMemAlloc`. Other processes open it by the driver's 64-byte handle: each region by itself, once
        /// in a process.
        Device = "device",
        /// Memory of the host that devices reach at full speed, `cuMemHostAlloc`. Not for other processes.
        Host = "host",
        /// Memory that moves between host and devices as it is used, `cuMemAllocManaged`. Not for other processes.
        Managed = "managed" | "shared",
    }
}

impl CudaMemory {
    /// Who may touch it.
    #[must_use]
    pub const fn memory_kind(self) -> MemoryKind {
        match self {
            Self::Device | Self::Virtual => MemoryKind::Device,
            Self::Host => MemoryKind::Host,
            Self::Managed => MemoryKind::Managed,
        }
    }
}

/// How a [`CudaProvider`] is set up. Got from [`CudaProvider::builder`].
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

    /// A name for people: logs, statistics, `umf ps`. Default: `cuda`.
    pub fn name(mut self, name: impl Into<Cow<'static, str>>) -> Self {
        self.label = name.into();
        self
    }

    /// The driver's library. Default: `libcuda.so.1`, which the system's search path resolves.
    pub fn library(mut self, path: impl Into<PathBuf>) -> Self {
        self.library = Some(path.into());
        self
    }

    /// What kind of memory. Default: [`CudaMemory::Virtual`].
    pub fn memory(mut self, memory: CudaMemory) -> Self {
        self.memory = memory;
        self
    }

    /// The device, by its place among those that the process sees. Its primary context is used, which is that of the CUDA
    /// runtime, too. Default: 0.
    pub fn device(mut self, ordinal: i32) -> Self {
        self.device = ordinal;
        self
    }

    /// The application's own context (a `CUcontext`) instead, and its device.
    ///
    /// # Safety
    /// It is a context of the driver that is used, and is not destroyed before all memory of the provider was freed. (If it is all
    /// the same, that memory is gone; the driver refuses whatever is done with the provider after that.)
    pub unsafe fn context(mut self, context: *mut core::ffi::c_void) -> Self {
        self.context = Some(CUcontext(context));
        self
    }

    /// Other devices that may use the memory, by their places. Default: none.
    pub fn peers(mut self, ordinals: impl IntoIterator<Item = i32>) -> Self {
        self.peers = ordinals.into_iter().collect();
        self
    }

    /// How many bytes of addresses are reserved for memory of kind `virtual`, and so the most that there can be at a time. Default:
    /// 0, which is four times the device's memory.
    pub fn reserve(mut self, bytes: usize) -> Self {
        self.reserve = bytes;
        self
    }

    /// Memory of kind `virtual` is exported by fabric handles instead of file descriptors. Default: `false`.
    pub fn fabric(mut self, fabric: bool) -> Self {
        self.fabric = fabric;
        self
    }

    /// The driver's own flags for memory of kinds `host` (`CU_MEMHOSTALLOC_*`) and `managed` (`CU_MEM_ATTACH_*`); the others have
    /// none. What they may be says the driver, when memory is allocated. Default: pinned for all contexts, attached to all streams.
    pub fn alloc_flags(mut self, flags: u32) -> Self {
        self.flags = Some(flags);
        self
    }

    /// Builds the provider: opens the driver, if nobody has.
    ///
    /// # Errors
    /// [`Error::NotSupported`] if there is no driver or the device has no such memory, [`Error::Driver`] if there is no such device
    /// or a peer cannot reach it, [`Error::InvalidArgument`] for what makes no sense.
    pub fn build(self) -> Result<Arc<CudaProvider>> {
        let driver = Driver::open(self.library.as_deref())?;
        let context = match self.context {
            // SAFETY: passed on to the caller of `context`.
            Some(handle) => unsafe { Context::of_application(driver, handle) }?,
            None => Context::primary(driver, self.device)?,
        };
        let context = Arc::new(context);
        let mut retained = Vec::new();
        for &peer in &self.peers {
            if peer == context.device() {
                return Err(Error::InvalidArgument {
                    what: "peers",
                    why: "must be other devices than its own",
                });
            }
            check_peer(&context, peer)?;
            if self.memory == CudaMemory::Device {
                retained.push(give_access(&context, peer)?);
            }
        }
        let is_virtual = self.memory == CudaMemory::Virtual;
        if !is_virtual && (self.reserve != 0 || self.fabric) {
            let why = "reserve and fabric are for memory kind virtual";
            return Err(Error::InvalidArgument { what: "memory", why });
        }
        let import = CudaImport::in_context(Arc::clone(&context), self.library);
        let form = if is_virtual {
            Form::Virtual(Box::new(Space::new(Arc::clone(&context), self.peers, self.reserve, self.fabric)?))
        } else {
            Form::Allocated(Box::new(Allocated::new(Arc::clone(&context), self.memory, self.flags)))
        };
        Ok(Arc::new(CudaProvider::new(self.label, self.memory, context, retained, form, import)))
    }
}

fn check_peer(context: &Context, peer: i32) -> Result<()> {
    let (mut can, driver) = (0, context.driver());
    let peer = driver.handle_of(peer)?;
    // SAFETY: a place for the answer.
    unsafe { driver.api().cuDeviceCanAccessPeer(&raw mut can, peer, context.device()) }.map_err(error)?;
    if can == 0 {
        return Err(Error::NotSupported {
            what: "access of a peer (nvidia-smi topo -m shows which devices reach each other)",
            owner: "this pair of CUDA devices",
            native: 0,
        });
    }
    Ok(())
}

/// Gives a peer's primary context access to what is allocated in a context.
fn give_access(context: &Context, peer: i32) -> Result<Context> {
    let peer = Context::primary(context.driver(), peer)?;
    {
        let current = peer.enter()?;
        // SAFETY: a context that is there.
        match unsafe { current.api().cuCtxEnablePeerAccess(context.handle(), 0) } {
            Err(failure) if failure.result() != CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED => {
                return Err(error(failure));
            }
            _ => {}
        }
    }
    Ok(peer)
}
