//! `umf info --topology`: NUMA nodes and memory spaces, as text, as JSON, or as SVG ([`svg`]).

mod svg;

use std::fmt::Write;
use std::io::Read;
use std::path::{Path, PathBuf};

use clap::Args;
use serde_json::{Map, Value, json};
use umf::topology::{
    AccessClass, Attribute, IdList, Initiator, Node, Recording, Source, SpaceName, Topology,
};

use crate::info::finding::{WIDTH, wrap};
use crate::output::{self, Failure, format_bytes};

/// The largest recording that is read, in bytes.
const MAX_RECORDING: u64 = 64 << 20;

/// The options of `umf info --topology`.
#[derive(Args)]
pub(crate) struct TopologyOptions {
    /// Show the NUMA nodes instead: memory, distances, speed, memory spaces
    #[arg(long)]
    topology: bool,

    /// Draw the NUMA nodes into an SVG file
    #[arg(long, value_name = "FILE", requires = "topology")]
    svg: Option<PathBuf>,

    /// Write the files that the topology is read from into one text file, for --from
    #[arg(long, value_name = "FILE", requires = "topology")]
    record: Option<PathBuf>,

    /// Read a recording, or a folder with sys and proc in it, instead of this machine
    #[arg(long, value_name = "PATH", requires = "topology")]
    from: Option<PathBuf>,
}

impl TopologyOptions {
    /// Returns whether the topology was requested.
    pub(crate) fn is_wanted(&self) -> bool {
        self.topology
    }

    /// Prints the topology, and writes the requested files.
    ///
    /// # Errors
    /// The topology cannot be read, or a file cannot be written.
    pub(crate) fn show(&self, as_json: bool) -> Result<(), Failure> {
        let failure = |error: umf::topology::Error| Failure::Message(error.to_string());
        let source = self.source()?;
        let topology = Topology::read(&source).map_err(failure)?;
        if let Some(path) = &self.record {
            write(path, &Recording::of(&source).map_err(failure)?.to_string())?;
        }
        if let Some(path) = &self.svg {
            write(path, &svg::draw(&topology))?;
        }
        let printed = if as_json { render_json(&topology) } else { render_text(&topology) };
        Ok(output::print(&printed)?)
    }

    fn source(&self) -> Result<Source, Failure> {
        match &self.from {
            None => Ok(Source::system()),
            Some(path) if path.is_dir() => Ok(Source::folder(path)),
            Some(path) => match read(path) {
                Ok(text) => Ok(Source::recording(Recording::new(&text))),
                Err(error) => Err(Failure::Message(format!("cannot read {}: {error}", path.display()))),
            },
        }
    }
}

fn read(path: &Path) -> std::io::Result<String> {
    let mut text = String::new();
    std::fs::File::open(path)?.take(MAX_RECORDING + 1).read_to_string(&mut text)?;
    if text.len() as u64 > MAX_RECORDING {
        return Err(std::io::Error::other(format!(
            "it is longer than {MAX_RECORDING} bytes; pass a file of --record"
        )));
    }
    Ok(text)
}

fn write(path: &Path, text: &str) -> Result<(), Failure> {
    std::fs::write(path, text)
        .map_err(|error| Failure::Message(format!("cannot write {}: {error}", path.display())))
}

/// Returns the named memory spaces, as seen by this process.
fn spaces() -> [SpaceName; 4] {
    let best = |attribute| SpaceName::best(attribute, Initiator::Process);
    [SpaceName::ALL, best(Attribute::Capacity), best(Attribute::Bandwidth), best(Attribute::Latency)]
}

/// Renders a topology as one JSON document.
fn render_json(topology: &Topology) -> String {
    let document = json!({
        "format": 1,
        "version": env!("CARGO_PKG_VERSION"),
        "numa": topology.has_numa(),
        "nodes": topology.nodes().iter().map(|node| node_json(node)).collect::<Vec<_>>(),
        "offline": numbers(&topology.offline()),
        "tiers": topology.tiers().iter().map(|tier| json!({ "tier": tier.id, "nodes": numbers(&tier.nodes) })).collect::<Vec<_>>(),
        "spaces": spaces_by_name(topology),
    });
    format!("{document:#}\n")
}

fn numbers(list: &IdList) -> Value {
    list.iter().map(Value::from).collect()
}

fn node_json(node: &Node) -> Value {
    let distances: Map<String, Value> =
        node.distances.iter().map(|(to, distance)| (to.to_string(), (*distance).into())).collect();
    json!({
        "node": node.id,
        // A list in the kernel's format: there may be very many processors.
        "cpus": if node.cpus.is_empty() { String::new() } else { node.cpus.to_string() },
        "memory": node.memory.total,
        "free": node.memory.free,
        "allowed": node.is_allowed,
        "generic_initiator": node.has_generic_initiator,
        "distances": distances,
        "access_from_cpus": node.access_from_cpus.as_ref().map(access_json),
        "access": node.access.as_ref().map(access_json),
        "tier": node.tier,
        "interleave_weight": node.interleave_weight,
        "huge_pages": node.huge_pools.iter().map(|pool| {
            json!({ "size": pool.page_size, "pages": pool.pages, "free": pool.free })
        }).collect::<Vec<_>>(),
        "side_caches": node.side_caches.iter().map(|cache| {
            json!({ "level": cache.level, "size": cache.size, "line_size": cache.line_size })
        }).collect::<Vec<_>>(),
    })
}

fn access_json(access: &AccessClass) -> Value {
    let figures = access.performance;
    json!({
        "initiators": numbers(&access.initiators),
        "read_bandwidth": figures.read_bandwidth,
        "write_bandwidth": figures.write_bandwidth,
        "read_latency": figures.read_latency,
        "write_latency": figures.write_latency,
    })
}

fn spaces_by_name(topology: &Topology) -> Value {
    let space = |name: SpaceName| match name.find(topology) {
        Ok(choice) => {
            let nodes: Vec<u32> = choice.space.ids().collect();
            json!({ "nodes": nodes, "basis": choice.basis.to_string(), "error": null })
        }
        Err(error) => json!({ "nodes": null, "basis": null, "error": error.to_string() }),
    };
    spaces().into_iter().map(|name| (name.to_string(), space(name))).collect::<Map<_, _>>().into()
}

/// Renders a topology as text.
fn render_text(topology: &Topology) -> String {
    let mut out = String::new();
    nodes(&mut out, topology);
    distances(&mut out, topology);
    figures(&mut out, topology);
    named_spaces(&mut out, topology);
    out
}

/// Writes rows in left-aligned columns with two blanks between them.
fn table(out: &mut String, rows: &[Vec<String>]) {
    let columns = rows.iter().map(Vec::len).max().unwrap_or(0);
    let width =
        |column: usize| rows.iter().filter_map(|row| row.get(column)).map(|cell| cell.chars().count()).max();
    let widths: Vec<usize> = (0..columns).map(|column| width(column).unwrap_or(0)).collect();
    for row in rows {
        let mut line = String::new();
        for (cell, width) in row.iter().zip(&widths) {
            let _ = write!(line, "  {cell:<width$}");
        }
        let _ = writeln!(out, "{}", line.trim_end());
    }
}

fn row<const N: usize>(cells: [&str; N]) -> Vec<String> {
    cells.map(str::to_owned).to_vec()
}

fn nodes(out: &mut String, topology: &Topology) {
    let _ = writeln!(out, "NUMA nodes");
    let mut rows = vec![row(["node", "memory", "free", "cpus", "tier", "weight", "huge pages", "cache"])];
    for node in topology.nodes() {
        let number = |number: Option<u32>| number.map_or("-".to_owned(), |number| number.to_string());
        rows.push(vec![
            node.id.to_string(),
            if node.memory.total == 0 { "none".to_owned() } else { format_bytes(node.memory.total) },
            if node.memory.total == 0 { "-".to_owned() } else { format_bytes(node.memory.free) },
            node.cpus.to_string(),
            number(node.tier),
            number(node.interleave_weight),
            huge_pages(node),
            caches(node),
        ]);
    }
    table(out, &rows);
    let offline = topology.offline();
    if !offline.is_empty() {
        let _ = writeln!(out, "  offline: {offline}");
    }
    let forbidden: Vec<String> = topology
        .nodes()
        .iter()
        .filter(|node| !node.is_allowed && node.memory.total > 0)
        .map(|node| node.id.to_string())
        .collect();
    if !forbidden.is_empty() {
        let _ = writeln!(out, "  outside this process's cpuset (cpuset.mems): {}", forbidden.join(", "));
    }
    if !topology.has_numa() {
        let _ = writeln!(out, "  This kernel knows no nodes (CONFIG_NUMA): placing memory does nothing.");
    }
}

/// Formats the huge pages that are reserved on a node.
fn huge_pages(node: &Node) -> String {
    let pools: Vec<String> = node
        .huge_pools
        .iter()
        .filter(|pool| pool.pages > 0)
        .map(|pool| format!("{} of {}, {} free", pool.pages, format_bytes(pool.page_size), pool.free))
        .collect();
    if pools.is_empty() { "-".to_owned() } else { pools.join("; ") }
}

fn caches(node: &Node) -> String {
    let caches: Vec<String> = node.side_caches.iter().map(|cache| format_bytes(cache.size)).collect();
    if caches.is_empty() { "-".to_owned() } else { caches.join(", ") }
}

fn distances(out: &mut String, topology: &Topology) {
    let known: Vec<_> = topology.nodes().iter().filter(|node| !node.distances.is_empty()).collect();
    if known.is_empty() {
        return;
    }
    let _ = writeln!(out, "\nDistances from the node of the line (10: itself)");
    let mut rows = vec![vec!["node".to_owned()]];
    rows[0].extend(topology.nodes().iter().map(|node| node.id.to_string()));
    for node in known {
        let mut row = vec![node.id.to_string()];
        row.extend(node.distances.iter().map(|(_, distance)| distance.to_string()));
        rows.push(row);
    }
    table(out, &rows);
}

fn figures(out: &mut String, topology: &Topology) {
    let _ = writeln!(out, "\nSpeed as the nearest nodes see it, rated by the firmware (HMAT)");
    let mut rows = vec![row(["node", "from", "read MB/s", "write MB/s", "read ns", "write ns"])];
    for node in topology.nodes() {
        let classes = [&node.access_from_cpus, &node.access].into_iter().flatten();
        let mut shown: Option<&AccessClass> = None;
        // Both classes are equal where no device is nearer than the processors.
        for access in classes {
            if shown == Some(access) {
                continue;
            }
            shown = Some(access);
            let figure = |figure: Option<u64>| figure.map_or("-".to_owned(), |figure| figure.to_string());
            let figures = access.performance;
            rows.push(vec![
                node.id.to_string(),
                access.initiators.to_string(),
                figure(figures.read_bandwidth),
                figure(figures.write_bandwidth),
                figure(figures.read_latency),
                figure(figures.write_latency),
            ]);
        }
    }
    if rows.len() > 1 {
        table(out, &rows);
    } else {
        let _ = writeln!(out, "  unknown: there is no HMAT table, or the kernel is older than 5.2");
    }
}

fn named_spaces(out: &mut String, topology: &Topology) {
    let _ = writeln!(out, "\nMemory spaces, seen from the processors that this process may run on");
    let mut rows = Vec::new();
    let mut failed = Vec::new();
    for name in spaces() {
        match name.find(topology) {
            Ok(choice) if name == SpaceName::ALL => {
                rows.push(vec![name.to_string(), choice.space.to_string()])
            }
            Ok(choice) => {
                rows.push(vec![name.to_string(), choice.space.to_string(), choice.basis.to_string()]);
            }
            Err(error) => {
                rows.push(vec![name.to_string(), "-".to_owned(), "(below)".to_owned()]);
                failed.push(format!("{name}: {error}"));
            }
        }
    }
    table(out, &rows);
    for line in failed.iter().flat_map(|why| wrap(why, WIDTH - 2)) {
        let _ = writeln!(out, "  {line}");
    }
}
