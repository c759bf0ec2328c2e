//! `umf/experimental/memtarget.h`.

use super::machine::Node;
use crate::boundary::{Code, Handle, Out, call};

/// `UMF_MEMTARGET_TYPE_NUMA`.
const NUMA: u32 = 1;

/// What a `umf_memtarget_handle_t` points to: a NUMA node. It lives as long as its space.
pub(super) struct Target(pub(super) Node);

#[unsafe(no_mangle)]
extern "C" fn umfMemtargetGetType(target: Handle<Target>, kind: Out<u32>) -> Code {
    call("umfMemtargetGetType", || {
        target.get()?;
        kind.set(NUMA)
    })
}

#[unsafe(no_mangle)]
extern "C" fn umfMemtargetGetCapacity(target: Handle<Target>, capacity: Out<usize>) -> Code {
    call("umfMemtargetGetCapacity", || capacity.set(target.get()?.0.capacity))
}

#[unsafe(no_mangle)]
extern "C" fn umfMemtargetGetId(target: Handle<Target>, id: Out<u32>) -> Code {
    call("umfMemtargetGetId", || id.set(target.get()?.0.id))
}
