//! [`Error`]: the reasons why a topology cannot be read, or a memory space cannot be made.

use std::path::PathBuf;

use crate::{Attribute, IdList};

/// `Result` with this crate's [`Error`].
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// The reason why a topology cannot be read, or a memory space cannot be made.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// Sysfs has neither nodes nor processors.
    #[error("{}: does not exist; mount sysfs on /sys (mount -t sysfs sysfs /sys)", path.display())]
    NoSysfs {
        /// The missing folder.
        path: PathBuf,
    },
    /// A mandatory file or folder does not exist.
    #[error(
        "{}: does not exist, although the node is online; try again if memory or processors are being hotplugged",
        path.display()
    )]
    Missing {
        /// The file.
        path: PathBuf,
    },
    /// A file or folder cannot be read.
    #[error("{}: cannot be read: {why}; make it readable for this process", path.display())]
    Unreadable {
        /// The file.
        path: PathBuf,
        /// The system's error.
        why: String,
    },
    /// A file or folder is larger than the kernel writes it.
    #[error("{}: more than {limit} {of}, which the kernel does not write; mount sysfs on /sys", path.display())]
    TooLong {
        /// The file.
        path: PathBuf,
        /// The unit of the limit.
        of: &'static str,
        /// The limit.
        limit: usize,
    },
    /// A file has content that the kernel does not write.
    #[error("{}: {found:?} is not {expected}; mount sysfs on /sys and proc on /proc", path.display())]
    Malformed {
        /// The file.
        path: PathBuf,
        /// The content, shortened.
        found: String,
        /// The expected content.
        expected: &'static str,
    },
    /// The node does not exist or is offline.
    #[error("there is no NUMA node {node} online; use one of: {online}")]
    UnknownNode {
        /// The node.
        node: u32,
        /// The nodes that are online.
        online: IdList,
    },
    /// The node has no memory.
    #[error("NUMA node {node} has no memory; use one of: {with_memory}")]
    NoMemory {
        /// The node.
        node: u32,
        /// The nodes that have memory.
        with_memory: IdList,
    },
    /// The cpuset of the process excludes the node's memory.
    #[error(
        "NUMA node {node} is outside this process's cpuset, which allows {allowed}; have the container or job grant it (cpuset.mems)"
    )]
    NotAllowed {
        /// The node.
        node: u32,
        /// The nodes that are allowed.
        allowed: IdList,
    },
    /// The processor does not exist or is offline.
    #[error("no NUMA node has processor {cpu} online; use one of: {online}")]
    UnknownCpu {
        /// The processor.
        cpu: u32,
        /// The processors that are online.
        online: IdList,
    },
    /// The memory space has no nodes.
    #[error("the memory space is empty; it needs a node with memory that this process may use")]
    Empty,
    /// The firmware reports no performance of the nodes.
    #[error(
        "the {attribute} of NUMA nodes {nodes} is unknown: the firmware has no HMAT table for them; name the nodes, or choose \
         by {alternative}"
    )]
    NoPerformanceData {
        /// The attribute to compare.
        attribute: Attribute,
        /// The nodes to compare.
        nodes: IdList,
        /// An attribute that can be compared, in words.
        alternative: &'static str,
    },
}

/// Shortens the content of a file for a message.
pub(crate) fn shortened(text: &str) -> String {
    const MAX_CHARS: usize = 60;
    match text.char_indices().nth(MAX_CHARS) {
        Some((end, _)) => format!("{}...", &text[..end]),
        None => text.to_owned(),
    }
}
