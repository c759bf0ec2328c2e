//! The listing of all keys with their documentation and defaults, as a settings file that sets nothing.

use std::fmt::Write;

use config::{Value, ValueKind};

use crate::loaded::inline;
use crate::schema::{Group, Schema, Shape, Tree};

impl Schema {
    /// A settings file with every key in a comment, after the comment `head`.
    #[must_use]
    pub fn listing(&self, head: &str) -> String {
        let mut out = String::new();
        comment(&mut out, head);
        for (group, about, form) in &self.groups {
            out.push('\n');
            comment(&mut out, about);
            match form {
                Group::Section(shape) => {
                    let _ = writeln!(out, "[{group}]");
                    keys(&mut out, shape, None);
                }
                Group::Values(_) => {
                    let _ = writeln!(out, "[{group}]");
                }
                Group::Sets(sets) => {
                    if let Some(defaults) = sets.defaults {
                        let _ = writeln!(out, "[{group}.{defaults}]");
                        sets.common.iter().for_each(|shape| keys(&mut out, shape, None));
                    }
                    for (kind, shape) in &sets.kinds {
                        let _ = writeln!(
                            out,
                            "\n# ---- kind {kind:?}{}",
                            if shape.keys.is_empty() { ": no keys of its own" } else { "" }
                        );
                        if sets.defaults.is_none() {
                            let _ = writeln!(out, "[{group}.{kind}]");
                            sets.common.iter().for_each(|shape| keys(&mut out, shape, Some(kind)));
                        }
                        keys(&mut out, shape, None);
                    }
                }
            }
        }
        out
    }
}

fn comment(out: &mut String, text: &str) {
    for line in text.lines() {
        let _ = writeln!(out, "{}", format!("# {line}").trim_end());
    }
}

/// Writing to a `String` does not fail.
fn keys(out: &mut String, shape: &Shape, kind: Option<&str>) {
    let defaults: Tree = shape.defaults();
    let none = Value::new(None, ValueKind::Table(Tree::new()));
    for key in shape.keys {
        out.push('\n');
        for line in key.doc.lines() {
            let _ = writeln!(out, "{}", format!("#{line}").trim_end());
        }
        for older in key.older {
            let _ = writeln!(out, "# The older name {older} is accepted too.");
        }
        let value = match kind {
            Some(kind) if key.name == "kind" => format!("{kind:?}"),
            _ => inline(defaults.get(key.name).unwrap_or(&none)),
        };
        let _ = writeln!(out, "#{} = {value}", key.name);
    }
}
