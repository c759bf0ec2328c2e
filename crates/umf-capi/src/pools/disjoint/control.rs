//! The control tree below a disjoint pool.

use core::sync::atomic::Ordering;

use umf_core::map::SizeTotals;
use umf_core::{Inspect as _, Pool as _};

use super::counts::BucketCounters;
use super::{BuiltPool, Disjoint, checked_bucket};
use crate::boundary::{Failure, Outcome};
use crate::ctl::{CtlAccess, CtlQuery, CtlTree, Value, no_such_path};

impl CtlTree for Disjoint {
    fn answer(&self, query: &CtlQuery<'_>) -> Outcome<()> {
        let (branch, rest) = query.path().split_once('.').unwrap_or((query.path(), ""));
        match branch {
            "post_initialize" if query.runs() => self.made().map(|_| ()),
            "params" => setting(self, query, rest),
            "stats" => statistic(self.made()?, &query.below(rest)),
            "buckets" => bucket(self.made()?, &query.below(rest)),
            _ => Err(no_such_path()),
        }
    }
}

fn setting(disjoint: &Disjoint, query: &CtlQuery<'_>, name: &str) -> Outcome<()> {
    if query.access() == CtlAccess::Write {
        return match name {
            "slab_min_size" => {
                query.new_size().and_then(|size| disjoint.change(|params| params.slab_min_size = size))
            }
            "max_poolable_size" => {
                query.new_size().and_then(|size| disjoint.change(|params| params.max_poolable_size = size))
            }
            "capacity" => {
                query.new_size().and_then(|slabs| disjoint.change(|params| params.capacity = slabs))
            }
            "min_bucket_size" => {
                let size = checked_bucket(query.new_size()?)?;
                disjoint.change(|params| params.min_bucket_size = Some(size))
            }
            "pool_trace" => query.new_int().and_then(|level| disjoint.change(|params| params.trace = level)),
            _ => Err(no_such_path()),
        };
    }
    let params = &disjoint.made()?.params;
    query.read_only(match name {
        "slab_min_size" => Value::Size(params.slab_min_size),
        "max_poolable_size" => Value::Size(params.max_poolable_size),
        "capacity" => Value::Size(params.capacity),
        "min_bucket_size" => Value::Size(params.min_bucket_size.unwrap_or(0)),
        "pool_trace" => Value::Int(params.trace),
        _ => return Err(no_such_path()),
    })
}

fn size(value: u64) -> Value<'static> {
    Value::Size(usize::try_from(value).unwrap_or(usize::MAX))
}

fn statistic(made: &BuiltPool, query: &CtlQuery<'_>) -> Outcome<()> {
    match query.path() {
        "used_memory" => query.read_only(size(made.slab.statistics().live_bytes)),
        "reserved_memory" => query.read_only(size(made.slab.statistics().reserved_bytes)),
        counter => {
            let counted = Counter::named(counter).ok_or(no_such_path())?;
            let counts = made.counts.as_ref().filter(|_| counted.is_counted_at(made.params.trace));
            let counts = counts.ok_or(UNTRACED)?;
            let sum =
                counts.all().iter().enumerate().map(|(bucket, count)| counted.of(made, bucket, count)).sum();
            query.read_only(size(sum))
        }
    }
}

const UNTRACED: Failure =
    Failure::unsupported("that is counted in pools with a trace level: 1 for slabs, 2 for blocks");

fn bucket(made: &BuiltPool, query: &CtlQuery<'_>) -> Outcome<()> {
    if query.path() == "count" {
        return query.read_only(Value::Size(made.sizes.len()));
    }
    let (index, below) = query.index()?.ok_or(no_such_path())?;
    let none = Failure::argument("the pool does not have as many buckets");
    let block = *made.sizes.get(index).ok_or(none.clone())?;
    match below.path().split_once('.') {
        None if below.path() == "size" => below.read_only(Value::Size(block)),
        Some(("stats", counter)) => {
            let counted = Counter::named(counter).ok_or(no_such_path())?;
            let counts = made.counts.as_ref().filter(|_| counted.is_counted_at(made.params.trace));
            let count = counts.ok_or(UNTRACED)?.bucket(index).ok_or(none)?;
            below.read_only(size(counted.of(made, index, count)))
        }
        _ => Err(no_such_path()),
    }
}

/// A counter of a traced pool.
#[derive(Clone, Copy, PartialEq)]
enum Counter {
    Allocations,
    FromPool,
    Frees,
    InUse,
    InPool,
    MostInUse,
    MostInPool,
}

impl Counter {
    fn named(name: &str) -> Option<Self> {
        Some(match name {
            "alloc_num" => Self::Allocations,
            "alloc_pool_num" => Self::FromPool,
            "free_num" => Self::Frees,
            "curr_slabs_in_use" => Self::InUse,
            "curr_slabs_in_pool" => Self::InPool,
            "max_slabs_in_use" => Self::MostInUse,
            "max_slabs_in_pool" => Self::MostInPool,
            _ => return None,
        })
    }

    const fn is_counted_at(self, trace: i32) -> bool {
        match self {
            Self::Allocations | Self::FromPool | Self::Frees => trace >= 2,
            _ => trace >= 1,
        }
    }

    /// Returns the counter's value. Slabs are computed from blocks: the slab pool suballocates
    /// regions on demand.
    fn of(self, made: &BuiltPool, bucket: usize, count: &BucketCounters) -> u64 {
        let Some(&block) = made.sizes.get(bucket) else {
            // Blocks larger than all buckets have no slabs.
            return match self {
                Self::Allocations => count.allocations.load(Ordering::Relaxed),
                Self::Frees => count.frees.load(Ordering::Relaxed),
                _ => 0,
            };
        };
        let blocks_per_slab = (made.params.slab_min_size / block).max(1) as u64;
        match self {
            Self::Allocations => count.allocations.load(Ordering::Relaxed),
            Self::FromPool => count.from_pool.load(Ordering::Relaxed),
            Self::Frees => count.frees.load(Ordering::Relaxed),
            Self::InUse => count.live().div_ceil(blocks_per_slab),
            Self::MostInUse => count.most_in_use.load(Ordering::Relaxed).div_ceil(blocks_per_slab),
            Self::InPool | Self::MostInPool => {
                let cached = Self::empty_slabs(made, block);
                count.most_in_pool.fetch_max(cached, Ordering::Relaxed);
                let most = count.most_in_pool.load(Ordering::Relaxed);
                if self == Self::InPool { cached } else { most }
            }
        }
    }

    /// Returns the number of slabs of a size without live blocks, if live blocks share slabs as far
    /// as they fit. A block without a slab counts as one.
    fn empty_slabs(made: &BuiltPool, block: usize) -> u64 {
        let totals = made.slab.map().map(|map| map.totals()).unwrap_or_default();
        let empty = |size: &SizeTotals| {
            let used = size.live + size.held;
            match size.slabs {
                0 => size.cached,
                slabs => slabs - used.div_ceil(((used + size.cached) / slabs).max(1)).min(slabs),
            }
        };
        totals.sizes.iter().filter(|size| size.block_size == block as u64).map(empty).sum()
    }
}
