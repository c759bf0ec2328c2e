//! Producer threads. They create pools of every kind, export and free blocks, and drop pools with
//! live blocks.

use std::sync::atomic::{Ordering, fence};
use std::time::{Duration, Instant};

use umf::ipc::{self, Export, ExporterSettings};
use umf::{Address, Exporter, Handle};
use umf_core::{Error, Layout, Pool, pool};
use umf_runtime::deferred;

use crate::checker::{Guarantee, violation};
use crate::content;
use crate::pools::RandomPool;
use crate::shared::{Activity, BlockState, Counter, Flags, Publication, count};
use crate::worker::Thread;

/// Maximum number of pools of a thread.
const POOLS: usize = 4;
/// Maximum number of live blocks of a pool.
const BLOCKS: usize = 160;
/// Maximum number of live blocks of an isolated pool, whose blocks have a file each.
const ISOLATED_BLOCKS: usize = 24;
/// Number of times that a producer checks whether importers have closed its blocks.
const LEASE_END_CHECKS: u32 = 400;
/// Pause between two of these checks.
const LEASE_END_PAUSE: Duration = Duration::from_millis(5);
/// Polls after which the frees of blocks that no process has open must be complete.
const POLLS: u32 = 200;

/// A live block, and the guards that keep its exports from being evicted.
struct Block<'w> {
    address: Address,
    id: u64,
    size: u64,
    guards: Vec<Export<'w>>,
}

struct PoolWithBlocks<'w> {
    made: RandomPool,
    blocks: Vec<Block<'w>>,
}

impl PoolWithBlocks<'_> {
    const fn max_blocks(&self) -> usize {
        if self.made.isolated { ISOLATED_BLOCKS } else { BLOCKS }
    }
}

/// Runs a producer thread until `end`.
pub fn run(mut thread: Thread<'_>, end: Instant) {
    let mut pools: Vec<PoolWithBlocks<'_>> = Vec::new();
    while thread.is_running(end) {
        count(Counter::Rounds);
        if pools.is_empty() || pools.len() < POOLS && thread.random.one_in(200) {
            thread.tick(Activity::MakePool);
            match thread.worker.maker.make(&mut thread.random) {
                Ok(made) => pools.push(PoolWithBlocks { made, blocks: Vec::new() }),
                Err(error) => {
                    count(Counter::Refused);
                    crate::checker::print(&format!("hostile: a pool cannot be made: {error}\n"));
                    thread.pause(Duration::from_millis(50));
                    continue;
                }
            }
        }
        let chosen = thread.random.below(pools.len() as u64) as usize;
        let own = &mut pools[chosen];
        match thread.random.below(1000) {
            0..450 if own.blocks.len() < own.max_blocks() => add_block(&mut thread, own),
            0..850 if !own.blocks.is_empty() => {
                let block = own.blocks.swap_remove(thread.random.below(own.blocks.len() as u64) as usize);
                if thread.random.one_in(5) {
                    replace(&mut thread, own, block);
                } else {
                    free(&mut thread, &*own.made.pool, block);
                }
            }
            850..915 => trim(&mut thread, &*own.made.pool),
            915..935 => {
                thread.tick(Activity::Evict);
                let exporters = &thread.worker.exporters;
                exporters[thread.random.below(exporters.len() as u64) as usize].exporter.evict_idle();
                count(Counter::Evictions);
            }
            935..945 => {
                thread.tick(Activity::Drain);
                own.made.drain(Duration::from_millis(thread.random.below(3)));
            }
            945..960 => destroy(&mut thread, pools.swap_remove(chosen)),
            960..970 => {
                thread.tick(Activity::Drain);
                deferred::poll();
            }
            970..980 => short_lived_exporter(&mut thread, own),
            980..984 => await_lease_end(&mut thread),
            _ => {
                thread.tick(Activity::Pause);
                thread.pause(Duration::from_micros(300));
            }
        }
    }
    for own in pools {
        destroy(&mut thread, own);
    }
}

/// Returns a random size. Most are small, and a few need a region each.
fn random_size(thread: &mut Thread<'_>) -> u64 {
    let words = match thread.random.below(100) {
        0 => 600_000,
        1..10 => 40_000,
        10..40 => 2048,
        _ => 64,
    };
    8 * (1 + thread.random.below(words))
}

/// Allocates and fills a block. Returns `None` if a limit is reached or the system has no memory.
fn allocate<'w>(
    thread: &mut Thread<'_>,
    made: &RandomPool,
    size: u64,
    alignment: usize,
) -> Option<Block<'w>> {
    thread.tick(Activity::Allocate);
    let layout = Layout::new(size as usize, alignment).ok()?;
    let address = match pool::allocate(&*made.pool, layout) {
        Ok(address) => address,
        Err(
            Error::HeldLimit { .. }
            | Error::LimitReached { .. }
            | Error::OutOfMemory { .. }
            | Error::BadAlignment { .. },
        ) => {
            count(Counter::Refused);
            return None;
        }
        Err(error) => {
            violation(Guarantee::Interface, format_args!("an allocation from a {} pool: {error}", made.kind));
            return None;
        }
    };
    count(Counter::Allocations);
    let shared = thread.worker.shared;
    let id = shared.new_block();
    if let Err(error) = content::fill(&*made.pool, address, id, size) {
        violation(Guarantee::Interface, format_args!("filling a block of a {} pool: {error}", made.kind));
    }
    shared.set_state(id, BlockState::Live);
    Some(Block { address, id, size, guards: Vec::new() })
}

/// Allocates a block and exports it once or twice.
fn add_block<'w>(thread: &mut Thread<'w>, own: &mut PoolWithBlocks<'w>) {
    let size = random_size(thread);
    let alignment = if thread.random.one_in(10) { 1 << thread.random.below(13) } else { 8 };
    let Some(mut block) = allocate(thread, &own.made, size, alignment.max(8)) else {
        if let Some(old) = own.blocks.pop() {
            free(thread, &*own.made.pool, old);
        }
        return;
    };
    for _ in 0..=thread.random.below(2) {
        export(thread, &own.made, &mut block);
    }
    own.blocks.push(block);
}

/// Exports a block with one of the worker's exporters, and publishes the handle.
fn export<'w>(thread: &mut Thread<'w>, made: &RandomPool, block: &mut Block<'w>) {
    thread.tick(Activity::Export);
    let exporters = &thread.worker.exporters;
    let chosen = &exporters[thread.random.below(exporters.len() as u64) as usize];
    let mut evictable = false;
    let exported = if thread.random.one_in(2) {
        // SAFETY: this process holds no reference into the block.
        unsafe { chosen.exporter.handle(block.address) }
    } else {
        // SAFETY: this process holds no reference into the block.
        unsafe { chosen.exporter.get(block.address) }.map(|guard| {
            let handle = *guard.handle();
            if thread.random.one_in(8) {
                evictable = true;
            } else {
                block.guards.push(guard);
            }
            handle
        })
    };
    match exported {
        Ok(handle) => {
            count(Counter::Exports);
            let flags = flags(thread, made, chosen.served, evictable);
            publish(thread, &handle, block, flags);
        }
        Err(ipc::Error::LimitReached { .. }) => count(Counter::Refused),
        Err(error) => violation(
            Guarantee::Interface,
            format_args!("exporting a block of a {} pool: {error}", made.kind),
        ),
    }
}

fn flags(thread: &Thread<'_>, made: &RandomPool, served: bool, evictable: bool) -> Flags {
    Flags {
        release: made.release,
        served,
        read_only: made.read_only,
        namespace: thread.worker.namespace,
        evictable,
        user: thread.worker.user,
        device: made.kind.is_device(),
    }
}

fn publish(thread: &mut Thread<'_>, handle: &Handle, block: &Block<'_>, flags: Flags) {
    let publication = Publication {
        id: block.id,
        size: block.size,
        flags,
        producer: thread.worker.identity,
        handle: *handle.as_bytes(),
    };
    thread.worker.shared.publish(thread.random.next_u64(), &publication);
}

/// Allocates a block of the same size, then frees the old one, as a reallocation does.
fn replace<'w>(thread: &mut Thread<'w>, own: &mut PoolWithBlocks<'w>, old: Block<'w>) {
    let new = allocate(thread, &own.made, old.size, 8);
    free(thread, &*own.made.pool, old);
    if let Some(mut new) = new {
        export(thread, &own.made, &mut new);
        own.blocks.push(new);
    }
}

/// Records that a block is about to be freed.
fn record_freeing(thread: &Thread<'_>, id: u64) {
    let shared = thread.worker.shared;
    shared.set_state(id, BlockState::Freeing);
    if shared.holders(id) != 0 {
        count(Counter::FreesOfOpen);
    }
    fence(Ordering::SeqCst);
}

/// Frees a block. Drops its guards before or after.
fn free(thread: &mut Thread<'_>, own: &dyn Pool, block: Block<'_>) {
    thread.tick(Activity::Free);
    record_freeing(thread, block.id);
    let Block { address, id, guards, .. } = block;
    let mut guards = Some(guards);
    if thread.random.one_in(2) {
        guards = None;
    }
    // SAFETY: the block is live, and this thread owns it.
    if let Err(error) = unsafe { pool::free(own, address) } {
        violation(Guarantee::Interface, format_args!("freeing live block {id} at {address}: {error}"));
    }
    drop(guards);
    thread.worker.shared.set_state(id, BlockState::Freed);
    count(Counter::Frees);
}

fn trim(thread: &mut Thread<'_>, own: &dyn Pool) {
    thread.tick(Activity::Trim);
    let keep = thread.random.below(1 << 22) as usize;
    let trimmed = match own.reserves() {
        Some(reserves) if thread.random.one_in(4) => reserves.purge(),
        _ => own.trim(keep),
    };
    if let Err(error) = trimmed {
        violation(Guarantee::Interface, format_args!("trimming a pool: {error}"));
    }
    count(Counter::Trims);
}

/// Drops a pool with its live blocks. Drops their guards before or after.
fn destroy(thread: &mut Thread<'_>, own: PoolWithBlocks<'_>) {
    thread.tick(Activity::DestroyPool);
    let PoolWithBlocks { made, blocks } = own;
    let ids: Vec<u64> = blocks.iter().map(|block| block.id).collect();
    for id in &ids {
        record_freeing(thread, *id);
    }
    if thread.random.one_in(2) {
        drop(blocks);
        drop(made);
    } else {
        drop(made);
        drop(blocks);
    }
    for id in ids {
        thread.worker.shared.set_state(id, BlockState::Freed);
    }
    count(Counter::Destroyed);
}

/// Exports a block with a new exporter, and drops the exporter while importers may open the handle.
fn short_lived_exporter(thread: &mut Thread<'_>, own: &PoolWithBlocks<'_>) {
    thread.tick(Activity::DropExporter);
    let Some(block) = own.blocks.first() else { return };
    let exporter = match Exporter::new(ExporterSettings::default()) {
        Ok(exporter) => exporter,
        Err(error) => return violation(Guarantee::Interface, format_args!("a second exporter: {error}")),
    };
    // SAFETY: this process holds no reference into the block.
    if let Ok(handle) = unsafe { exporter.handle(block.address) } {
        let flags = flags(thread, &own.made, false, true);
        publish(thread, &handle, block, flags);
        thread.pause(Duration::from_micros(500));
    }
    drop(exporter);
    count(Counter::ExportersDropped);
}

/// Frees all blocks of a new pool, waits until no worker has one open, and checks that all frees
/// complete.
fn await_lease_end(thread: &mut Thread<'_>) {
    thread.tick(Activity::AwaitLeaseEnd);
    let Ok(made) = thread.worker.maker.make(&mut thread.random) else { return };
    let mut own = PoolWithBlocks { made, blocks: Vec::new() };
    for _ in 0..=thread.random.below(6) {
        add_block(thread, &mut own);
    }
    thread.pause(Duration::from_millis(20));
    let ids: Vec<u64> = own.blocks.iter().map(|block| block.id).collect();
    for block in own.blocks.drain(..) {
        free(thread, &*own.made.pool, block);
    }
    let shared = thread.worker.shared;
    let busy = || ids.iter().any(|id| shared.holders(*id) != 0);
    for _ in 0..LEASE_END_CHECKS {
        thread.tick(Activity::AwaitLeaseEnd);
        if !busy() || shared.has_stopped() {
            break;
        }
        std::thread::sleep(LEASE_END_PAUSE);
    }
    if busy() {
        return count(Counter::LeaseEndsAbandoned);
    }
    for _ in 0..POLLS {
        thread.tick(Activity::AwaitLeaseEnd);
        if own.made.drain(Duration::from_millis(10)).is_empty() {
            return count(Counter::LeaseEnds);
        }
    }
    if busy() || shared.has_stopped() {
        return count(Counter::LeaseEndsAbandoned);
    }
    let held = own.made.drain(Duration::ZERO);
    violation(
        Guarantee::LeaseEnd,
        format_args!(
            "no worker has a block of a {} pool open, and after {POLLS} polls it holds {held:?}",
            own.made.kind
        ),
    );
}
