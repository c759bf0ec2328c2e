//! Device memory of Level Zero shared between processes, in each form in which handles are
//! exchanged. Uses the software driver without the loader.

#![allow(clippy::unwrap_used, reason = "a test that cannot continue ends")]

use std::path::PathBuf;
use std::process::Command;

use tempfile::NamedTempFile;
use umf::Handle;
use umf_tests::{Actor, ProcessSnapshot, machine, scenarios, spawn};

/// Returns the path of the software driver that cargo built beside this test.
fn driver() -> PathBuf {
    let beside = std::env::current_exe().unwrap().with_file_name("libze_soft.so");
    assert!(beside.exists(), "{} was not built", beside.display());
    beside
}

/// Forms of handles: the driver's IPC style, and the provider's setting `handles`.
const FORMS: [(&str, &str); 6] = [
    ("classic", "fd-functions"),
    ("classic", "fd"),
    ("opaque", "fd-functions"),
    ("opaque", "fd"),
    ("opaque", "opaque"),
    ("opaque-socket", "opaque"),
];

/// Settings file for the driver. The path of a loader can be set in files only.
struct Machine {
    settings: NamedTempFile,
    style: &'static str,
}

impl Machine {
    fn new((style, handles): (&'static str, &str)) -> Self {
        let settings = NamedTempFile::new().unwrap();
        let text = format!(
            "[provider.level-zero]\npath = {:?}\nhandles = {handles:?}\n[pool.each]\nkind = \"proxy\"\nprovider = \"level-zero\"\n",
            driver()
        );
        std::fs::write(&settings, text).unwrap();
        Self { settings, style }
    }

    fn actor(&self) -> Actor {
        self.actor_with("ZE_SOFT_DEVICES", "2")
    }

    fn actor_with(&self, name: &str, value: &str) -> Actor {
        let settings = self.settings.path().to_str().unwrap();
        spawn!()
            .env("UMF_TOML", settings)
            .env("ZE_SOFT_IPC", self.style)
            .env("TESTS_ZE_SOFT", driver().to_str().unwrap())
            .env(name, value)
            .start()
    }
}

/// Takes a snapshot without threads: the driver's queues keep their threads for a while after work.
fn snapshot(actor: &Actor) -> ProcessSnapshot {
    ProcessSnapshot { threads: 0, ..ProcessSnapshot::of(actor) }
}

/// Waits until an actor holds what the snapshot shows.
#[track_caller]
fn assert_restored(before: &ProcessSnapshot, actor: &Actor) {
    for _ in 0..500 {
        if snapshot(actor) == *before {
            return;
        }
        std::thread::sleep(std::time::Duration::from_millis(10));
    }
    assert_eq!(snapshot(actor), *before, "actor {} has more or less than before", actor.pid());
}

/// Allocates blocks of several sizes. The last is too large for a slab.
fn blocks(producer: &mut Actor) -> Vec<Handle> {
    scenarios::blocks(producer, "over level-zero", (9 << 20) + 4096)
}

#[test]
fn processes_share_device_memory_through_handles() {
    for form in FORMS {
        let machine = Machine::new(form);
        let mut producer = machine.actor();
        let handles = blocks(&mut producer);
        let mut importer = machine.actor();
        for handle in &handles {
            assert_eq!(handle.provider_kind().as_str(), "level-zero");
            assert_eq!(handle.data_fd().is_some(), form.1 != "opaque", "{form:?}");
        }
        scenarios::share(&mut producer, core::slice::from_mut(&mut importer), &handles);
        assert_eq!(importer.ok("ze-soft allocations"), "0", "{form:?}: nothing is open any more");
        importer.finish();
        producer.finish();
    }
}

#[test]
fn freed_block_is_reused_only_after_last_close() {
    for form in [FORMS[1], FORMS[4]] {
        let machine = Machine::new(form);
        // A block in a shared allocation, and a block in an allocation of its own.
        for (size, others) in [(4096_u64, 300), ((9 << 20) + 4096, 4)] {
            // The driver uses the lowest free address, so that it reuses a freed one at once.
            let range = "600000000000-600040000000";
            let mut producer = machine.actor_with("ZE_SOFT_ADDRESSES", range);
            let mut importer = machine.actor();
            producer.ok("pool p over level-zero");
            producer.ok("alloc p 4096 -> p.stays");
            producer.ok(&format!("alloc p {size} -> p.b"));
            producer.ok("fill p.b 1");
            let address = producer.ok("address p.b");
            importer.ok(&format!("open {} -> m", producer.handle("handle p.b")));
            let exports = producer.ok("ze-soft exports");
            assert_ne!(exports, "0");
            producer.ok("free p p.b");
            assert!(producer.number("held", "bytes") >= size, "{form:?}");
            assert_eq!(importer.ok("is_current m"), "false");
            assert_eq!(producer.ok(&format!("reused p {size} {address} {others}")), "no", "{form:?}");
            producer.ok("trim p");
            assert_ne!(producer.ok("drain 30"), "0", "{form:?}");
            // Drivers may unmap the memory in a peer when its handle is put back.
            assert_eq!(producer.ok("ze-soft exports"), exports, "{form:?}: not put back while it is open");
            importer.check("m", 1);
            importer.ok("close m");
            assert_eq!(producer.ok("drain 5000"), "0", "{form:?}");
            assert_eq!(
                producer.ok(&format!("reused p {size} {address} {others}")),
                "yes",
                "{form:?}, {size}"
            );
            importer.finish();
            producer.finish();
        }
    }
}

#[test]
fn killed_producer_leaves_open_memory_only() {
    for form in FORMS {
        let machine = Machine::new(form);
        let mut producer = machine.actor();
        let handles = blocks(&mut producer);
        let mut importer = machine.actor();
        importer.ok(&format!("open {} -> m", handles[2]));
        producer.kill();
        importer.check("m", 3);
        importer.ok("fill m 33");
        importer.check("m", 33);
        importer.fails(&format!("open {} -> other", handles[3]), "ProducerGone");
        importer.ok("close m");
        importer.ok("evict");
        assert_eq!(importer.ok("ze-soft allocations"), "0", "{form:?}");
        importer.finish();
    }
}

#[test]
fn killed_importer_leaves_nothing() {
    for form in [FORMS[1], FORMS[4]] {
        let machine = Machine::new(form);
        let mut producer = machine.actor();
        let handles = blocks(&mut producer);
        let mut before = None;
        // The second kill must leave the producer as the first did.
        for _ in 0..2 {
            scenarios::kill_importer(&mut producer, machine.actor(), &handles);
            assert_restored(before.get_or_insert_with(|| snapshot(&producer)), &producer);
        }
        producer.finish();
    }
}

/// Cycles of allocate, export, open, close, put back and free at a reused address. A handle never
/// opens a later allocation, and both processes hold in the end what they held at the start.
#[test]
fn export_open_close_cycles_leak_nothing() {
    let cycles = if machine::is_long() { 100_000 } else { 2000 };
    for form in [FORMS[0], FORMS[1], FORMS[4]] {
        let machine = Machine::new(form);
        let mut producer = machine.actor_with("ZE_SOFT_ADDRESSES", "600000000000-600001000000");
        let mut importer = machine.actor();
        producer.ok("pool control shared");
        producer.ok("alloc control 4096 -> control.c");
        producer.ok("pool p settings each");
        importer.ok(&format!("open {} -> c", producer.handle("handle control.c")));
        let counts = |actor: &mut Actor| {
            ["allocations", "memory", "fds", "exports", "residents"]
                .map(|what| actor.ok(&format!("ze-soft {what}")))
        };
        let run = |cycles: u64, producer: &mut Actor, importer: &mut Actor| {
            producer.ok("begin control.c");
            producer.send(&format!("produce p control.c {cycles}"));
            importer.send(&format!("consume c {cycles}"));
            let patience = std::time::Duration::from_secs(300);
            let consumed = importer.answer(patience);
            let produced = producer.answer(patience);
            assert_eq!(consumed, Ok(cycles.to_string()), "{form:?}: {produced:?}");
            let addresses: u64 = produced.unwrap().parse().unwrap();
            assert!(
                cycles < 100 || addresses < cycles / 10,
                "{form:?}: {addresses} addresses are used again"
            );
            importer.ok("evict");
            assert_eq!(producer.ok("drain 5000"), "0");
        };
        run(20, &mut producer, &mut importer);
        let before = (snapshot(&producer), snapshot(&importer), counts(&mut producer), counts(&mut importer));
        run(cycles, &mut producer, &mut importer);
        assert_restored(&before.0, &producer);
        assert_restored(&before.1, &importer);
        assert_eq!((counts(&mut producer), counts(&mut importer)), (before.2, before.3), "{form:?}");
        importer.finish();
        producer.finish();
    }
}

#[test]
fn open_without_driver_or_refused_by_driver_names_reason() {
    let machine = Machine::new(FORMS[1]);
    let mut producer = machine.actor();
    let handles = blocks(&mut producer);
    // An importer without the driver.
    let none = NamedTempFile::new().unwrap();
    std::fs::write(&none, "[provider.level-zero]\npath = \"/nowhere/libze_loader.so.1\"\n").unwrap();
    let mut without = spawn!().env("UMF_TOML", none.path().to_str().unwrap()).start();
    let message = without.fails(&format!("open {} -> m", handles[0]), "NotSupported");
    assert!(message.contains("libze1"), "{message}");
    // An importer whose driver refuses the fd.
    let other = Machine::new(FORMS[1]);
    let mut faulty =
        other.actor_with("ZE_SOFT_FAULTS", "zeMemOpenIpcHandle:1=ZE_RESULT_ERROR_INVALID_ARGUMENT");
    let message = faulty.fails(&format!("open {} -> m", handles[0]), "Driver");
    assert!(message.contains("zeMemOpenIpcHandle failed: ZE_RESULT_ERROR_INVALID_ARGUMENT"), "{message}");
    faulty.ok(&format!("open {} -> m", handles[0]));
    faulty.check("m", 1);
}

#[test]
fn mpi_ranks_exchange_handles() {
    if let Some(why) = machine::missing_mpi() {
        return machine::skip("mpi_ranks_exchange_handles", &why);
    }
    let folder = tempfile::tempdir().unwrap();
    let shim = folder.path().join("libshim.so");
    let source = concat!(env!("CARGO_MANIFEST_DIR"), "/mpi/shim.c");
    machine::run_mpi(Command::new("mpicc").args(["-shared", "-fPIC", "-O1", "-o"]).arg(&shim).arg(source))
        .unwrap();
    for form in FORMS {
        let machine = Machine::new(form);
        let mut job = Command::new("mpirun");
        job.args(["-n", "4", env!("CARGO_BIN_EXE_umf-actor"), "mpi"]).arg(&shim).arg("level-zero");
        job.env("UMF_TOML", machine.settings.path()).env("ZE_SOFT_IPC", machine.style);
        let output = machine::run_mpi(&mut job).unwrap_or_else(|why| panic!("{form:?}: {why}"));
        for rank in 0..4 {
            assert!(output.contains(&format!("rank {rank} is done")), "{form:?}: {output}");
        }
    }
}
