//! Advice about managed memory, prefetches, and copies of several ranges at once.
//!
//! Managed memory is one memfd for host and devices, so that advice and prefetches move nothing.
//! Advice holds for a whole allocation, and can be queried.

use std::ffi::{c_int, c_uint, c_void};
use std::sync::Arc;

use cuda_sys::*;
use soft_device::{MemoryRange, lock, read_argument, write_result};

use crate::memory::{Allocation, find};
use crate::state::{CudaResult, DriverState, entry};

/// The advice about a managed allocation.
#[derive(Debug, Default)]
pub(crate) struct Advice {
    is_read_mostly: bool,
    preferred: Option<CUmemLocation>,
    accessed_by: Vec<CUmemLocation>,
    last_prefetch: Option<CUmemLocation>,
}

/// The device number of the host, and of no device.
const HOST: c_int = -1;
const NOWHERE: c_int = -2;

/// Returns the number of a location in a query.
fn number(location: Option<CUmemLocation>) -> c_int {
    match location {
        None => NOWHERE,
        Some(CUmemLocation { r#type: CU_MEM_LOCATION_TYPE_DEVICE, id }) => id,
        Some(_) => HOST,
    }
}

impl DriverState {
    /// Returns the managed allocation that contains a range.
    fn managed(&self, address: CUdeviceptr, size: usize) -> CudaResult<Arc<MemoryRange<Allocation>>> {
        let range = find(self, address).filter(|range| range.owner.is_managed() && size > 0);
        let range = range.ok_or(CUDA_ERROR_INVALID_VALUE)?;
        let left = range.size - (address as usize - range.start);
        if size <= left { Ok(range) } else { Err(CUDA_ERROR_INVALID_VALUE.into()) }
    }

    fn check_location(&self, location: CUmemLocation) -> CudaResult {
        match location.r#type {
            CU_MEM_LOCATION_TYPE_DEVICE => self.device(location.id).map(drop),
            CU_MEM_LOCATION_TYPE_HOST
            | CU_MEM_LOCATION_TYPE_HOST_NUMA
            | CU_MEM_LOCATION_TYPE_HOST_NUMA_CURRENT => Ok(()),
            _ => Err(CUDA_ERROR_INVALID_VALUE.into()),
        }
    }

    fn prefetch(&self, address: CUdeviceptr, size: usize, location: CUmemLocation) -> CudaResult {
        self.check_location(location)?;
        lock(&self.managed(address, size)?.owner.advice).last_prefetch = Some(location);
        Ok(())
    }
}

/// Sets advice about managed memory.
///
/// # Safety
/// As the CUDA driver interface specifies.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuMemAdvise_v2(
    address: CUdeviceptr,
    size: usize,
    wanted: CUmem_advise,
    location: CUmemLocation,
) -> CUresult {
    entry("cuMemAdvise", |state| {
        let range = state.managed(address, size)?;
        let mut advice = lock(&range.owner.advice);
        match wanted {
            CU_MEM_ADVISE_SET_READ_MOSTLY => advice.is_read_mostly = true,
            CU_MEM_ADVISE_UNSET_READ_MOSTLY => advice.is_read_mostly = false,
            CU_MEM_ADVISE_UNSET_PREFERRED_LOCATION => advice.preferred = None,
            CU_MEM_ADVISE_SET_PREFERRED_LOCATION => {
                state.check_location(location)?;
                advice.preferred = Some(location);
            }
            CU_MEM_ADVISE_SET_ACCESSED_BY | CU_MEM_ADVISE_UNSET_ACCESSED_BY => {
                state.check_location(location)?;
                advice.accessed_by.retain(|known| *known != location);
                if wanted == CU_MEM_ADVISE_SET_ACCESSED_BY {
                    advice.accessed_by.push(location);
                }
            }
            _ => return Err(CUDA_ERROR_INVALID_VALUE.into()),
        }
        Ok(())
    })
}

/// Returns advice about managed memory, or the location of the last prefetch.
///
/// # Safety
/// As the CUDA driver interface specifies.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuMemRangeGetAttribute(
    value: *mut c_void,
    value_size: usize,
    attribute: CUmem_range_attribute,
    address: CUdeviceptr,
    size: usize,
) -> CUresult {
    entry("cuMemRangeGetAttribute", |state| {
        let range = state.managed(address, size)?;
        let advice = lock(&range.owner.advice);
        let kind = |location: Option<CUmemLocation>| {
            location.map_or(CU_MEM_LOCATION_TYPE_INVALID, |location| location.r#type).0 as c_int
        };
        let numbers: Vec<c_int> = match attribute {
            CU_MEM_RANGE_ATTRIBUTE_READ_MOSTLY => vec![c_int::from(advice.is_read_mostly)],
            CU_MEM_RANGE_ATTRIBUTE_PREFERRED_LOCATION => vec![number(advice.preferred)],
            CU_MEM_RANGE_ATTRIBUTE_LAST_PREFETCH_LOCATION => vec![number(advice.last_prefetch)],
            CU_MEM_RANGE_ATTRIBUTE_PREFERRED_LOCATION_TYPE => vec![kind(advice.preferred)],
            CU_MEM_RANGE_ATTRIBUTE_LAST_PREFETCH_LOCATION_TYPE => vec![kind(advice.last_prefetch)],
            CU_MEM_RANGE_ATTRIBUTE_PREFERRED_LOCATION_ID => vec![advice.preferred.map_or(0, |at| at.id)],
            CU_MEM_RANGE_ATTRIBUTE_LAST_PREFETCH_LOCATION_ID => {
                vec![advice.last_prefetch.map_or(0, |at| at.id)]
            }
            CU_MEM_RANGE_ATTRIBUTE_ACCESSED_BY => {
                let known = advice.accessed_by.iter().map(|location| number(Some(*location)));
                known.chain(std::iter::repeat(NOWHERE)).take(value_size / size_of::<c_int>()).collect()
            }
            _ => return Err(CUDA_ERROR_INVALID_VALUE.into()),
        };
        if value_size == 0 || value_size != numbers.len() * size_of::<c_int>() {
            return Err(CUDA_ERROR_INVALID_VALUE.into());
        }
        for (place, number) in numbers.into_iter().enumerate() {
            // SAFETY: the application's buffer has `value_size` bytes, or is null.
            unsafe { write_result(value.cast::<c_int>().wrapping_add(place), number) }?;
        }
        Ok(())
    })
}

/// Prefetches managed memory.
///
/// # Safety
/// As the CUDA driver interface specifies.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuMemPrefetchAsync_v2(
    address: CUdeviceptr,
    size: usize,
    location: CUmemLocation,
    _flags: c_uint,
    stream: CUstream,
) -> CUresult {
    entry("cuMemPrefetchAsync", |state| {
        state.stream(stream)?;
        state.prefetch(address, size, location)
    })
}

/// Returns the location of an element: each of the `count` places is the first element of the
/// location with the same number.
///
/// # Safety
/// The arrays are null, or have `count` elements.
unsafe fn location_of(
    element: usize,
    locations: *const CUmemLocation,
    places: *const usize,
    count: usize,
) -> CudaResult<CUmemLocation> {
    let mut found = None;
    for number in 0..count {
        // SAFETY: the caller upholds the contract.
        let (place, location) = unsafe {
            (read_argument(places.wrapping_add(number))?, read_argument(locations.wrapping_add(number))?)
        };
        if place <= element {
            found = Some(location);
        }
    }
    found.ok_or_else(|| CUDA_ERROR_INVALID_VALUE.into())
}

/// Returns an element of the arrays of addresses and sizes.
///
/// # Safety
/// The arrays are null, or have that element.
unsafe fn range_of(
    element: usize,
    addresses: *const CUdeviceptr,
    sizes: *const usize,
) -> CudaResult<(CUdeviceptr, usize)> {
    // SAFETY: the caller upholds the contract.
    unsafe {
        Ok((read_argument(addresses.wrapping_add(element))?, read_argument(sizes.wrapping_add(element))?))
    }
}

/// Prefetches several ranges of managed memory.
///
/// # Safety
/// As the CUDA driver interface specifies.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuMemPrefetchBatchAsync(
    addresses: *const CUdeviceptr,
    sizes: *const usize,
    count: usize,
    locations: *const CUmemLocation,
    places: *const usize,
    location_count: usize,
    _flags: u64,
    stream: CUstream,
) -> CUresult {
    entry("cuMemPrefetchBatchAsync", |state| {
        state.stream(stream)?;
        for element in 0..count {
            // SAFETY: the application's arrays have `count` and `location_count` elements.
            let (location, (address, size)) = unsafe {
                (
                    location_of(element, locations, places, location_count)?,
                    range_of(element, addresses, sizes)?,
                )
            };
            state.prefetch(address, size, location)?;
        }
        Ok(())
    })
}

/// Lets the driver discard the contents of managed memory. This one keeps them.
///
/// # Safety
/// As the CUDA driver interface specifies.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuMemDiscardBatchAsync(
    addresses: *const CUdeviceptr,
    sizes: *const usize,
    count: usize,
    _flags: u64,
    stream: CUstream,
) -> CUresult {
    entry("cuMemDiscardBatchAsync", |state| {
        state.stream(stream)?;
        for element in 0..count {
            // SAFETY: the application's arrays have `count` elements.
            let (address, size) = unsafe { range_of(element, addresses, sizes)? };
            state.managed(address, size)?;
        }
        Ok(())
    })
}

/// Discards and prefetches several ranges of managed memory.
///
/// # Safety
/// As the CUDA driver interface specifies.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuMemDiscardAndPrefetchBatchAsync(
    addresses: *const CUdeviceptr,
    sizes: *const usize,
    count: usize,
    locations: *const CUmemLocation,
    places: *const usize,
    location_count: usize,
    flags: u64,
    stream: CUstream,
) -> CUresult {
    // SAFETY: the caller upholds the contract.
    unsafe {
        match cuMemDiscardBatchAsync(addresses, sizes, count, flags, stream) {
            CUDA_SUCCESS => cuMemPrefetchBatchAsync(
                addresses,
                sizes,
                count,
                locations,
                places,
                location_count,
                flags,
                stream,
            ),
            failed => failed,
        }
    }
}

/// Copies several ranges, in a stream. Hints about their locations have no effect.
///
/// # Safety
/// As the CUDA driver interface specifies.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuMemcpyBatchAsync_v2(
    to: *const CUdeviceptr,
    from: *const CUdeviceptr,
    sizes: *const usize,
    count: usize,
    _attributes: *const c_void,
    _places: *const usize,
    _attribute_count: usize,
    stream: CUstream,
) -> CUresult {
    entry("cuMemcpyBatchAsync", |state| {
        // NVIDIA's driver does not accept the default stream here.
        if stream.0.addr() <= CU_STREAM_LEGACY {
            return Err(CUDA_ERROR_INVALID_VALUE.into());
        }
        for element in 0..count {
            // SAFETY: the application's arrays have `count` elements.
            unsafe {
                let (to, from) = (to.wrapping_add(element), from.wrapping_add(element));
                let size = read_argument(sizes.wrapping_add(element))?;
                state.copy(read_argument(to)?, read_argument(from)?, size, Some(stream))?;
            }
        }
        Ok(())
    })
}

/// Copies between any two addresses, in a stream. Hints about their locations have no effect.
///
/// # Safety
/// As the CUDA driver interface specifies.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuMemcpyWithAttributesAsync(
    to: CUdeviceptr,
    from: CUdeviceptr,
    size: usize,
    _attributes: *const c_void,
    stream: CUstream,
) -> CUresult {
    entry("cuMemcpyWithAttributesAsync", |state| state.copy(to, from, size, Some(stream)))
}
