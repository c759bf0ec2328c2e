//! The results of `umf info`: one [`Finding`] per question, in groups; and the report as text of at
//! most 80 columns.

use std::borrow::Cow;

use clap::builder::styling::{AnsiColor, Style};
use rustix::io::Errno;
use serde::ser::{Serialize, SerializeMap, Serializer};
use serde_json::Value;

use super::procfs;
use crate::output::styled;

/// The state of one feature of the machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum FindingState {
    /// Fully usable.
    Ok,
    /// Partly usable, or untested.
    Limited,
    /// Absent or refused.
    Missing,
}

/// A question without its answer.
pub(crate) struct Question {
    key: Cow<'static, str>,
    why: Cow<'static, str>,
}

/// The answer to a question.
#[derive(serde::Serialize)]
pub(crate) struct Finding {
    #[serde(skip)]
    pub(crate) key: Cow<'static, str>,
    pub(crate) state: FindingState,
    /// Text for people.
    pub(crate) text: String,
    /// Value for programs.
    pub(crate) value: Value,
    /// Why it matters to umf.
    pub(crate) why: Cow<'static, str>,
    /// Remedy, where the state is not [`FindingState::Ok`].
    pub(crate) remedy: Option<String>,
}

/// Returns the remedy for a seccomp filter that refuses a system call.
pub(crate) fn allow(call: &str) -> String {
    format!(
        "Add {call} to the calls that the container's seccomp profile allows (`docker run --security-opt \
         seccomp=PROFILE.json`, or `--security-opt seccomp=unconfined` for a trial)."
    )
}

/// Creates the question `key`. `why` is the reason why it matters.
pub(crate) fn ask(key: impl Into<Cow<'static, str>>, why: impl Into<Cow<'static, str>>) -> Question {
    Question { key: key.into(), why: why.into() }
}

impl Question {
    /// Answers that the feature works.
    pub(crate) fn ok(self, text: impl Into<String>) -> Finding {
        self.answer(FindingState::Ok, text.into(), None)
    }

    /// Answers that the feature works in part.
    pub(crate) fn limited(self, text: impl Into<String>, remedy: impl Into<String>) -> Finding {
        self.answer(FindingState::Limited, text.into(), Some(remedy.into()))
    }

    /// Answers that the feature is absent or refused.
    pub(crate) fn missing(self, text: impl Into<String>, remedy: impl Into<String>) -> Finding {
        self.answer(FindingState::Missing, text.into(), Some(remedy.into()))
    }

    /// Answers that the state is unknown, because a source could not be read.
    pub(crate) fn unknown(self, unread: impl Into<String>) -> Finding {
        let remedy =
            "Run `mount -t proc proc /proc; mount -t sysfs sys /sys` as root, or run where they can be read.";
        self.answer(FindingState::Limited, format!("unknown: {}", unread.into()), Some(remedy.to_owned()))
            .value(Value::Null)
    }

    /// Answers with the outcome of a test of a kernel feature of release `since`. The value is
    /// whether the feature works.
    /// `call` is the system call that a seccomp filter would have to allow.
    pub(crate) fn tested(self, outcome: Result<(), Errno>, since: &str, call: &str) -> Finding {
        let Err(number) = outcome else {
            return self.ok("works").value(true);
        };
        let name = procfs::errno_name(number);
        if procfs::is_temporary_shortage(number) {
            self.limited(format!("could not be tried ({name})"), procfs::shortage_remedy(number))
                .value(Value::Null)
        } else if procfs::is_denied(number) {
            let remedy = format!("A seccomp filter or a security module refuses {call}. {}", allow(call));
            self.missing(format!("refused ({name})"), remedy).value(false)
        } else {
            let remedy = format!(
                "Linux {since} or newer has it, unless a seccomp filter hides {call}. {}",
                allow(call)
            );
            self.missing(format!("not there ({name})"), remedy).value(false)
        }
    }

    fn answer(self, state: FindingState, text: String, remedy: Option<String>) -> Finding {
        let value = Value::String(text.clone());
        Finding { key: self.key, state, text, value, why: self.why, remedy }
    }
}

impl Finding {
    /// Sets the value for programs. The default is the text.
    pub(crate) fn value(mut self, value: impl Into<Value>) -> Finding {
        self.value = value.into();
        self
    }
}

/// Findings about one subject.
pub(crate) struct Group {
    /// Stable name.
    pub(crate) key: &'static str,
    /// Heading.
    pub(crate) title: &'static str,
    /// Findings in display order.
    pub(crate) findings: Vec<Finding>,
}

impl Serialize for Group {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut map = serializer.serialize_map(Some(self.findings.len()))?;
        for finding in &self.findings {
            map.serialize_entry(&finding.key, finding)?;
        }
        map.end()
    }
}

/// All findings of a run.
pub(crate) struct Report {
    /// Groups in display order.
    pub(crate) groups: Vec<Group>,
}

impl Report {
    /// Counts the findings in `state`.
    pub(crate) fn count(&self, state: FindingState) -> usize {
        self.groups.iter().flat_map(|group| &group.findings).filter(|finding| finding.state == state).count()
    }
}

impl Serialize for Report {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut map = serializer.serialize_map(None)?;
        map.serialize_entry("format", &1)?;
        map.serialize_entry("version", env!("CARGO_PKG_VERSION"))?;
        for group in &self.groups {
            map.serialize_entry(group.key, group)?;
        }
        map.end()
    }
}

/// Columns of the report.
pub(crate) const WIDTH: usize = 80;
const STATE_WIDTH: usize = 7;
const KEY_WIDTH: usize = 20;
const INDENT: usize = 2 + STATE_WIDTH + 2 + KEY_WIDTH + 2;

/// Renders the report. A finding that is not ok comes with its reason and remedy; `verbose` adds
/// the reason to all.
pub(crate) fn render(report: &Report, colour: bool, verbose: bool) -> String {
    let mut out = String::new();
    for group in &report.groups {
        push_line(&mut out, &styled(group.title, Style::new().bold(), colour));
        for finding in &group.findings {
            render_finding(&mut out, finding, colour, verbose);
        }
        out.push('\n');
    }
    let (ok, limited, missing) = (
        report.count(FindingState::Ok),
        report.count(FindingState::Limited),
        report.count(FindingState::Missing),
    );
    push_line(&mut out, &format!("{ok} ok, {limited} limited, {missing} missing"));
    out
}

fn render_finding(out: &mut String, finding: &Finding, colour: bool, verbose: bool) {
    let (name, style) = match finding.state {
        FindingState::Ok => ("ok", AnsiColor::Green.on_default()),
        FindingState::Limited => ("limited", AnsiColor::Yellow.on_default()),
        FindingState::Missing => ("missing", AnsiColor::Red.on_default()),
    };
    let state = styled(&format!("{name:<STATE_WIDTH$}"), style, colour);
    let mut lines = wrap(&finding.text, WIDTH - INDENT).into_iter();
    let first = lines.next().unwrap_or_default();
    push_line(out, &format!("  {state}  {:<KEY_WIDTH$}  {first}", finding.key));
    for line in lines {
        push_line(out, &format!("{:INDENT$}{line}", ""));
    }
    if verbose || finding.state != FindingState::Ok {
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

/// Breaks `text` at spaces into lines of at most `width` characters. A longer word gets its own
/// line. Text between backticks, which is a command to copy, is one word.
pub(crate) fn wrap(text: &str, width: usize) -> Vec<String> {
    let mut lines = Vec::new();
    let mut line = String::new();
    let mut is_command = false;
    let words = text.split(|letter: char| {
        is_command ^= letter == '`';
        matches!(letter, ' ' | '\n') && !is_command
    });
    for word in words.filter(|word| !word.is_empty()) {
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
    use super::*;

    #[test]
    fn wraps_at_spaces() {
        assert_eq!(wrap("one two three", 7), ["one two", "three"]);
        assert_eq!(wrap("", 7), [""]);
        assert_eq!(wrap("indivisible", 3), ["indivisible"]);
    }

    #[test]
    fn commands_are_not_wrapped() {
        assert_eq!(wrap("Run `one two three`, or `four`.", 7), ["Run", "`one two three`,", "or", "`four`."]);
        assert_eq!(wrap("in:`a b` c", 3), ["in:`a b`", "c"]);
    }
}
