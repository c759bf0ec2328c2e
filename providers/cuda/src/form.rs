//! What stands in the native part of a handle.
//!
//! | | file descriptor | `native` | `offset` |
//! |---|---|---|---|
//! | virtual | of the physical memory | `umfcuda1`, the device's UUID (16 bytes), bytes of the physical memory (8, little-endian) | 0 |
//! | fabric | none | the driver's 64 bytes | 0 |
//! | device | none | the driver's 64 bytes | of the region in what the driver opens |
//!
//! The allocation id says which of them it is (upper 8 bits: 1, 2, 3), and of which device (the rest: the beginning of its UUID).

use umf_core::{Error, NativeBytes, ProviderKind, Result};

/// The kind of provider.
pub(crate) const KIND: ProviderKind = match ProviderKind::new("cuda") {
    Some(kind) => kind,
    None => panic!("a valid name"),
};

const MAGIC: [u8; 8] = *b"umfcuda1";

/// How a region is given to other processes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ExportForm {
    Fd = 1,
    Fabric = 2,
    Legacy = 3,
}

/// Which form, of which device.
pub(crate) fn tag(form: ExportForm, uuid: [u8; 16]) -> u64 {
    (form as u64) << 56 | fingerprint(uuid)
}

/// What of a UUID stands in handles beside the driver's bytes. (Its middle is what differs between devices of one machine.)
pub(crate) fn fingerprint(uuid: [u8; 16]) -> u64 {
    let (mut low, mut high) = ([0; 8], [0; 8]);
    low.copy_from_slice(&uuid[..8]);
    high.copy_from_slice(&uuid[8..]);
    (u64::from_be_bytes(low) ^ u64::from_be_bytes(high).rotate_left(17)) >> 8
}

/// The form of an allocation id that came from elsewhere, and the fingerprint of the device.
pub(crate) fn form_of(allocation_id: u64) -> Option<(ExportForm, u64)> {
    let form = match allocation_id >> 56 {
        1 => ExportForm::Fd,
        2 => ExportForm::Fabric,
        3 => ExportForm::Legacy,
        _ => return None,
    };
    Some((form, allocation_id & (u64::MAX >> 8)))
}

/// The bytes that go with a file descriptor.
pub(crate) fn with_fd(uuid: [u8; 16], size: usize) -> Result<NativeBytes> {
    let mut bytes = [0; 32];
    bytes[..8].copy_from_slice(&MAGIC);
    bytes[8..24].copy_from_slice(&uuid);
    bytes[24..].copy_from_slice(&(size as u64).to_le_bytes());
    NativeBytes::new(&bytes)
}

/// The device's UUID and the bytes of the physical memory, from bytes that came from elsewhere.
pub(crate) fn read_with_fd(bytes: &[u8]) -> Result<([u8; 16], u64)> {
    let untrusted = Error::Untrusted { why: "the native bytes are not those of CUDA memory" };
    let bytes: &[u8; 32] = bytes.try_into().map_err(|_| untrusted)?;
    let (mut uuid, mut size) = ([0; 16], [0; 8]);
    uuid.copy_from_slice(&bytes[8..24]);
    size.copy_from_slice(&bytes[24..]);
    if bytes[..8] == MAGIC { Ok((uuid, u64::from_le_bytes(size))) } else { Err(untrusted) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_are_read_as_written_and_junk_is_refused() {
        let native = with_fd([7; 16], 2 << 20).unwrap();
        assert_eq!(read_with_fd(native.as_slice()), Ok(([7; 16], 2 << 20)));
        for junk in [&[][..], &[0; 31], &[0; 32], &[0xff; 64]] {
            assert!(read_with_fd(junk).is_err());
        }
    }

    #[test]
    fn tags_say_form_and_device() {
        for form in [ExportForm::Fd, ExportForm::Fabric, ExportForm::Legacy] {
            let uuid = *b"umf-soft-cuda\0\0\x01";
            assert_eq!(form_of(tag(form, uuid)), Some((form, fingerprint(uuid))));
            let other = *b"umf-soft-cuda\0\0\x02";
            assert_ne!(fingerprint(uuid), fingerprint(other));
        }
        assert_eq!(form_of(0), None);
    }
}
