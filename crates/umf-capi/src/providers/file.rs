//! `umf/providers/provider_file_memory.h`: memory of a file.

use core::ffi::c_void;
use std::ffi::{CString, OsStr};
use std::os::unix::ffi::OsStrExt as _;
use std::path::Path;
use std::sync::Arc;

use umf::plugin::ops::{State, Table1_2};
use umf_provider_file::{FileImport, FileProvider, Mapped};

use crate::boundary::{Code, Failure, Handle, Out, Outcome, Text, call};
use crate::provider::{Counted, Flavour, Protection, Start, short_name, start, table};

/// The settings of a provider to be.
struct Params {
    path: CString,
    protection: u32,
    visibility: u32,
    name: CString,
}

const PRIVATE: u32 = 1;
const SHARED: u32 = 2;

static TABLE: Table1_2 = table(initialize);

#[unsafe(no_mangle)]
extern "C" fn umfFileMemoryProviderOps() -> *const Table1_2 {
    &raw const TABLE
}

extern "C" fn initialize(params: *const c_void, state: *mut State) -> Code {
    start("initialize", state, || {
        Handle::<Params>::from_ptr(params.cast::<Params>().cast_mut()).get()?.provider()
    })
}

impl Params {
    fn provider(&self) -> Outcome<Start> {
        let protection = Protection::new(self.protection)?;
        let mapped = match self.visibility {
            PRIVATE => Mapped::Private,
            SHARED => Mapped::Shared,
            _ => return Err(Failure::argument("a visibility is UMF_MEM_MAP_PRIVATE or UMF_MEM_MAP_SHARED")),
        };
        let path = Path::new(OsStr::from_bytes(self.path.to_bytes()));
        let file = FileProvider::open(path, mapped, self.name.to_string_lossy())
            .map_err(|error| Failure::from(error).with_code(crate::boundary::INVALID_ARGUMENT))?;
        let counted = Counted::new(file, Flavour::File, protection);
        Ok(Start {
            counted,
            name: self.name.clone(),
            import: Some(Arc::new(FileImport::trusting())),
            own: None,
        })
    }
}

#[unsafe(no_mangle)]
extern "C" fn umfFileMemoryProviderParamsCreate(path: Text, params: Out<Handle<Params>>) -> Code {
    call("umfFileMemoryProviderParamsCreate", || {
        let params = params.check()?;
        let path = path.get()?.to_owned();
        let name = c"FILE".to_owned();
        params.set(Handle::new(Params { path, protection: 2 | 4, visibility: PRIVATE, name }))
    })
}

#[unsafe(no_mangle)]
extern "C" fn umfFileMemoryProviderParamsDestroy(params: Handle<Params>) -> Code {
    call("umfFileMemoryProviderParamsDestroy", || {
        drop(params.take()?);
        Ok(())
    })
}

#[unsafe(no_mangle)]
extern "C" fn umfFileMemoryProviderParamsSetPath(params: Handle<Params>, path: Text) -> Code {
    call("umfFileMemoryProviderParamsSetPath", || {
        let (params, path) = (params.get_mut()?, path.get()?);
        params.path = path.to_owned();
        Ok(())
    })
}

#[unsafe(no_mangle)]
extern "C" fn umfFileMemoryProviderParamsSetProtection(params: Handle<Params>, protection: u32) -> Code {
    call("umfFileMemoryProviderParamsSetProtection", || {
        params.get_mut()?.protection = protection;
        Ok(())
    })
}

#[unsafe(no_mangle)]
extern "C" fn umfFileMemoryProviderParamsSetVisibility(params: Handle<Params>, visibility: u32) -> Code {
    call("umfFileMemoryProviderParamsSetVisibility", || {
        params.get_mut()?.visibility = visibility;
        Ok(())
    })
}

#[unsafe(no_mangle)]
extern "C" fn umfFileMemoryProviderParamsSetName(params: Handle<Params>, name: Text) -> Code {
    call("umfFileMemoryProviderParamsSetName", || {
        let (params, name) = (params.get_mut()?, name.get()?);
        params.name = short_name(name);
        Ok(())
    })
}
