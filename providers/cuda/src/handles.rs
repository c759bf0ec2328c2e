//! Export of regions: [`HandleFormat`], the formats of CUDA memory in umf handles.
//!
//! | format | file descriptor | `native` | `offset` |
//! |---|---|---|---|
//! | `Fd`: kind `virtual` | of the physical memory | `umfcuda1`, the device's UUID (16 bytes), bytes of the physical memory (8, little-endian) | 0 |
//! | `Fabric`: kind `virtual` | none | the driver's 64 bytes | 0 |
//! | `Legacy`: kind `device` | none | the driver's 64 bytes | of the region in the driver's allocation |
//!
//! The allocation id contains the format (upper 8 bits: 1, 2, 3) and a fingerprint of the device's
//! UUID (the other bits).

use std::sync::Arc;

use cuda_sys::CUipcMemHandle;
use umf_core::{Error, Export, NativeBytes, NativeExport, ProviderKind, Region, Result};

use crate::address_map;
use crate::driver::driver_error;
use crate::provider::{Backend, CudaProvider};

/// The kind of provider.
pub(crate) const KIND: ProviderKind = match ProviderKind::new("cuda") {
    Some(kind) => kind,
    None => panic!("a valid name"),
};

const MAGIC: [u8; 8] = *b"umfcuda1";

/// The format of an exported handle.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum HandleFormat {
    /// A file descriptor of physical memory.
    Fd = 1,
    /// A `CUmemFabricHandle`.
    Fabric = 2,
    /// A `CUipcMemHandle`.
    Legacy = 3,
}

/// Returns the allocation id of handles of a format and a device.
pub(crate) fn allocation_id(format: HandleFormat, uuid: [u8; 16]) -> u64 {
    (format as u64) << 56 | fingerprint(uuid)
}

/// Returns 56 bits of a UUID. They mix both halves: the devices of one machine differ in the
/// middle.
pub(crate) fn fingerprint(uuid: [u8; 16]) -> u64 {
    let (mut low, mut high) = ([0; 8], [0; 8]);
    low.copy_from_slice(&uuid[..8]);
    high.copy_from_slice(&uuid[8..]);
    (u64::from_be_bytes(low) ^ u64::from_be_bytes(high).rotate_left(17)) >> 8
}

/// Returns the format and the device's fingerprint of a received allocation id. `None` if the
/// format is unknown.
pub(crate) fn parse_allocation_id(allocation_id: u64) -> Option<(HandleFormat, u64)> {
    let format = match allocation_id >> 56 {
        1 => HandleFormat::Fd,
        2 => HandleFormat::Fabric,
        3 => HandleFormat::Legacy,
        _ => return None,
    };
    Some((format, allocation_id & (u64::MAX >> 8)))
}

/// Returns the native bytes of a handle with a file descriptor.
pub(crate) fn encode_fd_bytes(uuid: [u8; 16], size: usize) -> Result<NativeBytes> {
    let mut bytes = [0; 32];
    bytes[..8].copy_from_slice(&MAGIC);
    bytes[8..24].copy_from_slice(&uuid);
    bytes[24..].copy_from_slice(&(size as u64).to_le_bytes());
    NativeBytes::new(&bytes)
}

/// Returns the device's UUID and the size of the physical memory in bytes, from received native
/// bytes.
pub(crate) fn decode_fd_bytes(bytes: &[u8]) -> Result<([u8; 16], u64)> {
    let untrusted = Error::Untrusted { why: "the native bytes are not those of CUDA memory" };
    let bytes: &[u8; 32] = bytes.try_into().map_err(|_| untrusted)?;
    let (mut uuid, mut size) = ([0; 16], [0; 8]);
    uuid.copy_from_slice(&bytes[8..24]);
    size.copy_from_slice(&bytes[24..]);
    if bytes[..8] == MAGIC { Ok((uuid, u64::from_le_bytes(size))) } else { Err(untrusted) }
}

impl Export for CudaProvider {
    fn export(&self, region: &Region) -> Result<NativeExport> {
        self.check(region)?;
        let uuid = self.context.uuid();
        let current = self.context.enter()?;
        match &*self.backend {
            Backend::Virtual(range) if range.has_fds() => {
                let fd = range.physical_of(region)?.export_fd(&self.context)?;
                let mut export = NativeExport::from_fd(Arc::new(fd), 0);
                export.native = encode_fd_bytes(uuid, region.size())?;
                export.allocation_id = allocation_id(HandleFormat::Fd, uuid);
                export.isolated = true;
                Ok(export)
            }
            Backend::Virtual(range) => {
                let handle = range.physical_of(region)?.export_fabric(&self.context)?;
                let mut export = NativeExport::from_bytes(
                    NativeBytes::new(&handle.data)?,
                    allocation_id(HandleFormat::Fabric, uuid),
                );
                export.isolated = true;
                Ok(export)
            }
            Backend::Heap(heap) => {
                let allocation = heap.allocation_of(region)?;
                let mut handle = CUipcMemHandle { reserved: [0; 64] };
                // SAFETY: the pointer to the result is valid for writes; the memory is live.
                unsafe { current.api().cuIpcGetMemHandle(&raw mut handle, allocation.address) }
                    .map_err(driver_error)?;
                address_map::add_exported_handle(handle.reserved, &allocation);
                let id = allocation_id(HandleFormat::Legacy, uuid);
                let mut export = NativeExport::from_bytes(NativeBytes::new(&handle.reserved)?, id);
                // An aligned region may be a part of the driver's allocation.
                export.offset = region.base().value().saturating_sub(allocation.address);
                export.isolated = true;
                Ok(export)
            }
        }
    }

    fn uses_fd_per_export(&self) -> bool {
        matches!(&*self.backend, Backend::Virtual(range) if range.has_fds())
    }

    fn fd_opens_through_procfs(&self) -> bool {
        // Reopening would open the driver's device file again, without the memory.
        false
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fd_bytes_round_trip_and_junk_is_an_error() {
        let native = encode_fd_bytes([7; 16], 2 << 20).unwrap();
        assert_eq!(decode_fd_bytes(native.as_slice()), Ok(([7; 16], 2 << 20)));
        for junk in [&[][..], &[0; 31], &[0; 32], &[0xff; 64]] {
            assert!(decode_fd_bytes(junk).is_err());
        }
    }

    #[test]
    fn allocation_id_contains_format_and_device() {
        for format in [HandleFormat::Fd, HandleFormat::Fabric, HandleFormat::Legacy] {
            let uuid = *b"umf-soft-cuda\0\0\x01";
            assert_eq!(parse_allocation_id(allocation_id(format, uuid)), Some((format, fingerprint(uuid))));
            let other = *b"umf-soft-cuda\0\0\x02";
            assert_ne!(fingerprint(uuid), fingerprint(other));
        }
        assert_eq!(parse_allocation_id(0), None);
    }
}
