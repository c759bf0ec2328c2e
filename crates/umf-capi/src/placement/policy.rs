//! `umf/experimental/mempolicy.h`.

use crate::boundary::{Code, Failure, Handle, List, Out, call};
use crate::providers::Partition;

/// `umf_mempolicy_membind_t`.
pub(super) const INTERLEAVE: u32 = 0;
pub(super) const BIND: u32 = 1;
pub(super) const PREFERRED: u32 = 2;
pub(super) const SPLIT: u32 = 3;

/// What a `umf_mempolicy_handle_t` points to.
pub(super) struct Policy {
    pub(super) bind: u32,
    pub(super) part_size: usize,
    pub(super) partitions: Vec<Partition>,
}

#[unsafe(no_mangle)]
extern "C" fn umfMempolicyCreate(bind: u32, policy: Out<Handle<Policy>>) -> Code {
    call("umfMempolicyCreate", || {
        policy.check()?.set(Handle::new(Policy { bind, part_size: 0, partitions: Vec::new() }))
    })
}

#[unsafe(no_mangle)]
extern "C" fn umfMempolicyDestroy(policy: Handle<Policy>) -> Code {
    call("umfMempolicyDestroy", || {
        drop(policy.take()?);
        Ok(())
    })
}

#[unsafe(no_mangle)]
extern "C" fn umfMempolicySetInterleavePartSize(policy: Handle<Policy>, size: usize) -> Code {
    call("umfMempolicySetInterleavePartSize", || {
        let policy = policy.get_mut()?;
        if policy.bind != INTERLEAVE {
            return Err(Failure::argument("a part size goes with UMF_MEMPOLICY_INTERLEAVE only"));
        }
        policy.part_size = size;
        Ok(())
    })
}

/// The partitions are copied.
#[unsafe(no_mangle)]
extern "C" fn umfMempolicySetCustomSplitPartitions(
    policy: Handle<Policy>,
    list: List<Partition>,
    len: usize,
) -> Code {
    call("umfMempolicySetCustomSplitPartitions", || {
        let policy = policy.get_mut()?;
        if policy.bind != SPLIT {
            return Err(Failure::argument("partitions go with UMF_MEMPOLICY_SPLIT only"));
        }
        policy.partitions = list.get(len)?;
        Ok(())
    })
}
