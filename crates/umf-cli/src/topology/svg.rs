//! A topology as SVG: a box for each node, and a matrix each for distance, bandwidth and latency.

use std::fmt::Write;

use umf::topology::{Node, Topology};

use crate::output::format_bytes;

/// The most nodes that are drawn. The title has the number of others.
const MAX_NODES: usize = 64;

const MARGIN: usize = 20;
const GAP: usize = 16;
/// Space between the border of a box and its text.
const PADDING: usize = 12;
/// Limits of the width of a box. Its texts decide.
const BOX_WIDTHS: std::ops::RangeInclusive<usize> = 130..=280;
/// The greatest width of a row of boxes or matrices, unless one alone is wider.
const ROW_WIDTH: usize = 1100;
const CELL_HEIGHT: usize = 26;
/// The width of the first column of a matrix.
const ROW_NAMES: usize = 72;
/// The height of a heading.
const HEADING: usize = 24;
const LINE: usize = 16;

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
    picture.heading(MARGIN, y, &title);
    y += HEADING - 8;
    y = picture.boxes(y, &nodes);
    picture.legend(y, &nodes);
    y += 36;

    let distance = |from: &Node, to: &Node| from.distance_to(to.id).map(u64::from);
    let bandwidth = |from: &Node, to: &Node| Some(to.performance_from(from.id)?.bandwidth()?.0);
    let latency = |from: &Node, to: &Node| Some(to.performance_from(from.id)?.latency()?.0);
    // The distance of a single node to itself is the same on every machine.
    let matrices = [
        (nodes.len() > 1)
            .then(|| Matrix::new("Distance (SLIT)", "10 is the node itself", Better::Less, &nodes, distance)),
        Some(Matrix::new(
            "Read bandwidth, MB/s (HMAT)",
            "of the nearest nodes",
            Better::More,
            &nodes,
            bandwidth,
        )),
        Some(Matrix::new("Read latency, ns (HMAT)", "of the nearest nodes", Better::Less, &nodes, latency)),
    ];
    let matrices: Vec<Matrix<'_>> = matrices.into_iter().flatten().flatten().collect();
    y = picture.matrices(y, &matrices, nodes.len());
    if !topology.has_performance() {
        picture.text(MARGIN, y, "Bandwidth and latency: unknown, there is no HMAT table.");
        y += HEADING - 4;
    }
    picture.done(y)
}

/// Returns the width of a text in the picture's font, by its number of letters: no viewer's font
/// is known. Most fonts are narrower.
fn text_width(text: &str, font_size: usize) -> usize {
    text.chars().count() * font_size * 6 / 10
}

#[derive(Clone, Copy)]
enum Better {
    Less,
    More,
}

/// A matrix with a row for each node that has values.
struct Matrix<'nodes> {
    title: &'static str,
    note: &'static str,
    better: Better,
    rows: Vec<(&'nodes Node, Vec<Option<u64>>)>,
    columns: Vec<u32>,
    least: u64,
    most: u64,
}

impl<'nodes> Matrix<'nodes> {
    /// Collects the values. Returns `None` if no node has a value.
    fn new(
        title: &'static str,
        note: &'static str,
        better: Better,
        nodes: &[&'nodes Node],
        value: impl Fn(&Node, &Node) -> Option<u64>,
    ) -> Option<Self> {
        let rows = nodes.iter().map(|&from| (from, nodes.iter().map(|to| value(from, to)).collect()));
        let rows: Vec<(&Node, Vec<Option<u64>>)> =
            rows.filter(|(_, values): &(_, Vec<Option<u64>>)| values.iter().any(Option::is_some)).collect();
        let all = || rows.iter().flat_map(|(_, values)| values.iter().flatten().copied());
        let (least, most) = (all().min()?, all().max()?);
        let columns = nodes.iter().map(|node| node.id).collect();
        Some(Self { title, note, better, rows, columns, least, most })
    }

    /// Returns the width of a cell: that of its longest text.
    fn cell(&self) -> usize {
        let ids = self.columns.iter().map(|id| u64::from(*id));
        let longest = ids.chain([self.most]).map(|number| text_width(&number.to_string(), 12)).max();
        longest.unwrap_or(0) + 18
    }

    fn width(&self) -> usize {
        let title = text_width(self.title, 14).max(text_width(self.note, 12));
        title.max(ROW_NAMES + self.columns.len() * self.cell())
    }

    fn height(&self) -> usize {
        HEADING + LINE + (self.rows.len() + 1) * CELL_HEIGHT + GAP
    }
}

#[derive(Default)]
struct Picture {
    body: String,
    width: usize,
}

impl Picture {
    fn reach(&mut self, x: usize) {
        self.width = self.width.max(x + MARGIN);
    }

    fn text(&mut self, x: usize, y: usize, text: &str) {
        let _ = writeln!(self.body, "<text x=\"{x}\" y=\"{y}\">{text}</text>");
        self.reach(x + text_width(text, 12));
    }

    fn heading(&mut self, x: usize, y: usize, text: &str) {
        let _ = writeln!(
            self.body,
            "<text x=\"{x}\" y=\"{y}\" font-size=\"14\" font-weight=\"bold\">{text}</text>"
        );
        self.reach(x + text_width(text, 14));
    }

    /// Draws a box for each node: all have the size that the longest texts need. Returns the y
    /// coordinate below them.
    fn boxes(&mut self, y: usize, nodes: &[&Node]) -> usize {
        let lines: Vec<Vec<String>> = nodes.iter().map(|node| lines(node)).collect();
        let texts = nodes.iter().map(|node| memory(node)).chain(lines.iter().flatten().cloned());
        let longest = texts.map(|text| text_width(&text, 12)).max().unwrap_or(0);
        let width = (longest + 2 * PADDING).clamp(*BOX_WIDTHS.start(), *BOX_WIDTHS.end());
        let height = 70 + LINE * lines.iter().map(Vec::len).max().unwrap_or(0) + PADDING;
        // Rows of about equal length.
        let most = ((ROW_WIDTH + GAP) / (width + GAP)).max(1);
        let in_a_row = nodes.len().div_ceil(nodes.len().div_ceil(most).max(1)).max(1);
        for (index, (node, lines)) in nodes.iter().zip(&lines).enumerate() {
            let x = MARGIN + index % in_a_row * (width + GAP);
            self.node(x, y + index / in_a_row * (height + GAP), (width, height), node, lines);
        }
        y + nodes.len().div_ceil(in_a_row) * (height + GAP)
    }

    fn node(&mut self, x: usize, y: usize, (width, height): (usize, usize), node: &Node, lines: &[String]) {
        let colour = colour(node);
        let dashes = if is_forbidden(node) { " stroke-dasharray=\"6 4\"" } else { "" };
        let _ = writeln!(
            self.body,
            "<rect x=\"{x}\" y=\"{y}\" width=\"{width}\" height=\"{height}\" rx=\"6\" fill=\"white\" stroke=\"{colour}\" \
             stroke-width=\"2\"{dashes}/>\n<text x=\"{}\" y=\"{}\" font-size=\"14\" font-weight=\"bold\" fill=\"{colour}\">node {}</text>",
            x + PADDING,
            y + 24,
            node.id,
        );
        let bar = width - 2 * PADDING;
        self.memory(x + PADDING, y + 36, bar, node);
        for (index, line) in lines.iter().enumerate() {
            let most = bar * 10 / (12 * 6);
            let is_long = text_width(line, 12) > bar;
            let line = if is_long { crate::inspect::shortened(line, most) } else { line.clone() };
            self.text(x + PADDING, y + 80 + LINE * index, &line);
        }
        self.reach(x + width);
    }

    /// Draws the size of the memory, and a bar for its used part.
    fn memory(&mut self, x: usize, y: usize, width: usize, node: &Node) {
        let total = node.memory.total;
        if total > 0 {
            let used = total.saturating_sub(node.memory.free);
            let part = (u128::from(used) * width as u128 / u128::from(total)).min(width as u128);
            let _ = writeln!(
                self.body,
                "<rect x=\"{x}\" y=\"{y}\" width=\"{width}\" height=\"12\" fill=\"#e2e8f0\"/>\n\
                 <rect x=\"{x}\" y=\"{y}\" width=\"{part}\" height=\"12\" fill=\"{}\"/>",
                colour(node),
            );
        }
        self.text(x, y + 28, &memory(node));
    }

    /// Draws the meanings of the colours that occur.
    fn legend(&mut self, y: usize, nodes: &[&Node]) {
        let mut x = MARGIN;
        let meanings =
            [(WITH_CPUS, "memory and processors"), (MEMORY_ALONE, "memory alone"), (CPUS_ALONE, "no memory")];
        for (used, meaning) in meanings {
            if !nodes.iter().any(|node| colour(node) == used) {
                continue;
            }
            let _ =
                writeln!(self.body, "<rect x=\"{x}\" y=\"{y}\" width=\"10\" height=\"10\" fill=\"{used}\"/>");
            self.text(x + 15, y + 9, meaning);
            x += 15 + text_width(meaning, 12) + GAP;
        }
        if nodes.iter().any(|node| is_forbidden(node)) {
            self.text(x, y + 9, "dashed: not for this process");
        }
    }

    /// Draws matrices beside each other, as many as fit. Returns the y coordinate below them.
    fn matrices(&mut self, mut y: usize, matrices: &[Matrix<'_>], nodes: usize) -> usize {
        let row_width = ROW_WIDTH.max(self.width.saturating_sub(2 * MARGIN));
        let gap = if nodes > 1 { 3 * GAP } else { 2 * GAP };
        let (mut x, mut height) = (0, 0);
        for matrix in matrices {
            if x > 0 && x + matrix.width() > row_width {
                y += height;
                (x, height) = (0, 0);
            }
            self.matrix(MARGIN + x, y, matrix);
            x += matrix.width() + gap;
            height = height.max(matrix.height());
        }
        y + height
    }

    fn matrix(&mut self, x: usize, y: usize, matrix: &Matrix<'_>) {
        let cell = matrix.cell();
        self.heading(x, y, matrix.title);
        self.text(x, y + LINE, matrix.note);
        let left = x + ROW_NAMES;
        let top = y + LINE + 6;
        self.text(x, top + 17, "from \\ to");
        for (column, to) in matrix.columns.iter().enumerate() {
            let _ = writeln!(
                self.body,
                "<text x=\"{}\" y=\"{}\" text-anchor=\"middle\">{to}</text>",
                left + column * cell + cell / 2,
                top + 17,
            );
        }
        for (line, (from, values)) in matrix.rows.iter().enumerate() {
            let top = top + (line + 1) * CELL_HEIGHT;
            self.text(x, top + 17, &format!("node {}", from.id));
            for (column, value) in values.iter().enumerate() {
                let shade = value.map(|value| shade(value, matrix.least, matrix.most, matrix.better));
                self.cell(left + column * cell, top, cell, *value, shade);
            }
        }
        self.reach(x + matrix.width());
    }

    fn cell(&mut self, x: usize, y: usize, width: usize, value: Option<u64>, shade: Option<u32>) {
        let (width, height) = (width - 2, CELL_HEIGHT - 2);
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

/// Returns whether this process may not use the node's memory.
fn is_forbidden(node: &Node) -> bool {
    !node.is_allowed && node.memory.total > 0
}

/// Returns the size of a node's memory as text.
fn memory(node: &Node) -> String {
    match node.memory.total {
        0 => "no memory".to_owned(),
        total => format!("{}, {} free", format_bytes(total), format_bytes(node.memory.free)),
    }
}

/// Returns the lines of a node's box below its memory.
fn lines(node: &Node) -> Vec<String> {
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
    lines
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

    /// Returns the value of an attribute of an element.
    fn attribute(element: &str, name: &str) -> usize {
        let begin = element.find(&format!(" {name}=\"")).unwrap() + name.len() + 3;
        let digits: String = element[begin..].chars().take_while(char::is_ascii_digit).collect();
        digits.parse().unwrap()
    }

    fn machine(nodes: usize) -> String {
        let mut recording = format!("sys/devices/system/node/online:0-{}\n", nodes - 1);
        for node in 0..nodes {
            let folder = format!("sys/devices/system/node/node{node}");
            let _ = writeln!(recording, "{folder}/cpulist:{}-{}", node * 64, node * 64 + 63);
            let _ = writeln!(recording, "{folder}/meminfo:MemTotal: 263921664 kB");
            let _ = writeln!(recording, "{folder}/meminfo:MemFree: 150000000 kB");
            let _ = writeln!(recording, "{folder}/distance:{}", vec!["21"; nodes].join(" "));
            let _ = writeln!(recording, "{folder}/hugepages/hugepages-2048kB/nr_hugepages:512");
            let _ = writeln!(recording, "{folder}/hugepages/hugepages-2048kB/free_hugepages:512");
            let access = format!("{folder}/access1/initiators");
            let _ = writeln!(recording, "{access}/read_bandwidth:204800\n{access}/read_latency:100");
            let _ = writeln!(recording, "{access}/write_bandwidth:204800\n{access}/write_latency:100");
            let _ = writeln!(recording, "{access}/node{node}");
        }
        recording
    }

    #[test]
    fn texts_do_not_overlap_and_fill_the_picture() {
        for nodes in [1, 2, 4, 8, 64] {
            let picture = drawn(&machine(nodes));
            let width = attribute(&picture, "width");
            let mut texts: Vec<(usize, usize, usize)> = Vec::new();
            for line in picture.lines().filter(|line| line.starts_with("<text ")) {
                let text = line.split(['<', '>']).nth(2).unwrap();
                let size = if line.contains("font-size=\"14\"") { 14 } else { 12 };
                let length = text_width(&text.replace("&lt;", "<"), size);
                let x = attribute(line, "x") - if line.contains("middle") { length / 2 } else { 0 };
                assert!(x + length <= width, "{text:?} is cut at {width} with {nodes} nodes");
                texts.push((attribute(line, "y"), x, x + length));
            }
            texts.sort_unstable();
            for pair in texts.windows(2) {
                let ((y, _, end), (next_y, next, _)) = (pair[0], pair[1]);
                assert!(y != next_y || end <= next, "texts overlap in line {y} with {nodes} nodes");
            }
            // Something reaches the right margin.
            let rects = picture.lines().filter(|line| line.starts_with("<rect x="));
            let rects = rects.map(|line| attribute(line, "x") + attribute(line, "width"));
            let right = rects.chain(texts.iter().map(|(_, _, end)| *end)).max().unwrap();
            assert!(right + MARGIN + 2 >= width, "{right} of {width} with {nodes} nodes");
        }
        assert!(attribute(&drawn(&machine(1)), "width") < 560, "one node needs a small picture");
    }
}
