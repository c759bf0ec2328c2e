//! The names "shared", "private" and "isolated" mean the same for pools and providers.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

use crate::alone::ran_alone;
use umf::Pool;
use umf::settings::{Context, Loader};

fn init(toml: &str) {
    umf::init(Loader::with_context(Context::empty().with_variable("UMF_SET", toml))).unwrap();
}

#[test]
fn pool_named_after_its_memory_has_such_memory() {
    if ran_alone("memory_names::pool_named_after_its_memory_has_such_memory") {
        return;
    }
    init(
        "[pool.defaults]\nprovider = \"near\"\nreserve = \"64KiB\"\n[provider.near]\nnuma = \"local\"\n\
         [pool.shared]\nmin_block_size = 64\n[provider.isolated]\nnuma = \"local\"",
    );
    let pools = [("shared", Pool::shared()), ("private", Pool::private()), ("isolated", Pool::isolated())];
    for (name, pool) in pools {
        for pool in [pool, Pool::named(name)] {
            let pool = pool.unwrap();
            assert_eq!((pool.name(), pool.provider().name()), (name, name));
            let handle = pool.allocate(100).unwrap().handle();
            match name {
                "private" => assert!(handle.is_err()),
                _ => assert_eq!(handle.unwrap().is_isolated(), name == "isolated"),
            }
        }
    }
    assert_eq!(Pool::named("other").unwrap().provider().name(), "near");
}

#[test]
fn settings_that_contradict_the_name_are_errors() {
    if ran_alone("memory_names::settings_that_contradict_the_name_are_errors") {
        return;
    }
    init(
        "[pool.shared]\nprovider = \"host\"\n[pool.isolated]\nkind = \"slab\"\n\
         [provider.private]\nvisibility = \"shared\"",
    );
    for (pool, part) in [
        (Pool::shared(), "pool \"shared\": provider: "),
        (Pool::isolated(), "pool \"isolated\": kind: "),
        (Pool::private(), "provider \"private\": visibility: "),
        (Pool::named("shared"), "pool \"shared\": provider: "),
    ] {
        let error = pool.unwrap_err().to_string();
        assert!(error.starts_with(part), "{error}");
    }
}
