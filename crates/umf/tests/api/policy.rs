//! Reserves, automatic release, limits and deferred frees, through the public API and by settings.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]
#![allow(clippy::disallowed_methods, reason = "a test reads the environment as it is")]

use crate::alone::ran_alone;
use std::sync::Arc;
use std::time::Duration;

use umf::settings::{Context, Loader};
use umf::{Error, OutOfMemoryAction, OutOfMemoryEvent, Pool};
use umf_testkit::pool::ManualCompletion;

const MIB: usize = 1 << 20;

/// Returns how many KiB are resident in the mapping that contains `address`.
fn resident(address: umf::Address) -> u64 {
    let smaps = std::fs::read_to_string("/proc/self/smaps").unwrap();
    let mut is_it = false;
    for line in smaps.lines() {
        let mut words = line.split_whitespace();
        let first = words.next().unwrap();
        if let Some((from, to)) = first.split_once('-') {
            let number = |text| u64::from_str_radix(text, 16).unwrap();
            is_it = (number(from)..number(to)).contains(&address.to_bits());
        } else if is_it && first == "Rss:" {
            return words.next().unwrap().parse().unwrap();
        }
    }
    0
}

/// A process has one configuration, so all settings are tested in one test.
#[test]
fn settings_reach_the_pools() {
    if ran_alone("policy::settings_reach_the_pools") {
        return;
    }
    let toml = r#"
        [shared_limits]
        all = "48MiB"
        [provider.shared]
        visibility = "shared"
        [pool.ahead]
        reserve = "24MiB"
        shared_limit = "all"
        [pool.each]
        kind = "proxy"
        provider = "shared"
        shared_limit = "all"
        [pool.tight]
        max_cached = "1MiB"
        [pool.fast]
        release_after_ms = 20
        release_thread = true
        [pool.toomuch]
        reserve = "64MiB"
        memory_limit = "32MiB"
        [pool.nothing]
        kind = "proxy"
        reserve = "1MiB"
        [pool.few]
        thread_cache_size = 0
        shared_cache_size = 0
    "#;
    let folder = std::env::temp_dir().join(format!("umf-policy-{}", std::process::id()));
    std::fs::create_dir_all(&folder).unwrap();
    let file = folder.join("umf.toml");
    std::fs::write(&file, toml).unwrap();
    let context =
        Context::empty().with_variable("UMF_TOML", &file).with_variable("UMF_POOL_TIGHT_CAPACITY", "0");
    umf::init(Loader::with_context(context)).unwrap();
    std::fs::remove_dir_all(&folder).unwrap();

    let ahead = Pool::named("ahead").unwrap();
    let statistics = ahead.statistics();
    assert_eq!((statistics.reserved_bytes, statistics.live_bytes), (24 << 20, 0));
    let block = ahead.allocate(MIB).unwrap();
    // Kernels before 5.14 cannot populate pages, so the pages are not resident there.
    let pages = resident(block.address());
    let known = umf_core::Layout::new(4096, 4096).unwrap();
    let region = ahead.provider().allocate(known).unwrap();
    let can = ahead.provider().populate().unwrap().populate(region.base(), 4096).is_ok();
    // SAFETY: allocated above, and not in use.
    unsafe { ahead.provider().free(region) }.unwrap();
    if can {
        assert!(pages >= 24 << 10, "{pages} KiB are resident");
    } else {
        println!("umf-skip: pages made ahead: this kernel does not");
    }

    // The limit is 48 MiB for both pools. The free memory of one pool is released before an
    // allocation of the other one fails, but its reserved memory is not.
    let mut rest: Vec<_> = (0..20).map(|_| ahead.allocate(MIB).unwrap()).collect();
    rest.extend((0..16).map(|_| ahead.allocate(MIB).unwrap()));
    drop(rest);
    let each = Pool::named("each").unwrap();
    let blocks: Vec<_> = (0..22).map(|_| each.allocate(MIB).unwrap()).collect();
    let error = each.allocate(8 * MIB).unwrap_err();
    assert!(
        matches!(error, Error::Memory(umf_core::Error::LimitReached { what: "shared memory", .. })),
        "{error}"
    );
    assert!(ahead.statistics().reserved_bytes >= 24 << 20);
    drop((block, blocks));

    let tight = Pool::named("tight").unwrap();
    drop((0..64).map(|_| tight.allocate(MIB).unwrap()).collect::<Vec<_>>());
    assert!(tight.purge().is_ok() && tight.statistics().cached_bytes <= 1 << 20);
    let few = Pool::named("few").unwrap();
    drop((0..64).map(|_| few.allocate(MIB).unwrap()).collect::<Vec<_>>());
    assert!(few.statistics().cached_bytes <= 16 << 20, "{:?}", few.statistics());

    let fast = Pool::named("fast").unwrap();
    drop((0..64).map(|_| fast.allocate(MIB).unwrap()).collect::<Vec<_>>());
    let begin = std::time::Instant::now();
    while fast.statistics().reserved_bytes > 0 {
        assert!(begin.elapsed() < Duration::from_secs(30), "{:?}", fast.statistics());
        std::thread::sleep(Duration::from_millis(2));
    }

    for (name, part) in [("toomuch", "limit"), ("nothing", "reserving memory")] {
        let error = Pool::named(name).unwrap_err().to_string();
        assert!(error.contains(part), "{name}: {error}");
    }
}

#[test]
fn a_block_is_freed_when_its_completion_is_ready() {
    let pool = Pool::builder().build().unwrap();
    let block = pool.allocate(100_000).unwrap();
    block.write(0, b"a device reads this").unwrap();
    let handle = block.handle().unwrap();
    let mapping = umf::open(&handle).unwrap();
    let address = block.address();
    let token = ManualCompletion::new();
    block.free_after(token.clone()).unwrap();
    assert!(!mapping.is_current(), "its handle is retired at once");
    drop(mapping);
    assert_eq!(pool.drain(Duration::from_millis(1)).blocks, 1);
    // SAFETY: the block was freed before, so the call only returns an error.
    let twice = unsafe { umf_runtime::tracker::free_after(address, ManualCompletion::new()) };
    assert!(twice.is_err());
    token.set_ready();
    assert!(pool.drain(Duration::from_secs(20)).is_empty());
    assert_eq!((pool.statistics().live_blocks, pool.statistics().held_bytes), (0, 0));
}

#[test]
fn out_of_memory_callback_frees_and_retries() {
    let pool = Pool::builder().memory_limit(16 << 20).build().unwrap();
    let blocks: Arc<std::sync::Mutex<Vec<umf::Address>>> = Arc::default();
    let from = blocks.clone();
    let callback = move |shortage: &OutOfMemoryEvent<'_>| {
        let Some(address) = from.lock().unwrap().pop() else { return OutOfMemoryAction::GiveUp };
        // SAFETY: the block was taken out of its `Block`, and is not in use.
        unsafe { shortage.pool.free(address) }.unwrap();
        OutOfMemoryAction::Retry
    };
    pool.on_out_of_memory(callback).unwrap();
    for _ in 0..40 {
        let block = pool.allocate(MIB).unwrap();
        blocks.lock().unwrap().push(block.into_address());
    }
    blocks.lock().unwrap().clear();
    let error = pool.allocate(15 * MIB).unwrap_err();
    assert!(matches!(error, Error::Memory(umf_core::Error::LimitReached { .. })), "{error}");
}
