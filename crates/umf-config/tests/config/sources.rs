//! Which source wins, and what is remembered of it.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

use std::fs;
use std::os::unix::fs::PermissionsExt;

use crate::sandbox::Sandbox;
use umf_config::{Context, Loader, Origin, Settings, Warning};

#[test]
fn nothing_set_is_the_defaults() {
    let loaded = Loader::with_context(Context::empty()).load().unwrap();
    assert_eq!(loaded.settings, Settings::default());
    assert_eq!(loaded.warnings, []);
    assert!(loaded.settings.report().iter().all(|row| row.origin == Origin::Default));
}

#[test]
fn each_source_wins_over_those_before_it() {
    let sandbox = Sandbox::new();
    let text = |value: u32, keys: usize| {
        let names = ["max_created_handles", "max_opened_handles", "open_timeout_ms"];
        let lines: String = names[..keys].iter().map(|name| format!("{name} = {value}\n")).collect();
        format!("[ipc]\n{lines}")
    };
    fs::write(sandbox.system(), text(1, 3)).unwrap();
    fs::write(sandbox.user(), text(2, 2)).unwrap();
    sandbox.write_cwd(&text(3, 1));
    let settings = sandbox.loaded().settings;
    let ipc = &settings.ipc;
    assert_eq!((ipc.max_created_handles, ipc.max_opened_handles, ipc.open_timeout_ms), (3, 2, 1));
    assert_eq!(settings.origin("ipc.max_created_handles"), &Origin::File(sandbox.cwd()));
    assert_eq!(settings.origin("ipc.max_opened_handles"), &Origin::File(sandbox.user()));
    assert_eq!(settings.origin("ipc.open_timeout_ms"), &Origin::File(sandbox.system()));
    assert_eq!(settings.origin("ipc.limit"), &Origin::Default);
    assert_eq!(settings.files().collect::<Vec<_>>(), [sandbox.system(), sandbox.user(), sandbox.cwd()]);

    let sandbox = sandbox.variable("UMF_IPC_MAX_CREATED_HANDLES", "4");
    let settings = sandbox.loaded().settings;
    assert_eq!(settings.ipc.max_created_handles, 4);
    let variable = Origin::Environment("UMF_IPC_MAX_CREATED_HANDLES".to_owned());
    assert_eq!(settings.origin("ipc.max_created_handles"), &variable);

    let settings = sandbox.loader().set("ipc.max_created_handles", 5).load().unwrap().settings;
    assert_eq!(settings.ipc.max_created_handles, 5);
    assert_eq!(settings.origin("ipc.max_created_handles"), &Origin::Builder);
}

#[test]
fn umf_toml_replaces_the_other_files_and_must_exist() {
    let sandbox = Sandbox::with_file("[ipc]\nlimit = \"hard\"\nopen_timeout_ms = 7\n");
    fs::write(sandbox.cwd().with_file_name("mine.toml"), "[ipc]\nopen_timeout_ms = 9\n").unwrap();
    let sandbox = sandbox.variable("UMF_TOML", "mine.toml");
    let ipc = sandbox.loaded().settings.ipc;
    assert_eq!((ipc.limit.as_str(), ipc.open_timeout_ms), ("soft", 9));

    let sandbox = sandbox.variable("UMF_TOML", "/no/such/umf.toml");
    let refusal = sandbox.refusal();
    assert!(refusal.contains("/no/such/umf.toml") && refusal.contains("UMF_TOML"), "{refusal}");
}

#[test]
fn a_named_pool_takes_from_the_defaults_what_it_does_not_set_from_any_source() {
    let sandbox = Sandbox::with_file(
        "[pool.small-ones]\ncapacity = 9\n[pool.defaults]\nslab_min_size = \"1MiB\"\nmin_bucket_size = 64\n",
    )
    .variable("UMF_POOL_DEFAULTS_TRACE", "2")
    .variable("UMF_POOL_SMALL_ONES_KIND", "proxy");
    let settings = sandbox.loaded().settings;
    assert_eq!(settings.pool.named.len(), 1);
    let pool = settings.pool.get("small-ones");
    assert_eq!((pool.capacity, pool.slab_min_size.get(), pool.trace), (9, 1 << 20, 2));
    assert_eq!((pool.kind.as_str(), pool.min_block_size.get()), ("proxy", 64));
    assert_eq!(settings.origin("pool.small-ones.slab_min_size"), &Origin::File(sandbox.user()));
    let variable = Origin::Environment("UMF_POOL_DEFAULTS_TRACE".to_owned());
    assert_eq!(settings.origin("pool.small-ones.trace"), &variable);
    assert_eq!(settings.pool.get("other"), &settings.pool.defaults);
}

#[test]
fn the_environment_can_name_new_sets_and_every_shape() {
    let settings = Sandbox::new()
        .variable("UMF_PROVIDER_NEAR_NUMA", "split")
        .variable("UMF_PROVIDER_NEAR_NUMA_NODES", "0,2-3")
        .variable("UMF_PROVIDER_NEAR_NUMA_WEIGHTS", "0:3,1:1")
        .variable("UMF_PROVIDER_NEAR_NUMA_SPACE", "highest-bandwidth, all")
        .variable("UMF_PROVIDER_NEAR_ISOLATE", "yes")
        .variable("UMF_PROVIDER_NEAR_PARAMS", "{ depth = 2, list = [1, 'a'] }")
        .variable("UMF_POOL_DEFAULTS_PROVIDER", "near")
        .variable("UMF_POOL_DEFAULTS_SHARED_LIMIT", "job")
        .variable("UMF_SHARED_LIMITS_JOB", "8GiB")
        .variable("UMF_IPC_EXCHANGE", "procfs,pidfd")
        .loaded()
        .settings;
    let near = &settings.provider["near"];
    assert_eq!(near.numa_nodes, [0, 2, 3]);
    assert_eq!(near.numa_weights.len(), 2);
    assert_eq!(near.numa_space.len(), 2);
    let shown = serde_json::to_value(near).unwrap();
    assert_eq!(shown["numa_space"], serde_json::json!(["highest-bandwidth", "all"]));
    assert!(near.isolate);
    let json = serde_json::to_value(&near.params).unwrap();
    assert_eq!(json, serde_json::json!({ "depth": 2, "list": [1, "a"] }));
    assert_eq!(settings.shared_limits["job"].get(), 8 << 30);
    assert!(settings.provider.contains_key("host"));
}

#[test]
fn params_of_a_foreign_kind_arrive_untouched_and_merge() {
    let sandbox = Sandbox::with_file(
        "[provider.mine]\nkind = \"acme\"\n[provider.mine.params]\n\"a.b[99999999999]\" = 1.5\nwhen = 2020-01-01\ndeep.er = true\n",
    );
    sandbox.write_cwd("[provider.mine.params]\ndeep.est = -1\n");
    let settings = sandbox.loaded().settings;
    let expected = serde_json::json!({
        "a.b[99999999999]": 1.5, "when": "2020-01-01", "deep": { "er": true, "est": -1 }
    });
    assert_eq!(serde_json::to_value(&settings.provider["mine"].params).unwrap(), expected);
    assert_eq!(settings.origin("provider.mine.params"), &Origin::File(sandbox.cwd()));

    let loader = sandbox.loader().set("provider.mine.params.deep", "flat");
    let settings = loader.load().unwrap().settings;
    assert_eq!(settings.provider["mine"].params["deep"].as_str(), Some("flat"));
}

#[test]
fn a_report_row_reads_back_as_what_it_shows() {
    let sandbox = Sandbox::with_file(
        "[ipc]\nexchange = [\"socket\", \"procfs\"]\nptracer = 7\n[log]\noutput = \"file,/tmp/x\"\n\
         [provider.host]\nnuma_nodes = [1, 0]\nparams = { a = [true, 1.0, \"q\\\"\\\\\\n\"] }\n",
    );
    let first = sandbox.loaded().settings;
    let mut context = Context::empty();
    for row in first.report() {
        // A plugin's keys are refused from variables; they are empty here.
        if !row.value.is_empty() {
            context = context.with_variable(row.variable, row.value);
        }
    }
    let second = Loader::with_context(context).load().unwrap().settings;
    assert_eq!(
        (&first.ipc, &first.pool, &first.provider, &first.log),
        (&second.ipc, &second.pool, &second.provider, &second.log)
    );
    let json = serde_json::to_value(first.report()).unwrap();
    assert_eq!(json[0]["key"], "ipc.exchange");
    assert_eq!(json[0]["value"], "socket,procfs");
    assert_eq!(json[0]["origin"]["kind"], "file");
    assert_eq!(json[0]["variable"], "UMF_IPC_EXCHANGE");
    assert!(serde_json::to_string(&first).is_ok());
}

#[test]
fn a_secure_process_heeds_only_the_system_and_itself() {
    let sandbox = Sandbox::with_file("[ipc]\nopen_timeout_ms = 2\n");
    fs::write(sandbox.system(), "[ipc]\nopen_timeout_ms = 1\n").unwrap();
    sandbox.write_cwd("[ipc]\nopen_timeout_ms = 3\n");
    let mut sandbox = sandbox
        .variable("UMF_IPC_OPEN_TIMEOUT_MS", "4")
        .variable("UMF_MAX_OPENED_IPC_HANDLES", "4")
        .variable("UMF_LOG", "output:stderr")
        .variable("UMF_CONF", "x")
        .variable("UMF_NONSENSE", "x")
        .variable("UMF_TOML", "/no/such/file");
    sandbox.context.secure = true;
    let loaded = sandbox.loaded();
    assert_eq!(loaded.settings.ipc.open_timeout_ms, 1);
    assert_eq!(loaded.settings.ipc.max_opened_handles, 0);
    assert_eq!(loaded.settings.log, Settings::default().log);
    assert_eq!(loaded.settings.recognised(), []);
    assert_eq!(loaded.warnings, []);
    let set = sandbox.loader().set("ipc.open_timeout_ms", 5).load().unwrap();
    assert_eq!(set.settings.ipc.open_timeout_ms, 5);
}

#[test]
fn a_file_that_may_not_be_read_is_a_warning_unless_named() {
    let sandbox = Sandbox::with_file("[ipc]\n");
    fs::set_permissions(sandbox.user(), fs::Permissions::from_mode(0o000)).unwrap();
    if fs::File::open(sandbox.user()).is_ok() {
        return; // Root reads everything.
    }
    assert_eq!(sandbox.loaded().warnings, [Warning::UnreadableFile { path: sandbox.user() }]);
    let named = sandbox.user().into_os_string();
    assert!(sandbox.variable("UMF_TOML", named).refusal().contains("cannot read"));
}

const OTHER_USER: u32 = 65534;

/// The default of `ipc.open_timeout_ms`, and what files of these tests set.
const DEFAULT: u64 = 2000;
const SET: &str = "[ipc]\nopen_timeout_ms = 3\n";

#[test]
fn working_directory_file_of_another_user_is_ignored_with_a_warning() {
    const TEST: &str = "working_directory_file_of_another_user_is_ignored_with_a_warning";
    let mut sandbox = Sandbox::new();
    sandbox.write_cwd(SET);
    let own = sandbox.context.user;
    let owner = if own == 0 {
        // Root's file counts for every user.
        sandbox.context.user = OTHER_USER;
        assert_eq!(sandbox.loaded().settings.ipc.open_timeout_ms, 3);
        sandbox.context.user = own;
        if let Err(error) = std::os::unix::fs::chown(sandbox.cwd(), Some(OTHER_USER), None) {
            println!("umf-skip: {TEST}: root cannot give a file to another user here: {error}");
            return;
        }
        OTHER_USER
    } else {
        // The file stays, and the process is another user's.
        sandbox.context.user = own + 1;
        own
    };
    let loaded = sandbox.loaded();
    assert_eq!(loaded.settings.ipc.open_timeout_ms, DEFAULT);
    assert_eq!(loaded.settings.files().count(), 0);
    let user = sandbox.context.user;
    assert_eq!(loaded.warnings, [Warning::UntrustedFile { path: sandbox.cwd(), owner, mode: 0o644, user }]);
    let text = loaded.warnings[0].to_string();
    for part in ["cwd/umf.toml", &format!("uid {owner}"), "0644", &format!("uid {user}"), "chown", "UMF_TOML"]
    {
        assert!(text.contains(part), "{part:?} is missing in: {text}");
    }
    assert_eq!(sandbox.variable("UMF_TOML", "umf.toml").loaded().settings.ipc.open_timeout_ms, 3);
}

#[test]
fn working_directory_file_that_other_users_can_write_is_ignored_with_a_warning() {
    let sandbox = Sandbox::new();
    sandbox.write_cwd(SET);
    let user = sandbox.context.user;
    for mode in [0o664, 0o646, 0o666] {
        sandbox.set_mode_of_cwd(mode);
        let loaded = sandbox.loaded();
        assert_eq!(loaded.settings.ipc.open_timeout_ms, DEFAULT, "{mode:o}");
        let warning = Warning::UntrustedFile { path: sandbox.cwd(), owner: user, mode, user };
        assert_eq!(loaded.warnings, [warning]);
    }
    sandbox.set_mode_of_cwd(0o600);
    let loaded = sandbox.loaded();
    assert_eq!((loaded.settings.ipc.open_timeout_ms, loaded.warnings), (3, Vec::new()));
    // The system's and the user's files may belong to any user, and have any mode.
    let sandbox = Sandbox::with_file(SET);
    fs::set_permissions(sandbox.user(), fs::Permissions::from_mode(0o666)).unwrap();
    assert_eq!(sandbox.loaded().settings.ipc.open_timeout_ms, 3);
}

/// Other users can make each of these in `/tmp`.
#[test]
fn links_pipes_and_sockets_in_the_working_directory_do_not_stop_a_program() {
    let sandbox = Sandbox::new();
    for target in ["/etc/passwd", "umf.toml", "/no/such/file", "other.toml"] {
        sandbox.write_cwd(SET);
        fs::rename(sandbox.cwd(), sandbox.cwd().with_file_name("other.toml")).unwrap();
        std::os::unix::fs::symlink(target, sandbox.cwd()).unwrap();
        let loaded = sandbox.loaded();
        assert_eq!(loaded.settings.ipc.open_timeout_ms, DEFAULT, "{target}");
        assert_eq!(loaded.warnings, [Warning::LinkedFile { path: sandbox.cwd() }], "{target}");
        fs::remove_file(sandbox.cwd()).unwrap();
    }

    let listener = std::os::unix::net::UnixListener::bind(sandbox.cwd()).unwrap();
    assert_eq!(sandbox.loaded().warnings, [Warning::UnreadableFile { path: sandbox.cwd() }]);
    drop(listener);
    fs::remove_file(sandbox.cwd()).unwrap();

    let status = std::process::Command::new("mkfifo").arg(sandbox.cwd()).status().unwrap();
    assert!(status.success());
    sandbox.set_mode_of_cwd(0o666);
    assert!(matches!(sandbox.loaded().warnings[..], [Warning::UntrustedFile { mode: 0o666, .. }]));
}
