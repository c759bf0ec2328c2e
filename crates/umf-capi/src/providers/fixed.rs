//! `umf/providers/provider_fixed_memory.h`: memory that the program has already.

use core::ffi::c_void;
use std::ffi::CString;

use umf::plugin::ops::{State, Table1_2};
use umf_provider_fixed::FixedProvider;

use crate::boundary::{Code, Failure, Handle, Out, Outcome, Text, call};
use crate::provider::{Counted, Flavour, Protection, Start, short_name, start, table};

/// The settings of a provider to be.
struct Params {
    memory: *mut c_void,
    size: usize,
    name: CString,
}

static TABLE: Table1_2 = table(initialize);

#[unsafe(no_mangle)]
extern "C" fn umfFixedMemoryProviderOps() -> *const Table1_2 {
    &raw const TABLE
}

extern "C" fn initialize(params: *const c_void, state: *mut State) -> Code {
    start("initialize", state, || {
        let params = Handle::<Params>::from_ptr(params.cast::<Params>().cast_mut()).get()?;
        let name = params.name.to_string_lossy().into_owned();
        // SAFETY: C says with its parameters that the memory is there, and for the provider.
        let fixed = unsafe { FixedProvider::new(params.memory.cast(), params.size, name) }?;
        let counted = Counted::new(fixed, Flavour::Fixed, Protection::DEFAULT);
        Ok(Start { counted, name: params.name.clone(), import: None, own: None })
    })
}

fn checked(memory: *mut c_void, size: usize) -> Outcome<()> {
    if memory.is_null() || size == 0 {
        return Err(Failure::argument("fixed memory must be there, and not of 0 bytes"));
    }
    Ok(())
}

#[unsafe(no_mangle)]
extern "C" fn umfFixedMemoryProviderParamsCreate(
    memory: *mut c_void,
    size: usize,
    params: Out<Handle<Params>>,
) -> Code {
    call("umfFixedMemoryProviderParamsCreate", || {
        let params = params.check()?;
        checked(memory, size)?;
        params.set(Handle::new(Params { memory, size, name: c"FIXED".to_owned() }))
    })
}

#[unsafe(no_mangle)]
extern "C" fn umfFixedMemoryProviderParamsSetMemory(
    params: Handle<Params>,
    memory: *mut c_void,
    size: usize,
) -> Code {
    call("umfFixedMemoryProviderParamsSetMemory", || {
        let params = params.get_mut()?;
        checked(memory, size)?;
        params.memory = memory;
        params.size = size;
        Ok(())
    })
}

#[unsafe(no_mangle)]
extern "C" fn umfFixedMemoryProviderParamsDestroy(params: Handle<Params>) -> Code {
    call("umfFixedMemoryProviderParamsDestroy", || {
        drop(params.take()?);
        Ok(())
    })
}

#[unsafe(no_mangle)]
extern "C" fn umfFixedMemoryProviderParamsSetName(params: Handle<Params>, name: Text) -> Code {
    call("umfFixedMemoryProviderParamsSetName", || {
        let (params, name) = (params.get_mut()?, name.get()?);
        params.name = short_name(name);
        Ok(())
    })
}
