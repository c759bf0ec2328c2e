//! [`LevelZeroBuilder`]: the options of a [`LevelZeroProvider`], checked against the driver; and the
//! provider kind `level-zero` of `umf.toml`: [`LevelZeroSettings`] and its [`ProviderFactory`].

use std::borrow::Cow;
use std::path::PathBuf;
use std::sync::Arc;

use level_zero_sys::{
    Api, ZE_DRIVER_MEMORY_FREE_POLICY_EXT_FLAG_BLOCKING_FREE,
    ZE_DRIVER_MEMORY_FREE_POLICY_EXT_FLAG_DEFER_FREE, ZE_MEMORY_TYPE_DEVICE, ZE_MEMORY_TYPE_HOST,
    ZE_MEMORY_TYPE_SHARED, ze_context_handle_t, ze_device_handle_t, ze_driver_memory_free_policy_ext_flags_t,
    ze_memory_type_t,
};
use umf_core::settings::{Code, Numbers};
use umf_core::{Error, FactoryError, Import, Provider, ProviderFactory, Result};

use crate::context::{Context, DeviceSelector};
use crate::copy_engine::{CopyEngine, Device, page_size_of};
use crate::handles::HandleFormat;
use crate::import::LevelZeroImport;
use crate::native::{self, driver_error};
use crate::provider::{Config, FdFormat, LevelZeroProvider};

umf_core::words! {
    /// When the driver releases freed memory.
    #[derive(Default)]
    #[non_exhaustive]
    pub enum FreePolicy {
        /// As `zeMemFree` does: the application makes sure that the device has finished.
        #[default]
        Default = "default",
        /// After the device has finished with it. Freeing blocks until then.
        Blocking = "blocking",
        /// After the device has finished with it. Freeing returns at once.
        Deferred = "deferred",
    }
}

impl FreePolicy {
    const fn flag(self) -> Option<ze_driver_memory_free_policy_ext_flags_t> {
        match self {
            Self::Default => None,
            Self::Blocking => Some(ZE_DRIVER_MEMORY_FREE_POLICY_EXT_FLAG_BLOCKING_FREE),
            Self::Deferred => Some(ZE_DRIVER_MEMORY_FREE_POLICY_EXT_FLAG_DEFER_FREE),
        }
    }
}

/// A builder of a [`LevelZeroProvider`]. Made with [`LevelZeroProvider::device`], `host`, `managed`
/// or `from_context`.
#[derive(Debug)]
#[must_use]
pub struct LevelZeroBuilder {
    source: ContextSource,
    kind: ze_memory_type_t,
    name: Cow<'static, str>,
    ordinal: u32,
    residents: Vec<u32>,
    free_policy: FreePolicy,
    handles: HandleFormat,
    exportable: Option<FdFormat>,
}

/// The context to allocate in.
#[derive(Debug)]
enum ContextSource {
    Selected(DeviceSelector),
    Application(Box<Api>, ze_context_handle_t, ze_device_handle_t),
}

impl LevelZeroBuilder {
    fn new(source: ContextSource, kind: ze_memory_type_t) -> Self {
        Self {
            source,
            kind,
            name: Cow::Borrowed("level-zero"),
            ordinal: 0,
            residents: Vec::new(),
            free_policy: FreePolicy::Default,
            handles: HandleFormat::Auto,
            exportable: None,
        }
    }

    pub(crate) fn selected(device: DeviceSelector, kind: ze_memory_type_t) -> Self {
        Self::new(ContextSource::Selected(device), kind)
    }

    pub(crate) fn from_context(
        api: Api,
        context: ze_context_handle_t,
        device: ze_device_handle_t,
        kind: ze_memory_type_t,
    ) -> Self {
        Self::new(ContextSource::Application(Box::new(api), context, device), kind)
    }

    /// Sets the name in logs, statistics and `umf ps`. Default: `level-zero`.
    pub fn name(mut self, name: impl Into<Cow<'static, str>>) -> Self {
        self.name = name.into();
        self
    }

    /// Sets which of the device's memories to allocate from. Default: 0.
    pub const fn ordinal(mut self, ordinal: u32) -> Self {
        self.ordinal = ordinal;
        self
    }

    /// Sets the numbers of the devices on which all memory is made resident. Default: none.
    /// [`LevelZeroProvider::set_resident`] changes them later.
    pub fn resident(mut self, devices: impl Into<Vec<u32>>) -> Self {
        self.residents = devices.into();
        self
    }

    /// Sets when the driver releases freed memory. Default: as `zeMemFree` does.
    pub const fn free_policy(mut self, policy: FreePolicy) -> Self {
        self.free_policy = policy;
        self
    }

    /// Sets the format of exported handles. Default: [`HandleFormat::Auto`].
    pub const fn handles(mut self, handles: HandleFormat) -> Self {
        self.handles = handles;
        self
    }

    /// Allocates memory that [`LevelZeroProvider::export_fd`] can export in this format. Default:
    /// memory that it cannot export.
    pub const fn exportable(mut self, format: FdFormat) -> Self {
        self.exportable = Some(format);
        self
    }

    /// Builds the provider. The first provider of a driver initializes it.
    ///
    /// # Errors
    /// - [`Error::NotSupported`] if there is no loader or driver, or the driver lacks an option.
    /// - [`Error::InvalidArgument`] if a driver, device or memory number is out of range.
    /// - [`Error::Driver`] if a call of the driver fails.
    pub fn build(self) -> Result<Arc<LevelZeroProvider>> {
        if ![ZE_MEMORY_TYPE_DEVICE, ZE_MEMORY_TYPE_HOST, ZE_MEMORY_TYPE_SHARED].contains(&self.kind) {
            return Err(Error::InvalidArgument {
                what: "kind of memory",
                why: "must be device, host or shared",
            });
        }
        let engine = match self.source {
            ContextSource::Selected(device) => CopyEngine::select(&device)?,
            ContextSource::Application(api, context, device) => {
                let context = Context::from_application(*api, context, device);
                let device = match (device.is_null(), self.kind == ZE_MEMORY_TYPE_HOST) {
                    (true, true) => first_device(&context)?,
                    // The loader dereferences handles without checking them.
                    (true, false) => {
                        let why = "must not be null for memory of a device";
                        return Err(Error::InvalidArgument { what: "device", why });
                    }
                    (false, _) => Device::new(&context, device)?,
                };
                CopyEngine::new(context, device)
            }
        };
        check_ordinal(&engine, self.kind, self.ordinal)?;
        check_policy(engine.context(), self.free_policy)?;
        let mut config = Config {
            name: self.name,
            engine: Arc::new(engine),
            kind: self.kind,
            ordinal: self.ordinal,
            page: 0,
            free_policy: self.free_policy.flag(),
            exportable: self.exportable.map_or(0, FdFormat::flag),
            handles: self.handles,
        };
        config.page = page_size_of(config.engine.context(), self.kind, &config.allocation_desc())?;
        let provider = LevelZeroProvider::new(config);
        if let Some(format) = self.exportable {
            provider.check_exportable(format)?;
        }
        for device in self.residents {
            provider.set_resident(device, true)?;
        }
        Ok(Arc::new(provider))
    }
}

/// Returns the device that copies host memory if the application named none: the driver's first
/// device, or [`Device::NONE`] if the context's driver is unknown.
fn first_device(context: &Context) -> Result<Device> {
    if context.driver().is_null() {
        return Ok(Device::NONE);
    }
    let devices = native::devices(context.api(), context.driver()).map_err(driver_error)?;
    devices.first().map_or(Ok(Device::NONE), |device| Device::new(context, *device))
}

fn check_ordinal(engine: &CopyEngine, kind: ze_memory_type_t, ordinal: u32) -> Result<()> {
    if kind == ZE_MEMORY_TYPE_HOST || ordinal == 0 {
        return Ok(());
    }
    let memories = native::memories(engine.context().api(), engine.device().handle).map_err(driver_error)?;
    if (ordinal as usize) < memories.len() {
        return Ok(());
    }
    Err(Error::InvalidArgument { what: "ordinal", why: "must be below the number of memories of the device" })
}

fn check_policy(context: &Context, policy: FreePolicy) -> Result<()> {
    let Some(flag) = policy.flag() else { return Ok(()) };
    let is_supported = !context.driver().is_null()
        && native::free_policies(context.api(), context.driver()).map_err(driver_error)? & flag != 0;
    if is_supported {
        return Ok(());
    }
    Err(Error::NotSupported {
        what: "this free policy (ZE_extension_memory_free_policies)",
        owner: "this Level Zero driver; use free_policy = \"default\"",
        native: 0,
    })
}

// Settings.

umf_core::words! {
    /// Which memory to allocate.
    #[derive(Default)]
    pub enum LevelZeroMemory {
        /// Device memory.
        #[default]
        Auto = "auto",
        /// Device memory, which the CPU must not access.
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
        /// Which memory: "device" (which the CPU must not access; the same as "auto"), "host", or
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
        /// When the driver releases freed memory: "default" (at once), "blocking" (freeing waits
        /// for the device) or "deferred" (the driver waits for the device).
        pub free_policy: FreePolicy = FreePolicy::Default;
        /// The format of exported handles: "auto", "fd-functions" (descriptors, by the driver's
        /// functions for them), "fd" (descriptors whose numbers are in the driver's handles) or
        /// "opaque" (the driver's handles unchanged; the driver transfers what they need).
        pub handles: HandleFormat = HandleFormat::Auto;
        /// Absolute path of the loader, if it is not the system's libze_loader.so.1. Refused in
        /// ./umf.toml and from a variable, because it is code.
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
