//! Which blocks are live, and where they were allocated: [`LeakReport`], which a pool makes when it
//! goes, when the process ends, or when it is asked.
//!
//! Nothing here uses the global allocator, which the pool in question may be, apart from a
//! [`Resolver`].

use core::fmt;
use core::ptr;
use core::sync::atomic::{AtomicPtr, Ordering};
use core::time::Duration;

/// The most frames that are kept of a stack.
pub const FRAMES: usize = 32;

/// Where something was called: return addresses, innermost first.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Stack {
    frames: [usize; FRAMES],
}

impl Stack {
    /// No frames.
    pub const EMPTY: Self = Self { frames: [0; FRAMES] };

    /// A stack of these return addresses, innermost first; those beyond [`FRAMES`] are left out.
    #[must_use]
    pub fn new(addresses: impl IntoIterator<Item = usize>) -> Self {
        let mut stack = Self::EMPTY;
        for (frame, address) in stack.frames.iter_mut().zip(addresses) {
            *frame = address;
        }
        stack
    }

    /// The return addresses, innermost first. The first few are of umf itself.
    pub fn frames(&self) -> impl Iterator<Item = usize> + Clone + '_ {
        self.frames.iter().copied().take_while(|&frame| frame != 0)
    }

    /// Shows it with the names that a [`Resolver`] finds, or, `plainly`, with what the loader
    /// knows: file, offset in it, and the names of exported functions. `addr2line -e FILE OFFSET`
    /// tells more.
    fn show(&self, f: &mut fmt::Formatter<'_>, plainly: bool) -> fmt::Result {
        let resolver = if plainly { None } else { RESOLVER.get() };
        let (mut count, mut skipped) = (0, 0);
        self.places(resolver, &mut |_, place| {
            count += 1;
            // (What umf calls of the standard library may lie between.)
            if place.is_some_and(|place| is_of_umf(&place)) && count - skipped <= 6 {
                skipped = count;
            }
        });
        let skipped = if skipped == count { 0 } else { skipped };
        let (mut index, mut result, mut has_ended) = (0, Ok(()), false);
        self.places(resolver, &mut |address, place| {
            index += 1;
            // What std begins its threads with: the rest is always the same.
            has_ended |= place.and_then(|place| place.name).is_some_and(|name| name.contains(BEGIN));
            if index > skipped && result.is_ok() && !has_ended {
                result = match place {
                    Some(place) => show_place(f, &place),
                    None => show_address(f, address),
                };
            }
        });
        result
    }

    /// Tells each frame: by name, several where functions are inlined into each other, or just
    /// where it is.
    fn places(&self, resolver: Option<Resolver>, tell: &mut dyn FnMut(usize, Option<CodePlace<'_>>)) {
        for address in self.frames() {
            let mut is_named = false;
            if let Some(resolve) = resolver {
                resolve(address, &mut |place| {
                    if place.name.is_some() {
                        is_named = true;
                        tell(address, Some(place));
                    }
                });
            }
            if !is_named {
                tell(address, None);
            }
        }
    }
}

impl fmt::Display for Stack {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.show(f, false)
    }
}

impl fmt::Debug for Stack {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.frames().map(ptr::without_provenance::<u8>)).finish()
    }
}

const BEGIN: &str = "__rust_begin_short_backtrace";

/// Whether every allocation goes through it.
fn is_of_umf(place: &CodePlace<'_>) -> bool {
    const NAMES: [&str; 6] =
        ["umf_core::", "umf_os::", "umf_runtime::", "umf_pool_slab::", "umf::pool::", "umf::global::"];
    // Of what is inlined only the last part of the name is known, but its file. (Folders of this
    // repository, and of a registry.)
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
    NAMES.iter().any(|own| name.starts_with(own)) || FILES.iter().any(|own| file.contains(own))
}

fn show_place(f: &mut fmt::Formatter<'_>, place: &CodePlace<'_>) -> fmt::Result {
    write!(f, "\n    {}", place.name.unwrap_or("?"))?;
    place.file.map_or(Ok(()), |file| write!(f, " at {file}:{}", place.line.unwrap_or(0)))
}

fn show_address(f: &mut fmt::Formatter<'_>, address: usize) -> fmt::Result {
    // A return address is behind the call.
    let call = address - 1;
    let (mut is_known, mut result) = (false, Ok(()));
    if let Some(look_up) = LOADER.get() {
        look_up(call, &mut |place| {
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

/// What is known of an address in code.
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

/// Finds what stands at a return address, and tells it: the innermost first, where functions are
/// inlined into each other.
pub type Resolver = fn(address: usize, tell: &mut dyn FnMut(CodePlace<'_>));

/// A function that is set while other threads call it.
struct Set(AtomicPtr<()>);

impl Set {
    const fn new() -> Self {
        Self(AtomicPtr::new(ptr::null_mut()))
    }

    fn set(&self, resolver: Resolver) {
        self.0.store(resolver as *mut (), Ordering::Release);
    }

    fn get(&self) -> Option<Resolver> {
        let resolver = self.0.load(Ordering::Acquire);
        // SAFETY: what is not null was stored by `set`, and is such a function.
        (!resolver.is_null()).then(|| unsafe { core::mem::transmute::<*mut (), Resolver>(resolver) })
    }
}

static RESOLVER: Set = Set::new();
static LOADER: Set = Set::new();

/// Has stacks shown with the names that `resolver` finds. The last one counts.
pub fn set_resolver(resolver: Resolver) {
    RESOLVER.set(resolver);
}

/// Has addresses without a name shown with what `look_up` finds, which asks the loader for the
/// loaded file, the offset in it and an exported name, and allocates nothing. Crate `umf-os` sets
/// it.
pub fn set_loader(look_up: Resolver) {
    LOADER.set(look_up);
}

/// When a [`LeakReport`] is made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum LeakTime {
    /// The application requested the report: the blocks are live, and not leaked.
    Asked,
    /// The pool goes, and its blocks with it.
    PoolEnd,
    /// The process ends.
    ProcessEnd,
}

/// Live blocks of one size.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LeakSize {
    /// Size of each in bytes; of blocks that are regions, of all together.
    pub block_size: u64,
    /// How many.
    pub blocks: u64,
}

/// Live blocks that were allocated at one place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LeakSite {
    /// Where.
    pub stack: Stack,
    /// How many of those that are remembered.
    pub blocks: u64,
    /// What was asked for of them, in bytes.
    pub bytes: u64,
    /// How old the oldest is.
    pub oldest: Duration,
}

/// Which blocks of a pool are live.
///
/// Its text is made for people: a line per size, and each site with its stack.
#[derive(Clone, Copy, Debug)]
pub struct LeakReport<'a> {
    /// The pool's name.
    pub pool: &'a str,
    /// When it is made.
    pub time: LeakTime,
    /// Live blocks.
    pub blocks: u64,
    /// Their bytes.
    pub bytes: u64,
    /// By size, the smallest first.
    pub sizes: &'a [LeakSize],
    /// Of one in this many allocations it is remembered where it was; 0: of none.
    pub sampled: u32,
    /// Where blocks were allocated that are live, those with most bytes first. Of what was sampled.
    pub sites: &'a [LeakSite],
    /// Nothing may be allocated for showing it: the pool is the global allocator. Stacks are shown
    /// plainly then.
    pub is_global: bool,
}

impl fmt::Display for LeakReport<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let when = match self.time {
            LeakTime::Asked => "are live",
            LeakTime::PoolEnd => "were never freed, at the end of the pool",
            LeakTime::ProcessEnd => "were never freed, at the end of the process",
        };
        write!(f, "pool {}: {} blocks, {} bytes {when}", self.pool, self.blocks, self.bytes)?;
        for size in self.sizes {
            write!(f, "\n  {} of {} bytes", size.blocks, size.block_size)?;
        }
        if self.sampled > 1 {
            write!(f, "\n  of one in {} it is known where it was allocated:", self.sampled)?;
        }
        for site in self.sites {
            let (blocks, bytes) = (site.blocks, site.bytes);
            write!(f, "\n  {blocks} blocks, {bytes} bytes asked for, the oldest {:?} ago, at", site.oldest)?;
            site.stack.show(f, self.is_global)?;
        }
        Ok(())
    }
}
