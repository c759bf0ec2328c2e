//! [`AccessClass`]: the performance of a node's memory as seen from its nearest initiators, by the firmware (HMAT).

use crate::IdList;

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
