//! From files to nodes.

mod attributes;
mod memory;
mod status;

use std::cell::RefCell;
use std::str::FromStr;

use crate::error::shortened;
use crate::{Error, IdList, Node, Recording, Result, Source, Tier, Topology};

pub(crate) use status::Allowed;

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
