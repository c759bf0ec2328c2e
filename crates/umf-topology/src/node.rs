//! [`Node`]: one NUMA node.

use crate::{AccessClass, IdList, Performance};

/// One NUMA node that is online.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Node {
    /// Its number, below [`Node::LIMIT`].
    pub id: u32,
    /// Its processors that are online. None: memory alone (high-bandwidth memory, CXL), or a device.
    pub cpus: IdList,
    /// Its memory.
    pub memory: Memory,
    /// Distances from here to each node that is online, by number (10 is here; the firmware's SLIT). None where the kernel
    /// shows none.
    pub distances: Vec<(u32, u32)>,
    /// How its memory is seen from the nodes that are nearest to it, devices among them (`access0`).
    pub access: Option<AccessClass>,
    /// How its memory is seen from the nearest nodes that have processors (`access1`, since Linux 5.11).
    pub access_from_cpus: Option<AccessClass>,
    /// Caches of other memory in front of its own.
    pub side_caches: Vec<SideCache>,
    /// Huge pages that are set aside on it, by size.
    pub huge_pools: Vec<HugePool>,
    /// The memory tier that the kernel counts it to; lower is faster (since Linux 6.1).
    pub tier: Option<u32>,
    /// Its part where the kernel interleaves by weight (since Linux 6.9).
    pub interleave_weight: Option<u32>,
    /// It has a device that reads and writes memory (generic initiator).
    pub has_generic_initiator: bool,
    /// This process may use its memory (`Mems_allowed` of its cpuset).
    pub is_allowed: bool,
}

/// A node's memory, in bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Memory {
    /// What the kernel manages of it; 0: no memory.
    pub total: u64,
    /// What was free when it was read. (Files in the page cache can make room as well.)
    pub free: u64,
}

/// Huge pages of one size that are set aside on a node.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct HugePool {
    /// Bytes in a page.
    pub page_size: u64,
    /// Pages.
    pub pages: u64,
    /// Pages that are free.
    pub free: u64,
}

/// A cache in front of a node's memory, which the firmware or the hardware runs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SideCache {
    /// 1 is the nearest to the processors.
    pub level: u32,
    /// Bytes.
    pub size: u64,
    /// Bytes in a line, if told.
    pub line_size: Option<u64>,
}

impl Node {
    /// Nodes have numbers below this; Linux knows no more.
    pub const LIMIT: u32 = 1024;

    /// The distance to another node, if the kernel shows it. 255 is out of reach.
    #[must_use]
    pub fn distance_to(&self, node: u32) -> Option<u32> {
        let place = self.distances.binary_search_by_key(&node, |&(to, _)| to).ok()?;
        self.distances.get(place).map(|&(_, distance)| distance)
    }

    /// How its memory is seen from node `initiator`, if the kernel shows that: it does for the nearest nodes alone. What
    /// processors see comes first.
    #[must_use]
    pub fn performance_from(&self, initiator: u32) -> Option<Performance> {
        [&self.access_from_cpus, &self.access]
            .into_iter()
            .flatten()
            .find(|access| access.initiators.contains(initiator))
            .map(|access| access.performance)
    }

    /// How its memory is seen from the nearest nodes, if the kernel shows that.
    #[must_use]
    pub fn best_performance(&self) -> Option<Performance> {
        self.access_from_cpus.as_ref().or(self.access.as_ref()).map(|access| access.performance)
    }
}
