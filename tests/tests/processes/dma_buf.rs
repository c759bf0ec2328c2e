//! dma-bufs shared between processes: handles, the slab pool, killed processes, fences, links.

#![allow(clippy::unwrap_used, reason = "a test that cannot continue ends")]

use umf::Handle;
use umf_tests::{Actor, ProcessSnapshot, machine, scenarios, spawn};

fn in_mode(mode: &str) -> Actor {
    spawn!().env("UMF_IPC_EXCHANGE", mode).start()
}

/// Allocates blocks of several sizes. The last is too large for a slab.
fn blocks(producer: &mut Actor, source: &str) -> Vec<Handle> {
    scenarios::blocks(producer, &format!("dma-buf {source}"), (2 << 20) + 4096)
}

/// Returns the number of dma-bufs of a process, or `None` if debugfs cannot be read.
fn buffers_of(pid: u32) -> Option<usize> {
    machine::dma_bufs_of(pid).map(|lines| lines.len())
}

/// Waits until `count` dma-bufs of a process are left. The kernel frees those of a killed process
/// with a delay.
#[track_caller]
fn await_buffers(pid: u32, count: usize) {
    for _ in 0..1000 {
        if buffers_of(pid).is_none_or(|found| found == count) {
            return;
        }
        std::thread::sleep(std::time::Duration::from_millis(10));
    }
    panic!("process {pid} has {:?} buffers instead of {count}", buffers_of(pid));
}

#[test]
fn processes_read_each_others_writes_through_handles() {
    for source in machine::dma_buf_sources("processes_read_each_others_writes_through_handles") {
        // The modes do not depend on the source of the buffer.
        let all: &[_] = &["pidfd", "socket", "auto", "procfs,pidfd", "procfs,socket"];
        for &mode in if source == "udmabuf" { all } else { &["auto"] } {
            let mut producer = in_mode(mode);
            let handles = blocks(&mut producer, source);
            let mut importer = in_mode(mode);
            let clean = ProcessSnapshot::of(&importer);
            assert!(handles.iter().all(|handle| handle.provider_kind().as_str() == "dma-buf"));
            scenarios::share(&mut producer, core::slice::from_mut(&mut importer), &handles);
            clean.assert_restored(&importer);
            importer.finish();
            producer.finish();
        }
    }
}

/// `/proc` cannot open dma-bufs, and containers with nothing but a directory in common can take no
/// descriptors. The socket in the directory passes them.
#[test]
fn containers_read_each_others_writes_over_a_directory() {
    const TEST: &str = "containers_read_each_others_writes_over_a_directory";
    let own = libc::CLONE_NEWPID | libc::CLONE_NEWNET | libc::CLONE_NEWIPC | libc::CLONE_NEWUTS;
    for source in machine::dma_buf_sources(TEST) {
        let directory = tempfile::tempdir().unwrap();
        let container = || {
            let spawn = spawn!().env("UMF_IPC_DIR", directory.path().to_str().unwrap());
            machine::in_namespaces(TEST, spawn, own)
        };
        let (Some(mut producer), Some(mut importer)) = (container(), container()) else { return };
        let handles = blocks(&mut producer, source);
        assert!(handles.iter().all(Handle::is_in_directory));
        let clean = ProcessSnapshot::of(&importer);
        scenarios::share(&mut producer, core::slice::from_mut(&mut importer), &handles);
        clean.assert_restored(&importer);
        importer.ok(&format!("open {} -> m", handles[0]));
        producer.kill();
        // Memory that is open stays. This block is in another buffer.
        importer.check("m", 101);
        importer.fails(&format!("open {} -> other", handles[3]), "ProducerGone");
        importer.ok("close m");
        importer.finish();
    }
}

#[test]
fn freed_block_is_reused_only_after_last_close() {
    for source in machine::dma_buf_sources("freed_block_is_reused_only_after_last_close") {
        // A block in a shared buffer, and a block in a buffer of its own.
        for (size, others) in [(4096_u64, 300), ((2 << 20) + 4096, 4)] {
            let (mut producer, mut importer) = (in_mode("auto"), in_mode("auto"));
            producer.ok(&format!("pool p dma-buf {source}"));
            // Keeps the region of small blocks allocated.
            producer.ok("alloc p 4096 -> p.stays");
            let none = buffers_of(producer.pid());
            producer.ok(&format!("alloc p {size} -> p.b"));
            producer.ok("fill p.b 1");
            let address = producer.ok("address p.b");
            let buffers = buffers_of(producer.pid());
            importer.ok(&format!("open {} -> m", producer.handle("handle p.b")));
            producer.ok("free p p.b");
            let held = producer.number("held", "bytes");
            assert!(held >= size, "{source}: {size} bytes are open, but only {held} bytes are deferred");
            assert_eq!(importer.ok("is_current m"), "false");
            assert_eq!(producer.ok(&format!("reused p {size} {address} {others}")), "no", "{source}");
            producer.ok("trim p");
            assert_ne!(producer.ok("drain 30"), "0", "{source}");
            assert_eq!(buffers_of(producer.pid()), buffers, "{source}: the buffer is kept");
            importer.check("m", 1);
            importer.ok("close m");
            assert_eq!(producer.ok("drain 5000"), "0", "{source}");
            if size == 4096 {
                assert_eq!(producer.ok(&format!("reused p {size} {address} {others}")), "yes", "{source}");
            }
            producer.ok("trim p");
            importer.ok("evict");
            assert_eq!(buffers_of(producer.pid()), none, "{source}");
            importer.finish();
            producer.finish();
        }
    }
}

#[test]
fn procfs_mode_is_refused_with_remedy() {
    if let Some(source) = machine::dma_buf_sources("procfs_mode_is_refused_with_remedy").first() {
        let mut producer = in_mode("procfs");
        let handle = blocks(&mut producer, source).remove(0);
        let mut importer = in_mode("procfs");
        let message = importer.fails(&format!("open {handle} -> m"), "NotPermitted");
        assert!(message.contains("cannot be opened through /proc"), "{message}");
        assert!(message.contains("use pidfd or socket"), "{message}");
    }
}

#[test]
fn killed_importer_leaves_nothing() {
    for source in machine::dma_buf_sources("killed_importer_leaves_nothing") {
        let mut producer = in_mode("auto");
        let handles = blocks(&mut producer, source);
        let buffers = buffers_of(producer.pid());
        if buffers.is_none() {
            machine::skip("buffers in bufinfo", "no debugfs that this process may read");
        }
        assert_ne!(buffers, Some(0));
        let mut before = None;
        // The second kill must leave the producer as the first did.
        for _ in 0..2 {
            scenarios::kill_importer(&mut producer, in_mode("auto"), &handles);
            before.get_or_insert_with(|| ProcessSnapshot::of(&producer)).assert_restored(&producer);
            assert_eq!(buffers_of(producer.pid()), buffers);
        }
        let pid = producer.pid();
        producer.finish();
        await_buffers(pid, 0);
    }
}

#[test]
fn killed_producer_leaves_open_memory_only() {
    for source in machine::dma_buf_sources("killed_producer_leaves_open_memory_only") {
        let mut producer = in_mode("auto");
        let handles = blocks(&mut producer, source);
        let pid = producer.pid();
        let mut importer = in_mode("auto");
        let clean = ProcessSnapshot::of(&importer);
        importer.ok(&format!("open {} -> m", handles[2]));
        producer.kill();
        // Open memory keeps its content; other memory cannot be opened.
        importer.check("m", 3);
        if buffers_of(pid).is_some() {
            await_buffers(pid, 1);
        }
        // This block is in another buffer, which the importer has not opened.
        importer.fails(&format!("open {} -> other", handles[3]), "ProducerGone");
        importer.ok("close m");
        importer.ok("evict");
        await_buffers(pid, 0);
        clean.assert_restored(&importer);
        importer.finish();
    }
}

#[test]
fn killed_producer_and_importer_leave_nothing() {
    for source in machine::dma_buf_sources("killed_producer_and_importer_leave_nothing") {
        let mut producer = in_mode("auto");
        let handles = blocks(&mut producer, source);
        let mut importer = in_mode("auto");
        for (number, handle) in handles.iter().enumerate() {
            importer.ok(&format!("open {handle} -> m{number}"));
        }
        let pid = producer.pid();
        producer.kill();
        importer.kill();
        await_buffers(pid, 0);
    }
}

/// Starts an actor whose settings define a pool `frames` over dma-bufs.
fn with_settings(keys: &[(&str, &str)]) -> Actor {
    let mut spawn =
        spawn!().env("UMF_POOL_FRAMES_PROVIDER", "frames").env("UMF_PROVIDER_FRAMES_KIND", "dma-buf");
    for (key, value) in keys {
        spawn = spawn.env(&format!("UMF_PROVIDER_FRAMES_{key}"), value);
    }
    spawn.start()
}

#[test]
fn settings_choose_dma_buf_source() {
    for source in machine::dma_buf_sources("settings_choose_dma_buf_source") {
        let keys: &[_] = match source.split_once(':') {
            Some((_, heap)) => &[("EXPORTER", "heap"), ("HEAP", heap)],
            None => &[],
        };
        let mut producer = with_settings(keys);
        producer.ok("pool p settings frames");
        producer.ok("alloc p 4096 -> p.b");
        assert_eq!(producer.handle("handle p.b").provider_kind().as_str(), "dma-buf");
        assert_ne!(buffers_of(producer.pid()), Some(0));
    }
}

#[test]
fn inapplicable_settings_are_refused() {
    for (keys, why) in [
        (&[("NUMA", "local")] as &[_], "of kind \"host\""),
        (&[("PARAMS", "{ a = 1 }")], "of kind \"plugin\""),
    ] {
        let message = with_settings(keys).fails("pool p settings frames", "UnknownKey");
        assert!(message.contains(why), "{message}");
    }
    let message = with_settings(&[("EXPORTER", "thin-air")]).fails("pool p settings frames", "BadValue");
    assert!(message.contains("udmabuf"), "{message}");
}

/// Fences of the driver vgem (`drm/vgem_drm.h`), which simulate a busy device.
mod device {
    use std::fs::File;
    use std::os::fd::{AsRawFd, BorrowedFd};

    #[repr(C)]
    struct Prime {
        handle: u32,
        flags: u32,
        fd: i32,
    }

    #[repr(C)]
    struct Attach {
        handle: u32,
        flags: u32,
        fence: u32,
        padding: u32,
    }

    #[repr(C)]
    struct Signal {
        fence: u32,
        flags: u32,
    }

    const fn number(read: bool, code: u32, size: usize) -> libc::Ioctl {
        ((if read { 3_u64 } else { 1 }) << 30 | (size as u64) << 16 | (b'd' as u64) << 8 | code as u64)
            as libc::Ioctl
    }

    fn call<T>(card: &File, number: libc::Ioctl, value: &mut T) -> std::io::Result<()> {
        // SAFETY: the structure belongs to this ioctl number, and its pointers are valid for their
        // lengths.
        match unsafe { libc::ioctl(card.as_raw_fd(), number, std::ptr::from_mut(value)) } {
            0 => Ok(()),
            _ => Err(std::io::Error::last_os_error()),
        }
    }

    /// `struct drm_version`.
    #[repr(C)]
    struct Version {
        numbers: [i32; 3],
        /// Capacity and address of the buffers for the name, the date and the description.
        texts: [(usize, usize); 3],
    }

    fn is_card(entry: &std::fs::DirEntry) -> bool {
        entry.file_name().to_str().is_some_and(|name| name.starts_with("card"))
    }

    fn is_vgem(card: &File) -> std::io::Result<bool> {
        let mut name = [0_u8; 16];
        let place = name.as_mut_ptr().expose_provenance();
        let mut version = Version { numbers: [0; 3], texts: [(name.len(), place), (0, 0), (0, 0)] };
        call(card, number(true, 0x00, size_of::<Version>()), &mut version)?;
        Ok(name.starts_with(b"vgem\0"))
    }

    /// A fence that simulates a device which writes a buffer until the fence is dropped.
    pub(super) struct Writes {
        card: File,
        fence: u32,
    }

    impl Writes {
        pub(super) fn to(buffer: BorrowedFd<'_>) -> std::io::Result<Self> {
            let mut last = std::io::Error::from(std::io::ErrorKind::NotFound);
            for entry in std::fs::read_dir("/dev/dri")?.flatten().filter(is_card) {
                let card = File::options().read(true).write(true).open(entry.path())?;
                if !is_vgem(&card)? {
                    continue;
                }
                let mut prime = Prime { handle: 0, flags: 0, fd: buffer.as_raw_fd() };
                let mut attach = Attach { handle: 0, flags: 1, fence: 0, padding: 0 };
                let attached =
                    call(&card, number(true, 0x2e, size_of::<Prime>()), &mut prime).and_then(|()| {
                        attach.handle = prime.handle;
                        call(&card, number(true, 0x41, size_of::<Attach>()), &mut attach)
                    });
                match attached {
                    Ok(()) => return Ok(Self { card, fence: attach.fence }),
                    Err(error) => last = error,
                }
            }
            Err(last)
        }
    }

    impl Drop for Writes {
        fn drop(&mut self) {
            let mut signal = Signal { fence: self.fence, flags: 0 };
            call(&self.card, number(false, 0x42, size_of::<Signal>()), &mut signal).unwrap();
        }
    }
}

/// Copies are bracketed by `DMA_BUF_IOCTL_SYNC`, so that they wait for a device that writes the
/// buffer.
#[test]
fn copies_wait_for_device_fences() {
    use std::sync::atomic::{AtomicU32, Ordering};

    for source in machine::dma_buf_sources("copies_wait_for_device_fences") {
        let provider = machine::dma_buf_provider(source).unwrap().build().unwrap();
        let pool = umf::Pool::builder().provider(provider).build().unwrap();
        let block = pool.allocate(5000).unwrap();
        block.write(0, b"before").unwrap();
        let mapping = umf::open(&block.handle().unwrap()).unwrap();
        let number = block.handle().unwrap().data_fd().unwrap();
        // SAFETY: the provider keeps this fd open while the block is live.
        let buffer = unsafe { std::os::fd::BorrowedFd::borrow_raw(number) };
        let device = match device::Writes::to(buffer) {
            Ok(device) => device,
            Err(error) => {
                machine::skip(
                    "copies_wait_for_device_fences",
                    &format!("no fence of vgem on {source}: {error}"),
                );
                continue;
            }
        };
        let done = AtomicU32::new(0);
        let copies: [&(dyn Fn() + Sync); 5] = [
            &|| block.read(0, &mut [0; 6]).unwrap(),
            &|| block.write(100, b"more").unwrap(),
            &|| mapping.read(0, &mut [0; 6]).unwrap(),
            &|| mapping.write(200, b"more").unwrap(),
            &|| assert_eq!(mapping.with(|memory| memory.len()).unwrap(), mapping.len()),
        ];
        std::thread::scope(|scope| {
            let done = &done;
            for copy in copies {
                scope.spawn(move || {
                    copy();
                    done.fetch_add(1, Ordering::SeqCst);
                });
            }
            std::thread::sleep(std::time::Duration::from_millis(100));
            assert_eq!(done.load(Ordering::SeqCst), 0, "{source}: a copy did not wait for the fence");
            drop(device);
        });
        assert_eq!(done.into_inner(), 5, "{source}");
    }
}

/// Messages from and to dma-bufs, which the kernel cannot copy between processes. The link maps
/// them and brackets its copies by sync calls, or falls back to bounce buffers.
#[test]
fn links_transfer_dma_bufs() {
    use std::time::Duration;
    const BOUND: Duration = Duration::from_secs(60);
    const SIZE: u64 = 1 << 20;
    for source in machine::dma_buf_sources("links_transfer_dma_bufs") {
        // The other engines do not depend on the source of the buffer.
        let engines: &[_] = if source == "udmabuf" { &["auto", "mapped", "bounce"] } else { &["auto"] };
        for &engine in engines {
            let spawn = || {
                let mut actor = spawn!().env("UMF_LINK_ENGINE", engine).start();
                actor.ok(&format!("pool p dma-buf {source}"));
                actor.ok(&format!("alloc p {SIZE} -> p.b"));
                actor
            };
            let (mut one, mut other) = (spawn(), spawn());
            let address = one.ok("link-bind end");
            one.send("link-accept end 30000 -> link");
            other.ok(&format!("link-connect {address} 30000 -> link"));
            one.answer(BOUND).unwrap();
            for seed in 1..4 {
                one.ok(&format!("fill p.b {seed}"));
                other.send("link-recv-block link 1 p p.b");
                one.ok("link-send-block link 1 p p.b");
                let answer = other.answer(BOUND).unwrap();
                let by = if engine == "auto" { "both" } else { engine };
                assert_eq!(answer, format!("{SIZE} {by}"), "{source}");
                other.check("p.b", seed);
            }
            // From private memory to a dma-buf, which the kernel cannot write for another process.
            if engine == "auto" {
                other.send("link-recv-block link 2 p p.b");
                one.ok(&format!("link-send link 2 {SIZE} 9"));
                other.answer(BOUND).unwrap();
                other.check("p.b", 9);
            }
            one.finish();
            other.finish();
        }
    }
}
