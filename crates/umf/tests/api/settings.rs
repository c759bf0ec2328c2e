//! Pools and providers by the names that `umf.toml` gives them.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

use crate::alone::ran_alone;
use crate::example_plugin;
use std::sync::Arc;
use umf::registry::{FactoryError, Provider, ProviderFactory};
use umf::settings::{ByteSize, Context, Loader};
use umf::{Error, Pool};

umf::registry::settings! {
    /// The keys of a kind of this test.
    pub struct ScratchSettings {
        /// A size.
        pub size: usize as ByteSize = 0;
    }
}

struct Scratch;

impl ProviderFactory for Scratch {
    const KIND: &'static str = "scratch";
    type Settings = ScratchSettings;

    fn build(name: &str, settings: ScratchSettings) -> Result<Arc<dyn Provider>, FactoryError> {
        assert_eq!((name, settings.size), ("scratch", 3072));
        Ok(umf::host::HostProvider::builder().name("scratch").build()?)
    }
}

/// A process has one configuration, so all settings are tested in one test.
#[test]
fn pools_and_providers_are_built_by_name() {
    if ran_alone("settings::pools_and_providers_are_built_by_name") {
        return;
    }
    let toml = format!(
        r#"
        [provider.shared]
        numa = "local"
        [provider.alone]
        visibility = "shared"
        isolate = true
        [provider.near]
        numa = "local"
        huge_pages = "madvise"
        [provider.both]
        isolate = true
        [provider.bound]
        numa = "bind"
        [provider.closest]
        visibility = "shared"
        numa = "bind"
        numa_space = ["highest-bandwidth", "lowest-latency"]
        [provider.modeless]
        numa_space = ["all"]
        [provider.twice]
        numa = "bind"
        numa_nodes = [0]
        numa_space = ["all"]
        [provider.weighed]
        numa = "split"
        numa_weights = [{{ node = 0, weight = 1 }}]
        numa_space = ["all"]
        [provider.elsewhere]
        numa = "local"
        numa_space = ["all"]
        [provider.unplaceable]
        numa = "bind"
        numa_space = ["lowest-latency@cpu4294967295"]
        [provider.strange]
        kind = "nowhere"
        [provider.scratch]
        kind = "scratch"
        size = "3KiB"
        [provider.loaded]
        kind = "plugin"
        path = "{}"
        params = {{ name = "from-toml" }}
        [provider.missing]
        kind = "plugin"
        path = "/nonexistent/libnothing.so"

        [shared_limits]
        gpu = "4MiB"

        [pool.fine]
        provider = "shared"
        min_block_size = 64
        [pool.watched]
        provider = "shared"
        history = 10
        leaks = "sites"
        leak_sample = 3
        poison = "all"
        quarantine = "1MiB"
        [pool.each]
        kind = "proxy"
        provider = "alone"
        [pool.near]
        provider = "near"
        [pool.limited]
        provider = "shared"
        shared_limit = "gpu"
        [pool.limited2]
        provider = "shared"
        shared_limit = "gpu"
        [pool.scratch]
        provider = "scratch"
        [pool.loaded]
        provider = "loaded"
        [pool.missing]
        provider = "missing"
        [pool.both]
        provider = "both"
        [pool.bound]
        provider = "bound"
        [pool.closest]
        provider = "closest"
        [pool.modeless]
        provider = "modeless"
        [pool.twice]
        provider = "twice"
        [pool.weighed]
        provider = "weighed"
        [pool.elsewhere]
        provider = "elsewhere"
        [pool.unplaceable]
        provider = "unplaceable"
        [pool.strange]
        provider = "strange"
        [pool.lent]
        kind = "proxy"
        provider = "shared"
        on_free = "release"
        max_held = "4KiB"
        [pool.odd]
        kind = "odd"
        what = "it does not know"
        [provider.pathless]
        kind = "plugin"
        [pool.pathless]
        provider = "pathless"
        [provider.fixed]
        size = "1MiB"
        [pool.fixed]
        provider = "fixed"
        slab_min_size = "64KiB"
        [provider.filed]
        kind = "file"
        [pool.filed]
        provider = "filed"
        [provider.sizeless]
        kind = "fixed"
        [pool.sizeless]
        provider = "sizeless"
        "#,
        example_plugin::example().display()
    );
    let file = example_plugin::folder().join("umf.toml");
    std::fs::write(&file, toml).unwrap();
    umf::registry::register_provider::<Scratch>();
    for wrong in ["[pool.a]\nprovider = \"absent\"", "[pool.a]\nshared_limit = \"absent\""] {
        let file = example_plugin::folder().join("wrong.toml");
        std::fs::write(&file, wrong).unwrap();
        let context = Context::empty().with_variable("UMF_TOML", &file);
        let error = umf::init(Loader::with_context(context)).unwrap_err().to_string();
        assert!(error.contains("absent") && error.contains("pool.a"), "{error}");
    }
    let loader = || Loader::with_context(Context::empty().with_variable("UMF_TOML", &file));
    umf::init(loader()).unwrap();
    assert!(matches!(umf::init(loader()), Err(Error::AlreadyInitialised)));

    // A pool of this name has shared memory unless its settings say otherwise.
    let shared = Pool::shared().unwrap();
    assert!(shared.allocate(100).unwrap().handle().is_ok());
    let fine = Pool::named("fine").unwrap();
    let block = fine.allocate(100).unwrap();
    let handle = block.handle().unwrap();
    assert!(!handle.is_isolated() && umf::open(&handle).unwrap().is_current());
    let each = Pool::named("each").unwrap();
    assert!(each.allocate(100).unwrap().handle().unwrap().is_isolated());
    let watched = Pool::named("watched").unwrap();
    drop(watched.allocate(100).unwrap());
    assert_eq!(watched.statistics().quarantined_bytes, 112);
    assert_eq!(watched.history().unwrap().events.len(), 2);
    watched.leaks(|report| assert_eq!((report.sampled, report.blocks), (3, 0))).unwrap();
    let mut byte = [0];
    watched.allocate(50).unwrap().read(49, &mut byte).unwrap();
    assert_eq!(byte, [umf::CheckSettings::NEW_BYTE]);
    for name in ["near", "scratch"] {
        let pool = Pool::named(name).unwrap();
        assert_eq!(pool.provider().name(), name);
        assert!(pool.allocate(1 << 20).unwrap().handle().is_err(), "private memory is not exported");
    }
    let fixed = Pool::named("fixed").unwrap();
    assert_eq!(fixed.provider().kind().as_str(), "fixed");
    fixed.allocate(4096).unwrap().write(0, b"fixed").unwrap();
    assert!(fixed.allocate(2 << 20).is_err());
    // The default of all pools without settings.
    assert_eq!(Pool::named("whatever").unwrap().provider().name(), "host");

    let limited = [Pool::named("limited").unwrap(), Pool::named("limited2").unwrap()];
    let mut blocks = Vec::new();
    let error = loop {
        match limited[blocks.len() % 2].allocate(1 << 18) {
            Ok(block) => blocks.push(block),
            Err(error) => break error,
        }
        assert!(blocks.len() <= 16, "two pools have taken more than their common limit");
    };
    assert!(error.to_string().contains("limit"), "{error}");

    let loaded = Pool::named("loaded").unwrap();
    assert_eq!(loaded.provider().kind().as_str(), "loaded");
    let block = loaded.allocate(5000).unwrap();
    block.write(4990, b"plugin").unwrap();

    // It has a lease on a block, as another process would.
    let borrower = umf_testkit::LeaseHolder::new();
    let lent = Pool::named("lent").unwrap();
    let block = lent.allocate(4096).unwrap();
    block.write(0, &[7; 4096]).unwrap();
    block.handle().unwrap();
    borrower.open(block.address(), 4096);
    let address = block.address();
    drop(block);
    // SAFETY: the block is held, so its memory stays mapped.
    assert_eq!(unsafe { address.as_ptr().unwrap().read_volatile() }, 0, "the page was released");
    assert_eq!(lent.statistics().held_bytes, 4096);
    let error = lent.allocate(4096).unwrap_err();
    assert!(
        matches!(error, Error::Memory(umf_core::Error::HeldLimit { held: 4096, limit: 4096 })),
        "{error}"
    );
    assert_eq!(umf::drain(std::time::Duration::from_millis(1)).blocks, 1);
    borrower.close_all();
    assert!(lent.drain(std::time::Duration::from_secs(20)).is_empty());
    lent.allocate(4096).unwrap();

    // The nodes are chosen from the topology of the machine.
    if umf::topology::Topology::of_this_machine().is_ok() {
        let closest = Pool::named("closest").unwrap();
        closest.allocate(4096).unwrap().write(0, b"near").unwrap();
        let error = Pool::named("unplaceable").unwrap_err();
        assert!(error.to_string().contains("4294967295"), "{error}");
        assert!(matches!(error, Error::Topology(umf::topology::Error::UnknownCpu { .. })));
    } else {
        println!("umf-skip: pools on memory spaces: sysfs is not mounted on /sys");
    }

    for (name, part) in [
        ("missing", "/nonexistent/libnothing.so"),
        ("both", "visibility"),
        ("bound", "numa_nodes"),
        ("modeless", "\"bind\""),
        ("twice", "leave one out"),
        ("weighed", "leave one out"),
        ("elsewhere", "\"preferred\""),
        ("strange", "nowhere"),
        ("pathless", "path"),
        ("filed", "path"),
        ("sizeless", "size"),
        ("odd", "odd"),
    ] {
        let error = Pool::named(name).unwrap_err().to_string();
        assert!(error.contains(part), "{name}: {error}");
    }
}
