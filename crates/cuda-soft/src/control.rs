//! What tests ask of this driver and no other has: faults, and how much there is of everything. Symbols of the library.

use std::ffi::{CStr, c_char};

use cuda_sys::*;
use soft_device::lock;

use crate::entry::{Done, guarded, put};
use crate::memory::Kind;
use crate::state::State;

/// The number of an answer by its name.
pub(crate) fn answer(name: &str) -> Option<u32> {
    CUresult::NAMES.iter().find(|(known, _)| *known == name).map(|(_, number)| *number)
}

/// # Safety
/// The pointer is null or a text.
unsafe fn text<'a>(pointer: *const c_char) -> Done<&'a str> {
    if pointer.is_null() {
        return Err(CUDA_ERROR_INVALID_VALUE.into());
    }
    // SAFETY: the caller's promise.
    unsafe { CStr::from_ptr(pointer) }.to_str().map_err(|_| CUDA_ERROR_INVALID_VALUE.into())
}

/// Replaces the faults that are played, in the form of `CUDA_SOFT_FAULTS`. An empty text ends them.
///
/// # Safety
/// `faults` is null or a text that ends with a zero.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cudaSoftSetFaults(faults: *const c_char) -> CUresult {
    guarded(|| {
        // SAFETY: the caller's promise.
        let faults = unsafe { text(faults) }?;
        let state = State::get().ok_or(CUDA_ERROR_NOT_INITIALIZED)?;
        state.faults.set(faults, answer).map_err(|_| CUDA_ERROR_INVALID_VALUE.into())
    })
}

/// How much there is of something: `allocations`, `opened` (of other processes), `mapped`, `memory` (bytes of all devices), `fds`
/// (that the driver holds), `physical`, `reservations`, `contexts`, `streams`, `events`.
///
/// Answers `CUDA_ERROR_INVALID_VALUE` for any other name.
///
/// # Safety
/// `what` is null or a text that ends with a zero; `value` is null or valid for a write.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cudaSoftQuery(what: *const c_char, value: *mut u64) -> CUresult {
    guarded(|| {
        let state = State::get().ok_or(CUDA_ERROR_NOT_INITIALIZED)?;
        let of = |is_it: &dyn Fn(Kind) -> bool| state.addresses.all(|range| is_it(range.owner.kind)).len();
        // SAFETY: the caller's promise.
        let found = match unsafe { text(what) }? {
            "allocations" => of(&|kind| !matches!(kind, Kind::Opened | Kind::Mapped)),
            "opened" => of(&|kind| kind == Kind::Opened),
            "mapped" => of(&|kind| kind == Kind::Mapped),
            "memory" => usize::try_from(state.devices.iter().map(|device| device.memory.used()).sum::<u64>())
                .unwrap_or(usize::MAX),
            "fds" => usize::try_from(state.fds.used()).unwrap_or(usize::MAX),
            "physical" => state.physical.len(),
            "reservations" => lock(&state.reservations).len(),
            "contexts" => state.contexts.len(),
            "streams" => state.streams.len(),
            "events" => state.events.len(),
            _ => return Err(CUDA_ERROR_INVALID_VALUE.into()),
        };
        // SAFETY: the caller's promise.
        unsafe { put(value, found as u64) }
    })
}
