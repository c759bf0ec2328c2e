//! Why a topology could not be read, or a memory space not be made.

use std::path::PathBuf;

use crate::{Attribute, IdList};

/// `Result` with this crate's [`Error`].
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// Why a topology could not be read, or a memory space not be made.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// There is neither a folder of nodes nor one of processors.
    #[error("{}: not there; mount sysfs on /sys (mount -t sysfs sysfs /sys), or run where it is", path.display())]
    NoSysfs {
        /// The folder that was looked for.
        path: PathBuf,
    },
    /// A file or folder that has to be there is not.
    #[error(
        "{}: not there, though the node is online; try again if memory or processors are being plugged in or out",
        path.display()
    )]
    NotThere {
        /// The file.
        path: PathBuf,
    },
    /// A file or folder cannot be read.
    #[error("{}: cannot be read: {why}", path.display())]
    Unreadable {
        /// The file.
        path: PathBuf,
        /// What the system says.
        why: String,
    },
    /// A file or folder is larger than the kernel makes it.
    #[error("{}: more than {limit} {of}; this is not what the kernel writes", path.display())]
    TooLong {
        /// The file.
        path: PathBuf,
        /// What it has too many of.
        of: &'static str,
        /// The bound.
        limit: usize,
    },
    /// A file does not hold what the kernel writes there.
    #[error("{}: {found:?} is not {expected}", path.display())]
    Malformed {
        /// The file.
        path: PathBuf,
        /// What it holds, cut short.
        found: String,
        /// What was expected.
        expected: &'static str,
    },
    /// No such node, or it is offline.
    #[error("there is no NUMA node {node} online; there are: {online}")]
    UnknownNode {
        /// The node.
        node: u32,
        /// The nodes that are online.
        online: IdList,
    },
    /// The node has no memory.
    #[error("NUMA node {node} has no memory; these have: {with_memory}")]
    NoMemory {
        /// The node.
        node: u32,
        /// The nodes that have memory.
        with_memory: IdList,
    },
    /// The process may not use the node's memory.
    #[error(
        "NUMA node {node} is outside this process's cpuset, which allows {allowed}; have the container or job grant it (cpuset.mems)"
    )]
    NotAllowed {
        /// The node.
        node: u32,
        /// The nodes that are allowed.
        allowed: IdList,
    },
    /// No node has the processor.
    #[error("no NUMA node has processor {cpu} online; there are: {online}")]
    UnknownCpu {
        /// The processor.
        cpu: u32,
        /// The processors that are online.
        online: IdList,
    },
    /// There is nothing to choose from.
    #[error("the memory space is empty; it takes a node with memory that this process may use")]
    Empty,
    /// The machine does not tell what is needed to choose.
    #[error(
        "this machine does not tell the {attribute} of NUMA nodes {among}: its firmware has no HMAT table for them; name the nodes, or \
         choose by {instead}"
    )]
    NoPerformanceData {
        /// What was asked for.
        attribute: Attribute,
        /// Among which nodes.
        among: IdList,
        /// What can be asked for instead.
        instead: &'static str,
    },
}

/// What a file held, short enough for a message.
pub(crate) fn shortened(text: &str) -> String {
    const MOST: usize = 60;
    match text.char_indices().nth(MOST) {
        Some((end, _)) => format!("{}...", &text[..end]),
        None => text.to_owned(),
    }
}
