//! `umf/providers/provider_cuda.h`. This library has no CUDA provider yet: it answers as the original does on a machine without
//! the driver.

use core::ffi::c_void;

use umf::plugin::ops::{State, Table1_2};

use crate::boundary::{Code, DEPENDENCY_UNAVAILABLE, Failure, Handle, Out, Text, call};
use crate::provider::table;

/// There is none: `umfCUDAMemoryProviderParamsCreate` fails.
enum Params {}

const UNAVAILABLE: Failure = Failure::new(
    DEPENDENCY_UNAVAILABLE,
    "there is no CUDA provider in this library; use one of the other providers",
);

static TABLE: Table1_2 = table(initialize);

#[unsafe(no_mangle)]
extern "C" fn umfCUDAMemoryProviderOps() -> *const Table1_2 {
    &raw const TABLE
}

extern "C" fn initialize(_params: *const c_void, _state: *mut State) -> Code {
    call("initialize", || Err(UNAVAILABLE))
}

#[unsafe(no_mangle)]
extern "C" fn umfCUDAMemoryProviderParamsCreate(params: Out<Handle<Params>>) -> Code {
    call("umfCUDAMemoryProviderParamsCreate", || params.check().and(Err(UNAVAILABLE)))
}

#[unsafe(no_mangle)]
extern "C" fn umfCUDAMemoryProviderParamsDestroy(_params: Handle<Params>) -> Code {
    call("umfCUDAMemoryProviderParamsDestroy", || Ok(()))
}

/// No settings exist, so what is given is NULL or no handle.
fn set(what: &'static str) -> Code {
    call(what, || Err(Failure::argument("there are no settings of a CUDA provider here")))
}

#[unsafe(no_mangle)]
extern "C" fn umfCUDAMemoryProviderParamsSetContext(_params: Handle<Params>, _context: *mut c_void) -> Code {
    set("umfCUDAMemoryProviderParamsSetContext")
}

#[unsafe(no_mangle)]
extern "C" fn umfCUDAMemoryProviderParamsSetDevice(_params: Handle<Params>, _device: i32) -> Code {
    set("umfCUDAMemoryProviderParamsSetDevice")
}

#[unsafe(no_mangle)]
extern "C" fn umfCUDAMemoryProviderParamsSetMemoryType(_params: Handle<Params>, _memory_type: u32) -> Code {
    set("umfCUDAMemoryProviderParamsSetMemoryType")
}

#[unsafe(no_mangle)]
extern "C" fn umfCUDAMemoryProviderParamsSetAllocFlags(_params: Handle<Params>, _flags: u32) -> Code {
    set("umfCUDAMemoryProviderParamsSetAllocFlags")
}

#[unsafe(no_mangle)]
extern "C" fn umfCUDAMemoryProviderParamsSetName(_params: Handle<Params>, _name: Text) -> Code {
    set("umfCUDAMemoryProviderParamsSetName")
}
