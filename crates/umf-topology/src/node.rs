//! [`Node`]: a NUMA node, its memory, caches, and performance by the firmware (HMAT).

use crate::IdList;

/// A NUMA node that is online.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Node {
    /// The number of the node, below [`Node::LIMIT`].
    pub id: u32,
    /// The online processors of the node. Without processors the node is memory only
    /// (high-bandwidth memory, CXL) or a device.
    pub cpus: IdList,
    /// The memory of the node.
    pub memory: Memory,
    /// Distances to all online nodes, by number (10 is local; the firmware's SLIT). Empty if the
    /// kernel reports none.
    pub distances: Vec<(u32, u32)>,
    /// Performance as seen from the nearest initiators, devices included (`access0`).
    pub access: Option<AccessClass>,
    /// Performance as seen from the nearest processors (`access1`, since Linux 5.11).
    pub access_from_cpus: Option<AccessClass>,
    /// Memory-side caches.
    pub side_caches: Vec<SideCache>,
    /// Reserved huge pages, by size.
    pub huge_pools: Vec<HugePool>,
    /// The memory tier; lower is faster (since Linux 6.1).
    pub tier: Option<u32>,
    /// The weight for weighted interleaving (since Linux 6.9).
    pub interleave_weight: Option<u32>,
    /// Whether the node has a device that accesses memory (generic initiator).
    pub has_generic_initiator: bool,
    /// Whether the cpuset of this process allows the node's memory (`Mems_allowed`).
    pub is_allowed: bool,
}

/// A node's memory, in bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Memory {
    /// Memory that the kernel manages; 0 for a node without memory.
    pub total: u64,
    /// Free memory when it was read, without reclaimable page cache.
    pub free: u64,
}

/// The reserved huge pages of one size on a node.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct HugePool {
    /// Size of a page in bytes.
    pub page_size: u64,
    /// Number of pages.
    pub pages: u64,
    /// Number of free pages.
    pub free: u64,
}

/// A memory-side cache of a node.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SideCache {
    /// The level; 1 is the nearest to the processors.
    pub level: u32,
    /// Size in bytes.
    pub size: u64,
    /// Size of a line in bytes, if known.
    pub line_size: Option<u64>,
}

impl Node {
    /// Node numbers are below this, the largest value that Linux supports.
    pub const LIMIT: u32 = 1024;

    /// Returns the distance to another node, if the kernel reports it. 255 is unreachable.
    #[must_use]
    pub fn distance_to(&self, node: u32) -> Option<u32> {
        let index = self.distances.binary_search_by_key(&node, |&(to, _)| to).ok()?;
        self.distances.get(index).map(|&(_, distance)| distance)
    }

    /// Returns the performance as seen from node `initiator`. The kernel reports it only for the
    /// nearest initiators; the class of processors takes precedence.
    #[must_use]
    pub fn performance_from(&self, initiator: u32) -> Option<Performance> {
        [&self.access_from_cpus, &self.access]
            .into_iter()
            .flatten()
            .find(|access| access.initiators.contains(initiator))
            .map(|access| access.performance)
    }

    /// Returns the performance as seen from the nearest initiators, if the kernel reports it.
    #[must_use]
    pub fn best_performance(&self) -> Option<Performance> {
        self.access_from_cpus.as_ref().or(self.access.as_ref()).map(|access| access.performance)
    }
}

/// An access class of a node (`/sys/devices/system/node/nodeN/accessM`): the performance of its
/// memory as seen from its nearest initiators.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct AccessClass {
    /// The nearest initiators. The kernel reports no performance for others.
    pub initiators: IdList,
    /// The performance that they see.
    pub performance: Performance,
}

/// The performance of memory by the firmware's table. Values that it lacks are `None`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Performance {
    /// MB/s (MiB/s where the firmware counts so).
    pub read_bandwidth: Option<u64>,
    /// MB/s (MiB/s where the firmware counts so).
    pub write_bandwidth: Option<u64>,
    /// Nanoseconds.
    pub read_latency: Option<u64>,
    /// Nanoseconds.
    pub write_latency: Option<u64>,
}

impl Performance {
    /// Returns the key by which bandwidths compare: read bandwidth, then write bandwidth. A missing
    /// value is replaced by the other; `None` if both are missing.
    #[must_use]
    pub fn bandwidth(&self) -> Option<(u64, u64)> {
        let (read, write) = (self.read_bandwidth, self.write_bandwidth);
        (read.is_some() || write.is_some())
            .then(|| (read.or(write).unwrap_or(0), write.or(read).unwrap_or(0)))
    }

    /// Returns the key by which latencies compare: read latency, then write latency. A missing
    /// value is replaced by the other; `None` if both are missing.
    #[must_use]
    pub fn latency(&self) -> Option<(u64, u64)> {
        let (read, write) = (self.read_latency, self.write_latency);
        (read.is_some() || write.is_some())
            .then(|| (read.or(write).unwrap_or(u64::MAX), write.or(read).unwrap_or(u64::MAX)))
    }
}
