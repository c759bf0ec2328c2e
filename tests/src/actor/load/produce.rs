//! A producer of the kill matrix.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use umf::host::HostProvider;
use umf::{Address, Exchange, Exporter, Mapping, Mode, OnFree, Pool, View, Visibility};
use umf_tests::Rng;
use umf_tests::block_table::{BlockRecord, BlockState, ENTRIES_PER_PRODUCER};

use super::Work;
use crate::memory::{self, fill};
use crate::{Answer, Failure};

/// Exported and recorded block.
struct Block {
    address: Address,
    number: u64,
    entry: u64,
    /// Whether the block belongs to the thread's own pool, and not to the shared one.
    own: bool,
}

/// State of a producer thread.
struct Thread<'a> {
    work: &'a Work<'a>,
    incarnation: u64,
    kind: &'a PoolKind<'a>,
    shared: &'a Pool,
    own: Option<Pool>,
    blocks: Vec<Block>,
    free_entries: Vec<u64>,
    rng: Rng,
    killed: &'a AtomicU64,
}

/// Kind of the pools, and their handling of blocks that are freed while open.
pub(super) struct PoolKind<'a> {
    name: &'a str,
    on_free: OnFree,
    max_held: u64,
}

impl<'a> PoolKind<'a> {
    pub(super) fn new(name: &'a str, on_free: &str, max_held: &str) -> Result<Self, Failure> {
        let on_free = match on_free {
            "hold" => OnFree::Hold,
            "release" => OnFree::Release,
            _ => return Err(Failure::unknown(on_free)),
        };
        Ok(Self { name, on_free, max_held: max_held.parse()? })
    }

    fn pool(&self) -> Result<Pool, Failure> {
        let pool = pool(self.name)?;
        pool.set_on_free(self.on_free, self.max_held)?;
        Ok(pool)
    }
}

type Activity<'a> = fn(&mut Thread<'a>) -> Result<(), Failure>;

/// Returns the activities of a thread besides exporting and freeing blocks.
fn activities<'a>() -> [Activity<'a>; 8] {
    [
        Thread::drop_pool,
        Thread::trim,
        Thread::evict,
        Thread::export_elsewhere,
        Thread::other_memory,
        Thread::named_memory,
        Thread::poll,
        Thread::fork,
    ]
}

/// Runs threads that allocate, export, record, retire and free blocks of pools of this kind, and
/// that create and drop pools.
pub(super) fn run(work: &Work<'_>, incarnation: &str, kind: &PoolKind<'_>) -> Answer {
    let incarnation: u64 = incarnation.parse()?;
    let killed = AtomicU64::new(0);
    let shared = kind.pool()?;
    let read_only = kind.name == "read-only";
    work.in_threads(|number| {
        let share = ENTRIES_PER_PRODUCER / work.threads;
        let mut thread = Thread {
            work,
            incarnation,
            kind,
            shared: &shared,
            own: Some(kind.pool()?),
            blocks: Vec::new(),
            free_entries: (number * share..(number + 1) * share).collect(),
            rng: Rng::new(work.seed ^ number << 48),
            killed: &killed,
        };
        // Each activity once, in random order; then activities at random.
        let mut order = activities();
        thread.rng.shuffle(&mut order);
        for activity in order {
            for _ in 0..4 {
                thread.export(read_only)?;
            }
            activity(&mut thread)?;
        }
        while !work.has_ended() {
            match thread.rng.below(400) {
                0..8 => thread.rng.choose(&activities()[..8])(&mut thread)?,
                8 => thread.fork()?,
                9..180 => thread.export(read_only)?,
                _ => thread.free_one()?,
            }
        }
        while !thread.blocks.is_empty() {
            thread.free_one()?;
        }
        drop(thread.own.take());
        Ok(())
    })?;
    drop(shared);
    umf::exporter()?.evict_idle();
    umf::importer()?.evict_idle();
    umf_runtime::deferred::poll();
    let blocks = work.numbers.load(Ordering::Relaxed);
    Ok(format!("blocks={blocks} children_killed={}", killed.into_inner()))
}

fn shared_provider() -> umf::host::HostBuilder {
    HostProvider::builder().visibility(Visibility::Shared)
}

fn pool(kind: &str) -> Result<Pool, Failure> {
    let over = |provider| -> Result<Pool, Failure> { Ok(Pool::builder().provider(provider).build()?) };
    let proxy = |provider: Arc<HostProvider>| -> Result<Pool, Failure> {
        Ok(Pool::from_pool(umf::pools::ProxyPool::new(provider)?))
    };
    // One dma-buf for many blocks, or one for each block.
    if let Some(source) = kind.strip_prefix("dma-buf-slab-") {
        let provider = umf_tests::machine::dma_buf_provider(source)?.name("kill").build()?;
        return Ok(Pool::builder().provider(provider).build()?);
    }
    if let Some(source) = kind.strip_prefix("dma-buf-proxy-") {
        let provider = umf_tests::machine::dma_buf_provider(source)?.name("kill").build()?;
        return Ok(Pool::from_pool(umf::pools::ProxyPool::new(provider)?));
    }
    match kind {
        "shared" => over(shared_provider().arena_size(8 << 20).build()?),
        // A file for each block.
        "isolated" => proxy(shared_provider().isolate(true).build()?),
        "proxy" => proxy(shared_provider().arena_size(1 << 20).build()?),
        "read-only" => proxy(shared_provider().read_only_export(true).build()?),
        _ => Err(Failure::unknown(kind)),
    }
}

impl Thread<'_> {
    fn pool(&self, own: bool) -> &Pool {
        self.own.as_ref().filter(|_| own).unwrap_or(self.shared)
    }

    /// Allocates, exports and records a block.
    fn export(&mut self, read_only: bool) -> Result<(), Failure> {
        let Some(entry) = self.free_entries.pop() else { return self.free_one() };
        let own = self.rng.one_in(2);
        let size = *self.rng.choose(&[24, 64, 192, 192, 1000, 5000, 40_000]);
        let number = self.incarnation << 32 | (self.work.numbers.fetch_add(1, Ordering::Relaxed) + 1);
        let Some(block) = unless_at_limit(self.pool(own).allocate(size))? else { return self.free_one() };
        let address = block.into_address();
        fill(slice(address, size), number);
        let evictable = self.rng.one_in(8);
        let handle = if evictable {
            // SAFETY: the memory is accessed by copies alone.
            *unsafe { umf::exporter()?.get(address) }?.handle()
        } else {
            memory::handle(address)?
        };
        let record = BlockRecord {
            number,
            incarnation: self.incarnation,
            size: size as u64,
            evictable,
            read_only,
            release: self.kind.on_free == OnFree::Release,
            handle: handle.to_bytes(),
        };
        self.work.table.entry_of(self.incarnation, entry).write(&record);
        self.blocks.push(Block { address, number, entry, own });
        Ok(())
    }

    /// Frees a block. The next allocation usually reuses its memory.
    fn free_one(&mut self) -> Result<(), Failure> {
        if self.blocks.is_empty() {
            return Ok(());
        }
        let index = self.rng.below(self.blocks.len() as u64);
        let block = self.blocks.swap_remove(usize::try_from(index)?);
        let entry = self.work.table.entry_of(self.incarnation, block.entry);
        entry.set_state(block.number, BlockState::Freeing);
        // SAFETY: the thread owns the block, and no reference into it exists.
        unsafe { self.pool(block.own).as_core().free(block.address) }?;
        entry.set_state(block.number, BlockState::Freed);
        self.free_entries.push(block.entry);
        Ok(())
    }

    /// Drops the thread's pool with its blocks, and creates another, often at the same addresses.
    fn drop_pool(&mut self) -> Result<(), Failure> {
        let (dropped, rest): (Vec<_>, Vec<_>) = self.blocks.drain(..).partition(|block| block.own);
        self.blocks = rest;
        let set = |state| {
            for block in &dropped {
                self.work.table.entry_of(self.incarnation, block.entry).set_state(block.number, state);
            }
        };
        set(BlockState::Freeing);
        drop(self.own.take());
        set(BlockState::Freed);
        self.free_entries.extend(dropped.iter().map(|block| block.entry));
        self.own = Some(self.kind.pool()?);
        Ok(())
    }

    /// Frees most blocks and trims the pools.
    fn trim(&mut self) -> Result<(), Failure> {
        while self.blocks.len() > 2 {
            self.free_one()?;
        }
        self.pool(true).trim(0)?;
        self.pool(false).trim(0)?;
        Ok(())
    }

    /// Completes the deferred frees of blocks that no process has open.
    fn poll(&mut self) -> Result<(), Failure> {
        umf_runtime::deferred::poll();
        Ok(())
    }

    /// Retires the idle exports.
    fn evict(&mut self) -> Result<(), Failure> {
        umf::exporter()?.evict_idle();
        Ok(())
    }

    /// Creates another exporter, with its own socket and ledger, and drops it.
    fn export_elsewhere(&mut self) -> Result<(), Failure> {
        let mut settings = umf::exporter()?.settings().clone();
        let in_directory = settings.directory.is_some();
        let modes = Mode::ALL.into_iter();
        let modes = modes.filter(|&mode| mode != Mode::Directory || in_directory);
        settings.exchange = Exchange::Order(modes.collect());
        let exporter = Exporter::new(settings)?;
        let Some(block) = unless_at_limit(self.shared.allocate(64))? else { return Ok(()) };
        // SAFETY: the memory is accessed by copies alone.
        let handle = *unsafe { exporter.get(block.address()) }?.handle();
        unless_timed_out(umf::open_read_only(&handle))?;
        drop(exporter);
        match umf::open_read_only(&handle) {
            Err(umf::Error::Ipc(umf::ipc::Error::Stale { .. } | umf::ipc::Error::ProducerGone { .. })) => {
                Ok(())
            }
            // The socket is gone: this may be another directory than the exporter's.
            Err(umf::Error::Ipc(umf::ipc::Error::NotPermitted { .. })) if in_directory => Ok(()),
            other => {
                Err(Failure::new("Violation", format!("an open after the exporter was dropped: {other:?}")))
            }
        }
    }

    /// Allocates private memory, and memory whose pages are populated at once.
    fn other_memory(&mut self) -> Result<(), Failure> {
        drop(Pool::private()?.allocate(3 << 20)?);
        let reserved = shared_provider().arena_size(1 << 20).populate(true).build()?;
        drop(Pool::from_pool(umf::pools::ProxyPool::new(reserved)?).allocate(8192)?);
        Ok(())
    }

    fn named_memory(&mut self) -> Result<(), Failure> {
        // `ProcessSnapshot` finds names with the pid between dashes.
        let number = self.rng.next_u64();
        let name = format!("/umf-kill-{}-{number:x}", std::process::id());
        let provider = shared_provider().named(name).arena_size(1 << 20).build()?;
        drop(Pool::builder().provider(provider).build()?.allocate(100)?);
        Ok(())
    }

    /// Forks a child. Its inherited pools must be frozen. It opens a block of its parent, and
    /// exports blocks of a new pool.
    fn fork(&mut self) -> Result<(), Failure> {
        let mut rng = self.rng.clone();
        let frozen = self.pool(true);
        let parent = self.blocks.first().map(|block| block.entry);
        let killed = self.work.in_child(|| {
            match frozen.allocate(64) {
                Err(umf::Error::Memory(umf_core::Error::Frozen { .. })) => {}
                other => return Err(Failure::new("NotFrozen", format!("{other:?}"))),
            }
            if let Some(entry) = parent {
                let index =
                    self.incarnation % umf_tests::block_table::PRODUCERS * ENTRIES_PER_PRODUCER + entry;
                super::oracle::open(self.work.table, index, umf::Access::ReadOnly)?;
            }

            let fresh = pool(if self.kind.name.starts_with("dma-buf") { self.kind.name } else { "shared" })?;
            for _ in 0..4 {
                let block = fresh.allocate(200)?;
                let seed = rng.next_u64();
                fill(block.view()?, seed);
                let handle = block.handle()?;
                let mut content = vec![0; block.len()];
                if let Some(mapping) = unless_timed_out(umf::open(&handle))? {
                    mapping.read(0, &mut content)?;
                    if !memory::holds(&content, seed) {
                        return Err(Failure::new("WrongContent", "an export of a child"));
                    }
                }
                drop(block);
                match umf::open(&handle) {
                    Err(umf::Error::Ipc(
                        umf::ipc::Error::Stale { .. } | umf::ipc::Error::TimedOut { .. },
                    )) => {}
                    other => return Err(Failure::new("NotStale", format!("{other:?}"))),
                }
            }
            Ok(())
        })?;
        self.killed.fetch_add(u64::from(killed), Ordering::Relaxed);
        Ok(())
    }
}

/// Maps the error of a pool at its limit of deferred frees to `None`.
fn unless_at_limit<T>(allocated: umf::Result<T>) -> Result<Option<T>, Failure> {
    match allocated {
        Err(umf::Error::Memory(umf_core::Error::HeldLimit { .. })) => Ok(None),
        other => Ok(Some(other?)),
    }
}

/// Maps a timeout to `None`: the socket thread of this process may not be scheduled in time.
fn unless_timed_out(opened: umf::Result<Mapping<'static>>) -> Result<Option<Mapping<'static>>, Failure> {
    match opened {
        Err(umf::Error::Ipc(umf::ipc::Error::TimedOut { .. })) => Ok(None),
        other => Ok(Some(other?)),
    }
}

/// Returns the memory of a block.
fn slice<'a>(address: Address, size: usize) -> View<'a> {
    // SAFETY: the caller's own live block of host memory, whose bytes may change at any time.
    unsafe { View::new(address.as_ptr().unwrap(), size) }.unwrap()
}
