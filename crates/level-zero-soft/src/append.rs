//! What is appended to command lists.

use std::ffi::c_void;
use std::sync::Arc;

use level_zero_sys::*;

use crate::entry::{Done, Refusal, entry};
use crate::event::{resolve, signalled_by};
use crate::list::{List, nothing};
use crate::memory::Allocation;
use crate::pointer::{array, get};
use crate::state::{State, number};
use crate::virtual_memory::is_reserved;
use soft_device::{Access, Boxes, Callback, Command, Range, Span, Work};

/// The events of a command: the one to signal, and those to wait for.
type Events = (ze_event_handle_t, u32, *mut ze_event_handle_t);

/// Appends some work with its events.
///
/// # Safety
/// The events to wait for are null or so many.
unsafe fn append(
    function: &'static str,
    list: ze_command_list_handle_t,
    (signal, waits, wait): Events,
    work: impl FnOnce(&State, &List) -> Done<Work>,
) -> ze_result_t {
    entry(function, |state| {
        let list = state.lists.get(number(list.0))?;
        list.device.health.check()?;
        // SAFETY: the caller's promise.
        let (wait, signal) = unsafe { resolve(state, signal, waits, wait) }?;
        let work = work(state, &list)?;
        list.append(Command { wait, work, signal })
    })
}

/// What a list's device works on.
fn span(state: &State, list: &List, address: usize, size: usize, access: Access) -> Done<Span> {
    if address == 0 {
        return Err(ZE_RESULT_ERROR_INVALID_NULL_POINTER.into());
    }
    let check = |range: &Range<Arc<Allocation>>| range.owner.check_use(state, &list.device);
    state.addresses.span(address, size, access, check, |start, size| is_reserved(state, start, size))
}

fn copy_work(state: &State, list: &List, to: *mut c_void, from: *const c_void, size: usize) -> Done<Work> {
    let from = span(state, list, from.expose_provenance(), size, Access::Read)?;
    let to = span(state, list, to.expose_provenance(), size, Access::ReadWrite)?;
    Ok(Work::Copy { to, from })
}

pub(crate) unsafe extern "C" fn memory_copy(
    list: ze_command_list_handle_t,
    to: *mut c_void,
    from: *const c_void,
    size: usize,
    signal: ze_event_handle_t,
    waits: u32,
    wait: *mut ze_event_handle_t,
) -> ze_result_t {
    let work = |state: &State, list: &List| copy_work(state, list, to, from, size);
    // SAFETY: pointers of the application.
    unsafe { append("zeCommandListAppendMemoryCopy", list, (signal, waits, wait), work) }
}

pub(crate) unsafe extern "C" fn memory_copy_with_parameters(
    list: ze_command_list_handle_t,
    to: *mut c_void,
    from: *const c_void,
    size: usize,
    _next: *const c_void,
    signal: ze_event_handle_t,
    waits: u32,
    wait: *mut ze_event_handle_t,
) -> ze_result_t {
    let work = |state: &State, list: &List| copy_work(state, list, to, from, size);
    // SAFETY: pointers of the application.
    unsafe { append("zeCommandListAppendMemoryCopyWithParameters", list, (signal, waits, wait), work) }
}

pub(crate) unsafe extern "C" fn memory_copy_from_context(
    list: ze_command_list_handle_t,
    to: *mut c_void,
    context: ze_context_handle_t,
    from: *const c_void,
    size: usize,
    signal: ze_event_handle_t,
    waits: u32,
    wait: *mut ze_event_handle_t,
) -> ze_result_t {
    let work = |state: &State, list: &List| {
        state.context(context)?;
        copy_work(state, list, to, from, size)
    };
    // SAFETY: pointers of the application.
    unsafe { append("zeCommandListAppendMemoryCopyFromContext", list, (signal, waits, wait), work) }
}

/// # Safety
/// The pattern is null or valid for so many bytes.
unsafe fn fill_work(
    state: &State,
    list: &List,
    to: *mut c_void,
    pattern: (*const c_void, usize),
    size: usize,
) -> Done<Work> {
    let (pattern, length) = pattern;
    if pattern.is_null() {
        return Err(ZE_RESULT_ERROR_INVALID_NULL_POINTER.into());
    }
    if !length.is_power_of_two() || length > list.pattern() || !size.is_multiple_of(length) {
        let why = format!(
            "a pattern of {length} bytes for {size}: a power of two up to {} that divides the size is needed",
            list.pattern()
        );
        return Err(Refusal::new(ZE_RESULT_ERROR_INVALID_SIZE, why));
    }
    // SAFETY: the caller's promise; the length is a few thousand at most.
    let pattern =
        unsafe { array(pattern.cast::<u8>(), length as u32, ZE_RESULT_ERROR_INVALID_NULL_POINTER) }?;
    let to = span(state, list, to.expose_provenance(), size, Access::ReadWrite)?;
    Ok(Work::Fill { to, pattern })
}

pub(crate) unsafe extern "C" fn memory_fill(
    list: ze_command_list_handle_t,
    to: *mut c_void,
    pattern: *const c_void,
    length: usize,
    size: usize,
    signal: ze_event_handle_t,
    waits: u32,
    wait: *mut ze_event_handle_t,
) -> ze_result_t {
    // SAFETY: pointers of the application.
    unsafe {
        append("zeCommandListAppendMemoryFill", list, (signal, waits, wait), |state, list| {
            fill_work(state, list, to, (pattern, length), size)
        })
    }
}

pub(crate) unsafe extern "C" fn memory_fill_with_parameters(
    list: ze_command_list_handle_t,
    to: *mut c_void,
    pattern: *const c_void,
    length: usize,
    size: usize,
    _next: *const c_void,
    signal: ze_event_handle_t,
    waits: u32,
    wait: *mut ze_event_handle_t,
) -> ze_result_t {
    // SAFETY: pointers of the application.
    unsafe {
        append("zeCommandListAppendMemoryFillWithParameters", list, (signal, waits, wait), |state, list| {
            fill_work(state, list, to, (pattern, length), size)
        })
    }
}

/// Where a box lies in memory: origin, row pitch and slice pitch, in bytes. A pitch of zero is that of a box without gaps.
fn place(region: &ze_copy_region_t, pitch: u32, slice_pitch: u32) -> Option<(usize, usize, usize)> {
    let pitch = if pitch == 0 { region.width as usize } else { pitch as usize };
    let slice = match slice_pitch {
        0 => pitch.checked_mul(region.height as usize)?,
        given => given as usize,
    };
    let rows = (region.originY as usize).checked_mul(pitch)?;
    let slices = (region.originZ as usize).checked_mul(slice)?;
    let start = rows.checked_add(slices)?.checked_add(region.originX as usize)?;
    Some((start, pitch, slice))
}

pub(crate) unsafe extern "C" fn memory_copy_region(
    list: ze_command_list_handle_t,
    to: *mut c_void,
    to_region: *const ze_copy_region_t,
    to_pitch: u32,
    to_slice_pitch: u32,
    from: *const c_void,
    from_region: *const ze_copy_region_t,
    from_pitch: u32,
    from_slice_pitch: u32,
    signal: ze_event_handle_t,
    waits: u32,
    wait: *mut ze_event_handle_t,
) -> ze_result_t {
    let work = |state: &State, list: &List| {
        // SAFETY: pointers of the application.
        let (to_region, from_region) = unsafe { (get(to_region)?, get(from_region)?) };
        let same = (to_region.width, to_region.height, to_region.depth)
            == (from_region.width, from_region.height, from_region.depth);
        if !same {
            return Err(Refusal::new(ZE_RESULT_ERROR_INVALID_ARGUMENT, "the boxes differ in size"));
        }
        // Without rows or slices a box is a row.
        let (rows, slices) = (to_region.height.max(1) as usize, to_region.depth.max(1) as usize);
        let too_large = || Refusal::from(ZE_RESULT_ERROR_INVALID_SIZE);
        let to_place = place(&to_region, to_pitch, to_slice_pitch).ok_or_else(too_large)?;
        let from_place = place(&from_region, from_pitch, from_slice_pitch).ok_or_else(too_large)?;
        let row = to_region.width as usize;
        let boxes = Boxes { row, rows, slices, to: to_place, from: from_place };
        let reach = |place| boxes.reach(place).ok_or_else(too_large);
        let from = span(state, list, from.expose_provenance(), reach(from_place)?, Access::Read)?;
        let to = span(state, list, to.expose_provenance(), reach(to_place)?, Access::ReadWrite)?;
        Ok(Work::CopyBoxes { to, from, boxes })
    };
    // SAFETY: pointers of the application.
    unsafe { append("zeCommandListAppendMemoryCopyRegion", list, (signal, waits, wait), work) }
}

pub(crate) unsafe extern "C" fn barrier(
    list: ze_command_list_handle_t,
    signal: ze_event_handle_t,
    waits: u32,
    wait: *mut ze_event_handle_t,
) -> ze_result_t {
    // SAFETY: pointers of the application. Commands are executed in order anyway.
    unsafe { append("zeCommandListAppendBarrier", list, (signal, waits, wait), |_, _| Ok(Work::Nothing)) }
}

pub(crate) unsafe extern "C" fn memory_ranges_barrier(
    list: ze_command_list_handle_t,
    count: u32,
    sizes: *const usize,
    ranges: *mut *const c_void,
    signal: ze_event_handle_t,
    waits: u32,
    wait: *mut ze_event_handle_t,
) -> ze_result_t {
    let check = |_: &State, _: &List| {
        // SAFETY: pointers of the application.
        unsafe {
            array(sizes, count, ZE_RESULT_ERROR_INVALID_NULL_POINTER)?;
            array(ranges.cast_const(), count, ZE_RESULT_ERROR_INVALID_NULL_POINTER)?;
        }
        Ok(Work::Nothing)
    };
    // SAFETY: as above.
    unsafe { append("zeCommandListAppendMemoryRangesBarrier", list, (signal, waits, wait), check) }
}

pub(crate) unsafe extern "C" fn memory_prefetch(
    list: ze_command_list_handle_t,
    pointer: *const c_void,
    size: usize,
) -> ze_result_t {
    entry("zeCommandListAppendMemoryPrefetch", |state| {
        let list = state.lists.get(number(list.0))?;
        span(state, &list, pointer.expose_provenance(), size, Access::Nothing).map(drop)
    })
}

pub(crate) unsafe extern "C" fn mem_advise(
    list: ze_command_list_handle_t,
    device: ze_device_handle_t,
    pointer: *const c_void,
    size: usize,
    advice: ze_memory_advice_t,
) -> ze_result_t {
    entry("zeCommandListAppendMemAdvise", |state| {
        let list = state.lists.get(number(list.0))?;
        state.device(device)?;
        if advice.name().is_none() {
            return Err(ZE_RESULT_ERROR_INVALID_ENUMERATION.into());
        }
        span(state, &list, pointer.expose_provenance(), size, Access::Nothing).map(drop)
    })
}

pub(crate) unsafe extern "C" fn write_global_timestamp(
    list: ze_command_list_handle_t,
    to: *mut u64,
    signal: ze_event_handle_t,
    waits: u32,
    wait: *mut ze_event_handle_t,
) -> ze_result_t {
    let work = |state: &State, list: &List| {
        let to = to.expose_provenance();
        Ok(Work::Time(span(state, list, to, size_of::<u64>(), Access::ReadWrite)?))
    };
    // SAFETY: pointers of the application.
    unsafe { append("zeCommandListAppendWriteGlobalTimestamp", list, (signal, waits, wait), work) }
}

pub(crate) unsafe extern "C" fn query_kernel_timestamps(
    list: ze_command_list_handle_t,
    count: u32,
    events: *mut ze_event_handle_t,
    to: *mut c_void,
    offsets: *const usize,
    signal: ze_event_handle_t,
    waits: u32,
    wait: *mut ze_event_handle_t,
) -> ze_result_t {
    const SIZE: usize = size_of::<ze_kernel_timestamp_result_t>();
    let work = |state: &State, list: &List| {
        // SAFETY: pointers of the application.
        let (events, offsets) = unsafe {
            let events = array(events.cast_const(), count, ZE_RESULT_ERROR_INVALID_NULL_POINTER)?;
            let offsets = if offsets.is_null() {
                (0..events.len()).map(|index| index * SIZE).collect()
            } else {
                array(offsets, count, ZE_RESULT_ERROR_INVALID_NULL_POINTER)?
            };
            (events, offsets)
        };
        let size = offsets.iter().max().map_or(Some(0), |last| last.checked_add(SIZE));
        let size = size.ok_or(ZE_RESULT_ERROR_INVALID_SIZE)?;
        let to = span(state, list, to.expose_provenance(), size, Access::ReadWrite)?;
        let found: Done<Vec<_>> = events.into_iter().map(|event| signalled_by(state, event)).collect();
        Ok(Work::Times { events: found?, to, offsets })
    };
    // SAFETY: pointers of the application.
    unsafe { append("zeCommandListAppendQueryKernelTimestamps", list, (signal, waits, wait), work) }
}

pub(crate) unsafe extern "C" fn signal_event(
    list: ze_command_list_handle_t,
    event: ze_event_handle_t,
) -> ze_result_t {
    entry("zeCommandListAppendSignalEvent", |state| {
        let list = state.lists.get(number(list.0))?;
        list.append(nothing(Vec::new(), Some(signalled_by(state, event)?)))
    })
}

pub(crate) unsafe extern "C" fn wait_on_events(
    list: ze_command_list_handle_t,
    count: u32,
    events: *mut ze_event_handle_t,
) -> ze_result_t {
    entry("zeCommandListAppendWaitOnEvents", |state| {
        let list = state.lists.get(number(list.0))?;
        if events.is_null() {
            return Err(ZE_RESULT_ERROR_INVALID_NULL_POINTER.into());
        }
        // SAFETY: pointers of the application.
        let (wait, _) = unsafe { resolve(state, ze_event_handle_t::NULL, count, events) }?;
        list.append(nothing(wait, None))
    })
}

pub(crate) unsafe extern "C" fn event_reset(
    list: ze_command_list_handle_t,
    event: ze_event_handle_t,
) -> ze_result_t {
    entry("zeCommandListAppendEventReset", |state| {
        let list = state.lists.get(number(list.0))?;
        let work = Work::Reset(signalled_by(state, event)?);
        list.append(Command { wait: Vec::new(), work, signal: None })
    })
}

pub(crate) unsafe extern "C" fn host_function(
    list: ze_command_list_handle_t,
    function: ze_host_function_callback_t,
    data: *mut c_void,
    _next: *const c_void,
    signal: ze_event_handle_t,
    waits: u32,
    wait: *mut ze_event_handle_t,
) -> ze_result_t {
    let work = |_: &State, _: &List| {
        let function = function.ok_or(ZE_RESULT_ERROR_INVALID_NULL_POINTER)?;
        Ok(Work::Call(Callback { function, data }))
    };
    // SAFETY: pointers of the application.
    unsafe { append("zeCommandListAppendHostFunction", list, (signal, waits, wait), work) }
}

/// Several lists at once, in an immediate list.
pub(crate) unsafe extern "C" fn lists(
    immediate: ze_command_list_handle_t,
    count: u32,
    lists: *mut ze_command_list_handle_t,
    signal: ze_event_handle_t,
    waits: u32,
    wait: *mut ze_event_handle_t,
) -> ze_result_t {
    entry("zeCommandListImmediateAppendCommandListsExp", |state| {
        // SAFETY: pointers of the application.
        unsafe { append_all(state, immediate, (count, lists), signal, (waits, wait)) }
    })
}

pub(crate) unsafe extern "C" fn lists_with_parameters(
    immediate: ze_command_list_handle_t,
    count: u32,
    lists: *mut ze_command_list_handle_t,
    _next: *const c_void,
    signal: ze_event_handle_t,
    waits: u32,
    wait: *mut ze_event_handle_t,
) -> ze_result_t {
    entry("zeCommandListImmediateAppendCommandListsWithParameters", |state| {
        // SAFETY: pointers of the application.
        unsafe { append_all(state, immediate, (count, lists), signal, (waits, wait)) }
    })
}

/// # Safety
/// The arrays are null or valid for so many reads.
unsafe fn append_all(
    state: &State,
    immediate: ze_command_list_handle_t,
    (count, lists): (u32, *mut ze_command_list_handle_t),
    signal: ze_event_handle_t,
    (waits, wait): (u32, *mut ze_event_handle_t),
) -> Done {
    let immediate = state.lists.get(number(immediate.0))?;
    // SAFETY: the caller's promise.
    let (lists, (wait, signal)) = unsafe {
        (
            array(lists.cast_const(), count, ZE_RESULT_ERROR_INVALID_NULL_POINTER)?,
            resolve(state, signal, waits, wait)?,
        )
    };
    let mut commands = vec![nothing(wait, None)];
    for list in lists {
        commands.extend(state.lists.get(number(list.0))?.closed()?.iter().cloned());
    }
    commands.push(nothing(Vec::new(), signal));
    immediate.submit(commands)
}
