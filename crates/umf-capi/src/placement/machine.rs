//! The NUMA nodes of this machine that have memory, from sysfs.

/// Where the kernel lists nodes.
const NODES: &str = "/sys/devices/system/node";

/// A node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Node {
    pub(super) id: u32,
    /// Bytes of memory.
    pub(super) capacity: usize,
}

/// The nodes with memory, in order. A kernel without NUMA has one, with all memory.
pub(super) fn nodes() -> Vec<Node> {
    let with_memory = std::fs::read_to_string(format!("{NODES}/has_memory")).unwrap_or_default();
    let nodes: Vec<_> = list(&with_memory).into_iter().filter_map(node).collect();
    if nodes.is_empty() { vec![Node { id: 0, capacity: all_memory() }] } else { nodes }
}

/// The node of that number, if it has memory.
pub(super) fn node(id: u32) -> Option<Node> {
    let info = std::fs::read_to_string(format!("{NODES}/node{id}/meminfo")).ok()?;
    Some(Node { id, capacity: total(&info)? })
}

fn all_memory() -> usize {
    std::fs::read_to_string("/proc/meminfo").ok().and_then(|info| total(&info)).unwrap_or(0)
}

/// Bytes in the line `MemTotal`.
fn total(info: &str) -> Option<usize> {
    let (_, rest) = info.split_once("MemTotal:")?;
    rest.split_whitespace().next()?.parse::<usize>().ok()?.checked_mul(1024)
}

/// Numbers as `0-3,8`.
fn list(text: &str) -> Vec<u32> {
    let range = |part: &str| {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        let (first, last) = (first.trim().parse::<u32>().ok()?, last.trim().parse::<u32>().ok()?);
        // Not more than any kernel has.
        (last < 1 << 16).then_some(first..=last)
    };
    text.trim().split(',').filter_map(range).flatten().collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_of_the_kernel_are_read() {
        assert_eq!(list("0-2,5\n"), [0, 1, 2, 5]);
        assert!(list("").is_empty());
        assert_eq!(list("x,0-99999999999,3"), [3]);
    }

    #[test]
    fn this_machine_has_memory() {
        let nodes = nodes();
        assert!(!nodes.is_empty() && nodes[0].capacity > 1 << 20);
        assert_eq!(total("Node 0 MemTotal:       1024 kB\n"), Some(1 << 20));
    }
}
