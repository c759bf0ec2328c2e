//! The C interface: this project's `libumf.so.1` and the original's, in the same process.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Stdio};
use std::sync::Barrier;
use std::thread;

use umf_benches::Result;
use umf_benches::allocators::{Allocator, Subject};
use umf_benches::bench::{self, Bench};
use umf_benches::libumf::{CAPACITY, CallError, FreeAny, Libumf, PEER, Settings, Visibility};
use umf_benches::measure::{batches, in_turns, threads};
use umf_benches::process::{self, Memory, Producer};
use umf_benches::workload::{MIDDLE, Order, Plan, SMALL};

/// Blocks of a set, used in turn.
const SET: usize = 8;
/// Bytes of a block.
const SIZE: usize = 64 << 10;
/// Passes over the set in a batch.
const PASSES: usize = 128;

fn main() -> ExitCode {
    let compiler = umf_os::environment::variable("CC").unwrap_or_else(|| "cc".into());
    if bench::is_test() && Command::new(compiler).arg("--version").output().is_err() {
        println!("umf-skip: capi: no C compiler to link libumf.so.1 with");
        return ExitCode::SUCCESS;
    }
    bench::main(measure, process::produce)
}

fn measure(bench: &mut Bench) -> Result<()> {
    let libraries = Libraries::find(bench)?;
    let default = Settings::new(Visibility::Private);
    let capacity = Settings { capacity: Some(CAPACITY), ..default };
    let jemalloc = Settings { jemalloc: true, ..default };
    for (name, order, sizes, threads, settings) in [
        ("capi.small.pair.1t", Order::Pair, SMALL, 1, default),
        ("capi.small.pair.2t", Order::Pair, SMALL, 2, default),
        ("capi.small.random.1t", Order::Random, SMALL, 1, default),
        ("capi.small.random.2t", Order::Random, SMALL, 2, default),
        ("capi.1k_64k.random.1t", Order::Random, MIDDLE, 1, default),
        ("capi.1k_64k.random.2t", Order::Random, MIDDLE, 2, default),
        ("capi.1k_64k.random.1t.capacity_64", Order::Random, MIDDLE, 1, capacity),
        ("capi.1k_64k.random.2t.capacity_64", Order::Random, MIDDLE, 2, capacity),
        ("capi.small.xfree.1t", Order::CrossFree, SMALL, 1, default),
        ("capi.jemalloc.small.pair.1t", Order::Pair, SMALL, 1, jemalloc),
        ("capi.jemalloc.small.random.1t", Order::Random, SMALL, 1, jemalloc),
        ("capi.jemalloc.small.random.2t", Order::Random, SMALL, 2, jemalloc),
        ("capi.jemalloc.1k_64k.random.1t", Order::Random, MIDDLE, 1, jemalloc),
        ("capi.jemalloc.small.xfree.1t", Order::CrossFree, SMALL, 1, jemalloc),
    ] {
        let plan = Plan::new(bench.quick, order, sizes, threads);
        libraries.row(bench, name, settings, |_, library| library.run(&plan))?;
    }
    let plan = Plan::new(bench.quick, Order::Random, SMALL, 1);
    libraries.row(bench, "capi.free_any", default, |_, library| FreeAny(library).run(&plan))?;
    libraries.row(bench, "capi.pool_by_ptr", default, |bench, library| {
        over_blocks(bench, library, |block| library.find_pool(block))
    })?;
    let of_devices = Settings { largest_pooled: Some(4 << 20), capacity: Some(4), ..default };
    for (name, threads, waves) in [
        ("capi.kept.1t", 1, 1),
        ("capi.kept.4t", 4, 1),
        ("capi.kept.8t", 8, 1),
        ("capi.kept.4t.8_waves", 4, 8),
    ] {
        libraries.row_in(bench, "MiB", name, of_devices, |_, library| kept(library, threads, waves))?;
    }
    let shared = Settings::new(Visibility::Shared);
    libraries.row(bench, "capi.get_put", shared, |bench, library| {
        over_blocks(bench, library, |block| library.get_and_put(block))
    })?;
    for (name, count) in [("capi.open_close.1t", 1), ("capi.open_close.2t", 2)] {
        libraries.row(bench, name, shared, |bench, library| open_and_close(bench, library, count))?;
    }
    Ok(())
}

/// This project's library, and the original if `--peer-umf` names it.
struct Libraries {
    paths: Vec<PathBuf>,
    /// A pool of each library, so that no library is unloaded between two rows.
    _loaded: Vec<Libumf>,
}

impl Libraries {
    fn find(bench: &Bench) -> Result<Libraries> {
        let mut paths = vec![bench.ours.clone().map_or_else(|| install(bench.quick), Ok)?];
        match &bench.peer_umf {
            Some(path) => paths.push(path.clone()),
            None => eprintln!("--peer-umf names no libumf.so.1 of release 1.x: ours is measured alone"),
        }
        let settings = Settings::new(Visibility::Private);
        let loaded = paths.iter().map(|path| Libumf::open(path, settings)).collect::<Result<_>>()?;
        let file = |path| fs::metadata(path).map(|file| (file.dev(), file.ino()));
        if let [ours, peer] = &paths[..]
            && file(ours)? == file(peer)?
        {
            return Err("--ours and --peer-umf are the same file".into());
        }
        Ok(Libraries { paths, _loaded: loaded })
    }

    /// Measures a row with a new pool of each library. Rows of jemalloc pools leave out a library
    /// that was built without jemalloc.
    fn row(
        &self,
        bench: &mut Bench,
        name: &str,
        settings: Settings,
        values: impl Fn(&Bench, &Libumf) -> Result<Vec<f64>>,
    ) -> Result<()> {
        self.row_in(bench, "ns", name, settings, values)
    }

    /// As [`Libraries::row`], in another unit.
    fn row_in(
        &self,
        bench: &mut Bench,
        unit: &'static str,
        name: &str,
        settings: Settings,
        values: impl Fn(&Bench, &Libumf) -> Result<Vec<f64>>,
    ) -> Result<()> {
        let mut pools = Vec::new();
        for (path, library) in self.paths.iter().zip(["umf", PEER]) {
            match Libumf::open(path, settings) {
                Ok(pool) => pools.push((library, pool)),
                Err(error) if settings.jemalloc => eprintln!("{name}: without {library}: {error}"),
                Err(error) => return Err(error),
            }
        }
        if pools.first().is_none_or(|(library, _)| *library == PEER) {
            return Ok(());
        }
        let subjects: Vec<_> = pools.iter().map(|(library, pool)| (*library, pool)).collect();
        bench.row_in(unit, name, |bench| in_turns(bench, &subjects, |pool| values(bench, pool)))
    }
}

/// Builds and installs this project's library.
fn install(quick: bool) -> Result<PathBuf> {
    let prefix = Path::new(env!("CARGO_TARGET_TMPDIR")).join("umf-capi-bench");
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("../crates/umf-capi/install");
    let profile = if quick { "dev" } else { "capi" };
    let status = Command::new(script).arg(&prefix).arg(profile).stdout(Stdio::null()).status()?;
    if status.success() { Ok(prefix.join("lib/libumf.so.1")) } else { Err("libumf.so.1 is not built".into()) }
}

/// Measures a call on each block of a set in turn.
fn over_blocks(
    bench: &Bench,
    library: &Libumf,
    call: impl Fn(usize) -> std::result::Result<(), CallError>,
) -> Result<Vec<f64>> {
    let blocks = (0..SET).map(|_| Ok(library.allocate(SIZE)?)).collect::<Result<Vec<_>>>()?;
    batches(bench.turn(), PASSES * SET, || {
        for _ in 0..PASSES {
            blocks.iter().try_for_each(|block| call(*block))?;
        }
        Ok(())
    })
}

/// Bytes in live blocks of all threads of [`kept`] together, at most.
const LIVE: usize = 30 << 20;

/// MiB that a pool keeps when threads have freed all blocks and still exist. Sizes are 64 bytes to
/// 4 MiB, each doubling as likely as the others. Each wave has new threads.
fn kept(library: &Libumf, threads: usize, waves: usize) -> Result<Vec<f64>> {
    let mut kept = 0;
    for wave in 0..waves {
        let (freed, counted) = (Barrier::new(threads + 1), Barrier::new(threads + 1));
        let work = |number| {
            let result = fill_and_free(library, number, LIVE / threads);
            freed.wait();
            counted.wait();
            result
        };
        let work = &work;
        kept = thread::scope(|scope| {
            let all: Vec<_> =
                (0..threads).map(|thread| scope.spawn(move || work(wave * threads + thread))).collect();
            freed.wait();
            let kept = library.provided();
            counted.wait();
            for thread in all {
                thread.join().map_err(|_| "a thread panicked")??;
            }
            Ok::<_, umf_benches::Error>(kept?)
        })?;
    }
    Ok(vec![kept as f64 / f64::from(1 << 20)])
}

/// Allocates and frees at random, with at most `most` bytes live, and frees all.
fn fill_and_free(library: &Libumf, number: usize, most: usize) -> std::result::Result<(), CallError> {
    const ROUNDS: usize = 20_000;
    let mut seed = 0x1389_9f0f_c1fc_a4bd_u64 ^ (number as u64 + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    let mut random = move || {
        seed ^= seed << 13;
        seed ^= seed >> 7;
        seed ^= seed << 17;
        seed as usize
    };
    // SAFETY: each block is allocated here, and freed once.
    let free = |(block, size)| unsafe { library.free(block, size) };
    let mut blocks = vec![None; 512];
    let mut live = 0;
    for _ in 0..ROUNDS {
        let place = random() % blocks.len();
        if let Some((block, size)) = blocks[place].take() {
            free((block, size))?;
            live -= size;
        }
        let least = 64 << (random() % 16);
        let size = least + random() % least;
        if live + size <= most {
            blocks[place] = Some((library.allocate(size)?, size));
            live += size;
        }
    }
    blocks.into_iter().flatten().try_for_each(free)
}

/// Measures opens and closes of cached handles. All threads open the same handles.
fn open_and_close(bench: &Bench, library: &Libumf, count: usize) -> Result<Vec<f64>> {
    let memory = Memory::Libumf(library.path.clone(), Settings::new(Visibility::Shared));
    let mut producer = Producer::start()?;
    let handles = producer.bytes(memory, SET, SIZE)?;
    let values = threads(count, |_| {
        batches(bench.turn(), PASSES * SET, || {
            for _ in 0..PASSES {
                handles.iter().try_for_each(|handle| library.open_and_close(handle))?;
            }
            Ok(())
        })
    });
    Ok(values.concat())
}
