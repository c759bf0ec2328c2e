//! The results of a demo, as JSON and as a table of at most 80 columns; and [`OpenResources`],
//! which counts what a process could leave behind.

use std::fmt::Write;

use clap::builder::styling::{AnsiColor, Style};
use serde::{Deserialize, Serialize};
use serde_json::{json, to_value};
use umf::ipc::CacheStatistics;

use super::Plan;
use super::rank::RankReport;
use crate::info::procfs;
use crate::output::{self, styled};

/// The results of a demo.
pub(super) struct DemoOutcome {
    pub plan: Plan,
    pub exchange: String,
    /// Description of the descriptor and the driver's bytes of a handle.
    pub carried: String,
    pub ranks: Vec<RankReport>,
    /// Resources that were left behind; empty in a correct run.
    pub leaked: Vec<String>,
}

impl DemoOutcome {
    fn sum(&self, of: impl Fn(&RankReport) -> u64) -> u64 {
        self.ranks.iter().map(of).sum()
    }

    fn bytes(&self) -> u64 {
        u64::from(self.plan.ranks) * self.plan.rank_bytes()
    }

    /// Renders the results as one JSON document.
    pub(super) fn json(&self) -> Result<String, std::io::Error> {
        let mut per_rank = to_value(&self.ranks)?;
        for (number, rank) in per_rank.as_array_mut().into_iter().flatten().enumerate() {
            rank["rank"] = number.into();
        }
        let document = json!({
            "format": 1,
            "ranks": self.plan.ranks,
            "blocks": self.plan.blocks,
            "size": self.plan.size,
            "exchange": self.exchange,
            "provider": self.plan.provider,
            "carried": self.carried,
            "handles": self.sum(|rank| rank.exported),
            "handle_bytes": umf::ipc::HANDLE_SIZE,
            "opens": self.sum(|rank| rank.opened),
            "bytes": self.bytes(),
            "stale_refused": self.sum(|rank| rank.stale_refused),
            "left_behind": self.leaked,
            "per_rank": per_rank,
        });
        Ok(format!("{document:#}\n"))
    }

    /// Renders the results as tables.
    pub(super) fn table(&self, colour: bool) -> String {
        let mut out = String::new();
        // Writing to a String does not fail.
        let _ = self.write_table(&mut out, colour);
        out
    }

    fn write_table(&self, out: &mut String, colour: bool) -> std::fmt::Result {
        let Plan { ranks, blocks, size, provider, .. } = &self.plan;
        let processes = if *ranks == 1 { "process" } else { "unrelated processes" };
        let size = output::format_bytes(*size as u64);
        writeln!(out, "{ranks} {processes}, {blocks} blocks of {size} each; exchange {}", self.exchange)?;
        if let Some(provider) = provider {
            writeln!(out, "memory from provider {provider}; each handle carries {}", self.carried)?;
        }
        writeln!(
            out,
            "{} handles of {} bytes, sent as text; {} opened; {} of memory\n",
            self.sum(|rank| rank.exported),
            umf::ipc::HANDLE_SIZE,
            self.sum(|rank| rank.opened),
            output::format_bytes(self.bytes()),
        )?;
        let bold = |heading: &str| styled(heading, Style::new().bold(), colour);
        writeln!(out, "{}", bold("                       ------ get ------  ----------- open ----------"))?;
        let heading = "rank   process  blocks     cold   cached    first     cold   cached  copy GB/s";
        writeln!(out, "{}", bold(heading))?;
        for (number, rank) in self.ranks.iter().enumerate() {
            let times = &rank.times;
            write!(out, "{number:>4}  {:>8}  {:>6}", rank.process, rank.exported)?;
            let columns = [
                times.get_cold_ns,
                times.get_cached_ns,
                times.open_first_ns,
                times.open_cold_ns,
                times.open_cached_ns,
            ];
            for column in columns {
                write!(out, "  {:>7}", time(column))?;
            }
            let speed = times.copy_bytes_per_s.map(|speed| format!("{:.1}", speed / 1e9));
            writeln!(out, "  {:>9}", speed.as_deref().unwrap_or("-"))?;
        }
        let heading = "rank  cache         hits  by table  misses  stale  evicted  held     bytes  fds";
        writeln!(out, "\n{}", bold(heading))?;
        for (number, rank) in self.ranks.iter().enumerate() {
            counters(out, &number.to_string(), "exporter", &rank.exporter)?;
            counters(out, "", "importer", &rank.importer)?;
        }
        out.push('\n');
        if *ranks > 1 {
            writeln!(out, "contents: every block right in every reader, every answer right in its owner")?;
            let stale = self.sum(|rank| rank.stale_refused);
            writeln!(out, "freed: {stale} old handles tried, all refused as stale")?;
        }
        if self.leaked.is_empty() {
            let clean = "left behind: nothing (descriptors, mappings, names, sockets, processes)";
            return writeln!(out, "{}", styled(clean, AnsiColor::Green.on_default(), colour));
        }
        writeln!(out, "{}", styled("left behind:", AnsiColor::Red.on_default(), colour))?;
        self.leaked.iter().try_for_each(|what| writeln!(out, "  {what}"))
    }
}

fn counters(out: &mut String, rank: &str, name: &str, cache: &CacheStatistics) -> std::fmt::Result {
    writeln!(
        out,
        "{rank:>4}  {name:<8}  {:>8}  {:>8}  {:>6}  {:>5}  {:>7}  {:>4}  {:>8}  {:>3}",
        cache.hits,
        cache.table_hits,
        cache.misses,
        cache.stale,
        cache.evictions,
        cache.entries,
        output::format_bytes(cache.bytes),
        cache.fds,
    )
}

pub(crate) fn time(nanoseconds: Option<f64>) -> String {
    match nanoseconds {
        None => "-".to_owned(),
        Some(time) if time < 1e3 => format!("{time:.0} ns"),
        Some(time) if time < 1e5 => format!("{:.1} us", time / 1e3),
        Some(time) if time < 1e6 => format!("{:.0} us", time / 1e3),
        Some(time) => format!("{:.1} ms", time / 1e6),
    }
}

/// The resources of a process, without metadata of umf that is kept and reused.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct OpenResources {
    /// The target of each file descriptor.
    pub(crate) fds: Vec<String>,
    /// The files behind shared mappings.
    pub(crate) mappings: Vec<String>,
    pub(crate) children: Vec<String>,
}

impl OpenResources {
    /// Lists the resources of this process.
    pub(crate) fn now() -> OpenResources {
        let links = |entry: Result<std::fs::DirEntry, std::io::Error>| {
            // The descriptor of this very folder is closed by then.
            Some(std::fs::read_link(entry.ok()?.path()).ok()?.to_string_lossy().into_owned())
        };
        let fds = std::fs::read_dir("/proc/self/fd").into_iter().flatten().filter_map(links);
        let own = format!("/proc/{}/fd", std::process::id());
        let mut fds: Vec<String> = fds.filter(|target| *target != own).collect();
        let maps = procfs::text("/proc/self/maps").unwrap_or_default();
        // Each importer keeps a row of leases, which is metadata.
        let is_metadata = |name: &String| name.starts_with("/memfd:umf-leases");
        let mut mappings: Vec<String> =
            maps.lines().filter_map(shared_file).filter(|name| !is_metadata(name)).collect();
        let mut children: Vec<String> = Vec::new();
        for task in std::fs::read_dir("/proc/self/task").into_iter().flatten().flatten() {
            let list = procfs::text(task.path().join("children")).unwrap_or_default();
            children.extend(list.split_whitespace().map(str::to_owned));
        }
        fds.sort();
        mappings.sort();
        children.sort();
        OpenResources { fds, mappings, children }
    }

    /// Lists the resources that `before` lacks. Empty if no resource was leaked.
    pub(crate) fn leaked_since(&self, before: &OpenResources) -> Vec<String> {
        let mut leaked = Vec::new();
        for (kind, current, former) in [
            ("file descriptor", &self.fds, &before.fds),
            ("mapping", &self.mappings, &before.mappings),
            ("child", &self.children, &before.children),
        ] {
            let mut former = former.clone();
            for name in current {
                match former.iter().position(|other| other == name) {
                    Some(index) => drop(former.swap_remove(index)),
                    None => leaked.push(format!("{kind} {name}")),
                }
            }
        }
        leaked
    }

    /// Lists the names in `/dev/shm` that are open or mapped.
    pub(crate) fn shared_memory_names(&self) -> impl Iterator<Item = &String> {
        self.fds.iter().chain(&self.mappings).filter(|name| name.starts_with("/dev/shm/"))
    }
}

/// Returns the file behind a line of `/proc/self/maps` if the mapping is shared.
fn shared_file(line: &str) -> Option<String> {
    // START-END rwxs OFFSET DEV INODE NAME
    let (place, name) = line.split_at(line.find('/')?);
    place.split(' ').nth(1)?.ends_with('s').then(|| name.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn leaked_fd_is_listed_by_target() {
        let before = OpenResources::now();
        assert!(!before.fds.is_empty());
        let file = std::fs::File::open("/proc/self/status").unwrap();
        let more =
            OpenResources { fds: [before.fds.clone(), vec!["/x".to_owned()]].concat(), ..before.clone() };
        assert_eq!(more.leaked_since(&before), ["file descriptor /x"]);
        drop(file);
    }

    #[test]
    fn shared_mappings_of_files_count() {
        let line = "7f00-7f10 rw-s 00000000 00:01 1024                       /memfd:umf (deleted)";
        assert_eq!(shared_file(line).unwrap(), "/memfd:umf (deleted)");
        assert_eq!(shared_file(&line.replace("rw-s", "rw-p")), None);
        assert_eq!(shared_file("7f00-7f10 rw-p 00000000 00:00 0 "), None);
    }
}
