//! `umf_jemalloc_pool_params_handle_t`.

use std::ffi::CString;

use crate::boundary::{Code, Handle, Out, Text, call};
use crate::provider::short_name;

/// The settings of a pool to be.
pub(super) struct Params {
    /// How many arenas threads are spread over; 0: as the pool thinks right.
    pub(super) arenas: usize,
    pub(super) name: CString,
}

impl Default for Params {
    fn default() -> Self {
        Self { arenas: 0, name: c"jemalloc".to_owned() }
    }
}

#[unsafe(no_mangle)]
extern "C" fn umfJemallocPoolParamsCreate(params: Out<Handle<Params>>) -> Code {
    call("umfJemallocPoolParamsCreate", || params.check()?.set(Handle::new(Params::default())))
}

#[unsafe(no_mangle)]
extern "C" fn umfJemallocPoolParamsDestroy(params: Handle<Params>) -> Code {
    call("umfJemallocPoolParamsDestroy", || {
        drop(params.take()?);
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
