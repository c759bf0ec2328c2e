//! What every function of the driver goes through, everything that the driver has, its settings
//! (`CUDA_SOFT_*`, and `CUDA_VISIBLE_DEVICES` as every CUDA driver has it), and what tests ask of
//! it that no other driver has.

use std::ffi::c_char;
use std::sync::{Arc, Mutex};

use cuda_sys::*;
use soft_device::{
    Budget, Core, Error, Handles, Mapping, Once, Settings, Stream, Variables, lock, put, text,
};

use crate::context::Context;
use crate::memory::{Allocation, Kind};
use crate::stream::EventObject;
use crate::virtual_memory::Physical;

/// Why a function does not do what it should.
#[derive(Clone, Copy, Debug)]
pub(crate) struct CudaError(CUresult);

pub(crate) type Done<T = ()> = Result<T, CudaError>;

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
            Error::NoHandle => CUDA_ERROR_INVALID_HANDLE,
            Error::NotStarted => CUDA_ERROR_NOT_INITIALIZED,
            Error::Fault(answer) => CUresult(answer),
            Error::Panicked => CUDA_ERROR_UNKNOWN,
            Error::System(errno) if errno.raw_os_error() == 12 => CUDA_ERROR_OUT_OF_MEMORY,
            Error::OutOfFds | Error::System(_) => CUDA_ERROR_OPERATING_SYSTEM,
            Error::Invalid | Error::NullPointer => CUDA_ERROR_INVALID_VALUE,
        })
    }
}

/// Runs what needs no driver that runs. No panic leaves it.
pub(crate) fn guarded(body: impl FnOnce() -> Done) -> CUresult {
    soft_device::guarded(body)
}

/// Runs a function of the driver. None works any more once the device is lost.
pub(crate) fn entry(function: &'static str, body: impl FnOnce(&'static State) -> Done) -> CUresult {
    guarded(|| {
        let state = State::get()?;
        state.core.faults.play(function, &state.core.health)?;
        state.core.health.check()?;
        body(state)
    })
}

/// A device that the process sees.
pub(crate) struct Device {
    /// Which of the machine's it is.
    pub(crate) number: u32,
    pub(crate) memory: Arc<Budget>,
    /// The number of its primary context, and how often that was retained.
    pub(crate) primary: Mutex<Option<(usize, u32)>>,
    /// The stream without a name.
    pub(crate) stream: Stream,
}

/// A stream, and the device that it is of.
pub(crate) struct StreamObject {
    pub(crate) context: usize,
    pub(crate) stream: Stream,
}

pub(crate) struct State {
    pub(crate) core: Core<Allocation>,
    pub(crate) settings: DriverSettings,
    pub(crate) devices: Vec<Device>,
    pub(crate) contexts: Handles<Context>,
    pub(crate) physical: Handles<Physical>,
    pub(crate) reservations: Mutex<Vec<Mapping>>,
    pub(crate) streams: Handles<StreamObject>,
    pub(crate) events: Handles<EventObject>,
}

static STATE: Once<State> = Once::new();

impl State {
    /// Starts the driver, or says that it runs.
    pub(crate) fn start() -> Done<&'static Self> {
        let make = || {
            let (common, settings) = read_settings(soft_device::variable)?;
            Self::new(common, settings)
        };
        let state = STATE.start("libcuda_soft", make)?;
        if state.devices.is_empty() { Err(CUDA_ERROR_NO_DEVICE.into()) } else { Ok(state) }
    }

    /// The driver, if it was started in this process.
    pub(crate) fn get() -> Done<&'static Self> {
        Ok(STATE.get()?)
    }

    fn new(common: Settings, settings: DriverSettings) -> Result<Self, String> {
        let core = Core::new(common, answer).map_err(|why| format!("CUDA_SOFT_FAULTS: {why}"))?;
        let device = |number: &u32| Device {
            number: *number,
            memory: Budget::new(core.settings.memory),
            primary: Mutex::default(),
            stream: core.stream(),
        };
        Ok(Self {
            devices: settings.visible.iter().map(device).collect(),
            core,
            settings,
            contexts: Handles::default(),
            physical: Handles::default(),
            reservations: Mutex::default(),
            streams: Handles::default(),
            events: Handles::default(),
        })
    }

    pub(crate) fn device(&self, device: CUdevice) -> Done<&Device> {
        let found = usize::try_from(device).ok().and_then(|place| self.devices.get(place));
        found.ok_or_else(|| CUDA_ERROR_INVALID_DEVICE.into())
    }

    /// Whether a device (of those that the process sees) reaches the memory of one of the machine.
    pub(crate) fn reaches(&self, device: u32, of: u32) -> bool {
        device == of || self.core.settings.peers
    }
}

/// The settings that this driver has beside those of every driver.
#[derive(Clone, Debug)]
pub(crate) struct DriverSettings {
    /// Which devices of the machine the process sees, in which order.
    visible: Vec<u32>,
    /// What the devices lack: `virtual`, `fds`, `fabric`, `dma-buf`, `managed`. `fabric`, unless
    /// said otherwise.
    lacks: Vec<String>,
    pub(crate) version: i32,
}

impl DriverSettings {
    pub(crate) fn has(&self, what: &str) -> bool {
        !self.lacks.iter().any(|lack| lack == what)
    }
}

/// Reads the settings.
///
/// # Errors
/// The variable that is wrong, and what would be right.
fn read_settings(find: impl Fn(&str) -> Option<String>) -> Result<(Settings, DriverSettings), String> {
    const KNOWN: [&str; 5] = ["virtual", "fds", "fabric", "dma-buf", "managed"];
    let visible = find("CUDA_VISIBLE_DEVICES");
    let variables = Variables::new("CUDA_SOFT", find);
    let common = Settings::read(&variables, 0, crate::memory::DEVICE_PAGE)?;
    let visible = visible.map(|list| {
        // As CUDA has it: the first that is none ends the list.
        let numbers = list.split(',').map(|number| number.trim().parse::<u32>().ok());
        numbers.map_while(|number| number.filter(|number| *number < common.devices)).collect()
    });
    let words = |text: &str| -> Option<Vec<String>> {
        let words: Vec<_> = text.split(',').map(str::trim).filter(|word| !word.is_empty()).collect();
        words.iter().all(|word| KNOWN.contains(word)).then(|| words.into_iter().map(str::to_owned).collect())
    };
    let settings = DriverSettings {
        visible: visible.unwrap_or_else(|| (0..common.devices).collect()),
        lacks: variables.parsed(
            "LACKS",
            vec!["fabric".to_owned()],
            &format!("some of {}", KNOWN.join(", ")),
            words,
        )?,
        version: variables.number("VERSION", 12040, 10000, 99_999)? as i32,
    };
    Ok((common, settings))
}

/// The number of an answer by its name.
pub(crate) fn answer(name: &str) -> Option<u32> {
    CUresult::NAMES.iter().find(|(known, _)| *known == name).map(|(_, number)| *number)
}

/// Replaces the faults that are played, in the form of `CUDA_SOFT_FAULTS`. An empty text ends them.
///
/// # Safety
/// `faults` is null or a text that ends with a zero.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cudaSoftSetFaults(faults: *const c_char) -> CUresult {
    guarded(|| {
        // SAFETY: the caller's promise.
        let faults = unsafe { text(faults) }?;
        State::get()?.core.faults.set(faults, answer).map_err(|_| CUDA_ERROR_INVALID_VALUE.into())
    })
}

/// How much there is of something: `allocations`, `opened` (of other processes), `mapped`, `memory`
/// (bytes of all devices), `fds` (that the driver holds), `physical`, `reservations`, `contexts`,
/// `streams`, `events`.
///
/// Answers `CUDA_ERROR_INVALID_VALUE` for any other name.
///
/// # Safety
/// `what` is null or a text that ends with a zero; `value` is null or valid for a write.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cudaSoftQuery(what: *const c_char, value: *mut u64) -> CUresult {
    guarded(|| {
        let state = State::get()?;
        let of =
            |is_it: &dyn Fn(Kind) -> bool| state.core.addresses.all(|range| is_it(range.owner.kind)).len();
        // SAFETY: the caller's promise.
        let found = match unsafe { text(what) }? {
            "allocations" => of(&|kind| !matches!(kind, Kind::Opened | Kind::Mapped)),
            "opened" => of(&|kind| kind == Kind::Opened),
            "mapped" => of(&|kind| kind == Kind::Mapped),
            "memory" => usize::try_from(state.devices.iter().map(|device| device.memory.used()).sum::<u64>())
                .unwrap_or(usize::MAX),
            "fds" => usize::try_from(state.core.fds.used()).unwrap_or(usize::MAX),
            "physical" => state.physical.len(),
            "reservations" => lock(&state.reservations).len(),
            "contexts" => state.contexts.len(),
            "streams" => state.streams.len(),
            "events" => state.events.len(),
            _ => return Err(CUDA_ERROR_INVALID_VALUE.into()),
        };
        // SAFETY: the caller's promise.
        Ok(unsafe { put(value, found as u64) }?)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(name: &str, value: &str) -> Result<DriverSettings, String> {
        read_settings(|wanted| (wanted == name).then(|| value.to_owned())).map(|(_, settings)| settings)
    }

    #[test]
    fn visible_devices_are_chosen_and_ordered() {
        for (list, expected) in [("1,0", vec![1, 0]), ("1", vec![1]), ("0,7,1", vec![0]), ("", vec![])] {
            assert_eq!(read("CUDA_VISIBLE_DEVICES", list).unwrap().visible, expected, "{list}");
        }
        assert_eq!(read("CUDA_SOFT_DEVICES", "3").unwrap().visible, [0, 1, 2]);
    }

    #[test]
    fn wrong_values_name_the_variable() {
        for (name, value) in [("CUDA_SOFT_LACKS", "legs"), ("CUDA_SOFT_VERSION", "x")] {
            let error = read(name, value).unwrap_err();
            assert!(error.starts_with(&format!("{name}={value}: ")), "{error}");
        }
    }
}
