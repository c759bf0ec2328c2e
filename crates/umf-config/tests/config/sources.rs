//! Which source wins, and how sets inherit.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

use std::fs;

use crate::sandbox::Sandbox;
use crate::schema::{Arena, Common, Host, Ipc, Plugin, Slab, schema};
use umf_config::{Context, Loader, Origin, Warning};

#[test]
fn each_source_overrides_earlier_ones() {
    let sandbox = Sandbox::new();
    for (number, path) in [sandbox.system(), sandbox.user(), sandbox.cwd()].into_iter().enumerate() {
        fs::write(&path, format!("[ipc]\nmax_handles = {number}\n")).unwrap();
        sandbox.set_mode(&path, 0o644);
        let loaded = sandbox.loaded();
        assert_eq!(loaded.section::<Ipc>("ipc").unwrap().max_handles, u32::try_from(number).unwrap());
        assert_eq!(loaded.origin("ipc.max_handles"), Origin::File(format!("{}:2", path.display())));
    }
    let sandbox = sandbox.variable("UMF_SET", "ipc.max_handles = 3");
    assert_eq!(sandbox.loaded().origin("ipc.max_handles"), Origin::Environment("UMF_SET".to_owned()));
    let sandbox = sandbox.variable("UMF_IPC_MAX_HANDLES", "4");
    let loaded = sandbox.loader().set("ipc.leases", false).load(schema()).unwrap();
    let ipc = loaded.section::<Ipc>("ipc").unwrap();
    assert_eq!((ipc.max_handles, ipc.leases), (4, false));
    assert_eq!(loaded.origin("ipc.leases"), Origin::Program);
    assert_eq!(loaded.origin("ipc.limit"), Origin::Default);
    assert_eq!(loaded.files().count(), 3);
}

#[test]
fn set_inherits_the_keys_that_its_kind_has() {
    let file = "[pool.defaults]\nmax_cached = 1\narenas = 3\nmemory_limit = 9\n[pool.a]\nkind = \"arena\"\n[pool.s]\n";
    let loaded = Sandbox::with_file(file).loaded();
    let set = loaded.set("pool", "a");
    assert_eq!((set.kind(), set.read::<Arena>().unwrap().arenas), ("arena", 3));
    assert_eq!(set.read::<Common>().unwrap().memory_limit, 9);
    assert_eq!(loaded.set("pool", "s").read::<Slab>().unwrap().max_cached, 1);
    assert_eq!(loaded.set("pool", "undeclared").read::<Slab>().unwrap().max_cached, 1);
    assert_eq!(loaded.origin("pool.s.max_cached"), loaded.origin("pool.defaults.max_cached"));
    let names: Vec<_> =
        loaded.rows().into_iter().map(|row| row.key).filter(|key| key.starts_with("pool.a.")).collect();
    let expected =
        ["kind", "provider", "memory_limit", "arenas", "capacity"].map(|key| format!("pool.a.{key}"));
    assert_eq!(names, expected);
    // `defaults` can set the kind.
    let loaded = Sandbox::with_file("[pool.defaults]\nkind = \"arena\"\n[pool.a]\narenas = 3\n").loaded();
    assert_eq!((loaded.set("pool", "a").kind(), loaded.set("pool", "other").kind()), ("arena", "arena"));
    // Two kinds have this key. Its value is an error if neither kind accepts it, or if the kind of
    // the set does not.
    assert!(Sandbox::with_file("[pool.defaults]\ncapacity = true\n").load().is_err());
    let loaded = Sandbox::with_file("[pool.defaults]\ncapacity = 4\n[pool.a]\nkind = \"arena\"\n").loaded();
    let error = loaded.set("pool", "a").read::<Arena>().unwrap_err().to_string();
    assert!(error.contains("umf.toml:2: pool.a.capacity = 4"), "{error}");
}

#[test]
fn set_of_unknown_kind_is_kept_unchecked() {
    let file = "[pool.theirs]\nkind = \"acme\"\ndepth = { of = [1, 2] }\n";
    let loaded = Sandbox::with_file(file).loaded();
    let set = loaded.set("pool", "theirs");
    assert_eq!((set.kind(), set.is_known()), ("acme", false));
    let rows: Vec<_> = loaded.rows().into_iter().filter(|row| row.unread).collect();
    assert_eq!((rows[0].key.as_str(), rows[0].value.as_str()), ("pool.theirs.depth", "{ of = [1, 2] }"));
    assert_eq!(rows[1].key, "pool.theirs.kind");
}

#[test]
fn settings_of_other_builds_are_kept_unchecked() {
    let file = "[link]\nengine = 7\n[provider.gpu]\ndevice = 1\n";
    let loaded = Sandbox::with_file(file).variable("UMF_LINK_ENGINE", "cma").loaded();
    assert_eq!(loaded.warnings(), []);
    let set = loaded.set("provider", "gpu");
    assert_eq!((set.kind(), set.is_known()), ("gpu", false));
}

#[test]
fn sources_override_presets_and_presets_override_defaults() {
    let defaults = "[pool.defaults]\nkind = \"arena\"\nprovider = \"host\"\n";
    for (own, expected) in [
        ("", ("proxy", "alone")),
        ("[pool.alone]\nmemory_limit = 1\n", ("proxy", "alone")),
        ("[pool.alone]\nkind = \"slab\"\nprovider = \"plugin\"\n", ("slab", "plugin")),
    ] {
        let set = Sandbox::with_file(&format!("{defaults}{own}")).loaded().set("pool", "alone");
        let provider = set.read::<Common>().unwrap().provider;
        assert_eq!((set.kind(), provider.as_str()), expected, "{own}");
    }
    let nodes = |loaded: umf_config::Loaded| loaded.set("provider", "alone").read::<Host>().unwrap().nodes;
    assert_eq!(nodes(Sandbox::new().loaded()), [7]);
    assert_eq!(nodes(Sandbox::new().variable("UMF_PROVIDER_ALONE_NODES", "1").loaded()), [1]);
}

#[test]
fn variable_finds_name_and_key() {
    let sandbox = Sandbox::with_file("[pool.small-ones]\n")
        .variable("UMF_POOL_SMALL_ONES_MEMORY_LIMIT", " 64KiB ")
        .variable("UMF_POOL_NEW_ONE_KIND", "arena")
        .variable("UMF_POOL_NEW_ONE_ARENAS", "2")
        .variable("UMF_PROVIDER_PLUGIN_PARAMS", "{ depth = 2, list = [1, 'a'] }")
        .variable("UMF_PROVIDER_HOST_NODES", "0,2-3")
        .variable("UMF_IPC_EXCHANGE", "procfs, pidfd")
        .variable("UMF_IPC_LEASES", "no")
        .variable("UMF_SHARED_LIMITS_JOB", "8GiB")
        .variable("UMF_SET", "shared_limits.\"UPPER\" = 5\n[pool.UPPER]\ncapacity = 9");
    let loaded = sandbox.loaded();
    let limit = |name| loaded.set("pool", name).read::<Common>().unwrap().memory_limit;
    assert_eq!(limit("small-ones"), 64 << 10);
    assert_eq!(loaded.set("pool", "new_one").read::<Arena>().unwrap().arenas, 2);
    let params = loaded.set("provider", "plugin").read::<Plugin>().unwrap().params;
    assert_eq!(serde_json::json!(params), serde_json::json!({ "depth": 2, "list": [1, "a"] }));
    assert_eq!(loaded.set("provider", "host").read::<Host>().unwrap().nodes, [0, 2, 3]);
    let ipc = loaded.section::<Ipc>("ipc").unwrap();
    assert_eq!((ipc.exchange, ipc.leases), (vec!["procfs".to_owned(), "pidfd".to_owned()], false));
    let limits = loaded.values::<umf_config::ByteSize>("shared_limits").unwrap();
    assert_eq!((limits["job"].get(), limits["UPPER"].get()), (8 << 30, 5));
    assert_eq!(loaded.set("pool", "UPPER").read::<Slab>().unwrap().capacity, 9);
    assert_eq!(loaded.warnings(), []);
}

#[test]
fn value_of_a_variable_stays_in_its_line() {
    for text in ["{}\n[ipc]\nmax_handles = 3", "1", "{", "{} # x\nother = 1"] {
        let error = Sandbox::new().variable("UMF_PROVIDER_PLUGIN_PARAMS", text).load().unwrap_err();
        assert!(matches!(error, umf_config::Error::BadValue { .. }), "{error}");
    }
}

#[test]
fn legacy_variables_keep_their_meaning() {
    let limit = |sandbox: Sandbox| {
        let loaded = sandbox.loaded();
        (loaded.section::<Ipc>("ipc").unwrap().max_handles, loaded.warnings().to_vec())
    };
    let file = || Sandbox::with_file("[ipc]\nmax_handles = 3\n");
    assert_eq!(limit(file().variable("UMF_MAX_HANDLES", "10")), (10, Vec::new()));
    let (value, warnings) = limit(file().variable("UMF_MAX_HANDLES", "many"));
    assert!(value == 0 && warnings[0].to_string().contains("many"), "{warnings:?}");
    let (value, warnings) =
        limit(file().variable("UMF_MAX_HANDLES", "1").variable("UMF_IPC_MAX_HANDLES", "2"));
    assert!(value == 2 && matches!(warnings[..], [Warning::Shadowed { .. }]), "{warnings:?}");
    let loaded = Sandbox::new().variable("UMF_PROXY", "x").variable("UMF_IPC_MAX_HANDELS", "1").loaded();
    assert_eq!(loaded.recognised()[0].note, "handled elsewhere");
    let [Warning::UnknownVariable { closest, .. }] = loaded.warnings() else {
        panic!("{:?}", loaded.warnings())
    };
    assert_eq!(closest.as_deref(), Some("UMF_IPC_MAX_HANDLES"));
}

#[test]
fn secure_process_reads_the_system_file_only() {
    let mut sandbox = Sandbox::with_file("[ipc]\nmax_handles = 2\n");
    fs::write(sandbox.system(), "[ipc]\nmax_handles = 1\n").unwrap();
    sandbox.write_cwd("[ipc]\nmax_handles = 3\n");
    for (name, value) in [
        ("UMF_IPC_MAX_HANDLES", "4"),
        ("UMF_SET", "ipc.max_handles = 5"),
        ("UMF_MAX_HANDLES", "6"),
        ("UMF_TOML", "/no/such/file"),
        ("UMF_PROXY", "x"),
        ("UMF_NONSENSE", "x"),
    ] {
        sandbox = sandbox.variable(name, value);
    }
    sandbox.context.secure = true;
    let loaded = sandbox.loaded();
    assert_eq!(loaded.section::<Ipc>("ipc").unwrap().max_handles, 1);
    assert_eq!((loaded.recognised(), loaded.warnings()), (&[][..], &[][..]));
}

#[test]
fn listing_sets_nothing_and_uncommented_sets_the_defaults() {
    let listing = schema().listing("Every key.");
    let defaults = Loader::with_context(Context::empty()).load(schema()).unwrap();
    let values = |loaded: &umf_config::Loaded| -> Vec<_> {
        let rows = loaded.rows().into_iter().filter(|row| !row.key.starts_with("provider."));
        rows.map(|row| (row.key, row.value)).collect()
    };
    let commented = Sandbox::with_file(&listing).loaded();
    assert_eq!(values(&commented), values(&defaults));
    assert!(commented.rows().iter().all(|row| row.origin == Origin::Default));
    let uncommented: String = listing
        .lines()
        .map(|line| {
            line.strip_prefix('#')
                .filter(|key| key.starts_with(|c: char| c.is_ascii_lowercase()))
                .unwrap_or(line)
        })
        .flat_map(|line| [line, "\n"])
        // Two kinds have this key with different types, so only one of its lines can be set.
        .filter(|line| *line != "capacity = \"\"")
        .collect();
    let uncommented = Sandbox::with_file(&uncommented).loaded();
    assert_eq!(values(&uncommented).len(), values(&defaults).len());
    let unset: Vec<_> = uncommented
        .rows()
        .into_iter()
        .filter(|row| row.origin == Origin::Default)
        .map(|row| row.key)
        .collect();
    assert_eq!(unset, ["provider.plugin.params"], "an empty table has no origin");
}
