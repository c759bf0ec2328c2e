//! Attributes of an address.

use std::ffi::{c_int, c_uint, c_void};

use cuda_sys::*;
use soft_device::{read_argument, write_result};

use crate::context;
use crate::memory::{AllocationKind, DEVICE_PAGE, find};
use crate::state::{CudaResult, DriverState, entry};

/// The device ordinal of an address that the driver does not know.
const NO_DEVICE: c_int = -2;

/// The answers about an address.
struct Address {
    context: usize,
    /// The number of the device on this machine.
    device: Option<u32>,
    memory: CUmemorytype,
    /// The address at which devices access it, 0 if there is none, and that of the CPU.
    pointers: (usize, usize),
    id: u64,
    is_managed: bool,
    is_exported_by_ipc: bool,
    range: (usize, usize),
    handle_types: u32,
    pool: usize,
    /// The mapping, or the block of the pool, that contains the range.
    mapping: (usize, usize),
}

impl Address {
    /// Returns the answers about memory of the driver, or registered memory.
    fn of(state: &DriverState, address: CUdeviceptr) -> Option<Self> {
        let at = usize::try_from(address).ok()?;
        if let Some((start, found)) = state.registration(at) {
            return Some(Self {
                context: found.context,
                device: Some(found.device),
                memory: CU_MEMORYTYPE_HOST,
                pointers: (at, at),
                id: start as u64,
                is_managed: false,
                is_exported_by_ipc: false,
                range: (start, found.size),
                handle_types: 0,
                pool: 0,
                mapping: (start, found.size),
            });
        }
        let range = find(state, address)?;
        let owner = &range.owner;
        let (is_host, is_managed) = (owner.is_host(), owner.is_managed());
        let mapping = match &owner.pool {
            Some(pool) => pool.addresses(),
            None => (range.start, range.mapped_size().next_multiple_of(DEVICE_PAGE)),
        };
        Some(Self {
            context: owner.context,
            device: owner.device,
            memory: if is_host { CU_MEMORYTYPE_HOST } else { CU_MEMORYTYPE_DEVICE },
            pointers: (at, if is_host || is_managed { at } else { 0 }),
            id: range.id,
            is_managed,
            is_exported_by_ipc: owner.kind == AllocationKind::Device,
            range: (range.start, range.size),
            handle_types: owner.pool.as_ref().map_or(0, |pool| pool.exportable)
                | owner.physical.as_ref().map_or(0, |(_, memory)| memory.exportable),
            pool: owner.pool.as_ref().map_or(0, |pool| pool.handle),
            mapping,
        })
    }

    /// Writes an attribute.
    ///
    /// # Safety
    /// `value` is null, or valid for a write of the attribute's type.
    unsafe fn write(
        &self,
        state: &DriverState,
        attribute: CUpointer_attribute,
        value: *mut c_void,
    ) -> CudaResult {
        // SAFETY: the caller upholds the contract.
        unsafe {
            match attribute {
                CU_POINTER_ATTRIBUTE_CONTEXT => write_result(value.cast(), context::handle(self.context))?,
                CU_POINTER_ATTRIBUTE_MEMORY_TYPE => write_result(value.cast(), self.memory)?,
                CU_POINTER_ATTRIBUTE_DEVICE_POINTER => write_result(value.cast(), self.pointers.0 as u64)?,
                CU_POINTER_ATTRIBUTE_HOST_POINTER if self.pointers.1 == 0 => {
                    return Err(CUDA_ERROR_INVALID_VALUE.into());
                }
                CU_POINTER_ATTRIBUTE_HOST_POINTER => write_result(value.cast(), self.pointers.1 as u64)?,
                CU_POINTER_ATTRIBUTE_P2P_TOKENS => return Err(CUDA_ERROR_NOT_SUPPORTED.into()),
                CU_POINTER_ATTRIBUTE_SYNC_MEMOPS
                | CU_POINTER_ATTRIBUTE_IS_GPU_DIRECT_RDMA_CAPABLE
                | CU_POINTER_ATTRIBUTE_IS_HW_DECOMPRESS_CAPABLE => write_result(value.cast::<c_uint>(), 0)?,
                CU_POINTER_ATTRIBUTE_BUFFER_ID | CU_POINTER_ATTRIBUTE_MEMORY_BLOCK_ID => {
                    write_result(value.cast(), self.id)?;
                }
                CU_POINTER_ATTRIBUTE_IS_MANAGED => write_flag(value, self.is_managed)?,
                CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL => {
                    let place = state.devices.iter().position(|device| Some(device.number) == self.device);
                    let place = place.and_then(|place| c_int::try_from(place).ok());
                    write_result(value.cast::<c_int>(), place.unwrap_or(-1))?;
                }
                CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE => {
                    write_flag(value, self.is_exported_by_ipc)?;
                }
                CU_POINTER_ATTRIBUTE_RANGE_START_ADDR => write_result(value.cast(), self.range.0 as u64)?,
                CU_POINTER_ATTRIBUTE_RANGE_SIZE => write_result(value.cast(), self.range.1 as u64)?,
                CU_POINTER_ATTRIBUTE_MAPPED => write_flag(value, true)?,
                CU_POINTER_ATTRIBUTE_ALLOWED_HANDLE_TYPES => {
                    write_result(value.cast(), u64::from(self.handle_types))?;
                }
                CU_POINTER_ATTRIBUTE_ACCESS_FLAGS => {
                    write_result(value.cast(), CU_MEM_ACCESS_FLAGS_PROT_READWRITE)?;
                }
                CU_POINTER_ATTRIBUTE_MEMPOOL_HANDLE => write_result(value.cast(), self.pool as u64)?,
                CU_POINTER_ATTRIBUTE_MAPPING_SIZE => write_result(value.cast(), self.mapping.1 as u64)?,
                CU_POINTER_ATTRIBUTE_MAPPING_BASE_ADDR => write_result(value.cast(), self.mapping.0 as u64)?,
                _ => return Err(CUDA_ERROR_INVALID_VALUE.into()),
            }
        }
        Ok(())
    }
}

/// Writes a flag of one byte.
///
/// # Safety
/// `value` is null or valid for a write.
unsafe fn write_flag(value: *mut c_void, flag: bool) -> CudaResult {
    // SAFETY: the caller upholds the contract.
    Ok(unsafe { write_result(value.cast::<u8>(), u8::from(flag)) }?)
}

/// Writes the null value of an attribute, which `cuPointerGetAttributes` returns for memory that
/// the driver does not know.
///
/// # Safety
/// As [`Address::write`].
unsafe fn write_null(attribute: CUpointer_attribute, value: *mut c_void) -> CudaResult {
    // SAFETY: the caller upholds the contract.
    unsafe {
        match attribute {
            CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL => write_result(value.cast(), NO_DEVICE)?,
            CU_POINTER_ATTRIBUTE_MEMORY_TYPE
            | CU_POINTER_ATTRIBUTE_SYNC_MEMOPS
            | CU_POINTER_ATTRIBUTE_IS_GPU_DIRECT_RDMA_CAPABLE
            | CU_POINTER_ATTRIBUTE_IS_HW_DECOMPRESS_CAPABLE
            | CU_POINTER_ATTRIBUTE_ACCESS_FLAGS => write_result(value.cast::<c_uint>(), 0)?,
            CU_POINTER_ATTRIBUTE_IS_MANAGED
            | CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE
            | CU_POINTER_ATTRIBUTE_MAPPED => write_flag(value, false)?,
            CUpointer_attribute(1..=21) => write_result(value.cast::<u64>(), 0)?,
            _ => return Err(CUDA_ERROR_INVALID_VALUE.into()),
        }
    }
    Ok(())
}

/// Returns an attribute of an address.
///
/// # Safety
/// As the CUDA driver interface specifies.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuPointerGetAttribute(
    value: *mut c_void,
    attribute: CUpointer_attribute,
    address: CUdeviceptr,
) -> CUresult {
    entry("cuPointerGetAttribute", |state| {
        let found = Address::of(state, address).ok_or(CUDA_ERROR_INVALID_VALUE)?;
        // SAFETY: the application's pointer has the type of the attribute.
        unsafe { found.write(state, attribute, value) }
    })
}

/// Returns several attributes of an address: null values if the driver does not know the address.
///
/// # Safety
/// As the CUDA driver interface specifies.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuPointerGetAttributes(
    count: c_uint,
    attributes: *mut CUpointer_attribute,
    values: *mut *mut c_void,
    address: CUdeviceptr,
) -> CUresult {
    entry("cuPointerGetAttributes", |state| {
        let found = Address::of(state, address);
        for place in 0..count as usize {
            // SAFETY: the application's arrays have `count` elements, and each value has the type of
            // its attribute.
            unsafe {
                let attribute = read_argument(attributes.wrapping_add(place))?;
                let value = read_argument(values.wrapping_add(place))?;
                match &found {
                    // An attribute that does not apply is null, and no error.
                    Some(found) if found.write(state, attribute, value).is_ok() => {}
                    _ => write_null(attribute, value)?,
                }
            }
        }
        Ok(())
    })
}
