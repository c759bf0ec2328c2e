//! Variables that production jobs already set, with the meaning they always had.

use std::ffi::OsStr;

use config::Value;
use serde::Serialize;

use crate::layer::{Layer, Layers, Tree, nest};
use crate::{Context, Origin, Warning, shown, umf_log};

/// A variable that is known, set, and obeyed by another part of umf than the settings.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct RecognisedVariable {
    /// The variable.
    pub variable: &'static str,
    /// Its value; what is not Unicode in it is replaced.
    pub value: String,
    /// What becomes of it.
    pub note: &'static str,
}

/// Variables that other parts of umf obey.
const ELSEWHERE: [(&str, &str); 5] = [
    ("UMF_CONF", "recognised, handled by the C interface"),
    ("UMF_CONF_FILE", "recognised, handled by the C interface"),
    ("UMF_PROXY", "recognised, handled by the C interface"),
    ("UMF_MEM_FD_FUNC", "recognised, without effect: memory always comes from memfd_create"),
    ("UMF_ZE_LOADER_LIB_NAME", "recognised, handled by the Level Zero provider"),
];

/// Older variables of one number each, and the keys that they set.
const LIMITS: [(&str, &str); 2] = [
    ("UMF_MAX_CREATED_IPC_HANDLES", "max_created_handles"),
    ("UMF_MAX_OPENED_IPC_HANDLES", "max_opened_handles"),
];

/// All variables that this module knows, and those that name files.
pub(crate) fn names() -> impl Iterator<Item = &'static str> {
    ["UMF_TOML", "UMF_LOG"]
        .into_iter()
        .chain(LIMITS.iter().map(|(variable, _)| *variable))
        .chain(ELSEWHERE.iter().map(|(variable, _)| *variable))
}

/// Whether a variable is one of these.
pub(crate) fn is_known(variable: &str) -> bool {
    names().any(|name| name == variable)
}

/// The variables that are set and obeyed elsewhere.
pub(crate) fn recognised(context: &Context) -> Vec<RecognisedVariable> {
    let set = ELSEWHERE.iter().filter_map(|(variable, note)| {
        Some(RecognisedVariable {
            variable,
            value: context.variable(variable)?.to_string_lossy().into_owned(),
            note,
        })
    });
    set.collect()
}

/// Adds what the older variables set.
pub(crate) fn read(context: &Context, layers: &mut Layers, warnings: &mut Vec<Warning>) {
    for (variable, key) in LIMITS {
        let Some(value) = context.variable(variable) else {
            continue;
        };
        let replacement = crate::schema::variable_name(&format!("ipc.{key}"));
        if context.variable(&replacement).is_some() {
            warnings.push(Warning::Shadowed { variable: variable.to_owned(), by: replacement });
            continue;
        }
        let limit = limit(value).unwrap_or_else(|| {
            warnings.push(Warning::BadLegacyValue {
                variable,
                value: shown::quoted(&value.to_string_lossy()),
                effect: "there is no limit, as in earlier versions",
                expected: "a whole number, 0 for no limit",
            });
            0
        });
        let value = Value::new(Some(&layers.next_uri()), limit);
        layers.push(layer(variable, nest(&["ipc", key], value)));
    }
    let Some(value) = context.variable("UMF_LOG") else {
        return;
    };
    let uri = layers.next_uri();
    match value.to_str().and_then(|text| umf_log::parse(text, &uri)) {
        Some(log) => {
            let log = Value::new(None, log);
            layers.push(layer("UMF_LOG", nest(&["log"], log)));
        }
        None => warnings.push(Warning::BadLegacyValue {
            variable: "UMF_LOG",
            value: shown::quoted(&value.to_string_lossy()),
            effect: "it is ignored",
            expected: umf_log::EXPECTED,
        }),
    }
}

fn layer(variable: &str, tree: Tree) -> Layer {
    Layer { origin: Origin::Environment(variable.to_owned()), tree }
}

/// A number as `strtoul` of base 10 reads one that is wholly a number.
fn limit(value: &OsStr) -> Option<u64> {
    let text = value.to_str()?.trim_start();
    let digits = text.strip_prefix('+').unwrap_or(text);
    let plain = digits.bytes().all(|byte| byte.is_ascii_digit());
    plain.then(|| digits.parse().ok()).flatten()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn limits_are_whole_numbers() {
        assert_eq!(limit(OsStr::new(" +12")), Some(12));
        for text in ["", "12a", "-1", "++1", "99999999999999999999"] {
            assert_eq!(limit(OsStr::new(text)), None, "{text}");
        }
    }
}
