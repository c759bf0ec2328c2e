//! Handles: exporting, encoding, opening and closing; frees of exported blocks.

use std::ffi::OsStr;
use std::hint::black_box;
use std::os::fd::BorrowedFd;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use rustix::process::{Pid, PidfdFlags, PidfdGetfdFlags};
use umf::dma_buf::{DmaBufImport, Udmabuf};
use umf::host::HostImport;
use umf::ipc::ImporterSettings;
use umf::{Access, Address, Block, Exchange, Exporter, Handle, Importer, Mode, Pool, ProviderKind};
use umf_benches::allocators::Allocator;
use umf_benches::bench::{self, Bench, Figures};
use umf_benches::libumf::{Libumf, PEER, Settings, Visibility};
use umf_benches::measure::{Measured, batches, nanoseconds, singly, threads};
use umf_benches::process::{self, Memory, Producer};
use umf_benches::{Error, Result};
use umf_core::{HostAccess, Import, ImportRequest, Imported};

/// Bytes of a block, and of an isolated region.
const SIZE: usize = 64 << 10;
/// Handles that are used in turn: few, so that all opens are cache hits.
const SET: usize = 8;
/// Passes over a set in a batch of hits.
const PASSES: usize = 128;

type Bytes = [u8; umf::ipc::HANDLE_SIZE];

fn main() -> ExitCode {
    bench::main(measure, process::produce)
}

fn measure(bench: &mut Bench) -> Result<()> {
    let settings = Settings::pooling(Visibility::Shared);
    let peer = bench.peer_umf.as_ref().map(|path| Libumf::open(path, settings)).transpose()?;
    let mut producer = Producer::start()?;
    exporting(bench, peer.as_ref())?;
    encoding(bench)?;
    cached_opens(bench, &mut producer, peer.as_ref())?;
    cold_opens(bench, &mut producer)?;
    frees(bench)?;
    host_access(bench, &mut producer)
}

/// Runs `each` on every element of a set, repeatedly.
fn hits<T>(time: Duration, set: &[T], each: impl Fn(&T) -> Result<()>) -> Result<Vec<f64>> {
    batches(time, PASSES * set.len(), || {
        for _ in 0..PASSES {
            set.iter().try_for_each(&each)?;
        }
        Ok(())
    })
}

fn exporting(bench: &mut Bench, peer: Option<&Libumf>) -> Result<()> {
    let pool = Pool::shared()?;
    let exporter = Exporter::new(umf::ipc::ExporterSettings::default())?;
    let allocate = || (0..SET).map(|_| Ok(pool.allocate(SIZE)?)).collect::<Result<Vec<Block<'_>>>>();
    bench.row("ipc.get_put_cached", |bench| {
        let blocks = allocate()?;
        let addresses: Vec<Address> = blocks.iter().map(Block::address).collect();
        let ours = hits(bench.time, &addresses, |address| {
            // SAFETY: no reference points into the blocks.
            drop(black_box(unsafe { exporter.get(black_box(*address)) }?));
            Ok(())
        })?;
        let figures = Figures::from(Measured::of(ours)?);
        let Some(peer) = peer else { return Ok(figures) };
        let blocks = (0..SET).map(|_| Ok(peer.allocate(SIZE)?)).collect::<Result<Vec<_>>>()?;
        let theirs = hits(bench.time, &blocks, |block| Ok(peer.get_and_put(*block)?))?;
        Ok(figures.beside(PEER, Measured::of(theirs)?))
    })?;
    // Allocation, free and reclaim are not timed.
    bench.row("ipc.send_handle", |bench| {
        Measured::of(singly(bench.time, || {
            let blocks = allocate()?;
            let (time, sent) = nanoseconds(|| blocks.iter().map(Block::send_handle).collect::<Vec<_>>());
            for handle in sent {
                umf::cancel_handle(&handle?)?;
            }
            Ok(time / SET as f64)
        })?)
    })?;
    bench.row("ipc.open_sent", |bench| {
        Measured::of(singly(bench.time, || {
            let blocks = allocate()?;
            let sent = blocks.iter().map(Block::send_handle).collect::<umf::Result<Vec<_>>>()?;
            drop(blocks);
            let (time, opened) = nanoseconds(|| sent.iter().map(umf::open).collect::<umf::Result<Vec<_>>>());
            drop(opened?);
            umf::drain(Duration::from_secs(1));
            Ok(time / SET as f64)
        })?)
    })?;
    // The blocks' regions are exported already. Freeing the blocks is not timed.
    bench.row("ipc.export_cold", |bench| {
        Measured::of(singly(bench.time, || {
            let blocks = allocate()?;
            let (time, exported) = nanoseconds(|| {
                // SAFETY: as above.
                blocks.iter().try_for_each(|block| unsafe { exporter.get(block.address()) }.map(drop))
            });
            exported?;
            Ok(time / SET as f64)
        })?)
    })
}

fn encoding(bench: &mut Bench) -> Result<()> {
    let pool = Pool::shared()?;
    let block = pool.allocate(SIZE)?;
    let handle = block.handle()?;
    let (bytes, text) = (handle.to_bytes(), handle.to_string());
    let mut row = |name: &str, run: &dyn Fn() -> Result<()>| {
        bench.row(name, |bench| Measured::of(hits(bench.time, &[(); SET], |()| run())?))
    };
    row("ipc.encode_text", &|| {
        black_box(black_box(&handle).to_string());
        Ok(())
    })?;
    row("ipc.decode_text", &|| {
        black_box(black_box(&text).parse::<Handle>()?);
        Ok(())
    })?;
    row("ipc.decode", &|| {
        black_box(Handle::from_bytes(black_box(&bytes))?);
        Ok(())
    })
}

fn importer(import: impl Import + 'static, limit: u64) -> Result<Importer> {
    Ok(Importer::builder().import(Arc::new(import)).max_opened_handles(limit).build()?)
}

/// Measures opens and closes of cached handles, in one or several threads.
fn cached_opens(bench: &mut Bench, producer: &mut Producer, peer: Option<&Libumf>) -> Result<()> {
    let bytes = |handles: Vec<Handle>| handles.iter().map(Handle::to_bytes).collect::<Vec<Bytes>>();
    let isolated = bytes(producer.handles(Memory::Isolated, 2 * SET, SIZE)?);
    let (one, other) = isolated.split_at(SET);
    let same = bytes(producer.handles(Memory::Pooled, SET, SIZE / 64)?);
    let foreign = match peer {
        Some(peer) => {
            let memory = Memory::Libumf(peer.path.clone(), Settings::pooling(Visibility::Shared));
            producer.bytes(memory, 2 * SET, SIZE)?
        }
        None => Vec::new(),
    };
    let (foreign_one, foreign_other) = foreign.split_at(foreign.len() / 2);
    for (name, ours, theirs) in [
        ("ipc.open_close_cached.1t", vec![one], vec![foreign_one]),
        ("ipc.open_close_cached.2t", vec![one, other], vec![foreign_one, foreign_other]),
        ("ipc.open_close_cached.same_region.2t", vec![&*same, &same], vec![foreign_one; 2]),
    ] {
        bench.row(name, |bench| {
            let importer = importer(HostImport::new(), 0)?;
            let ours = threads(ours.len(), |number| {
                hits(bench.time, ours[number], |bytes| {
                    drop(black_box(importer.open_bytes(black_box(bytes), Access::ReadWrite)?));
                    Ok(())
                })
            });
            let figures = Figures::from(Measured::of(ours.concat())?);
            let Some(peer) = peer else { return Ok(figures) };
            let theirs = threads(theirs.len(), |number| {
                hits(bench.time, theirs[number], |handle| Ok(peer.open_and_close(handle)?))
            });
            Ok(figures.beside(PEER, Measured::of(theirs.concat())?))
        })?;
    }
    Ok(())
}

fn cold_opens(bench: &mut Bench, producer: &mut Producer) -> Result<()> {
    /// Regions that are opened in turn, with a cache of one entry.
    const REGIONS: usize = 64;
    /// Regions of an arena, each opened once.
    const ARENA: usize = 8192;
    let handles = producer.handles(Memory::Isolated, REGIONS, SIZE)?;
    let pid = producer.pid();
    bench.row("ipc.open_cold", |bench| {
        let bare = bare_opens(bench.time, pid, &handles)?;
        let importer = importer(HostImport::new(), 1)?;
        let ours = batches(bench.time, REGIONS, || {
            handles.iter().try_for_each(|handle| importer.open(handle).map(drop)).map_err(Error::from)
        })?;
        Ok(Figures::from(Measured::of(ours)?).beside("bare system calls", bare))
    })?;
    bench.row("ipc.first_contact", |bench| {
        Measured::of(singly(bench.time, || {
            let importer = importer(HostImport::new(), 0)?;
            let (time, mapping) = nanoseconds(|| importer.open(&handles[0]).map(drop));
            mapping?;
            Ok(time)
        })?)
    })?;
    first_contact_in_directory(bench)?;
    let arena = producer.handles(Memory::Arena, ARENA, 4096)?;
    bench.row("ipc.open_in_arena", |bench| {
        Measured::of(singly(bench.time, || {
            let importer = importer(HostImport::new(), 0)?;
            drop(importer.open(&arena[0])?);
            let (time, opened) = nanoseconds(|| {
                arena[1..].iter().try_for_each(|handle| importer.open(black_box(handle)).map(drop))
            });
            opened?;
            Ok(time / (ARENA - 1) as f64)
        })?)
    })
}

/// Measures the first open of a handle of a producer that answers in a directory, beside one over
/// its abstract socket.
fn first_contact_in_directory(bench: &mut Bench) -> Result<()> {
    let folder = tempfile::tempdir()?;
    let directory = folder.path().as_os_str();
    let variables = [("UMF_IPC_DIR", directory), ("UMF_IPC_EXCHANGE", OsStr::new("socket,directory"))];
    let mut producer = Producer::start_with(&variables)?;
    let handle = producer.handles(Memory::Isolated, 1, SIZE)?.remove(0);
    bench.row("ipc.first_contact_directory", |bench| {
        let contact = |mode| {
            let mut settings = ImporterSettings::default();
            settings.exchange = Exchange::only(mode);
            settings.directory = Some(folder.path().to_owned());
            let importer =
                Importer::builder().settings(settings).import(Arc::new(HostImport::new())).build()?;
            let (time, mapping) = nanoseconds(|| importer.open(&handle).map(drop));
            mapping?;
            Ok(time)
        };
        // In turn, so that both see the same machine.
        let mut theirs = Vec::new();
        let ours = singly(bench.time, || {
            theirs.push(contact(Mode::Socket)?);
            contact(Mode::Directory)
        })?;
        Ok(Figures::from(Measured::of(ours)?).beside("abstract socket", Measured::of(theirs)?))
    })
}

/// Measures `pidfd_getfd`, `mmap`, `munmap` and `close` alone, with an open pidfd.
fn bare_opens(time: Duration, pid: u32, handles: &[Handle]) -> Result<Measured> {
    use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};

    let pid = Pid::from_raw(pid.cast_signed()).ok_or("no process id")?;
    let pidfd = rustix::process::pidfd_open(pid, PidfdFlags::empty())?;
    Measured::of(batches(time, handles.len(), || {
        for handle in handles {
            let number = handle.data_fd().ok_or("a handle without a descriptor")?;
            let fd = rustix::process::pidfd_getfd(&pidfd, number, PidfdGetfdFlags::empty())?;
            let both = ProtFlags::READ | ProtFlags::WRITE;
            // SAFETY: a new mapping at an address that the kernel chooses, unmapped at once.
            unsafe { munmap(mmap(std::ptr::null_mut(), SIZE, both, MapFlags::SHARED, &fd, 0)?, SIZE)? };
        }
        Ok(())
    })?)
}

/// Measures frees of blocks that were never exported, exported, or opened and closed.
fn frees(bench: &mut Bench) -> Result<()> {
    const BLOCKS: usize = 256;
    let pool = Pool::shared()?;
    let importer = importer(HostImport::new(), 0)?;
    let mut free = |name: &str, prepare: &dyn Fn(&Block<'_>) -> Result<()>| {
        bench.row(name, |bench| {
            Measured::of(singly(bench.time, || {
                let blocks = (0..BLOCKS).map(|_| Ok(pool.allocate(4096)?)).collect::<Result<Vec<_>>>()?;
                blocks.iter().try_for_each(prepare)?;
                let (time, ()) = nanoseconds(|| drop(black_box(blocks)));
                Ok(time / BLOCKS as f64)
            })?)
        })
    };
    free("ipc.free.never_exported", &|_| Ok(()))?;
    free("ipc.free.exported", &|block| Ok(block.handle().map(drop)?))?;
    free("ipc.free.opened_and_closed", &|block| Ok(importer.open(&block.handle()?).map(drop)?))
}

/// An importer of host memory with `HostAccess` callbacks that do nothing, which leaves the work of
/// umf around them.
struct Bracketed(HostImport);

impl HostAccess for Bracketed {
    fn begin(&self, base: Address, _: usize, _: Access) -> umf_core::Result<()> {
        black_box(base);
        Ok(())
    }

    fn end(&self, base: Address, _: usize, _: Access) -> umf_core::Result<()> {
        black_box(base);
        Ok(())
    }
}

// SAFETY: all calls are forwarded to the host importer.
unsafe impl Import for Bracketed {
    fn kind(&self) -> ProviderKind {
        self.0.kind()
    }

    fn import(&self, request: ImportRequest) -> umf_core::Result<Imported> {
        self.0.import(request)
    }

    fn window(&self) -> Option<u64> {
        self.0.window()
    }

    fn window_file(&self, fd: BorrowedFd<'_>) -> Option<u64> {
        self.0.window_file(fd)
    }

    fn host_access(&self) -> Option<&dyn HostAccess> {
        Some(self)
    }

    unsafe fn release(&self, imported: Imported) -> umf_core::Result<()> {
        // SAFETY: the caller upholds the same contract.
        unsafe { self.0.release(imported) }
    }
}

/// Measures cached opens of memory whose importer brackets CPU accesses, beside host memory.
fn host_access(bench: &mut Bench, producer: &mut Producer) -> Result<()> {
    let handles = producer.handles(Memory::Isolated, SET, SIZE)?;
    let host = importer(HostImport::new(), 0)?;
    let opens = |time, importer: &Importer, handles: &[Handle], is_read: bool| {
        let open = |handle: &Handle| {
            let mapping = importer.open(black_box(handle))?;
            if is_read {
                mapping.read(0, black_box(&mut [0; 64]))?;
            }
            drop(black_box(mapping));
            Ok(())
        };
        Measured::of(hits(time, handles, open)?)
    };
    let mut rows = |kind: &str, importer: &Importer, kinds: &[Handle]| {
        for (row, is_read) in [("open_close", false), ("read_64", true)] {
            bench.row(&format!("ipc.access.{kind}.{row}"), |bench| {
                let ours = Figures::from(opens(bench.time, importer, kinds, is_read)?);
                Ok(ours.beside("host memory", opens(bench.time, &host, &handles, is_read)?))
            })?;
        }
        Ok::<(), Error>(())
    };
    rows("heard", &importer(Bracketed(HostImport::new()), 0)?, &handles)?;
    if let Err(error) = Udmabuf::open() {
        eprintln!("no rows ipc.access.dma_buf: {error}");
        return Ok(());
    }
    let buffers = producer.handles(Memory::DmaBuf, SET, SIZE)?;
    rows("dma_buf", &importer(DmaBufImport::new(), 0)?, &buffers)
}
