//! [`DriverState`]: the state of the driver in a process; the entry of every function; access to
//! arguments; and settings (`ZE_SOFT_*`).

use std::os::fd::OwnedFd;
use std::sync::{Arc, Mutex, OnceLock};

use level_zero_sys::*;
use soft_device::{
    Budget, DriverCell, DriverCore, Error, FdServer, HandleTable, Health, Settings, Variables, lock,
    read_argument, write_result,
};

use crate::ipc::{Exports, FdTransport, SOCKET};
use crate::memory::Allocation;
use crate::queue::{EventObject, EventPool, FenceObject, List, Queue};

/// The error of a function: a result other than success.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ZeError(ze_result_t);

pub(crate) type ZeResult<T = ()> = Result<T, ZeError>;

impl From<ze_result_t> for ZeError {
    fn from(result: ze_result_t) -> Self {
        Self(result)
    }
}

impl From<ZeError> for ze_result_t {
    fn from(error: ZeError) -> Self {
        error.0
    }
}

impl From<Error> for ZeError {
    fn from(error: Error) -> Self {
        Self(match error {
            Error::OutOfDeviceMemory => ZE_RESULT_ERROR_OUT_OF_DEVICE_MEMORY,
            Error::OutOfFds | Error::System(_) => ZE_RESULT_ERROR_OUT_OF_HOST_MEMORY,
            Error::Lost => ZE_RESULT_ERROR_DEVICE_LOST,
            Error::NotReady => ZE_RESULT_NOT_READY,
            Error::Invalid => ZE_RESULT_ERROR_INVALID_ARGUMENT,
            Error::NoHandle => ZE_RESULT_ERROR_INVALID_NULL_HANDLE,
            Error::Discarded => ZE_RESULT_ERROR_INVALID_SYNCHRONIZATION_OBJECT,
            Error::NullPointer => ZE_RESULT_ERROR_INVALID_NULL_POINTER,
            Error::NotStarted => ZE_RESULT_ERROR_UNINITIALIZED,
            Error::Fault(answer) => ze_result_t(answer),
            // Only CUDA has calls of the application in streams.
            Error::Panicked | Error::OwnStream => ZE_RESULT_ERROR_UNKNOWN,
        })
    }
}

/// Runs the body of a function that does not need an initialized driver. Catches panics.
pub(crate) fn guarded(body: impl FnOnce() -> ZeResult) -> ze_result_t {
    soft_device::guarded(body)
}

/// Runs the body of a function: checks that the driver is initialized, and applies faults. It does
/// not check for lost devices: their memory can be freed.
pub(crate) fn entry(
    function: &'static str,
    body: impl FnOnce(&'static DriverState) -> ZeResult,
) -> ze_result_t {
    guarded(|| {
        let state = DriverState::get()?;
        state.core.faults.apply(function, &state.core.health)?;
        body(state)
    })
}

/// Writes an optional result.
///
/// # Safety
/// The pointer is null or valid for a write.
pub(crate) unsafe fn write_optional<T>(pointer: *mut T, value: T) {
    if !pointer.is_null() {
        // SAFETY: the caller upholds the contract.
        unsafe { pointer.write_unaligned(value) };
    }
}

/// Reads an array. `missing` is the error if the pointer is null and the length is not 0.
///
/// # Safety
/// The pointer is null or valid for reads of `length` elements.
pub(crate) unsafe fn array<T: Copy>(
    pointer: *const T,
    length: u32,
    missing: ze_result_t,
) -> ZeResult<Vec<T>> {
    if length == 0 {
        return Ok(Vec::new());
    }
    if pointer.is_null() {
        return Err(missing.into());
    }
    // SAFETY: the caller upholds the contract.
    Ok((0..length as usize).map(|index| unsafe { pointer.add(index).read_unaligned() }).collect())
}

/// Returns a list as the specification's enumerating functions do. Writes the number of items to
/// `count` if that is 0 or too large, and up to `count` items to `array`.
///
/// # Safety
/// `count` is null or valid; `array` is null or valid for writes of `count` elements.
pub(crate) unsafe fn counted<T>(
    count: *mut u32,
    array: *mut T,
    items: impl ExactSizeIterator<Item = T>,
) -> ZeResult {
    // SAFETY: the caller upholds the contract.
    let capacity = unsafe { read_argument(count) }?;
    let available = u32::try_from(items.len()).unwrap_or(u32::MAX);
    if capacity == 0 || capacity > available {
        // SAFETY: as above.
        unsafe { write_result(count, available) }?;
    }
    if capacity > 0 && !array.is_null() {
        for (index, item) in items.take(capacity as usize).enumerate() {
            // SAFETY: as above, and the index is below the capacity of the array.
            unsafe { array.add(index).write_unaligned(item) };
        }
    }
    Ok(())
}

/// Converts a handle to its number.
pub(crate) fn number(handle: *mut std::ffi::c_void) -> usize {
    handle.addr()
}

/// Converts a number to a handle.
pub(crate) fn handle(number: usize) -> *mut std::ffi::c_void {
    std::ptr::without_provenance_mut(number)
}

/// A root device or a sub-device.
#[derive(Debug)]
pub(crate) struct Device {
    pub(crate) handle: ze_device_handle_t,
    pub(crate) index: u32,
    /// For a sub-device: its index and its root device.
    pub(crate) sub_device: Option<(u32, ze_device_handle_t)>,
    pub(crate) sub_devices: Vec<ze_device_handle_t>,
    /// Its memory; for a sub-device also the root device's.
    pub(crate) memory: Vec<Arc<Budget>>,
    pub(crate) health: Arc<Health>,
}

impl Device {
    /// Returns its root device, which may be itself.
    pub(crate) fn root(&self) -> ze_device_handle_t {
        self.sub_device.map_or(self.handle, |(_, root)| root)
    }
}

/// A context: the owner of memory, queues and events.
#[derive(Debug)]
pub(crate) struct Context;

pub(crate) struct DriverState {
    pub(crate) core: DriverCore<Allocation>,
    pub(crate) settings: DriverSettings,
    pub(crate) driver: ze_driver_handle_t,
    pub(crate) roots: Vec<ze_device_handle_t>,
    pub(crate) devices: HandleTable<Device>,
    pub(crate) contexts: HandleTable<Context>,
    pub(crate) default_context: OnceLock<usize>,
    pub(crate) queues: HandleTable<Queue>,
    pub(crate) lists: HandleTable<List>,
    pub(crate) fences: HandleTable<FenceObject>,
    pub(crate) pools: HandleTable<EventPool>,
    pub(crate) events: HandleTable<EventObject>,
    pub(crate) exports: Exports,
    pub(crate) server: Mutex<Option<FdServer>>,
}

static STATE: DriverCell<DriverState> = DriverCell::new();

impl DriverState {
    /// Initializes the driver unless it is initialized.
    pub(crate) fn start() -> ZeResult<&'static Self> {
        let make = || {
            let (common, settings) = read_settings(soft_device::variable)?;
            Self::new(common, settings)
        };
        Ok(STATE.start("libze_soft", make)?)
    }

    /// Returns the state if the driver was initialized in this process.
    pub(crate) fn get() -> ZeResult<&'static Self> {
        Ok(STATE.get()?)
    }

    fn new(common: Settings, settings: DriverSettings) -> Result<Self, String> {
        let core =
            DriverCore::new(common, crate::driver::answer).map_err(|why| format!("ZE_SOFT_FAULTS: {why}"))?;
        let devices = HandleTable::<Device>::default();
        let next = || ze_device_handle_t(handle(HandleTable::<Device>::next()));
        let add = |handle: ze_device_handle_t, index, sub_device, sub_devices, memory| {
            let health = Arc::clone(&core.health);
            let device = Device { handle, index, sub_device, sub_devices, memory, health };
            devices.insert_as(number(handle.0), device);
        };
        let mut roots = Vec::new();
        for index in 0..core.settings.devices {
            let (root, memory) = (next(), Budget::new(core.settings.memory));
            let sub_devices: Vec<_> = (0..settings.sub_devices).map(|_| next()).collect();
            for (number, sub_device) in (0..).zip(&sub_devices) {
                let share = Budget::new(core.settings.memory / u64::from(settings.sub_devices));
                add(*sub_device, index, Some((number, root)), Vec::new(), vec![share, Arc::clone(&memory)]);
            }
            add(root, index, None, sub_devices, vec![memory]);
            roots.push(root);
        }
        Ok(Self {
            core,
            settings,
            driver: ze_driver_handle_t(handle(HandleTable::<Device>::next())),
            roots,
            devices,
            contexts: HandleTable::default(),
            default_context: OnceLock::new(),
            queues: HandleTable::default(),
            lists: HandleTable::default(),
            fences: HandleTable::default(),
            pools: HandleTable::default(),
            events: HandleTable::default(),
            exports: Exports::default(),
            server: Mutex::default(),
        })
    }

    pub(crate) fn driver(&self, driver: ze_driver_handle_t) -> ZeResult {
        if driver == self.driver { Ok(()) } else { Err(ZE_RESULT_ERROR_INVALID_NULL_HANDLE.into()) }
    }

    pub(crate) fn device(&self, device: ze_device_handle_t) -> ZeResult<Arc<Device>> {
        let device = self.devices.get(number(device.0))?;
        device.health.check()?;
        Ok(device)
    }

    pub(crate) fn context(&self, context: ze_context_handle_t) -> ZeResult<Arc<Context>> {
        let context = self.contexts.get(number(context.0))?;
        self.core.health.check()?;
        Ok(context)
    }

    /// How a new handle for other processes travels.
    pub(crate) fn transport(&'static self) -> ZeResult<FdTransport> {
        let transport = match self.settings.ipc {
            IpcMode::Classic => return Ok(FdTransport::Local),
            IpcMode::OpaquePidfd => {
                // Processes that may trace this one anyway may still take it.
                let _ = soft_device::allow_fd_transfer();
                FdTransport::Pidfd
            }
            IpcMode::Opaque if soft_device::allow_fd_transfer().is_ok() => FdTransport::Pidfd,
            IpcMode::Opaque | IpcMode::OpaqueSocket => FdTransport::Socket,
        };
        if transport == FdTransport::Socket {
            let mut server = lock(&self.server);
            if server.is_none() {
                let find = |number| -> Option<OwnedFd> { self.exports.duplicate(number) };
                *server = Some(FdServer::start(SOCKET, find)?);
            }
        }
        Ok(transport)
    }
}

/// How handles for other processes work.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum IpcMode {
    /// The first four bytes are an fd of the process that opens.
    Classic,
    /// The driver brings the fd over: by `pidfd_getfd`, or by a socket where `PR_SET_PTRACER` is
    /// refused.
    Opaque,
    /// As opaque, with `pidfd_getfd` whatever `PR_SET_PTRACER` says.
    OpaquePidfd,
    /// As opaque, with the socket.
    OpaqueSocket,
}

/// The settings of this driver, in addition to the common ones.
#[derive(Clone, Debug)]
pub(crate) struct DriverSettings {
    pub(crate) sub_devices: u32,
    /// The largest allocation without relaxed limits.
    pub(crate) largest: u64,
    /// The address range of device memory; anywhere if `None`.
    pub(crate) addresses: Option<(usize, usize)>,
    pub(crate) ipc: IpcMode,
    /// Whether opening one handle twice returns one address.
    pub(crate) opens_once: bool,
    /// Whether memory of a peer must be resident before it is accessed.
    pub(crate) strict_residency: bool,
    pub(crate) api: ze_api_version_t,
}

/// Reads the settings.
///
/// # Errors
/// The invalid variable, and its expected value.
pub(crate) fn read_settings(
    find: impl Fn(&str) -> Option<String>,
) -> Result<(Settings, DriverSettings), String> {
    let variables = Variables::new("ZE_SOFT", find);
    let common = Settings::read(&variables, 1, crate::memory::DEVICE_PAGE)?;
    let addresses = "two hexadecimal addresses, as in 0x100000000000-0x100100000000,";
    let settings = DriverSettings {
        sub_devices: variables.number("SUBDEVICES", 0, 0, 16)? as u32,
        largest: variables.number("MAX_ALLOCATION", common.memory, 1, u64::MAX)?,
        addresses: variables.parsed("ADDRESSES", None, addresses, |text| range(text).map(Some))?,
        ipc: [IpcMode::Classic, IpcMode::Opaque, IpcMode::OpaquePidfd, IpcMode::OpaqueSocket]
            [variables.choice("IPC", &["classic", "opaque", "opaque-pidfd", "opaque-socket"])?],
        opens_once: variables.choice("OPEN", &["once", "each"])? == 0,
        strict_residency: variables.choice("RESIDENCY", &["lazy", "strict"])? == 1,
        api: variables.parsed("API", ZE_API_VERSION_CURRENT, "a version from 1.0 to 1.17", version)?,
    };
    Ok((common, settings))
}

fn range(text: &str) -> Option<(usize, usize)> {
    let hexadecimal = |text: &str| usize::from_str_radix(text.trim().trim_start_matches("0x"), 16).ok();
    let (begin, end) = text.split_once('-')?;
    let (begin, end) = (hexadecimal(begin)?, hexadecimal(end)?);
    (begin >= 1 << 16 && begin < end && end <= 1 << 47).then_some((begin, end))
}

fn version(text: &str) -> Option<ze_api_version_t> {
    let minor: u32 = text.strip_prefix("1.")?.parse().ok()?;
    let version = ze_api_version_t(make_version(1, minor));
    (ZE_API_VERSION_1_0..=ZE_API_VERSION_CURRENT).contains(&version).then_some(version)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(name: &str, value: &str) -> Result<DriverSettings, String> {
        read_settings(|wanted| (wanted == name).then(|| value.to_owned())).map(|(_, settings)| settings)
    }

    #[test]
    fn values_are_read() {
        assert_eq!(read("ZE_SOFT_MEMORY", "64M").unwrap().largest, 64 << 20);
        assert_eq!(read("ZE_SOFT_IPC", "opaque-socket").unwrap().ipc, IpcMode::OpaqueSocket);
        assert_eq!(read("ZE_SOFT_API", "1.5").unwrap().api, ze_api_version_t(make_version(1, 5)));
        assert_eq!(
            read("ZE_SOFT_ADDRESSES", "0x100000000000-100000200000").unwrap().addresses,
            Some((0x1000_0000_0000, 0x1000_0020_0000))
        );
    }

    #[test]
    fn invalid_value_names_the_variable() {
        for (name, value) in [
            ("ZE_SOFT_DEVICES", "0"),
            ("ZE_SOFT_IPC", "magic"),
            ("ZE_SOFT_OPEN", "twice"),
            ("ZE_SOFT_RESIDENCY", "x"),
            ("ZE_SOFT_API", "1.99"),
            ("ZE_SOFT_API", "2.0"),
            ("ZE_SOFT_ADDRESSES", "0x2000000-0x1000000"),
            ("ZE_SOFT_ADDRESSES", "0-0x1000000"),
        ] {
            let error = read(name, value).unwrap_err();
            assert!(error.starts_with(&format!("{name}={value}: ")), "{error}");
        }
    }
}
