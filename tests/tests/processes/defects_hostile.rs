//! A hostile producer: it can cause errors and choose the content of its blocks, and nothing else.
//! (The C library trusts its producers: defect W11.)

#![allow(clippy::unwrap_used, reason = "a test that cannot continue ends")]

use std::fs::File;
use std::ops::Range;
use std::os::fd::{AsRawFd, FromRawFd, RawFd};
use std::os::unix::fs::{FileExt, MetadataExt};
use std::ptr::null_mut;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::time::Duration;

use umf_testkit::SetOnDrop;
use umf_tests::forge::{self, field};
use umf_tests::{Actor, ProcessSnapshot, actor};

/// Alignment of the parts of a lease table (`docs/leases.md`). In this table the header, the owners
/// and the opened bitmaps have one part each, and a row has two.
const PART: usize = 65536;
const ROWS: usize = 64;
const OWNERS: usize = PART;
const BITMAPS: usize = 2 * PART;
const LEASES: usize = (3 + 2 * ROWS) * PART;
const LEASE_SEALS: i32 = libc::F_SEAL_SHRINK | libc::F_SEAL_GROW | libc::F_SEAL_SEAL;

const NONCE: [u8; 16] = *b"a hostile ledger";
const HEADER: usize = 4096;
const SLOTS: usize = 16;
const SLOT: usize = 128;
const LEDGER: usize = HEADER + SLOT * SLOTS;
const DATA: u64 = 1 << 20;
const GENERATION: u64 = 7;

/// Creates a sealed memfd of this size.
fn memory_file(size: u64, seals: i32) -> File {
    // SAFETY: a C string.
    let fd = unsafe { libc::memfd_create(c"hostile".as_ptr(), libc::MFD_CLOEXEC | libc::MFD_ALLOW_SEALING) };
    assert!(fd >= 0, "{}", std::io::Error::last_os_error());
    // SAFETY: the fd is new, and owned here alone.
    let file = unsafe { File::from_raw_fd(fd) };
    file.set_len(size).unwrap();
    // SAFETY: an fd of this process.
    assert_eq!(unsafe { libc::fcntl(file.as_raw_fd(), libc::F_ADD_SEALS, seals) }, 0);
    file
}

/// Words of a file that is never unmapped.
struct Words {
    first: *const AtomicU32,
    bytes: usize,
}

// SAFETY: the pointer is to atomics in a mapping that is never unmapped.
unsafe impl Sync for Words {}

impl Words {
    fn of(file: &File, bytes: usize) -> Self {
        let access = libc::PROT_READ | libc::PROT_WRITE;
        // SAFETY: a new mapping at an address of the kernel's choice.
        let first = unsafe { libc::mmap(null_mut(), bytes, access, libc::MAP_SHARED, file.as_raw_fd(), 0) };
        assert_ne!(first, libc::MAP_FAILED);
        Self { first: first.cast(), bytes }
    }

    fn word(&self, offset: usize) -> &AtomicU32 {
        assert!(offset.is_multiple_of(4) && offset < self.bytes);
        // SAFETY: within the mapping, aligned, and only used as atomics.
        unsafe { &*self.first.add(offset / 4) }
    }

    fn put(&self, offset: usize, bytes: &[u8]) {
        for (place, word) in bytes.chunks(4).enumerate() {
            let word = u32::from_le_bytes(word.try_into().unwrap());
            self.word(offset + 4 * place).store(word, Ordering::SeqCst);
        }
    }
}

/// Hostile producer: this process, with a handmade ledger (`docs/ledger.md`) and lease table.
struct Hostile {
    ledger: File,
    words: Words,
    data: File,
    leases: File,
    lease_words: Words,
}

impl Hostile {
    fn new() -> Self {
        let ledger = memory_file(LEDGER as u64, 0);
        let words = Words::of(&ledger, LEDGER);
        // The seals leave this mapping writable, as that of a real producer.
        let seals = libc::F_SEAL_SHRINK | libc::F_SEAL_GROW | libc::F_SEAL_FUTURE_WRITE | libc::F_SEAL_SEAL;
        // SAFETY: an fd of this process.
        assert_eq!(unsafe { libc::fcntl(ledger.as_raw_fd(), libc::F_ADD_SEALS, seals) }, 0);
        let data = memory_file(DATA, libc::F_SEAL_SHRINK | libc::F_SEAL_GROW);
        let leases = memory_file(LEASES as u64, LEASE_SEALS);
        let lease_words = Words::of(&leases, LEASES);
        let hostile = Self { ledger, words, data, leases, lease_words };
        hostile.restore();
        hostile
    }

    fn put(&self, offset: usize, bytes: &[u8]) {
        self.words.put(offset, bytes);
    }

    /// Names a lease table in the ledger.
    fn name_leases(&self, fd: RawFd, rows: usize) {
        self.put(96, &fd.to_le_bytes());
        self.put(100, &u32::try_from(rows).unwrap().to_le_bytes());
    }

    fn restore_leases(&self) {
        self.name_leases(self.leases.as_raw_fd(), ROWS);
        let leases = &self.lease_words;
        leases.put(0, b"UMFLEASE");
        leases.put(8, &2_u32.to_le_bytes());
        leases.put(12, &(ROWS as u32).to_le_bytes());
        leases.put(16, &NONCE);
        leases.put(32, &(SLOTS as u32).to_le_bytes());
    }

    /// Writes a valid ledger: a region in slot 0, a block of it in slot 1.
    fn restore(&self) {
        self.put(0, b"UMFLEDGR");
        self.put(8, &3_u32.to_le_bytes());
        self.put(12, &(HEADER as u32).to_le_bytes());
        self.put(16, &NONCE);
        self.put(80, &(SLOT as u32).to_le_bytes());
        self.put(84, &(SLOTS as u32).to_le_bytes());
        self.put(88, &2_u32.to_le_bytes());
        self.restore_leases();
        let file = self.data.metadata().unwrap();
        for slot in 0..2 {
            let at = HEADER + SLOT * slot;
            let (offset, length) = if slot == 0 { (0, DATA) } else { (4096, 65536) };
            for (place, value) in [
                (24, GENERATION),
                (32, u64::from(self.data.as_raw_fd().cast_unsigned()) << 32),
                (40, offset),
                (48, length),
                (56, length),
                (64, file.dev()),
                (72, file.ino()),
                (80, 0),
                (88, 1),
                (96, DATA),
                (0, GENERATION),
            ] {
                self.put(at + place, &value.to_le_bytes());
            }
        }
    }

    /// Returns the handle of the block in slot 1 with these changes.
    fn handle(&self, changes: &[(Range<usize>, u64)]) -> String {
        let mut bytes = [0; 256];
        bytes[..4].copy_from_slice(b"UMFH");
        bytes[field::NONCE].copy_from_slice(&NONCE);
        let fd = |fd: RawFd| u64::from(fd.cast_unsigned());
        let file = self.data.metadata().unwrap();
        let honest = [
            (field::VERSION, 2),
            (field::FLAGS, 16),
            (field::PID, u64::from(std::process::id())),
            (field::LEDGER_FD, fd(self.ledger.as_raw_fd())),
            (field::DATA_FD, fd(self.data.as_raw_fd())),
            (field::SLOT, 1),
            (field::GENERATION, GENERATION),
            (field::DATA_DEVICE, device_number(file.dev())),
            (field::DATA_INODE, file.ino()),
            (field::REGION_SIZE, DATA),
            (field::BLOCK_OFFSET, 4096),
            (field::BLOCK_LENGTH, 65536),
            (field::REQUESTED, 65536),
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

/// Encodes a device number as in handles: 12 bits of the major number and 20 of the minor number.
fn device_number(device: u64) -> u64 {
    let (major, minor) = (libc::major(device), libc::minor(device));
    u64::from((minor & 0xff) | (major & 0xfff) << 8 | (minor & !0xff) << 12)
}

/// Returns the next number of a linear congruential generator.
fn next(state: &mut u64) -> u64 {
    *state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
    *state >> 33
}

/// Opens a handle repeatedly for the given time, and reads the whole block. Errors are permitted,
/// faults and hangs are not. Returns the number of successful opens.
fn open_repeatedly(importer: &mut Actor, handle: &str, milliseconds: u64) -> u64 {
    let command = format!("try-storm {handle} {milliseconds}");
    opened_of(&importer.ask_within(&command, Duration::from_secs(10)).unwrap())
}

fn opened_of(answer: &str) -> u64 {
    let opened = answer.split_once("opened=").unwrap().1;
    opened.split(' ').next().unwrap().parse().unwrap()
}

fn punch(file: &File, offset: usize, size: usize) {
    let mode = libc::FALLOC_FL_PUNCH_HOLE | libc::FALLOC_FL_KEEP_SIZE;
    // SAFETY: numbers only.
    assert_eq!(unsafe { libc::fallocate(file.as_raw_fd(), mode, offset as i64, size as i64) }, 0);
}

/// W11: a ledger whose header claims more slots than the file has.
#[test]
fn w11_ledger_with_wrong_size_is_refused() {
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

/// The nonce of a producer is public. A process that copies it into its own ledger is another
/// producer, even if it exports the same file.
#[test]
fn impostor_with_copied_nonce_is_another_producer() {
    for kind in ["shared", "isolated"] {
        let mut producer = actor!();
        producer.ok(&format!("pool p {kind}"));
        producer.ok("alloc p 8192 -> p.b");
        producer.ok("fill p.b 3");
        let honest = producer.handle("handle p.b");
        let mut impostor = Hostile::new();
        let file = format!("/proc/{}/fd/{}", honest.pid(), honest.data_fd().unwrap());
        impostor.data = File::options().read(true).write(true).open(file).unwrap();
        let nonce = &honest.to_bytes()[field::NONCE];
        impostor.put(16, nonce);
        impostor.lease_words.put(16, nonce);
        let data = u64::from(impostor.data.as_raw_fd().cast_unsigned());
        let (device, inode) = honest.data_identity();
        for (place, value) in [
            (32, data << 32),
            (40, honest.offset()),
            (48, honest.length()),
            (56, honest.requested()),
            (64, device),
            (72, inode),
            (80, honest.data_offset()),
            (88, honest.region_id()),
            (96, honest.region_size()),
        ] {
            impostor.put(HEADER + SLOT + place, &value.to_le_bytes());
        }
        let changes = [
            (field::PID, u64::from(std::process::id())),
            (field::PIDFS_INODE, 0),
            (field::LEDGER_FD, u64::from(impostor.ledger.as_raw_fd().cast_unsigned())),
            (field::DATA_FD, data),
            (field::SLOT, 1),
            (field::GENERATION, GENERATION),
        ];
        let forged = forge::with_all(&honest, &changes);
        let mut importer = actor!();
        for _ in 0..2 {
            importer.ok(&format!("open {forged} -> i"));
            importer.ok("close i");
            importer.ok(&format!("open {honest} -> h"));
            importer.check("h", 3);
            importer.ok("close h");
        }
        // The lease is in the table of the real producer.
        importer.ok(&format!("open {honest} -> h"));
        producer.ok("free p p.b");
        assert!(producer.number("held", "bytes") > 0, "{kind}");
    }
}

/// W11: a producer that writes random words to its ledger while importers read it.
#[test]
fn w11_ledger_changed_during_read_is_survived() {
    let hostile = Hostile::new();
    let mut importer = actor!();
    let clean = ProcessSnapshot::of(&importer);
    assert!(open_repeatedly(&mut importer, &hostile.handle(&[]), 20) > 0, "a valid ledger opens");
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
                hostile.words.word(offset).store(value, Ordering::SeqCst);
                for _ in 0..next(&mut state) % 2000 {
                    std::hint::spin_loop();
                }
                hostile.restore();
                rounds.fetch_add(1, Ordering::Relaxed);
            }
        });
        let _ends = SetOnDrop(&end);
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
                open_repeatedly(&mut importer, handle, 40);
                importer.ok("evict");
            }
        }
    });
    assert!(rounds.load(Ordering::Relaxed) > 100);
    clean.assert_restored(&importer);
    assert!(open_repeatedly(&mut importer, &hostile.handle(&[]), 20) > 0, "the restored ledger opens");
}

/// W11: the consumer trusts size and offset. Here a ledger confirms wrong sizes, and nothing past
/// the file is mapped. A producer then frees pages that are being read, which read as zeros.
#[test]
fn w11_memory_punched_during_read_reads_as_zeros() {
    let hostile = Hostile::new();
    let mut importer = actor!();
    let clean = ProcessSnapshot::of(&importer);
    for (size, offset) in [
        (DATA * 2, 0),
        (DATA, 4096),
        (1 << 56, 0),
        (DATA, 1 << 62),
        (4096, DATA),
        (4096, DATA - 1),
        (4096, 1),
    ] {
        for (place, value) in [(40, 0), (48, size), (56, size), (80, offset), (96, size)] {
            hostile.put(HEADER + SLOT + place, &u64::to_le_bytes(value));
        }
        let lies = [(field::REGION_SIZE, size), (field::DATA_OFFSET, offset), (field::BLOCK_OFFSET, 0)];
        let handle =
            hostile.handle(&[&lies[..], &[(field::BLOCK_LENGTH, size), (field::REQUESTED, size)]].concat());
        importer.fails(&format!("open {handle} -> m"), "Untrusted");
    }
    hostile.restore();
    importer.ok("evict");
    clean.assert_restored(&importer);
    let end = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !end.load(Ordering::Relaxed) {
                hostile.data.write_all_at(&[1; 65536], 4096).unwrap();
                punch(&hostile.data, 0, DATA as usize);
            }
        });
        let _ends = SetOnDrop(&end);
        assert!(open_repeatedly(&mut importer, &hostile.handle(&[]), 300) > 0);
    });
}

/// W11: a lease table that is another file or another producer's, or whose layout differs from the
/// ledger's description. Importers must not take leases there.
#[test]
fn w11_wrong_lease_table_is_refused() {
    let hostile = Hostile::new();
    let mut importer = actor!();
    let handle = hostile.handle(&[]);
    let mut assert_refused = |defect: &str| {
        let failure = importer.ask(&format!("open {handle} -> m")).expect_err(defect);
        assert_eq!(failure.variant, "Misbehaved", "{defect}: {failure}");
        importer.ok("evict");
    };
    for rows in [0, 1, ROWS - 1, ROWS + 1, 4097, u32::MAX as usize] {
        hostile.name_leases(hostile.leases.as_raw_fd(), rows);
        assert_refused(&format!("{rows} rows"));
    }
    let others = [
        ("no seals", memory_file(LEASES as u64, 0)),
        ("may shrink", memory_file(LEASES as u64, libc::F_SEAL_GROW)),
        ("smaller", memory_file((LEASES - PART) as u64, LEASE_SEALS)),
        ("empty", memory_file(LEASES as u64, LEASE_SEALS)),
        ("a device", File::open("/dev/zero").unwrap()),
        ("a folder", File::open("/").unwrap()),
    ];
    for (defect, other) in &others {
        // The header is valid if the file is large enough for one.
        if other.metadata().unwrap().len() > LEASES as u64 / 2 && *defect != "empty" {
            let mut header = vec![0; 64];
            hostile.leases.read_exact_at(&mut header, 0).unwrap();
            other.write_all_at(&header, 0).unwrap();
        }
        hostile.name_leases(other.as_raw_fd(), ROWS);
        assert_refused(defect);
    }
    for (defect, fd) in [("the ledger", &hostile.ledger), ("the data", &hostile.data)] {
        hostile.name_leases(fd.as_raw_fd(), ROWS);
        assert_refused(defect);
    }
    hostile.name_leases(-1, ROWS);
    assert_refused("no lease table");
    for (defect, offset) in [("magic", 0), ("version", 8), ("nonce", 16), ("nonce's end", 28)] {
        hostile.restore();
        hostile.lease_words.word(offset).fetch_xor(1 << 8, Ordering::SeqCst);
        assert_refused(defect);
    }
    hostile.restore();
    // An fd number that is not open, and a file that cannot be mapped writable.
    hostile.name_leases(10_000, ROWS);
    assert!(importer.ask(&format!("open {handle} -> m")).is_err());
    let sealed = memory_file(LEASES as u64, LEASE_SEALS | libc::F_SEAL_WRITE);
    hostile.name_leases(sealed.as_raw_fd(), ROWS);
    importer.fails(&format!("open {handle} -> m"), "System");
    importer.ok("evict");
    hostile.restore();
    importer.ok(&format!("open {handle} -> m"));
}

/// W11: a lease table whose words change while importers take and return leases.
#[test]
fn w11_lease_table_changed_in_use_is_survived() {
    let hostile = Hostile::new();
    let mut importers = [actor!(), actor!()];
    let handle = hostile.handle(&[]);
    let clean = importers.each_ref().map(ProcessSnapshot::of);
    let pids = importers.each_ref().map(Actor::pid);
    let end = AtomicBool::new(false);
    let rounds = AtomicU64::new(0);
    let opened: u64 = std::thread::scope(|scope| {
        scope.spawn(|| {
            let mut state = 1;
            while !end.load(Ordering::Relaxed) {
                let which = next(&mut state) as usize;
                let offset = match next(&mut state) % 4 {
                    0 => which % 96 * 4,
                    1 => OWNERS + which % ROWS * 64 + which / ROWS % 6 * 4,
                    2 => BITMAPS + which % (2 * SLOTS) * 4,
                    _ => BITMAPS + 2 * PART + which % ROWS * 2 * PART + which / ROWS % (2 * SLOTS) * 4,
                };
                let value = match next(&mut state) % 5 {
                    0 => 0,
                    1 => u32::MAX,
                    2 => next(&mut state) as u32 % 6,
                    3 => pids[which % 2],
                    _ => next(&mut state) as u32,
                };
                hostile.lease_words.word(offset).store(value, Ordering::SeqCst);
                if next(&mut state).is_multiple_of(64) {
                    hostile.restore_leases();
                }
                if next(&mut state).is_multiple_of(512) {
                    punch(&hostile.leases, 0, LEASES);
                    hostile.restore_leases();
                }
                rounds.fetch_add(1, Ordering::Relaxed);
            }
        });
        let _ends = SetOnDrop(&end);
        importers.iter_mut().for_each(|importer| importer.send(&format!("try-storm {handle} 700")));
        let answers = importers.iter_mut().map(|it| it.answer(Duration::from_secs(10)).unwrap());
        answers.map(|answer| opened_of(&answer)).sum()
    });
    assert!(opened > 0 && rounds.load(Ordering::Relaxed) > 1000);
    punch(&hostile.leases, 0, LEASES);
    hostile.restore();
    for (importer, clean) in importers.iter_mut().zip(&clean) {
        importer.ok("evict");
        clean.assert_restored(importer);
        assert!(open_repeatedly(importer, &handle, 20) > 0, "the restored table works");
    }
}
