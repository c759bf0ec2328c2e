//! Workers with two copies of the library in one process. The first copy is linked into this
//! program, and the second one is `libumf.so.1`, loaded at run time. Each copy opens blocks that
//! the other one exports.
//!
//! `UMF_HOSTILE_C_LIBRARY` names the shared library. By default it is the one that the tests of the
//! C interface or `tests/run --hostile` have installed below the target folder.

use std::ffi::{c_int, c_void};
use std::path::PathBuf;
use std::ptr::{NonNull, null_mut};
use std::sync::Arc;
use std::time::{Duration, Instant};

use libloading::{Library, Symbol};
use umf::host::{HostImport, HostProvider};
use umf::ipc::{Error, ExporterSettings, HANDLE_SIZE, Mapping};
use umf::pools::{SlabPool, SlabSettings};
use umf::{Exporter, Importer, Visibility};
use umf_core::{Layout, pool};
use umf_tests::{Rng, machine};

use crate::checker::{Guarantee, violation};
use crate::content::{self, Comparison};
use crate::shared::{self, Activity, Counter, WorkerState, count};
use crate::worker::Assignment;

/// `UMF_RESULT_SUCCESS`.
const SUCCESS: c_int = 0;
/// `UMF_MEM_MAP_SHARED`.
const SHARED: c_int = 2;
/// Blocks that are allocated after a free, to detect memory that is reused too early.
const BLOCKS_AFTER_FREE: usize = 24;

/// Returns the path of the shared library, if it is installed.
fn library() -> Option<PathBuf> {
    let named = std::env::var_os("UMF_HOSTILE_C_LIBRARY").map(PathBuf::from);
    let installed = || {
        // This program lies in <target>/<profile>/deps.
        let program = std::fs::read_link("/proc/self/exe").ok()?;
        Some(program.ancestors().nth(3)?.join("tmp/umf-capi/lib/libumf.so.1"))
    };
    named.or_else(installed).filter(|path| path.exists())
}

/// Prints the reason why workers with a second copy do nothing, if the library is not installed.
pub fn print_skip() {
    if library().is_none() {
        machine::skip(
            "hostile: two copies of the library",
            "libumf.so.1 is not installed: crates/umf-capi/install",
        );
    }
}

/// The functions of the C interface that this test calls.
struct Functions {
    get_handle: unsafe extern "C" fn(*const c_void, *mut *mut c_void, *mut usize) -> c_int,
    put_handle: unsafe extern "C" fn(*mut c_void) -> c_int,
    open_provider_handle: unsafe extern "C" fn(*mut c_void, *mut c_void, *mut *mut c_void) -> c_int,
    close_provider_handle: unsafe extern "C" fn(*mut c_void, *mut c_void, usize) -> c_int,
    malloc: unsafe extern "C" fn(*mut c_void, usize) -> *mut c_void,
    free: unsafe extern "C" fn(*mut c_void, *mut c_void) -> c_int,
    destroy_pool: unsafe extern "C" fn(*mut c_void) -> c_int,
    destroy_provider: unsafe extern "C" fn(*mut c_void) -> c_int,
}

/// The second copy: a provider and a pool of it.
struct SecondCopy {
    functions: Functions,
    provider: *mut c_void,
    pool: *mut c_void,
    /// The library is never unloaded, since its threads may still run its code.
    _library: &'static Library,
}

impl SecondCopy {
    fn open(path: &PathBuf) -> Result<Self, String> {
        // SAFETY: loading the library only initializes it.
        let library = unsafe { Library::new(path) }.map_err(|error| error.to_string())?;
        let library: &'static Library = Box::leak(Box::new(library));
        macro_rules! function {
            ($name:literal, $type:ty) => {{
                // SAFETY: the headers of the library declare the function with this type.
                let found: Result<Symbol<'static, $type>, _> = unsafe { library.get($name) };
                *found.map_err(|error| error.to_string())?
            }};
        }
        type Ops = unsafe extern "C" fn() -> *const c_void;
        type Create = unsafe extern "C" fn(*mut *mut c_void) -> c_int;
        type Destroy = unsafe extern "C" fn(*mut c_void) -> c_int;
        let functions = Functions {
            get_handle: function!(
                b"umfGetIPCHandle",
                unsafe extern "C" fn(*const c_void, *mut *mut c_void, *mut usize) -> c_int
            ),
            put_handle: function!(b"umfPutIPCHandle", Destroy),
            open_provider_handle: function!(
                b"umfMemoryProviderOpenIPCHandle",
                unsafe extern "C" fn(*mut c_void, *mut c_void, *mut *mut c_void) -> c_int
            ),
            close_provider_handle: function!(
                b"umfMemoryProviderCloseIPCHandle",
                unsafe extern "C" fn(*mut c_void, *mut c_void, usize) -> c_int
            ),
            malloc: function!(b"umfPoolMalloc", unsafe extern "C" fn(*mut c_void, usize) -> *mut c_void),
            free: function!(b"umfPoolFree", unsafe extern "C" fn(*mut c_void, *mut c_void) -> c_int),
            destroy_pool: function!(b"umfPoolDestroy", Destroy),
            destroy_provider: function!(b"umfMemoryProviderDestroy", Destroy),
        };
        let new_parameters = function!(b"umfOsMemoryProviderParamsCreate", Create);
        let set_visibility = function!(
            b"umfOsMemoryProviderParamsSetVisibility",
            unsafe extern "C" fn(*mut c_void, c_int) -> c_int
        );
        let drop_parameters = function!(b"umfOsMemoryProviderParamsDestroy", Destroy);
        let provider_ops = function!(b"umfOsMemoryProviderOps", Ops);
        let new_provider = function!(
            b"umfMemoryProviderCreate",
            unsafe extern "C" fn(*const c_void, *const c_void, *mut *mut c_void) -> c_int
        );
        let new_pool_parameters = function!(b"umfDisjointPoolParamsCreate", Create);
        let drop_pool_parameters = function!(b"umfDisjointPoolParamsDestroy", Destroy);
        let pool_ops = function!(b"umfDisjointPoolOps", Ops);
        let new_pool = function!(
            b"umfPoolCreate",
            unsafe extern "C" fn(*const c_void, *mut c_void, *const c_void, u32, *mut *mut c_void) -> c_int
        );
        let (mut parameters, mut provider, mut pool_parameters, mut pool) =
            (null_mut(), null_mut(), null_mut(), null_mut());
        // SAFETY: each call has the arguments that the headers require; results go to live locals.
        let made = unsafe {
            new_parameters(&raw mut parameters) == SUCCESS
                && set_visibility(parameters, SHARED) == SUCCESS
                && new_provider(provider_ops(), parameters, &raw mut provider) == SUCCESS
                && new_pool_parameters(&raw mut pool_parameters) == SUCCESS
                && new_pool(pool_ops(), provider, pool_parameters, 0, &raw mut pool) == SUCCESS
        };
        if !made {
            return Err("the second copy cannot create a pool over shared memory".to_owned());
        }
        // SAFETY: the parameters were created above; the provider and the pool have copied them.
        unsafe {
            drop_parameters(parameters);
            drop_pool_parameters(pool_parameters);
        }
        Ok(Self { functions, provider, pool, _library: library })
    }

    fn allocate(&self, size: u64) -> Option<NonNull<u64>> {
        // SAFETY: the pool lives as long as `self`.
        NonNull::new(unsafe { (self.functions.malloc)(self.pool, size as usize) }.cast())
    }

    fn free(&self, block: NonNull<u64>) -> bool {
        // SAFETY: the block is live and of this pool.
        unsafe { (self.functions.free)(self.pool, block.as_ptr().cast()) == SUCCESS }
    }

    /// Returns the bytes of a block's handle, without the offset that the C interface appends.
    fn handle(&self, block: NonNull<u64>) -> Option<[u8; HANDLE_SIZE]> {
        let (mut handle, mut size) = (null_mut(), 0);
        // SAFETY: the block is live; results go to live locals.
        let got =
            unsafe { (self.functions.get_handle)(block.as_ptr().cast(), &raw mut handle, &raw mut size) };
        if got != SUCCESS || handle.is_null() || size < HANDLE_SIZE {
            return None;
        }
        // SAFETY: the handle has `size` bytes, and is put once.
        unsafe {
            let bytes = handle.cast::<[u8; HANDLE_SIZE]>().read_unaligned();
            (self.functions.put_handle)(handle);
            Some(bytes)
        }
    }

    /// Opens a handle of the first copy. Returns `None` if the library returns an error.
    fn open_handle(&self, handle: &[u8; HANDLE_SIZE]) -> Option<NonNull<u64>> {
        // A handle of the C interface has one more word: an offset, which is 0 here, and in its
        // upper 16 bits the upper half of the handle's checksum.
        let checksum = u32::from_le_bytes([handle[252], handle[253], handle[254], handle[255]]);
        let word = (u64::from(checksum) << 32) >> 48 << 48;
        let mut bytes = [0; HANDLE_SIZE + 8];
        bytes[..HANDLE_SIZE].copy_from_slice(handle);
        bytes[HANDLE_SIZE..].copy_from_slice(&word.to_le_bytes());
        let mut opened = null_mut();
        let start: *mut c_void = bytes.as_mut_ptr().cast();
        // SAFETY: the provider lives as long as `self`; the bytes have the size of a provider's
        // handle.
        let outcome = unsafe { (self.functions.open_provider_handle)(self.provider, start, &raw mut opened) };
        NonNull::new(opened.cast()).filter(|_| outcome == SUCCESS)
    }

    fn close(&self, opened: NonNull<u64>, size: u64) -> bool {
        // SAFETY: the memory was opened by `open_handle`, and is not used afterwards.
        unsafe {
            (self.functions.close_provider_handle)(self.provider, opened.as_ptr().cast(), size as usize)
                == SUCCESS
        }
    }
}

impl Drop for SecondCopy {
    fn drop(&mut self) {
        // SAFETY: no block of the pool is used any more; the pool is destroyed before its provider.
        let ended = unsafe {
            (self.functions.destroy_pool)(self.pool) == SUCCESS
                && (self.functions.destroy_provider)(self.provider) == SUCCESS
        };
        if !ended {
            violation(Guarantee::SecondCopy, "the second copy's pool and provider cannot be destroyed");
        }
    }
}

/// Compares memory that the second copy has opened with the content of a block.
fn compare(start: NonNull<u64>, id: u64, size: u64) -> Comparison {
    // SAFETY: the memory is open and has that many bytes.
    let word = |index: u64| unsafe { start.as_ptr().add(index as usize).read_volatile() };
    content::compare((0..size / content::WORD).map(word), id, false)
}

fn fill(start: NonNull<u64>, id: u64, size: u64) {
    for index in 0..size / content::WORD {
        // SAFETY: the caller owns the block, which has that many bytes.
        unsafe { start.as_ptr().add(index as usize).write_volatile(content::word(id, index)) };
    }
}

/// The first copy: the objects of the library that is linked into this program.
struct FirstCopy {
    exporter: Exporter,
    importer: Importer,
    pool: Arc<SlabPool>,
}

/// Runs the worker until `end`.
pub fn run(assignment: &Assignment, random: &mut Rng, end: Instant) {
    let shared = shared::get();
    let state = &shared.workers[assignment.identity.index];
    state.tick(0, Activity::SecondCopy);
    let Some(path) = library() else { return };
    let copies = SecondCopy::open(&path).and_then(|second| Ok((second, first_copy()?)));
    let (second, first) = match copies {
        Ok(copies) => copies,
        Err(error) => return violation(Guarantee::SecondCopy, format_args!("{}: {error}", path.display())),
    };
    while !shared.has_stopped() && Instant::now() < end {
        count(Counter::Rounds);
        state.tick(0, Activity::SecondCopy);
        let outcome = if random.one_in(2) {
            exported_by_second(&second, &first, random)
        } else {
            exported_by_first(&second, &first, random)
        };
        match outcome {
            Ok(()) => count(Counter::SecondCopy),
            Err(error) => violation(Guarantee::SecondCopy, error),
        }
        if random.one_in(8) {
            first.importer.evict_idle();
        }
        pause_sometimes(state, random);
    }
    state.tick(0, Activity::Ended);
}

fn pause_sometimes(state: &WorkerState, random: &mut Rng) {
    if random.one_in(16) {
        state.tick(0, Activity::Pause);
        std::thread::sleep(Duration::from_micros(random.below(500)));
    }
}

fn first_copy() -> Result<FirstCopy, String> {
    let text = |error: Error| error.to_string();
    let provider =
        HostProvider::builder().visibility(Visibility::Shared).build().map_err(|error| error.to_string())?;
    Ok(FirstCopy {
        exporter: Exporter::new(ExporterSettings::default()).map_err(text)?,
        importer: Importer::builder().import(Arc::new(HostImport::new())).build().map_err(text)?,
        pool: SlabPool::new(provider, SlabSettings::new()).map_err(|error| error.to_string())?,
    })
}

fn random_block(random: &mut Rng) -> (u64, u64) {
    (random.next_u64() >> 24, 8 * (1 + random.below(4096)))
}

/// Converts a mismatch to a description.
fn check_content(when: &str, found: Comparison, id: u64) -> Result<(), String> {
    found.map(drop).map_err(|mismatch| format!("{when}: {}", content::describe(mismatch, id + 1)))
}

/// The second copy exports a block, and frees it while the first copy has it open.
fn exported_by_second(second: &SecondCopy, first: &FirstCopy, random: &mut Rng) -> Result<(), String> {
    let (id, size) = random_block(random);
    let block = second.allocate(size).ok_or("the second copy cannot allocate")?;
    fill(block, id, size);
    let handle = second.handle(block).ok_or("the second copy cannot export its block")?;
    let access = umf::Access::ReadWrite;
    let mapping = first.importer.open_bytes(&handle, access).map_err(|error| format!("open: {error}"))?;
    check_content("opened by the first copy", mapped(&mapping, id, size)?, id)?;
    if !second.free(block) {
        return Err("the second copy cannot free its block".to_owned());
    }
    if mapping.is_current() {
        return Err("the second copy freed a block, and the first copy's mapping is current".to_owned());
    }
    let others: Vec<_> = (0..BLOCKS_AFTER_FREE).filter_map(|_| second.allocate(size)).collect();
    others.iter().for_each(|other| fill(*other, id + 1, size));
    let kept =
        mapped(&mapping, id, size).and_then(|found| check_content("freed by the second copy", found, id));
    let freed = others.into_iter().all(|other| second.free(other));
    drop(mapping);
    match first.importer.open_bytes(&handle, access) {
        Err(Error::Stale { .. }) if freed => kept,
        outcome => Err(format!("a freed handle of the second copy: {:?}, freed {freed}", outcome.err())),
    }
}

fn mapped(mapping: &Mapping<'_>, id: u64, size: u64) -> Result<Comparison, String> {
    let mut copied = vec![0; size as usize];
    mapping.read(0, &mut copied).map_err(|error| error.to_string())?;
    Ok(content::compare_bytes(&copied, id, false))
}

/// The first copy exports a block, and frees it while the second copy has it open.
fn exported_by_first(second: &SecondCopy, first: &FirstCopy, random: &mut Rng) -> Result<(), String> {
    let (id, size) = random_block(random);
    let layout = Layout::new(size as usize, 8).map_err(|error| error.to_string())?;
    let allocate = || pool::allocate(&*first.pool, layout).map_err(|error| error.to_string());
    let fill =
        |address, id| content::fill(&*first.pool, address, id, size).map_err(|error| error.to_string());
    // SAFETY: callers pass live blocks of the pool, each once.
    let free = |address| unsafe { pool::free(&*first.pool, address) }.map_err(|error| error.to_string());
    let address = allocate()?;
    fill(address, id)?;
    // SAFETY: this process holds no reference into the block.
    let handle = unsafe { first.exporter.handle(address) }.map_err(|error| error.to_string())?;
    let length = handle.length();
    let opened = second.open_handle(handle.as_bytes()).ok_or("the second copy refuses a live block")?;
    let before = check_content("opened by the second copy", compare(opened, id, size), id);
    free(address)?;
    let others: Vec<_> = (0..BLOCKS_AFTER_FREE).map(|_| allocate()).collect::<Result<_, _>>()?;
    others.iter().try_for_each(|other| fill(*other, id + 1))?;
    let after = check_content("freed by the first copy", compare(opened, id, size), id);
    others.into_iter().try_for_each(free)?;
    if !second.close(opened, length) {
        return Err("the second copy cannot close the block".to_owned());
    }
    if second.open_handle(handle.as_bytes()).is_some() {
        return Err("the second copy opened a freed block".to_owned());
    }
    before.and(after)
}
