//! Reads and validates the files of a topology: the folders of nodes, amounts of memory, and the
//! cpuset of this process (`/proc/self/status`).

use std::cell::RefCell;
use std::str::FromStr;

use crate::error::shortened;
use crate::{
    AccessClass, Error, HugePool, IdList, Memory, Node, Performance, Recording, Result, SideCache, Source,
    Tier, Topology,
};

const NODES: &str = "sys/devices/system/node";
const TIERS: &str = "sys/devices/virtual/memory_tiering";

/// A reader of the files of one source. Its errors name the file.
struct Reader<'a> {
    source: &'a Source,
    /// The files read so far.
    recording: RefCell<Recording>,
}

impl Reader<'_> {
    fn text(&self, path: &str) -> Result<Option<String>> {
        let text = self.source.text(path)?;
        if let Some(text) = &text {
            self.recording.borrow_mut().insert(path, text);
        }
        Ok(text)
    }

    /// Returns the text of a file, and records only the lines that contain one of `words`.
    fn text_with(&self, path: &str, words: &[&str]) -> Result<Option<String>> {
        let text = self.source.text(path)?;
        if let Some(text) = &text {
            let is_relevant = |line: &&str| words.iter().any(|word| line.contains(word));
            let lines: Vec<_> = text.lines().filter(is_relevant).collect();
            self.recording.borrow_mut().insert(path, &lines.join("\n"));
        }
        Ok(text)
    }

    fn malformed(&self, path: &str, found: &str, expected: &'static str) -> Error {
        Error::Malformed { path: self.source.path(path), found: shortened(found), expected }
    }

    fn parse<T: FromStr>(&self, path: &str, text: &str, expected: &'static str) -> Result<T> {
        text.trim().parse().map_err(|_| self.malformed(path, text, expected))
    }

    /// Reads a file with a whole number; `None` if it does not exist.
    fn number(&self, path: &str) -> Result<Option<u64>> {
        self.text(path)?.map(|text| self.parse(path, &text, "a whole number")).transpose()
    }

    /// Reads a file with a list of numbers; `None` if it does not exist.
    fn list(&self, path: &str) -> Result<Option<IdList>> {
        let expected = "a list of numbers such as 0-3,8";
        self.text(path)?.map(|text| self.parse(path, &text, expected)).transpose()
    }

    /// Reads a file with a list of nodes; `None` if it does not exist.
    fn node_list(&self, path: &str) -> Result<Option<IdList>> {
        let list = self.list(path)?;
        match list.as_ref().and_then(IdList::last) {
            Some(last) if last >= Node::LIMIT => {
                Err(self.malformed(path, &last.to_string(), "a number of a node, below 1024"))
            }
            _ => Ok(list),
        }
    }

    /// Returns the entries of a folder whose names are `prefix`, a number, `suffix`, ascending by
    /// number.
    fn numbered(&self, folder: &str, prefix: &str, suffix: &str) -> Result<Vec<(u64, String)>> {
        let mut found = Vec::new();
        for name in self.source.entries(folder)?.unwrap_or_default() {
            let number = name.strip_prefix(prefix).and_then(|rest| rest.strip_suffix(suffix));
            let path = format!("{folder}/{name}");
            match number {
                Some(number) if number.bytes().next().is_some_and(|first| first.is_ascii_digit()) => {
                    found.push((self.parse(&path, number, "a name that ends in a number")?, path));
                }
                _ => {}
            }
        }
        found.sort_unstable();
        Ok(found)
    }

    fn node(&self, id: u32, online: &IdList) -> Result<Node> {
        let folder = format!("{NODES}/node{id}");
        let distance = format!("{folder}/distance");
        let distances = match self.text(&distance)? {
            Some(text) => self.distances(&distance, &text, online)?,
            None => Vec::new(),
        };
        Ok(Node {
            id,
            cpus: self.list(&format!("{folder}/cpulist"))?.unwrap_or_default(),
            memory: self.memory(&format!("{folder}/meminfo"))?,
            distances,
            access: self.access(&format!("{folder}/access0"))?,
            access_from_cpus: self.access(&format!("{folder}/access1"))?,
            side_caches: self.side_caches(&format!("{folder}/memory_side_cache"))?,
            huge_pools: self.huge_pools(&format!("{folder}/hugepages"))?,
            interleave_weight: self.interleave_weight(id)?,
            ..Node::default()
        })
    }

    fn distances(&self, path: &str, text: &str, online: &IdList) -> Result<Vec<(u32, u32)>> {
        let expected = "one distance for each online node";
        let distances = text
            .split_whitespace()
            .map(|word| self.parse(path, word, "a distance, a whole number"))
            .collect::<Result<Vec<u32>>>()?;
        if distances.len() as u64 != online.len() {
            return Err(self.malformed(path, text, expected));
        }
        Ok(online.iter().zip(distances).collect())
    }

    fn tiers(&self) -> Result<Vec<Tier>> {
        let mut tiers = Vec::new();
        for (id, folder) in self.numbered(TIERS, "memory_tier", "")? {
            let nodes = self.node_list(&format!("{folder}/nodelist"))?;
            if let (Ok(id), Some(nodes)) = (u32::try_from(id), nodes) {
                tiers.push(Tier { id, nodes });
            }
        }
        Ok(tiers)
    }

    /// Returns the topology of a kernel without NUMA: one node with all processors and memory.
    fn without_nodes(&self, allowed: Allowed) -> Result<Topology> {
        let Some(cpus) = self.list("sys/devices/system/cpu/online")? else {
            return Err(Error::NoSysfs { path: self.source.path(NODES) });
        };
        let memory = self.memory("proc/meminfo")?;
        let node = Node { cpus, memory, distances: vec![(0, 10)], is_allowed: true, ..Node::default() };
        let online = IdList::from_iter([0]);
        Ok(Topology::new(vec![node], online, Vec::new(), allowed, false))
    }

    fn topology(&self) -> Result<Topology> {
        let allowed = self.allowed()?;
        let Some(online) = self.node_list(&format!("{NODES}/online"))? else {
            return self.without_nodes(allowed);
        };
        let possible = self.node_list(&format!("{NODES}/possible"))?.unwrap_or_else(|| online.clone());
        let initiators = self.node_list(&format!("{NODES}/has_generic_initiator"))?.unwrap_or_default();
        let tiers = self.tiers()?;
        let mut nodes = Vec::new();
        for id in online.iter() {
            let mut node = self.node(id, &online)?;
            node.has_generic_initiator = initiators.contains(id);
            node.is_allowed = allowed.nodes.as_ref().is_none_or(|allowed| allowed.contains(id));
            node.tier = tiers.iter().find(|tier| tier.nodes.contains(id)).map(|tier| tier.id);
            nodes.push(node);
        }
        Ok(Topology::new(nodes, possible, tiers, allowed, true))
    }
}

/// Reads the topology of a source.
pub(crate) fn read(source: &Source) -> Result<Topology> {
    Reader { source, recording: RefCell::default() }.topology()
}

/// Reads the topology of a source, and returns the files that were read.
pub(crate) fn record(source: &Source) -> Result<Recording> {
    let reader = Reader { source, recording: RefCell::default() };
    reader.topology()?;
    Ok(reader.recording.into_inner())
}

impl Reader<'_> {
    /// Reads an access class; `None` if the kernel reports none.
    pub(crate) fn access(&self, folder: &str) -> Result<Option<AccessClass>> {
        let folder = format!("{folder}/initiators");
        let mut initiators = Vec::new();
        for (id, path) in self.numbered(&folder, "node", "")? {
            match u32::try_from(id) {
                Ok(id) if id < Node::LIMIT => {
                    self.recording.borrow_mut().insert(&path, "");
                    initiators.push(id);
                }
                _ => return Err(self.malformed(&path, &id.to_string(), "a number of a node, below 1024")),
            }
        }
        // The kernel writes 0 for values that the firmware's table lacks.
        let value = |name: &str| -> Result<Option<u64>> {
            Ok(self.number(&format!("{folder}/{name}"))?.filter(|value| *value != 0))
        };
        let performance = Performance {
            read_bandwidth: value("read_bandwidth")?,
            write_bandwidth: value("write_bandwidth")?,
            read_latency: value("read_latency")?,
            write_latency: value("write_latency")?,
        };
        let is_known = performance != Performance::default();
        Ok(is_known.then(|| AccessClass { initiators: IdList::from_iter(initiators), performance }))
    }

    pub(crate) fn side_caches(&self, folder: &str) -> Result<Vec<SideCache>> {
        let mut caches = Vec::new();
        for (level, index) in self.numbered(folder, "index", "")? {
            let level = self.level(&index, level)?;
            let path = format!("{index}/size");
            let size = self.number(&path)?.ok_or_else(|| Error::Missing { path: self.source.path(&path) })?;
            let line_size = self.number(&format!("{index}/line_size"))?.filter(|size| *size != 0);
            caches.push(SideCache { level, size, line_size });
        }
        Ok(caches)
    }

    fn level(&self, path: &str, level: u64) -> Result<u32> {
        level.try_into().map_err(|_| self.malformed(path, &level.to_string(), "a level of a cache"))
    }

    pub(crate) fn huge_pools(&self, folder: &str) -> Result<Vec<HugePool>> {
        let mut pools = Vec::new();
        for (kilobytes, pool) in self.numbered(folder, "hugepages-", "kB")? {
            let page_size = kilobytes
                .checked_mul(1024)
                .filter(|size| size.is_power_of_two())
                .ok_or_else(|| self.malformed(&pool, &kilobytes.to_string(), "a size of a page"))?;
            let pages = |name: &str| self.number(&format!("{pool}/{name}"));
            // A recording has folders only as parts of paths, so the file decides whether there is
            // a pool.
            if let Some(count) = pages("nr_hugepages")? {
                pools.push(HugePool { page_size, pages: count, free: pages("free_hugepages")?.unwrap_or(0) });
            }
        }
        Ok(pools)
    }

    pub(crate) fn interleave_weight(&self, node: u32) -> Result<Option<u32>> {
        let path = format!("sys/kernel/mm/mempolicy/weighted_interleave/node{node}");
        let weight = self.number(&path)?;
        let narrow = |weight: u64| {
            u32::try_from(weight).map_err(|_| self.malformed(&path, &weight.to_string(), "a weight"))
        };
        weight.map(narrow).transpose()
    }
}

impl Reader<'_> {
    /// Reads total and free memory from a file with lines such as `Node 0 MemTotal: 1024 kB` or
    /// `MemTotal: 1024 kB`.
    pub(crate) fn memory(&self, path: &str) -> Result<Memory> {
        let text = self.text_with(path, &["MemTotal:", "MemFree:"])?;
        let text = text.ok_or_else(|| Error::Missing { path: self.source.path(path) })?;
        let bytes = |key: &str| {
            let expected = "lines such as `MemTotal: 1024 kB` and `MemFree: 512 kB`";
            bytes(&text, key).ok_or_else(|| self.malformed(path, &text, expected))
        };
        Ok(Memory { total: bytes("MemTotal")?, free: bytes("MemFree")? })
    }
}

/// Returns the bytes of the line `key`, in a text with lines such as `Node 0 MemTotal: 1024 kB`.
fn bytes(text: &str, key: &str) -> Option<u64> {
    text.lines()
        .find_map(|line| {
            let (name, value) = line.split_once(':')?;
            // The word before the colon, consistent with the filter of recorded lines.
            (name.rsplit(char::is_whitespace).next()? == key).then_some(value)
        })
        .and_then(|value| {
            let mut words = value.split_whitespace();
            let (number, unit) = (words.next()?, words.next()?);
            (unit == "kB").then(|| number.parse::<u64>().ok()?.checked_mul(1024))?
        })
}

/// The nodes and processors that this process may use; `None` is all of them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Allowed {
    /// Nodes whose memory the process may use.
    pub(crate) nodes: Option<IdList>,
    /// Processors that the process may run on.
    pub(crate) cpus: Option<IdList>,
}

impl Reader<'_> {
    pub(crate) fn allowed(&self) -> Result<Allowed> {
        let path = "proc/self/status";
        let text = self.text_with(path, &["_allowed_list:"])?.unwrap_or_default();
        let list = |key: &str| {
            let value = text.lines().find_map(|line| line.strip_prefix(key)?.strip_prefix(':'));
            value.map(|value| self.parse(path, value, "a list of numbers such as 0-3,8")).transpose()
        };
        Ok(Allowed { nodes: list("Mems_allowed_list")?, cpus: list("Cpus_allowed_list")? })
    }
}

#[cfg(test)]
mod tests {
    use super::bytes;

    #[test]
    fn bytes_reads_lines_of_nodes_and_of_the_machine() {
        let text = "Node 3 MemTotal:         773788 kB\nNode 3 MemFree: 1 kB\nNode 3 HugePages_Total:     0";
        assert_eq!(bytes(text, "MemTotal"), Some(773_788 * 1024));
        assert_eq!(bytes("MemTotal: 5 kB", "MemTotal"), Some(5120));
        for wrong in [
            "",
            "MemTotal",
            "MemTotal:",
            "MemTotal: 5",
            "MemTotal: 5 MB",
            "MemTotal: -5 kB",
            "SwapMemTotal: 5 kB",
            "MemTotal : 5 kB",
        ] {
            assert_eq!(bytes(wrong, "MemTotal"), None, "{wrong}");
        }
        assert_eq!(bytes("MemTotal: 18446744073709551615 kB", "MemTotal"), None);
    }
}
