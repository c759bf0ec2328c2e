//! Pools of every kind, with random settings.

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use umf::cuda::{CudaImport, CudaProvider};
use umf::dma_buf::DmaBufImport;
use umf::host::{HostImport, HostProvider};
use umf::level_zero::{DeviceSelector, LevelZeroImport, LevelZeroProvider};
use umf::pools::ProxyPool;
use umf::pools::{SlabPool, SlabSettings};
use umf::{OnFree, Visibility};
use umf_core::deferred::DeferredStatistics;
use umf_core::{Error, Import, Pool};
use umf_pool_jemalloc::{JemallocPool, JemallocSettings};
use umf_provider_file::{FileImport, FileProvider};
use umf_tests::{Rng, machine};

use crate::settings::{Kind, OnFreeChoice, Settings};

/// Returns the prefix of all names of a run in `/dev/shm`.
pub fn name_prefix(run: u32) -> String {
    format!("umf-hostile-{run}-")
}

/// A pool, and the properties of its blocks that importers see.
pub struct RandomPool {
    pub pool: Arc<dyn Pool>,
    pub kind: Kind,
    /// Whether pages of a block may read as zeros after the block is freed.
    pub release: bool,
    /// Whether blocks can only be opened for reading.
    pub read_only: bool,
    /// Whether each region has its own file.
    pub isolated: bool,
}

impl RandomPool {
    /// Waits up to `timeout` until the pool has no deferred frees.
    pub fn drain(&self, timeout: Duration) -> DeferredStatistics {
        self.pool.controls().map_or_else(DeferredStatistics::default, |controls| controls.drain(timeout))
    }
}

/// Creates pools for one worker.
pub struct PoolMaker<'s> {
    pub settings: &'s Settings,
    /// The process id of the campaign.
    pub run: u32,
}

impl PoolMaker<'_> {
    /// Creates a pool with random settings.
    ///
    /// # Errors
    /// The errors of the provider and of the pool.
    pub fn make(&self, random: &mut Rng) -> Result<RandomPool, Error> {
        let kind = self.settings.kind.unwrap_or_else(|| *random.choose(&Kind::HOST));
        let isolated = kind.can_isolate() && self.settings.isolation && random.one_in(5);
        let read_only = isolated && random.one_in(3);
        let release = match self.settings.on_free {
            Some(choice) => choice == OnFreeChoice::Release,
            None => random.one_in(2),
        };
        let on_free = if release { OnFree::Release } else { OnFree::Hold };
        let max_held = if random.one_in(4) { 1 << (16 + random.below(8)) } else { 0 };
        let slab = |random: &mut Rng| slab_settings(random).on_free(on_free).max_held(max_held);
        let pool: Arc<dyn Pool> = match kind {
            Kind::Slab => SlabPool::new(host(random, isolated, read_only)?, slab(random))?,
            Kind::Proxy => {
                let pool = ProxyPool::new(host(random, isolated, read_only)?)?;
                if let Some(controls) = pool.controls() {
                    controls.set_on_free(on_free, max_held);
                }
                pool
            }
            Kind::Jemalloc => {
                let settings = JemallocSettings::default().on_free(on_free).max_held(max_held);
                JemallocPool::with_settings(host(random, isolated, read_only)?, settings)?
            }
            Kind::Named => SlabPool::new(self.named()?, slab(random))?,
            Kind::File => SlabPool::new(self.file()?, slab(random))?,
            Kind::LevelZero => {
                let provider = LevelZeroProvider::device(level_zero()).name("hostile").build()?;
                SlabPool::new(provider, slab(random))?
            }
            Kind::Cuda => SlabPool::new(
                CudaProvider::builder().library(beside("libcuda_soft.so")).build()?,
                slab(random),
            )?,
            Kind::DmaBuf => {
                let sources = machine::dma_buf_sources("hostile");
                if sources.is_empty() {
                    return Err(Error::NotSupported { what: "dma-bufs", owner: "this machine", native: 0 });
                }
                let source = random.choose(&sources);
                SlabPool::new(machine::dma_buf_provider(source)?.build()?, slab(random))?
            }
        };
        Ok(RandomPool { pool, kind, release, read_only, isolated })
    }

    fn named(&self) -> Result<Arc<HostProvider>, Error> {
        HostProvider::builder()
            .named(format!("/{}", self.unique()))
            .arena_size(64 << 20)
            .allow_unsealed_imports(true)
            .build()
    }

    /// Creates a provider over a file whose name is removed once the file is open.
    fn file(&self) -> Result<Arc<FileProvider>, Error> {
        let path = std::env::temp_dir().join(self.unique());
        let provider = FileProvider::open(&path, Visibility::Shared, "hostile");
        // Fails if the provider could not create the file.
        let _ = std::fs::remove_file(&path);
        provider
    }

    /// Returns a name that no other provider of this run has, in any pid namespace.
    fn unique(&self) -> String {
        static NUMBER: AtomicU64 = AtomicU64::new(0);
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        format!("{}{}-{number}", name_prefix(self.run), own_pid())
    }
}

/// Returns the pid of this process in the pid namespace of the campaign, in which `/proc` was
/// mounted.
pub fn own_pid() -> u32 {
    let link = std::fs::read_link("/proc/self").unwrap_or_default();
    link.to_str().and_then(|text| text.parse().ok()).unwrap_or_else(std::process::id)
}

fn host(random: &mut Rng, isolated: bool, read_only: bool) -> Result<Arc<HostProvider>, Error> {
    let builder = HostProvider::builder()
        .name("hostile")
        .visibility(Visibility::Shared)
        .isolate(isolated)
        .read_only_export(read_only);
    if !isolated && random.one_in(3) {
        return builder.arena_size((4 << 20) << random.below(6)).build();
    }
    builder.build()
}

/// Returns random settings of a slab pool. Some have small caches, a low limit, or automatic
/// release.
fn slab_settings(random: &mut Rng) -> SlabSettings {
    let largest = *random.choose(&[0, 4096, 65536, 1 << 20, 8 << 20]);
    let mut settings = SlabSettings::new()
        .capacity(random.below(3) as u32)
        .slab_min_size(65536 << random.below(3))
        .max_poolable_size(largest);
    if random.one_in(3) {
        settings = settings.max_cached(65536 << random.below(8));
    }
    if random.one_in(3) {
        let age = Duration::from_millis(1 + random.below(20));
        settings = settings.release_after(age).background(random.one_in(2));
    }
    if random.one_in(6) {
        settings = settings.memory_limit((4 << 20) << random.below(3));
    }
    if random.one_in(8) {
        settings = settings
            .small_cache_size(random.below(1 << 20) as usize)
            .thread_cache_size(random.below(1 << 22) as usize)
            .shared_cache_size(random.below(1 << 22) as usize);
    }
    settings
}

/// Returns the path of a library that cargo built beside this program.
fn beside(name: &str) -> PathBuf {
    std::env::current_exe().unwrap_or_default().with_file_name(name)
}

fn level_zero() -> DeviceSelector {
    DeviceSelector::device(0).loader(beside("libze_soft.so"))
}

/// Returns imports for all kinds of memory of the run.
pub fn imports(settings: &Settings) -> Vec<Arc<dyn Import>> {
    let mut imports: Vec<Arc<dyn Import>> =
        vec![Arc::new(HostImport::new().allow_unsealed(true)), Arc::new(FileImport::trust_writers())];
    match settings.kind {
        Some(Kind::LevelZero) => imports.push(Arc::new(LevelZeroImport::new(level_zero()))),
        Some(Kind::Cuda) => imports.push(Arc::new(CudaImport::new(Some(beside("libcuda_soft.so"))))),
        Some(Kind::DmaBuf) => imports.push(Arc::new(DmaBufImport::new())),
        _ => {}
    }
    imports
}
