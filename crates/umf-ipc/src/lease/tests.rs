use std::collections::HashMap;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Barrier;
use std::sync::atomic::Ordering;

use proptest::prelude::*;

use super::layout::{BITMAP_BITS, ROW_HEADER, RowOwner, TableShape};
use super::*;
use crate::identity::Nonce;
use crate::{Error, Result};
use umf_os::{OfdLocks, SharedMapping};

mod collector;
mod tickets;

const SLOTS: u32 = 1024;

fn nonce() -> Nonce {
    Nonce::from_bytes(*b"a ledger's nonce")
}

/// Returns a table with this number of rows.
fn small_table(rows: u32) -> LeaseTable {
    let table = LeaseTable::within(SLOTS, nonce(), TableShape { slots: SLOTS, rows }.size()).unwrap();
    assert_eq!(table.rows(), rows);
    table.reserve(0, SLOTS).unwrap();
    table
}

fn table() -> LeaseTable {
    small_table(64)
}

fn fd(table: &LeaseTable) -> OwnedFd {
    table.shared_fd().as_fd().try_clone_to_owned().unwrap()
}

fn producer(table: &LeaseTable) -> LeaseTableId {
    LeaseTableId { pid: std::process::id(), nonce: nonce(), slots: SLOTS, rows: table.rows() }
}

fn try_importer(table: &LeaseTable) -> Result<ImporterLeases> {
    ImporterLeases::open(fd(table).into(), None, producer(table))
}

fn importer(table: &LeaseTable) -> ImporterLeases {
    try_importer(table).unwrap()
}

fn open(importer: &ImporterLeases, slot: u32) -> Lease {
    importer.acquire(slot).unwrap()
}

fn is_leased(table: &LeaseTable, slot: u32) -> bool {
    table.scan(slot).is_some_and(|mut scan| table.is_leased(slot, &mut scan))
}

fn close(lease: Lease) {
    // SAFETY: a test releases a lease once, while its importer exists.
    unsafe { lease.release() };
}

/// A lease that is sent to another thread, as in a mapping.
#[derive(Clone, Copy)]
struct Sent(Lease);

// SAFETY: any thread may release a lease.
unsafe impl Send for Sent {}

impl Sent {
    fn close(self) {
        close(self.0);
    }
}

fn close_in_another_thread(lease: Lease) {
    let sent = Sent(lease);
    std::thread::scope(|scope| scope.spawn(move || sent.close()).join().unwrap());
}

fn open_in_another_thread(importer: &ImporterLeases, slot: u32) -> Lease {
    std::thread::scope(|scope| scope.spawn(|| Sent(open(importer, slot))).join().unwrap()).0
}

#[test]
fn open_export_is_leased_until_it_is_closed() {
    let table = table();
    let (one, other) = (importer(&table), importer(&table));
    assert!((0..SLOTS).all(|slot| !is_leased(&table, slot)));
    for slot in [0, 7, SLOTS - 1] {
        let (first, again) = (open(&one, slot), open(&one, slot));
        let others = open(&other, slot);
        assert_eq!(again.word(), first.word());
        for lease in [first, others, again] {
            assert!(is_leased(&table, slot) && !is_leased(&table, slot ^ 1));
            close(lease);
        }
        assert!(!is_leased(&table, slot));
    }
    assert_eq!(table.importers(), 2);
    drop((one, other));
    assert_eq!(table.importers(), 0);
}

/// Regression test for lost leases in version 1: leases that one thread took and another released
/// were a sum over rows, and an importer released its rows one by one.
#[test]
fn lease_survives_the_end_of_another_importer_of_the_same_process() {
    for _ in 0..200 {
        let table = table();
        let (first, second) = (importer(&table), importer(&table));
        close_in_another_thread(open(&first, 5));
        let kept = open(&second, 5);
        let begin = Barrier::new(2);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                begin.wait();
                drop(first);
            });
            begin.wait();
            for _ in 0..20 {
                assert!(is_leased(&table, 5));
            }
        });
        close(kept);
        assert!(!is_leased(&table, 5));
    }
}

#[test]
fn any_thread_releases_a_lease_in_its_row() {
    let table = table();
    let importer = importer(&table);
    let (here, there) = (open(&importer, 5), open(&importer, 5));
    let others = open_in_another_thread(&importer, 5);
    close_in_another_thread(there);
    assert!(is_leased(&table, 5));
    close(others);
    assert!(is_leased(&table, 5));
    close(here);
    assert!(!is_leased(&table, 5));
}

#[test]
fn scan_resumes_at_the_leased_row() {
    let table = table();
    let importers: Vec<_> = (0..3).map(|_| importer(&table)).collect();
    let leases: Vec<_> = importers.iter().map(|importer| open(importer, 9)).collect();
    let mut scan = table.scan(9).unwrap();
    for lease in leases {
        assert!(table.is_leased(9, &mut scan));
        close(lease);
    }
    assert!(!table.is_leased(9, &mut scan));
    assert!(table.scan(9).is_none(), "the opened bitmap is cleared");
}

#[test]
fn row_of_killed_importer_is_cleared_and_reused() {
    let table = small_table(4);
    let living = importer(&table);
    let kept = open(&living, 1);
    for round in 0..6 {
        let killed = importer(&table);
        open(&killed, 1);
        open(&killed, 2);
        assert!(is_leased(&table, 2), "round {round}");
        killed.simulate_kill();
        // In every second round the producer does not scan before the next importer takes the row.
        if round % 2 == 0 {
            assert!(!is_leased(&table, 2));
            assert_eq!(table.importers(), 1);
        }
        let next = importer(&table);
        let lease = open(&next, 3);
        assert!(is_leased(&table, 3) && !is_leased(&table, 2), "round {round}");
        assert!(table.is_in_device_grace());
        close(lease);
    }
    assert!(is_leased(&table, 1) && !is_leased(&table, 2) && !is_leased(&table, 3));
    close(kept);
    assert!(!is_leased(&table, 1));
}

/// Memory that a device may have imported is not reused when its importer is found to have ended,
/// but after the grace period.
#[test]
fn device_memory_of_killed_importer_is_held_for_the_grace_period() {
    for is_device in [false, true] {
        let exports = ExportTable::new(SLOTS, false).unwrap();
        let slot = exports.allocate_slot().unwrap();
        let content = crate::ledger::SlotContent {
            offset: 0,
            length: 4096,
            requested: 4096,
            device: 1,
            inode: 1,
            fd: 9,
            region_slot: slot,
            region_generation: 1,
            region_id: 1,
            region_size: 4096,
            data_offset: 0,
        };
        let generation = exports.ledger.publish(slot, &content);
        let nonce = exports.ledger.nonce();
        let fd = exports.leases.shared_fd().as_fd().try_clone_to_owned().unwrap();
        let slots = exports.ledger.capacity();
        let producer = LeaseTableId { pid: 1, nonce, slots, rows: exports.leases.rows() };
        let importer = ImporterLeases::open(fd.into(), None, producer).unwrap();
        open(&importer, slot);
        importer.simulate_kill();
        let begun = std::time::Instant::now();
        let base = umf_core::Address::from_bits(1 << 20);
        let is_open = || umf_runtime::observer::Leases::is_leased(&*exports, base, 4096);
        match exports.retire_fast(slot, generation, is_device) {
            RetireOutcome::Leased(scan) => {
                assert!(is_device);
                let export =
                    ExportedRange { slot, generation, base, size: 4096, is_region: false, is_device };
                exports.reclaim_or_defer(&export, scan, 1, None);
            }
            other => assert!(matches!(other, RetireOutcome::Reclaimed) && !is_device, "{other:?}"),
        }
        assert!(!is_device || is_open() || begun.elapsed().as_millis() >= 100);
        while is_open() {
            std::thread::sleep(std::time::Duration::from_millis(5));
        }
        assert_eq!(exports.allocate_slot().unwrap(), slot, "the slot was freed");
    }
}

#[test]
fn one_thread_has_one_row_and_many_threads_share_a_few() {
    let table = table();
    let importer = importer(&table);
    for slot in 0..20 {
        close(open(&importer, slot));
    }
    assert_eq!(importer.rows(), 1);
    let inside = Barrier::new(20);
    std::thread::scope(|scope| {
        for _ in 0..20 {
            scope.spawn(|| {
                let lease = open(&importer, 3);
                // All threads run at the same time, so that each has a different number.
                inside.wait();
                assert!(is_leased(&table, 3));
                close(lease);
            });
        }
    });
    assert!((2..=8).contains(&importer.rows()), "{}", importer.rows());
    assert!(!is_leased(&table, 3));
}

#[test]
fn importer_without_a_row_cannot_open() {
    let table = small_table(4);
    let mut importers: Vec<_> = (0..4).map(|_| importer(&table)).collect();
    assert!(matches!(try_importer(&table), Err(Error::NoLeaseRow { rows: 4, .. })));
    importers.pop();
    importer(&table);
}

/// Threads of one importer take at most half of all rows, so that other importers find free ones.
#[test]
fn threads_leave_rows_to_other_importers() {
    let table = small_table(8);
    let many = importer(&table);
    let inside = Barrier::new(16);
    std::thread::scope(|scope| {
        for _ in 0..16 {
            scope.spawn(|| {
                close(open(&many, 0));
                inside.wait();
            });
        }
    });
    let others: Vec<_> = (0..4).map(|_| importer(&table)).collect();
    assert!(many.rows() <= 4 && others.iter().all(|other| other.rows() == 1));
}

#[test]
fn opened_bitmap_selects_the_scanned_rows() {
    let table = small_table(128);
    let head = head(&table);
    let bitmaps = TableShape { slots: SLOTS, rows: 128 }.bitmaps() as usize;
    let bitmap = |slot: u32| head.words(bitmaps + slot as usize * 8, 1)[0].load(Ordering::SeqCst);
    let importer = importer(&table);
    assert_eq!(bitmap(4), 0);
    close(open(&importer, 4));
    assert_eq!(bitmap(4).count_ones(), 1);
    assert!(!is_leased(&table, 4));
    assert_eq!((bitmap(4), bitmap(5)), (0, 0));
    // More rows than the bitmap has bits.
    let importers: Vec<_> = (0..=BITMAP_BITS).map(|_| self::importer(&table)).collect();
    let leases: Vec<_> = importers.iter().map(|importer| open(importer, 6)).collect();
    for lease in leases {
        assert!(is_leased(&table, 6));
        close(lease);
    }
    assert!(!is_leased(&table, 6));
}

/// The lock belongs to a mapping that forked children do not inherit.
#[test]
fn forked_child_has_no_row_and_releases_no_lease() {
    let table = table();
    let importer = importer(&table);
    let (kept, closed) = (open(&importer, 5), open(&importer, 6));
    // SAFETY: the child makes only the call under test, and ends.
    let child = unsafe { libc::fork() };
    if child == 0 {
        close(kept);
        // SAFETY: waits for the signal that ends the child.
        unsafe {
            libc::alarm(60);
            libc::pause();
            libc::_exit(1)
        };
    }
    // Long enough for the child to make the call.
    std::thread::sleep(std::time::Duration::from_millis(50));
    assert!(is_leased(&table, 5));
    close(closed);
    close(kept);
    let row = TableShape { slots: SLOTS, rows: 64 }.row(0);
    let locks = OfdLocks::of_file(table.shared_fd());
    assert!(locks.is_write_locked(row).unwrap());
    drop(importer);
    assert!(!locks.is_write_locked(row).unwrap(), "the child keeps the row");
    // SAFETY: kills and waits for the child forked above.
    unsafe {
        libc::kill(child, libc::SIGKILL);
        libc::waitpid(child, core::ptr::null_mut(), 0);
    }
}

fn head(table: &LeaseTable) -> SharedMapping {
    let size = TableShape { slots: SLOTS, rows: table.rows() }.row(table.rows().min(8));
    SharedMapping::new(table.shared_fd().as_fd(), usize::try_from(size).unwrap(), true).unwrap()
}

#[test]
fn invalid_lease_table_is_refused() {
    let table = table();
    let is_refused = |fd: OwnedFd, producer: LeaseTableId| {
        assert!(matches!(ImporterLeases::open(fd.into(), None, producer), Err(Error::Misbehaved { .. })));
    };
    let good = producer(&table);
    is_refused(fd(&table), LeaseTableId { nonce: Nonce::from_bytes([2; 16]), ..good });
    for slots in [SLOTS * 64, crate::ledger::MAX_SLOTS + 1, 1 << 24, u32::MAX] {
        is_refused(fd(&table), LeaseTableId { slots, ..good });
    }
    for rows in [0, 1, good.rows / 2] {
        is_refused(fd(&table), LeaseTableId { rows, ..good });
    }
    is_refused(
        umf_os::memfd::create("no-table", TableShape { slots: SLOTS, rows: good.rows }.size()).unwrap(),
        good,
    );
    is_refused(std::fs::File::open("/dev/null").unwrap().into(), good);
    assert!(ImporterLeases::open(fd(&table).into(), None, good).is_ok());
    assert!(matches!(LeaseTable::within(SLOTS, nonce(), 65536), Err(Error::System { .. })));
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    /// Arbitrary words in a table cause no fault and no endless loop. The table works again after
    /// it is cleared.
    #[test]
    fn arbitrary_words_do_not_crash(
        words in prop::collection::vec((0_usize..1 << 14, any::<u64>(), 0_u32..8), 1..400),
    ) {
        let table = small_table(256);
        let shape = TableShape { slots: SLOTS, rows: 256 };
        let head = head(&table);
        let kept = importer(&table);
        let lease = open(&kept, 1);
        for (place, wild, kind) in words {
            let offset = match kind {
                // Height, search, events, dead, cleared.
                0 => 64 + place % 5 * 64,
                1 | 2 => shape.owners() as usize + place % 256 * size_of::<RowOwner>() + place / 256 % 3 * 8,
                3 => shape.bitmaps() as usize + place % 64 * 8,
                _ => (shape.row((place % 8) as u32) + ROW_HEADER) as usize + place / 8 % 64 * 8,
            };
            let value = match wild % 3 {
                0 => wild >> 2,
                1 => (wild >> 2) % 3,
                _ => u64::MAX,
            };
            head.words(offset, 1)[0].store(value, Ordering::SeqCst);
            let slot = (place % 64) as u32;
            is_leased(&table, slot);
            if kind == 6 {
                close(open(&kept, slot));
            }
            if kind == 5 && let Ok(another) = try_importer(&table) {
                close(open(&another, slot));
            }
            table.importers();
            table.is_in_device_grace();
        }
        close(lease);
        drop(kept);
        umf_os::file::punch_hole(table.shared_fd().as_fd(), 64, shape.size() - 64).unwrap();
        let importer = importer(&table);
        let lease = open(&importer, 2);
        prop_assert!(is_leased(&table, 2) && !is_leased(&table, 1));
        close(lease);
        prop_assert!(!is_leased(&table, 2));
    }
}

#[derive(Clone, Debug)]
enum Step {
    Open { importer: usize, slot: u32, in_another_thread: bool },
    Close { which: usize, in_another_thread: bool },
    Kill { importer: usize },
    Leave { importer: usize },
    Look { slot: u32 },
}

fn step() -> impl Strategy<Value = Step> {
    let (importer, slot, flag) = (0_usize..3, 0_u32..4, any::<bool>());
    prop_oneof![
        6 => (importer.clone(), slot.clone(), flag).prop_map(|(importer, slot, in_another_thread)| Step::Open {
            importer,
            slot,
            in_another_thread
        }),
        5 => (any::<usize>(), flag).prop_map(|(which, in_another_thread)| Step::Close { which, in_another_thread }),
        1 => importer.clone().prop_map(|importer| Step::Kill { importer }),
        1 => importer.prop_map(|importer| Step::Leave { importer }),
        6 => slot.prop_map(|slot| Step::Look { slot }),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    /// Importers are created, open, close in any thread, are dropped and are killed. An export is
    /// leased exactly if a plain list has a lease on it.
    #[test]
    fn leases_match_a_list_of_them(steps in prop::collection::vec(step(), 1..60)) {
        let table = small_table(32);
        let mut importers: Vec<_> = (0..3).map(|_| importer(&table)).collect();
        // The leases, with importer and slot.
        let mut model: Vec<(usize, u32, Lease)> = Vec::new();
        for step in steps {
            match step {
                Step::Open { importer, slot, in_another_thread } => {
                    let leases = &importers[importer];
                    let lease =
                        if in_another_thread { open_in_another_thread(leases, slot) } else { open(leases, slot) };
                    model.push((importer, slot, lease));
                }
                Step::Close { which, in_another_thread } if !model.is_empty() => {
                    let (_, _, lease) = model.swap_remove(which % model.len());
                    if in_another_thread { close_in_another_thread(lease) } else { close(lease) }
                }
                Step::Close { .. } => {}
                Step::Kill { importer } => {
                    std::mem::replace(&mut importers[importer], self::importer(&table)).simulate_kill();
                    model.retain(|(of, _, _)| *of != importer);
                }
                Step::Leave { importer } if model.iter().all(|(of, _, _)| *of != importer) => {
                    importers[importer] = self::importer(&table);
                }
                Step::Leave { .. } => {}
                Step::Look { slot } => {
                    let expected = model.iter().any(|(_, of, _)| *of == slot);
                    prop_assert_eq!(is_leased(&table, slot), expected);
                }
            }
        }
        for slot in 0..4 {
            prop_assert_eq!(is_leased(&table, slot), model.iter().any(|(_, of, _)| *of == slot));
        }
        let mut counts: HashMap<u32, usize> = HashMap::new();
        model.iter().for_each(|(_, slot, _)| *counts.entry(*slot).or_default() += 1);
        for (_, slot, lease) in model {
            close(lease);
            *counts.get_mut(&slot).unwrap() -= 1;
            prop_assert_eq!(is_leased(&table, slot), counts[&slot] > 0);
        }
    }
}
