//! [`Context`]: what memory, lists and handles belong to; one object for each of the driver's.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Weak};

use level_zero_sys::{
    Api, LOADER, OpenError, ZE_RELAXED_ALLOCATION_LIMITS_EXP_NAME, ZE_RELAXED_ALLOCATION_LIMITS_EXT_NAME,
    make_version, ze_context_handle_t, ze_device_handle_t, ze_driver_handle_t,
};
use umf_core::{Error, Result};
use umf_sync::{Lock, fork};

use crate::failure::{NO_DRIVER, error, of_opening};
use crate::native;
use crate::ranges::Ranges;

/// Which device, by the numbers that settings have.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Choice {
    /// The loader, or a driver without one; `None` is the system's loader, `libze_loader.so.1`.
    pub loader: Option<PathBuf>,
    /// Which of the drivers, as the loader counts them.
    pub driver: u32,
    /// Which of its devices.
    pub device: u32,
}

impl Choice {
    /// A device of the first driver of the system's loader.
    #[must_use]
    pub const fn device(number: u32) -> Self {
        Self { loader: None, driver: 0, device: number }
    }

    /// The same device by another loader.
    #[must_use]
    pub fn through(mut self, loader: impl Into<PathBuf>) -> Self {
        self.loader = Some(loader.into());
        self
    }

    /// The same device of another driver.
    #[must_use]
    pub const fn of_driver(mut self, number: u32) -> Self {
        self.driver = number;
        self
    }
}

/// How a driver wants to be asked for more than a device's limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Relaxed {
    Extension,
    Experiment,
}

/// A context of the driver's, and what this process has in it.
pub(crate) struct Context {
    api: Api,
    /// Null if the application's, and no driver knows its device.
    driver: ze_driver_handle_t,
    handle: ze_context_handle_t,
    /// It goes with this object.
    is_own: bool,
    /// The process that made it, as [`fork::generation`] counts: drivers do not come through forks.
    generation: u32,
    pub(crate) relaxed: Option<Relaxed>,
    /// Whether the driver takes handles back: before that, whoever asked for one closes its fd.
    pub(crate) takes_handles_back: bool,
    pub(crate) ranges: Lock<Ranges>,
}

/// The contexts that are in use.
static CONTEXTS: Lock<Vec<Weak<Context>>> = Lock::new(Vec::new());

/// The contexts that were made from settings: by loader and driver. They stay, so that what was opened in one and allocated in
/// the next is the same driver's.
static CHOSEN: Lock<Vec<(OsString, u32, Arc<Context>)>> = Lock::new(Vec::new());

impl core::fmt::Debug for Context {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("Context").field("handle", &self.handle).field("loader", &self.api.path()).finish()
    }
}

impl Context {
    /// The context of a driver by its number, made if it is the first time, and the driver's devices.
    pub(crate) fn chosen(choice: &Choice) -> Result<(Arc<Self>, Vec<ze_device_handle_t>)> {
        let loader = choice.loader.as_deref().unwrap_or(Path::new(LOADER));
        let is_it = |(path, driver, context): &&(OsString, u32, Arc<Self>)| {
            path == loader.as_os_str() && *driver == choice.driver && context.belongs_here()
        };
        let mut chosen = CHOSEN.lock();
        let context = match chosen.iter().find(is_it) {
            Some((_, _, context)) => Arc::clone(context),
            None => {
                let context = Arc::new(Self::make(loader, choice.driver)?);
                chosen.push((loader.as_os_str().to_owned(), choice.driver, Arc::clone(&context)));
                context
            }
        };
        drop(chosen);
        let devices = native::device::devices(&context.api, context.driver).map_err(error)?;
        Ok((context, devices))
    }

    fn make(loader: &Path, number: u32) -> Result<Self> {
        let api = open(loader)?;
        let drivers = drivers(&api)?;
        let driver = drivers.get(number as usize).copied().ok_or(Error::InvalidArgument {
            what: "driver",
            why: "the Level Zero loader has fewer; they are counted from 0",
        })?;
        let handle = native::device::create_context(&api, driver).map_err(error)?;
        Ok(Self::new(api, driver, handle, true))
    }

    /// The application's context: the same object for all providers over it.
    pub(crate) fn over(api: Api, handle: ze_context_handle_t, device: ze_device_handle_t) -> Arc<Self> {
        let mut contexts = CONTEXTS.lock();
        contexts.retain(|context| context.strong_count() > 0);
        let known = contexts.iter().filter_map(Weak::upgrade);
        let same = known.filter(|context| context.handle == handle).find(|context| context.belongs_here());
        if let Some(context) = same {
            return context;
        }
        let driver = driver_of(&api, device);
        let context = Arc::new(Self::new(api, driver, handle, false));
        contexts.push(Arc::downgrade(&context));
        context
    }

    fn new(api: Api, driver: ze_driver_handle_t, handle: ze_context_handle_t, is_own: bool) -> Self {
        let ask = !driver.is_null();
        let extensions =
            if ask { native::device::extensions(&api, driver).unwrap_or_default() } else { Vec::new() };
        let has = |name: &str| extensions.iter().any(|extension| extension == name);
        let relaxed = if has(ZE_RELAXED_ALLOCATION_LIMITS_EXT_NAME) {
            Some(Relaxed::Extension)
        } else {
            has(ZE_RELAXED_ALLOCATION_LIMITS_EXP_NAME).then_some(Relaxed::Experiment)
        };
        let version = if ask { native::device::version(&api, driver).ok() } else { None };
        let takes_handles_back = version.is_none_or(|version| version.0 >= make_version(1, 6));
        Self {
            api,
            driver,
            handle,
            is_own,
            generation: fork::generation(),
            relaxed,
            takes_handles_back,
            ranges: Lock::new(Ranges::default()),
        }
    }

    pub(crate) const fn api(&self) -> &Api {
        &self.api
    }

    pub(crate) const fn driver(&self) -> ze_driver_handle_t {
        self.driver
    }

    pub(crate) const fn handle(&self) -> ze_context_handle_t {
        self.handle
    }

    /// Whether this process made it.
    pub(crate) fn belongs_here(&self) -> bool {
        self.generation == fork::generation()
    }

    /// # Errors
    /// [`Error::Frozen`] in a forked child.
    pub(crate) fn check(&self) -> Result<()> {
        if self.belongs_here() { Ok(()) } else { Err(Error::Frozen { what: "Level Zero memory" }) }
    }
}

impl Drop for Context {
    fn drop(&mut self) {
        if self.is_own && self.belongs_here() {
            let _ = native::device::destroy_context(&self.api, self.handle).map_err(error);
        }
    }
}

/// Opens a loader; or a driver by itself, if it is that.
pub(crate) fn open(path: &Path) -> Result<Api> {
    // SAFETY: the system's loader, or what trusted settings or the program name.
    let opened = unsafe { Api::load_from(path) };
    let opened = match opened {
        // SAFETY: as above.
        Err(OpenError::Other { .. }) => unsafe { Api::load_driver(path) },
        opened => opened,
    };
    opened.map_err(|error| of_opening(&error))
}

/// The drivers of a loader, of which there is at least one.
pub(crate) fn drivers(api: &Api) -> Result<Vec<ze_driver_handle_t>> {
    use level_zero_sys::{ZE_RESULT_ERROR_DEPENDENCY_UNAVAILABLE, ZE_RESULT_ERROR_UNINITIALIZED};
    match native::device::drivers(api) {
        Ok(drivers) if drivers.is_empty() => Err(NO_DRIVER),
        Ok(drivers) => Ok(drivers),
        Err(failure) => {
            let error = error(failure);
            match failure.result() {
                ZE_RESULT_ERROR_UNINITIALIZED | ZE_RESULT_ERROR_DEPENDENCY_UNAVAILABLE => Err(NO_DRIVER),
                _ => Err(error),
            }
        }
    }
}

/// The driver that has a device or the device that it is a part of; null if none says so.
fn driver_of(api: &Api, device: ze_device_handle_t) -> ze_driver_handle_t {
    let drivers = native::device::drivers(api).unwrap_or_default();
    let has = |driver: &ze_driver_handle_t| {
        let devices = native::device::devices(api, *driver).unwrap_or_default();
        devices.iter().any(|found| {
            *found == device || native::device::parts(api, *found).is_ok_and(|parts| parts.contains(&device))
        })
    };
    match drivers[..] {
        [only] => only,
        _ => drivers.iter().copied().find(has).unwrap_or(ze_driver_handle_t::NULL),
    }
}
