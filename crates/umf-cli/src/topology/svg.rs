//! A topology as SVG: a box for each node, and a matrix each for distance, bandwidth and latency.

use std::fmt::Write;

use umf::topology::{Node, Topology};

use crate::output::format_bytes;

/// The most nodes that are drawn. The title has the number of others.
const MAX_NODES: usize = 64;

const MARGIN: usize = 20;
const BOX_WIDTH: usize = 200;
const BOX_HEIGHT: usize = 150;
const GAP: usize = 16;
/// The number of boxes in a row.
const IN_A_ROW: usize = 4;
const CELL: usize = 64;
const CELL_HEIGHT: usize = 26;
/// The height of a heading.
const HEADING: usize = 24;

const WITH_CPUS: &str = "#2b6cb0";
const MEMORY_ALONE: &str = "#2f855a";
const CPUS_ALONE: &str = "#718096";

/// Draws a topology.
pub(super) fn draw(topology: &Topology) -> String {
    let nodes: Vec<&Node> = topology.nodes().iter().take(MAX_NODES).map(|node| &**node).collect();
    let mut picture = Picture::default();
    let mut y = MARGIN + 14;
    let (online, offline) = (topology.nodes().len(), topology.offline());
    let mut title = format!("{online} NUMA node{}", if online == 1 { "" } else { "s" });
    if !offline.is_empty() {
        let _ = write!(title, "; offline: {offline}");
    }
    if online > nodes.len() {
        let _ = write!(title, "; {} more are not drawn", online - nodes.len());
    }
    picture.heading(y, &title);
    y += HEADING - 8;
    for (index, node) in nodes.iter().enumerate() {
        let x = MARGIN + index % IN_A_ROW * (BOX_WIDTH + GAP);
        picture.node(x, y + index / IN_A_ROW * (BOX_HEIGHT + GAP), node);
    }
    y += nodes.len().div_ceil(IN_A_ROW) * (BOX_HEIGHT + GAP) + 6;
    picture.legend(y);
    y += 46;

    let distance = |from: &Node, to: &Node| from.distance_to(to.id).map(u64::from);
    y = picture.matrix(y, "Distance (SLIT; 10 is the node itself)", Better::Less, &nodes, distance);
    let bandwidth = |from: &Node, to: &Node| Some(to.performance_from(from.id)?.bandwidth()?.0);
    let title = "Bandwidth in MB/s, read (HMAT; shown for the nearest nodes alone)";
    y = picture.matrix(y, title, Better::More, &nodes, bandwidth);
    let latency = |from: &Node, to: &Node| Some(to.performance_from(from.id)?.latency()?.0);
    let title = "Latency in ns, read (HMAT; shown for the nearest nodes alone)";
    y = picture.matrix(y, title, Better::Less, &nodes, latency);
    if !topology.has_performance() {
        picture.text(MARGIN, y, "Bandwidth and latency: unknown, there is no HMAT table.");
        y += HEADING;
    }
    picture.done(y)
}

#[derive(Clone, Copy)]
enum Better {
    Less,
    More,
}

struct Picture {
    body: String,
    width: usize,
}

impl Default for Picture {
    fn default() -> Self {
        Self { body: String::new(), width: 760 }
    }
}

impl Picture {
    fn reach(&mut self, x: usize) {
        self.width = self.width.max(x + MARGIN);
    }

    fn text(&mut self, x: usize, y: usize, text: &str) {
        let _ = writeln!(self.body, "<text x=\"{x}\" y=\"{y}\">{text}</text>");
    }

    fn heading(&mut self, y: usize, text: &str) {
        let _ = writeln!(
            self.body,
            "<text x=\"{MARGIN}\" y=\"{y}\" font-size=\"14\" font-weight=\"bold\">{text}</text>"
        );
    }

    fn node(&mut self, x: usize, y: usize, node: &Node) {
        let colour = colour(node);
        let dashes = if node.is_allowed || node.memory.total == 0 { "" } else { " stroke-dasharray=\"6 4\"" };
        let _ = writeln!(
            self.body,
            "<rect x=\"{x}\" y=\"{y}\" width=\"{BOX_WIDTH}\" height=\"{BOX_HEIGHT}\" rx=\"6\" fill=\"white\" stroke=\"{colour}\" \
             stroke-width=\"2\"{dashes}/>\n<text x=\"{}\" y=\"{}\" font-size=\"14\" font-weight=\"bold\" fill=\"{colour}\">node {}</text>",
            x + 12,
            y + 24,
            node.id,
        );
        self.memory(x + 12, y + 36, node);
        let mut lines = vec![if node.cpus.is_empty() { "no cpus".to_owned() } else { cpus(node) }];
        if let Some(figures) = node.best_performance() {
            let bandwidth = figures.bandwidth().map(|(read, _)| format!("{read} MB/s"));
            let latency = figures.latency().map(|(read, _)| format!("{read} ns"));
            lines.push(bandwidth.into_iter().chain(latency).collect::<Vec<_>>().join(", "));
        }
        let pools = node.huge_pools.iter().filter(|pool| pool.pages > 0);
        let pools: Vec<_> =
            pools.map(|pool| format!("{} x {}", pool.pages, format_bytes(pool.page_size))).collect();
        if !pools.is_empty() {
            lines.push(format!("huge pages: {}", pools.join(", ")));
        }
        let mut marks: Vec<String> = node.tier.iter().map(|tier| format!("tier {tier}")).collect();
        marks.extend(node.side_caches.first().map(|cache| format!("{} of cache", format_bytes(cache.size))));
        if node.has_generic_initiator {
            marks.push("device".to_owned());
        }
        if !marks.is_empty() {
            lines.push(marks.join(", "));
        }
        for (index, line) in lines.iter().enumerate() {
            self.text(x + 12, y + 86 + 16 * index, line);
        }
        self.reach(x + BOX_WIDTH);
    }

    /// Draws the size of the memory, and a bar for its used part.
    fn memory(&mut self, x: usize, y: usize, node: &Node) {
        let (total, width) = (node.memory.total, BOX_WIDTH - 24);
        if total == 0 {
            self.text(x, y + 26, "no memory");
            return;
        }
        let used = total.saturating_sub(node.memory.free);
        let part = (u128::from(used) * width as u128 / u128::from(total)).min(width as u128);
        let _ = writeln!(
            self.body,
            "<rect x=\"{x}\" y=\"{y}\" width=\"{width}\" height=\"12\" fill=\"#e2e8f0\"/>\n\
             <rect x=\"{x}\" y=\"{y}\" width=\"{part}\" height=\"12\" fill=\"{}\"/>",
            colour(node),
        );
        self.text(x, y + 28, &format!("{}, {} free", format_bytes(total), format_bytes(node.memory.free)));
    }

    fn legend(&mut self, y: usize) {
        let mut x = MARGIN;
        let meanings =
            [(WITH_CPUS, "memory and processors"), (MEMORY_ALONE, "memory alone"), (CPUS_ALONE, "no memory")];
        for (colour, meaning) in meanings {
            let _ = writeln!(
                self.body,
                "<rect x=\"{x}\" y=\"{y}\" width=\"10\" height=\"10\" fill=\"{colour}\"/>"
            );
            self.text(x + 15, y + 9, meaning);
            x += 180;
        }
        self.text(x, y + 9, "dashed: not for this process");
    }

    /// Draws a matrix with a row for each node that has values. Returns the y coordinate below it.
    /// Draws nothing if no node has a value.
    fn matrix(
        &mut self,
        y: usize,
        title: &str,
        better: Better,
        nodes: &[&Node],
        value: impl Fn(&Node, &Node) -> Option<u64>,
    ) -> usize {
        let rows: Vec<(&Node, Vec<Option<u64>>)> =
            nodes.iter().map(|from| (*from, nodes.iter().map(|to| value(from, to)).collect())).collect();
        let rows: Vec<_> =
            rows.into_iter().filter(|(_, values)| values.iter().any(Option::is_some)).collect();
        let all = || rows.iter().flat_map(|(_, values)| values.iter().flatten().copied());
        let (Some(least), Some(most)) = (all().min(), all().max()) else { return y };
        self.heading(y, title);
        let left = MARGIN + 72;
        let top = y + 12;
        self.text(MARGIN, top + 17, "from \\ to");
        for (column, to) in nodes.iter().enumerate() {
            let _ = writeln!(
                self.body,
                "<text x=\"{}\" y=\"{}\" text-anchor=\"middle\">{}</text>",
                left + column * CELL + CELL / 2,
                top + 17,
                to.id
            );
        }
        for (line, (from, values)) in rows.iter().enumerate() {
            let top = top + (line + 1) * CELL_HEIGHT;
            self.text(MARGIN, top + 17, &format!("node {}", from.id));
            for (column, value) in values.iter().enumerate() {
                let shade = value.map(|value| shade(value, least, most, better));
                self.cell(left + column * CELL, top, *value, shade);
            }
        }
        self.reach(left + nodes.len() * CELL);
        top + (rows.len() + 1) * CELL_HEIGHT + 34
    }

    fn cell(&mut self, x: usize, y: usize, value: Option<u64>, shade: Option<u32>) {
        let (width, height) = (CELL - 2, CELL_HEIGHT - 2);
        let (Some(value), Some(shade)) = (value, shade) else {
            let _ = writeln!(
                self.body,
                "<rect x=\"{x}\" y=\"{y}\" width=\"{width}\" height=\"{height}\" fill=\"none\" stroke=\"#e2e8f0\"/>"
            );
            return;
        };
        // From near white to the blue of a node.
        let mix = |light: u32, dark: u32| light - (light - dark) * shade / 100;
        let (red, green, blue) = (mix(0xeb, 0x2b), mix(0xf4, 0x6c), mix(0xfb, 0xb0));
        let ink = if shade > 55 { "white" } else { "#1a202c" };
        let _ = writeln!(
            self.body,
            "<rect x=\"{x}\" y=\"{y}\" width=\"{width}\" height=\"{height}\" fill=\"#{red:02x}{green:02x}{blue:02x}\"/>\n\
             <text x=\"{}\" y=\"{}\" text-anchor=\"middle\" fill=\"{ink}\">{value}</text>",
            x + width / 2,
            y + 16,
        );
    }

    fn done(self, height: usize) -> String {
        let (width, body) = (self.width, self.body);
        format!(
            "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{width}\" height=\"{height}\" viewBox=\"0 0 {width} {height}\" \
             font-family=\"sans-serif\" font-size=\"12\" fill=\"#1a202c\">\n\
             <rect width=\"{width}\" height=\"{height}\" fill=\"white\"/>\n{body}</svg>\n"
        )
    }
}

fn colour(node: &Node) -> &'static str {
    match (node.memory.total, node.cpus.is_empty()) {
        (0, _) => CPUS_ALONE,
        (_, true) => MEMORY_ALONE,
        (_, false) => WITH_CPUS,
    }
}

/// Returns the list of processors, cut at the width of the box.
fn cpus(node: &Node) -> String {
    let list = node.cpus.to_string();
    if list.len() <= 20 {
        format!("cpus {list}")
    } else {
        format!("{} cpus ({}...)", node.cpus.len(), &list[..12])
    }
}

/// Returns the darkness of a value in percent: better values are darker.
fn shade(value: u64, least: u64, most: u64, better: Better) -> u32 {
    let range = u128::from((most - least).max(1));
    let above = u128::from(value - least) * 100 / range;
    let above = u32::try_from(above).unwrap_or(100).min(100);
    match better {
        Better::More => above,
        Better::Less if most == least => 100,
        Better::Less => 100 - above,
    }
}

#[cfg(test)]
mod tests {
    use umf::topology::{Recording, Source};

    use super::*;

    fn drawn(recording: &str) -> String {
        draw(&Topology::read(&Source::recording(Recording::new(recording))).unwrap())
    }

    #[test]
    fn better_is_darker() {
        assert_eq!([10, 15, 20].map(|value| shade(value, 10, 20, Better::Less)), [100, 50, 0]);
        assert_eq!([10, 15, 20].map(|value| shade(value, 10, 20, Better::More)), [0, 50, 100]);
        assert_eq!(shade(10, 10, 10, Better::Less), 100);
        assert_eq!(shade(u64::MAX, 0, u64::MAX, Better::More), 100);
    }

    #[test]
    fn picture_has_every_node_and_figure() {
        let picture = drawn(include_str!("../../../umf-topology/tests/trees/hbm.txt"));
        for text in [
            ">4 NUMA nodes<",
            ">node 3<",
            ">465 MiB, ",
            ">819200 MB/s, 130 ns<",
            ">no cpus<",
            ">tier 75<",
            ">819200<",
            ">250<",
            ">31<",
        ] {
            assert!(picture.contains(text), "{text} is missing");
        }
        // Of 4 x 4 pairs, the kernel shows the four that are nearest, twice.
        assert_eq!(picture.matches("fill=\"none\"").count(), 2 * (2 * 4 - 4));
        let without = drawn(include_str!("../../../umf-topology/tests/trees/memoryless.txt"));
        assert!(without.contains("there is no HMAT table") && without.contains(">no memory<"));
    }

    #[test]
    fn picture_of_many_nodes_is_bounded() {
        let mut recording = "sys/devices/system/node/online:0-1023\n".to_owned();
        for node in 0..1024 {
            let _ = writeln!(recording, "sys/devices/system/node/node{node}/meminfo:MemTotal: 1024 kB");
            let _ = writeln!(recording, "sys/devices/system/node/node{node}/meminfo:MemFree: 4096 kB");
            let row = ["255"; 1024].join(" ");
            let _ = writeln!(recording, "sys/devices/system/node/node{node}/distance:{row}");
        }
        let picture = drawn(&recording);
        assert!(picture.len() < 1 << 20, "{}", picture.len());
        assert!(picture.contains("960 more are not drawn"));
    }
}
