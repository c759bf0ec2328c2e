//! Providers that suballocate one range: a file (`umf/providers/provider_file_memory.h`), a DAX
//! device (`provider_devdax_memory.h`), or memory of the program (`provider_fixed_memory.h`).

use core::ffi::c_void;
use std::ffi::{CStr, CString, OsStr};
use std::os::unix::ffi::OsStrExt as _;
use std::path::Path;
use std::sync::Arc;

use umf_core::Visibility;
use umf_provider_file::{DevDaxImport, DevDaxProvider, FileImport, FileProvider, FixedProvider};
use umf_provider_plugin::table::{State, Table};

use super::os::{PRIVATE, SHARED, WRONG_VISIBILITY};
use crate::boundary::{
    Code, Failure, Handle, INVALID_ARGUMENT, Out, Outcome, Text, call, settings_functions,
};
use crate::last_error::NativeKind;
use crate::provider::{InstrumentedProvider, NativeParts, Protection, short_name, start, table};

fn path_of(path: &CStr) -> &Path {
    Path::new(OsStr::from_bytes(path.to_bytes()))
}

fn wrong_path(error: umf_core::Error) -> Failure {
    Failure::from(error).with_code(INVALID_ARGUMENT)
}

fn settings<'a, T>(params: *const c_void) -> Outcome<&'a T> {
    Handle::<T>::from_ptr(params.cast::<T>().cast_mut()).get()
}

struct FileParams {
    path: CString,
    protection: u32,
    visibility: u32,
    name: CString,
}

settings_functions! {
    FileParams;
    create fn umfFileMemoryProviderParamsCreate(path: Text) {
        let (path, name) = (path.get()?.to_owned(), c"FILE".to_owned());
        FileParams { path, protection: Protection::DEFAULT.bits(), visibility: PRIVATE, name }
    }
    destroy fn umfFileMemoryProviderParamsDestroy;

    fn umfFileMemoryProviderParamsSetPath(params, path: Text) { params.path = path.get()?.to_owned(); }
    fn umfFileMemoryProviderParamsSetProtection(params, protection: u32) { params.protection = protection; }
    fn umfFileMemoryProviderParamsSetVisibility(params, visibility: u32) { params.visibility = visibility; }
    fn umfFileMemoryProviderParamsSetName(params, name: Text) { params.name = short_name(name.get()?); }
}

static FILE: Table = table(initialize_file);

#[unsafe(no_mangle)]
extern "C" fn umfFileMemoryProviderOps() -> *const Table {
    &raw const FILE
}

extern "C" fn initialize_file(params: *const c_void, state: *mut State) -> Code {
    start("initialize", state, || {
        let params: &FileParams = settings(params)?;
        let protection = Protection::new(params.protection)?;
        let visibility = match params.visibility {
            PRIVATE => Visibility::Private,
            SHARED => Visibility::Shared,
            _ => return Err(WRONG_VISIBILITY),
        };
        let file = FileProvider::open(path_of(&params.path), visibility, params.name.to_string_lossy())
            .map_err(wrong_path)?;
        Ok(NativeParts {
            counted: InstrumentedProvider::new(file, NativeKind::File, protection),
            name: params.name.clone(),
            import: Some(Arc::new(FileImport::trust_writers())),
            device: None,
        })
    })
}

struct DevDaxParams {
    path: CString,
    size: usize,
    protection: u32,
    name: CString,
}

settings_functions! {
    DevDaxParams;
    create fn umfDevDaxMemoryProviderParamsCreate(path: Text, size: usize) {
        let (path, name) = (device_path(path, size)?, c"DEVDAX".to_owned());
        DevDaxParams { path, size, protection: Protection::DEFAULT.bits(), name }
    }
    destroy fn umfDevDaxMemoryProviderParamsDestroy;

    fn umfDevDaxMemoryProviderParamsSetDeviceDax(params, path: Text, size: usize) {
        params.path = device_path(path, size)?;
        params.size = size;
    }
    fn umfDevDaxMemoryProviderParamsSetProtection(params, protection: u32) { params.protection = protection; }
    fn umfDevDaxMemoryProviderParamsSetName(params, name: Text) { params.name = short_name(name.get()?); }
}

fn device_path(path: Text, size: usize) -> Outcome<CString> {
    let path = path.get()?.to_owned();
    if size == 0 {
        return Err(Failure::argument("the size of a DAX device is 0"));
    }
    Ok(path)
}

static DEVDAX: Table = table(initialize_devdax);

#[unsafe(no_mangle)]
extern "C" fn umfDevDaxMemoryProviderOps() -> *const Table {
    &raw const DEVDAX
}

extern "C" fn initialize_devdax(params: *const c_void, state: *mut State) -> Code {
    start("initialize", state, || {
        let params: &DevDaxParams = settings(params)?;
        let protection = Protection::new(params.protection)?;
        let device = DevDaxProvider::open(path_of(&params.path), params.size, params.name.to_string_lossy())
            .map_err(wrong_path)?;
        Ok(NativeParts {
            counted: InstrumentedProvider::new(device, NativeKind::DevDax, protection),
            name: params.name.clone(),
            import: Some(Arc::new(DevDaxImport)),
            device: None,
        })
    })
}

struct FixedParams {
    memory: *mut c_void,
    size: usize,
    name: CString,
}

settings_functions! {
    FixedParams;
    create fn umfFixedMemoryProviderParamsCreate(memory: *mut c_void, size: usize) {
        check_fixed(memory, size)?;
        FixedParams { memory, size, name: c"FIXED".to_owned() }
    }
    destroy fn umfFixedMemoryProviderParamsDestroy;

    fn umfFixedMemoryProviderParamsSetMemory(params, memory: *mut c_void, size: usize) {
        check_fixed(memory, size)?;
        params.memory = memory;
        params.size = size;
    }
    fn umfFixedMemoryProviderParamsSetName(params, name: Text) { params.name = short_name(name.get()?); }
}

fn check_fixed(memory: *mut c_void, size: usize) -> Outcome<()> {
    if memory.is_null() || size == 0 {
        return Err(Failure::argument("fixed memory must be there, and not of 0 bytes"));
    }
    Ok(())
}

static FIXED: Table = table(initialize_fixed);

#[unsafe(no_mangle)]
extern "C" fn umfFixedMemoryProviderOps() -> *const Table {
    &raw const FIXED
}

extern "C" fn initialize_fixed(params: *const c_void, state: *mut State) -> Code {
    start("initialize", state, || {
        let params: &FixedParams = settings(params)?;
        let name = params.name.to_string_lossy().into_owned();
        // SAFETY: C guarantees that the range is mapped and used by this provider only.
        let fixed = unsafe { FixedProvider::new(params.memory.cast(), params.size, name) }?;
        let counted = InstrumentedProvider::new(fixed, NativeKind::Fixed, Protection::DEFAULT);
        Ok(NativeParts { counted, name: params.name.clone(), import: None, device: None })
    })
}
