//! Everything that the driver has, made once.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock};

use cuda_sys::*;
use soft_device::{Addresses, Budget, Charge, Error, Faults, Handles, Health, Mapping, Stream};

use crate::context::Context;
use crate::entry::Done;
use crate::memory::Allocation;
use crate::settings::Settings;
use crate::stream::EventObject;
use crate::virtual_memory::Physical;

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
    pub(crate) settings: Settings,
    pub(crate) devices: Vec<Device>,
    pub(crate) contexts: Handles<Context>,
    pub(crate) addresses: Addresses<Arc<Allocation>>,
    pub(crate) physical: Handles<Physical>,
    pub(crate) reservations: Mutex<Vec<Mapping>>,
    pub(crate) streams: Handles<StreamObject>,
    pub(crate) events: Handles<EventObject>,
    /// Held while a handle of another process is opened: a second time is an error.
    pub(crate) opening: Mutex<()>,
    pub(crate) faults: Faults,
    pub(crate) fds: Arc<Budget>,
    pub(crate) health: Arc<Health>,
    ids: AtomicU64,
    process: u32,
}

static STATE: OnceLock<Result<State, String>> = OnceLock::new();

impl State {
    /// Starts the driver, or says that it runs.
    pub(crate) fn start() -> Done<&'static Self> {
        let state = STATE.get_or_init(|| {
            let made = Settings::read(soft_device::variable).and_then(Self::new);
            if let Err(why) = &made {
                eprintln!("libcuda_soft: {why}");
            }
            made
        });
        match state {
            Ok(state) if state.process != std::process::id() => Err(CUDA_ERROR_NOT_INITIALIZED.into()),
            Ok(state) if state.devices.is_empty() => Err(CUDA_ERROR_NO_DEVICE.into()),
            Ok(state) => Ok(state),
            Err(_) => Err(CUDA_ERROR_UNKNOWN.into()),
        }
    }

    /// The driver, if it was started in this process. A forked child has none.
    pub(crate) fn get() -> Option<&'static Self> {
        STATE.get()?.as_ref().ok().filter(|state| state.process == std::process::id())
    }

    fn new(settings: Settings) -> Result<Self, String> {
        let faults = Faults::default();
        faults
            .set(&settings.faults, crate::control::answer)
            .map_err(|why| format!("CUDA_SOFT_FAULTS: {why}"))?;
        let health = Arc::<Health>::default();
        let device = |number: &u32| Device {
            number: *number,
            memory: Budget::new(settings.memory),
            primary: Mutex::default(),
            stream: Stream::new(Arc::clone(&health), settings.delay),
        };
        Ok(Self {
            devices: settings.devices.iter().map(device).collect(),
            fds: Budget::new(settings.fds),
            contexts: Handles::default(),
            addresses: Addresses::default(),
            physical: Handles::default(),
            reservations: Mutex::default(),
            streams: Handles::default(),
            events: Handles::default(),
            opening: Mutex::default(),
            faults,
            health,
            ids: AtomicU64::new(1),
            process: std::process::id(),
            settings,
        })
    }

    /// A number that nothing else in this process has.
    pub(crate) fn id(&self) -> u64 {
        self.ids.fetch_add(1, Ordering::Relaxed)
    }

    pub(crate) fn device(&self, device: CUdevice) -> Done<&Device> {
        let found = usize::try_from(device).ok().and_then(|place| self.devices.get(place));
        found.ok_or_else(|| CUDA_ERROR_INVALID_DEVICE.into())
    }

    /// Bytes of a device, and an fd of the driver.
    pub(crate) fn charge(&self, device: Option<&Device>, size: usize) -> Done<Vec<Charge>> {
        let fd = self.fds.take(1).ok_or(Error::OutOfFds)?;
        let take = |device: &Device| device.memory.take(size as u64).ok_or(Error::OutOfDeviceMemory);
        let memory = device.map(take).transpose()?;
        Ok(memory.into_iter().chain([fd]).collect())
    }

    /// Whether a device (of those that the process sees) reaches the memory of one of the machine.
    pub(crate) fn reaches(&self, device: u32, of: u32) -> bool {
        device == of || self.settings.peers
    }
}
