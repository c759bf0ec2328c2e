//! `umf/providers/provider_level_zero.h`. This library has no Level Zero provider yet: settings can be made, and a provider
//! fails as the original does on a machine without the driver.

use core::ffi::c_void;
use std::ffi::CString;

use umf::plugin::ops::{State, Table1_2};

use crate::boundary::{Code, DEPENDENCY_UNAVAILABLE, Failure, Handle, List, Out, Outcome, Text, call};
use crate::provider::{Provider, short_name, table};

/// The settings of a provider to be.
struct Params {
    context: *mut c_void,
    device: *mut c_void,
    memory_type: u32,
    resident: Vec<*mut c_void>,
    policy: u32,
    ordinal: u32,
    name: CString,
}

/// `umf_usm_memory_type_t`.
const HOST: u32 = 1;
const LAST_TYPE: u32 = 3;
/// `umf_level_zero_memory_provider_free_policy_t`.
const LAST_POLICY: u32 = 2;

const UNAVAILABLE: Failure = Failure::new(
    DEPENDENCY_UNAVAILABLE,
    "there is no Level Zero provider in this library; use one of the other providers",
);

static TABLE: Table1_2 = table(initialize);

#[unsafe(no_mangle)]
extern "C" fn umfLevelZeroMemoryProviderOps() -> *const Table1_2 {
    &raw const TABLE
}

extern "C" fn initialize(params: *const c_void, _state: *mut State) -> Code {
    call("initialize", || {
        Handle::<Params>::from_ptr(params.cast::<Params>().cast_mut()).get()?.check()?;
        Err(UNAVAILABLE)
    })
}

impl Params {
    /// What the original checks before it looks for the driver.
    fn check(&self) -> Outcome<()> {
        if self.context.is_null() {
            return Err(Failure::argument("a Level Zero provider needs a context"));
        }
        if (self.memory_type == HOST) != self.device.is_null() {
            return Err(Failure::argument("host memory takes no device, all other memory needs one"));
        }
        tracing::debug!(
            name = %self.name.to_string_lossy(),
            ordinal = self.ordinal,
            policy = self.policy,
            resident = self.resident.len(),
            "a Level Zero provider was asked for"
        );
        Ok(())
    }
}

#[unsafe(no_mangle)]
extern "C" fn umfLevelZeroMemoryProviderParamsCreate(params: Out<Handle<Params>>) -> Code {
    call("umfLevelZeroMemoryProviderParamsCreate", || {
        params.check()?.set(Handle::new(Params {
            context: core::ptr::null_mut(),
            device: core::ptr::null_mut(),
            memory_type: 0,
            resident: Vec::new(),
            policy: 0,
            ordinal: 0,
            name: c"LEVEL_ZERO".to_owned(),
        }))
    })
}

#[unsafe(no_mangle)]
extern "C" fn umfLevelZeroMemoryProviderParamsDestroy(params: Handle<Params>) -> Code {
    call("umfLevelZeroMemoryProviderParamsDestroy", || {
        drop(params.take());
        Ok(())
    })
}

#[unsafe(no_mangle)]
extern "C" fn umfLevelZeroMemoryProviderParamsSetContext(
    params: Handle<Params>,
    context: *mut c_void,
) -> Code {
    call("umfLevelZeroMemoryProviderParamsSetContext", || {
        let params = params.get_mut()?;
        if context.is_null() {
            return Err(Failure::argument("the context is NULL"));
        }
        params.context = context;
        Ok(())
    })
}

#[unsafe(no_mangle)]
extern "C" fn umfLevelZeroMemoryProviderParamsSetDevice(params: Handle<Params>, device: *mut c_void) -> Code {
    call("umfLevelZeroMemoryProviderParamsSetDevice", || {
        params.get_mut()?.device = device;
        Ok(())
    })
}

#[unsafe(no_mangle)]
extern "C" fn umfLevelZeroMemoryProviderParamsSetMemoryType(
    params: Handle<Params>,
    memory_type: u32,
) -> Code {
    call("umfLevelZeroMemoryProviderParamsSetMemoryType", || {
        let params = params.get_mut()?;
        if memory_type > LAST_TYPE {
            return Err(Failure::argument("a memory type is none of umf_usm_memory_type_t"));
        }
        params.memory_type = memory_type;
        Ok(())
    })
}

#[unsafe(no_mangle)]
extern "C" fn umfLevelZeroMemoryProviderParamsSetResidentDevices(
    params: Handle<Params>,
    devices: List<*mut c_void>,
    count: u32,
) -> Code {
    call("umfLevelZeroMemoryProviderParamsSetResidentDevices", || {
        let (params, mut devices) = (params.get_mut()?, devices.get(count as usize)?);
        params.resident.clone_from(&devices);
        devices.sort_unstable();
        if devices.windows(2).any(|pair| pair[0] == pair[1]) || devices.iter().any(|device| device.is_null())
        {
            params.resident.clear();
            return Err(Failure::argument("resident devices must differ, and none be NULL"));
        }
        Ok(())
    })
}

#[unsafe(no_mangle)]
extern "C" fn umfLevelZeroMemoryProviderParamsSetFreePolicy(params: Handle<Params>, policy: u32) -> Code {
    call("umfLevelZeroMemoryProviderParamsSetFreePolicy", || {
        let params = params.get_mut()?;
        if policy > LAST_POLICY {
            return Err(Failure::argument(
                "a policy is none of umf_level_zero_memory_provider_free_policy_t",
            ));
        }
        params.policy = policy;
        Ok(())
    })
}

#[unsafe(no_mangle)]
extern "C" fn umfLevelZeroMemoryProviderParamsSetDeviceOrdinal(params: Handle<Params>, ordinal: u32) -> Code {
    call("umfLevelZeroMemoryProviderParamsSetDeviceOrdinal", || {
        params.get_mut()?.ordinal = ordinal;
        Ok(())
    })
}

#[unsafe(no_mangle)]
extern "C" fn umfLevelZeroMemoryProviderParamsSetName(params: Handle<Params>, name: Text) -> Code {
    call("umfLevelZeroMemoryProviderParamsSetName", || {
        let (params, name) = (params.get_mut()?, name.get()?);
        params.name = short_name(name);
        Ok(())
    })
}

/// No provider here is one of Level Zero, so what is given is some other.
#[unsafe(no_mangle)]
extern "C" fn umfLevelZeroMemoryProviderResidentDeviceChange(
    provider: Handle<Provider>,
    _device: *mut c_void,
    _is_adding: bool,
) -> Code {
    call("umfLevelZeroMemoryProviderResidentDeviceChange", || {
        provider.get()?;
        Err(Failure::argument("that is no Level Zero provider"))
    })
}
