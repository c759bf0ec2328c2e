//! What `libumf.so.1` of the same process is told of the heap, and asks of it: see [`umf_runtime::preloaded_heap`].

use core::ffi::c_void;
use core::ptr;
use core::sync::atomic::{AtomicPtr, Ordering};

use umf_core::{Address, Error};
use umf_ipc::{Exchange, Exporter, ExporterSettings, LimitPolicy, Mode, Ptracer};
use umf_runtime::preloaded_heap::{Block, Exports, FAILED, HANDLE, Heap, LIMIT, NOT_FOUND, NOT_SHARED, OK};

use crate::busy::Busy;
use crate::errno::Errno;
use crate::{calls, heap};

/// The table. Its name is [`umf_runtime::preloaded_heap::NAME`].
#[cfg_attr(not(test), unsafe(no_mangle))]
#[used]
#[allow(non_upper_case_globals, reason = "a name of C")]
pub static umf_proxy_heap_1: Heap = Heap {
    kind: heap::kind,
    find,
    export,
    malloc: calls::malloc,
    calloc: calls::calloc,
    realloc: calls::realloc,
    memalign: calls::memalign,
    free: calls::free,
    trim: calls::malloc_trim,
};

/// Made by the first export; it lives for ever.
static EXPORTER: AtomicPtr<Exporter> = AtomicPtr::new(ptr::null_mut());

/// # Safety
/// `block` can be written to, or is null.
unsafe extern "C" fn find(address: *const c_void, block: *mut Block) -> i32 {
    let Some(found) = heap::block_around(Address::from_ptr(address.cast::<u8>())) else { return NOT_FOUND };
    // SAFETY: passed on to the caller.
    unsafe { put(block, found) }
}

/// # Safety
/// `block` can be written to, or is null.
unsafe fn put(place: *mut Block, found: umf_core::BlockSpan) -> i32 {
    let Ok(base) = usize::try_from(found.address.value()) else { return NOT_FOUND };
    if !place.is_null() {
        // SAFETY: passed on to the caller.
        unsafe { place.write(Block { base, size: found.size }) };
    }
    OK
}

/// # Safety
/// The pointers but the address are null, or valid for what they are for.
unsafe extern "C" fn export(
    address: *const c_void,
    settings: *const Exports,
    handle: *mut [u8; HANDLE],
    block: *mut Block,
) -> i32 {
    let _errno = Errno::keep();
    let address = Address::from_ptr(address.cast::<u8>());
    // Amid the pool's own slow paths, or a fork: nobody asks from there.
    let Some(_busy) = Busy::begin() else { return FAILED };
    // SAFETY: passed on to the caller.
    let (Some(settings), false) = (unsafe { settings.as_ref() }, handle.is_null()) else { return FAILED };
    let Some(found) = heap::block_around(address) else { return NOT_FOUND };
    // SAFETY: what C programs have of the heap are pointers.
    let exported = exporter(settings).and_then(|exporter| unsafe { exporter.handle(address) });
    match exported {
        Ok(exported) => {
            // SAFETY: passed on to the caller.
            unsafe {
                handle.write(*exported.as_bytes());
                put(block, found)
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
    // SAFETY: what is stored lives for ever.
    if let Some(made) = unsafe { EXPORTER.load(Ordering::Acquire).as_ref() } {
        return Ok(made);
    }
    let made = Box::into_raw(Box::new(Exporter::new(settings_of(settings))?));
    match EXPORTER.compare_exchange(ptr::null_mut(), made, Ordering::AcqRel, Ordering::Acquire) {
        // SAFETY: as above.
        Ok(_) => Ok(unsafe { &*made }),
        Err(first) => {
            // SAFETY: made above, and nobody has seen it.
            drop(unsafe { Box::from_raw(made) });
            // SAFETY: as above.
            Ok(unsafe { &*first })
        }
    }
}

fn settings_of(given: &Exports) -> ExporterSettings {
    let mode = |number: &u8| match number {
        1 => Some(Mode::Pidfd),
        2 => Some(Mode::Procfs),
        3 => Some(Mode::Socket),
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
    settings.limit = if given.limit_is_hard == 0 { LimitPolicy::Soft } else { LimitPolicy::Hard };
    settings
}
