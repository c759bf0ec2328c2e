//! [`TablePool`]: the table functions of a pool, written once for all pools of this library; and
//! [`PoolMemory`], ownership checks for allocators without checks of their own.

use core::ffi::{CStr, c_char, c_void};
use core::ptr::null_mut;

use umf_core::{Address, Error, Layout, Visibility};
use umf_provider_plugin::table::State;
use umf_runtime::tracker::{self, OwnerId};
use umf_sync::fork;

use crate::boundary::{Code, Failure, Handle, NOT_SUPPORTED, Out, Outcome, SUCCESS, call, call_with};
use crate::ctl::{CtlTree, control, object_of};
use crate::last_error::{self, PoolKind, explain};
use crate::memory::owners;
use crate::pool::{Functions, Initialize};
use crate::provider::Provider;

/// The state of a pool of this library. It is boxed, and its address is the [`State`].
///
/// A method that returns a block may return NULL without a failure. If `pool` is implemented, the
/// default methods use it to find and trim blocks.
pub(crate) trait TablePool: CtlTree + Sized {
    const KIND: PoolKind;
    /// Name of a pool without a state.
    const NAME: &'static CStr;
    /// Whether an allocation that succeeds clears the last allocation error, as in the original.
    const CLEARS_LAST_ERROR: bool = false;
    /// Alignment of blocks of `malloc` in bytes.
    const ALIGN: usize;

    /// Returns the name, which lives as long as the pool.
    fn name(&self) -> *const c_char {
        Self::NAME.as_ptr()
    }

    /// Allocates at a multiple of `align`; 0 is any alignment.
    fn aligned_malloc(&self, size: usize, align: usize) -> Outcome<*mut c_void>;

    /// Frees a block that is not NULL.
    fn free(&self, block: *mut c_void) -> Outcome<()>;

    /// Frees NULL.
    fn free_null(&self) -> Outcome<()> {
        Ok(())
    }

    /// Returns the Rust pool.
    fn pool(&self) -> Outcome<&dyn umf_core::Pool> {
        Err(Failure::unsupported("this kind of pool does not say what its blocks are"))
    }

    /// Returns whether the CPU can access the memory.
    fn is_host(&self) -> bool {
        true
    }

    fn malloc(&self, size: usize) -> Outcome<*mut c_void> {
        self.aligned_malloc(size, Self::ALIGN)
    }

    fn calloc(&self, count: usize, size: usize) -> Outcome<*mut c_void> {
        check_host(self)?;
        let bytes = count.checked_mul(size).ok_or(Error::SizeOverflow { size: usize::MAX, align: 1 })?;
        let block = self.malloc(bytes)?;
        if !block.is_null() {
            // SAFETY: a fresh block of host memory of that size.
            unsafe { block.cast::<u8>().write_bytes(0, bytes) };
        }
        Ok(block)
    }

    fn realloc(&self, old: *mut c_void, size: usize) -> Outcome<*mut c_void> {
        check_host(self)?;
        if old.is_null() {
            return self.malloc(size);
        }
        let (start, usable) = block_around(self, old)?;
        if start.as_ptr().map(<*mut u8>::cast) != Some(old) {
            return Err(Error::InteriorAddress { address: start }.into());
        }
        if size == 0 {
            self.free(old)?;
            return Ok(null_mut());
        }
        // Stays in place unless half of the block would be unused.
        if size <= usable && size > usable / 2 {
            return Ok(old);
        }
        let moved = self.malloc(size)?;
        // SAFETY: two different live blocks of host memory, each of at least that many bytes.
        unsafe { core::ptr::copy_nonoverlapping(old.cast::<u8>(), moved.cast(), usable.min(size)) };
        self.free(old)?;
        Ok(moved)
    }

    /// Returns the bytes of a block from an address in it on; 0 for NULL.
    fn usable_size(&self, block: *const c_void) -> Outcome<usize> {
        if block.is_null() { Ok(0) } else { Ok(block_around(self, block)?.1) }
    }

    fn trim(&self, keep: usize) -> Outcome<()> {
        self.pool()?.trim(keep)?;
        Ok(())
    }
}

fn check_host<T: TablePool>(pool: &T) -> Outcome<()> {
    if pool.is_host() {
        return Ok(());
    }
    Err(Failure::unsupported(
        "only memory that the processor is known to reach can be cleared or copied here",
    ))
}

/// Returns the block that holds an address, and its bytes from there on.
fn block_around<T: TablePool>(pool: &T, block: *const c_void) -> Outcome<(Address, usize)> {
    let address = Address::from_ptr(block.cast::<u8>());
    let found = pool.pool()?.block_at(address)?;
    let inside = address.offset_from(found.address).and_then(|offset| usize::try_from(offset).ok());
    Ok((found.address, found.size - inside.unwrap_or(0)))
}

/// Allocates from a pool of this library.
pub(super) fn allocate(pool: &dyn umf_core::Pool, size: usize, align: usize) -> Outcome<*mut c_void> {
    let address =
        Layout::new(size, align.max(1)).and_then(|layout| pool.allocate(layout)).map_err(explain)?;
    let outside = Failure::argument("the memory lies in no address space of this process");
    address.as_ptr().map(<*mut u8>::cast).ok_or(outside)
}

/// Frees a block of a pool of this library.
pub(super) fn free_block(pool: &dyn umf_core::Pool, block: *mut c_void) -> Outcome<()> {
    // SAFETY: C guarantees that the block is not in use. An invalid address is an error.
    unsafe { pool.free(Address::from_ptr(block.cast::<u8>())) }.map_err(explain)
}

/// Registers the memory of a Rust pool for the pool handle that `provider` belongs to.
pub(super) fn enter<P>(pool: &std::sync::Arc<P>, provider: &Provider) {
    if let Some(handle) = provider.pool() {
        owners::register(std::sync::Arc::as_ptr(pool).cast(), handle);
    }
}

/// Returns the table functions of a pool with this `initialize`.
pub(crate) const fn functions<T: TablePool>(initialize: Initialize) -> Functions {
    Functions {
        initialize,
        finalize: finalize::<T>,
        malloc: malloc::<T>,
        calloc: calloc::<T>,
        realloc: realloc::<T>,
        aligned_malloc: aligned_malloc::<T>,
        malloc_usable_size: malloc_usable_size::<T>,
        free: free::<T>,
        get_last_allocation_error: get_last_allocation_error::<T>,
        get_name: get_name::<T>,
        ext_ctl: Some(control::<T>),
        ext_trim_memory: Some(trim::<T>),
    }
}

/// Runs the `initialize` function of a pool.
pub(super) fn start<T: TablePool>(
    provider: Handle<Provider>,
    state: *mut State,
    make: impl FnOnce(&Provider) -> Outcome<T>,
) -> Code {
    call("initialize", || {
        let (provider, place) = (provider.get()?, Out::from_ptr(state).check()?);
        place.set(Box::into_raw(Box::new(make(provider)?)).cast())
    })
}

/// Returns the settings that C passed to `initialize`, or the defaults.
pub(super) fn settings<P: Default + Clone>(params: *const c_void) -> Outcome<P> {
    let params = Handle::<P>::from_ptr(params.cast::<P>().cast_mut());
    if params.is_null() { Ok(P::default()) } else { Ok(params.get()?.clone()) }
}

extern "C" fn finalize<T: TablePool>(state: State) -> Code {
    call("finalize", || {
        if !state.is_null() {
            // SAFETY: `start` made the box, and C finalises a state once.
            drop(unsafe { Box::from_raw(state.cast::<T>()) });
        }
        Ok(())
    })
}

/// Allocates. Turns a failure into NULL, and records it as the thread's last error.
fn allocation<T: TablePool>(
    what: &'static str,
    state: State,
    allocate: impl FnOnce(&T) -> Outcome<*mut c_void>,
) -> *mut c_void {
    call_with(what, null_mut(), || match allocate(object_of(state)?) {
        Ok(block) => {
            if T::CLEARS_LAST_ERROR {
                T::KIND.set_last(SUCCESS);
            }
            Ok(block)
        }
        Err(failure) => {
            T::KIND.set_last(failure.code());
            tracing::debug!("an allocation failed: {failure}");
            last_error::record_call(what, failure);
            Ok(null_mut())
        }
    })
}

extern "C" fn malloc<T: TablePool>(state: State, size: usize) -> *mut c_void {
    allocation("umfPoolMalloc", state, |pool: &T| pool.malloc(size))
}

extern "C" fn aligned_malloc<T: TablePool>(state: State, size: usize, align: usize) -> *mut c_void {
    allocation("umfPoolAlignedMalloc", state, |pool: &T| pool.aligned_malloc(size, align))
}

extern "C" fn calloc<T: TablePool>(state: State, count: usize, size: usize) -> *mut c_void {
    allocation("umfPoolCalloc", state, |pool: &T| pool.calloc(count, size))
}

extern "C" fn realloc<T: TablePool>(state: State, old: *mut c_void, size: usize) -> *mut c_void {
    allocation("umfPoolRealloc", state, |pool: &T| pool.realloc(old, size))
}

extern "C" fn malloc_usable_size<T: TablePool>(
    state: State,
    memory: *const c_void,
    size: *mut usize,
) -> Code {
    call("malloc_usable_size", || {
        let (pool, size) = (object_of::<T>(state)?, Out::from_ptr(size).check()?);
        size.set(pool.usable_size(memory)?)
    })
}

extern "C" fn free<T: TablePool>(state: State, block: *mut c_void) -> Code {
    call("free", || {
        let pool = object_of::<T>(state)?;
        if block.is_null() { pool.free_null() } else { pool.free(block) }
    })
}

extern "C" fn get_last_allocation_error<T: TablePool>(_: State) -> Code {
    T::KIND.last()
}

extern "C" fn get_name<T: TablePool>(state: State, name: *mut *const c_char) -> Code {
    call("get_name", || {
        let name = Out::from_ptr(name).check()?;
        name.set(object_of(state).map_or(T::NAME.as_ptr(), T::name))
    })
}

extern "C" fn trim<T: TablePool>(state: State, keep: usize) -> Code {
    call("trim", || object_of::<T>(state)?.trim(keep))
}

/// Ownership checks for an allocator that does not check its blocks.
#[derive(Clone, Copy, Debug)]
pub(super) struct PoolMemory {
    /// `None` for an untracked pool over a provider of the program.
    owner: Option<OwnerId>,
    is_shared: bool,
    /// Generation of the process that created the pool ([`fork::generation`]).
    generation: u32,
}

impl PoolMemory {
    /// Creates the checks of a pool that writes its metadata into the provider's memory.
    ///
    /// The CPU cannot access the memory: it belongs to a device, or is protected.
    /// The memory is known not to be for that: of a device, or protected.
    pub(super) fn of(provider: &Provider) -> Outcome<Self> {
        if provider.is_out_of_reach() {
            return Err(Failure::unsupported(
                "this pool keeps its records in the memory, which the processor cannot reach; use a disjoint or \
                 proxy pool",
            ));
        }
        let is_shared = provider.core().visibility() == Visibility::Shared;
        Ok(Self { owner: provider.owner(), is_shared, generation: fork::generation() })
    }

    /// Returns whether this is a forked child that shares the memory with its parent. Two
    /// allocators would corrupt one heap.
    pub(super) fn is_frozen(&self) -> bool {
        self.is_shared && self.generation != fork::generation()
    }

    /// Refuses an operation in a forked child that shares the memory.
    pub(super) fn check_not_frozen(&self) -> Outcome<()> {
        if !self.is_frozen() {
            return Ok(());
        }
        Err(Failure::new(
            NOT_SUPPORTED,
            "the pool's memory is shared with the parent that this process was forked from",
        ))
    }

    /// Refuses an address that does not lie in memory of the pool.
    pub(super) fn check(&self, block: *const c_void) -> Outcome<()> {
        self.check_not_frozen()?;
        let Some(owner) = self.owner else { return Ok(()) };
        match tracker::find(Address::from_ptr(block.cast::<u8>())) {
            Some(found) if found.owner == owner => Ok(()),
            _ => Err(Failure::argument("the block is not one of this pool")),
        }
    }
}
