//! The table of functions through which `libumf.so.1` of the same process uses the heap: finding
//! and exporting blocks, and the functions of `malloc`. [`umf_runtime::preloaded_heap`] defines it.

use core::ffi::{CStr, c_void};
use core::ptr;
use core::sync::atomic::{AtomicPtr, Ordering};
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;

use umf_core::{Address, Error};
use umf_ipc::{Allow, Exchange, Exporter, ExporterSettings, LimitPolicy, Mode, Ptracer};
use umf_runtime::preloaded_heap::{Block, Exports, FAILED, HANDLE, Heap, LIMIT, NOT_FOUND, NOT_SHARED, OK};

use crate::reentrancy::{ReentrancyGuard, SavedErrno};
use crate::{exports, heap};

/// The table, with the symbol name [`umf_runtime::preloaded_heap::NAME`].
#[cfg_attr(not(test), unsafe(no_mangle))]
#[used]
#[allow(non_upper_case_globals, reason = "a name of C")]
pub static umf_proxy_heap_2: Heap = Heap {
    kind: heap::kind,
    find,
    export,
    malloc: exports::malloc,
    calloc: exports::calloc,
    realloc: exports::realloc,
    memalign: exports::memalign,
    free: exports::free,
    trim: exports::malloc_trim,
};

/// The exporter, which the first export creates and which is never dropped.
static EXPORTER: AtomicPtr<Exporter> = AtomicPtr::new(ptr::null_mut());

/// Finds the live block that holds `address`.
///
/// # Safety
/// `block` is valid for a write, or null.
unsafe extern "C" fn find(address: *const c_void, block: *mut Block) -> i32 {
    let Some(found) = heap::block_around(Address::from_ptr(address.cast::<u8>())) else { return NOT_FOUND };
    // SAFETY: passed on to the caller.
    unsafe { write_block(block, found) }
}

/// # Safety
/// `out` is valid for a write, or null.
unsafe fn write_block(out: *mut Block, found: umf_core::BlockSpan) -> i32 {
    let Ok(base) = usize::try_from(found.address.value()) else { return NOT_FOUND };
    if !out.is_null() {
        // SAFETY: passed on to the caller.
        unsafe { out.write(Block { base, size: found.size }) };
    }
    OK
}

/// Exports the live block that holds `address`, and writes its handle.
///
/// # Safety
/// `settings` is valid for a read, `handle` and `block` for a write; each of them may be null.
unsafe extern "C" fn export(
    address: *const c_void,
    settings: *const Exports,
    handle: *mut [u8; HANDLE],
    block: *mut Block,
) -> i32 {
    let _errno = SavedErrno::save();
    let address = Address::from_ptr(address.cast::<u8>());
    // Neither the slow paths of the pool nor fork handlers export blocks.
    let Some(_guard) = ReentrancyGuard::enter() else { return FAILED };
    // SAFETY: passed on to the caller.
    let (Some(settings), false) = (unsafe { settings.as_ref() }, handle.is_null()) else { return FAILED };
    let Some(found) = heap::block_around(address) else { return NOT_FOUND };
    // SAFETY: the block was allocated by `malloc`, so the program uses it by raw pointers only.
    let exported = exporter(settings).and_then(|exporter| unsafe { exporter.handle(address) });
    match exported {
        Ok(exported) => {
            // SAFETY: passed on to the caller.
            unsafe {
                handle.write(*exported.as_bytes());
                write_block(block, found)
            }
        }
        Err(
            umf_ipc::Error::NotExportable { .. }
            | umf_ipc::Error::Memory(Error::Frozen { .. } | Error::NotSupported { .. }),
        ) => NOT_SHARED,
        Err(umf_ipc::Error::NotTracked { .. } | umf_ipc::Error::Memory(Error::NotAllocated { .. })) => {
            NOT_FOUND
        }
        Err(
            umf_ipc::Error::LimitReached { .. }
            | umf_ipc::Error::Memory(Error::TooMany { .. } | Error::LimitReached { .. }),
        ) => LIMIT,
        Err(_) => FAILED,
    }
}

fn exporter(settings: &Exports) -> umf_ipc::Result<&'static Exporter> {
    // SAFETY: a stored exporter is never dropped.
    if let Some(made) = unsafe { EXPORTER.load(Ordering::Acquire).as_ref() } {
        return Ok(made);
    }
    let made = Box::into_raw(Box::new(Exporter::new(settings_of(settings))?));
    match EXPORTER.compare_exchange(ptr::null_mut(), made, Ordering::AcqRel, Ordering::Acquire) {
        // SAFETY: as above.
        Ok(_) => Ok(unsafe { &*made }),
        Err(first) => {
            // SAFETY: it was created above, and no other thread knows it.
            drop(unsafe { Box::from_raw(made) });
            // SAFETY: a stored exporter is never dropped.
            Ok(unsafe { &*first })
        }
    }
}

fn settings_of(given: &Exports) -> ExporterSettings {
    let mode = |number: &u8| match number {
        1 => Some(Mode::Pidfd),
        2 => Some(Mode::Procfs),
        3 => Some(Mode::Socket),
        4 => Some(Mode::Directory),
        _ => None,
    };
    let modes: Vec<_> = given.exchange.iter().map_while(mode).collect();
    let mut settings = ExporterSettings::default();
    settings.exchange = if modes.is_empty() { Exchange::Auto } else { Exchange::Order(modes) };
    settings.ptracer = match given.ptracer {
        0 => Ptracer::None,
        -1 => Ptracer::Any,
        process => u32::try_from(process).map_or(Ptracer::None, Ptracer::Process),
    };
    settings.max_created_handles = given.max_created_handles;
    if !given.directory.is_null() {
        // SAFETY: the caller of the table's function passes a string that is valid during the call.
        let path = unsafe { CStr::from_ptr(given.directory) };
        settings.directory = Some(OsStr::from_bytes(path.to_bytes()).into());
    }
    settings.allow = match given.allow {
        1 => Allow::Group,
        2 => Allow::Handle,
        _ => Allow::SameUser,
    };
    settings.limit = if given.limit_is_hard == 0 { LimitPolicy::Soft } else { LimitPolicy::Hard };
    settings
}
