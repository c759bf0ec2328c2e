//! Truncated, damaged, outdated and forged handles: each is an error, and only exported memory is
//! mapped.

#![allow(clippy::unwrap_used, reason = "a test that cannot continue ends")]

use umf::Handle;
use umf_tests::forge::{self, field};
use umf_tests::{Actor, ProcessSnapshot, actor};

const SIZE: usize = 4096;

/// Starts a producer with one block that is filled with seed 7, and returns its handle.
fn producer() -> (Actor, Handle) {
    let mut producer = actor!();
    producer.ok("pool p shared");
    producer.ok(&format!("alloc p {SIZE} -> p.b"));
    producer.ok("fill p.b 7");
    let handle = producer.handle("handle p.b");
    (producer, handle)
}

/// compute-runtime #448: handles could not be copied by value between processes. Here bytes or text
/// suffice. UMF #859, #831: an importer needed a pool. Here it does not.
#[test]
fn handle_opens_from_bytes_and_text() {
    let (mut producer, handle) = producer();
    let mut importer = actor!();
    let before = ProcessSnapshot::of(&importer);
    for text in [handle.to_string(), forge::hex(handle.as_bytes())] {
        importer.ok(&format!("open {text} -> m"));
        importer.check("m", 7);
        importer.ok("fill m 8");
        producer.check("p.b", 8);
        importer.ok("fill m 7");
        importer.ok("close m");
    }
    importer.ok("evict");
    before.assert_restored(&importer);
    importer.finish();
    producer.finish();
}

#[test]
fn malformed_text_is_refused_with_reason() {
    let (_producer, handle) = producer();
    let mut importer = actor!();
    let text = handle.to_string();
    assert_eq!(importer.ok(&format!("parse {text}")), text);
    for wrong in [
        String::new(),
        "umf1.".to_owned(),
        text[..text.len() - 1].to_owned(),
        text.clone() + "A",
        text.replacen("umf1", "umf2", 1),
        text[5..].to_owned(),
        text.replacen(&text[100..101], "+", 1),
        "umf1.".to_owned() + &"=".repeat(342),
        "x".repeat(5000),
    ] {
        let message = importer.fails(&format!("parse {wrong}"), "Text");
        assert!(message.contains("umf1."), "{message}");
    }
    // The last character has 2 unused bits. They must be 0, so that a handle has one text only.
    let last = text.chars().last().unwrap();
    for other in ["A", "B", "C", "D", "Q", "g", "w", "_", "-"] {
        if !other.starts_with(last) {
            assert!(importer.ask(&format!("parse {}{other}", &text[..text.len() - 1])).is_err());
        }
    }
}

/// UMF OS provider, as read: IPC handles have no version, length or checksum.
#[test]
fn truncated_or_flipped_bytes_are_refused() {
    let (_producer, handle) = producer();
    let mut importer = actor!();
    let before = ProcessSnapshot::of(&importer);
    let bytes = handle.to_bytes();
    for length in (0..256).step_by(5).chain([1, 255]) {
        let cut = forge::hex(&bytes[..length]);
        let message = importer.fails(&format!("open {cut} -> m"), "Length");
        assert!(message.contains(&format!("not {length}")), "{message}");
    }
    importer.fails(&format!("open {}00 -> m", forge::hex(&bytes)), "Length");
    for (place, bit) in (0..256).flat_map(|place| [(place, 1), (place, 0x80), (place, 0xFF)]) {
        let mut flipped = bytes;
        flipped[place] ^= bit;
        let variant = match place {
            0..4 => "Magic",
            4..6 => "Version",
            _ => "Checksum",
        };
        importer.fails(&format!("open {} -> m", forge::hex(&flipped)), variant);
    }
    before.assert_restored(&importer);
}

#[test]
fn other_version_and_other_boot_have_own_errors() {
    let (_producer, handle) = producer();
    let mut importer = actor!();
    let message =
        importer.fails(&format!("open {} -> m", forge::with(&handle, field::VERSION, 1)), "Version");
    assert!(message.contains("version 1") && message.contains("same release"), "{message}");
    let other = forge::with(&handle, field::BOOT_ID, 12345);
    let message = importer.fails(&format!("open {other} -> m"), "OtherBoot");
    assert!(message.contains("another boot"), "{message}");
    // The valid handle still works.
    importer.ok(&format!("open {handle} -> m"));
    importer.check("m", 7);
}

/// A process that can write a handle can compute its checksum. The importer verifies each field
/// against the ledger.
#[test]
fn forged_fields_with_valid_checksum_are_refused() {
    let (mut producer, handle) = producer();
    producer.ok(&format!("alloc p {SIZE} -> p.neighbour"));
    let neighbour = producer.handle("handle p.neighbour");
    let mut importer = actor!();
    let region = handle.region_size();
    let forged = [
        ("a length past the region", vec![(field::BLOCK_LENGTH, region + 1)], "Field"),
        ("an offset past the region", vec![(field::BLOCK_OFFSET, region)], "Field"),
        ("no length", vec![(field::BLOCK_LENGTH, 0)], "Field"),
        ("a sum that overflows", vec![(field::BLOCK_OFFSET, u64::MAX - 10)], "Field"),
        ("a length that overflows", vec![(field::BLOCK_LENGTH, u64::MAX)], "Field"),
        ("a larger region", vec![(field::REGION_SIZE, region * 2)], "Misbehaved"),
        (
            "a larger region and block",
            vec![
                (field::REGION_SIZE, region * 2),
                (field::BLOCK_OFFSET, region),
                (field::BLOCK_LENGTH, region),
            ],
            "Misbehaved",
        ),
        ("a smaller region", vec![(field::REGION_SIZE, region / 2), (field::BLOCK_OFFSET, 0)], "Misbehaved"),
        ("a huge region", vec![(field::REGION_SIZE, 1 << 56)], "Misbehaved"),
        ("another block of the region", vec![(field::BLOCK_OFFSET, neighbour.offset())], "Misbehaved"),
        (
            "a part of the block",
            vec![(field::BLOCK_LENGTH, handle.length() - 1), (field::REQUESTED, 1)],
            "Misbehaved",
        ),
        ("another requested size", vec![(field::REQUESTED, handle.length() - 1)], "Misbehaved"),
        ("no requested size", vec![(field::REQUESTED, 0)], "Field"),
        ("a region of maximum size", vec![(field::REGION_SIZE, u64::MAX)], "Field"),
        ("another file offset", vec![(field::DATA_OFFSET, handle.data_offset() + 4096)], "Misbehaved"),
        ("an unaligned file offset", vec![(field::DATA_OFFSET, 1)], "Misbehaved"),
        ("a file offset beyond all files", vec![(field::DATA_OFFSET, u64::MAX)], "Field"),
        ("another fd", vec![(field::DATA_FD, 0)], "Misbehaved"),
        ("an invalid fd", vec![(field::DATA_FD, u64::from(u32::MAX))], "Misbehaved"),
        ("another inode", vec![(field::DATA_INODE, 1)], "Misbehaved"),
        ("another device", vec![(field::DATA_DEVICE, 77)], "Misbehaved"),
        ("another region", vec![(field::REGION_ID, 999)], "Misbehaved"),
        ("no region", vec![(field::REGION_ID, 0)], "Field"),
        ("a slot that was never used", vec![(field::SLOT, 1000)], "Stale"),
        ("a slot beyond the ledger", vec![(field::SLOT, u64::from(u32::MAX))], "Stale"),
        ("an older generation", vec![(field::GENERATION, handle.generation() + 2)], "Stale"),
        ("an invalid generation", vec![(field::GENERATION, 2)], "Field"),
        ("the last generation", vec![(field::GENERATION, u64::MAX)], "Stale"),
        ("no pid", vec![(field::PID, 0)], "Field"),
        ("a pid beyond all", vec![(field::PID, u64::from(u32::MAX))], "Field"),
        ("an unused pid", vec![(field::PID, (1 << 30) + 1)], "ProducerGone"),
        (
            "an unknown kind",
            vec![(field::PROVIDER_KIND, u64::from_le_bytes(*b"absent\0\0"))],
            "UnknownProvider",
        ),
        ("an invalid name of a kind", vec![(field::PROVIDER_KIND, u64::MAX)], "Field"),
        ("unknown flags", vec![(field::FLAGS, 0x8000)], "Field"),
        ("native bytes past their field", vec![(field::NATIVE_LENGTH, 65)], "Field"),
        ("native bytes beyond their length", vec![(field::NATIVE, 1)], "Field"),
        ("an invalid ledger fd", vec![(field::LEDGER_FD, u64::from(u32::MAX))], "Field"),
    ];
    // Each handle is opened before and after the importer knows the producer.
    for known in [false, true] {
        if known {
            importer.ok(&format!("open {handle} -> good"));
        }
        let before = ProcessSnapshot::of(&importer);
        for (change, changes, variant) in &forged {
            // The importer reads the pid only to find an unknown producer.
            if known && *variant == "ProducerGone" {
                continue;
            }
            if !known {
                importer.ok("evict");
            }
            let bytes = forge::with_all(&handle, changes);
            match importer.ask(&format!("open {bytes} -> m")) {
                Ok(length) => panic!("{change}: opened with length {length}, known: {known}"),
                Err(failure) => assert_eq!(failure.variant, *variant, "{change}, known: {known}: {failure}"),
            }
        }
        importer.ok("evict");
        before.assert_restored(&importer);
    }
    // Slot and generation of another live block of the region: the ledger has the other block's
    // fields.
    let bytes = forge::with_all(
        &handle,
        &[(field::SLOT, u64::from(neighbour.slot())), (field::GENERATION, neighbour.generation())],
    );
    importer.fails(&format!("open {bytes} -> m"), "Misbehaved");
    importer.check("good", 7);
    importer.finish();
    producer.finish();
}

/// A handle may name any process and fd number. The importer must not hang on such an fd, or accept
/// it as a ledger.
#[test]
fn handle_naming_other_process_or_fd_is_refused() {
    let (mut producer, handle) = producer();
    let mut other = actor!();
    other.ok("pool p shared");
    other.ok("alloc p 64 -> p.b");
    let other_handle = other.handle("handle p.b");
    let mut importer = actor!();
    let pid = u64::from(other.pid());
    let importer_pid = u64::from(importer.pid());
    let no_pidfs = (field::PIDFS_INODE, 0);
    let before = ProcessSnapshot::of(&importer);
    // The pidfs inode differs. Without it, as in older kernels, the ledger differs.
    let forged = forge::with(&handle, field::PID, pid);
    assert!(importer.fails(&format!("open {forged} -> m"), "ProducerReplaced").contains("another process"));
    let fd = (field::LEDGER_FD, u64::from(other_handle.ledger_fd().cast_unsigned()));
    let forged = forge::with_all(&handle, &[(field::PID, pid), no_pidfs.clone(), fd]);
    assert!(importer.fails(&format!("open {forged} -> m"), "ProducerReplaced").contains("nonce"));
    // Every fd of every process of the test: pipes, files, sockets, pidfds, the memory itself.
    for pid in [pid, importer_pid, u64::from(producer.pid()), u64::from(std::process::id()), 1] {
        for number in 0..24 {
            let fd = (field::LEDGER_FD, number);
            let forged = forge::with_all(&handle, &[(field::PID, pid), no_pidfs.clone(), fd]);
            if pid == u64::from(producer.pid()) && number == u64::from(handle.ledger_fd().cast_unsigned()) {
                continue;
            }
            let failure = importer.ask(&format!("open {forged} -> m")).unwrap_err();
            let known =
                ["ProducerReplaced", "ProducerGone", "NotPermitted"].contains(&failure.variant.as_str());
            assert!(known, "pid {pid}, fd {number}: {failure}");
        }
    }
    before.assert_restored(&importer);
    importer.ok(&format!("open {handle} -> m"));
    importer.check("m", 7);
    producer.check("p.b", 7);
}

mod forged {
    use super::*;
    use proptest::prelude::*;
    use std::cell::RefCell;

    fn changes() -> impl Strategy<Value = Vec<(core::ops::Range<usize>, u64)>> {
        let ranges = vec![
            field::FLAGS,
            field::NONCE,
            field::PID,
            field::LEDGER_FD,
            field::PID_NAMESPACE,
            field::PIDFS_INODE,
            field::DATA_FD,
            field::SLOT,
            field::GENERATION,
            field::DATA_DEVICE,
            field::DATA_INODE,
            field::DATA_OFFSET,
            field::REGION_SIZE,
            field::BLOCK_OFFSET,
            field::BLOCK_LENGTH,
            field::PROVIDER_KIND,
            field::NATIVE_LENGTH,
            field::NATIVE,
            field::REGION_ID,
        ];
        let value = prop_oneof![
            Just(0),
            Just(u64::MAX),
            0_u64..64,
            (0_u32..64).prop_map(|bit| 1 << bit),
            (0_u32..64).prop_map(|bit| (1 << bit) - 1),
            any::<u64>(),
        ];
        prop::collection::vec((prop::sample::select(ranges), value), 1..5)
    }

    struct Processes {
        producer: Actor,
        importer: Actor,
        handle: Handle,
    }

    thread_local! {
        static PROCESSES: RefCell<Option<Processes>> = const { RefCell::new(None) };
    }

    /// Runs `test` with a producer and an importer that all cases of this thread share.
    fn with_processes<T>(test: impl FnOnce(&mut Processes) -> T) -> T {
        PROCESSES.with_borrow_mut(|processes| {
            test(processes.get_or_insert_with(|| {
                let (producer, handle) = producer();
                Processes { producer, importer: actor!(), handle }
            }))
        })
    }

    proptest! {
        #![proptest_config(ProptestConfig { cases: 8000, failure_persistence: None, ..ProptestConfig::default() })]

        /// An open must not panic, fault or hang, or map more than the region.
        #[test]
        fn random_forged_handles_never_fault(changes in changes()) {
            with_processes(|processes| {
                let bytes = forge::with_all(&processes.handle, &changes);
                // The importer reads the whole mapping, so that one past the region would fault.
                match processes.importer.ask(&format!("try {bytes}")) {
                    Ok(length) => prop_assert!(length.parse::<u64>().unwrap() <= processes.handle.region_size()),
                    Err(failure) => prop_assert_ne!(failure.variant, "System", "{}", failure.message),
                }
                Ok(())
            })?;
        }
    }

    #[test]
    fn producer_and_importer_work_after_forged_handles() {
        // This thread has processes of its own, which first open some forged handles.
        with_processes(|processes| {
            for place in 0..200 {
                let bytes = forge::with(&processes.handle, field::BLOCK_OFFSET, 1 << (place % 64));
                let _ = processes.importer.ask(&format!("try {bytes}"));
            }
            processes.importer.ok(&format!("open {} -> m", processes.handle));
            processes.importer.check("m", 7);
            processes.producer.check("p.b", 7);
        });
    }
}
