//! [`DriverState`]: the state of the driver in a process; the entry of every function; settings
//! (`CUDA_SOFT_*` and `CUDA_VISIBLE_DEVICES`); and the two functions that only tests call.

use std::ffi::c_char;
use std::sync::{Arc, Mutex};

use cuda_sys::*;
use soft_device::{
    Budget, DriverCell, DriverCore, Error, HandleTable, Mapping, Settings, Variables, lock, print_line,
    read_text, write_result,
};

use crate::context::Context;
use crate::event::EventObject;
use crate::memory::{Allocation, AllocationKind, Registrations};
use crate::pool::PoolTable;
use crate::stream::StreamObject;
use crate::virtual_memory::PhysicalHandle;

/// The error of a function: a result other than success.
#[derive(Clone, Copy, Debug)]
pub(crate) struct CudaError(CUresult);

pub(crate) type CudaResult<T = ()> = Result<T, CudaError>;

impl From<CUresult> for CudaError {
    fn from(result: CUresult) -> Self {
        Self(result)
    }
}

impl From<CudaError> for CUresult {
    fn from(error: CudaError) -> Self {
        error.0
    }
}

impl From<Error> for CudaError {
    fn from(error: Error) -> Self {
        Self(match error {
            Error::OutOfDeviceMemory => CUDA_ERROR_OUT_OF_MEMORY,
            Error::Lost => CUDA_ERROR_LAUNCH_FAILED,
            Error::NotReady => CUDA_ERROR_NOT_READY,
            Error::NoHandle | Error::Discarded => CUDA_ERROR_INVALID_HANDLE,
            Error::OwnStream => CUDA_ERROR_NOT_PERMITTED,
            Error::NotStarted => CUDA_ERROR_NOT_INITIALIZED,
            Error::Fault(answer) => CUresult(answer),
            Error::Panicked => CUDA_ERROR_UNKNOWN,
            Error::System(errno) if errno.raw_os_error() == 12 => CUDA_ERROR_OUT_OF_MEMORY,
            Error::OutOfFds | Error::System(_) => CUDA_ERROR_OPERATING_SYSTEM,
            Error::Invalid | Error::NullPointer => CUDA_ERROR_INVALID_VALUE,
        })
    }
}

/// Runs the body of a function that does not need an initialized driver. Catches panics.
pub(crate) fn guarded(body: impl FnOnce() -> CudaResult) -> CUresult {
    soft_device::guarded(body)
}

/// Runs the body of a function: checks that the driver is initialized, applies faults, and fails if
/// the device is lost.
pub(crate) fn entry(
    function: &'static str,
    body: impl FnOnce(&'static DriverState) -> CudaResult,
) -> CUresult {
    unfaulted(function, |state| {
        state.core.faults.apply(function, &state.core.health)?;
        state.core.health.check()?;
        body(state)
    })
}

/// Runs the body of a function that works on a lost device too.
pub(crate) fn unfaulted(
    function: &'static str,
    body: impl FnOnce(&'static DriverState) -> CudaResult,
) -> CUresult {
    let result = guarded(|| body(DriverState::get()?));
    if DriverState::get().is_ok_and(|state| state.settings.logs_calls) {
        let name = result.name().unwrap_or("a result without a name");
        print_line(format_args!("libcuda_soft: {function}: {name}"));
    }
    result
}

/// A device that the process sees.
pub(crate) struct Device {
    /// Its number on this machine.
    pub(crate) number: u32,
    pub(crate) memory: Arc<Budget>,
    /// Handle and retain count of its primary context.
    pub(crate) primary: Mutex<Option<(usize, u32)>>,
}

pub(crate) struct DriverState {
    pub(crate) core: DriverCore<Allocation>,
    pub(crate) settings: DriverSettings,
    pub(crate) devices: Vec<Device>,
    pub(crate) contexts: HandleTable<Context>,
    pub(crate) physical: HandleTable<PhysicalHandle>,
    pub(crate) reservations: Mutex<Vec<Mapping>>,
    pub(crate) registrations: Registrations,
    pub(crate) streams: HandleTable<StreamObject>,
    pub(crate) events: HandleTable<EventObject>,
    pub(crate) pools: PoolTable,
}

static STATE: DriverCell<DriverState> = DriverCell::new();

impl DriverState {
    /// Initializes the driver unless it is initialized.
    pub(crate) fn start() -> CudaResult<&'static Self> {
        let make = || {
            let (common, settings) = read_settings(soft_device::variable)?;
            Self::new(common, settings)
        };
        let state = STATE.start("libcuda_soft", make)?;
        if state.devices.is_empty() { Err(CUDA_ERROR_NO_DEVICE.into()) } else { Ok(state) }
    }

    /// Returns the state if the driver was initialized in this process.
    pub(crate) fn get() -> CudaResult<&'static Self> {
        Ok(STATE.get()?)
    }

    fn new(common: Settings, settings: DriverSettings) -> Result<Self, String> {
        let core = DriverCore::new(common, answer).map_err(|why| format!("CUDA_SOFT_FAULTS: {why}"))?;
        let device = |number: &u32| Device {
            number: *number,
            memory: Budget::new(core.settings.memory),
            primary: Mutex::default(),
        };
        Ok(Self {
            devices: settings.visible.iter().map(device).collect(),
            core,
            settings,
            contexts: HandleTable::default(),
            physical: HandleTable::default(),
            reservations: Mutex::default(),
            registrations: Mutex::default(),
            streams: HandleTable::default(),
            events: HandleTable::default(),
            pools: PoolTable::default(),
        })
    }

    pub(crate) fn device(&self, device: CUdevice) -> CudaResult<&Device> {
        let found = usize::try_from(device).ok().and_then(|place| self.devices.get(place));
        found.ok_or_else(|| CUDA_ERROR_INVALID_DEVICE.into())
    }

    /// Returns whether a device can access the memory of another one (numbers on this machine).
    pub(crate) fn can_access(&self, device: u32, of: u32) -> bool {
        device == of || self.core.settings.peers
    }
}

/// The settings of this driver, in addition to the common ones.
#[derive(Clone, Debug)]
pub(crate) struct DriverSettings {
    /// The devices that the process sees, by number on this machine, in order.
    visible: Vec<u32>,
    /// Missing features, of [`FEATURES`]. Default: `fabric`.
    lacks: Vec<String>,
    pub(crate) version: i32,
    /// Whether each call is printed to standard error.
    logs_calls: bool,
}

/// The features that a device may lack.
const FEATURES: [&str; 6] = ["virtual", "fds", "fabric", "dma-buf", "managed", "pools"];
/// The version of the interface: 13.2, the newest with functions of this driver.
pub(crate) const DEFAULT_VERSION: i32 = 13020;

impl DriverSettings {
    pub(crate) fn has(&self, what: &str) -> bool {
        !self.lacks.iter().any(|lack| lack == what)
    }
}

/// Reads the settings.
///
/// # Errors
/// The invalid variable, and its expected value.
fn read_settings(find: impl Fn(&str) -> Option<String>) -> Result<(Settings, DriverSettings), String> {
    let visible = find("CUDA_VISIBLE_DEVICES");
    let variables = Variables::new("CUDA_SOFT", find);
    let common = Settings::read(&variables, 0, crate::memory::DEVICE_PAGE)?;
    let visible = visible.map(|list| {
        // As in CUDA, the first invalid number ends the list.
        let numbers = list.split(',').map(|number| number.trim().parse::<u32>().ok());
        numbers.map_while(|number| number.filter(|number| *number < common.devices)).collect()
    });
    let words = |text: &str| -> Option<Vec<String>> {
        let words: Vec<_> = text.split(',').map(str::trim).filter(|word| !word.is_empty()).collect();
        words
            .iter()
            .all(|word| FEATURES.contains(word))
            .then(|| words.into_iter().map(str::to_owned).collect())
    };
    let settings = DriverSettings {
        visible: visible.unwrap_or_else(|| (0..common.devices).collect()),
        lacks: variables.parsed(
            "LACKS",
            vec!["fabric".to_owned()],
            &format!("some of {}", FEATURES.join(", ")),
            words,
        )?,
        version: variables.number("VERSION", DEFAULT_VERSION as u64, 10000, 99_999)? as i32,
        logs_calls: variables.choice("LOG", &["none", "calls"])? == 1,
    };
    Ok((common, settings))
}

/// Returns the number of a result by its name.
pub(crate) fn answer(name: &str) -> Option<u32> {
    CUresult::NAMES.iter().find(|(known, _)| *known == name).map(|(_, number)| *number)
}

/// Replaces the injected faults, in the syntax of `CUDA_SOFT_FAULTS`. An empty text removes them.
///
/// # Safety
/// `faults` is null or a C string.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cudaSoftSetFaults(faults: *const c_char) -> CUresult {
    guarded(|| {
        // SAFETY: the caller upholds the contract.
        let faults = unsafe { read_text(faults) }?;
        DriverState::get()?.core.faults.set(faults, answer).map_err(|_| CUDA_ERROR_INVALID_VALUE.into())
    })
}

/// Returns the current number of `allocations`, `opened` (imports), `mapped`, `memory` (bytes of
/// all devices), `fds` (that the driver holds), `physical`, `reservations`, `contexts`, `streams`,
/// `events` or `pools`.
///
/// Returns `CUDA_ERROR_INVALID_VALUE` for any other name.
///
/// # Safety
/// `what` is null or a C string; `value` is null or valid for a write.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cudaSoftQuery(what: *const c_char, value: *mut u64) -> CUresult {
    guarded(|| {
        let state = DriverState::get()?;
        let of = |matches: &dyn Fn(AllocationKind) -> bool| {
            state.core.addresses.all(|range| matches(range.owner.kind)).len()
        };
        // SAFETY: the caller upholds the contract.
        let found = match unsafe { read_text(what) }? {
            "allocations" => of(&|kind| !matches!(kind, AllocationKind::Opened | AllocationKind::Mapped)),
            "opened" => of(&|kind| kind == AllocationKind::Opened),
            "mapped" => of(&|kind| kind == AllocationKind::Mapped),
            "memory" => usize::try_from(state.devices.iter().map(|device| device.memory.used()).sum::<u64>())
                .unwrap_or(usize::MAX),
            "fds" => usize::try_from(state.core.fds.used()).unwrap_or(usize::MAX),
            "physical" => state.physical.len(),
            "reservations" => lock(&state.reservations).len(),
            "contexts" => state.contexts.len(),
            "streams" => state.streams.len(),
            "events" => state.events.len(),
            "pools" => state.pools.len(),
            _ => return Err(CUDA_ERROR_INVALID_VALUE.into()),
        };
        // SAFETY: the caller upholds the contract.
        Ok(unsafe { write_result(value, found as u64) }?)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(name: &str, value: &str) -> Result<DriverSettings, String> {
        read_settings(|wanted| (wanted == name).then(|| value.to_owned())).map(|(_, settings)| settings)
    }

    #[test]
    fn visible_devices_select_and_order() {
        for (list, expected) in [("1,0", vec![1, 0]), ("1", vec![1]), ("0,7,1", vec![0]), ("", vec![])] {
            assert_eq!(read("CUDA_VISIBLE_DEVICES", list).unwrap().visible, expected, "{list}");
        }
        assert_eq!(read("CUDA_SOFT_DEVICES", "3").unwrap().visible, [0, 1, 2]);
    }

    #[test]
    fn invalid_value_names_the_variable() {
        for (name, value) in
            [("CUDA_SOFT_LACKS", "legs"), ("CUDA_SOFT_VERSION", "x"), ("CUDA_SOFT_LOG", "all")]
        {
            let error = read(name, value).unwrap_err();
            assert!(error.starts_with(&format!("{name}={value}: ")), "{error}");
        }
    }
}
