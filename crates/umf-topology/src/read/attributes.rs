//! What stands in the folders of a node.

use super::Reader;
use crate::{Access, Error, Figures, HugePool, IdList, Node, Result, SideCache};

impl Reader<'_> {
    /// An access class; `None` if the kernel shows none.
    pub(super) fn access(&self, folder: &str) -> Result<Option<Access>> {
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
        let figures = Figures {
            read_bandwidth: figure("read_bandwidth")?,
            write_bandwidth: figure("write_bandwidth")?,
            read_latency: figure("read_latency")?,
            write_latency: figure("write_latency")?,
        };
        let told = figures != Figures::default();
        Ok(told.then(|| Access { initiators: IdList::from_iter(initiators), figures }))
    }

    pub(super) fn side_caches(&self, folder: &str) -> Result<Vec<SideCache>> {
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

    pub(super) fn huge_pools(&self, folder: &str) -> Result<Vec<HugePool>> {
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

    pub(super) fn interleave_weight(&self, node: u32) -> Result<Option<u32>> {
        let path = format!("sys/kernel/mm/mempolicy/weighted_interleave/node{node}");
        let weight = self.number(&path)?;
        let narrow = |weight: u64| {
            u32::try_from(weight).map_err(|_| self.malformed(&path, &weight.to_string(), "a weight"))
        };
        weight.map(narrow).transpose()
    }
}
