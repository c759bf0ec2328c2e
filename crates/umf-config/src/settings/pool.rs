//! `[pool.defaults]` and `[pool.<name>]`: what pools are made of.

use std::collections::BTreeMap;

use config::Value;
use serde::{Deserialize, Serialize};

use crate::ByteSize;
use crate::field::{Field, Section, Setting, field, words};

/// The shared limit that a pool counts against.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
#[non_exhaustive]
pub enum SharedLimit {
    /// None.
    #[default]
    None,
    /// The one of this name in `[shared_limits]`.
    Named(String),
}

impl Setting for SharedLimit {
    const EXPECTED: &'static str = "the name of a limit in [shared_limits], or \"none\"";

    fn read(value: &Value) -> Option<Self> {
        if u64::read(value) == Some(0) {
            return Some(Self::None);
        }
        match String::read(value)? {
            word if word == "none" => Some(Self::None),
            name => Some(Self::Named(name)),
        }
    }

    fn text(&self) -> String {
        match self {
            Self::None => "none".to_owned(),
            Self::Named(name) => name.clone(),
        }
    }
}

words! {
    /// What becomes of the contents of a block that is freed while other processes have it open. Its address is not used
    /// again before they have closed it, either way.
    OnFree {
        /// They stay until it is closed.
        #[default]
        Hold = "hold",
        /// Its pages go back to the system at once, where they can: it reads as zero.
        Release = "release",
    }
}

words! {
    /// What is told of blocks that are never freed.
    Leaks {
        /// Nothing.
        #[default]
        Off = "off",
        /// How many there are of each size.
        Count = "count",
        /// And where they were allocated.
        Sites = "sites",
    }
}

words! {
    /// What is filled with a byte, so that mistakes show.
    Poison {
        /// Nothing.
        #[default]
        Off = "off",
        /// What is freed; who writes to it afterwards is found.
        Freed = "freed",
        /// What is handed out too.
        All = "all",
    }
}

/// One pool's settings. Environment names are `UMF_POOL_<NAME>_<KEY>`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct Pool {
    /// `slab`, `proxy` or a kind that the program registered. Default: `slab`.
    pub kind: String,
    /// The provider set that its memory comes from. Default: `host`.
    pub provider: String,
    /// Smallest slab that is taken from the provider, in bytes; not 0. Default: 64 KiB.
    pub slab_min_size: ByteSize,
    /// Largest request that is pooled, in bytes; larger ones go to the provider. Default: 8 MiB.
    pub max_poolable_size: ByteSize,
    /// Empty slabs that are kept per size class. Default: 4.
    pub capacity: u64,
    /// Smallest block, in bytes; a power of two. Default: 8. Also read as `min_bucket_size`.
    pub min_block_size: ByteSize,
    /// Limit that this pool shares with others. Default: none.
    pub shared_limit: SharedLimit,
    /// Bytes that this pool may hold; 0 is unlimited. Default: 0.
    pub memory_limit: ByteSize,
    /// What becomes of a block that is freed while other processes have it open. Default: `hold`.
    pub on_free: OnFree,
    /// Bytes of freed memory that may be held because other processes have it open, before allocating fails; 0 is unlimited.
    /// Default: 0.
    pub max_held: ByteSize,
    /// Bytes that the pool takes from its provider at the beginning, and keeps. Default: 0.
    pub reserve: ByteSize,
    /// Bytes that may be free in the pool before memory goes back to the provider unasked; 0 is unlimited. Default: 0.
    pub max_cached: ByteSize,
    /// How long memory may lie unused before it goes back to the provider unasked, in milliseconds; 0 is for ever. Default: 0.
    pub release_after_ms: u64,
    /// Whether a thread in the background sees to `max_cached` and `release_after_ms` too. Default: false.
    pub release_thread: bool,
    /// Bytes that one thread keeps in blocks of 64 KiB and above. Default: 256 MiB.
    pub thread_cache_size: ByteSize,
    /// Blocks of one size class of 64 KiB and above that a thread keeps. Default: 128.
    pub thread_cache_blocks: u32,
    /// Bytes that one thread keeps in smaller blocks. Default: 2 MiB.
    pub small_cache_size: ByteSize,
    /// Bytes of free blocks of 64 KiB and above that are kept for all threads. Default: 256 MiB, or a quarter of what the pool has
    /// from its provider where that is more; another size is kept to.
    pub shared_cache_size: ByteSize,
    /// Blocks of one size class that are kept like that. Default: 64.
    pub shared_cache_blocks: u32,
    /// How much is told about allocations, 0 (nothing) to 3. Default: 0.
    pub trace: u32,
    /// Events that the history of each thread keeps; 0: there is none. Default: 0.
    pub history: u32,
    /// What is told of blocks that are live when the pool goes, or the process ends. Default: `off`.
    pub leaks: Leaks,
    /// With `leaks = "sites"`, of one in how many allocations it is remembered where it was; not 0. Default: 1.
    pub leak_sample: u32,
    /// What is filled, in memory that the CPU may touch. Default: `off`.
    pub poison: Poison,
    /// Bytes of freed blocks that wait before they are used again. Default: 0.
    pub quarantine: ByteSize,
}

impl Default for Pool {
    fn default() -> Self {
        Self {
            kind: "slab".to_owned(),
            provider: "host".to_owned(),
            slab_min_size: ByteSize::new(64 << 10),
            max_poolable_size: ByteSize::new(8 << 20),
            capacity: 4,
            min_block_size: ByteSize::new(8),
            shared_limit: SharedLimit::None,
            memory_limit: ByteSize::ZERO,
            on_free: OnFree::Hold,
            max_held: ByteSize::ZERO,
            reserve: ByteSize::ZERO,
            max_cached: ByteSize::ZERO,
            release_after_ms: 0,
            release_thread: false,
            thread_cache_size: ByteSize::new(256 << 20),
            thread_cache_blocks: 128,
            small_cache_size: ByteSize::new(2 << 20),
            shared_cache_size: ByteSize::new(256 << 20),
            shared_cache_blocks: 64,
            trace: 0,
            history: 0,
            leaks: Leaks::Off,
            leak_sample: 1,
            poison: Poison::Off,
            quarantine: ByteSize::ZERO,
        }
    }
}

impl Section for Pool {
    const FIELDS: &'static [Field<Self>] = &[
        field!(kind),
        field!(provider),
        field!(slab_min_size, "a number of bytes above 0, such as \"64KiB\"" if |size| size > ByteSize::ZERO),
        field!(max_poolable_size),
        field!(capacity),
        field!(
            min_block_size,
            alias "min_bucket_size",
            "a power of two of bytes, such as 8 or \"1KiB\"" if |size| ByteSize::get(size).is_power_of_two()
        ),
        field!(shared_limit),
        field!(memory_limit),
        field!(on_free),
        field!(max_held),
        field!(reserve),
        field!(max_cached),
        field!(release_after_ms),
        field!(release_thread),
        field!(thread_cache_size),
        field!(thread_cache_blocks),
        field!(small_cache_size),
        field!(shared_cache_size),
        field!(shared_cache_blocks),
        field!(trace, "a whole number from 0 to 3" if |level| level <= 3),
        field!(history, "a whole number from 0 to 1048576" if |events| events <= 1 << 20),
        field!(leaks),
        field!(leak_sample, "a whole number from 1 to 4294967295" if |one_in| one_in != 0),
        field!(poison),
        field!(quarantine),
    ];
}

/// The sections `[pool.*]`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct Pools {
    /// `[pool.defaults]`: what a pool has that says nothing else.
    pub defaults: Pool,
    /// `[pool.<name>]`, with what they do not set taken from the defaults.
    pub named: BTreeMap<String, Pool>,
}

impl Pools {
    /// The settings of the pool `name`: its own section, otherwise the defaults.
    pub fn get(&self, name: &str) -> &Pool {
        self.named.get(name).unwrap_or(&self.defaults)
    }
}
