//! Providers that suballocate one range: a file (`umf/providers/provider_file_memory.h`), a DAX
//! device (`provider_devdax_memory.h`), or memory of the program (`provider_fixed_memory.h`).

use core::ffi::c_void;
use std::ffi::{CStr, CString, OsStr};
use std::os::unix::ffi::OsStrExt as _;
use std::path::Path;
use std::sync::Arc;

use umf_core::{Import, Visibility};
use umf_provider_file::{DevDaxImport, DevDaxProvider, FileImport, FileProvider, FixedProvider};
use umf_provider_plugin::table::Table;

use super::os::{PRIVATE, SHARED, WRONG_VISIBILITY};
use crate::boundary::{
    Code, Failure, Handle, INVALID_ARGUMENT, Out, Outcome, Text, call, settings_functions,
};
use crate::last_error::NativeKind;
use crate::provider::{InstrumentedProvider, NativeParts, NativeTable, Protection, short_name, table};

fn path_of(path: &CStr) -> &Path {
    Path::new(OsStr::from_bytes(path.to_bytes()))
}

/// Validates a path, which must not be empty.
fn checked_path(path: Text) -> Outcome<CString> {
    let path = path.get()?;
    if path.is_empty() { Err(Failure::argument("the path is empty")) } else { Ok(path.to_owned()) }
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
        let (path, name) = (checked_path(path)?, File::NAME.to_owned());
        FileParams { path, protection: Protection::DEFAULT.bits(), visibility: PRIVATE, name }
    }
    destroy fn umfFileMemoryProviderParamsDestroy;

    fn umfFileMemoryProviderParamsSetPath(params, path: Text) { params.path = checked_path(path)?; }
    fn umfFileMemoryProviderParamsSetProtection(params, protection: u32) { params.protection = protection; }
    fn umfFileMemoryProviderParamsSetVisibility(params, visibility: u32) { params.visibility = visibility; }
    fn umfFileMemoryProviderParamsSetName(params, name: Text) { params.name = short_name(name.get()?); }
}

static FILE: Table = table::<File>();

#[unsafe(no_mangle)]
extern "C" fn umfFileMemoryProviderOps() -> *const Table {
    &raw const FILE
}

struct File;

fn file_import() -> Arc<dyn Import> {
    Arc::new(FileImport::trust_writers())
}

fn devdax_import() -> Arc<dyn Import> {
    Arc::new(DevDaxImport)
}

/// Returns what imports memory of the file and devdax providers, which a provider of the program
/// may forward to.
pub(crate) fn file_imports() -> [Arc<dyn Import>; 2] {
    [file_import(), devdax_import()]
}

impl NativeTable for File {
    const NAME: &'static CStr = c"FILE";

    fn make(params: *const c_void) -> Outcome<NativeParts> {
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
            import: Some(file_import()),
            device: None,
        })
    }
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
        let (path, name) = (checked_path(path)?, DevDax::NAME.to_owned());
        DevDaxParams { path, size, protection: Protection::DEFAULT.bits(), name }
    }
    destroy fn umfDevDaxMemoryProviderParamsDestroy;

    fn umfDevDaxMemoryProviderParamsSetDeviceDax(params, path: Text, size: usize) {
        params.path = checked_path(path)?;
        params.size = size;
    }
    fn umfDevDaxMemoryProviderParamsSetProtection(params, protection: u32) {
        params.protection = Protection::check_bits(protection)?;
    }
    fn umfDevDaxMemoryProviderParamsSetName(params, name: Text) { params.name = short_name(name.get()?); }
}

static DEVDAX: Table = table::<DevDax>();

#[unsafe(no_mangle)]
extern "C" fn umfDevDaxMemoryProviderOps() -> *const Table {
    &raw const DEVDAX
}

struct DevDax;

impl NativeTable for DevDax {
    const NAME: &'static CStr = c"DEVDAX";

    fn make(params: *const c_void) -> Outcome<NativeParts> {
        let params: &DevDaxParams = settings(params)?;
        let protection = Protection::new(params.protection)?;
        let device = DevDaxProvider::open(path_of(&params.path), params.size, params.name.to_string_lossy())
            .map_err(wrong_path)?;
        Ok(NativeParts {
            counted: InstrumentedProvider::new(device, NativeKind::DevDax, protection),
            name: params.name.clone(),
            import: Some(devdax_import()),
            device: None,
        })
    }
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
        FixedParams { memory, size, name: Fixed::NAME.to_owned() }
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

static FIXED: Table = table::<Fixed>();

#[unsafe(no_mangle)]
extern "C" fn umfFixedMemoryProviderOps() -> *const Table {
    &raw const FIXED
}

struct Fixed;

impl NativeTable for Fixed {
    const NAME: &'static CStr = c"FIXED";

    fn make(params: *const c_void) -> Outcome<NativeParts> {
        let params: &FixedParams = settings(params)?;
        let name = params.name.to_string_lossy().into_owned();
        // SAFETY: C guarantees that the range is mapped and used by this provider only.
        let fixed = unsafe { FixedProvider::new(params.memory.cast(), params.size, name) }?;
        let counted = InstrumentedProvider::new(fixed, NativeKind::Fixed, Protection::DEFAULT);
        Ok(NativeParts { counted, name: params.name.clone(), import: None, device: None })
    }
}
