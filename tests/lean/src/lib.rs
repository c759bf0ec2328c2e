//! A program built without most features. It ignores settings of missing features, unless a pool
//! uses them. The error then names the feature.

#![cfg(test)]

use umf::Pool;
use umf::settings::{Context, Loader};

const SETTINGS: &str = r#"
[log]
output = "off"
[provider.cuda]
device = 1
[provider.spread]
numa = "interleave"
numa_space = ["all"]
[pool.spread]
provider = "spread"
[pool.gpu]
provider = "level-zero"
[pool.je]
kind = "jemalloc"
"#;

#[test]
fn error_names_missing_feature_and_unused_settings_are_ignored() -> umf::Result<()> {
    umf::init(Loader::with_context(Context::empty().with_variable("UMF_SET", SETTINGS)))?;
    for (pool, feature) in [
        (Pool::over("cuda"), "cuda"),
        (Pool::named("gpu"), "level-zero"),
        (Pool::named("je"), "jemalloc"),
        (Pool::named("spread"), "topology"),
    ] {
        let error = pool.map_or_else(|error| error.to_string(), |pool| format!("{pool:?}"));
        assert!(error.contains(&format!("features = [\"{feature}\"]")), "{error}");
    }
    let pool = Pool::shared()?;
    let block = pool.allocate(5)?;
    block.write(0, b"hello")?;
    let mut text = [0; 5];
    umf::open(&block.handle()?)?.read(0, &mut text)?;
    assert_eq!(&text, b"hello");
    Ok(())
}
