//! [`Plot`]: the rows of a run as a picture.

use std::fmt::Write as _;

/// The rows that have peers, as groups of horizontal bars. The bars of a row are in proportion to
/// each other, and the longest has the whole width.
#[derive(Default)]
pub(crate) struct Plot {
    groups: Vec<Group>,
}

struct Group {
    name: String,
    unit: &'static str,
    /// Ours first, then the peers, with their names.
    bars: Vec<(&'static str, f64)>,
}

// Sizes in pixels.
const WIDTH: f64 = 760.0;
const NAMES: f64 = 150.0;
const VALUES: f64 = 90.0;
const BAR: f64 = 16.0;
const GAP: f64 = 14.0;
const TITLE: f64 = 22.0;

impl Plot {
    /// Adds a row. A row without peers compares nothing and is left out.
    pub(crate) fn add(&mut self, name: &str, unit: &'static str, ours: f64, peers: &[(&'static str, f64)]) {
        if peers.is_empty() {
            return;
        }
        let bars = [("umf", ours)].into_iter().chain(peers.iter().copied()).collect();
        self.groups.push(Group { name: name.to_owned(), unit, bars });
    }

    /// Draws the rows as SVG, with the command that printed them below.
    pub(crate) fn to_svg(&self, command: &str) -> String {
        let height_of = |group: &Group| TITLE + BAR * group.bars.len() as f64 + GAP;
        let height = self.groups.iter().map(height_of).sum::<f64>() + 2.0 * BAR + GAP;
        let mut svg = format!(
            "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{WIDTH}\" height=\"{height}\" \
             font-family=\"sans-serif\" font-size=\"12\">\n\
             <rect width=\"100%\" height=\"100%\" fill=\"white\"/>\n"
        );
        let mut top = GAP / 2.0;
        for group in &self.groups {
            let longest = group.bars.iter().map(|bar| bar.1).fold(f64::MIN_POSITIVE, f64::max);
            text(&mut svg, 8.0, top + 15.0, "font-weight=\"bold\"", &group.name);
            top += TITLE;
            for (name, value) in &group.bars {
                let colour = if *name == "umf" { "#1f6fb2" } else { "#b8c0c8" };
                let length = (WIDTH - NAMES - VALUES) * value / longest;
                text(&mut svg, NAMES - 8.0, top + 12.0, "text-anchor=\"end\"", name);
                let _ = writeln!(
                    svg,
                    "<rect x=\"{NAMES}\" y=\"{top:.1}\" width=\"{length:.1}\" height=\"{:.1}\" fill=\"{colour}\"/>",
                    BAR - 3.0
                );
                let digits = if *value < 100.0 { 1 } else { 0 };
                let label = format!("{value:.digits$} {}", group.unit);
                text(&mut svg, NAMES + length + 6.0, top + 12.0, "", &label);
                top += BAR;
            }
            top += GAP;
        }
        for line in command.split_inclusive(" -- ") {
            let attributes = "fill=\"#555\" font-family=\"monospace\" font-size=\"11\"";
            text(&mut svg, 8.0, top + 15.0, attributes, line.trim_end());
            top += BAR;
        }
        svg.push_str("</svg>\n");
        svg
    }
}

fn text(svg: &mut String, x: f64, y: f64, attributes: &str, text: &str) {
    let text = text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;");
    let _ = writeln!(svg, "<text x=\"{x:.1}\" y=\"{y:.1}\" {attributes}>{text}</text>");
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_with_peers_are_bars_in_proportion() {
        let mut plot = Plot::default();
        plot.add("marker", "ns", 5.0, &[]);
        plot.add("a <row>", "ns", 10.0, &[("glibc", 40.0), ("tcmalloc", 20.0)]);
        let svg = plot.to_svg("cargo bench -- --rows a & b");
        assert!(!svg.contains("marker"));
        for part in [
            "a &lt;row&gt;",
            "width=\"130.0\"",
            "width=\"520.0\"",
            "width=\"260.0\"",
            ">40.0 ns<",
            "--rows a &amp; b",
        ] {
            assert!(svg.contains(part), "{part} in {svg}");
        }
    }
}
