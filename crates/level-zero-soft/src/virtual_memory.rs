//! Reserved addresses, and physical memory that is mapped there.

use std::ffi::c_void;
use std::sync::Arc;

use level_zero_sys::*;

use crate::entry::{Done, Refusal, entry};
use crate::memory::{Allocation, DEVICE_PAGE, Source};
use crate::pointer::{get, put};
use crate::state::{Device, State, handle, number};
use soft_device::{Access, Backing, Mapping, Origin, Range, lock};

/// Pages of mappings of at least this size, in bytes.
const LARGE_PAGE: usize = 2 << 20;

/// Addresses that the application reserved.
#[derive(Debug)]
pub(crate) struct Reservation {
    context: ze_context_handle_t,
    addresses: Mapping,
}

impl Reservation {
    fn has(&self, context: ze_context_handle_t, start: usize, size: usize) -> bool {
        let begin = self.addresses.address();
        self.context == context
            && start >= begin
            && start - begin <= self.addresses.size()
            && size <= self.addresses.size() - (start - begin)
    }
}

/// Memory without an address.
#[derive(Debug)]
pub(crate) struct Physical {
    id: u64,
    context: ze_context_handle_t,
    kind: ze_memory_type_t,
    device: Option<Arc<Device>>,
    backing: Arc<Backing>,
    size: usize,
}

pub(crate) unsafe extern "C" fn physical_create(
    context: ze_context_handle_t,
    device: ze_device_handle_t,
    desc: *mut ze_physical_mem_desc_t,
    physical: *mut ze_physical_mem_handle_t,
) -> ze_result_t {
    entry("zePhysicalMemCreate", |state| {
        state.context(context)?;
        // SAFETY: pointers of the application.
        let desc = unsafe { get(desc.cast_const()) }?;
        // SAFETY: as above. It is written to before anything is made.
        unsafe { put(physical, ze_physical_mem_handle_t::NULL) }?;
        let on_host = match desc.flags {
            0 | ZE_PHYSICAL_MEM_FLAG_ALLOCATE_ON_DEVICE => false,
            ZE_PHYSICAL_MEM_FLAG_ALLOCATE_ON_HOST => true,
            _ => return Err(ZE_RESULT_ERROR_INVALID_ENUMERATION.into()),
        };
        let device = if on_host { None } else { Some(state.device(device)?) };
        let page = if on_host { HOST_PAGE } else { DEVICE_PAGE };
        if desc.size == 0 || !desc.size.is_multiple_of(page) {
            let why = format!("{} bytes: a multiple of the page size, {page}, is needed", desc.size);
            return Err(Refusal::new(ZE_RESULT_ERROR_UNSUPPORTED_SIZE, why));
        }
        let mut charges = device.as_ref().map_or(Ok(Vec::new()), |device| device.charge(desc.size as u64))?;
        charges.push(state.charge_fd()?);
        let (kind, origin) = match on_host {
            true => (ZE_MEMORY_TYPE_HOST, Origin::Host),
            false => {
                (ZE_MEMORY_TYPE_DEVICE, Origin::Device(device.as_ref().map_or(0, |device| device.index)))
            }
        };
        let backing = Arc::new(Backing::new(desc.size, origin, charges)?);
        let made = Physical { id: state.id(), context, kind, device, backing, size: desc.size };
        // SAFETY: as above.
        unsafe { put(physical, ze_physical_mem_handle_t(handle(state.physical.insert(made)))) }
    })
}

const HOST_PAGE: usize = 4096;

/// Mappings keep the memory.
pub(crate) unsafe extern "C" fn physical_destroy(
    context: ze_context_handle_t,
    physical: ze_physical_mem_handle_t,
) -> ze_result_t {
    entry("zePhysicalMemDestroy", |state| {
        state.contexts.get(number(context.0))?;
        let there = state.physical.get(number(physical.0))?;
        if there.context != context {
            return Err(ZE_RESULT_ERROR_INVALID_ARGUMENT.into());
        }
        state.exports.forget(there.id);
        Ok(state.physical.remove(number(physical.0)).map(drop)?)
    })
}

/// Whether addresses are, in part or all, ones that the application reserved.
pub(crate) fn is_reserved(state: &State, start: usize, size: usize) -> bool {
    lock(&state.reservations).iter().any(|reservation| {
        let begin = reservation.addresses.address();
        start < begin + reservation.addresses.size() && begin < start.saturating_add(size)
    })
}

/// A context goes: what it reserved and made goes too.
pub(crate) fn forget(state: &State, context: ze_context_handle_t) {
    lock(&state.reservations).retain(|reservation| reservation.context != context);
    state.physical.retain(|physical| physical.context != context);
}

pub(crate) unsafe extern "C" fn physical_get_properties(
    context: ze_context_handle_t,
    physical: ze_physical_mem_handle_t,
    properties: *mut ze_physical_mem_properties_t,
) -> ze_result_t {
    entry("zePhysicalMemGetProperties", |state| {
        state.context(context)?;
        let physical = state.physical.get(number(physical.0))?;
        // SAFETY: a pointer of the application.
        unsafe {
            let mut told = get(properties)?;
            (told.id, told.size) = (physical.id, physical.size as u64);
            put(properties, told)
        }
    })
}

pub(crate) unsafe extern "C" fn reserve(
    context: ze_context_handle_t,
    start: *const c_void,
    size: usize,
    pointer: *mut *mut c_void,
) -> ze_result_t {
    entry("zeVirtualMemReserve", |state| {
        state.context(context)?;
        if size == 0 || !size.is_multiple_of(page_for(size)) {
            return Err(ZE_RESULT_ERROR_UNSUPPORTED_SIZE.into());
        }
        // SAFETY: a pointer of the application.
        unsafe { put(pointer, std::ptr::null_mut()) }?;
        let page = page_for(size);
        // A hint: where it cannot be had, addresses elsewhere do.
        let wanted = Some(start.addr()).filter(|start| *start != 0 && start.is_multiple_of(page));
        let there = wanted.and_then(|start| Mapping::reserve_at(start, size).ok());
        let addresses = there.map_or_else(|| Mapping::reserve(size, page), Ok)?;
        let start = addresses.start();
        lock(&state.reservations).push(Reservation { context, addresses });
        // SAFETY: as above.
        unsafe { put(pointer, start.cast()) }
    })
}

pub(crate) unsafe extern "C" fn free(
    context: ze_context_handle_t,
    pointer: *const c_void,
    size: usize,
) -> ze_result_t {
    entry("zeVirtualMemFree", |state| {
        state.contexts.get(number(context.0))?;
        check(pointer, size)?;
        let mut reservations = lock(&state.reservations);
        let is_it = |reservation: &Reservation| {
            reservation.context == context
                && reservation.addresses.address() == pointer.addr()
                && reservation.addresses.size() == size
        };
        let index = reservations.iter().position(is_it).ok_or_else(|| not_reserved(pointer))?;
        if !state.addresses.within(pointer.addr(), pointer.addr() + size).is_empty() {
            return Err(Refusal::new(ZE_RESULT_ERROR_INVALID_ARGUMENT, "memory is still mapped there"));
        }
        reservations.swap_remove(index);
        Ok(())
    })
}

fn page_for(size: usize) -> usize {
    if size >= LARGE_PAGE { LARGE_PAGE } else { DEVICE_PAGE }
}

fn check(pointer: *const c_void, size: usize) -> Done {
    if pointer.is_null() {
        return Err(ZE_RESULT_ERROR_INVALID_NULL_POINTER.into());
    }
    if size == 0 {
        return Err(ZE_RESULT_ERROR_UNSUPPORTED_SIZE.into());
    }
    Ok(())
}

fn not_reserved(pointer: *const c_void) -> Refusal {
    Refusal::new(ZE_RESULT_ERROR_INVALID_ARGUMENT, format!("{pointer:p} is not reserved so"))
}

pub(crate) unsafe extern "C" fn query_page_size(
    context: ze_context_handle_t,
    device: ze_device_handle_t,
    size: usize,
    page: *mut usize,
) -> ze_result_t {
    entry("zeVirtualMemQueryPageSize", |state| {
        state.context(context)?;
        state.device(device)?;
        if size == 0 {
            return Err(ZE_RESULT_ERROR_UNSUPPORTED_SIZE.into());
        }
        // SAFETY: a pointer of the application.
        unsafe { put(page, page_for(size)) }
    })
}

fn access_of(access: ze_memory_access_attribute_t) -> Done<Access> {
    match access {
        ZE_MEMORY_ACCESS_ATTRIBUTE_NONE => Ok(Access::Nothing),
        ZE_MEMORY_ACCESS_ATTRIBUTE_READWRITE => Ok(Access::ReadWrite),
        ZE_MEMORY_ACCESS_ATTRIBUTE_READONLY => Ok(Access::Read),
        _ => Err(ZE_RESULT_ERROR_INVALID_ENUMERATION.into()),
    }
}

/// Shows at an address of the application what it may see there: nothing of a device.
fn show(
    addresses: &Mapping,
    start: usize,
    size: usize,
    backing: &Backing,
    offset: usize,
    kind: ze_memory_type_t,
    access: Access,
) -> Done {
    let visible = if kind == ZE_MEMORY_TYPE_HOST { access } else { Access::Nothing };
    let file = backing.file().filter(|_| visible != Access::Nothing).map(|file| (file, offset as u64));
    Ok(addresses.show(start - addresses.address(), size, file, visible)?)
}

pub(crate) unsafe extern "C" fn map(
    context: ze_context_handle_t,
    pointer: *const c_void,
    size: usize,
    physical: ze_physical_mem_handle_t,
    offset: usize,
    access: ze_memory_access_attribute_t,
) -> ze_result_t {
    entry("zeVirtualMemMap", |state| {
        state.context(context)?;
        check(pointer, size)?;
        let access = access_of(access)?;
        let physical = state.physical.get(number(physical.0))?;
        let start = pointer.addr();
        if !start.is_multiple_of(DEVICE_PAGE) || !offset.is_multiple_of(DEVICE_PAGE) {
            return Err(ZE_RESULT_ERROR_UNSUPPORTED_ALIGNMENT.into());
        }
        if !size.is_multiple_of(DEVICE_PAGE)
            || offset > physical.size
            || size > physical.size - offset
            || physical.context != context
        {
            return Err(Refusal::new(
                ZE_RESULT_ERROR_UNSUPPORTED_SIZE,
                "not whole pages of the physical memory",
            ));
        }
        let reservations = lock(&state.reservations);
        let reservation = reservations.iter().find(|reservation| reservation.has(context, start, size));
        let reservation = reservation.ok_or_else(|| not_reserved(pointer))?;
        let end = start + size;
        if !state.addresses.within(start, end).is_empty() || state.addresses.find(start).is_some() {
            return Err(Refusal::new(ZE_RESULT_ERROR_INVALID_ARGUMENT, "something is mapped there"));
        }
        show(&reservation.addresses, start, size, &physical.backing, offset, physical.kind, access)?;
        let device = physical.device.as_deref();
        let mut owner = Allocation::new(state, Source::Mapped, physical.kind, context, device, None);
        // However often it is mapped, it is one memory, with one handle.
        owner.id = physical.id;
        let (backing, owner) = (Arc::clone(&physical.backing), Arc::new(owner));
        state.addresses.insert(start, Range { size, room: size, backing, offset, access, owner });
        Ok(())
    })
}

pub(crate) unsafe extern "C" fn unmap(
    context: ze_context_handle_t,
    pointer: *const c_void,
    size: usize,
) -> ze_result_t {
    entry("zeVirtualMemUnmap", |state| {
        state.contexts.get(number(context.0))?;
        check(pointer, size)?;
        let (start, end) = (pointer.addr(), pointer.addr().saturating_add(size));
        let reservations = lock(&state.reservations);
        let reservation = reservations.iter().find(|reservation| reservation.has(context, start, size));
        let reservation = reservation.ok_or_else(|| not_reserved(pointer))?;
        let mapped = state.addresses.within(start, end);
        // What begins before or ends after is not cut in two.
        let is_whole = mapped.iter().all(|(at, range)| at + range.size <= end)
            && state.addresses.find(start).is_none_or(|(at, _)| at == start);
        if mapped.is_empty() || !is_whole {
            return Err(Refusal::new(
                ZE_RESULT_ERROR_INVALID_ARGUMENT,
                "mappings are not there, or not whole",
            ));
        }
        reservation.addresses.show(start - reservation.addresses.address(), size, None, Access::Nothing)?;
        for (at, _) in mapped {
            state.addresses.remove(at, |range| range.owner.source == Source::Mapped);
        }
        Ok(())
    })
}

pub(crate) unsafe extern "C" fn set_access(
    context: ze_context_handle_t,
    pointer: *const c_void,
    size: usize,
    access: ze_memory_access_attribute_t,
) -> ze_result_t {
    entry("zeVirtualMemSetAccessAttribute", |state| {
        state.context(context)?;
        check(pointer, size)?;
        let access = access_of(access)?;
        let start = pointer.addr();
        let reservations = lock(&state.reservations);
        let reservation = reservations.iter().find(|reservation| reservation.has(context, start, size));
        let reservation = reservation.ok_or_else(|| not_reserved(pointer))?;
        let mapped = whole(state, start, size)?;
        for (at, range) in mapped {
            show(
                &reservation.addresses,
                at,
                range.size,
                &range.backing,
                range.offset,
                range.owner.kind,
                access,
            )?;
            state.addresses.change(at, |range| range.access = access);
        }
        Ok(())
    })
}

/// The mappings that a range consists of.
fn whole(state: &State, start: usize, size: usize) -> Done<Vec<(usize, Range<Arc<Allocation>>)>> {
    let mapped = state.addresses.within(start, start.saturating_add(size));
    let covered: usize = mapped.iter().map(|(_, range)| range.size).sum();
    if mapped.first().is_none_or(|(at, _)| *at != start) || covered != size {
        return Err(Refusal::new(
            ZE_RESULT_ERROR_INVALID_ARGUMENT,
            "the range does not consist of whole mappings",
        ));
    }
    Ok(mapped)
}

pub(crate) unsafe extern "C" fn get_access(
    context: ze_context_handle_t,
    pointer: *const c_void,
    size: usize,
    access: *mut ze_memory_access_attribute_t,
    told: *mut usize,
) -> ze_result_t {
    entry("zeVirtualMemGetAccessAttribute", |state| {
        state.context(context)?;
        check(pointer, size)?;
        let (start, range) = state.addresses.find(pointer.addr()).ok_or_else(|| not_reserved(pointer))?;
        if range.owner.source != Source::Mapped {
            return Err(not_reserved(pointer));
        }
        let is = match range.access {
            Access::Nothing => ZE_MEMORY_ACCESS_ATTRIBUTE_NONE,
            Access::Read => ZE_MEMORY_ACCESS_ATTRIBUTE_READONLY,
            Access::ReadWrite => ZE_MEMORY_ACCESS_ATTRIBUTE_READWRITE,
        };
        // SAFETY: pointers of the application.
        unsafe {
            put(access, is)?;
            put(told, size.min(range.size - (pointer.addr() - start)))
        }
    })
}
