use std::sync::Barrier;
use std::sync::atomic::{AtomicBool, AtomicU64};
use std::time::Duration;

use umf::{Block, Pool};
use umf_ipc::Handle;

use super::*;

/// Longer than any block is held.
const LONG: Duration = Duration::from_secs(20);

/// Returns a new opening owner.
fn new_owner() -> usize {
    static NEXT: AtomicUsize = AtomicUsize::new(1);
    NEXT.fetch_add(1, Ordering::Relaxed)
}

/// Opens as `umfOpenIPCHandle` does.
fn open(handle: &Handle, of: usize) -> usize {
    let importer = umf::importer().unwrap();
    // SAFETY: the process's importer is never dropped.
    if let Some(address) = unsafe { open_again(importer, handle.as_bytes(), 0, of) } {
        return address;
    }
    let mapping = importer.open_bytes(handle.as_bytes(), Access::ReadWrite).unwrap();
    let address = mapping.address().value() as usize;
    // SAFETY: the process's importer is never dropped.
    unsafe { insert(address, mapping, of) };
    address
}

/// Blocks of a new pool, with their handles.
struct Exported {
    pool: &'static Pool,
    all: Vec<(Block<'static>, Handle)>,
}

impl Exported {
    fn new(count: usize) -> Self {
        // Never dropped, so that no other test gets its addresses.
        let pool: &'static Pool = Box::leak(Box::new(Pool::shared().unwrap()));
        let export = |_| {
            let block = pool.allocate(4096).unwrap();
            let handle = block.handle().unwrap();
            (block, handle)
        };
        Self { pool, all: (0..count).map(export).collect() }
    }

    /// Frees the blocks. Returns how many are held because they are open.
    fn free(&mut self, wait: Duration) -> u64 {
        self.all.clear();
        self.pool.drain(wait).blocks
    }
}

#[test]
fn more_of_one_address_than_it_has_places() {
    let mut exported = Exported::new(1);
    let of = new_owner();
    let count = 5 * WAYS;
    let addresses: Vec<usize> = (0..count).map(|_| open(&exported.all[0].1, of)).collect();
    assert!(addresses.iter().all(|&address| address == addresses[0]));
    assert_eq!(find_containing(addresses[0] + 100).unwrap().1, addresses[0]);
    assert_eq!(exported.free(Duration::ZERO), 1);
    for left in (0..count).rev() {
        assert_eq!(exported.free(Duration::ZERO), 1);
        // An address inside of the block is only found by a full search.
        let inside = usize::from(left % 3 == 0);
        assert!(close(addresses[0] + inside).is_ok(), "{left}");
    }
    assert!(close(addresses[0]).is_err());
    assert!(find_containing(addresses[0]).is_none());
    assert_eq!(exported.free(LONG), 0);
}

#[test]
fn what_one_thread_opened_another_closes() {
    const ROUNDS: usize = 2000;
    let mut exported = Exported::new(8);
    let handles = &exported.all;
    let of = new_owner();
    let owed: Vec<AtomicU64> = handles.iter().map(|_| AtomicU64::new(0)).collect();
    let barrier = Barrier::new(4);
    let addresses: Vec<usize> = handles.iter().map(|(_, handle)| open(handle, of)).collect();
    std::thread::scope(|scope| {
        for thread in 0..4 {
            let (owed, barrier, addresses) = (&owed, &barrier, &addresses);
            scope.spawn(move || {
                barrier.wait();
                for round in 0..ROUNDS {
                    let number = (round * 5 + thread) % handles.len();
                    assert_eq!(open(&handles[number].1, of), addresses[number]);
                    owed[number].fetch_add(1, Ordering::Release);
                    // Closes another block, if a thread has it open.
                    let other = (round + thread * 3) % handles.len();
                    let less = |owed: u64| owed.checked_sub(1);
                    if owed[other].fetch_update(Ordering::AcqRel, Ordering::Acquire, less).is_ok() {
                        assert!(close(addresses[other]).is_ok(), "{thread} {round}");
                    }
                }
            });
        }
    });
    for (address, owed) in addresses.iter().zip(&owed) {
        // One more for the opening at the start.
        for _ in 0..=owed.load(Ordering::Acquire) {
            assert!(close(*address).is_ok());
        }
        assert!(close(*address).is_err());
    }
    assert_eq!(exported.free(LONG), 0);
}

#[test]
fn a_pool_that_goes_closes_its_own_while_others_go_on() {
    let mut exported = Exported::new(16);
    let handles = &exported.all;
    let (going, staying) = (new_owner(), new_owner());
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !stop.load(Ordering::Relaxed) {
                for (_, handle) in &handles[..8] {
                    let address = open(handle, staying);
                    assert!(find_containing(address).is_some());
                    assert!(close(address).is_ok(), "closed by another's end");
                }
            }
        });
        for _ in 0..300 {
            let addresses: Vec<usize> = handles[8..]
                .iter()
                .flat_map(|(_, handle)| [open(handle, going), open(handle, going)])
                .collect();
            close_all(going);
            assert!(addresses.iter().all(|&address| close(address).is_err()));
        }
        stop.store(true, Ordering::Relaxed);
    });
    assert_eq!(exported.free(LONG), 0);
}

/// A table that had many entries is searched for the reserved keys.
#[test]
fn nothing_is_open_at_an_address_of_nothing() {
    let of = new_owner();
    let mut exported = Exported::new(2000);
    let opened: Vec<usize> = exported.all.iter().map(|(_, handle)| open(handle, of)).collect();
    opened.into_iter().for_each(|address| close(address).unwrap());
    for address in [FREE, TAKEN] {
        assert!(close(address).is_err());
    }
    assert_eq!(exported.free(LONG), 0);
}
