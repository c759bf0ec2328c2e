//! `umf.Pool` and `umf.Block`.

use std::ffi::c_int;
use std::num::NonZeroU16;
use std::time::{Duration, Instant};

use pyo3::ffi;
use pyo3::prelude::*;
use pyo3::types::PyDict;
use umf::OwnedBlock;

use crate::device::no_buffer;
use crate::errors::{ForkError, argument, from_umf};
use crate::fork::release_kept;
use crate::handle::Handle;
use crate::memory::{Export, Memory, Range};
use crate::remote::{RemoteHandle, remote_handle};
use crate::transit::{self, duration};

/// The largest size that is allocated with the GIL.
const SHORT: usize = 1 << 20;

/// A pool of memory. Blocks of a shared pool can be opened by other processes.
///
/// A pool belongs to the process that made it: a forked child makes one of its own.
#[pyclass(module = "umf", frozen, weakref)]
pub(crate) struct Pool {
    inner: umf::Pool,
    pid: u32,
    /// The process that made it, as forks count.
    generation: u32,
}

impl Pool {
    pub(crate) fn new(pool: umf::Result<umf::Pool>) -> PyResult<Self> {
        let generation = umf_sync::fork::generation();
        Ok(Self { inner: pool.map_err(from_umf)?, pid: std::process::id(), generation })
    }

    /// Returns the pool in the process that made it.
    pub(crate) fn get(&self) -> PyResult<&umf::Pool> {
        if self.generation == umf_sync::fork::generation() {
            return Ok(&self.inner);
        }
        Err(ForkError::new_err(format!(
            "the pool belongs to process {}, and this process was forked from it; make a pool here",
            self.pid
        )))
    }
}

#[pymethods]
impl Pool {
    /// A pool of shared memory.
    #[staticmethod]
    fn shared(python: Python<'_>) -> PyResult<Self> {
        Self::new(python.detach(umf::Pool::shared))
    }

    /// A pool of private memory, which cannot be exported.
    #[staticmethod]
    fn private(python: Python<'_>) -> PyResult<Self> {
        Self::new(python.detach(umf::Pool::private))
    }

    /// A shared pool that gives each region a file of its own.
    #[staticmethod]
    fn isolated(python: Python<'_>) -> PyResult<Self> {
        Self::new(python.detach(umf::Pool::isolated))
    }

    /// The pool with this name in `umf.toml`.
    #[staticmethod]
    fn named(python: Python<'_>, name: &str) -> PyResult<Self> {
        Self::new(python.detach(|| umf::Pool::named(name)))
    }

    /// A pool over the provider with this name in `umf.toml`.
    #[staticmethod]
    fn over(python: Python<'_>, provider: &str) -> PyResult<Self> {
        Self::new(python.detach(|| umf::Pool::over(provider)))
    }

    /// Allocates a block of `size` bytes. Its content is undefined.
    #[pyo3(signature = (size, align = 64))]
    fn allocate<'py>(&self, python: Python<'py>, size: usize, align: usize) -> PyResult<Bound<'py, Block>> {
        let pool = self.get()?;
        if size == 0 {
            return Err(argument("a block has at least one byte"));
        }
        let allocate = || pool.allocate_aligned(size, align).map(umf::Block::into_owned);
        // Populating the pages of a large block takes long.
        let block = if size > SHORT { python.detach(allocate) } else { allocate() };
        let block = block.map_err(from_umf)?;
        let address = block.address().value();
        let block = Block { memory: Memory::new(block, Some(address)), size, pid: self.pid };
        let block = Bound::new(python, block)?;
        block.get().memory.register(block.as_any(), size)?;
        Ok(block)
    }

    /// Allocates a block and returns its `_export()`.
    fn _allocate_export<'py>(&self, python: Python<'py>, size: usize) -> PyResult<Bound<'py, Export>> {
        Block::_export(self.allocate(python, size, 64)?)
    }

    /// Returns free memory to the system, down to `keep` bytes. Returns the bytes.
    #[pyo3(signature = (keep = 0))]
    fn trim(&self, python: Python<'_>, keep: usize) -> PyResult<usize> {
        let pool = self.get()?;
        python.detach(|| pool.trim(keep)).map_err(from_umf)
    }

    /// The pool's name.
    #[getter]
    fn name(&self) -> &str {
        self.inner.name()
    }

    /// Counters of the pool in bytes and blocks.
    fn stats<'py>(&self, python: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let found = self.get()?.statistics();
        let figures = PyDict::new(python);
        for (name, value) in [
            ("live_bytes", found.live_bytes),
            ("live_blocks", found.live_blocks),
            ("cached_bytes", found.cached_bytes),
            ("reserved_bytes", found.reserved_bytes),
            ("held_bytes", found.held_bytes),
            ("regions", found.regions),
        ] {
            figures.set_item(name, value)?;
        }
        Ok(figures)
    }

    fn __repr__(&self) -> String {
        format!("<umf.Pool {:?}>", self.inner.name())
    }
}

/// A block of a pool. It has the buffer protocol: `memoryview(block)`, `numpy.frombuffer(block)`.
///
/// The block is freed when the object and all of its buffers are gone, or by `free()` and when all
/// of its buffers are gone.
#[pyclass(module = "umf", frozen, weakref)]
pub(crate) struct Block {
    pub(crate) memory: Memory<OwnedBlock>,
    size: usize,
    pid: u32,
}

#[pymethods]
impl Block {
    /// The address of the first byte.
    #[getter]
    fn address(&self) -> PyResult<u64> {
        self.memory.with(|block| Ok(block.address().value()))
    }

    fn __len__(&self) -> usize {
        self.size
    }

    /// Returns the handle of the block, which other processes open. It is stale once the block is
    /// freed.
    fn handle(&self, python: Python<'_>) -> PyResult<Handle> {
        python.detach(|| self.memory.with_own(|block| Ok(Handle(block.handle().map_err(from_umf)?))))
    }

    /// Returns the handle of the block for processes of this and other machines. They can read the
    /// block while this process serves (`umf.serve`) and until the block is freed.
    fn remote_handle(&self, python: Python<'_>) -> PyResult<RemoteHandle> {
        python.detach(|| self.memory.with_own(remote_handle))
    }

    /// Returns a handle for a message that `readers` processes open: the memory is kept until they
    /// have, even if the block is freed before. If too much is in transit, waits for readers for at
    /// most `timeout` seconds.
    #[pyo3(signature = (readers = NonZeroU16::MIN, *, timeout = 0.0))]
    fn send_handle(&self, python: Python<'_>, readers: NonZeroU16, timeout: f64) -> PyResult<Handle> {
        transit::send(python, timeout, || self.memory.with_own(|block| Ok(block.send_handle_to(readers))))
    }

    /// Frees the block, once no buffer of it is in use. Does nothing the second time.
    fn free(&self, python: Python<'_>) {
        python.detach(|| self.memory.close());
    }

    /// Whether `free` was called.
    #[getter]
    fn freed(&self) -> bool {
        self.memory.is_closed()
    }

    fn __enter__(this: Bound<'_, Self>) -> Bound<'_, Self> {
        this
    }

    fn __exit__(
        &self,
        python: Python<'_>,
        _kind: &Bound<'_, PyAny>,
        _value: &Bound<'_, PyAny>,
        _trace: &Bound<'_, PyAny>,
    ) {
        self.free(python);
    }

    /// Returns an object with the buffer protocol that keeps the memory, for consumers that keep no
    /// buffer.
    fn _export(this: Bound<'_, Self>) -> PyResult<Bound<'_, Export>> {
        this.get().memory.export(this.as_any(), range)
    }

    /// # Safety
    /// Python passes a view that is valid for a write.
    unsafe fn __getbuffer__(this: Bound<'_, Self>, view: *mut ffi::Py_buffer, flags: c_int) -> PyResult<()> {
        // SAFETY: Python's view.
        unsafe { this.get().memory.fill_buffer(this.as_any(), view, flags, range) }
    }

    /// Does nothing: the buffer's `Export` keeps the memory. numpy looks for it: without it,
    /// `numpy.frombuffer` would keep this object only, and no buffer.
    ///
    /// # Safety
    /// None.
    #[expect(clippy::unused_self, reason = "a slot of the buffer protocol")]
    unsafe fn __releasebuffer__(&self, _view: *mut ffi::Py_buffer) {}

    fn __repr__(&self) -> String {
        let state = if self.memory.is_closed() { ", freed" } else { "" };
        format!("<umf.Block of {} bytes of process {}{state}>", self.size, self.pid)
    }
}

/// Returns the memory of a block, if the CPU can access it.
fn range(block: &OwnedBlock) -> PyResult<Range> {
    let view = block.view::<u8>().map_err(no_buffer)?;
    let start = view.as_mut_ptr().expose_provenance();
    Ok(Range { start, length: view.len(), is_read_only: false })
}

/// Waits until no memory is held for other processes and forked children, for at most `timeout`
/// seconds. Returns the bytes that still are.
#[pyfunction]
#[pyo3(signature = (timeout = 0.0))]
pub(crate) fn drain(python: Python<'_>, timeout: f64) -> PyResult<u64> {
    /// The longest time in which signals are not handled.
    const SLICE: Duration = Duration::from_millis(20);
    let timeout = duration(timeout)?;
    let begin = Instant::now();
    loop {
        let left = timeout.saturating_sub(begin.elapsed());
        let bytes = python.detach(|| umf::drain(left.min(SLICE)).bytes + release_kept());
        if bytes == 0 || left.is_zero() {
            return Ok(bytes);
        }
        python.check_signals()?;
        if bytes == release_kept() {
            // `umf::drain` does not wait for what is kept for children.
            python.detach(|| std::thread::sleep(left.min(SLICE)));
        }
    }
}
