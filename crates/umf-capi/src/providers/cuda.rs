//! `umf/providers/provider_cuda.h`: memory of CUDA devices, in a context of the program.

use core::ffi::{CStr, c_void};
use std::ffi::CString;
use std::sync::{Arc, OnceLock};

use umf_provider_cuda::driver_api::{Api, CUcontext, LIBRARY};
use umf_provider_cuda::{CudaMemory, CudaProvider, Driver};
use umf_provider_plugin::table::Table;

use super::device::{DriverImport, MemoryType, UNKNOWN, checked, is_loaded};
use crate::boundary::{
    Code, DEPENDENCY_UNAVAILABLE, Failure, Handle, Out, Outcome, Text, call, settings_functions,
};
use crate::last_error::NativeKind;
use crate::memory::{CONTEXT, DEVICE, POINTER_TYPE};
use crate::provider::{
    Device, DeviceProperty, InstrumentedProvider, NativeParts, NativeTable, Protection, short_name, table,
};

/// The settings of a provider to be created.
struct Params {
    context: *mut c_void,
    device: i32,
    memory_type: u32,
    flags: u32,
    name: CString,
}

const UNAVAILABLE: Failure = Failure::new(
    DEPENDENCY_UNAVAILABLE,
    "the program has not loaded libcuda.so.1; install NVIDIA's driver, and make a context before a provider",
);

/// Cache line size of a device in bytes.
const CACHE_LINE: usize = 128;
/// The device number if no context is current.
const NO_DEVICE: i32 = -1;

static TABLE: Table = table::<Cuda>();

#[unsafe(no_mangle)]
extern "C" fn umfCUDAMemoryProviderOps() -> *const Table {
    &raw const TABLE
}

struct Cuda;

impl NativeTable for Cuda {
    const NAME: &'static CStr = c"CUDA";
    const OF_DEVICE: bool = true;

    fn make(params: *const c_void) -> Outcome<NativeParts> {
        Handle::<Params>::from_ptr(params.cast::<Params>().cast_mut()).get()?.provider()
    }
}

impl Params {
    fn provider(&self) -> Outcome<NativeParts> {
        let memory_type = MemoryType::new(self.memory_type)?;
        if self.context.is_null() {
            return Err(Failure::argument("a CUDA provider needs a context"));
        }
        if self.device < 0 {
            return Err(Failure::argument("a CUDA provider needs a device"));
        }
        if !is_loaded(LIBRARY) {
            return Err(UNAVAILABLE);
        }
        let provider = self.build(memory_type).map_err(|error| NativeKind::Cuda.refused(error))?;
        if provider.device() != self.device {
            tracing::warn!(
                set = self.device,
                of_context = provider.device(),
                "a CUDA provider has a context of another device than was set: the memory is the context's"
            );
        }
        let device = CudaDevice { context: self.context, device: self.device, memory_type };
        Ok(NativeParts {
            counted: InstrumentedProvider::new(
                Arc::clone(&provider) as _,
                NativeKind::Cuda,
                Protection::DEFAULT,
            ),
            name: self.name.clone(),
            import: Some(Arc::new(DriverImport {
                flavour: NativeKind::Cuda,
                provider,
                importer: |provider| provider.importer(),
            })),
            device: Some(Box::new(device)),
        })
    }

    fn build(&self, memory_type: MemoryType) -> umf_core::Result<Arc<CudaProvider>> {
        // Checks that the device exists.
        Driver::open(None)?.device_info(self.device)?;
        let (memory, flags) = match memory_type {
            MemoryType::Host => (CudaMemory::Host, Some(self.flags)),
            MemoryType::Device => (CudaMemory::Device, None),
            // Attached to all streams, unless flags are set.
            MemoryType::Shared => (CudaMemory::Managed, Some(self.flags).filter(|flags| *flags != 0)),
        };
        let builder = CudaProvider::builder().name(self.name.to_string_lossy().into_owned()).memory(memory);
        let builder = flags.into_iter().fold(builder, |builder, flags| builder.alloc_flags(flags));
        // SAFETY: C guarantees a valid context that outlives its memory.
        unsafe { builder.context(self.context) }.build()
    }
}

/// The properties of all memory of a provider.
struct CudaDevice {
    context: *mut c_void,
    device: i32,
    memory_type: MemoryType,
}

// SAFETY: the context is only passed on, and not dereferenced.
unsafe impl Send for CudaDevice {}
// SAFETY: the context is only passed on, and not dereferenced.
unsafe impl Sync for CudaDevice {}

impl Device for CudaDevice {
    fn property(&self, property: i32) -> Option<DeviceProperty> {
        match property {
            POINTER_TYPE => Some(DeviceProperty::Int(self.memory_type as i32)),
            CONTEXT => Some(DeviceProperty::Handle(self.context)),
            DEVICE => Some(DeviceProperty::Int(self.device)),
            _ => None,
        }
    }

    fn cache_line(&self) -> usize {
        CACHE_LINE
    }
}

/// Returns the current context of the calling thread and its device, if there are any.
fn current() -> Outcome<(*mut c_void, i32)> {
    static FUNCTIONS: OnceLock<Api> = OnceLock::new();
    let functions = match FUNCTIONS.get() {
        Some(functions) => functions,
        None if is_loaded(LIBRARY) => {
            // SAFETY: loads the CUDA driver that the program has loaded.
            let opened = unsafe { Api::load() }.map_err(|_| UNAVAILABLE)?;
            FUNCTIONS.get_or_init(|| opened)
        }
        None => return Err(UNAVAILABLE),
    };
    let (mut context, mut device) = (CUcontext::NULL, NO_DEVICE);
    // SAFETY: valid places for the results. Without a context there is no device.
    if unsafe { functions.cuCtxGetCurrent(&raw mut context) }.is_err() {
        context = CUcontext::NULL;
    }
    // SAFETY: a valid place for the result.
    if context.is_null() || unsafe { functions.cuCtxGetDevice(&raw mut device) }.is_err() {
        device = NO_DEVICE;
    }
    Ok((context.0, device))
}

settings_functions! {
    Params;
    create fn umfCUDAMemoryProviderParamsCreate() {
        let (context, device) = current()?;
        Params { context, device, memory_type: UNKNOWN, flags: 0, name: Cuda::NAME.to_owned() }
    }
    destroy fn umfCUDAMemoryProviderParamsDestroy;

    fn umfCUDAMemoryProviderParamsSetContext(params, context: *mut c_void) { params.context = context; }
    fn umfCUDAMemoryProviderParamsSetDevice(params, device: i32) { params.device = device; }
    fn umfCUDAMemoryProviderParamsSetMemoryType(params, memory_type: u32) {
        params.memory_type = checked(memory_type)?;
    }
    fn umfCUDAMemoryProviderParamsSetAllocFlags(params, flags: u32) { params.flags = flags; }
    fn umfCUDAMemoryProviderParamsSetName(params, name: Text) { params.name = short_name(name.get()?); }
}
