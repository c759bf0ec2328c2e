//! `umf/experimental/memspace.h`, `memtarget.h`, `mempolicy.h`: placement of memory on NUMA nodes.

use core::ffi::c_void;
use std::sync::OnceLock;

use umf_topology::{Attribute, Initiator, MemorySpace, Topology};

use crate::boundary::{
    Code, Failure, Handle, List, NOT_SUPPORTED, Out, Outcome, USER_SPECIFIC, call, call_with,
    settings_functions,
};
use crate::pool::Pool;
use crate::provider::Provider;
use crate::providers::{self, Partition, mode};

/// A NUMA node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Node {
    id: u32,
    /// Bytes of memory.
    capacity: usize,
}

/// Reads the topology of this machine. Logs an error and returns `None` if that fails.
fn topology() -> Option<Topology> {
    Topology::of_this_machine().inspect_err(|error| tracing::error!("{error}")).ok()
}

fn in_order(space: &MemorySpace) -> Vec<Node> {
    let node = |node: &umf_topology::Node| Node {
        id: node.id,
        capacity: usize::try_from(node.memory.total).unwrap_or(usize::MAX),
    };
    space.nodes().iter().map(|shared| node(shared)).collect()
}

/// Returns the nodes with memory that this process may use, by number. Falls back to node 0 of
/// unknown size.
fn nodes() -> Vec<Node> {
    topology().map_or_else(|| vec![Node { id: 0, capacity: 0 }], |topology| in_order(&topology.all()))
}

/// Returns the node with this number, if it has memory.
fn node(id: u32) -> Option<Node> {
    let topology = topology()?;
    in_order(&topology.space([id]).ok()?).first().copied()
}

/// Returns the union of the best nodes of each initiator; `None` if the firmware has no figures
/// (HMAT).
fn best(attribute: Attribute) -> Option<Vec<Node>> {
    let topology = topology().filter(Topology::has_performance)?;
    let choice = topology.best(&topology.all(), attribute, Initiator::Any).ok()?;
    Some(in_order(&choice.space)).filter(|nodes| !nodes.is_empty())
}

/// `umf_mempolicy_membind_t`.
const INTERLEAVE: u32 = 0;
const BIND: u32 = 1;
const PREFERRED: u32 = 2;
const SPLIT: u32 = 3;

/// Target of a `umf_mempolicy_handle_t`.
struct Policy {
    bind: u32,
    part_size: usize,
    partitions: Vec<Partition>,
}

settings_functions! {
    Policy;
    create fn umfMempolicyCreate(bind: u32) { Policy { bind, part_size: 0, partitions: Vec::new() } }
    destroy fn umfMempolicyDestroy;

    fn umfMempolicySetInterleavePartSize(policy, size: usize) {
        if policy.bind != INTERLEAVE {
            return Err(Failure::argument("a part size goes with UMF_MEMPOLICY_INTERLEAVE only"));
        }
        policy.part_size = size;
    }
    fn umfMempolicySetCustomSplitPartitions(policy, list: List<Partition>, len: usize) {
        if policy.bind != SPLIT {
            return Err(Failure::argument("partitions go with UMF_MEMPOLICY_SPLIT only"));
        }
        policy.partitions = list.get(len)?;
    }
}

/// `UMF_MEMTARGET_TYPE_NUMA`.
const NUMA: u32 = 1;

/// Target of a `umf_memtarget_handle_t`: a NUMA node. Lives as long as its memory space.
struct Target(Node);

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

/// Target of a `umf_memspace_handle_t`: memory targets in order. Each is boxed, because C keeps
/// pointers to them.
#[expect(clippy::vec_box, reason = "targets do not move: C keeps pointers to them")]
struct Space {
    targets: Vec<Box<Target>>,
    /// The space contains all host memory, so a provider of it binds no pages.
    is_all: bool,
}

type Filter = unsafe extern "C" fn(Handle<Space>, Handle<Target>, *mut c_void) -> i32;

impl Space {
    fn of(nodes: impl IntoIterator<Item = Node>) -> Self {
        Self { targets: nodes.into_iter().map(|node| Box::new(Target(node))).collect(), is_all: false }
    }

    fn ids(&self) -> Vec<u32> {
        self.targets.iter().map(|target| target.0.id).collect()
    }
}

/// Returns a handle of a static space. C gets it as a pointer to const.
fn lasting(space: &'static Space) -> Handle<Space> {
    Handle::from_ptr(core::ptr::from_ref(space).cast_mut())
}

#[unsafe(no_mangle)]
extern "C" fn umfMemspaceHostAllGet() -> Handle<Space> {
    static ALL: OnceLock<Space> = OnceLock::new();
    call_with("umfMemspaceHostAllGet", Handle::NULL, || {
        Ok(lasting(ALL.get_or_init(|| Space { is_all: true, ..Space::of(nodes()) })))
    })
}

#[unsafe(no_mangle)]
extern "C" fn umfMemspaceHighestCapacityGet() -> Handle<Space> {
    static LARGEST: OnceLock<Space> = OnceLock::new();
    call_with("umfMemspaceHighestCapacityGet", Handle::NULL, || {
        Ok(lasting(LARGEST.get_or_init(|| {
            let mut nodes = nodes();
            nodes.sort_by_key(|node| core::cmp::Reverse(node.capacity));
            Space::of(nodes)
        })))
    })
}

/// Returns NULL if the firmware has no bandwidths (HMAT).
#[unsafe(no_mangle)]
extern "C" fn umfMemspaceHighestBandwidthGet() -> Handle<Space> {
    static WIDEST: OnceLock<Option<Space>> = OnceLock::new();
    rated("umfMemspaceHighestBandwidthGet", &WIDEST, Attribute::Bandwidth)
}

/// Returns NULL if the firmware has no latencies (HMAT).
#[unsafe(no_mangle)]
extern "C" fn umfMemspaceLowestLatencyGet() -> Handle<Space> {
    static NEAREST: OnceLock<Option<Space>> = OnceLock::new();
    rated("umfMemspaceLowestLatencyGet", &NEAREST, Attribute::Latency)
}

fn rated(what: &'static str, space: &'static OnceLock<Option<Space>>, attribute: Attribute) -> Handle<Space> {
    call_with(what, Handle::NULL, || {
        Ok(space.get_or_init(|| best(attribute).map(Space::of)).as_ref().map_or(Handle::NULL, lasting))
    })
}

#[unsafe(no_mangle)]
extern "C" fn umfMemspaceCreateFromNumaArray(ids: List<u32>, len: usize, space: Out<Handle<Space>>) -> Code {
    call("umfMemspaceCreateFromNumaArray", || {
        let space = space.check()?;
        if ids.is_null() || len == 0 {
            return Err(Failure::argument("a space of NUMA nodes needs at least one"));
        }
        // An absent node has no memory. Creating a provider on it fails.
        let of = |id| node(id).unwrap_or(Node { id, capacity: 0 });
        space.set(Handle::new(Space::of(ids.get(len)?.into_iter().map(of))))
    })
}

#[unsafe(no_mangle)]
extern "C" fn umfMemspaceNew(space: Out<Handle<Space>>) -> Code {
    call("umfMemspaceNew", || space.check()?.set(Handle::new(Space::of([]))))
}

#[unsafe(no_mangle)]
extern "C" fn umfMemspaceClone(space: Handle<Space>, copy: Out<Handle<Space>>) -> Code {
    call("umfMemspaceClone", || {
        let (space, copy) = (space.get()?, copy.check()?);
        copy.set(Handle::new(Space::of(space.targets.iter().map(|target| target.0))))
    })
}

#[unsafe(no_mangle)]
extern "C" fn umfMemspaceDestroy(space: Handle<Space>) -> Code {
    call("umfMemspaceDestroy", || {
        space.get()?;
        drop(space.take()?);
        Ok(())
    })
}

#[unsafe(no_mangle)]
extern "C" fn umfMemspaceMemtargetNum(space: Handle<Space>) -> usize {
    space.get().map_or(0, |space| space.targets.len())
}

#[unsafe(no_mangle)]
extern "C" fn umfMemspaceMemtargetGet(space: Handle<Space>, number: u32) -> Handle<Target> {
    call_with("umfMemspaceMemtargetGet", Handle::NULL, || {
        let target = space.get()?.targets.get(number as usize);
        let target = target.ok_or(Failure::argument("the space does not have as many targets"))?;
        Ok(Handle::from_ptr(core::ptr::from_ref(&**target).cast_mut()))
    })
}

#[unsafe(no_mangle)]
extern "C" fn umfMemspaceMemtargetAdd(space: Handle<Space>, target: Handle<Target>) -> Code {
    call("umfMemspaceMemtargetAdd", || {
        let (space, target) = (space.get_mut()?, target.get()?.0);
        if space.ids().contains(&target.id) {
            return Err(Failure::argument("the space has that target already"));
        }
        space.targets.push(Box::new(Target(target)));
        Ok(())
    })
}

#[unsafe(no_mangle)]
extern "C" fn umfMemspaceMemtargetRemove(space: Handle<Space>, target: Handle<Target>) -> Code {
    call("umfMemspaceMemtargetRemove", || {
        let (space, id) = (space.get_mut()?, target.get()?.0.id);
        let place = space.targets.iter().position(|target| target.0.id == id);
        space.targets.remove(place.ok_or(Failure::argument("the space does not have that target"))?);
        Ok(())
    })
}

#[unsafe(no_mangle)]
extern "C" fn umfMemspaceFilterById(space: Handle<Space>, ids: List<u32>, len: usize) -> Code {
    call("umfMemspaceFilterById", || {
        let space = space.get_mut()?;
        if ids.is_null() || len == 0 {
            return Err(Failure::argument("a filter needs at least one node"));
        }
        let ids = ids.get(len)?;
        space.targets.retain(|target| ids.contains(&target.0.id));
        Ok(())
    })
}

/// Keeps the targets of at least this capacity.
#[unsafe(no_mangle)]
extern "C" fn umfMemspaceFilterByCapacity(space: Handle<Space>, size: i64) -> Code {
    call("umfMemspaceFilterByCapacity", || {
        let space = space.get_mut()?;
        let least = usize::try_from(size).map_err(|_| Failure::argument("a capacity is negative"))?;
        space.targets.retain(|target| target.0.capacity >= least);
        Ok(())
    })
}

#[unsafe(no_mangle)]
extern "C" fn umfMemspaceUserFilter(
    handle: Handle<Space>,
    filter: Option<Filter>,
    argument: *mut c_void,
) -> Code {
    call("umfMemspaceUserFilter", || {
        let filter = filter.ok_or(Failure::argument("the filter is NULL"))?;
        let targets: Vec<_> =
            handle.get()?.targets.iter().map(|target| core::ptr::from_ref(&**target)).collect();
        let mut kept = Vec::new();
        for target in targets {
            // SAFETY: calls the function that C passed with its argument; no part of the space is
            // borrowed.
            match unsafe { filter(handle, Handle::from_ptr(target.cast_mut()), argument) } {
                0 => {}
                code if code > 0 => kept.push(target),
                _ => return Err(Failure::new(USER_SPECIFIC, "the program's filter failed")),
            }
        }
        handle.get_mut()?.targets.retain(|target| kept.contains(&core::ptr::from_ref(&**target)));
        Ok(())
    })
}

const NO_TARGETS: Failure = Failure::argument("the space has no targets");

fn settings(space: &Space, policy: Handle<Policy>) -> Outcome<providers::Params> {
    let nodes = space.ids();
    if nodes.is_empty() {
        return Err(NO_TARGETS);
    }
    if policy.is_null() {
        return Ok(if space.is_all {
            providers::of_nodes(Vec::new(), mode::DEFAULT, 0, Vec::new())
        } else {
            // All nodes have the same kind of memory, and the first is the best.
            providers::of_nodes(nodes, mode::BIND, 0, Vec::new())
        });
    }
    let policy = policy.get()?;
    let mode = match policy.bind {
        INTERLEAVE => mode::INTERLEAVE,
        BIND => mode::BIND,
        PREFERRED => mode::PREFERRED,
        SPLIT => mode::SPLIT,
        _ => return Err(Failure::argument("a policy is none of umf_mempolicy_membind_t")),
    };
    Ok(providers::of_nodes(nodes, mode, policy.part_size, policy.partitions.clone()))
}

#[unsafe(no_mangle)]
extern "C" fn umfMemoryProviderCreateFromMemspace(
    space: Handle<Space>,
    policy: Handle<Policy>,
    provider: Out<Handle<Provider>>,
) -> Code {
    call("umfMemoryProviderCreateFromMemspace", || {
        let provider = provider.check()?;
        let settings = settings(space.get()?, policy)?;
        let table = providers::umfOsMemoryProviderOps();
        crate::provider::create(table.cast(), core::ptr::from_ref(&settings).cast(), provider)
    })
}

/// Not supported by the original either.
#[unsafe(no_mangle)]
extern "C" fn umfPoolCreateFromMemspace(
    space: Handle<Space>,
    _policy: Handle<Policy>,
    pool: Out<Handle<Pool>>,
) -> Code {
    call("umfPoolCreateFromMemspace", || {
        let (space, _) = (space.get()?, pool.check()?);
        if space.targets.is_empty() {
            return Err(NO_TARGETS);
        }
        Err(Failure::new(NOT_SUPPORTED, "make a provider of the space, and a pool of that"))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn this_machine_has_memory() {
        let nodes = nodes();
        assert!(!nodes.is_empty() && nodes[0].capacity > 1 << 20);
        assert_eq!(node(nodes[0].id), Some(nodes[0]));
        assert_eq!(node(1 << 20), None);
    }
}
