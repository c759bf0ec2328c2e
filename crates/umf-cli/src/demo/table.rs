//! What came of a demo, as people read it: at most 80 columns.

use std::fmt::Write;

use clap::builder::styling::{AnsiColor, Style};
use umf::config::ByteSize;

use super::outcome::Outcome;
use super::words::{Counters, Report};
use crate::info::bytes;

/// Renders the outcome.
pub(super) fn render(outcome: &Outcome, colour: bool) -> String {
    let plan = &outcome.plan;
    let mut out = String::new();
    let size = match ByteSize::new(plan.size as u64).to_string() {
        size if size.ends_with('B') => size,
        size => size + " B",
    };
    let processes = if plan.ranks == 1 { "process" } else { "unrelated processes" };
    line(
        &mut out,
        &format!(
            "{} {processes}, {} blocks of {size} each; exchange {}",
            plan.ranks, plan.blocks, outcome.exchange
        ),
    );
    if let Some(provider) = &plan.provider {
        line(&mut out, &format!("memory from provider {provider}; each handle carries {}", outcome.carried));
    }
    line(
        &mut out,
        &format!(
            "{} handles of {} bytes, sent as text; {} opened; {} shared",
            outcome.handles(),
            umf::ipc::HANDLE_SIZE,
            outcome.opens(),
            bytes::human(u64::from(plan.ranks) * plan.rank_bytes()),
        ),
    );
    out.push('\n');
    heading(
        &mut out,
        "                       ------ get ------  ----------- open ----------        ",
        colour,
    );
    heading(
        &mut out,
        "rank   process  blocks     cold   cached    first     cold   cached  copy GB/s",
        colour,
    );
    for (number, rank) in outcome.ranks.iter().enumerate() {
        times(&mut out, number, rank);
    }
    out.push('\n');
    heading(
        &mut out,
        "rank  cache         hits  by table  misses  stale  evicted  held     bytes  fds",
        colour,
    );
    for (number, rank) in outcome.ranks.iter().enumerate() {
        counters(&mut out, &number.to_string(), "exporter", &rank.exporter);
        counters(&mut out, "", "importer", &rank.importer);
    }
    out.push('\n');
    out.push_str(&verdict(outcome, colour));
    out
}

fn times(out: &mut String, number: usize, rank: &Report) {
    let t = &rank.times;
    let copy = t.copy_bytes_per_s.map_or_else(|| "-".to_owned(), |speed| format!("{:.1}", speed / 1e9));
    line(
        out,
        &format!(
            "{number:>4}  {:>8}  {:>6}  {:>7}  {:>7}  {:>7}  {:>7}  {:>7}  {copy:>9}",
            rank.process,
            rank.exported,
            time(t.get_cold_ns),
            time(t.get_cached_ns),
            time(t.open_first_ns),
            time(t.open_cold_ns),
            time(t.open_cached_ns),
        ),
    );
}

fn counters(out: &mut String, rank: &str, name: &str, c: &Counters) {
    line(
        out,
        &format!(
            "{rank:>4}  {name:<8}  {:>8}  {:>8}  {:>6}  {:>5}  {:>7}  {:>4}  {:>8}  {:>3}",
            c.hits,
            c.table_hits,
            c.misses,
            c.stale,
            c.evictions,
            c.held_entries,
            bytes::human(c.held_bytes),
            c.held_fds,
        ),
    );
}

fn verdict(outcome: &Outcome, colour: bool) -> String {
    let mut text = String::new();
    let others = outcome.plan.ranks > 1;
    if others {
        line(&mut text, "contents: every block right in every reader, every answer right in its owner");
        line(&mut text, &format!("freed: {} old handles tried, all refused as stale", outcome.stale()));
    }
    if outcome.left.is_empty() {
        let clean = "left behind: nothing (descriptors, mappings, names, sockets, processes)";
        line(&mut text, &styled(clean, AnsiColor::Green.on_default(), colour));
    } else {
        line(&mut text, &styled("left behind:", AnsiColor::Red.on_default(), colour));
        for what in &outcome.left {
            line(&mut text, &format!("  {what}"));
        }
    }
    text
}

fn time(nanoseconds: Option<f64>) -> String {
    match nanoseconds {
        None => "-".to_owned(),
        Some(time) if time < 1e3 => format!("{time:.0} ns"),
        Some(time) if time < 1e5 => format!("{:.1} us", time / 1e3),
        Some(time) if time < 1e6 => format!("{:.0} us", time / 1e3),
        Some(time) => format!("{:.1} ms", time / 1e6),
    }
}

fn heading(out: &mut String, text: &str, colour: bool) {
    line(out, &styled(text.trim_end(), Style::new().bold(), colour));
}

fn line(out: &mut String, text: &str) {
    // Writing to a String does not fail.
    let _ = writeln!(out, "{text}");
}

fn styled(text: &str, style: Style, colour: bool) -> String {
    if colour { format!("{style}{text}{style:#}") } else { text.to_owned() }
}
