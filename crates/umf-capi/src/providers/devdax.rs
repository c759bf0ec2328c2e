//! `umf/providers/provider_devdax_memory.h`: memory of a DAX device.

use core::ffi::c_void;
use std::ffi::{CString, OsStr};
use std::os::unix::ffi::OsStrExt as _;
use std::path::Path;
use std::sync::Arc;

use umf::plugin::ops::{State, Table1_2};
use umf_provider_devdax::{DevDaxImport, DevDaxProvider};

use crate::boundary::{Code, Failure, Handle, INVALID_ARGUMENT, Out, Outcome, Text, call};
use crate::provider::{Counted, Flavour, Protection, Start, short_name, start, table};

/// The settings of a provider to be.
struct Params {
    path: CString,
    size: usize,
    protection: u32,
    name: CString,
}

static TABLE: Table1_2 = table(initialize);

#[unsafe(no_mangle)]
extern "C" fn umfDevDaxMemoryProviderOps() -> *const Table1_2 {
    &raw const TABLE
}

extern "C" fn initialize(params: *const c_void, state: *mut State) -> Code {
    start("initialize", state, || {
        let params = Handle::<Params>::from_ptr(params.cast::<Params>().cast_mut()).get()?;
        let protection = Protection::new(params.protection)?;
        let path = Path::new(OsStr::from_bytes(params.path.to_bytes()));
        let device = DevDaxProvider::open(path, params.size, params.name.to_string_lossy())
            .map_err(|error| Failure::from(error).with_code(INVALID_ARGUMENT))?;
        let counted = Counted::new(device, Flavour::DevDax, protection);
        Ok(Start { counted, name: params.name.clone(), import: Some(Arc::new(DevDaxImport)), own: None })
    })
}

fn checked(path: Text, size: usize) -> Outcome<CString> {
    let path = path.get()?.to_owned();
    if size == 0 {
        return Err(Failure::argument("the size of a DAX device is 0"));
    }
    Ok(path)
}

#[unsafe(no_mangle)]
extern "C" fn umfDevDaxMemoryProviderParamsCreate(
    path: Text,
    size: usize,
    params: Out<Handle<Params>>,
) -> Code {
    call("umfDevDaxMemoryProviderParamsCreate", || {
        let params = params.check()?;
        let path = checked(path, size)?;
        params.set(Handle::new(Params { path, size, protection: 2 | 4, name: c"DEVDAX".to_owned() }))
    })
}

#[unsafe(no_mangle)]
extern "C" fn umfDevDaxMemoryProviderParamsDestroy(params: Handle<Params>) -> Code {
    call("umfDevDaxMemoryProviderParamsDestroy", || {
        drop(params.take()?);
        Ok(())
    })
}

#[unsafe(no_mangle)]
extern "C" fn umfDevDaxMemoryProviderParamsSetDeviceDax(
    params: Handle<Params>,
    path: Text,
    size: usize,
) -> Code {
    call("umfDevDaxMemoryProviderParamsSetDeviceDax", || {
        let params = params.get_mut()?;
        params.path = checked(path, size)?;
        params.size = size;
        Ok(())
    })
}

#[unsafe(no_mangle)]
extern "C" fn umfDevDaxMemoryProviderParamsSetProtection(params: Handle<Params>, protection: u32) -> Code {
    call("umfDevDaxMemoryProviderParamsSetProtection", || {
        params.get_mut()?.protection = protection;
        Ok(())
    })
}

#[unsafe(no_mangle)]
extern "C" fn umfDevDaxMemoryProviderParamsSetName(params: Handle<Params>, name: Text) -> Code {
    call("umfDevDaxMemoryProviderParamsSetName", || {
        let (params, name) = (params.get_mut()?, name.get()?);
        params.name = short_name(name);
        Ok(())
    })
}
