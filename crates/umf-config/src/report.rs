//! The settings in force as rows of text.

use serde::Serialize;

use crate::field::Section;
use crate::{Origin, Settings, Value, schema};

/// One key of [`Settings::report`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct Row {
    /// The key, such as `ipc.exchange`.
    pub key: String,
    /// Its value in the text form that files and variables take; empty for none.
    pub value: String,
    /// Where the value came from.
    pub origin: Origin,
    /// The environment variable that would set it.
    pub variable: String,
}

impl Settings {
    /// Every key with its value and origin, section by section, for `umf config`.
    pub fn report(&self) -> Vec<Row> {
        let mut rows = Vec::new();
        self.section(&mut rows, "ipc", &self.ipc);
        self.section(&mut rows, "pool.defaults", &self.pool.defaults);
        for (name, pool) in &self.pool.named {
            self.section(&mut rows, &format!("pool.{name}"), pool);
        }
        for (name, provider) in &self.provider {
            self.section(&mut rows, &format!("provider.{name}"), provider);
        }
        for (name, limit) in &self.shared_limits {
            rows.push(self.row(format!("shared_limits.{name}"), limit.to_string()));
        }
        self.section(&mut rows, "link", &self.link);
        self.section(&mut rows, "log", &self.log);
        rows
    }

    fn section<S: Section>(&self, rows: &mut Vec<Row>, section: &str, values: &S) {
        for field in S::FIELDS {
            let key = format!("{section}.{}", field.name);
            rows.push(self.row(key, (field.text)(values)));
        }
    }

    fn row(&self, key: String, value: String) -> Row {
        Row { origin: self.origin(&key).clone(), variable: schema::variable_name(&key), key, value }
    }
}

/// A value as TOML on one line.
pub(crate) fn inline(value: &Value) -> String {
    match value {
        Value::Boolean(flag) => flag.to_string(),
        Value::Integer(number) => number.to_string(),
        Value::Float(number) => format!("{number:?}"),
        Value::Text(text) => quoted(text),
        Value::List(list) => {
            let elements: Vec<_> = list.iter().map(inline).collect();
            format!("[{}]", elements.join(", "))
        }
        Value::Table(table) if table.is_empty() => "{}".to_owned(),
        Value::Table(table) => {
            let entries: Vec<_> = table
                .iter()
                .map(|(key, value)| format!("{} = {}", bare_or_quoted(key), inline(value)))
                .collect();
            format!("{{ {} }}", entries.join(", "))
        }
    }
}

fn bare_or_quoted(key: &str) -> String {
    let is_bare = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'_' || byte == b'-';
    if !key.is_empty() && key.bytes().all(is_bare) { key.to_owned() } else { quoted(key) }
}

fn quoted(text: &str) -> String {
    let mut quoted = String::from("\"");
    for character in text.chars() {
        match character {
            '"' | '\\' => quoted.extend(['\\', character]),
            control if control.is_control() => {
                quoted.push_str(&format!("\\u{:04X}", u32::from(control)));
            }
            other => quoted.push(other),
        }
    }
    quoted.push('"');
    quoted
}
