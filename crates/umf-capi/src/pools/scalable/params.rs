//! `umf_scalable_pool_params_handle_t`.

use std::ffi::CString;

use crate::boundary::{Code, Failure, Handle, Out, Text, call};
use crate::provider::short_name;

/// The settings of a pool to be.
pub(super) struct Params {
    pub(super) granularity: usize,
    pub(super) keep_all: bool,
    pub(super) name: CString,
}

impl Default for Params {
    fn default() -> Self {
        Self { granularity: 2 << 20, keep_all: false, name: c"scalable".to_owned() }
    }
}

#[unsafe(no_mangle)]
extern "C" fn umfScalablePoolParamsCreate(params: Out<Handle<Params>>) -> Code {
    call("umfScalablePoolParamsCreate", || params.check()?.set(Handle::new(Params::default())))
}

#[unsafe(no_mangle)]
extern "C" fn umfScalablePoolParamsDestroy(params: Handle<Params>) -> Code {
    call("umfScalablePoolParamsDestroy", || {
        // As the original has it, of this pool's settings alone.
        params.get()?;
        drop(params.take()?);
        Ok(())
    })
}

#[unsafe(no_mangle)]
extern "C" fn umfScalablePoolParamsSetGranularity(params: Handle<Params>, granularity: usize) -> Code {
    call("umfScalablePoolParamsSetGranularity", || {
        let params = params.get_mut()?;
        if granularity == 0 {
            return Err(Failure::argument("the granularity is 0"));
        }
        params.granularity = granularity;
        Ok(())
    })
}

#[unsafe(no_mangle)]
extern "C" fn umfScalablePoolParamsSetKeepAllMemory(params: Handle<Params>, keep_all: bool) -> Code {
    call("umfScalablePoolParamsSetKeepAllMemory", || {
        params.get_mut()?.keep_all = keep_all;
        Ok(())
    })
}

#[unsafe(no_mangle)]
extern "C" fn umfScalablePoolParamsSetName(params: Handle<Params>, name: Text) -> Code {
    call("umfScalablePoolParamsSetName", || {
        let (params, name) = (params.get_mut()?, name.get()?);
        params.name = short_name(name);
        Ok(())
    })
}
