//! What a producer that means harm can do to whoever opens its handles, at most: errors, and bytes of its own choice.
//! (That consumers believe their producers is defect W11 of the C library.)

#![allow(clippy::unwrap_used, reason = "a test that cannot go on ends")]

use std::fs::File;
use std::ops::Range;
use std::os::fd::{AsRawFd, FromRawFd, RawFd};
use std::os::unix::fs::{FileExt, MetadataExt};
use std::ptr::null_mut;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::time::Duration;

use umf_tests::forge::{self, field};
use umf_tests::{Actor, Census, actor};

const NONCE: [u8; 16] = *b"a hostile ledger";
const HEADER: usize = 4096;
const SLOTS: usize = 16;
const LEDGER: usize = HEADER + 64 * SLOTS;
const DATA: u64 = 1 << 20;
const GENERATION: u64 = 7;

/// A sealed file of this many bytes.
fn memory_file(size: u64, seals: i32) -> File {
    // SAFETY: a C string.
    let fd = unsafe { libc::memfd_create(c"hostile".as_ptr(), libc::MFD_CLOEXEC | libc::MFD_ALLOW_SEALING) };
    assert!(fd >= 0, "{}", std::io::Error::last_os_error());
    // SAFETY: a new fd that nobody else owns.
    let file = unsafe { File::from_raw_fd(fd) };
    file.set_len(size).unwrap();
    // SAFETY: an fd of this process.
    assert_eq!(unsafe { libc::fcntl(file.as_raw_fd(), libc::F_ADD_SEALS, seals) }, 0);
    file
}

/// A producer that this process is, with a ledger (`docs/ledger.md`) that it goes on writing.
struct Hostile {
    ledger: File,
    words: *const AtomicU32,
    data: File,
}

// SAFETY: the pointer is to atomics in a mapping that stays for ever.
unsafe impl Sync for Hostile {}

impl Hostile {
    fn new() -> Self {
        let ledger = memory_file(LEDGER as u64, 0);
        let access = libc::PROT_READ | libc::PROT_WRITE;
        // SAFETY: a new mapping at an address of the kernel's choice.
        let words =
            unsafe { libc::mmap(null_mut(), LEDGER, access, libc::MAP_SHARED, ledger.as_raw_fd(), 0) };
        assert_ne!(words, libc::MAP_FAILED);
        // The mapping stays writable, as a producer's own does.
        let seals = libc::F_SEAL_SHRINK | libc::F_SEAL_GROW | libc::F_SEAL_FUTURE_WRITE | libc::F_SEAL_SEAL;
        // SAFETY: an fd of this process.
        assert_eq!(unsafe { libc::fcntl(ledger.as_raw_fd(), libc::F_ADD_SEALS, seals) }, 0);
        let data = memory_file(DATA, libc::F_SEAL_SHRINK | libc::F_SEAL_GROW);
        let hostile = Self { ledger, words: words.cast(), data };
        hostile.restore();
        hostile
    }

    fn word(&self, offset: usize) -> &AtomicU32 {
        assert!(offset.is_multiple_of(4) && offset < LEDGER);
        // SAFETY: inside of the mapping, aligned, and only ever used as atomics.
        unsafe { &*self.words.add(offset / 4) }
    }

    fn put(&self, offset: usize, bytes: &[u8]) {
        for (place, word) in bytes.chunks(4).enumerate() {
            let word = u32::from_le_bytes(word.try_into().unwrap());
            self.word(offset + 4 * place).store(word, Ordering::SeqCst);
        }
    }

    /// A ledger as it should be: a region in slot 0, a block of it in slot 1.
    fn restore(&self) {
        self.put(0, b"UMFLEDG1");
        self.put(8, &1_u32.to_le_bytes());
        self.put(12, &(HEADER as u32).to_le_bytes());
        self.put(16, &NONCE);
        self.put(80, &64_u32.to_le_bytes());
        self.put(84, &(SLOTS as u32).to_le_bytes());
        self.put(88, &2_u32.to_le_bytes());
        let file = self.data.metadata().unwrap();
        for slot in 0..2 {
            let at = HEADER + 64 * slot;
            for (offset, value) in [
                (8, file.dev()),
                (16, file.ino()),
                (24, u64::from(self.data.as_raw_fd().cast_unsigned())),
                (32, GENERATION),
                (40, 1),
                (48, DATA),
                (56, 0),
                (0, GENERATION),
            ] {
                self.put(at + offset, &value.to_le_bytes());
            }
        }
    }

    /// The handle of the block in slot 1, changed where `changes` says.
    fn handle(&self, changes: &[(Range<usize>, u64)]) -> String {
        let mut bytes = [0; 256];
        bytes[..4].copy_from_slice(b"UMFH");
        bytes[field::NONCE].copy_from_slice(&NONCE);
        let fd = |fd: RawFd| u64::from(fd.cast_unsigned());
        let file = self.data.metadata().unwrap();
        let honest = [
            (field::VERSION, 1),
            (field::FLAGS, 16),
            (field::PID, u64::from(std::process::id())),
            (field::LEDGER_FD, fd(self.ledger.as_raw_fd())),
            (field::DATA_FD, fd(self.data.as_raw_fd())),
            (field::SLOT, 1),
            (field::GENERATION, GENERATION),
            (field::DATA_DEVICE, file.dev()),
            (field::DATA_INODE, file.ino()),
            (field::REGION_SIZE, DATA),
            (field::BLOCK_OFFSET, 4096),
            (field::BLOCK_LENGTH, 65536),
            (field::PROVIDER_KIND, u64::from_le_bytes(*b"host\0\0\0\0")),
            (field::REGION_ID, 1),
        ];
        for (range, value) in honest.iter().chain(changes) {
            bytes[range.clone()].fill(0);
            let length = range.len().min(8);
            bytes[range.start..range.start + length].copy_from_slice(&value.to_le_bytes()[..length]);
        }
        forge::seal(&mut bytes);
        forge::hex(&bytes)
    }
}

/// A cheap sequence of numbers that need not be random.
fn next(state: &mut u64) -> u64 {
    *state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
    *state >> 33
}

/// Opens the handle again and again, reading all of it, for so long. Every end is fine but a fault or a hang; returns how many
/// opens worked.
fn storm(importer: &mut Actor, handle: &str, milliseconds: u64) -> u64 {
    let command = format!("try-storm {handle} {milliseconds}");
    let answer = importer.ask_for(&command, Duration::from_secs(10)).unwrap();
    let opened = answer.split_once("opened=").unwrap().1;
    opened.split(' ').next().unwrap().parse().unwrap()
}

/// W11: a ledger that says it has more slots than it has.
#[test]
fn w11_a_ledger_that_lies_about_its_size() {
    let hostile = Hostile::new();
    let mut importer = actor!();
    for (capacity, used, variant) in [
        (SLOTS as u32, u32::MAX, "Stale"),
        (u32::MAX, u32::MAX, "Misbehaved"),
        (1 << 22, 1 << 22, "Misbehaved"),
        (SLOTS as u32 + 1, u32::MAX, "Misbehaved"),
    ] {
        hostile.put(84, &capacity.to_le_bytes());
        hostile.put(88, &used.to_le_bytes());
        for slot in [1 << 10, 1 << 21, u64::from(u32::MAX)] {
            let handle = hostile.handle(&[(field::SLOT, slot)]);
            importer.fails(&format!("open {handle} -> m"), variant);
        }
        importer.ok("evict");
    }
    hostile.restore();
    importer.ok(&format!("open {} -> m", hostile.handle(&[])));
}

/// W11: a producer writes whatever it likes into its ledger while others read that.
#[test]
fn w11_a_ledger_that_changes_while_it_is_read() {
    let hostile = Hostile::new();
    let mut importer = actor!();
    let clean = Census::of(&importer);
    assert!(storm(&mut importer, &hostile.handle(&[]), 20) > 0, "as it should be, it opens");
    importer.ok("evict");
    let end = AtomicBool::new(false);
    let rounds = AtomicU64::new(0);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let mut state = 1;
            while !end.load(Ordering::Relaxed) {
                let which = next(&mut state) as usize;
                // The header's first words, or the two slots.
                let offset = if which.is_multiple_of(4) { which % 32 * 4 } else { HEADER + which % 32 * 4 };
                let value = match next(&mut state) % 4 {
                    0 => 0,
                    1 => u32::MAX,
                    2 => 1 << (next(&mut state) % 32),
                    _ => next(&mut state) as u32,
                };
                hostile.word(offset).store(value, Ordering::SeqCst);
                for _ in 0..next(&mut state) % 2000 {
                    std::hint::spin_loop();
                }
                hostile.restore();
                rounds.fetch_add(1, Ordering::Relaxed);
            }
        });
        let handles = [
            hostile.handle(&[]),
            hostile.handle(&[(field::REGION_SIZE, 1 << 40), (field::BLOCK_LENGTH, 1 << 39)]),
            hostile.handle(&[(field::SLOT, u64::from(u32::MAX))]),
            hostile.handle(&[(field::SLOT, 15)]),
            hostile.handle(&[(field::DATA_FD, u64::from(u32::MAX))]),
            hostile.handle(&[(field::DATA_OFFSET, 1 << 62)]),
        ];
        for _ in 0..4 {
            for handle in &handles {
                storm(&mut importer, handle, 40);
                importer.ok("evict");
            }
        }
        end.store(true, Ordering::Relaxed);
    });
    assert!(rounds.load(Ordering::Relaxed) > 100);
    assert_eq!(Census::of(&importer), clean);
    assert!(storm(&mut importer, &hostile.handle(&[]), 20) > 0, "and it opens again");
}

/// W11: the consumer trusts size and offset. Here a producer gives back the pages of memory that is being read, and its ledger
/// agrees to every size: nothing past the file is mapped, and what was given back reads as zero.
#[test]
fn w11_memory_that_is_punched_while_it_is_read() {
    let hostile = Hostile::new();
    let mut importer = actor!();
    let clean = Census::of(&importer);
    for (size, offset) in [
        (DATA * 2, 0),
        (DATA, 4096),
        (1 << 56, 0),
        (DATA, 1 << 62),
        (4096, DATA),
        (4096, DATA - 1),
        (4096, 1),
    ] {
        hostile.put(HEADER + 64 + 48, &u64::to_le_bytes(size));
        hostile.put(HEADER + 64 + 56, &u64::to_le_bytes(offset));
        let lies = [(field::REGION_SIZE, size), (field::DATA_OFFSET, offset), (field::BLOCK_OFFSET, 0)];
        let handle = hostile.handle(&[&lies[..], &[(field::BLOCK_LENGTH, size)]].concat());
        importer.fails(&format!("open {handle} -> m"), "Untrusted");
    }
    hostile.restore();
    importer.ok("evict");
    assert_eq!(Census::of(&importer), clean);
    let end = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !end.load(Ordering::Relaxed) {
                hostile.data.write_all_at(&[1; 65536], 4096).unwrap();
                let mode = libc::FALLOC_FL_PUNCH_HOLE | libc::FALLOC_FL_KEEP_SIZE;
                // SAFETY: numbers only.
                assert_eq!(unsafe { libc::fallocate(hostile.data.as_raw_fd(), mode, 0, 1 << 20) }, 0);
            }
        });
        assert!(storm(&mut importer, &hostile.handle(&[]), 300) > 0);
        end.store(true, Ordering::Relaxed);
    });
}
