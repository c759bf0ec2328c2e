//! The rows of `umf bench ipc` about memory whose driver is told when the CPU touches it.

use std::hint::black_box;
use std::os::fd::BorrowedFd;
use std::sync::Arc;

use umf::core::{HostAccess, Import, ImportRequest, Imported};
use umf::dma_buf::{DmaBufImport, Udmabuf};
use umf::host::HostImport;
use umf::{Access, Address, Handle, Importer, ProviderKind};

use super::Bench;
use super::measure::{self, Measured, told};
use super::producer::Producer;
use crate::failure::Failure;
use crate::output;

/// Handles that are used in turn, and how often in a batch.
const SET: usize = 8;
const PASSES: usize = 64;
/// Bytes of a block, and those that are read of it.
const SIZE: usize = 64 << 10;
const READ: usize = 64;

const NAME: &str = "ipc.access.";

/// Imports memory of the host as if a driver had to know what the CPU does with it, which does nothing: what is left is what umf
/// does around the driver.
struct Heard(HostImport);

impl HostAccess for Heard {
    fn begin(&self, base: Address, _: usize, _: Access) -> umf::core::Result<()> {
        black_box(base);
        Ok(())
    }

    fn end(&self, base: Address, _: usize, _: Access) -> umf::core::Result<()> {
        black_box(base);
        Ok(())
    }
}

// SAFETY: it is the importer inside.
unsafe impl Import for Heard {
    fn kind(&self) -> ProviderKind {
        self.0.kind()
    }

    fn import(&self, request: ImportRequest) -> umf::core::Result<Imported> {
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

    unsafe fn release(&self, imported: Imported) -> umf::core::Result<()> {
        // SAFETY: passed on to the caller.
        unsafe { self.0.release(imported) }
    }
}

fn importer(import: Arc<dyn Import>) -> Result<Importer, Failure> {
    Importer::builder().import(import).build().map_err(told)
}

/// Adds the rows: each beside the same with memory of the host, of which nobody is told.
pub(super) fn measure(bench: &mut Bench, producer: &mut Producer) -> Result<(), Failure> {
    let handles = producer.isolated(SET, SIZE)?;
    let host = importer(Arc::new(HostImport::new()))?;
    let heard = importer(Arc::new(Heard(HostImport::new())))?;
    rows(bench, "heard", (&heard, &handles), (&host, &handles))?;
    if let Err(error) = Udmabuf::open() {
        output::tell(&format!("no rows {NAME}dma_buf: {error}"));
        return Ok(());
    }
    let buffers = producer.dma_bufs(SET, SIZE)?;
    let dma_buf = importer(Arc::new(DmaBufImport::new()))?;
    rows(bench, "dma_buf", (&dma_buf, &buffers), (&host, &handles))
}

/// A cached open and its close, without and with a copy in between.
fn rows(
    bench: &mut Bench,
    what: &str,
    ours: (&Importer, &[Handle]),
    host: (&Importer, &[Handle]),
) -> Result<(), Failure> {
    for (row, read) in [("open_close", 0), ("read_64", READ)] {
        let name = format!("{NAME}{what}.{row}");
        if !bench.rows.are_wanted(&name) {
            continue;
        }
        bench.rows.begin(&name);
        let measured = opens(bench, ours, read)?;
        let host = opens(bench, host, read)?;
        bench.rows.add(&name, measured, Some(("host memory", host)))?;
    }
    Ok(())
}

fn opens(
    bench: &Bench,
    (importer, handles): (&Importer, &[Handle]),
    read: usize,
) -> Result<Measured, Failure> {
    let mut bytes = [0; READ];
    measure::one(bench.time, || {
        for _ in 0..PASSES {
            for handle in handles {
                let mapping = importer.open(black_box(handle))?;
                if read != 0 {
                    mapping.read(0, black_box(&mut bytes[..read]))?;
                }
                drop(black_box(mapping));
            }
        }
        Ok::<u64, umf::ipc::Error>((PASSES * handles.len()) as u64)
    })
}
