//! A topology as people read it.

use std::fmt::Write;

use umf::topology::{Node, SpaceName, Topology};

use super::spaces;
use crate::info::bytes::human;
use crate::info::text::{WIDTH, wrap};

/// Renders a topology.
pub(super) fn render(topology: &Topology) -> String {
    let mut out = String::new();
    nodes(&mut out, topology);
    distances(&mut out, topology);
    figures(&mut out, topology);
    named_spaces(&mut out, topology);
    out
}

/// Lines of cells in columns: text to the left, with two blanks between.
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
            if node.memory.total == 0 { "none".to_owned() } else { human(node.memory.total) },
            if node.memory.total == 0 { "-".to_owned() } else { human(node.memory.free) },
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

/// Huge pages that are set aside.
fn huge_pages(node: &Node) -> String {
    let pools: Vec<String> = node
        .huge_pools
        .iter()
        .filter(|pool| pool.pages > 0)
        .map(|pool| format!("{} of {}, {} free", pool.pages, human(pool.page_size), pool.free))
        .collect();
    if pools.is_empty() { "-".to_owned() } else { pools.join("; ") }
}

fn caches(node: &Node) -> String {
    let caches: Vec<String> = node.side_caches.iter().map(|cache| human(cache.size)).collect();
    if caches.is_empty() { "-".to_owned() } else { caches.join(", ") }
}

fn distances(out: &mut String, topology: &Topology) {
    let told: Vec<_> = topology.nodes().iter().filter(|node| !node.distances.is_empty()).collect();
    if told.is_empty() {
        return;
    }
    let _ = writeln!(out, "\nDistances from the node of the line (10: itself)");
    let mut rows = vec![vec!["node".to_owned()]];
    rows[0].extend(topology.nodes().iter().map(|node| node.id.to_string()));
    for node in told {
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
        let mut shown: Option<&umf::topology::Access> = None;
        // Both say the same where no device is nearer than processors.
        for access in classes {
            if shown == Some(access) {
                continue;
            }
            shown = Some(access);
            let figure = |figure: Option<u64>| figure.map_or("-".to_owned(), |figure| figure.to_string());
            let figures = access.figures;
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
        let _ = writeln!(out, "  not told: there is no HMAT table, or the kernel is older than 5.2");
    }
}

fn named_spaces(out: &mut String, topology: &Topology) {
    let _ = writeln!(out, "\nMemory spaces, seen from the processors that this process may run on");
    let mut rows = Vec::new();
    let mut untold = Vec::new();
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
                untold.push(format!("{name}: {error}"));
            }
        }
    }
    table(out, &rows);
    for line in untold.iter().flat_map(|why| wrap(why, WIDTH - 2)) {
        let _ = writeln!(out, "  {line}");
    }
}
