//! `umf/providers/provider_os_memory.h`: host memory.

use core::ffi::c_void;
use std::ffi::{CStr, CString};
use std::sync::Arc;

use umf_core::Visibility;
use umf_provider_host::{HostImport, HostProvider, NodeSet, NodeShare, Numa};
use umf_provider_plugin::table::Table;

use crate::boundary::{Code, Failure, Handle, List, Out, Outcome, Text, call, settings_functions};
use crate::last_error::NativeKind;
use crate::provider::{InstrumentedProvider, NativeParts, NativeTable, Protection, short_name, table};

/// The settings of a provider to be created.
#[derive(Clone)]
pub(crate) struct Params {
    protection: u32,
    visibility: u32,
    shm_name: Option<CString>,
    nodes: Vec<u32>,
    mode: u32,
    part_size: usize,
    partitions: Vec<Partition>,
    name: CString,
}

/// `umf_numa_split_partition_t`.
#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct Partition {
    pub(crate) weight: u32,
    pub(crate) target: u32,
}

/// `umf_memory_visibility_t`.
pub(super) const PRIVATE: u32 = 1;
pub(super) const SHARED: u32 = 2;
pub(super) const WRONG_VISIBILITY: Failure =
    Failure::argument("a visibility is UMF_MEM_MAP_PRIVATE or UMF_MEM_MAP_SHARED");

/// `umf_numa_mode_t`.
pub(crate) mod mode {
    pub(crate) const DEFAULT: u32 = 0;
    pub(crate) const BIND: u32 = 1;
    pub(crate) const INTERLEAVE: u32 = 2;
    pub(crate) const PREFERRED: u32 = 3;
    pub(crate) const SPLIT: u32 = 4;
    pub(crate) const LOCAL: u32 = 5;
}

/// The longest name of shared memory in bytes, without its slash.
const LONGEST_NAME: usize = 253;

impl Default for Params {
    fn default() -> Self {
        Self {
            protection: Protection::DEFAULT.bits(),
            visibility: PRIVATE,
            shm_name: None,
            nodes: Vec::new(),
            mode: mode::DEFAULT,
            part_size: 0,
            partitions: Vec::new(),
            name: Os::NAME.to_owned(),
        }
    }
}

/// Returns settings for private memory on these nodes.
pub(crate) fn of_nodes(nodes: Vec<u32>, mode: u32, part_size: usize, partitions: Vec<Partition>) -> Params {
    Params { nodes, mode, part_size, partitions, ..Params::default() }
}

static TABLE: Table = table::<Os>();

#[unsafe(no_mangle)]
pub(crate) extern "C" fn umfOsMemoryProviderOps() -> *const Table {
    &raw const TABLE
}

struct Os;

impl NativeTable for Os {
    const NAME: &'static CStr = c"OS";

    fn make(params: *const c_void) -> Outcome<NativeParts> {
        Handle::<Params>::from_ptr(params.cast::<Params>().cast_mut()).get()?.provider()
    }
}

impl Params {
    fn provider(&self) -> Outcome<NativeParts> {
        let protection = Protection::new(self.protection)?;
        let visibility = match self.visibility {
            PRIVATE => Visibility::Private,
            SHARED => Visibility::Shared,
            _ => return Err(WRONG_VISIBILITY),
        };
        let label = self.name.to_string_lossy().into_owned();
        let mut host = HostProvider::builder().name(label).visibility(visibility).numa(self.numa()?);
        let named = self.shm_name.as_ref().filter(|_| visibility == Visibility::Shared);
        if let Some(name) = named {
            let name =
                name.to_str().map_err(|_| Failure::argument("the name of shared memory is not UTF-8"))?;
            host = host.named(format!("/{name}"));
        }
        // Named memory cannot be sealed. A program that names memory declares that its processes
        // trust each other.
        let import =
            named.map(|_| Arc::new(HostImport::new().allow_unsealed(true)) as Arc<dyn umf_core::Import>);
        let counted = InstrumentedProvider::new(host.build()?, NativeKind::Os, protection);
        Ok(NativeParts { counted, name: self.name.clone(), import, device: None })
    }

    fn numa(&self) -> Outcome<Numa> {
        let nodes = NodeSet::from_nodes(self.nodes.iter().copied())?;
        let some = || {
            if self.nodes.is_empty() {
                Err(Failure::argument("this NUMA mode needs a list of nodes"))
            } else {
                Ok(nodes)
            }
        };
        let none = || {
            if self.nodes.is_empty() {
                Ok(())
            } else {
                Err(Failure::argument("this NUMA mode takes no list of nodes"))
            }
        };
        if self.part_size != 0 && self.mode != mode::INTERLEAVE {
            return Err(Failure::argument("a part size goes with UMF_NUMA_MODE_INTERLEAVE only"));
        }
        if !self.partitions.is_empty() && self.mode != mode::SPLIT {
            return Err(Failure::argument("partitions go with UMF_NUMA_MODE_SPLIT only"));
        }
        match self.mode {
            mode::DEFAULT => none().map(|()| Numa::Default),
            mode::LOCAL => none().map(|()| Numa::Local),
            mode::BIND => Ok(Numa::Bind(some()?)),
            mode::INTERLEAVE => Ok(Numa::Interleave { nodes: some()?, part_size: self.part_size }),
            mode::PREFERRED => Ok(Numa::Preferred(nodes)),
            mode::SPLIT => {
                some()?;
                Ok(Numa::Split(self.shares()?.into_boxed_slice()))
            }
            _ => Err(Failure::argument("a NUMA mode is none of umf_numa_mode_t")),
        }
    }

    /// Returns the share of each node: as set by partitions, otherwise equal.
    fn shares(&self) -> Outcome<Vec<NodeShare>> {
        if self.partitions.is_empty() {
            return Ok(self.nodes.iter().map(|&node| NodeShare { node, weight: 1 }).collect());
        }
        let share = |partition: &Partition| {
            if partition.weight == 0 {
                return Err(Failure::argument("the weight of a partition is 0"));
            }
            if !self.nodes.contains(&partition.target) {
                return Err(Failure::argument("the node of a partition is not in the list of nodes"));
            }
            Ok(NodeShare { node: partition.target, weight: partition.weight })
        };
        self.partitions.iter().map(share).collect()
    }
}

settings_functions! {
    Params;
    create fn umfOsMemoryProviderParamsCreate() { Params::default() }
    destroy fn umfOsMemoryProviderParamsDestroy;

    fn umfOsMemoryProviderParamsSetProtection(params, protection: u32) { params.protection = protection; }
    fn umfOsMemoryProviderParamsSetVisibility(params, visibility: u32) { params.visibility = visibility; }
    fn umfOsMemoryProviderParamsSetShmName(params, name: Text) {
        params.shm_name = if name.is_null() { None } else { shm_name(name.get()?)? };
    }
    fn umfOsMemoryProviderParamsSetNumaList(params, nodes: List<u32>, len: u32) {
        params.nodes = nodes.get(len as usize)?;
    }
    fn umfOsMemoryProviderParamsSetNumaMode(params, mode: u32) { params.mode = mode; }
    fn umfOsMemoryProviderParamsSetPartSize(params, size: usize) { params.part_size = size; }
    fn umfOsMemoryProviderParamsSetPartitions(params, partitions: List<Partition>, len: u32) {
        params.partitions = partitions.get(len as usize)?;
    }
    fn umfOsMemoryProviderParamsSetName(params, name: Text) { params.name = short_name(name.get()?); }
}

/// Validates a name of shared memory. As in the original, memory with an empty name has none.
fn shm_name(name: &CStr) -> Outcome<Option<CString>> {
    if name.count_bytes() > LONGEST_NAME {
        return Err(Failure::argument("the name of shared memory has more than 253 bytes"));
    }
    Ok(Some(name).filter(|name| !name.is_empty()).map(CStr::to_owned))
}
