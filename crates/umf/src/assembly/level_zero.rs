//! Level Zero memory, from settings.

use std::sync::Arc;

use umf_config::{DeviceHandles, DeviceMemory, HugePages, NumaMode, Settings};
use umf_provider_level_zero::{Choice, FreePolicy, Handles, LevelZeroImport, LevelZeroProvider};

use crate::{Error, Result};

/// The device that a set names.
fn choice(set: &umf_config::Provider) -> Choice {
    let device = Choice::device(set.device).of_driver(set.device_driver);
    match &set.path {
        Some(loader) => device.through(loader),
        None => device,
    }
}

pub(super) fn provider(name: &str, set: &umf_config::Provider) -> Result<Arc<LevelZeroProvider>> {
    let plain = umf_config::Provider::default();
    let contradiction = |why| Error::Contradiction { what: "provider", name: name.to_owned(), why };
    if set.name.is_some()
        || set.isolate
        || set.numa != NumaMode::Default
        || !set.numa_nodes.is_empty()
        || !set.numa_space.is_empty()
        || set.huge_pages != HugePages::None
    {
        return Err(contradiction(
            "name, isolate, numa and huge_pages are for kind \"host\", not for kind \"level-zero\"",
        ));
    }
    if !set.params.is_empty() || set.exporter != plain.exporter {
        return Err(contradiction(
            "params are for kinds from elsewhere, exporter for kind \"dma-buf\"; kind \"level-zero\" has \
             device_driver, device and memory",
        ));
    }
    let builder = match set.memory {
        DeviceMemory::Host => LevelZeroProvider::host(choice(set)),
        DeviceMemory::Shared => LevelZeroProvider::shared(choice(set)),
        _ => LevelZeroProvider::device(choice(set)),
    };
    let policy = match set.free_policy {
        umf_config::FreePolicy::Blocking => FreePolicy::Blocking,
        umf_config::FreePolicy::Deferred => FreePolicy::Deferred,
        _ => FreePolicy::Default,
    };
    let handles = match set.handles {
        DeviceHandles::FdFunctions => Handles::FdFunctions,
        DeviceHandles::Fd => Handles::Fd,
        DeviceHandles::Opaque => Handles::Opaque,
        _ => Handles::Auto,
    };
    let builder = builder.name(name.to_owned()).ordinal(set.ordinal).resident(set.resident.clone());
    Ok(builder.free_policy(policy).handles(handles).build()?)
}

/// Who opens device memory of other processes: for the device of the set `level-zero`, or else of the first set of that kind. The
/// driver is started when there is something to open.
pub(crate) fn import(settings: &Settings) -> LevelZeroImport {
    let of_kind = |set: &&umf_config::Provider| set.kind == "level-zero";
    let named = settings.provider.get("level-zero").filter(of_kind);
    let set = named.or_else(|| settings.provider.values().find(of_kind));
    LevelZeroImport::new(set.map_or_else(Choice::default, choice))
}
