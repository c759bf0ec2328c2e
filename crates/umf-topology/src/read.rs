//! From files to nodes: what stands in the folders of a node, amounts of memory, and what this process may use
//! (`/proc/self/status`).

use std::cell::RefCell;
use std::str::FromStr;

use crate::error::shortened;
use crate::{
    AccessClass, Error, HugePool, IdList, Memory, Node, Performance, Recording, Result, SideCache, Source,
    Tier, Topology,
};

const NODES: &str = "sys/devices/system/node";
const TIERS: &str = "sys/devices/virtual/memory_tiering";

/// Reads files of one source, with errors that name them.
struct Reader<'a> {
    source: &'a Source,
    /// What was read so far.
    kept: RefCell<Recording>,
}

impl Reader<'_> {
    fn text(&self, path: &str) -> Result<Option<String>> {
        let text = self.source.text(path)?;
        if let Some(text) = &text {
            self.kept.borrow_mut().keep(path, text);
        }
        Ok(text)
    }

    /// The text of a file of which the lines that have one of `words` are what matters.
    fn text_with(&self, path: &str, words: &[&str]) -> Result<Option<String>> {
        let text = self.source.text(path)?;
        if let Some(text) = &text {
            let matters = |line: &&str| words.iter().any(|word| line.contains(word));
            let lines: Vec<_> = text.lines().filter(matters).collect();
            self.kept.borrow_mut().keep(path, &lines.join("\n"));
        }
        Ok(text)
    }

    fn malformed(&self, path: &str, found: &str, expected: &'static str) -> Error {
        Error::Malformed { path: self.source.path(path), found: shortened(found), expected }
    }

    fn parse<T: FromStr>(&self, path: &str, text: &str, expected: &'static str) -> Result<T> {
        text.trim().parse().map_err(|_| self.malformed(path, text, expected))
    }

    /// A whole number that a file holds; `None` if it is not there.
    fn number(&self, path: &str) -> Result<Option<u64>> {
        self.text(path)?.map(|text| self.parse(path, &text, "a whole number")).transpose()
    }

    /// A list of numbers that a file holds; `None` if it is not there.
    fn list(&self, path: &str) -> Result<Option<IdList>> {
        let expected = "a list of numbers such as 0-3,8";
        self.text(path)?.map(|text| self.parse(path, &text, expected)).transpose()
    }

    /// A list of nodes that a file holds; `None` if it is not there.
    fn node_list(&self, path: &str) -> Result<Option<IdList>> {
        let list = self.list(path)?;
        match list.as_ref().and_then(IdList::last) {
            Some(last) if last >= Node::LIMIT => {
                Err(self.malformed(path, &last.to_string(), "a number of a node, below 1024"))
            }
            _ => Ok(list),
        }
    }

    /// The entries of a folder whose names are `before`, a number, `after`: with the numbers, ascending.
    fn numbered(&self, folder: &str, before: &str, after: &str) -> Result<Vec<(u64, String)>> {
        let mut found = Vec::new();
        for name in self.source.entries(folder)?.unwrap_or_default() {
            let number = name.strip_prefix(before).and_then(|rest| rest.strip_suffix(after));
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
        let expected = "one distance for each node that is online";
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

    /// A kernel that knows no nodes: all that there is, as node 0.
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
    Reader { source, kept: RefCell::default() }.topology()
}

/// Reads the topology of a source, and keeps the files.
pub(crate) fn record(source: &Source) -> Result<Recording> {
    let reader = Reader { source, kept: RefCell::default() };
    reader.topology()?;
    Ok(reader.kept.into_inner())
}

impl Reader<'_> {
    /// An access class; `None` if the kernel shows none.
    pub(crate) fn access(&self, folder: &str) -> Result<Option<AccessClass>> {
        let folder = format!("{folder}/initiators");
        let mut initiators = Vec::new();
        for (id, path) in self.numbered(&folder, "node", "")? {
            match u32::try_from(id) {
                Ok(id) if id < Node::LIMIT => {
                    self.kept.borrow_mut().keep(&path, "");
                    initiators.push(id);
                }
                _ => return Err(self.malformed(&path, &id.to_string(), "a number of a node, below 1024")),
            }
        }
        // Where the table is silent about one of them, the kernel writes 0.
        let figure = |name: &str| -> Result<Option<u64>> {
            Ok(self.number(&format!("{folder}/{name}"))?.filter(|figure| *figure != 0))
        };
        let performance = Performance {
            read_bandwidth: figure("read_bandwidth")?,
            write_bandwidth: figure("write_bandwidth")?,
            read_latency: figure("read_latency")?,
            write_latency: figure("write_latency")?,
        };
        let told = performance != Performance::default();
        Ok(told.then(|| AccessClass { initiators: IdList::from_iter(initiators), performance }))
    }

    pub(crate) fn side_caches(&self, folder: &str) -> Result<Vec<SideCache>> {
        let mut caches = Vec::new();
        for (level, index) in self.numbered(folder, "index", "")? {
            let level = self.level(&index, level)?;
            let path = format!("{index}/size");
            let size =
                self.number(&path)?.ok_or_else(|| Error::NotThere { path: self.source.path(&path) })?;
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
            // Of which nothing is said there is none: a recording has no folders but those of files.
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
    /// Total and free memory of a file such as `Node 0 MemTotal: 1024 kB`, or `MemTotal: 1024 kB`.
    pub(crate) fn memory(&self, path: &str) -> Result<Memory> {
        let text = self.text_with(path, &["MemTotal:", "MemFree:"])?;
        let text = text.ok_or_else(|| Error::NotThere { path: self.source.path(path) })?;
        let bytes = |key: &str| {
            let expected = "lines such as `MemTotal: 1024 kB` and `MemFree: 512 kB`";
            bytes(&text, key).ok_or_else(|| self.malformed(path, &text, expected))
        };
        Ok(Memory { total: bytes("MemTotal")?, free: bytes("MemFree")? })
    }
}

/// The bytes that the line `key` gives, in a file such as `Node 0 MemTotal: 1024 kB`.
fn bytes(text: &str, key: &str) -> Option<u64> {
    text.lines()
        .find_map(|line| {
            let (name, value) = line.split_once(':')?;
            // Just before the colon: as the lines are found that are kept of the file.
            (name.rsplit(char::is_whitespace).next()? == key).then_some(value)
        })
        .and_then(|value| {
            let mut words = value.split_whitespace();
            let (number, unit) = (words.next()?, words.next()?);
            (unit == "kB").then(|| number.parse::<u64>().ok()?.checked_mul(1024))?
        })
}

/// What this process may use; `None` where the kernel does not say, which is everything.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Allowed {
    /// Nodes whose memory it may have.
    pub(crate) nodes: Option<IdList>,
    /// Processors that it may run on.
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
    fn lines_of_nodes_and_of_the_whole_machine() {
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
