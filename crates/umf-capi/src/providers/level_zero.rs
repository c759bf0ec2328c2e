//! `umf/providers/provider_level_zero.h`: memory of Level Zero devices, in a context of the
//! program.

use core::ffi::{CStr, c_void};
use core::sync::atomic::{AtomicBool, Ordering};
use std::ffi::{CString, OsString};
use std::sync::Arc;

use umf_core::Error;
use umf_os::environment::variable;
use umf_provider_level_zero::sys::{
    Api, LOADER, ZE_MEMORY_TYPE_DEVICE, ZE_MEMORY_TYPE_HOST, ZE_MEMORY_TYPE_SHARED, ze_context_handle_t,
    ze_device_handle_t,
};
use umf_provider_level_zero::{FreePolicy, LevelZeroProvider};
use umf_provider_plugin::table::Table;

use super::device::{DriverImport, MemoryType, UNKNOWN, checked, is_loaded};
use crate::boundary::{
    Code, DEPENDENCY_UNAVAILABLE, Failure, Handle, List, Out, Outcome, PROVIDER_SPECIFIC, Text, call,
    settings_functions,
};
use crate::ctl::{CtlQuery, no_such_path};
use crate::last_error::NativeKind;
use crate::memory::{CONTEXT, DEVICE, POINTER_TYPE};
use crate::provider::{
    Device, DeviceProperty, InstrumentedProvider, NativeParts, NativeTable, Protection, Provider, short_name,
    table,
};

/// The settings of a provider to be created.
struct Params {
    context: *mut c_void,
    device: *mut c_void,
    memory_type: u32,
    resident: Vec<*mut c_void>,
    policy: u32,
    ordinal: u32,
    name: CString,
}

/// `umf_level_zero_memory_provider_free_policy_t`.
const BLOCKING: u32 = 1;
const DEFERRED: u32 = 2;

/// Cache line size of a device that does not report one, in bytes.
const CACHE_LINE: usize = 128;

const UNAVAILABLE: Failure = Failure::new(
    DEPENDENCY_UNAVAILABLE,
    "the program has not loaded libze_loader.so.1, or what UMF_ZE_LOADER_LIB_NAME says is no loader; install it (Debian: libze1), \
     and make a context before a provider",
);

static TABLE: Table = table::<LevelZero>();

#[unsafe(no_mangle)]
extern "C" fn umfLevelZeroMemoryProviderOps() -> *const Table {
    &raw const TABLE
}

struct LevelZero;

impl NativeTable for LevelZero {
    const NAME: &'static CStr = c"LEVEL_ZERO";
    const OF_DEVICE: bool = true;

    fn make(params: *const c_void) -> Outcome<NativeParts> {
        Handle::<Params>::from_ptr(params.cast::<Params>().cast_mut()).get()?.provider()
    }
}

/// Returns the loader that the program has loaded.
fn loader() -> Outcome<Api> {
    let named = variable("UMF_ZE_LOADER_LIB_NAME").filter(|name| !name.is_empty());
    let name = named.unwrap_or_else(|| OsString::from(LOADER));
    if !is_loaded(&name) {
        return Err(UNAVAILABLE);
    }
    // SAFETY: loads the loader that the program has loaded.
    unsafe { Api::load_from(&name) }.map_err(|_| UNAVAILABLE)
}

impl Params {
    fn provider(&self) -> Outcome<NativeParts> {
        if self.context.is_null() {
            return Err(Failure::argument("a Level Zero provider needs a context"));
        }
        if (self.memory_type == MemoryType::Host as u32) != self.device.is_null() {
            return Err(Failure::argument("host memory takes no device, all other memory needs one"));
        }
        let api = loader()?;
        let memory_type = MemoryType::new(self.memory_type)?;
        let provider = self.build(api, memory_type).map_err(|error| NativeKind::LevelZero.refused(error))?;
        let device = LevelZeroDevice {
            provider: Arc::clone(&provider),
            context: self.context,
            device: self.device,
            memory_type,
            imports_and_exports: AtomicBool::new(false),
        };
        Ok(NativeParts {
            counted: InstrumentedProvider::new(
                Arc::clone(&provider) as _,
                NativeKind::LevelZero,
                Protection::DEFAULT,
            ),
            name: self.name.clone(),
            import: Some(Arc::new(DriverImport {
                flavour: NativeKind::LevelZero,
                provider,
                importer: |provider| provider.importer(),
            })),
            device: Some(Box::new(device)),
        })
    }

    fn build(&self, api: Api, memory_type: MemoryType) -> umf_core::Result<Arc<LevelZeroProvider>> {
        let kind = match memory_type {
            MemoryType::Host => ZE_MEMORY_TYPE_HOST,
            MemoryType::Device => ZE_MEMORY_TYPE_DEVICE,
            MemoryType::Shared => ZE_MEMORY_TYPE_SHARED,
        };
        let policy = match self.policy {
            BLOCKING => FreePolicy::Blocking,
            DEFERRED => FreePolicy::Deferred,
            _ => FreePolicy::Default,
        };
        let (context, device) = (ze_context_handle_t(self.context), ze_device_handle_t(self.device));
        // SAFETY: C guarantees handles of this loader that outlive the provider and its memory.
        let builder = unsafe { LevelZeroProvider::from_context(api, context, device, kind) };
        let builder = builder.name(self.name.to_string_lossy().into_owned());
        let provider = builder.ordinal(self.ordinal).free_policy(policy).build()?;
        for device in &self.resident {
            provider.set_resident_on(ze_device_handle_t(*device), true)?;
        }
        Ok(provider)
    }
}

/// The properties of all memory of a provider, and its changeable settings.
struct LevelZeroDevice {
    provider: Arc<LevelZeroProvider>,
    context: *mut c_void,
    device: *mut c_void,
    memory_type: MemoryType,
    /// Stored without effect: the driver's abilities decide how handles travel.
    imports_and_exports: AtomicBool,
}

// SAFETY: the handles are only passed on, and not dereferenced.
unsafe impl Send for LevelZeroDevice {}
// SAFETY: the handles are only passed on, and not dereferenced.
unsafe impl Sync for LevelZeroDevice {}

impl Device for LevelZeroDevice {
    fn property(&self, property: i32) -> Option<DeviceProperty> {
        match property {
            POINTER_TYPE => Some(DeviceProperty::Int(self.memory_type as i32)),
            CONTEXT => Some(DeviceProperty::Handle(self.context)),
            DEVICE => Some(DeviceProperty::Handle(self.device)),
            _ => None,
        }
    }

    fn cache_line(&self) -> usize {
        // Host memory belongs to no device.
        Some(self.device)
            .filter(|device| !device.is_null())
            .and(self.provider.cache_line())
            .unwrap_or(CACHE_LINE)
    }

    fn answer(&self, query: &CtlQuery<'_>) -> Outcome<()> {
        if query.path() != "params.use_import_export_for_IPC" {
            return Err(no_such_path());
        }
        let mut value = self.imports_and_exports.load(Ordering::Relaxed);
        query.access_bool(&mut value)?;
        self.imports_and_exports.store(value, Ordering::Relaxed);
        Ok(())
    }
}

settings_functions! {
    Params;
    create fn umfLevelZeroMemoryProviderParamsCreate() {
        Params {
            context: core::ptr::null_mut(),
            device: core::ptr::null_mut(),
            memory_type: UNKNOWN,
            resident: Vec::new(),
            policy: 0,
            ordinal: 0,
            name: LevelZero::NAME.to_owned(),
        }
    }
    destroy fn umfLevelZeroMemoryProviderParamsDestroy;

    fn umfLevelZeroMemoryProviderParamsSetContext(params, context: *mut c_void) {
        if context.is_null() {
            return Err(Failure::argument("the context is NULL"));
        }
        params.context = context;
    }
    fn umfLevelZeroMemoryProviderParamsSetDevice(params, device: *mut c_void) { params.device = device; }
    fn umfLevelZeroMemoryProviderParamsSetMemoryType(params, memory_type: u32) {
        params.memory_type = checked(memory_type)?;
    }
    fn umfLevelZeroMemoryProviderParamsSetResidentDevices(params, devices: List<*mut c_void>, count: u32) {
        let devices = devices.get(count as usize)?;
        let mut sorted = devices.clone();
        sorted.sort_unstable();
        if sorted.windows(2).any(|pair| pair[0] == pair[1]) || sorted.iter().any(|device| device.is_null()) {
            return Err(Failure::argument("resident devices must differ, and none be NULL"));
        }
        params.resident = devices;
    }
    fn umfLevelZeroMemoryProviderParamsSetFreePolicy(params, policy: u32) {
        if policy > DEFERRED {
            return Err(Failure::argument(
                "a policy is none of umf_level_zero_memory_provider_free_policy_t",
            ));
        }
        params.policy = policy;
    }
    fn umfLevelZeroMemoryProviderParamsSetDeviceOrdinal(params, ordinal: u32) { params.ordinal = ordinal; }
    fn umfLevelZeroMemoryProviderParamsSetName(params, name: Text) { params.name = short_name(name.get()?); }
}

#[unsafe(no_mangle)]
extern "C" fn umfLevelZeroMemoryProviderResidentDeviceChange(
    provider: Handle<Provider>,
    device: *mut c_void,
    is_adding: bool,
) -> Code {
    call("umfLevelZeroMemoryProviderResidentDeviceChange", || {
        let other = Failure::argument("that is no Level Zero provider");
        let known = provider.get()?.device::<LevelZeroDevice>().ok_or(other)?;
        // The loader dereferences handles before it checks them.
        if device.is_null() {
            return Err(Failure::argument("the device is NULL"));
        }
        let changed = known.provider.set_resident_on(ze_device_handle_t(device), is_adding);
        let changed = changed.map_err(|error| match error {
            // The original has this code for each result of the driver here.
            Error::Driver { .. } => NativeKind::LevelZero.refused(error).with_code(PROVIDER_SPECIFIC),
            error => error.into(),
        })?;
        match (changed, is_adding) {
            (true, _) => Ok(()),
            (false, true) => Err(Failure::argument("the memory is resident on that device already")),
            (false, false) => Err(Failure::argument("the memory is not resident on that device")),
        }
    })
}
