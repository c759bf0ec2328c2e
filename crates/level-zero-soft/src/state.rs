//! Everything that the driver has, made once.

use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock};

use level_zero_sys::*;

use crate::context::Context;
use crate::entry::Done;
use crate::event::{EventObject, EventPool};
use crate::export::Exports;
use crate::fence::FenceObject;
use crate::list::List;
use crate::memory::Allocation;
use crate::queue::Queue;
use crate::settings::{Ipc, Settings};
use soft_device::{Addresses, Budget, Charge, Error, Faults, Handles, Health, Server, lock};

/// A device or a part of one.
#[derive(Debug)]
pub(crate) struct Device {
    pub(crate) handle: ze_device_handle_t,
    pub(crate) index: u32,
    /// Which part of which device.
    pub(crate) part: Option<(u32, ze_device_handle_t)>,
    pub(crate) parts: Vec<ze_device_handle_t>,
    pub(crate) memory: Arc<Budget>,
    /// Of the whole, if this is a part.
    pub(crate) memory_of_whole: Option<Arc<Budget>>,
    pub(crate) health: Arc<Health>,
}

impl Device {
    /// The device that this is, or is a part of.
    pub(crate) fn root(&self) -> ze_device_handle_t {
        self.part.map_or(self.handle, |(_, root)| root)
    }

    pub(crate) fn charge(&self, size: u64) -> Done<Vec<Charge>> {
        let take = |budget: &Arc<Budget>| budget.take(size).ok_or(Error::OutOfDeviceMemory);
        let mut charges = vec![take(&self.memory)?];
        if let Some(whole) = &self.memory_of_whole {
            charges.push(take(whole)?);
        }
        Ok(charges)
    }
}

pub(crate) struct State {
    pub(crate) settings: Settings,
    pub(crate) driver: ze_driver_handle_t,
    pub(crate) roots: Vec<ze_device_handle_t>,
    pub(crate) devices: Handles<Device>,
    pub(crate) contexts: Handles<Context>,
    pub(crate) default_context: OnceLock<usize>,
    pub(crate) addresses: Addresses<Arc<Allocation>>,
    pub(crate) queues: Handles<Queue>,
    pub(crate) lists: Handles<List>,
    pub(crate) fences: Handles<FenceObject>,
    pub(crate) pools: Handles<EventPool>,
    pub(crate) events: Handles<EventObject>,
    pub(crate) exports: Exports,
    pub(crate) server: Mutex<Option<Server>>,
    /// Held while a handle is opened: one that is open already gives the same address.
    pub(crate) opening: Mutex<()>,
    pub(crate) faults: Faults,
    pub(crate) fds: Arc<Budget>,
    health: Arc<Health>,
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
                // Loaders drop a driver that does not start, and say nothing.
                eprintln!("libze_soft: {why}");
            }
            made
        });
        match state {
            Ok(state) if state.process == std::process::id() => Ok(state),
            // A forked child has no driver: it has to exec first.
            _ => Err(ZE_RESULT_ERROR_UNINITIALIZED.into()),
        }
    }

    /// The driver, if it was started in this process.
    pub(crate) fn get() -> Option<&'static Self> {
        STATE.get()?.as_ref().ok().filter(|state| state.process == std::process::id())
    }

    fn new(settings: Settings) -> Result<Self, String> {
        let faults = Faults::default();
        faults
            .set(&settings.faults, crate::control::answer)
            .map_err(|why| format!("ZE_SOFT_FAULTS: {why}"))?;
        let health = Arc::<Health>::default();
        let devices = Handles::<Device>::default();
        let mut roots = Vec::new();
        for index in 0..settings.devices {
            let root = ze_device_handle_t(handle(Handles::<Device>::next()));
            let memory = Budget::new(settings.memory);
            let parts: Vec<_> = (0..settings.sub_devices)
                .map(|part| {
                    let own = ze_device_handle_t(handle(Handles::<Device>::next()));
                    devices.insert_as(
                        number(own.0),
                        Device {
                            handle: own,
                            index,
                            part: Some((part, root)),
                            parts: Vec::new(),
                            memory: Budget::new(settings.memory / u64::from(settings.sub_devices)),
                            memory_of_whole: Some(Arc::clone(&memory)),
                            health: Arc::clone(&health),
                        },
                    );
                    own
                })
                .collect();
            devices.insert_as(
                number(root.0),
                Device {
                    handle: root,
                    index,
                    part: None,
                    parts,
                    memory,
                    memory_of_whole: None,
                    health: Arc::clone(&health),
                },
            );
            roots.push(root);
        }
        Ok(Self {
            driver: ze_driver_handle_t(handle(Handles::<Device>::next())),
            fds: Budget::new(settings.fds),
            settings,
            roots,
            devices,
            contexts: Handles::default(),
            default_context: OnceLock::new(),
            addresses: Addresses::default(),
            queues: Handles::default(),
            lists: Handles::default(),
            fences: Handles::default(),
            pools: Handles::default(),
            events: Handles::default(),
            exports: Exports::default(),
            server: Mutex::default(),
            opening: Mutex::default(),
            faults,
            health,
            ids: AtomicU64::new(1),
            process: std::process::id(),
        })
    }

    /// Loses all devices for good.
    pub(crate) fn lose(&self) {
        self.health.lose();
    }

    pub(crate) fn health(&self) -> &Arc<Health> {
        &self.health
    }

    /// A number that nothing else in this process has.
    pub(crate) fn id(&self) -> u64 {
        self.ids.fetch_add(1, Ordering::Relaxed)
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
        self.health.check()?;
        Ok(context)
    }

    /// Counts one more fd of the driver.
    pub(crate) fn charge_fd(&self) -> Done<Charge> {
        Ok(self.fds.take(1).ok_or(Error::OutOfFds)?)
    }

    /// How a new handle for other processes travels.
    pub(crate) fn way(&'static self) -> Done<crate::export::Way> {
        use crate::export::Way;
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
                *server = Some(Server::start(crate::export::SOCKET, |number| -> Option<OwnedFd> {
                    self.exports.duplicate(number)
                })?);
            }
        }
        Ok(way)
    }

    /// The last context went: nobody is left whose handles could be opened.
    pub(crate) fn stop_serving(&self) {
        let server = lock(&self.server).take();
        drop(server);
    }
}

/// The number behind a handle.
pub(crate) fn number(handle: *mut std::ffi::c_void) -> usize {
    handle.addr()
}

/// A handle from its number.
pub(crate) fn handle(number: usize) -> *mut std::ffi::c_void {
    std::ptr::without_provenance_mut(number)
}
