//! [`Context`]: a driver context with the state that this process keeps for it, shared by all
//! providers and importers over it. [`AddressMap`]: the memory of a context, by address.
//! [`survey`]: the drivers and devices of this machine.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Weak};

use level_zero_sys::{
    Api, LOADER, OpenError, ZE_RELAXED_ALLOCATION_LIMITS_EXP_NAME, ZE_RELAXED_ALLOCATION_LIMITS_EXT_NAME,
    make_version, ze_api_version_t, ze_context_handle_t, ze_device_handle_t, ze_driver_handle_t,
};
use umf_core::{Address, Error, Result};
use umf_sync::{Lock, fork};

use crate::native::{self, NO_DRIVER, driver_error, open_error};

/// Selects a device by loader, driver number and device number.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct DeviceSelector {
    /// Path of the loader, or of a driver that is used without a loader. `None`: the system's
    /// loader, `libze_loader.so.1`.
    pub loader: Option<PathBuf>,
    /// Number of the driver, in the loader's order, from 0.
    pub driver: u32,
    /// Number of the device, in the driver's order, from 0.
    pub device: u32,
}

impl DeviceSelector {
    /// Selects a device of the first driver of the system's loader.
    #[must_use]
    pub const fn device(number: u32) -> Self {
        Self { loader: None, driver: 0, device: number }
    }

    /// Sets the path of the loader.
    #[must_use]
    pub fn loader(mut self, loader: impl Into<PathBuf>) -> Self {
        self.loader = Some(loader.into());
        self
    }

    /// Sets the number of the driver.
    #[must_use]
    pub const fn driver(mut self, number: u32) -> Self {
        self.driver = number;
        self
    }
}

/// The extension by which a driver allocates more than a device's `maxMemAllocSize`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum RelaxedLimits {
    /// `ZE_extension_relaxed_allocation_limits`.
    Extension,
    /// `ZE_experimental_relaxed_allocation_limits`.
    Experimental,
}

/// A driver context, and the memory that this process has in it.
pub(crate) struct Context {
    api: Api,
    /// Null for an application's context if no driver lists the device.
    driver: ze_driver_handle_t,
    handle: ze_context_handle_t,
    /// Whether dropping this object destroys the driver's context.
    is_owned: bool,
    /// The fork generation in which it was created: drivers do not survive a fork.
    generation: u32,
    pub(crate) relaxed: Option<RelaxedLimits>,
    /// Whether the driver has `zeMemPutIpcHandle`. Before 1.6, the exporter closes a handle's fd.
    pub(crate) has_put_handle: bool,
    pub(crate) address_map: Lock<AddressMap>,
}

/// The live contexts that belong to the application.
static APPLICATION_CONTEXTS: Lock<Vec<Weak<Context>>> = Lock::new(Vec::new());

/// The contexts that this crate created, one per loader and driver number. [`release_unused`] removes
/// those without a user. Providers and importers of one driver always share a context.
static OWNED_CONTEXTS: Lock<Vec<(OsString, u32, Arc<Context>)>> = Lock::new(Vec::new());

impl core::fmt::Debug for Context {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("Context").field("handle", &self.handle).field("loader", &self.api.path()).finish()
    }
}

impl Context {
    /// Returns the context of the selected driver, created on first use, and the driver's devices.
    pub(crate) fn select(selector: &DeviceSelector) -> Result<(Arc<Self>, Vec<ze_device_handle_t>)> {
        let loader = selector.loader.as_deref().unwrap_or(Path::new(LOADER));
        let matches = |(path, driver, context): &&(OsString, u32, Arc<Self>)| {
            path == loader.as_os_str() && *driver == selector.driver && context.is_usable()
        };
        let mut owned = OWNED_CONTEXTS.lock();
        let context = match owned.iter().find(matches) {
            Some((_, _, context)) => Arc::clone(context),
            None => {
                let context = Arc::new(Self::create(loader, selector.driver)?);
                owned.push((loader.as_os_str().to_owned(), selector.driver, Arc::clone(&context)));
                context
            }
        };
        drop(owned);
        let devices = native::devices(&context.api, context.driver).map_err(driver_error)?;
        Ok((context, devices))
    }

    fn create(loader: &Path, number: u32) -> Result<Self> {
        let api = open(loader)?;
        let drivers = drivers(&api)?;
        let driver = drivers.get(number as usize).copied().ok_or(Error::InvalidArgument {
            what: "driver",
            why: "must be below the number of drivers of the Level Zero loader (umf info lists them)",
        })?;
        let handle = native::create_context(&api, driver).map_err(driver_error)?;
        Ok(Self::new(api, driver, handle, true))
    }

    /// Returns the object for an application's context: the same one for all providers over it.
    pub(crate) fn from_application(
        api: Api,
        handle: ze_context_handle_t,
        device: ze_device_handle_t,
    ) -> Arc<Self> {
        let mut contexts = APPLICATION_CONTEXTS.lock();
        contexts.retain(|context| context.strong_count() > 0);
        let known = contexts.iter().filter_map(Weak::upgrade);
        let same = known.filter(|context| context.handle == handle).find(|context| context.is_usable());
        if let Some(context) = same {
            return context;
        }
        let driver = driver_of(&api, device);
        let context = Arc::new(Self::new(api, driver, handle, false));
        contexts.push(Arc::downgrade(&context));
        context
    }

    fn new(api: Api, driver: ze_driver_handle_t, handle: ze_context_handle_t, is_owned: bool) -> Self {
        let is_known = !driver.is_null();
        let extensions =
            if is_known { native::extensions(&api, driver).unwrap_or_default() } else { Vec::new() };
        let has = |name: &str| extensions.iter().any(|extension| extension == name);
        let relaxed = if has(ZE_RELAXED_ALLOCATION_LIMITS_EXT_NAME) {
            Some(RelaxedLimits::Extension)
        } else {
            has(ZE_RELAXED_ALLOCATION_LIMITS_EXP_NAME).then_some(RelaxedLimits::Experimental)
        };
        let version = if is_known { native::version(&api, driver).ok() } else { None };
        let has_put_handle = version.is_none_or(|version| version.0 >= make_version(1, 6));
        Self {
            api,
            driver,
            handle,
            is_owned,
            generation: fork::generation(),
            relaxed,
            has_put_handle,
            address_map: Lock::new(AddressMap::default()),
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

    /// Returns whether this process created it, rather than inherited it through a fork.
    pub(crate) fn is_usable(&self) -> bool {
        self.generation == fork::generation()
    }

    /// Checks that the driver works in this process.
    ///
    /// # Errors
    /// [`Error::Frozen`] in a forked child.
    pub(crate) fn check(&self) -> Result<()> {
        if self.is_usable() { Ok(()) } else { Err(Error::Frozen { what: "Level Zero memory" }) }
    }
}

/// Destroys the contexts of this crate that no provider and no copy engine uses.
pub(crate) fn release_unused() {
    // References are added under the lock alone, or from others. They are dropped without it.
    let unused = |(_, _, context): &mut (OsString, u32, Arc<Context>)| Arc::strong_count(context) == 1;
    let unused: Vec<_> = OWNED_CONTEXTS.lock().extract_if(.., unused).collect();
    drop(unused);
}

impl Drop for Context {
    fn drop(&mut self) {
        if self.is_owned && self.is_usable() {
            let _ = native::destroy_context(&self.api, self.handle).map_err(driver_error);
        }
    }
}

/// Opens a loader, or a driver if the library is one.
pub(crate) fn open(path: &Path) -> Result<Api> {
    // SAFETY: the path is the system's loader, or comes from trusted settings or the program.
    let opened = unsafe { Api::load_from(path) };
    let opened = match opened {
        // SAFETY: as above.
        Err(OpenError::Other { .. }) => unsafe { Api::load_driver(path) },
        opened => opened,
    };
    opened.map_err(|error| open_error(&error))
}

/// Returns the drivers of a loader.
///
/// # Errors
/// [`NO_DRIVER`] if the loader has none.
pub(crate) fn drivers(api: &Api) -> Result<Vec<ze_driver_handle_t>> {
    use level_zero_sys::{ZE_RESULT_ERROR_DEPENDENCY_UNAVAILABLE, ZE_RESULT_ERROR_UNINITIALIZED};
    match native::drivers(api) {
        Ok(drivers) if drivers.is_empty() => Err(NO_DRIVER),
        Ok(drivers) => Ok(drivers),
        Err(failure) => {
            // Recorded for `last_failure` whatever is returned.
            let error = driver_error(failure);
            match failure.result() {
                ZE_RESULT_ERROR_UNINITIALIZED | ZE_RESULT_ERROR_DEPENDENCY_UNAVAILABLE => Err(NO_DRIVER),
                _ => Err(error),
            }
        }
    }
}

/// Returns the driver that lists a device, or its root device. Null if several drivers exist and
/// none lists it.
fn driver_of(api: &Api, device: ze_device_handle_t) -> ze_driver_handle_t {
    let drivers = native::drivers(api).unwrap_or_default();
    let has = |driver: &ze_driver_handle_t| {
        let devices = native::devices(api, *driver).unwrap_or_default();
        devices.iter().any(|found| {
            *found == device || native::sub_devices(api, *found).is_ok_and(|found| found.contains(&device))
        })
    };
    match drivers[..] {
        [only] => only,
        _ => drivers.iter().copied().find(has).unwrap_or(ze_driver_handle_t::NULL),
    }
}

/// A driver and its devices.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct DriverInfo {
    /// The version of the specification that it implements; `None` if the driver does not report
    /// it.
    pub version: Option<(u32, u32)>,
    /// Its root devices.
    pub devices: Vec<DeviceInfo>,
}

/// A root device.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct DeviceInfo {
    /// The driver's name for it.
    pub name: String,
    /// Size of all of its memories, in bytes.
    pub memory: u64,
    /// Number of sub-devices.
    pub sub_devices: usize,
}

/// Initializes the drivers that the system's loader finds, and returns them in the loader's order.
///
/// # Errors
/// [`umf_core::Error::NotSupported`] if there is no loader or no driver;
/// [`umf_core::Error::Driver`].
pub fn survey() -> Result<Vec<DriverInfo>> {
    let api = open(Path::new(LOADER))?;
    let version = |version: ze_api_version_t| (version.0 >> 16, version.0 & 0xffff);
    let device = |device: &ze_device_handle_t| {
        let properties = native::properties(&api, *device).map_err(driver_error)?;
        let memories = native::memories(&api, *device).unwrap_or_default();
        Ok(DeviceInfo {
            name: native::text(&properties.name),
            memory: memories.iter().map(|memory| memory.totalSize).sum(),
            sub_devices: native::sub_devices(&api, *device).unwrap_or_default().len(),
        })
    };
    drivers(&api)?
        .into_iter()
        .map(|driver| {
            let devices = native::devices(&api, driver).map_err(driver_error)?;
            Ok(DriverInfo {
                version: native::version(&api, driver).ok().map(version),
                devices: devices.iter().map(device).collect::<Result<_>>()?,
            })
        })
        .collect()
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct MapEntry {
    size: usize,
    /// Number of imports; 0 for an allocation of this process.
    imports: u32,
}

/// The memory of a context by base address: regions of its providers, and imports from other
/// processes. Copies check their ranges against it before the driver gets them.
#[derive(Debug, Default)]
pub(crate) struct AddressMap(BTreeMap<u64, MapEntry>);

impl AddressMap {
    /// Adds an allocation.
    pub(crate) fn add(&mut self, base: Address, size: usize) {
        self.0.insert(base.to_bits(), MapEntry { size, imports: 0 });
    }

    /// Removes an allocation.
    pub(crate) fn remove(&mut self, base: Address) {
        self.0.remove(&base.to_bits());
    }

    /// Returns whether an import begins at `base`. A driver may map one allocation once for several
    /// opens; it is then closed once.
    pub(crate) fn is_imported(&self, base: Address) -> bool {
        self.0.get(&base.to_bits()).is_some_and(|entry| entry.imports > 0)
    }

    /// Returns whether there are imports.
    pub(crate) fn has_imports(&self) -> bool {
        self.0.values().any(|entry| entry.imports > 0)
    }

    /// Adds an import, or counts one more import of the same memory.
    pub(crate) fn add_import(&mut self, base: Address, size: usize) {
        let entry = self.0.entry(base.to_bits()).or_insert(MapEntry { size, imports: 0 });
        entry.imports = entry.imports.saturating_add(1);
    }

    /// Removes one import. Returns whether it was the last, or `None` if none begins at `base`.
    pub(crate) fn remove_import(&mut self, base: Address) -> Option<bool> {
        let entry = self.0.get_mut(&base.to_bits()).filter(|entry| entry.imports > 0)?;
        entry.imports -= 1;
        let is_last = entry.imports == 0;
        if is_last {
            self.0.remove(&base.to_bits());
        }
        Some(is_last)
    }

    /// Checks that one entry contains the whole range.
    ///
    /// # Errors
    /// [`Error::ForeignAddress`].
    pub(crate) fn check(&self, base: Address, size: usize) -> Result<()> {
        let foreign =
            Error::ForeignAddress { address: base, owner: "one region or import of this Level Zero context" };
        let (start, entry) = self.0.range(..=base.to_bits()).next_back().ok_or(foreign)?;
        let offset = base.to_bits() - start;
        let end = offset.checked_add(size as u64).ok_or(foreign)?;
        if offset < entry.size as u64 && end <= entry.size as u64 { Ok(()) } else { Err(foreign) }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test that cannot go on ends")]

    use super::*;

    fn at(value: usize) -> Address {
        Address::new(value).unwrap()
    }

    #[test]
    fn check_requires_one_entry_to_contain_the_range() {
        let mut map = AddressMap::default();
        map.add(at(4096), 4096);
        map.add(at(8192), 4096);
        map.check(at(4096), 4096).unwrap();
        map.check(at(8191), 1).unwrap();
        map.check(at(5000), 0).unwrap();
        for (base, size) in [(4095, 1), (4096, 4097), (12288, 0), (12287, 2), (5000, usize::MAX)] {
            assert!(map.check(at(base), size).is_err(), "{size} at {base}");
        }
        map.remove(at(4096));
        assert!(map.check(at(4096), 1).is_err());
    }

    #[test]
    fn memory_imported_twice_is_removed_by_the_second_close() {
        let mut map = AddressMap::default();
        map.add(at(4096), 4096);
        assert_eq!((map.is_imported(at(4096)), map.remove_import(at(4096))), (false, None));
        map.add_import(at(65536), 100);
        map.add_import(at(65536), 100);
        assert!(map.is_imported(at(65536)));
        assert_eq!(map.remove_import(at(65536)), Some(false));
        map.check(at(65536), 100).unwrap();
        assert_eq!(map.remove_import(at(65536)), Some(true));
        assert_eq!(map.remove_import(at(65536)), None);
        assert!(map.check(at(65536), 1).is_err());
    }
}
