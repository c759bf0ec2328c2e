//! What every function of the driver goes through, everything that the driver has, and its settings
//! (`ZE_SOFT_*`).

use std::os::fd::OwnedFd;
use std::sync::{Arc, Mutex, OnceLock};

use level_zero_sys::*;
use soft_device::{Budget, Core, Error, Handles, Health, Once, Server, Settings, Variables, get, lock, put};

use crate::ipc::{Exports, SOCKET, Way};
use crate::memory::Allocation;
use crate::queue::{EventObject, EventPool, FenceObject, List, Queue};

/// Why a function does not do what it should.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ZeError(ze_result_t);

pub(crate) type Done<T = ()> = Result<T, ZeError>;

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
            Error::NullPointer => ZE_RESULT_ERROR_INVALID_NULL_POINTER,
            Error::NotStarted => ZE_RESULT_ERROR_UNINITIALIZED,
            Error::Fault(answer) => ze_result_t(answer),
            Error::Panicked => ZE_RESULT_ERROR_UNKNOWN,
        })
    }
}

/// Runs what needs no driver that runs. No panic leaves it.
pub(crate) fn guarded(body: impl FnOnce() -> Done) -> ze_result_t {
    soft_device::guarded(body)
}

/// Runs a function of the driver. It works whether the devices are lost or not: memory can be freed
/// in any case.
pub(crate) fn entry(function: &'static str, body: impl FnOnce(&'static State) -> Done) -> ze_result_t {
    guarded(|| {
        let state = State::get()?;
        state.core.faults.play(function, &state.core.health)?;
        body(state)
    })
}

/// Writes a result where one is wanted.
///
/// # Safety
/// The pointer is null or valid for a write.
pub(crate) unsafe fn put_if_wanted<T>(pointer: *mut T, value: T) {
    if !pointer.is_null() {
        // SAFETY: the caller's promise.
        unsafe { pointer.write_unaligned(value) };
    }
}

/// Reads an array; `missing` is the answer if there is none though its length is not zero.
///
/// # Safety
/// The pointer is null or valid for so many reads.
pub(crate) unsafe fn array<T: Copy>(pointer: *const T, length: u32, missing: ze_result_t) -> Done<Vec<T>> {
    if length == 0 {
        return Ok(Vec::new());
    }
    if pointer.is_null() {
        return Err(missing.into());
    }
    // SAFETY: the caller's promise.
    Ok((0..length as usize).map(|index| unsafe { pointer.add(index).read_unaligned() }).collect())
}

/// A list whose length is asked for first: writes the length where the count is zero or more than
/// there is, and as many items as there is room for.
///
/// # Safety
/// The count is null or valid, and the array null or valid for so many writes.
pub(crate) unsafe fn counted<T>(
    count: *mut u32,
    array: *mut T,
    items: impl ExactSizeIterator<Item = T>,
) -> Done {
    // SAFETY: the caller's promise.
    let room = unsafe { get(count) }?;
    let there = u32::try_from(items.len()).unwrap_or(u32::MAX);
    if room == 0 || room > there {
        // SAFETY: as above.
        unsafe { put(count, there) }?;
    }
    if room > 0 && !array.is_null() {
        for (index, item) in items.take(room as usize).enumerate() {
            // SAFETY: as above, and below the room that there is.
            unsafe { array.add(index).write_unaligned(item) };
        }
    }
    Ok(())
}

/// The number behind a handle.
pub(crate) fn number(handle: *mut std::ffi::c_void) -> usize {
    handle.addr()
}

/// A handle from its number.
pub(crate) fn handle(number: usize) -> *mut std::ffi::c_void {
    std::ptr::without_provenance_mut(number)
}

/// A device or a part of one.
#[derive(Debug)]
pub(crate) struct Device {
    pub(crate) handle: ze_device_handle_t,
    pub(crate) index: u32,
    /// Which part of which device.
    pub(crate) part: Option<(u32, ze_device_handle_t)>,
    pub(crate) parts: Vec<ze_device_handle_t>,
    /// Its memory, and that of the whole, if this is a part.
    pub(crate) memory: Vec<Arc<Budget>>,
    pub(crate) health: Arc<Health>,
}

impl Device {
    /// The device that this is, or is a part of.
    pub(crate) fn root(&self) -> ze_device_handle_t {
        self.part.map_or(self.handle, |(_, root)| root)
    }
}

/// What memory, queues and events belong to.
#[derive(Debug)]
pub(crate) struct Context;

pub(crate) struct State {
    pub(crate) core: Core<Allocation>,
    pub(crate) settings: DriverSettings,
    pub(crate) driver: ze_driver_handle_t,
    pub(crate) roots: Vec<ze_device_handle_t>,
    pub(crate) devices: Handles<Device>,
    pub(crate) contexts: Handles<Context>,
    pub(crate) default_context: OnceLock<usize>,
    pub(crate) queues: Handles<Queue>,
    pub(crate) lists: Handles<List>,
    pub(crate) fences: Handles<FenceObject>,
    pub(crate) pools: Handles<EventPool>,
    pub(crate) events: Handles<EventObject>,
    pub(crate) exports: Exports,
    pub(crate) server: Mutex<Option<Server>>,
}

static STATE: Once<State> = Once::new();

impl State {
    /// Starts the driver, or says that it runs.
    pub(crate) fn start() -> Done<&'static Self> {
        let make = || {
            let (common, settings) = read_settings(soft_device::variable)?;
            Self::new(common, settings)
        };
        Ok(STATE.start("libze_soft", make)?)
    }

    /// The driver, if it was started in this process.
    pub(crate) fn get() -> Done<&'static Self> {
        Ok(STATE.get()?)
    }

    fn new(common: Settings, settings: DriverSettings) -> Result<Self, String> {
        let core =
            Core::new(common, crate::driver::answer).map_err(|why| format!("ZE_SOFT_FAULTS: {why}"))?;
        let devices = Handles::<Device>::default();
        let next = || ze_device_handle_t(handle(Handles::<Device>::next()));
        let add = |handle: ze_device_handle_t, index, part, parts, memory| {
            let health = Arc::clone(&core.health);
            devices.insert_as(number(handle.0), Device { handle, index, part, parts, memory, health });
        };
        let mut roots = Vec::new();
        for index in 0..core.settings.devices {
            let (root, memory) = (next(), Budget::new(core.settings.memory));
            let parts: Vec<_> = (0..settings.sub_devices).map(|_| next()).collect();
            for (place, part) in (0..).zip(&parts) {
                let share = Budget::new(core.settings.memory / u64::from(settings.sub_devices));
                add(*part, index, Some((place, root)), Vec::new(), vec![share, Arc::clone(&memory)]);
            }
            add(root, index, None, parts, vec![memory]);
            roots.push(root);
        }
        Ok(Self {
            core,
            settings,
            driver: ze_driver_handle_t(handle(Handles::<Device>::next())),
            roots,
            devices,
            contexts: Handles::default(),
            default_context: OnceLock::new(),
            queues: Handles::default(),
            lists: Handles::default(),
            fences: Handles::default(),
            pools: Handles::default(),
            events: Handles::default(),
            exports: Exports::default(),
            server: Mutex::default(),
        })
    }

    pub(crate) fn driver(&self, driver: ze_driver_handle_t) -> Done {
        if driver == self.driver { Ok(()) } else { Err(ZE_RESULT_ERROR_INVALID_NULL_HANDLE.into()) }
    }

    pub(crate) fn device(&self, device: ze_device_handle_t) -> Done<Arc<Device>> {
        let device = self.devices.get(number(device.0))?;
        device.health.check()?;
        Ok(device)
    }

    pub(crate) fn context(&self, context: ze_context_handle_t) -> Done<Arc<Context>> {
        let context = self.contexts.get(number(context.0))?;
        self.core.health.check()?;
        Ok(context)
    }

    /// How a new handle for other processes travels.
    pub(crate) fn way(&'static self) -> Done<Way> {
        let way = match self.settings.ipc {
            Ipc::Classic => return Ok(Way::Local),
            Ipc::OpaquePidfd => {
                // Processes that may trace this one anyway may still take it.
                let _ = soft_device::allow_everyone();
                Way::Pidfd
            }
            Ipc::Opaque if soft_device::allow_everyone().is_ok() => Way::Pidfd,
            Ipc::Opaque | Ipc::OpaqueSocket => Way::Socket,
        };
        if way == Way::Socket {
            let mut server = lock(&self.server);
            if server.is_none() {
                let find = |number| -> Option<OwnedFd> { self.exports.duplicate(number) };
                *server = Some(Server::start(SOCKET, find)?);
            }
        }
        Ok(way)
    }
}

/// How handles for other processes work.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Ipc {
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

/// The settings that this driver has beside those of every driver.
#[derive(Clone, Debug)]
pub(crate) struct DriverSettings {
    pub(crate) sub_devices: u32,
    /// The largest allocation that is not asked for as an exception.
    pub(crate) largest: u64,
    /// Where device memory has its addresses; anywhere if absent.
    pub(crate) addresses: Option<(usize, usize)>,
    pub(crate) ipc: Ipc,
    /// Opening one handle twice gives one address.
    pub(crate) opens_once: bool,
    /// A peer's memory has to be made resident before it is used.
    pub(crate) strict_residency: bool,
    pub(crate) api: ze_api_version_t,
}

/// Reads the settings.
///
/// # Errors
/// The variable that is wrong, and what would be right.
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
        ipc: [Ipc::Classic, Ipc::Opaque, Ipc::OpaquePidfd, Ipc::OpaqueSocket]
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
        assert_eq!(read("ZE_SOFT_IPC", "opaque-socket").unwrap().ipc, Ipc::OpaqueSocket);
        assert_eq!(read("ZE_SOFT_API", "1.5").unwrap().api, ze_api_version_t(make_version(1, 5)));
        assert_eq!(
            read("ZE_SOFT_ADDRESSES", "0x100000000000-100000200000").unwrap().addresses,
            Some((0x1000_0000_0000, 0x1000_0020_0000))
        );
    }

    #[test]
    fn wrong_values_name_the_variable() {
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
