//! CUDA memory, from settings.

use std::sync::Arc;

use umf_config::{DeviceHandles, DeviceMemory, FreePolicy, HugePages, NumaMode, Settings};
use umf_provider_cuda::{CudaImport, CudaMemory, CudaProvider, Driver};

use crate::{Error, Result};

fn ordinal(device: u32) -> i32 {
    i32::try_from(device).unwrap_or(i32::MAX)
}

/// The kind of the device's memory that other processes open best.
fn best(set: &umf_config::Provider) -> Result<CudaMemory> {
    let device = Driver::open(set.path.as_deref())?.device(ordinal(set.device))?;
    Ok(if device.has_virtual && device.has_fds { CudaMemory::Virtual } else { CudaMemory::Device })
}

pub(super) fn provider(name: &str, set: &umf_config::Provider) -> Result<Arc<CudaProvider>> {
    let plain = umf_config::Provider::default();
    let contradiction = |why| Error::Contradiction { what: "provider", name: name.to_owned(), why };
    if set.name.is_some()
        || set.numa != NumaMode::Default
        || !set.numa_nodes.is_empty()
        || !set.numa_space.is_empty()
        || set.huge_pages != HugePages::None
    {
        return Err(contradiction("name, numa and huge_pages are for kind \"host\", not for kind \"cuda\""));
    }
    if set.device_driver != 0 || set.ordinal != 0 || set.free_policy != FreePolicy::Default {
        return Err(contradiction(
            "device_driver, ordinal and free_policy are for kind \"level-zero\", not for kind \"cuda\"",
        ));
    }
    if !set.params.is_empty() || set.exporter != plain.exporter {
        return Err(contradiction(
            "params are for kinds from elsewhere, exporter for kind \"dma-buf\"; kind \"cuda\" has device, memory \
             and resident",
        ));
    }
    let memory = match set.memory {
        DeviceMemory::Host => CudaMemory::Host,
        DeviceMemory::Shared => CudaMemory::Managed,
        DeviceMemory::Virtual => CudaMemory::Virtual,
        DeviceMemory::Device => CudaMemory::Device,
        _ => best(set)?,
    };
    let mut builder = CudaProvider::builder()
        .name(name.to_owned())
        .memory(memory)
        .device(ordinal(set.device))
        .peers(set.resident.iter().map(|device| ordinal(*device)))
        // Fd is what virtual memory has anyway.
        .fabric(memory == CudaMemory::Virtual && set.handles == DeviceHandles::Opaque);
    if let Some(library) = &set.path {
        builder = builder.library(library);
    }
    Ok(builder.build()?)
}

/// Who opens device memory of other processes: by the library of the set `cuda`, or else of the first set of that kind. It is opened
/// when there is something to open.
pub(crate) fn import(settings: &Settings) -> CudaImport {
    let of_kind = |set: &&umf_config::Provider| set.kind == "cuda";
    let named = settings.provider.get("cuda").filter(of_kind);
    let set = named.or_else(|| settings.provider.values().find(of_kind));
    CudaImport::new(set.and_then(|set| set.path.clone()))
}
