use super::layout::LedgerHeader;
use super::*;
use crate::handle::{Fields, Handle};
use crate::identity::Nonce;
use crate::{Error, Result};
use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use umf_core::{NativeBytes, ProviderKind};

fn content(inode: u64) -> SlotContent {
    SlotContent {
        device: 1,
        inode,
        fd: 9,
        region_slot: 0,
        region_generation: 1,
        region_id: 5,
        region_size: 4096,
        data_offset: 0,
        offset: 0,
        length: 4096,
        requested: 4096,
    }
}

fn handle(ledger: &LedgerWriter, nonce: Nonce) -> Handle {
    let identity = ledger.identity();
    Fields {
        flags: 0,
        boot: identity.boot_id.half(),
        key: crate::transfer::socket::proof::Key::new([0; 16]),
        requested: 1,
        nonce,
        pid: identity.pid,
        ledger_fd: ledger.raw_fd(),
        pid_namespace: identity.pid_namespace,
        pidfs_inode: identity.pidfs_inode,
        data_fd: 9,
        slot: 0,
        generation: 1,
        data_device: 1,
        data_inode: 1,
        data_offset: 0,
        region_size: 4096,
        region_id: 5,
        offset: 0,
        length: 4096,
        kind: ProviderKind::HOST,
        allocation_id: 0,
        native: NativeBytes::EMPTY,
    }
    .encode()
}

fn reader(ledger: &LedgerWriter) -> LedgerReader {
    let fd = ledger.shared_fd().try_clone().unwrap();
    LedgerReader::open(fd.into(), &handle(ledger, ledger.nonce())).unwrap()
}

#[test]
fn retired_export_is_stale() {
    let ledger = LedgerWriter::new(100, false).unwrap();
    let reader = reader(&ledger);
    assert!(reader.slot(0).is_none(), "slots that were never used are not read");
    let slot = ledger.allocate_slot(|_, _| Ok(())).unwrap();
    assert_eq!(ledger.next_generation(slot), 1);
    assert_eq!(ledger.publish(slot, &content(1)), 1);
    assert_eq!(reader.slot(slot).unwrap().read(1), Ok(content(1)));
    ledger.retire(slot, 1);
    assert_eq!(reader.slot(slot).unwrap().read(1), Err(2));
    ledger.free_slot(slot);
    assert_eq!(ledger.allocate_slot(|_, _| Ok(())).unwrap(), slot);
    assert_eq!(ledger.publish(slot, &content(2)), 3);
    assert_eq!(reader.slot(slot).unwrap().read(1), Err(3));
    assert_eq!(reader.slot(slot).unwrap().read(3), Ok(content(2)));
    // The kernel refuses a writable mapping of the ledger.
    let fd = ledger.shared_fd().try_clone().unwrap();
    assert!(umf_os::SharedMapping::new(&fd, 4096, true).is_err());
    assert!(rustix::fs::ftruncate(&fd, 0).is_err());
}

#[test]
fn full_ledger_fails_until_a_slot_is_freed() {
    let ledger = LedgerWriter::new(2000, false).unwrap();
    let slots: Vec<u32> = (0..2000).map(|_| ledger.allocate_slot(|_, _| Ok(())).unwrap()).collect();
    assert!(matches!(ledger.allocate_slot(|_, _| Ok(())), Err(Error::LimitReached { limit: 2000, .. })));
    for slot in &slots {
        let generation = ledger.publish(*slot, &content(u64::from(*slot)));
        ledger.retire(*slot, generation);
        ledger.free_slot(*slot);
    }
    assert!(ledger.allocate_slot(|_, _| Ok(())).is_ok());
}

#[test]
fn concurrent_reads_are_consistent() {
    let ledger = LedgerWriter::new(4, false).unwrap();
    let reader = reader(&ledger);
    let slot = ledger.allocate_slot(|_, _| Ok(())).unwrap();
    let seen = AtomicUsize::new(0);
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !stop.load(Ordering::Relaxed) {
                let found = reader.slot(slot).unwrap();
                let generation = found.generation();
                if let Ok(content) = found.read(generation)
                    && generation & 1 == 1
                {
                    assert_eq!(content.inode, generation);
                    seen.fetch_add(1, Ordering::Relaxed);
                }
            }
        });
        let mut round = 0;
        while round < 200_000 || seen.load(Ordering::Relaxed) < 1000 {
            let generation = ledger.publish(slot, &content(round * 2 + 1));
            std::hint::spin_loop();
            ledger.retire(slot, generation);
            round += 1;
        }
        stop.store(true, Ordering::Relaxed);
    });
}

/// Files that a hostile process, or another one, may have under the ledger's descriptor number.
/// They are refused before they are mapped, so that no read can fault or block.
#[test]
fn invalid_ledger_is_refused() {
    let ledger = LedgerWriter::new(4, false).unwrap();
    let good = handle(&ledger, ledger.nonce());
    let open = |fd: OwnedFd| -> Result<()> { LedgerReader::open(fd.into(), &good).map(drop) };
    let (pipe, _other) = rustix::pipe::pipe().unwrap();
    assert!(matches!(open(pipe), Err(Error::ProducerReplaced { .. })));
    let file = std::fs::File::open("/proc/self/exe").unwrap();
    assert!(matches!(open(file.into()), Err(Error::ProducerReplaced { .. })));
    let unsealed = umf_os::memfd::create("test", 1 << 20).unwrap();
    assert!(matches!(open(unsealed), Err(Error::ProducerReplaced { .. })));
    let seals =
        rustix::fs::SealFlags::SHRINK | rustix::fs::SealFlags::GROW | rustix::fs::SealFlags::FUTURE_WRITE;
    for size in [0, 100, 4096] {
        let small = umf_os::memfd::create("test", size).unwrap();
        umf_os::memfd::add_seals(small.as_fd(), seals).unwrap();
        assert!(matches!(open(small), Err(Error::ProducerReplaced { .. })));
    }
    let empty = umf_os::memfd::create("test", 1 << 20).unwrap();
    umf_os::memfd::add_seals(empty.as_fd(), seals).unwrap();
    assert!(matches!(open(empty), Err(Error::ProducerReplaced { .. })));
    let other = LedgerWriter::new(4, false).unwrap();
    assert!(matches!(open(other.shared_fd().try_clone().unwrap()), Err(Error::ProducerReplaced { .. })));
    let mut header = [0; 4096];
    rustix::io::pread(ledger.shared_fd(), &mut header, 0).unwrap();
    // Larger than any ledger.
    let large = umf_os::memfd::create("test", reader::MAX_SIZE as u64 + 4096).unwrap();
    rustix::io::pwrite(&large, &header, 0).unwrap();
    umf_os::memfd::add_seals(large.as_fd(), seals).unwrap();
    assert!(matches!(open(large), Err(Error::ProducerReplaced { .. })));
    // Its header has more slots than the file.
    let liar = umf_os::memfd::create("test", 8192).unwrap();
    let capacity = std::mem::offset_of!(LedgerHeader, slot_capacity);
    header[capacity..capacity + 4].copy_from_slice(&1_000_000_u32.to_le_bytes());
    rustix::io::pwrite(&liar, &header, 0).unwrap();
    umf_os::memfd::add_seals(liar.as_fd(), seals).unwrap();
    assert!(matches!(open(liar), Err(Error::Misbehaved { .. })));
    assert!(open(ledger.shared_fd().try_clone().unwrap()).is_ok());
    let flags = rustix::io::fcntl_getfd(ledger.shared_fd()).unwrap();
    assert!(flags.contains(rustix::io::FdFlags::CLOEXEC));
}

/// No process uses a producer's memory without a lease, once it has ended with all its children.
#[test]
fn ledger_tells_which_processes_may_use_the_memory() {
    // In a process that has not forked: other tests of this one do.
    // SAFETY: the child runs the checks and ends; glibc's allocator works in a forked child.
    let pid = unsafe { libc::fork() };
    assert!(pid >= 0);
    if pid == 0 {
        let checked = std::panic::catch_unwind(check_survivors);
        // SAFETY: ends the child.
        unsafe { libc::_exit(i32::from(checked.is_err())) };
    }
    let mut status = 0;
    // SAFETY: `status` is valid for the write.
    while unsafe { libc::waitpid(pid, &raw mut status, 0) } != pid {}
    assert_eq!(status, 0, "the child failed (wait status)");
    assert!(umf_sync::fork::has_forked());
    let ledger = LedgerWriter::new(10, false).unwrap();
    let mut flags = [0; 4];
    umf_os::file::read_at(ledger.shared_fd(), &mut flags, 92).unwrap();
    let flags = u32::from_le_bytes(flags) & (layout::FLAG_LOCKED | layout::FLAG_MEMORY_LOCKED);
    assert_eq!(flags, layout::FLAG_LOCKED, "a child was forked before, and may use the memory");
}

fn check_survivors() {
    use crate::ledger::Survivors;
    use crate::ledger::layout::{FLAG_LOCKED, FLAG_MEMORY_LOCKED, LIVENESS_BYTE, MEMORY_BYTE};
    use std::os::fd::AsFd;
    use umf_os::{OfdLocks, ReopenedFile};

    let ledger = LedgerWriter::new(10, false).unwrap();
    let fd = ledger.shared_fd().as_fd().try_clone_to_owned().unwrap();
    let flags = || {
        let mut flags = [0; 4];
        umf_os::file::read_at(&fd, &mut flags, 92).unwrap();
        u32::from_le_bytes(flags)
    };
    let survivors = || Survivors::of(OfdLocks::of_file(&fd), flags);
    assert_eq!(flags() & (FLAG_LOCKED | FLAG_MEMORY_LOCKED), FLAG_LOCKED | FLAG_MEMORY_LOCKED);
    assert_eq!(survivors(), Survivors::Producer);
    drop(ledger);
    assert_eq!(survivors(), Survivors::DroppedExporter);

    // A killed producer: the locks are free, and the flags stay.
    let killed = FLAG_LOCKED | FLAG_MEMORY_LOCKED;
    let of = |flags| Survivors::of(OfdLocks::of_file(&fd), || flags);
    assert_eq!(of(killed), Survivors::None);
    assert_eq!(of(FLAG_LOCKED), Survivors::Unknown);
    assert_eq!(of(0), Survivors::Unknown);
    assert_eq!(of(killed | layout::FLAG_NOT_ALONE), Survivors::SeveralExporters);
    let identity = umf_os::file::identity(&fd).unwrap();
    let child = ReopenedFile::of(fd.as_fd(), identity).unwrap();
    assert!(child.locks().try_write_lock(MEMORY_BYTE).unwrap());
    assert_eq!(of(killed), Survivors::Child);
    assert!(child.locks().try_write_lock(LIVENESS_BYTE).unwrap());
    assert_eq!(of(killed), Survivors::Producer);
}
