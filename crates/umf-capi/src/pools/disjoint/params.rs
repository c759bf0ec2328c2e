//! `umf_disjoint_pool_params_handle_t`.

use std::ffi::CString;
use std::sync::Arc;

use super::limits::Limits;
use crate::boundary::Text;
use crate::boundary::{Code, Failure, Handle, Out, call};
use crate::provider::short_name;

/// The settings of a pool to be.
#[derive(Clone)]
pub(super) struct Params {
    pub(super) slab_min_size: usize,
    pub(super) max_poolable_size: usize,
    pub(super) capacity: usize,
    /// `None`: the provider's cache line.
    pub(super) min_bucket_size: Option<usize>,
    pub(super) trace: i32,
    pub(super) limits: Option<Arc<Limits>>,
    pub(super) name: CString,
}

impl Default for Params {
    fn default() -> Self {
        Self {
            slab_min_size: 64 << 10,
            max_poolable_size: 2 << 20,
            capacity: 4,
            min_bucket_size: None,
            trace: 0,
            limits: None,
            name: c"disjoint".to_owned(),
        }
    }
}

#[unsafe(no_mangle)]
extern "C" fn umfDisjointPoolParamsCreate(params: Out<Handle<Params>>) -> Code {
    call("umfDisjointPoolParamsCreate", || params.check()?.set(Handle::new(Params::default())))
}

#[unsafe(no_mangle)]
extern "C" fn umfDisjointPoolParamsDestroy(params: Handle<Params>) -> Code {
    call("umfDisjointPoolParamsDestroy", || {
        drop(params.take()?);
        Ok(())
    })
}

#[unsafe(no_mangle)]
extern "C" fn umfDisjointPoolParamsSetSlabMinSize(params: Handle<Params>, size: usize) -> Code {
    call("umfDisjointPoolParamsSetSlabMinSize", || {
        params.get_mut()?.slab_min_size = size;
        Ok(())
    })
}

#[unsafe(no_mangle)]
extern "C" fn umfDisjointPoolParamsSetMaxPoolableSize(params: Handle<Params>, size: usize) -> Code {
    call("umfDisjointPoolParamsSetMaxPoolableSize", || {
        params.get_mut()?.max_poolable_size = size;
        Ok(())
    })
}

#[unsafe(no_mangle)]
extern "C" fn umfDisjointPoolParamsSetCapacity(params: Handle<Params>, slabs: usize) -> Code {
    call("umfDisjointPoolParamsSetCapacity", || {
        params.get_mut()?.capacity = slabs;
        Ok(())
    })
}

/// The smallest block is a power of two.
pub(super) fn checked_bucket(size: usize) -> Result<usize, Failure> {
    if size.is_power_of_two() {
        Ok(size)
    } else {
        Err(Failure::argument("the smallest bucket must be a power of two"))
    }
}

#[unsafe(no_mangle)]
extern "C" fn umfDisjointPoolParamsSetMinBucketSize(params: Handle<Params>, size: usize) -> Code {
    call("umfDisjointPoolParamsSetMinBucketSize", || {
        params.get_mut()?.min_bucket_size = Some(checked_bucket(size)?);
        Ok(())
    })
}

#[unsafe(no_mangle)]
extern "C" fn umfDisjointPoolParamsSetTrace(params: Handle<Params>, level: i32) -> Code {
    call("umfDisjointPoolParamsSetTrace", || {
        params.get_mut()?.trace = level;
        Ok(())
    })
}

#[unsafe(no_mangle)]
extern "C" fn umfDisjointPoolParamsSetSharedLimits(
    params: Handle<Params>,
    limits: Handle<Arc<Limits>>,
) -> Code {
    call("umfDisjointPoolParamsSetSharedLimits", || {
        let limits = if limits.is_null() { None } else { Some(Arc::clone(limits.get()?)) };
        params.get_mut()?.limits = limits;
        Ok(())
    })
}

#[unsafe(no_mangle)]
extern "C" fn umfDisjointPoolParamsSetName(params: Handle<Params>, name: Text) -> Code {
    call("umfDisjointPoolParamsSetName", || {
        let (params, name) = (params.get_mut()?, name.get()?);
        params.name = short_name(name);
        Ok(())
    })
}

#[unsafe(no_mangle)]
extern "C" fn umfDisjointPoolSharedLimitsCreate(most: usize, limits: Out<Handle<Arc<Limits>>>) -> Code {
    call("umfDisjointPoolSharedLimitsCreate", || {
        limits.check()?.set(Handle::new(Arc::new(Limits::new(most))))
    })
}

/// Pools that have it keep it.
#[unsafe(no_mangle)]
extern "C" fn umfDisjointPoolSharedLimitsDestroy(limits: Handle<Arc<Limits>>) -> Code {
    call("umfDisjointPoolSharedLimitsDestroy", || {
        drop(limits.take()?);
        Ok(())
    })
}
