//! `umf info` about memory of other machines: libfabric, its providers, and where to serve.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on ends")]
#![allow(clippy::disallowed_methods, reason = "a test reads the environment as it is")]

use serde_json::{Value, json};

use super::info::{report, umf};

fn fabrics(variables: &[(&str, &str)]) -> Value {
    let mut command = umf(&["info", "--json"]);
    for (variable, _) in std::env::vars() {
        if ["UMF_REMOTE_", "FI_"].iter().any(|prefix| variable.starts_with(prefix)) {
            command.env_remove(variable);
        }
    }
    command.envs(variables.iter().copied());
    report(command)["fabrics"].clone()
}

/// The same once the children have answered in time, which a busy machine may prevent.
fn answered(variables: &[(&str, &str)]) -> Value {
    const TRIES: usize = 20;
    let is_unknown =
        |finding: &Value| finding["text"].as_str().is_some_and(|text| text.starts_with("unknown"));
    for _ in 1..TRIES {
        let found = fabrics(variables);
        if !found.as_object().unwrap().values().any(is_unknown) {
            return found;
        }
    }
    fabrics(variables)
}

#[test]
fn missing_libfabric_has_a_remedy() {
    let found = answered(&[("UMF_REMOTE_LIBRARY", "/nonexistent/libfabric.so.1")]);
    for key in ["library", "providers", "serve"] {
        assert_eq!(
            (&found[key]["state"], &found[key]["value"]),
            (&"missing".into(), &Value::Null),
            "{found}"
        );
        assert!(found[key]["remedy"].as_str().unwrap().contains("libfabric1"), "{found}");
    }
    let directed = json!(["remote.library = /nonexistent/libfabric.so.1 (UMF_REMOTE_LIBRARY)"]);
    assert_eq!(found["directed"]["value"], directed);
}

#[test]
fn server_is_tried_where_the_settings_direct_it() {
    let found = answered(&[("UMF_REMOTE_PROVIDER", "tcp"), ("UMF_REMOTE_INTERFACE", "127.0.0.1")]);
    if found["library"]["state"] == "missing" {
        println!("umf-skip: server_is_tried_where_the_settings_direct_it: {}", found["library"]["text"]);
        return;
    }
    assert_eq!(found["serve"]["state"], "limited", "{found}");
    assert!(found["serve"]["value"].as_str().unwrap().ends_with("at 127.0.0.1"), "{found}");
    assert_eq!(found["directed"]["value"].as_array().unwrap().len(), 2, "{found}");

    let found = answered(&[("UMF_REMOTE_PROVIDER", "nonesuch")]);
    assert_eq!(found["serve"]["state"], "missing", "{found}");
    assert!(found["serve"]["text"].as_str().unwrap().contains("nonesuch"), "{found}");
}
