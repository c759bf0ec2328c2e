//! [`AccessClass`]: how a node's memory is seen from others, as the firmware (HMAT) says.

use crate::IdList;

/// How a node's memory is seen from the nodes that are nearest to it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct AccessClass {
    /// Those nodes. (What others see, the kernel does not show.)
    pub initiators: IdList,
    /// What they see.
    pub performance: Performance,
}

/// Speed of memory, as the firmware rates it. What it does not tell is `None`.
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
    /// What bandwidth is compared by, more is better: reading, then writing. `None` if neither is told.
    #[must_use]
    pub fn bandwidth(&self) -> Option<(u64, u64)> {
        let (read, write) = (self.read_bandwidth, self.write_bandwidth);
        (read.is_some() || write.is_some())
            .then(|| (read.or(write).unwrap_or(0), write.or(read).unwrap_or(0)))
    }

    /// What latency is compared by, less is better: reading, then writing. `None` if neither is told.
    #[must_use]
    pub fn latency(&self) -> Option<(u64, u64)> {
        let (read, write) = (self.read_latency, self.write_latency);
        (read.is_some() || write.is_some())
            .then(|| (read.or(write).unwrap_or(u64::MAX), write.or(read).unwrap_or(u64::MAX)))
    }
}
