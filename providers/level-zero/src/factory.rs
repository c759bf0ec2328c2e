//! The provider kind `level-zero` of `umf.toml`: its settings, and its [`ProviderFactory`].

use std::path::PathBuf;
use std::sync::Arc;

use umf_core::settings::{Code, Numbers};
use umf_core::{FactoryError, Import, Provider, ProviderFactory};

use crate::{DeviceSelector, FreePolicy, HandleFormat, LevelZeroImport, LevelZeroProvider};

umf_core::words! {
    /// Which memory to allocate.
    #[derive(Default)]
    pub enum LevelZeroMemory {
        /// Device memory.
        #[default]
        Auto = "auto",
        /// Device memory, which the CPU must not touch.
        Device = "device",
        /// Host memory that devices can access.
        Host = "host",
        /// Memory that migrates between host and device.
        Managed = "managed" | "shared",
    }
}

umf_core::settings! {
    /// The keys of the kind `level-zero`.
    pub struct LevelZeroSettings {
        /// Which memory: "device" (which the CPU must not touch; so is "auto"), "host", or
        /// "managed". Only memory of the device can be opened in other processes.
        pub memory: LevelZeroMemory = LevelZeroMemory::Auto;
        /// Which of the drivers, counted from 0.
        pub device_driver: u32 = 0;
        /// Which of the driver's devices.
        pub device: u32 = 0;
        /// Which of the device's memories.
        pub ordinal: u32 = 0;
        /// Other devices of the driver on which the memory is made resident ([1, 2] or "1-2").
        pub resident: Vec<u32> as Numbers = Vec::new();
        /// When freed memory goes: "default", "blocking" (freeing waits for the device) or
        /// "deferred" (the driver waits).
        pub free_policy: FreePolicy = FreePolicy::Default;
        /// What travels to other processes: "auto", "fd-functions" (descriptors, by the driver's
        /// functions for them), "fd" (descriptors that stand in the driver's handles) or "opaque"
        /// (the driver's handles as they are, which the driver has to bring over by itself).
        pub handles: HandleFormat = HandleFormat::Auto;
        /// Absolute path of the loader, where it is not the system's libze_loader.so.1. Refused in
        /// ./umf.toml and from a variable: this is code.
        pub path: Option<PathBuf> as Option<Code<PathBuf>> = None,
            "an absolute path (empty for none)" if |path| path.as_ref().is_none_or(|path| path.is_absolute());
    }
}

/// Returns the device that the settings select.
fn selector(settings: &LevelZeroSettings) -> DeviceSelector {
    let device = DeviceSelector::device(settings.device).driver(settings.device_driver);
    match &settings.path {
        Some(loader) => device.loader(loader),
        None => device,
    }
}

impl ProviderFactory for LevelZeroProvider {
    const KIND: &'static str = "level-zero";
    type Settings = LevelZeroSettings;

    fn build(name: &str, settings: LevelZeroSettings) -> Result<Arc<dyn Provider>, FactoryError> {
        let device = selector(&settings);
        let builder = match settings.memory {
            LevelZeroMemory::Auto | LevelZeroMemory::Device => Self::device(device),
            LevelZeroMemory::Host => Self::host(device),
            LevelZeroMemory::Managed => Self::managed(device),
        };
        let builder = builder.name(name.to_owned()).ordinal(settings.ordinal).resident(settings.resident);
        Ok(builder.free_policy(settings.free_policy).handles(settings.handles).build()?)
    }

    /// Returns an importer. The driver is initialized by the first import.
    fn import(settings: &LevelZeroSettings) -> Option<Arc<dyn Import>> {
        Some(Arc::new(LevelZeroImport::new(selector(settings))))
    }
}
