//! Arbitrary input gives settings, warnings or errors, and never a panic.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

use std::ffi::OsString;
use std::os::unix::ffi::OsStringExt;

use crate::sandbox::Sandbox;
use proptest::prelude::*;
use umf_config::{Context, Loader};

use crate::schema::{Ipc, Slab, schema};

/// Returns texts that are almost settings files.
fn almost_toml() -> impl Strategy<Value = String> {
    let piece = prop_oneof![
        prop::sample::select(vec![
            "[ipc]\n",
            "[pool.defaults]\n",
            "[pool.x]\n",
            "[provider.host]\n",
            "[provider.y.params]\n",
            "[shared_limits]\n",
            "[log]\n",
            "exchange",
            "limit",
            "max_handles",
            "capacity",
            "nodes",
            "kind",
            "params",
            "path",
            " = ",
            "\n",
            "\"auto\"",
            "0",
            "-1",
            "1.5",
            "true",
            "[",
            "]",
            "{",
            "}",
            ",",
            ".",
            "'",
            "\"",
            "\"64KiB\"",
            "2020-01-01",
            "nan",
            "0xffffffffffffffff",
            "#",
        ])
        .prop_map(ToOwned::to_owned),
        ".{0,4}",
    ];
    prop::collection::vec(piece, 0..24).prop_map(|pieces| pieces.concat())
}

fn any_variable() -> impl Strategy<Value = OsString> {
    let keys = Loader::with_context(Context::empty()).load(schema()).unwrap().rows();
    let mut known: Vec<_> = keys.into_iter().map(|row| OsString::from(row.variable)).collect();
    known.extend(
        ["UMF_MAX_HANDLES", "UMF_SET", "UMF_PROVIDER_PLUGIN_PARAMS", "UMF_SHARED_LIMITS_A"].map(Into::into),
    );
    let odd = prop::collection::vec(any::<u8>(), 0..12).prop_map(|tail| {
        let mut name = b"UMF_POOL_".to_vec();
        name.extend(tail);
        OsString::from_vec(name)
    });
    prop_oneof![3 => prop::sample::select(known), 1 => odd]
}

fn any_value() -> impl Strategy<Value = OsString> {
    prop_oneof![
        prop::collection::vec(any::<u8>(), 0..32).prop_map(OsString::from_vec),
        almost_toml().prop_map(OsString::from),
        "[0-9,:;-]{0,12}".prop_map(OsString::from),
    ]
}

/// Loads the settings, then reads all of them or displays the error.
fn load_and_read(loader: Loader) {
    match loader.load(schema()) {
        Ok(loaded) => {
            for row in loaded.rows() {
                let _ = format!("{row:?} {} {}", row.origin, loaded.origin(&row.key));
            }
            for warning in loaded.warnings() {
                let _ = warning.to_string();
            }
            loaded.section::<Ipc>("ipc").unwrap();
            for name in loaded.names("pool") {
                let _ = loaded.set("pool", name).read::<Slab>();
            }
        }
        Err(error) => assert!(!error.to_string().is_empty()),
    }
}

proptest! {
    #[test]
    fn arbitrary_bytes_as_a_file(bytes in prop::collection::vec(any::<u8>(), 0..256)) {
        let sandbox = Sandbox::new();
        std::fs::write(sandbox.user(), bytes).unwrap();
        load_and_read(sandbox.loader());
    }

    #[test]
    fn almost_settings_as_a_file(text in almost_toml()) {
        load_and_read(Sandbox::with_file(&text).loader());
    }

    #[test]
    fn arbitrary_bytes_in_the_environment(
        variables in prop::collection::vec((any_variable(), any_value()), 0..6)
    ) {
        let mut context = Context::empty();
        context.env.extend(variables);
        load_and_read(Loader::with_context(context));
    }

    #[test]
    fn arbitrary_keys_from_the_program(
        key in "(ipc|pool|provider|[a-z.\\[\\]0-9]{0,6})(\\.[a-z_.]{0,12}){0,4}",
        text in ".{0,12}",
    ) {
        load_and_read(Loader::with_context(Context::empty()).set(key, text));
    }
}
