//! [`Copies`]: memory of devices is copied by the device.

use cuda_sys::CUdeviceptr;
use umf_core::{Address, Result, Transfer};

use crate::context::Current;
use crate::driver::error;
use crate::live::{self, Origin};
use crate::provider::pointer;

/// Copies CUDA memory that this process allocated or opened through umf, in a stream of its own: waits for no other work of the
/// application, and for what it does itself.
#[derive(Debug)]
pub(crate) struct Copies(&'static [Origin]);

impl Copies {
    const BOTH: &'static [Origin] = &[Origin::Allocated, Origin::Imported];
    pub(crate) const OF_ALL: Self = Self(Self::BOTH);
    pub(crate) const OF_IMPORTS: Self = Self(&[Origin::Imported]);
}

fn place(memory: *const u8) -> CUdeviceptr {
    memory.expose_provenance() as u64
}

/// Copies between any two places, and waits until it is done.
fn copy(current: &Current<'_>, to: CUdeviceptr, from: CUdeviceptr, size: usize) -> Result<()> {
    let stream = current.stream()?;
    // SAFETY: by the contract of `Transfer` both ranges are there until this returns.
    unsafe {
        current.api().cuMemcpyAsync(to, from, size, stream).map_err(error)?;
        current.api().cuStreamSynchronize(stream).map_err(error)
    }
}

impl Transfer for Copies {
    unsafe fn read(&self, from: Address, into: &mut [u8]) -> Result<()> {
        if into.is_empty() {
            return Ok(());
        }
        let context = live::find(self.0, from, into.len())?;
        copy(&context.enter()?, place(into.as_mut_ptr()), pointer(from), into.len())
    }

    unsafe fn write(&self, to: Address, bytes: &[u8]) -> Result<()> {
        if bytes.is_empty() {
            return Ok(());
        }
        let context = live::find(self.0, to, bytes.len())?;
        copy(&context.enter()?, pointer(to), place(bytes.as_ptr()), bytes.len())
    }

    unsafe fn fill(&self, to: Address, size: usize, byte: u8) -> Result<()> {
        if size == 0 {
            return Ok(());
        }
        let context = live::find(self.0, to, size)?;
        let current = context.enter()?;
        let stream = current.stream()?;
        // SAFETY: by the contract of `Transfer` the range is there until this returns.
        unsafe {
            current.api().cuMemsetD8Async(pointer(to), byte, size, stream).map_err(error)?;
            current.api().cuStreamSynchronize(stream).map_err(error)
        }
    }

    unsafe fn copy(&self, from: Address, to: Address, size: usize) -> Result<()> {
        if size == 0 {
            return Ok(());
        }
        live::find(Self::BOTH, from, size)?;
        let context = live::find(Self::BOTH, to, size)?;
        copy(&context.enter()?, pointer(to), pointer(from), size)
    }
}
