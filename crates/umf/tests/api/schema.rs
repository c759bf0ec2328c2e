//! The settings of umf as its sources say them: today's keys and variables, with their older names.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

use umf::host::HostSettings;
use umf::pools::SlabSettings;
use umf::settings::{Context, Error, Loader, Origin, Warning};
use umf::settings::{Leases, LogLevel, LogOutput, PoolKeys, Settings};
use umf::{Exchange, Mode};

/// The settings of variables.
fn of<const N: usize>(variables: [(&str, &str); N]) -> Result<Settings, Error> {
    let context =
        variables.into_iter().fold(Context::empty(), |all, (name, value)| all.with_variable(name, value));
    Settings::load(Loader::with_context(context))
}

fn slab(settings: &Settings, name: &str) -> SlabSettings {
    settings.loaded().set("pool", name).read().unwrap()
}

#[test]
fn variables_of_every_shape_are_read() {
    let settings = of([
        ("UMF_IPC_EXCHANGE", "procfs,pidfd"),
        ("UMF_IPC_PTRACER", "any"),
        ("UMF_IPC_MAX_OPENED_HANDLES", "7"),
        ("UMF_IPC_MAX_OPENED_BYTES", "64MiB"),
        ("UMF_IPC_IMPORTER_SHARDS", "8"),
        ("UMF_IPC_OPEN_TIMEOUT_MS", "5"),
        ("UMF_IPC_LEASES", "off"),
        ("UMF_LINK_ENGINE", "cma"),
        ("UMF_LINK_TIMEOUT_MS", "9"),
        ("UMF_REMOTE_PROVIDER", "tcp"),
        ("UMF_REMOTE_LOCAL", "false"),
        ("UMF_REMOTE_SMALL_READ", "4KiB"),
        ("UMF_REMOTE_TIMEOUT_MS", "700"),
        ("UMF_SHARED_LIMITS_JOB", "8GiB"),
        ("UMF_POOL_DEFAULTS_SHARED_LIMIT", "job"),
        ("UMF_POOL_DEFAULTS_PROVIDER", "near"),
        ("UMF_POOL_SMALL_ON_FREE", "release"),
        ("UMF_POOL_SMALL_RELEASE_AFTER_MS", "20"),
        ("UMF_POOL_SMALL_RELEASE_THREAD", "true"),
        ("UMF_POOL_SMALL_TRACE", "2"),
        ("UMF_PROVIDER_NEAR_VISIBILITY", "shared"),
        ("UMF_PROVIDER_NEAR_NUMA", "split"),
        ("UMF_PROVIDER_NEAR_NUMA_NODES", "0,2-3"),
        ("UMF_PROVIDER_NEAR_NUMA_WEIGHTS", "0:3, 1:1"),
        ("UMF_PROVIDER_NEAR_NUMA_SPACE", "highest-bandwidth@node1, all"),
        ("UMF_PROVIDER_NEAR_ISOLATE", "yes"),
    ])
    .unwrap();
    let ipc = &settings.ipc;
    assert_eq!(ipc.exchange, Exchange::Order(vec![Mode::Procfs, Mode::Pidfd]));
    assert_eq!((ipc.max_opened_handles, ipc.max_opened_bytes, ipc.importer_shards), (7, 64 << 20, Some(8)));
    assert_eq!((ipc.open_timeout.as_millis(), ipc.leases), (5, Leases::Off));
    assert_eq!(settings.link.engine.unwrap().as_str(), "cma");
    assert_eq!(settings.link.timeout.unwrap().as_millis(), 9);
    let remote = &settings.remote;
    assert_eq!((remote.provider.as_str(), remote.local, remote.small_read), ("tcp", false, 4096));
    assert_eq!(remote.timeout.as_millis(), 700);
    let keys = settings.pool("small").unwrap();
    assert_eq!((keys.shared_limit.as_str(), keys.provider.as_str()), ("job", "near"));
    assert_eq!(keys.on_free.as_str(), "release");
    let near: HostSettings = settings.loaded().set("provider", "near").read().unwrap();
    assert_eq!(near.numa_nodes, [0, 2, 3]);
    assert_eq!((near.numa_weights.len(), near.numa_space.len(), near.isolate), (2, 2, true));
    assert_eq!(near.numa_space[0].to_string(), "highest-bandwidth@node1");
}

#[test]
fn files_have_lists_and_tables() {
    let set = "[provider.a]\nnuma_nodes = [0, 2]\nnuma_weights = [{ node = 0, weight = 3 }]\nnuma_space = [\"all\"]\n\
               [ipc]\nexchange = [\"socket\"]\nptracer = 7\nimporter_shards = \"auto\"\n[provider.b]\nnuma_nodes = []\n";
    let settings = of([("UMF_SET", set)]).unwrap();
    let host: HostSettings = settings.loaded().set("provider", "a").read().unwrap();
    assert_eq!((host.numa_nodes, host.numa_weights.len()), (vec![0, 2], 1));
    assert_eq!(settings.ipc.exchange, Exchange::only(Mode::Socket));
    for wrong in [
        "ipc.exchange = []",
        "ipc.exchange = [\"pidfd\", 1]",
        "ipc.exchange = \"pidfd,pidfd\"",
        "ipc.ptracer = 0",
        "ipc.ptracer = -5",
        "ipc.importer_shards = 3",
        "ipc.open_timeout_ms = 0",
        "pool.defaults.slab_min_size = 0",
        "pool.defaults.min_block_size = 24",
        "pool.defaults.kind = \"\"",
        "pool.defaults.trace = 4",
        "pool.defaults.leak_sample = 0",
        "provider.host.huge_page_size = 3",
        "provider.host.numa_nodes = [5000]",
        "provider.host.numa_nodes = [1, 1]",
        "provider.host.numa_weights = [{ node = 0 }]",
        "provider.host.numa_weights = \"0:0\"",
        "provider.host.numa_space = [\"fastest\"]",
        "provider.host.numa_space = [1]",
        "provider.host.name = \"a/b\"",
        "provider.dma-buf.heap = \"../x\"",
        "link.eager_max = \"1MiB\"",
        "link.engine = \"fast\"",
        "log.output = \"file,\"",
        "log.timestamp = 2",
        "shared_limits.job = \"lots\"",
    ] {
        let error = of([("UMF_SET", wrong)]).unwrap_err();
        assert!(matches!(error, Error::BadValue { .. }), "{wrong}: {error}");
    }
}

#[test]
fn legacy_names_keep_their_meaning() {
    let settings = of([
        ("UMF_MAX_OPENED_IPC_HANDLES", "10"),
        ("UMF_MAX_CREATED_IPC_HANDLES", "many"),
        ("UMF_POOL_DEFAULTS_MIN_BUCKET_SIZE", "64"),
        ("UMF_LOG", "level:debug;flush:info;output:file,/tmp/umf.log;timestamp:yes"),
        ("UMF_LOG_LEVEL", "warn"),
        ("UMF_CONF", "x"),
    ])
    .unwrap();
    assert_eq!((settings.ipc.max_opened_handles, settings.ipc.max_created_handles), (10, 0));
    assert_eq!(
        settings.origin("ipc.max_opened_handles"),
        Origin::Environment("UMF_MAX_OPENED_IPC_HANDLES".to_owned())
    );
    let default = slab(&of([]).unwrap(), "any");
    assert_eq!(format!("{:?}", slab(&settings, "any")), format!("{:?}", default.min_block_size(64)));
    let log = &settings.log;
    assert_eq!((log.level, log.flush, log.timestamp), (LogLevel::Warning, LogLevel::Info, true));
    assert_eq!(log.output, LogOutput::File("/tmp/umf.log".into()));
    assert!(matches!(settings.loaded().warnings(), [Warning::BadLegacyVariable { .. }]));
    assert_eq!(settings.loaded().recognised()[0].variable, "UMF_CONF");
    // Without an output nothing is logged, as ever.
    for text in ["level:debug", "loud", "output:stderr;level:loud"] {
        let settings = of([("UMF_LOG", text)]).unwrap();
        assert_eq!((&settings.log.output, settings.log.level), (&LogOutput::Off, LogLevel::Error));
        assert!(settings.loaded().warnings()[0].to_string().contains("output:stderr|stdout|file,<path>"));
    }
}

#[test]
fn references_name_what_exists() {
    for (set, text) in [
        (
            "pool.small.provider = \"hots\"",
            "UMF_SET: pool.small.provider = \"hots\": does not exist; define it, or use",
        ),
        (
            "pool.small.shared_limit = \"job\"",
            "UMF_SET: pool.small.shared_limit = \"job\": does not exist; none is",
        ),
    ] {
        let error = of([("UMF_SET", set)]).unwrap_err().to_string();
        assert!(error.starts_with(text), "{error}");
    }
    // A set of an unknown kind is for another program.
    assert!(of([("UMF_SET", "[pool.small]\nkind = \"acme\"\nprovider = \"theirs\"")]).is_ok());
}

#[test]
fn rows_can_be_read_back() {
    let set = "[ipc]\nexchange = [\"socket\", \"procfs\"]\nptracer = 7\n[log]\noutput = \"file,/tmp/x\"\n\
               [provider.host]\nnuma_nodes = [1, 0]\n[provider.plugin]\nparams = { a = [true, 1.0, \"q\\\"\\\\\\n\"] }\n\
               [pool.small]\nkind = \"proxy\"\nmax_held = \"3KiB\"\n";
    let first = of([("UMF_SET", set)]).unwrap();
    let rows = first.loaded().rows();
    let is_code =
        |key: &str| key.starts_with("provider.") && (key.ends_with(".path") || key.ends_with(".symbol"));
    let shown = rows.iter().filter(|row| !row.value.is_empty() && !is_code(&row.key));
    let context = shown.fold(Context::empty(), |all, row| all.with_variable(&row.variable, &row.value));
    let second = Settings::load(Loader::with_context(context)).unwrap();
    let values = |settings: &Settings| -> Vec<_> {
        settings.loaded().rows().into_iter().map(|row| (row.key, row.value)).collect()
    };
    assert_eq!(values(&first), values(&second));
}

/// The keys of a kind that a pool of another kind has inherited are left out, and reach no pool.
#[test]
fn defaults_are_for_kinds_that_have_them() {
    let settings =
        of([("UMF_SET", "[pool.defaults]\nmax_cached = 1\nmemory_limit = 2\n[pool.p]\nkind = \"proxy\"\n")])
            .unwrap();
    let keys: PoolKeys = settings.pool("p").unwrap();
    assert_eq!(keys.memory_limit, 2);
    assert!(settings.loaded().rows().iter().all(|row| row.key != "pool.p.max_cached"));
    let error = of([("UMF_POOL_P_KIND", "proxy"), ("UMF_POOL_P_MAX_CACHED", "1")]).unwrap_err().to_string();
    assert!(error.contains("it is a key of kind \"slab\""), "{error}");
}
