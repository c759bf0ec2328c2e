use super::*;
use proptest::prelude::*;
use umf_core::NativeBytes;

fn sample() -> Handle {
    Fields {
        flags: FLAG_ISOLATED,
        boot: BootHalf(7),
        nonce: Nonce::from_bytes([9; 16]),
        key: Key::new([3; 16]),
        pid: 4711,
        ledger_fd: 5,
        pid_namespace: 4_026_531_836,
        pidfs_inode: 99,
        data_fd: 6,
        slot: 3,
        generation: 41,
        data_device: 1,
        data_inode: 1234,
        data_offset: 1 << 20,
        region_size: 1 << 21,
        region_id: 17,
        offset: 4096,
        length: 100,
        requested: 90,
        kind: ProviderKind::HOST,
        allocation_id: 0,
        native: NativeBytes::new(b"native").unwrap(),
    }
    .encode()
}

/// The same handle with one field changed and a checksum that fits again, as a hostile peer would
/// send it.
fn forged(at: usize, value: &[u8]) -> Result<Handle, DecodeError> {
    let mut bytes = sample().to_bytes();
    bytes[at..at + value.len()].copy_from_slice(value);
    let checksum = crc32fast::hash(&bytes[..252]);
    bytes[252..].copy_from_slice(&checksum.to_le_bytes());
    Handle::from_bytes(&bytes)
}

#[test]
fn ticket_of_the_last_generation_fits_no_other() {
    let handle = forged(codec::GENERATION.start, &u64::MAX.to_le_bytes()).unwrap();
    let handle = handle.with_ticket(Some(Ticket { number: 1, row: 0, word: 0 }));
    assert!(handle.fits(u64::MAX) && !handle.fits(0) && !handle.fits(u64::MAX - 1));
}

#[test]
fn bytes_text_and_serde_round_trip() {
    let handle = sample();
    assert_eq!(Handle::from_bytes(&handle.to_bytes()), Ok(handle));
    let text = handle.to_string();
    assert_eq!(text.len(), 5 + 342);
    assert!(text.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte)));
    assert_eq!(text.parse(), Ok(handle));
    assert_eq!(format!(" {text}\r\n").parse(), Ok(handle));
    let json = serde_json::to_string(&handle).unwrap();
    assert_eq!(serde_json::from_str::<Handle>(&json).unwrap(), handle);
    assert_eq!(handle.native(), b"native");
    assert_eq!((handle.pid(), handle.slot(), handle.generation()), (4711, 3, 41));
    assert_eq!((handle.offset(), handle.length(), handle.region_size()), (4096, 100, 1 << 21));
}

/// UMF W11: the wire format has no version, length or check.
#[test]
fn every_flipped_bit_is_detected() {
    let bytes = sample().to_bytes();
    for bit in 0..SIZE * 8 {
        let mut bytes = bytes;
        bytes[bit / 8] ^= 1 << (bit % 8);
        assert!(Handle::from_bytes(&bytes).is_err(), "bit {bit}");
    }
}

#[test]
fn cut_or_extended_handles_are_refused() {
    let bytes = sample().to_bytes();
    for length in 0..SIZE {
        assert_eq!(Handle::from_bytes(&bytes[..length]), Err(DecodeError::Length { length }));
    }
    assert!(Handle::from_bytes(&[bytes.as_slice(), &[0]].concat()).is_err());
    let text = sample().to_string();
    for length in 0..text.len() {
        assert!(text[..length].parse::<Handle>().is_err());
    }
}

#[test]
fn forged_fields_are_refused_by_name() {
    let field = |field| Err(DecodeError::Field { field });
    assert_eq!(forged(0, b"UMFX"), Err(DecodeError::Magic));
    assert_eq!(forged(4, &[1, 0]), Err(DecodeError::Version { version: 1 }));
    assert_eq!(forged(6, &[0, 0x80]), field("flags"));
    assert_eq!(forged(48, &[0; 4]), field("pid"));
    assert_eq!(forged(64, &[0xff; 4]), field("ledger fd"));
    assert_eq!(forged(72, &[2]), field("generation"));
    assert_eq!(forged(96, &[0xff; 8]), field("data offset"));
    assert_eq!(forged(104, &[0; 8]), field("region id"));
    assert_eq!(forged(112, &[0xff; 8]), field("region size"));
    assert_eq!(forged(112, &[0; 8]), field("region size"));
    assert_eq!(forged(120, &[0xff; 8]), field("offset"));
    assert_eq!(forged(128, &[0xff; 8]), field("length"));
    assert_eq!(forged(128, &[0; 8]), field("length"));
    assert_eq!(forged(136, &[0; 8]), field("requested length"));
    assert_eq!(forged(136, &[101, 0]), field("requested length"));
    assert_eq!(forged(144, b"HOST"), field("provider kind"));
    assert_eq!(forged(186, &[65]), field("native length"));
    assert_eq!(forged(186, &[2]), field("native length"));
    assert_eq!(forged(187, &[1]), field("reserved"));
}

proptest! {
    #[test]
    fn device_numbers_round_trip_in_32_bits(major in 0_u32..1 << 12, minor in 0_u32..1 << 20) {
        let device = rustix::fs::makedev(major, minor);
        prop_assert_eq!(codec::device_of(codec::device_number(device)), device);
    }

    #[test]
    fn arbitrary_bytes_and_text_never_panic(bytes in prop::collection::vec(any::<u8>(), 0..600), text in ".{0,400}") {
        let _ = Handle::from_bytes(&bytes);
        let _ = text.parse::<Handle>();
    }

    #[test]
    fn forged_handle_that_decodes_has_consistent_lengths(changes in prop::collection::vec((0..252_usize, any::<u8>()), 1..40)) {
        let mut bytes = sample().to_bytes();
        for (at, value) in changes {
            bytes[at] = value;
        }
        let checksum = crc32fast::hash(&bytes[..252]);
        bytes[252..].copy_from_slice(&checksum.to_le_bytes());
        if let Ok(handle) = Handle::from_bytes(&bytes) {
            prop_assert!(handle.offset() + handle.length() <= handle.region_size());
            prop_assert!(i64::try_from(handle.data_offset() + handle.region_size()).is_ok());
            prop_assert!(handle.native().len() <= 64);
        }
    }
}
