//! What is shown of a measurement.

use serde::Serialize;

use super::measure::Measured;
use crate::failure::Failure;
use crate::output;
use crate::progress::Progress;

/// What the names of rows about the machine begin with.
const MARKER: &str = "marker.";

/// One line: our value, and a peer's of the same run.
#[derive(Serialize)]
struct Row {
    name: String,
    value: f64,
    unit: &'static str,
    /// The best batch.
    min: f64,
    #[serde(skip_serializing_if = "Option::is_none")]
    peer: Option<&'static str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    peer_value: Option<f64>,
    /// Ours to the peer's.
    #[serde(skip_serializing_if = "Option::is_none")]
    ratio: Option<f64>,
}

/// The rows of a run.
pub(super) struct Rows {
    json: bool,
    /// Texts of which one is in each name that is shown; none: all are.
    wanted: Vec<String>,
    rows: Vec<Row>,
    progress: Progress,
}

impl Rows {
    /// JSON is printed line by line as it comes, a table in the end.
    pub(super) fn new(json: bool, wanted: Vec<String>) -> Rows {
        Rows { json, wanted, rows: Vec::new(), progress: Progress::new() }
    }

    /// Whether this row is shown. Those that say how fast the machine is always are.
    pub(super) fn are_wanted(&self, name: &str) -> bool {
        let wanted = |text: &String| name.contains(text.as_str());
        self.wanted.is_empty() || name.starts_with(MARKER) || self.wanted.iter().any(wanted)
    }

    /// Says what is being measured.
    pub(super) fn begin(&mut self, name: &str) {
        self.progress.step(format!("measuring {name}"));
    }

    /// Adds a row in nanoseconds, with the name of a peer and what it took.
    pub(super) fn add(
        &mut self,
        name: &str,
        ours: Measured,
        peer: Option<(&'static str, Measured)>,
    ) -> Result<(), Failure> {
        self.push(name, "ns", ours, peer)
    }

    /// Adds a row in another unit.
    pub(super) fn push(
        &mut self,
        name: &str,
        unit: &'static str,
        ours: Measured,
        peer: Option<(&'static str, Measured)>,
    ) -> Result<(), Failure> {
        if !self.are_wanted(name) {
            return Ok(());
        }
        let row = Row {
            name: name.to_owned(),
            value: rounded(ours.median),
            unit,
            min: rounded(ours.min),
            peer: peer.map(|(peer, _)| peer),
            peer_value: peer.map(|(_, peer)| rounded(peer.median)),
            ratio: peer.map(|(_, peer)| rounded(ours.median / peer.median)),
        };
        if self.json {
            let line = serde_json::to_string(&row).map_err(std::io::Error::from)?;
            output::print(&(line + "\n"))?;
        }
        self.rows.push(row);
        Ok(())
    }

    /// Prints the table.
    pub(super) fn finish(self) -> Result<(), Failure> {
        drop(self.progress);
        if self.rows.iter().all(|row| row.name.starts_with(MARKER)) {
            let wanted = self.wanted.join(", ");
            return Err(Failure::Told(format!("--rows {wanted}: no row has that in its name")));
        }
        if !self.json {
            output::print(&table(&self.rows))?;
        }
        Ok(())
    }
}

/// Three decimals say more than the clock does.
fn rounded(value: f64) -> f64 {
    (value * 1e3).round() / 1e3
}

fn table(rows: &[Row]) -> String {
    let width = rows.iter().map(|row| row.name.len()).max().unwrap_or(0);
    let mut text = format!("{:<width$}  {:>12}  {:>12}  {:>6}\n", "name", "ours", "peer", "ratio");
    for row in rows {
        let ours = format!("{} {}", short(row.value), row.unit);
        let peer =
            row.peer_value.map_or_else(|| "-".to_owned(), |value| format!("{} {}", short(value), row.unit));
        let ratio = row.ratio.map_or_else(|| "-".to_owned(), |ratio| format!("{ratio:.2}"));
        let name = row.peer.unwrap_or_default();
        let line = format!("{:<width$}  {ours:>12}  {peer:>12}  {ratio:>6}  {name}", row.name);
        text += line.trim_end();
        text.push('\n');
    }
    text
}

fn short(value: f64) -> String {
    if value < 100.0 { format!("{value:.1}") } else { format!("{value:.0}") }
}
