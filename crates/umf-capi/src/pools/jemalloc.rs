//! `umf/pools/pool_jemalloc.h`. This library is built without jemalloc, as the original can be: there are settings, and no table.

use std::ffi::CString;

use crate::boundary::{Code, Handle, Out, Text, call};
use crate::pool::PoolTable;
use crate::provider::short_name;

/// What a pool would be made of.
#[allow(dead_code, reason = "kept for C, which may set what it likes")]
struct Params {
    arenas: usize,
    name: CString,
}

#[unsafe(no_mangle)]
extern "C" fn umfJemallocPoolOps() -> *const PoolTable {
    core::ptr::null()
}

#[unsafe(no_mangle)]
extern "C" fn umfJemallocPoolParamsCreate(params: Out<Handle<Params>>) -> Code {
    call("umfJemallocPoolParamsCreate", || {
        params.check()?.set(Handle::new(Params { arenas: 0, name: c"jemalloc".to_owned() }))
    })
}

#[unsafe(no_mangle)]
extern "C" fn umfJemallocPoolParamsDestroy(params: Handle<Params>) -> Code {
    call("umfJemallocPoolParamsDestroy", || {
        drop(params.take());
        Ok(())
    })
}

#[unsafe(no_mangle)]
extern "C" fn umfJemallocPoolParamsSetNumArenas(params: Handle<Params>, arenas: usize) -> Code {
    call("umfJemallocPoolParamsSetNumArenas", || {
        params.get_mut()?.arenas = arenas;
        Ok(())
    })
}

#[unsafe(no_mangle)]
extern "C" fn umfJemallocPoolParamsSetName(params: Handle<Params>, name: Text) -> Code {
    call("umfJemallocPoolParamsSetName", || {
        let (params, name) = (params.get_mut()?, name.get()?);
        params.name = short_name(name);
        Ok(())
    })
}
