//! The provider kind `cuda` of `umf.toml`: its settings, and its [`ProviderFactory`].

use std::path::PathBuf;
use std::sync::Arc;

use umf_core::settings::{Auto, Code, Numbers};
use umf_core::{Error, FactoryError, Import, Provider, ProviderFactory};

use crate::{CudaImport, CudaMemory, CudaProvider, Driver};

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
        /// Which memory: "device" (which the CPU must not touch), "host", "managed", or "virtual":
        /// device memory that is mapped into a reserved range. "auto" is "virtual" where the device
        /// has it, else "device". Only "virtual" and "device" can be opened in other processes.
        pub memory: Option<CudaMemory> as Auto<CudaMemory> = None;
        /// Which of the devices that the process sees, counted from 0.
        pub device: u32 = 0;
        /// Other devices that may use the memory ([1, 2] or "1-2").
        pub resident: Vec<u32> as Numbers = Vec::new();
        /// What travels to other processes in place of "virtual" memory: "auto" and "fd"
        /// (descriptors) or "opaque" (fabric handles).
        pub handles: CudaHandles = CudaHandles::Auto;
        /// Absolute path of the driver's library, where it is not the system's. Refused in
        /// ./umf.toml and from a variable: this is code.
        pub path: Option<PathBuf> as Option<Code<PathBuf>> = None,
            "an absolute path (empty for none)" if |path| path.as_ref().is_none_or(|path| path.is_absolute());
    }
}

fn ordinal(device: u32) -> i32 {
    i32::try_from(device).unwrap_or(i32::MAX)
}

/// Returns the memory kind of `memory = "auto"`: `virtual` if the device can export it as fds.
fn auto_memory(settings: &CudaSettings) -> Result<CudaMemory, Error> {
    let device = Driver::open(settings.path.as_deref())?.device_info(ordinal(settings.device))?;
    Ok(if device.has_virtual && device.has_fds { CudaMemory::Virtual } else { CudaMemory::Device })
}

impl ProviderFactory for CudaProvider {
    const KIND: &'static str = "cuda";
    type Settings = CudaSettings;

    fn build(name: &str, settings: CudaSettings) -> Result<Arc<dyn Provider>, FactoryError> {
        let memory = settings.memory.map_or_else(|| auto_memory(&settings), Ok)?;
        let mut builder = Self::builder()
            .name(name.to_owned())
            .memory(memory)
            .device(ordinal(settings.device))
            .peers(settings.resident.iter().map(|device| ordinal(*device)))
            // Without fabric handles, virtual memory is exported as fds.
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
