//! A producer under load.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use umf::host::HostProvider;
use umf::ipc::ExporterSettings;
use umf::{Address, Exchange, Exporter, Mapping, Mode, OnFree, Pool, View, Visibility};
use umf_tests::Sequence;
use umf_tests::board::{ENTRIES, Note, State};

use super::Work;
use crate::memory::{self, fill};
use crate::{Answer, Failure};

/// A block on the board.
struct Block {
    address: Address,
    number: u64,
    entry: u64,
    /// Of the thread's own pool, not of the one that all threads share.
    own: bool,
}

/// One thread of a producer.
struct Thread<'a> {
    work: &'a Work<'a>,
    who: u64,
    kind: &'a Kind<'a>,
    shared: &'a Pool,
    own: Option<Pool>,
    blocks: Vec<Block>,
    free_entries: Vec<u64>,
    sequence: Sequence,
    killed: &'a AtomicU64,
}

/// Of which kind the pools are, and what they do with what is freed while it is open.
pub(super) struct Kind<'a> {
    name: &'a str,
    on_free: OnFree,
    max_held: u64,
}

impl<'a> Kind<'a> {
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

/// What a thread does besides exporting and freeing blocks.
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

/// Threads allocate, export, write down, retire and free blocks of pools of this kind; pools come and go.
pub(super) fn run(work: &Work<'_>, who: &str, kind: &Kind<'_>) -> Answer {
    let who: u64 = who.parse()?;
    let killed = AtomicU64::new(0);
    let shared = kind.pool()?;
    let read_only = kind.name == "read-only";
    work.in_threads(|number| {
        let share = ENTRIES / work.threads;
        let mut thread = Thread {
            work,
            who,
            kind,
            shared: &shared,
            own: Some(kind.pool()?),
            blocks: Vec::new(),
            free_entries: (number * share..(number + 1) * share).collect(),
            sequence: Sequence::new(work.seed ^ number << 48),
            killed: &killed,
        };
        // All of it once, in whatever order; then as it comes.
        let mut tour = activities();
        thread.sequence.shuffle(&mut tour);
        for activity in tour {
            for _ in 0..4 {
                thread.export(read_only)?;
            }
            activity(&mut thread)?;
        }
        while !work.has_ended() {
            match thread.sequence.below(400) {
                0..8 => thread.sequence.of(&activities()[..8])(&mut thread)?,
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
    umf_runtime::held::poll();
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
    // A buffer for many blocks, or for each.
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
        // A file, and an fd number, for each block.
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

    /// Allocates a block, exports it and writes it down.
    fn export(&mut self, read_only: bool) -> Result<(), Failure> {
        let Some(entry) = self.free_entries.pop() else { return self.free_one() };
        let own = self.sequence.one_in(2);
        let size = *self.sequence.of(&[24, 64, 192, 192, 1000, 5000, 40_000]);
        let number = self.who << 32 | (self.work.numbers.fetch_add(1, Ordering::Relaxed) + 1);
        let Some(block) = unless_held(self.pool(own).allocate(size))? else { return self.free_one() };
        let address = block.into_address();
        fill(slice(address, size), number);
        let evictable = self.sequence.one_in(8);
        let handle = if evictable {
            // SAFETY: the memory is touched by copies alone.
            *unsafe { umf::exporter()?.get(address) }?.handle()
        } else {
            memory::handle(address)?
        };
        let note = Note {
            number,
            who: self.who,
            size: size as u64,
            evictable,
            read_only,
            release: self.kind.on_free == OnFree::Release,
            handle: handle.to_bytes(),
        };
        self.work.board.entry_of(self.who, entry).write(&note);
        self.blocks.push(Block { address, number, entry, own });
        Ok(())
    }

    /// Frees a block. What it is freed for is used again at once, most often.
    fn free_one(&mut self) -> Result<(), Failure> {
        if self.blocks.is_empty() {
            return Ok(());
        }
        let place = self.sequence.below(self.blocks.len() as u64);
        let block = self.blocks.swap_remove(usize::try_from(place)?);
        let entry = self.work.board.entry_of(self.who, block.entry);
        entry.set(block.number, State::Freeing);
        // SAFETY: the thread's own block, which nothing borrows.
        unsafe { self.pool(block.own).as_core().free(block.address) }?;
        entry.set(block.number, State::Freed);
        self.free_entries.push(block.entry);
        Ok(())
    }

    /// The pool goes with all blocks in it, and another comes: often at the same addresses.
    fn drop_pool(&mut self) -> Result<(), Failure> {
        let (gone, stay): (Vec<_>, Vec<_>) = self.blocks.drain(..).partition(|block| block.own);
        self.blocks = stay;
        let set = |state| {
            for block in &gone {
                self.work.board.entry_of(self.who, block.entry).set(block.number, state);
            }
        };
        set(State::Freeing);
        drop(self.own.take());
        set(State::Freed);
        self.free_entries.extend(gone.iter().map(|block| block.entry));
        self.own = Some(self.kind.pool()?);
        Ok(())
    }

    /// Most blocks are freed, and their memory goes back.
    fn trim(&mut self) -> Result<(), Failure> {
        while self.blocks.len() > 2 {
            self.free_one()?;
        }
        self.pool(true).trim(0)?;
        self.pool(false).trim(0)?;
        Ok(())
    }

    /// What nobody has open any more is let go.
    fn poll(&mut self) -> Result<(), Failure> {
        umf_runtime::held::poll();
        Ok(())
    }

    /// Exports that nobody holds are retired.
    fn evict(&mut self) -> Result<(), Failure> {
        umf::exporter()?.evict_idle();
        Ok(())
    }

    /// An exporter with a socket comes, and goes: with a ledger of its own.
    fn export_elsewhere(&mut self) -> Result<(), Failure> {
        let mut settings = ExporterSettings::default();
        settings.exchange = Exchange::Order(vec![Mode::Pidfd, Mode::Procfs, Mode::Socket]);
        let exporter = Exporter::new(settings)?;
        let Some(block) = unless_held(self.shared.allocate(64))? else { return Ok(()) };
        // SAFETY: the memory is touched by copies alone.
        let handle = *unsafe { exporter.get(block.address()) }?.handle();
        own(umf::open_read_only(&handle))?;
        drop(exporter);
        match umf::open_read_only(&handle) {
            Err(umf::Error::Ipc(umf::ipc::Error::Stale { .. } | umf::ipc::Error::ProducerGone { .. })) => {
                Ok(())
            }
            other => Err(Failure::new("Lie", format!("its exporter was dropped: {other:?}"))),
        }
    }

    /// Memory that nobody else has, and memory whose pages are made at once.
    fn other_memory(&mut self) -> Result<(), Failure> {
        drop(Pool::private()?.allocate(3 << 20)?);
        let reserved = shared_provider().arena_size(1 << 20).populate(true).build()?;
        drop(Pool::from_pool(umf::pools::ProxyPool::new(reserved)?).allocate(8192)?);
        Ok(())
    }

    fn named_memory(&mut self) -> Result<(), Failure> {
        // With the pid between dashes, as the census looks for it.
        let number = self.sequence.number();
        let name = format!("/umf-kill-{}-{number:x}", std::process::id());
        let provider = shared_provider().named(name).arena_size(1 << 20).build()?;
        drop(Pool::builder().provider(provider).build()?.allocate(100)?);
        Ok(())
    }

    /// The child has pools that are frozen, exports of its own, and its parent's blocks to open.
    fn fork(&mut self) -> Result<(), Failure> {
        let mut sequence = self.sequence.clone();
        let frozen = self.pool(true);
        let parent = self.blocks.first().map(|block| block.entry);
        let killed = self.work.in_child(|| {
            match frozen.allocate(64) {
                Err(umf::Error::Memory(umf_core::Error::Frozen { .. })) => {}
                other => return Err(Failure::new("NotFrozen", format!("{other:?}"))),
            }
            if let Some(entry) = parent {
                let index = self.who % umf_tests::board::PLACES * ENTRIES + entry;
                super::judge::open(self.work.board, index, umf::Access::ReadOnly)?;
            }
            // (Children are many, and forked from threads that hold much.)
            let fresh = pool(if self.kind.name.starts_with("dma-buf") { self.kind.name } else { "shared" })?;
            for _ in 0..4 {
                let block = fresh.allocate(200)?;
                let seed = sequence.number();
                fill(block.view()?, seed);
                let handle = block.handle()?;
                let mut content = vec![0; block.len()];
                if let Some(mapping) = own(umf::open(&handle))? {
                    mapping.read(0, &mut content)?;
                    if !memory::holds(&content, seed) {
                        return Err(Failure::new("WrongContent", "of a child's own export"));
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

/// What was allocated, unless too much is held for others.
fn unless_held<T>(allocated: umf::Result<T>) -> Result<Option<T>, Failure> {
    match allocated {
        Err(umf::Error::Memory(umf_core::Error::HeldLimit { .. })) => Ok(None),
        other => Ok(Some(other?)),
    }
}

/// What came of opening a handle of this process's own: the thread that answers may have no turn in time.
fn own(opened: umf::Result<Mapping<'static>>) -> Result<Option<Mapping<'static>>, Failure> {
    match opened {
        Err(umf::Error::Ipc(umf::ipc::Error::TimedOut { .. })) => Ok(None),
        other => Ok(Some(other?)),
    }
}

/// The memory of a block.
fn slice<'a>(address: Address, size: usize) -> View<'a> {
    // SAFETY: the caller's own live block of host memory, whose bytes may change at any time.
    unsafe { View::new(address.as_ptr().unwrap(), size) }.unwrap()
}
