//! [`LeakReport`]: the live blocks of a pool and their allocation sites. A pool makes one when it is
//! dropped, when the process ends, or on request.
//!
//! Apart from a [`Resolver`], this module does not use the global allocator: a pool may be the
//! global allocator.

use core::fmt;
use core::ptr;
use core::sync::atomic::{AtomicPtr, Ordering};
use core::time::Duration;

/// The largest number of frames of a [`Stack`].
pub const FRAMES: usize = 32;

/// A call stack: return addresses, innermost first.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Stack {
    frames: [usize; FRAMES],
}

impl Stack {
    /// No frames.
    pub const EMPTY: Self = Self { frames: [0; FRAMES] };

    /// Returns a stack of these return addresses, innermost first. Addresses beyond [`FRAMES`] are
    /// left out.
    #[must_use]
    pub fn new(addresses: impl IntoIterator<Item = usize>) -> Self {
        let mut stack = Self::EMPTY;
        for (frame, address) in stack.frames.iter_mut().zip(addresses) {
            *frame = address;
        }
        stack
    }

    /// Returns the return addresses, innermost first. The first ones belong to umf.
    pub fn frames(&self) -> impl Iterator<Item = usize> + Clone + '_ {
        self.frames.iter().copied().take_while(|&frame| frame != 0)
    }

    /// Writes one line per frame, without the frames of umf and of the start of the thread.
    ///
    /// Without a resolver, or for a frame that it does not know, the line has what the loader
    /// knows: the file, the offset in it, and an exported name. `addr2line -e FILE OFFSET` shows
    /// more.
    fn write(&self, f: &mut fmt::Formatter<'_>, resolver: Option<Resolver>) -> fmt::Result {
        let skipped = self.leading_umf_places(resolver);
        let (mut index, mut result, mut is_at_end) = (0, Ok(()), false);
        self.for_each_place(resolver, &mut |address, place| {
            index += 1;
            is_at_end |= place.and_then(|place| place.name).is_some_and(|name| name.contains(THREAD_START));
            if index <= skipped || is_at_end || result.is_err() {
                return;
            }
            result = match place {
                Some(place) => write_place(f, &place),
                None => write_address(f, address),
            };
        });
        result
    }

    /// Returns how many of the innermost places belong to umf; 0 if all do.
    fn leading_umf_places(&self, resolver: Option<Resolver>) -> usize {
        // Functions of the standard library that umf calls may lie between those of umf.
        const MAX_GAP: usize = 6;
        let (mut count, mut last_of_umf) = (0, 0);
        self.for_each_place(resolver, &mut |_, place| {
            count += 1;
            if place.is_some_and(|place| is_umf(&place)) && count - last_of_umf <= MAX_GAP {
                last_of_umf = count;
            }
        });
        if last_of_umf == count { 0 } else { last_of_umf }
    }

    /// Calls `visit` with the address of each frame, and with its place if the resolver knows it. A
    /// frame has several places if functions were inlined into each other.
    fn for_each_place(
        &self,
        resolver: Option<Resolver>,
        visit: &mut dyn FnMut(usize, Option<CodePlace<'_>>),
    ) {
        for address in self.frames() {
            let mut is_named = false;
            if let Some(resolve) = resolver {
                resolve(address, &mut |place| {
                    if place.name.is_some() {
                        is_named = true;
                        visit(address, Some(place));
                    }
                });
            }
            if !is_named {
                visit(address, None);
            }
        }
    }
}

impl fmt::Display for Stack {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.write(f, RESOLVER.get())
    }
}

impl fmt::Debug for Stack {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.frames().map(ptr::without_provenance::<u8>)).finish()
    }
}

/// The function of the standard library with which each thread starts.
const THREAD_START: &str = "__rust_begin_short_backtrace";

/// Returns whether a place belongs to the parts of umf that allocations pass through.
fn is_umf(place: &CodePlace<'_>) -> bool {
    const NAMES: [&str; 6] =
        ["umf_core::", "umf_os::", "umf_runtime::", "umf_pool_slab::", "umf::pool::", "umf::global::"];
    // The name of an inlined function has no module path, so its file is compared: folders of this
    // repository, and of a registry.
    const FILES: [&str; 10] = [
        "umf-core/src/",
        "umf-os/src/",
        "umf-runtime/src/",
        "pools/slab/src/",
        "crates/umf/src/",
        "/umf-core-0.",
        "/umf-os-0.",
        "/umf-runtime-0.",
        "/umf-pool-slab-0.",
        "/umf-0.",
    ];
    let name = place.name.map_or("", |name| name.trim_start_matches('<'));
    let file = place.file.unwrap_or("");
    NAMES.iter().any(|prefix| name.starts_with(prefix)) || FILES.iter().any(|folder| file.contains(folder))
}

fn write_place(f: &mut fmt::Formatter<'_>, place: &CodePlace<'_>) -> fmt::Result {
    write!(f, "\n    {}", place.name.unwrap_or("?"))?;
    place.file.map_or(Ok(()), |file| write!(f, " at {file}:{}", place.line.unwrap_or(0)))
}

/// Writes an address that the resolver does not know.
fn write_address(f: &mut fmt::Formatter<'_>, address: usize) -> fmt::Result {
    // A return address follows the call instruction.
    let call = address - 1;
    let (mut is_known, mut result) = (false, Ok(()));
    if let Some(resolve) = LOADER.get() {
        resolve(call, &mut |place| {
            is_known = true;
            let (file, offset) = (place.file.unwrap_or("?"), place.offset.unwrap_or(0));
            result = write!(f, "\n    {file}+{offset:#x}");
            if let (Ok(()), Some(name)) = (result, place.name) {
                result = write!(f, " {name}");
            }
        });
    }
    if is_known { result } else { write!(f, "\n    {address:#x}") }
}

/// A place in code, as far as it is known.
#[derive(Clone, Copy, Debug, Default)]
pub struct CodePlace<'a> {
    /// The function.
    pub name: Option<&'a str>,
    /// The source file, or the loaded file (see [`set_loader`]).
    pub file: Option<&'a str>,
    /// The line in the source file.
    pub line: Option<u32>,
    /// The offset in the loaded file, in bytes.
    pub offset: Option<usize>,
}

/// Calls `visit` with the place of a return address. If functions were inlined into each other,
/// there are several places; the innermost comes first.
pub type Resolver = fn(address: usize, visit: &mut dyn FnMut(CodePlace<'_>));

/// A resolver that can be replaced while other threads use it.
struct ResolverSlot(AtomicPtr<()>);

impl ResolverSlot {
    const fn new() -> Self {
        Self(AtomicPtr::new(ptr::null_mut()))
    }

    fn set(&self, resolver: Resolver) {
        self.0.store(resolver as *mut (), Ordering::Release);
    }

    fn get(&self) -> Option<Resolver> {
        let resolver = self.0.load(Ordering::Acquire);
        // SAFETY: a pointer that is not null was stored by `set`, and is a `Resolver`.
        (!resolver.is_null()).then(|| unsafe { core::mem::transmute::<*mut (), Resolver>(resolver) })
    }
}

static RESOLVER: ResolverSlot = ResolverSlot::new();
static LOADER: ResolverSlot = ResolverSlot::new();

/// Sets the resolver for the `Display` of stacks. Replaces an earlier one.
pub fn set_resolver(resolver: Resolver) {
    RESOLVER.set(resolver);
}

/// Sets the resolver for addresses that the resolver of [`set_resolver`] does not know. It asks the
/// loader for the loaded file, the offset in it and an exported name, and allocates nothing. The
/// crate `umf-os` sets it.
pub fn set_loader(resolver: Resolver) {
    LOADER.set(resolver);
}

/// The time at which a [`LeakReport`] is made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum LeakTime {
    /// On request of the application: the blocks are live, not leaked.
    Requested,
    /// When the pool is dropped.
    PoolEnd,
    /// At the end of the process.
    ProcessEnd,
}

/// Live blocks of one size.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LeakSize {
    /// Size of each block in bytes. For blocks that are regions, their total size.
    pub block_size: u64,
    /// The number of blocks.
    pub blocks: u64,
}

/// Live blocks that were allocated by one call stack.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LeakSite {
    /// The call stack.
    pub stack: Stack,
    /// The number of blocks, of those that were sampled.
    pub blocks: u64,
    /// Their requested bytes.
    pub bytes: u64,
    /// The age of the oldest block.
    pub oldest: Duration,
}

/// The live blocks of a pool.
///
/// `Display` writes a line for each size, and each site with its stack.
#[derive(Clone, Copy, Debug)]
pub struct LeakReport<'a> {
    /// The pool's name.
    pub pool: &'a str,
    /// The time of the report.
    pub time: LeakTime,
    /// The number of live blocks.
    pub blocks: u64,
    /// Their size in bytes.
    pub bytes: u64,
    /// The blocks by size, smallest first.
    pub sizes: &'a [LeakSize],
    /// The site of one in this many allocations was recorded; 0 is none.
    pub sampled: u32,
    /// The sites of the sampled live blocks, most bytes first.
    pub sites: &'a [LeakSite],
    /// The pool is the global allocator, so `Display` must not allocate: it writes stacks without a
    /// resolver.
    pub is_global: bool,
}

impl fmt::Display for LeakReport<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let when = match self.time {
            LeakTime::Requested => "are live",
            LeakTime::PoolEnd => "were never freed, at the end of the pool",
            LeakTime::ProcessEnd => "were never freed, at the end of the process",
        };
        write!(f, "pool {}: {} blocks, {} bytes {when}", self.pool, self.blocks, self.bytes)?;
        for size in self.sizes {
            write!(f, "\n  {} of {} bytes", size.blocks, size.block_size)?;
        }
        if self.sampled > 1 {
            write!(f, "\n  the site of one in {} allocations was recorded:", self.sampled)?;
        }
        for site in self.sites {
            let (blocks, bytes) = (site.blocks, site.bytes);
            write!(f, "\n  {blocks} blocks, {bytes} bytes requested, the oldest {:?} ago, at", site.oldest)?;
            site.stack.write(f, if self.is_global { None } else { RESOLVER.get() })?;
        }
        Ok(())
    }
}
