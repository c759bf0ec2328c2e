//! [`LevelZeroBuilder`]: how a [`LevelZeroProvider`] is set up.

use std::borrow::Cow;
use std::sync::Arc;

use level_zero_sys::{
    Api, ZE_DRIVER_MEMORY_FREE_POLICY_EXT_FLAG_BLOCKING_FREE,
    ZE_DRIVER_MEMORY_FREE_POLICY_EXT_FLAG_DEFER_FREE, ZE_MEMORY_TYPE_DEVICE, ZE_MEMORY_TYPE_HOST,
    ZE_MEMORY_TYPE_SHARED, ze_context_handle_t, ze_device_handle_t, ze_driver_memory_free_policy_ext_flags_t,
    ze_memory_type_t,
};
use umf_core::{Error, Result};

use crate::context::{Choice, Context};
use crate::engine::{Device, Engine, page_of};
use crate::external::FdForm;
use crate::failure::error;
use crate::handles::Handles;
use crate::native;
use crate::provider::{LevelZeroProvider, Parts};

umf_core::words! {
    /// When freed memory goes.
    #[derive(Default)]
    #[non_exhaustive]
    pub enum FreePolicy {
        /// As `zeMemFree` does.
        #[default]
        Default = "default",
        /// Once the device has finished with it; freeing waits for that.
        Blocking = "blocking",
        /// Once the device has finished with it; freeing does not wait.
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

/// How a [`LevelZeroProvider`] is set up. Got from there.
#[derive(Debug)]
#[must_use]
pub struct LevelZeroBuilder {
    origin: Origin,
    kind: ze_memory_type_t,
    name: Cow<'static, str>,
    ordinal: u32,
    residents: Vec<u32>,
    free_policy: FreePolicy,
    handles: Handles,
    exportable: Option<FdForm>,
}

#[derive(Debug)]
enum Origin {
    Chosen(Choice),
    Given(Box<Api>, ze_context_handle_t, ze_device_handle_t),
}

impl LevelZeroBuilder {
    fn new(origin: Origin, kind: ze_memory_type_t) -> Self {
        Self {
            origin,
            kind,
            name: Cow::Borrowed("level-zero"),
            ordinal: 0,
            residents: Vec::new(),
            free_policy: FreePolicy::Default,
            handles: Handles::Auto,
            exportable: None,
        }
    }

    pub(crate) fn chosen(choice: Choice, kind: ze_memory_type_t) -> Self {
        Self::new(Origin::Chosen(choice), kind)
    }

    pub(crate) fn over(
        api: Api,
        context: ze_context_handle_t,
        device: ze_device_handle_t,
        kind: ze_memory_type_t,
    ) -> Self {
        Self::new(Origin::Given(Box::new(api), context, device), kind)
    }

    /// A name for people: logs, statistics, `umf ps`. Default: `level-zero`.
    pub fn name(mut self, name: impl Into<Cow<'static, str>>) -> Self {
        self.name = name.into();
        self
    }

    /// Which of the device's memories. Default: 0.
    pub const fn ordinal(mut self, ordinal: u32) -> Self {
        self.ordinal = ordinal;
        self
    }

    /// Devices of the driver on which all memory is made resident, by their numbers. Default: none. Changed later with
    /// [`LevelZeroProvider::set_resident`].
    pub fn resident(mut self, devices: impl Into<Vec<u32>>) -> Self {
        self.residents = devices.into();
        self
    }

    /// When freed memory goes. Default: as `zeMemFree` does.
    pub const fn free_policy(mut self, policy: FreePolicy) -> Self {
        self.free_policy = policy;
        self
    }

    /// What travels to other processes. Default: what the driver can do best.
    pub const fn handles(mut self, handles: Handles) -> Self {
        self.handles = handles;
        self
    }

    /// Allocate memory of which there can be fds ([`LevelZeroProvider::export_fd`]). Default: not.
    pub const fn exportable(mut self, form: FdForm) -> Self {
        self.exportable = Some(form);
        self
    }

    /// Builds the provider, and starts the driver if it is the first.
    ///
    /// # Errors
    /// [`Error::NotSupported`] without loader or driver, or if the driver cannot do what is asked for; [`Error::InvalidArgument`]
    /// for numbers of what is not there; [`Error::Driver`].
    pub fn build(self) -> Result<Arc<LevelZeroProvider>> {
        if ![ZE_MEMORY_TYPE_DEVICE, ZE_MEMORY_TYPE_HOST, ZE_MEMORY_TYPE_SHARED].contains(&self.kind) {
            return Err(Error::InvalidArgument {
                what: "kind of memory",
                why: "must be device, host or shared",
            });
        }
        let engine = match self.origin {
            Origin::Chosen(choice) => Engine::chosen(&choice)?,
            Origin::Given(api, context, device) => {
                let context = Context::over(*api, context, device);
                let device = match (device.is_null(), self.kind == ZE_MEMORY_TYPE_HOST) {
                    (true, true) => first_device(&context)?,
                    // The loader looks behind handles before anybody checks them.
                    (true, false) => {
                        let why = "must not be null for memory of a device";
                        return Err(Error::InvalidArgument { what: "device", why });
                    }
                    (false, _) => Device::new(&context, device)?,
                };
                Engine::new(context, device)
            }
        };
        check_ordinal(&engine, self.kind, self.ordinal)?;
        check_policy(engine.context(), self.free_policy)?;
        let mut parts = Parts {
            name: self.name,
            engine: Arc::new(engine),
            kind: self.kind,
            ordinal: self.ordinal,
            page: 0,
            free_policy: self.free_policy.flag(),
            exportable: self.exportable.map_or(0, FdForm::flag),
            handles: self.handles,
        };
        parts.page = page_of(parts.engine.context(), self.kind, &parts.wish())?;
        let provider = LevelZeroProvider::new(parts);
        if let Some(form) = self.exportable {
            provider.check_exportable(form)?;
        }
        for device in self.residents {
            provider.set_resident(device, true)?;
        }
        Ok(Arc::new(provider))
    }
}

/// The device that copies memory of the host where none was named: the driver's first, if it is known which driver that is.
/// (A driver's functions do not say whether a context is theirs; they believe it.)
fn first_device(context: &Context) -> Result<Device> {
    if context.driver().is_null() {
        return Ok(Device::ABSENT);
    }
    let devices = native::device::devices(context.api(), context.driver()).map_err(error)?;
    devices.first().map_or(Ok(Device::ABSENT), |device| Device::new(context, *device))
}

fn check_ordinal(engine: &Engine, kind: ze_memory_type_t, ordinal: u32) -> Result<()> {
    if kind == ZE_MEMORY_TYPE_HOST || ordinal == 0 {
        return Ok(());
    }
    let memories = native::device::memories(engine.context().api(), engine.device().handle).map_err(error)?;
    if (ordinal as usize) < memories.len() {
        return Ok(());
    }
    Err(Error::InvalidArgument {
        what: "ordinal",
        why: "the device has fewer memories; they are counted from 0",
    })
}

fn check_policy(context: &Context, policy: FreePolicy) -> Result<()> {
    let Some(flag) = policy.flag() else { return Ok(()) };
    let has = !context.driver().is_null()
        && native::device::free_policies(context.api(), context.driver()).map_err(error)? & flag != 0;
    if has {
        return Ok(());
    }
    Err(Error::NotSupported {
        what: "this policy of freeing (ZE_extension_memory_free_policies)",
        owner: "this Level Zero driver; use the default",
        native: 0,
    })
}
