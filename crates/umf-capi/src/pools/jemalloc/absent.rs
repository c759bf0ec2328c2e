//! No jemalloc: no table, and settings that cannot be made.

use crate::boundary::{Code, Failure, Handle, Out, Text, call};
use crate::pool::PoolTable;

/// Settings that there are none of.
enum Params {}

const ABSENT: Failure = Failure::unsupported("this library was built without jemalloc");

#[unsafe(no_mangle)]
extern "C" fn umfJemallocPoolOps() -> *const PoolTable {
    core::ptr::null()
}

#[unsafe(no_mangle)]
extern "C" fn umfJemallocPoolParamsCreate(_: Out<Handle<Params>>) -> Code {
    call("umfJemallocPoolParamsCreate", || Err(ABSENT))
}

#[unsafe(no_mangle)]
extern "C" fn umfJemallocPoolParamsDestroy(_: Handle<Params>) -> Code {
    call("umfJemallocPoolParamsDestroy", || Err(ABSENT))
}

#[unsafe(no_mangle)]
extern "C" fn umfJemallocPoolParamsSetNumArenas(_: Handle<Params>, _: usize) -> Code {
    call("umfJemallocPoolParamsSetNumArenas", || Err(ABSENT))
}

#[unsafe(no_mangle)]
extern "C" fn umfJemallocPoolParamsSetName(_: Handle<Params>, _: Text) -> Code {
    call("umfJemallocPoolParamsSetName", || Err(ABSENT))
}
