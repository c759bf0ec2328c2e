//! Commands for pools, blocks, regions, handles and mappings, and the state of the actor. If the
//! CPU cannot access memory, the device copies it.

use std::collections::HashMap;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;

use umf::host::HostProvider;
use umf::{Access, Address, Export, Handle, Mapping, Pool, View, Visibility};
use umf_core::{Layout, Region};
use umf_runtime::{Upstream, tracker};
use umf_tests::block_table::BlockTable;

use crate::{Answer, Failure};

/// Objects of the actor, by the names that commands give.
#[derive(Default)]
pub(crate) struct ActorState {
    pub(crate) pools: HashMap<String, Pool>,
    pub(crate) blocks: HashMap<String, RawBlock>,
    pub(crate) regions: HashMap<String, (Arc<Upstream>, Region)>,
    exports: HashMap<String, Export<'static>>,
    pub(crate) mappings: HashMap<String, Mapping<'static>>,
    pub(crate) domains: crate::domain::Domains,
    pub(crate) links: crate::link::Links,
    pub(crate) child: Option<(i32, UnixStream)>,
    pub(crate) taken: Vec<OwnedFd>,
    pub(crate) block_table: Option<BlockTable>,
    /// Counter of the block numbers that [`crate::load`] records.
    pub(crate) numbers: AtomicU64,
    /// Whether an armed failpoint may stop this process.
    pub(crate) may_stop: bool,
    /// Pids of the children that keep a block open.
    pub(crate) importers: Vec<i32>,
    /// Lease tables in which this process has locked rows.
    pub(crate) locked: Vec<std::fs::File>,
    /// Addresses of freed regions, with their provider.
    pub(crate) freed: Option<(Arc<Upstream>, std::collections::HashSet<Address>)>,
}

/// Address and size of a block. It does not borrow its pool, so that a test can drop a pool with
/// blocks in it, and does not free the block when dropped.
#[derive(Clone, Copy)]
pub(crate) struct RawBlock {
    pub(crate) address: Address,
    pub(crate) size: usize,
}

pub(crate) fn execute(actor: &mut ActorState, command: &str, words: &[&str]) -> Option<Answer> {
    Some(match (command, words) {
        ("pool", [name, kind @ ..]) => pool(actor, name, kind),
        ("drop-pool", [name]) => {
            actor.blocks.retain(|block, _| !block.starts_with(&format!("{name}.")));
            done(actor.pools.remove(*name))
        }
        // Answers with the bytes whose free is still deferred after so many milliseconds.
        ("drain", [milliseconds]) => {
            let time = std::time::Duration::from_millis(milliseconds.parse().unwrap_or(0));
            Ok(umf::drain(time).bytes.to_string())
        }
        ("held", []) => {
            let held = umf_runtime::deferred::statistics();
            Ok(format!("blocks={} regions={} bytes={}", held.blocks, held.regions, held.bytes))
        }
        ("reserve", [name, bytes]) => {
            actor.pool(name).and_then(|pool| Ok(pool.reserve(bytes.parse()?)?.to_string()))
        }
        ("trim", [name]) => actor.pool(name).and_then(|pool| Ok(pool.trim(0)?.to_string())),
        ("alloc", [pool, size, "->", name]) => alloc(actor, pool, size, name),
        ("free", [pool, name]) => free(actor, pool, name),
        ("address", [name]) => actor.address_of(name).map(|address| address.to_string()),
        ("handle", [name]) => actor.address_of(name).and_then(|address| Ok(handle(address)?.to_string())),
        // Answers with a handle for a message to so many readers.
        ("send", [name, readers]) => send(actor, name, readers),
        // The same of an open mapping, with the handle that it was opened with.
        ("pass-on", [name, handle, readers]) => pass_on(actor, name, handle, readers),
        ("cancel", [handle]) => {
            handle_of(handle).and_then(|handle| Ok(umf::cancel_handle(&handle)?.to_string()))
        }
        ("in-transit", []) => umf::handles_in_transit().map_err(Failure::from).map(|count| count.to_string()),
        ("export", [block, "->", name]) => export(actor, block, name),
        ("keep", [name]) => match actor.exports.remove(*name) {
            Some(export) => Ok(export.keep().to_string()),
            None => Err(Failure::unknown(name)),
        },
        ("unexport", [name]) => done(actor.exports.remove(*name)),
        ("evict-exports", []) => umf::exporter().map_err(Failure::from).map(|it| it.evict_idle().to_string()),
        ("region", [size, "->", name]) => region(actor, size, name),
        ("free-region", [name]) => free_region(actor, name),
        ("open", [handle, "->", name]) => open(actor, handle, Access::ReadWrite, name),
        ("open-read", [handle, "->", name]) => open(actor, handle, Access::ReadOnly, name),
        ("try", [handle]) => decode(handle).and_then(|bytes| probe(&bytes)),
        ("parse", [text]) => text.parse::<Handle>().map_err(Failure::from).map(|handle| handle.to_string()),
        ("close", [name]) => done(actor.mappings.remove(*name)),
        ("is_current", [name]) => actor.mapping(name).map(|mapping| mapping.is_current().to_string()),
        ("evict", []) => umf::importer().map_err(Failure::from).map(|it| it.evict_idle().to_string()),
        ("fill", [name, seed]) => {
            seed_of(seed).and_then(|seed| match actor.copied_into(name, |size| content(size, seed))? {
                true => Ok(String::new()),
                false => actor.with_memory(name, |memory| fill(memory, seed)),
            })
        }
        ("check", [name, seed]) => check(actor, name, seed),
        ("poke", [name]) => {
            actor.mapping(name).and_then(|it| Ok(it.write(0, b"x").map(|()| String::new())?))
        }
        ("importer", []) => umf::importer().map_err(Failure::from).map(|it| counters(it.statistics())),
        ("exporter", []) => umf::exporter().map_err(Failure::from).map(|it| counters(it.statistics())),
        ("nonce", []) => nonce(),
        ("settings", []) => umf::settings().map_err(Failure::from).map(|it| format!("{:?}", it.ipc)),
        _ => return None,
    })
}

fn done<T>(removed: Option<T>) -> Answer {
    if removed.is_some() { Ok(String::new()) } else { Err(Failure::unknown("")) }
}

impl ActorState {
    pub(crate) fn pool(&self, name: &str) -> Result<&Pool, Failure> {
        self.pools.get(name).ok_or_else(|| Failure::unknown(name))
    }

    pub(crate) fn block(&self, name: &str) -> Result<RawBlock, Failure> {
        self.blocks.get(name).copied().ok_or_else(|| Failure::unknown(name))
    }

    pub(crate) fn mapping(&self, name: &str) -> Result<&Mapping<'static>, Failure> {
        self.mappings.get(name).ok_or_else(|| Failure::unknown(name))
    }

    /// Returns the address of a block or region.
    fn address_of(&self, name: &str) -> Result<Address, Failure> {
        match self.regions.get(name) {
            Some((_, region)) => Ok(region.base()),
            None => Ok(self.block(name)?.address),
        }
    }

    /// Returns address and size of a block or region.
    pub(crate) fn extent(&self, name: &str) -> Result<(Address, usize), Failure> {
        match self.regions.get(name) {
            Some((_, region)) => Ok((region.base(), region.size())),
            None => self.block(name).map(|block| (block.address, block.size)),
        }
    }

    /// Runs `access` with the memory of a block, region or mapping.
    fn with_memory(&self, name: &str, access: impl FnOnce(View<'_>)) -> Answer {
        if let Some(mapping) = self.mappings.get(name) {
            access(mapping.view()?);
            return Ok(String::new());
        }
        let (address, size) = self.extent(name)?;
        // SAFETY: a live block or region of host memory, whose bytes may change at any time.
        access(unsafe { View::new(address.as_ptr().unwrap(), size) }?);
        Ok(String::new())
    }
}

fn pool(actor: &mut ActorState, name: &str, kind: &[&str]) -> Answer {
    let shared = || HostProvider::builder().visibility(Visibility::Shared);
    let over = |provider| -> Result<Pool, Failure> { Ok(Pool::builder().provider(provider).build()?) };
    let each = |provider: Arc<HostProvider>| -> Result<Pool, Failure> {
        Ok(Pool::from_pool(umf::pools::ProxyPool::new(provider)?))
    };
    let pool = match kind {
        ["shared"] => Pool::shared()?,
        ["private"] => Pool::private()?,
        ["isolated"] => Pool::isolated()?,
        ["settings", name] => Pool::named(name)?,
        ["over", provider] => Pool::over(provider)?,
        ["proxy"] => each(shared().build()?)?,
        ["read-only"] => each(shared().read_only_export(true).build()?)?,
        ["named", object] => over(shared().named(*object).arena_size(64 << 20).build()?)?,
        ["reserved", object] => each(shared().named(*object).arena_size(64 << 20).build()?)?,
        ["at-once"] => each(shared().populate(true).build()?)?,
        ["dma-buf", source] => over_dma_buf(source, name)?,
        ["cuda", memory] => cuda_pool(memory, name)?,
        ["small", bytes] => each(shared().arena_size(bytes.parse()?).build()?)?,
        _ => return Err(Failure::unknown(name)),
    };
    actor.pools.insert(name.to_owned(), pool);
    Ok(String::new())
}

/// Creates a slab pool over dma-bufs of `udmabuf` or `heap:<name>`. The buffers have the pool's
/// name.
fn over_dma_buf(source: &str, name: &str) -> Result<Pool, Failure> {
    let builder = umf_tests::machine::dma_buf_provider(source)?;
    let provider = builder.name(name.to_owned()).build()?;
    Ok(Pool::builder().provider(provider).build()?)
}

fn alloc(actor: &mut ActorState, pool: &str, size: &str, name: &str) -> Answer {
    let pool = actor.pool(pool)?;
    let address = pool.allocate(size.parse()?)?.into_address();
    // A handle covers the whole block, which may be larger than requested.
    let size = pool.as_core().block_at(address)?.size;
    actor.blocks.insert(name.to_owned(), RawBlock { address, size });
    Ok(String::new())
}

fn free(actor: &mut ActorState, pool: &str, name: &str) -> Answer {
    let block = actor.block(name)?;
    // SAFETY: the actor's own block, which nothing borrows and which is removed below.
    unsafe { actor.pool(pool)?.as_core().free(block.address) }?;
    actor.blocks.remove(name);
    Ok(String::new())
}

pub(crate) fn handle(address: Address) -> Result<Handle, Failure> {
    // SAFETY: the actor accesses its memory by copies alone.
    Ok(unsafe { umf::exporter()?.handle(address) }?)
}

fn export(actor: &mut ActorState, block: &str, name: &str) -> Answer {
    // SAFETY: the actor accesses its memory by copies alone.
    let export = unsafe { umf::exporter()?.get(actor.address_of(block)?) }?;
    let text = export.handle().to_string();
    actor.exports.insert(name.to_owned(), export);
    Ok(text)
}

/// Allocates a region of a new provider, without a pool.
fn region(actor: &mut ActorState, size: &str, name: &str) -> Answer {
    let provider = HostProvider::builder().visibility(Visibility::Shared).build()?;
    let upstream = Arc::new(Upstream::new(provider)?);
    let (region, _) = upstream.allocate(Layout::new(size.parse()?, 4096)?)?;
    actor.regions.insert(name.to_owned(), (upstream, region));
    Ok(region.base().to_string())
}

fn free_region(actor: &mut ActorState, name: &str) -> Answer {
    let (upstream, region) = actor.regions.remove(name).ok_or_else(|| Failure::unknown(name))?;
    // SAFETY: the actor's own region; nothing borrows from it.
    unsafe { upstream.free(region) }?;
    Ok(String::new())
}

/// Returns the bytes of a handle, given as its text or in hexadecimal digits.
pub(crate) fn decode(text: &str) -> Result<Vec<u8>, Failure> {
    if text.starts_with("umf1.") {
        return Ok(text.parse::<Handle>()?.to_bytes().to_vec());
    }
    let digits = |pair: &[u8]| u8::from_str_radix(std::str::from_utf8(pair).unwrap_or("?"), 16);
    Ok(text.as_bytes().chunks(2).map(digits).collect::<Result<_, _>>()?)
}

fn handle_of(text: &str) -> Result<Handle, Failure> {
    Ok(Handle::from_bytes(&decode(text)?)?)
}

fn send(actor: &ActorState, name: &str, readers: &str) -> Answer {
    let RawBlock { address, size } = actor.block(name)?;
    // SAFETY: a test accesses its blocks by copies only, and frees none meanwhile.
    let handle = unsafe { umf::exporter()?.send_handle(address, size, readers.parse()?) }?;
    Ok(handle.to_string())
}

fn pass_on(actor: &ActorState, name: &str, handle: &str, readers: &str) -> Answer {
    let handle = actor.mapping(name)?.send_handle(&handle_of(handle)?, readers.parse()?)?;
    Ok(handle.to_string())
}

fn open(actor: &mut ActorState, handle: &str, access: Access, name: &str) -> Answer {
    let mapping = umf::importer()?.open_bytes(&decode(handle)?, access)?;
    let length = mapping.len();
    actor.mappings.insert(name.to_owned(), mapping);
    Ok(length.to_string())
}

/// Opens a handle, reads every byte and closes it. This must not fault, whatever the bytes are.
fn probe(bytes: &[u8]) -> Answer {
    let mapping = umf::importer()?.open_bytes(bytes, Access::ReadOnly)?;
    let mut content = vec![0; mapping.len().min(1 << 20)];
    mapping.read(0, &mut content)?;
    let mut end = [0];
    mapping.read(mapping.len() - 1, &mut end)?;
    Ok(mapping.len().to_string())
}

fn seed_of(text: &str) -> Result<u64, Failure> {
    Ok(text.parse()?)
}

/// Returns word `number` of the content with this seed. Content is made of words, as single bytes
/// are slow in a guest that QEMU interprets.
fn word(seed: u64, number: usize) -> [u8; 8] {
    let same = u64::from_ne_bytes([number as u8; 8]);
    (seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) ^ same).to_le_bytes()
}

/// Returns the first `size` bytes of the content with this seed.
pub(crate) fn content(size: usize, seed: u64) -> Vec<u8> {
    let mut content = Vec::with_capacity(size + 8);
    for number in 0..size.div_ceil(8) {
        content.extend_from_slice(&word(seed, number));
    }
    content.truncate(size);
    content
}

/// Fills memory with the content of a seed.
pub(crate) fn fill(memory: View<'_>, seed: u64) {
    memory.copy_from(&content(memory.len(), seed));
}

/// Returns whether each word equals that of the seed, or `accepts` returns `true` for both.
fn all_words(content: &[u8], seed: u64, accepts: impl Fn(&[u8], &[u8]) -> bool) -> bool {
    let (words, rest) = content.as_chunks::<8>();
    let are_accepted = words.iter().enumerate().all(|(number, found)| {
        let filled = word(seed, number);
        *found == filled || accepts(found, &filled)
    });
    let filled = &word(seed, words.len())[..rest.len()];
    are_accepted && (rest == filled || accepts(rest, filled))
}

/// Returns whether each byte is that of the seed, or 0 as in a released page.
pub(crate) fn holds_or_released(content: &[u8], seed: u64) -> bool {
    all_words(content, seed, |found, filled| {
        found.iter().zip(filled).all(|(found, filled)| *found == 0 || found == filled)
    })
}

/// Returns whether this is the content of a seed.
pub(crate) fn holds(content: &[u8], seed: u64) -> bool {
    all_words(content, seed, |_, _| false)
}

fn check(actor: &ActorState, name: &str, seed: &str) -> Answer {
    let seed = seed_of(seed)?;
    let mut content = Vec::new();
    if let Some(mapping) = actor.mappings.get(name) {
        content.resize(mapping.len(), 0);
        mapping.read(0, &mut content)?;
    } else if let Some(copied) = actor.copied_out(name)? {
        content = copied;
    } else {
        actor.with_memory(name, |memory| {
            content.resize(memory.len(), 0);
            memory.copy_to(&mut content);
        })?;
    }
    Ok(if holds(&content, seed) { "same" } else { "different" }.to_owned())
}

fn counters(it: umf::ipc::CacheStatistics) -> String {
    format!(
        "hits={} table_hits={} misses={} stale={} evictions={} entries={} in_use={} bytes={} fds={}",
        it.hits, it.table_hits, it.misses, it.stale, it.evictions, it.entries, it.in_use, it.bytes, it.fds
    )
}

/// Answers with the name of this process's socket, and whether the process serves it.
fn nonce() -> Answer {
    let exporter = umf::exporter()?;
    let nonce = exporter.nonce().map_or_else(|| "none".to_owned(), |nonce| format!("umf-{nonce}"));
    Ok(format!("{nonce} {}", exporter.is_served()))
}

/// Creates a slab pool over CUDA memory of this kind, with the driver on the library path.
fn cuda_pool(memory: &str, name: &str) -> Result<Pool, Failure> {
    let kind = memory.parse().map_err(|error| Failure::new("InvalidArgument", error))?;
    let provider = umf::cuda::CudaProvider::builder().memory(kind).name(name.to_owned()).build()?;
    Ok(Pool::builder().provider(provider).build()?)
}

impl ActorState {
    /// Copies bytes to the beginning of a block, region or mapping by the device. Returns `false`
    /// without copying if the CPU can access the memory.
    fn copied_into(&self, name: &str, content: impl FnOnce(usize) -> Vec<u8>) -> Result<bool, Failure> {
        if let Some(mapping) = self.mappings.get(name) {
            if !mapping.is_host_accessible() {
                mapping.write(0, &content(mapping.len()))?;
                return Ok(true);
            }
            return Ok(false);
        }
        let (address, size) = self.extent(name)?;
        with_transfer(address, |transfer| {
            // SAFETY: the actor's own live block or region, to which no reference exists.
            unsafe { transfer.write(address, &content(size)) }
        })
    }

    /// Returns the content of a block or region of a device, or `None` if the CPU can access it.
    fn copied_out(&self, name: &str) -> Result<Option<Vec<u8>>, Failure> {
        let (address, size) = self.extent(name)?;
        let mut content = vec![0; size];
        let copied = with_transfer(address, |transfer| {
            // SAFETY: the actor's own live block or region, which no thread writes.
            unsafe { transfer.read(address, &mut content) }
        })?;
        Ok(copied.then_some(content))
    }
}

/// Runs `copy` with the transfers of the provider of `address`. Returns `false` without running it
/// if the CPU can access the memory.
fn with_transfer(
    address: Address,
    copy: impl FnOnce(&dyn umf_core::Transfer) -> umf_core::Result<()>,
) -> Result<bool, Failure> {
    let found = tracker::find(address).ok_or_else(|| Failure::new("NotTracked", address))?;
    let owner = found.owner.guard().ok_or_else(|| Failure::new("NotTracked", address))?;
    let Some(provider) = owner.provider() else { return Ok(false) };
    match provider.transfer().filter(|_| !provider.memory_kind().is_host_accessible()) {
        Some(transfer) => Ok(copy(transfer).map(|()| true)?),
        None => Ok(false),
    }
}
