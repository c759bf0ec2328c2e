//! The report as people read it: aligned, at most 80 columns, the same with and without colour.

use clap::builder::styling::{AnsiColor, Style};

use super::finding::{Finding, Report, State};
use crate::output::styled;

/// Columns at most.
pub(crate) const WIDTH: usize = 80;
const STATE_WIDTH: usize = 7;
const KEY_WIDTH: usize = 20;
const INDENT: usize = 2 + STATE_WIDTH + 2 + KEY_WIDTH + 2;

/// Renders the report. Findings that are not ok say why they matter and what to do; `verbose` has all say why.
pub(crate) fn render(report: &Report, colour: bool, verbose: bool) -> String {
    let mut out = String::new();
    for group in &report.groups {
        push_line(&mut out, &styled(group.title, Style::new().bold(), colour));
        for finding in &group.findings {
            render_finding(&mut out, finding, colour, verbose);
        }
        out.push('\n');
    }
    let (ok, limited, missing) =
        (report.count(State::Ok), report.count(State::Limited), report.count(State::Missing));
    push_line(&mut out, &format!("{ok} ok, {limited} limited, {missing} missing"));
    out
}

fn render_finding(out: &mut String, finding: &Finding, colour: bool, verbose: bool) {
    let (name, style) = match finding.state {
        State::Ok => ("ok", AnsiColor::Green.on_default()),
        State::Limited => ("limited", AnsiColor::Yellow.on_default()),
        State::Missing => ("missing", AnsiColor::Red.on_default()),
    };
    let state = styled(&format!("{name:<STATE_WIDTH$}"), style, colour);
    let mut lines = wrap(&finding.text, WIDTH - INDENT).into_iter();
    let first = lines.next().unwrap_or_default();
    push_line(out, &format!("  {state}  {:<KEY_WIDTH$}  {first}", finding.key));
    for line in lines {
        push_line(out, &format!("{:INDENT$}{line}", ""));
    }
    if verbose || finding.state != State::Ok {
        render_note(out, "why", &finding.why, colour);
    }
    if let Some(remedy) = &finding.remedy {
        render_note(out, "fix", remedy, colour);
    }
}

fn render_note(out: &mut String, label: &str, note: &str, colour: bool) {
    const NOTE_INDENT: usize = 2 + STATE_WIDTH + 2;
    let hanging = NOTE_INDENT + label.len() + 2;
    for (index, line) in wrap(note, WIDTH - hanging).into_iter().enumerate() {
        let lead = if index == 0 { format!("{label}: ") } else { " ".repeat(label.len() + 2) };
        let text = styled(&format!("{lead}{line}"), Style::new().dimmed(), colour);
        push_line(out, &format!("{:NOTE_INDENT$}{text}", ""));
    }
}

fn push_line(out: &mut String, line: &str) {
    out.push_str(line.trim_end());
    out.push('\n');
}

/// Breaks `text` at spaces into lines of at most `width` characters; a longer word has its own line.
pub(crate) fn wrap(text: &str, width: usize) -> Vec<String> {
    let mut lines = Vec::new();
    let mut line = String::new();
    for word in text.split_whitespace() {
        if !line.is_empty() && line.chars().count() + 1 + word.chars().count() > width {
            lines.push(std::mem::take(&mut line));
        }
        if !line.is_empty() {
            line.push(' ');
        }
        line.push_str(word);
    }
    lines.push(line);
    lines
}

#[cfg(test)]
mod tests {
    use super::wrap;

    #[test]
    fn wraps_at_spaces() {
        assert_eq!(wrap("one two three", 7), ["one two", "three"]);
        assert_eq!(wrap("", 7), [""]);
        assert_eq!(wrap("indivisible", 3), ["indivisible"]);
    }
}
