//! `umf config`: the effective settings and the origin of each.

use std::fmt::Write;

use clap::Args;
use clap::builder::styling::Style;
use serde_json::json;
use umf::settings::{Loaded, Loader, Origin, Row, Settings, template};

use crate::output::{self, Failure};

/// Shows the effective settings, and the origin of each.
///
/// Defaults, then the settings files, then the environment: later ones win. Warnings go to standard
/// error; invalid settings end with exit code 2.
#[derive(Args)]
pub(crate) struct ConfigCommand {
    /// Print one JSON document: settings, files, variables read by other components, warnings
    #[arg(long)]
    json: bool,

    /// Show only what a file or a variable sets
    #[arg(long)]
    changed: bool,

    /// Print a settings file with every key commented out, its documentation and its default
    #[arg(long, conflicts_with_all = ["json", "changed"])]
    template: bool,
}

impl ConfigCommand {
    /// Loads the settings and prints them.
    ///
    /// # Errors
    /// The settings are invalid, or standard output cannot be written.
    pub(crate) fn run(&self) -> Result<(), Failure> {
        if self.template {
            output::print(&template())?;
            return Ok(());
        }
        let settings = Settings::load(Loader::new())?;
        let loaded = settings.loaded();
        for warning in loaded.warnings() {
            output::print_diagnostic(&format!("warning: {warning}"));
        }
        let printed =
            if self.json { self.document(loaded)? } else { self.table(loaded, output::wants_colour()) };
        output::print(&printed)?;
        Ok(())
    }

    fn rows(&self, loaded: &Loaded) -> Vec<Row> {
        let is_listed = |row: &Row| !self.changed || row.origin != Origin::Default;
        loaded.rows().into_iter().filter(is_listed).collect()
    }

    fn document(&self, loaded: &Loaded) -> Result<String, std::io::Error> {
        let files: Vec<_> = loaded.files().map(|path| path.display().to_string()).collect();
        let warnings: Vec<_> = loaded.warnings().iter().map(ToString::to_string).collect();
        let document = json!({
            "format": 1,
            "settings": self.rows(loaded),
            "files": files,
            "elsewhere": loaded.recognised(),
            "warnings": warnings,
        });
        Ok(serde_json::to_string_pretty(&document)? + "\n")
    }

    fn table(&self, loaded: &Loaded, colour: bool) -> String {
        let rows = self.rows(loaded);
        let width = |text: fn(&Row) -> &str, most: usize| {
            rows.iter().map(|row| cell_text(text(row)).chars().count()).max().unwrap_or(0).min(most)
        };
        let (keys, values) = (width(|row| &row.key, 40), width(|row| &row.value, 32));
        let mut out = String::new();
        let mut section = "";
        // Writing to a String does not fail.
        for row in &rows {
            let (row_section, _) = row.key.rsplit_once('.').unwrap_or((&row.key, ""));
            if !section.is_empty() && row_section != section {
                out.push('\n');
            }
            section = row_section;
            let unread = if row.unread { " (not read: this program does not know the kind)" } else { "" };
            let text =
                format!("{:<keys$}  {:<values$}  {}{unread}", row.key, cell_text(&row.value), row.origin);
            let style =
                if row.origin == Origin::Default { Style::new().dimmed() } else { Style::new().bold() };
            let _ = if colour { writeln!(out, "{style}{text}{style:#}") } else { writeln!(out, "{text}") };
        }
        if !rows.is_empty() {
            out.push('\n');
        }
        match loaded.files().collect::<Vec<_>>().as_slice() {
            [] => out.push_str("no settings file was read\n"),
            files => files.iter().for_each(|path| {
                let _ = writeln!(out, "read {}", path.display());
            }),
        }
        for variable in loaded.recognised() {
            let _ = writeln!(out, "{}={} ({})", variable.variable, variable.value, variable.note);
        }
        out
    }
}

/// Returns the value as a table cell: `-` for the empty string.
fn cell_text(value: &str) -> &str {
    if value.is_empty() { "-" } else { value }
}
