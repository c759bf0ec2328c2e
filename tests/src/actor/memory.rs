//! Pools, blocks, regions, handles, mappings.

use std::collections::HashMap;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;

use umf::host::HostProvider;
use umf::{Access, Address, Export, Handle, Mapping, Pool, View, Visibility};
use umf_core::{Layout, Region};
use umf_runtime::Upstream;
use umf_tests::board::Board;

use crate::{Answer, Failure};

/// What the actor has, by the names that commands give.
#[derive(Default)]
pub(crate) struct Actor {
    pub(crate) pools: HashMap<String, Pool>,
    pub(crate) blocks: HashMap<String, Held>,
    pub(crate) regions: HashMap<String, (Arc<Upstream>, Region)>,
    exports: HashMap<String, Export<'static>>,
    pub(crate) mappings: HashMap<String, Mapping<'static>>,
    pub(crate) domains: crate::domain::Domains,
    pub(crate) links: crate::link::Links,
    pub(crate) child: Option<(i32, UnixStream)>,
    pub(crate) taken: Vec<OwnedFd>,
    pub(crate) board: Option<Board>,
    /// Numbers of blocks on the board that were given.
    pub(crate) numbers: AtomicU64,
    /// Whether it is planned that this process stops at a step.
    pub(crate) may_stop: bool,
    /// Children that hold something open.
    pub(crate) importers: Vec<i32>,
    /// Lease tables of others whose rows it holds the locks of.
    pub(crate) locked: Vec<std::fs::File>,
    /// Where freed regions were, and whose.
    pub(crate) freed: Option<(Arc<Upstream>, std::collections::HashSet<Address>)>,
}

/// A block. It does not keep its pool, so that a pool can go with blocks in it; it frees nothing by itself.
#[derive(Clone, Copy)]
pub(crate) struct Held {
    pub(crate) address: Address,
    pub(crate) size: usize,
}

pub(crate) fn obey(actor: &mut Actor, command: &str, words: &[&str]) -> Option<Answer> {
    Some(match (command, words) {
        ("pool", [name, kind @ ..]) => pool(actor, name, kind),
        ("drop-pool", [name]) => {
            actor.blocks.retain(|block, _| !block.starts_with(&format!("{name}.")));
            done(actor.pools.remove(*name))
        }
        // What is held still after so many milliseconds.
        ("drain", [milliseconds]) => {
            let time = std::time::Duration::from_millis(milliseconds.parse().unwrap_or(0));
            Ok(umf::drain(time).bytes.to_string())
        }
        ("held", []) => {
            let held = umf_runtime::held::statistics();
            Ok(format!("blocks={} regions={} bytes={}", held.blocks, held.regions, held.bytes))
        }
        ("trim", [name]) => actor.pool(name).and_then(|pool| Ok(pool.trim(0)?.to_string())),
        ("alloc", [pool, size, "->", name]) => alloc(actor, pool, size, name),
        ("free", [pool, name]) => free(actor, pool, name),
        ("address", [name]) => actor.start(name).map(|address| address.to_string()),
        ("handle", [name]) => actor.start(name).and_then(|address| Ok(handle(address)?.to_string())),
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
                false => actor.with(name, |memory| fill(memory, seed)),
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

impl Actor {
    pub(crate) fn pool(&self, name: &str) -> Result<&Pool, Failure> {
        self.pools.get(name).ok_or_else(|| Failure::unknown(name))
    }

    pub(crate) fn block(&self, name: &str) -> Result<Held, Failure> {
        self.blocks.get(name).copied().ok_or_else(|| Failure::unknown(name))
    }

    pub(crate) fn mapping(&self, name: &str) -> Result<&Mapping<'static>, Failure> {
        self.mappings.get(name).ok_or_else(|| Failure::unknown(name))
    }

    /// Where a block or region begins.
    fn start(&self, name: &str) -> Result<Address, Failure> {
        match self.regions.get(name) {
            Some((_, region)) => Ok(region.base()),
            None => Ok(self.block(name)?.address),
        }
    }

    /// Where a block or region is, and its size.
    pub(crate) fn place(&self, name: &str) -> Result<(Address, usize), Failure> {
        match self.regions.get(name) {
            Some((_, region)) => Ok((region.base(), region.size())),
            None => self.block(name).map(|block| (block.address, block.size)),
        }
    }

    /// Shows the memory of a block, region or mapping.
    fn with(&self, name: &str, look: impl FnOnce(View<'_>)) -> Answer {
        if let Some(mapping) = self.mappings.get(name) {
            look(mapping.view()?);
            return Ok(String::new());
        }
        let (address, size) = self.place(name)?;
        // SAFETY: a live block or region of host memory, whose bytes may change at any time.
        look(unsafe { View::new(address.as_ptr().unwrap(), size) }?);
        Ok(String::new())
    }
}

fn pool(actor: &mut Actor, name: &str, kind: &[&str]) -> Answer {
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
        ["reserved", object] => each(shared().named(*object).arena_size(64 << 20).populate(true).build()?)?,
        ["at-once"] => each(shared().populate(true).build()?)?,
        ["dma-buf", source] => over_dma_buf(source, name)?,
        ["cuda", memory] => crate::device::cuda_pool(memory, name)?,
        ["small", bytes] => each(shared().arena_size(bytes.parse()?).build()?)?,
        _ => return Err(Failure::unknown(name)),
    };
    actor.pools.insert(name.to_owned(), pool);
    Ok(String::new())
}

/// A slab pool over dma-bufs: `udmabuf` or `heap:<name>`. Buffers are called by the pool's name.
fn over_dma_buf(source: &str, name: &str) -> Result<Pool, Failure> {
    let builder = umf_tests::machine::dma_buf_provider(source)?;
    let provider = builder.name(name.to_owned()).build()?;
    Ok(Pool::builder().provider(provider).build()?)
}

fn alloc(actor: &mut Actor, pool: &str, size: &str, name: &str) -> Answer {
    let pool = actor.pool(pool)?;
    let address = pool.allocate(size.parse()?)?.into_address();
    // All of what a handle will name, which may be more than was asked for.
    let size = pool.as_core().block_at(address)?.size;
    actor.blocks.insert(name.to_owned(), Held { address, size });
    Ok(String::new())
}

fn free(actor: &mut Actor, pool: &str, name: &str) -> Answer {
    let block = actor.block(name)?;
    // SAFETY: the actor's own block; forgotten below, and nothing borrows from it.
    unsafe { actor.pool(pool)?.as_core().free(block.address) }?;
    actor.blocks.remove(name);
    Ok(String::new())
}

pub(crate) fn handle(address: Address) -> Result<Handle, Failure> {
    // SAFETY: the actor touches its memory by copies alone.
    Ok(unsafe { umf::exporter()?.handle(address) }?)
}

fn export(actor: &mut Actor, block: &str, name: &str) -> Answer {
    // SAFETY: as in `handle`.
    let export = unsafe { umf::exporter()?.get(actor.start(block)?) }?;
    let text = export.handle().to_string();
    actor.exports.insert(name.to_owned(), export);
    Ok(text)
}

/// A whole region, without a pool.
fn region(actor: &mut Actor, size: &str, name: &str) -> Answer {
    let provider = HostProvider::builder().visibility(Visibility::Shared).build()?;
    let upstream = Arc::new(Upstream::new(provider)?);
    let (region, _) = upstream.allocate(Layout::new(size.parse()?, 4096)?)?;
    actor.regions.insert(name.to_owned(), (upstream, region));
    Ok(region.base().to_string())
}

fn free_region(actor: &mut Actor, name: &str) -> Answer {
    let (upstream, region) = actor.regions.remove(name).ok_or_else(|| Failure::unknown(name))?;
    // SAFETY: the actor's own region; nothing borrows from it.
    unsafe { upstream.free(region) }?;
    Ok(String::new())
}

/// The bytes of a handle: its text, or any bytes in hexadecimal.
pub(crate) fn decode(text: &str) -> Result<Vec<u8>, Failure> {
    if text.starts_with("umf1.") {
        return Ok(text.parse::<Handle>()?.to_bytes().to_vec());
    }
    let digits = |pair: &[u8]| u8::from_str_radix(std::str::from_utf8(pair).unwrap_or("?"), 16);
    Ok(text.as_bytes().chunks(2).map(digits).collect::<Result<_, _>>()?)
}

fn open(actor: &mut Actor, handle: &str, access: Access, name: &str) -> Answer {
    let mapping = umf::importer()?.open_bytes(&decode(handle)?, access)?;
    let length = mapping.len();
    actor.mappings.insert(name.to_owned(), mapping);
    Ok(length.to_string())
}

/// Opens, reads every byte, and closes: whatever the bytes say, this must not fault.
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

/// What a block with this seed has at the eight bytes with this number. (Not byte by byte: a guest is interpreted.)
fn word(seed: u64, number: usize) -> [u8; 8] {
    let same = u64::from_ne_bytes([number as u8; 8]);
    (seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) ^ same).to_le_bytes()
}

/// What [`fill`] puts into so many bytes.
pub(crate) fn content(size: usize, seed: u64) -> Vec<u8> {
    let mut content = Vec::with_capacity(size + 8);
    for number in 0..size.div_ceil(8) {
        content.extend_from_slice(&word(seed, number));
    }
    content.truncate(size);
    content
}

pub(crate) fn fill(memory: View<'_>, seed: u64) {
    memory.copy_from(&content(memory.len(), seed));
}

/// Whether each word of this content is `right`, given what was filled in there.
fn all(content: &[u8], seed: u64, right: impl Fn(&[u8], &[u8]) -> bool) -> bool {
    let (words, rest) = content.as_chunks::<8>();
    let are_right = words.iter().enumerate().all(|(number, found)| {
        let filled = word(seed, number);
        *found == filled || right(found, &filled)
    });
    let filled = &word(seed, words.len())[..rest.len()];
    are_right && (rest == filled || right(rest, filled))
}

/// Whether each byte is what [`fill`] put there, or 0: pages of it may have gone.
pub(crate) fn held_or_gone(content: &[u8], seed: u64) -> bool {
    all(content, seed, |found, filled| {
        found.iter().zip(filled).all(|(found, filled)| *found == 0 || found == filled)
    })
}

pub(crate) fn holds(content: &[u8], seed: u64) -> bool {
    all(content, seed, |_, _| false)
}

fn check(actor: &Actor, name: &str, seed: &str) -> Answer {
    let seed = seed_of(seed)?;
    let mut content = Vec::new();
    if let Some(mapping) = actor.mappings.get(name) {
        content.resize(mapping.len(), 0);
        mapping.read(0, &mut content)?;
    } else if let Some(copied) = actor.copied_out(name)? {
        content = copied;
    } else {
        actor.with(name, |memory| {
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

/// The name of the socket that this process would answer on, and whether it does.
fn nonce() -> Answer {
    let exporter = umf::exporter()?;
    let nonce = exporter.nonce().map_or_else(|| "none".to_owned(), |nonce| format!("umf-{nonce}"));
    Ok(format!("{nonce} {}", exporter.is_served()))
}
