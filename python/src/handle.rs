//! `umf.Handle`, `umf.Mapping` and `umf.open`.

use std::alloc::{Layout, alloc_zeroed, dealloc};
use std::ffi::c_int;
use std::num::NonZeroU16;
use std::ptr::NonNull;

use pyo3::ffi;
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyType};

use crate::device::no_buffer;
use crate::errors::{Error, NotSupportedError, argument, from_umf};
use crate::fork::{self, Forks, KeepForChildren};
use crate::memory::{Export, Memory, Range};
use crate::remote::{self, Named};
use crate::transit;

/// The name of a block in every process of the machine: 256 plain bytes.
#[pyclass(module = "umf", frozen, eq, hash, skip_from_py_object)]
#[derive(Clone, PartialEq, Eq, Hash)]
pub(crate) struct Handle(pub(crate) umf::Handle);

pub(crate) fn decode(source: &Bound<'_, PyAny>) -> PyResult<umf::Handle> {
    if let Ok(handle) = source.cast::<Handle>() {
        return Ok(handle.get().0);
    }
    let decoded = if let Ok(text) = source.extract::<&str>() {
        text.parse()
    } else {
        umf::Handle::from_bytes(source.extract::<&[u8]>()?)
    };
    decoded.map_err(|error| from_umf(umf::ipc::Error::from(error).into()))
}

#[pymethods]
impl Handle {
    /// Decodes the 256 bytes or the text of a handle.
    #[new]
    fn new(source: &Bound<'_, PyAny>) -> PyResult<Self> {
        Ok(Self(decode(source)?))
    }

    /// The process id of the producer.
    #[getter]
    fn pid(&self) -> u32 {
        self.0.pid()
    }

    /// The size of the block in bytes.
    #[getter]
    fn size(&self) -> u64 {
        self.0.requested()
    }

    /// Whether the handle is for a message: see `Block.send_handle`.
    #[getter]
    fn has_ticket(&self) -> bool {
        self.0.has_ticket()
    }

    /// Returns the plain handle of the memory: without a ticket. It is stale once the memory is
    /// freed.
    fn plain(&self) -> Self {
        Self(self.0.plain())
    }

    fn __bytes__<'py>(&self, python: Python<'py>) -> Bound<'py, PyBytes> {
        PyBytes::new(python, self.0.as_bytes())
    }

    fn __str__(&self) -> String {
        self.0.to_string()
    }

    fn __repr__(&self) -> String {
        let sent = if self.0.has_ticket() { ", sent" } else { "" };
        format!("<umf.Handle of {} bytes of process {}{sent}>", self.0.requested(), self.0.pid())
    }

    /// Pickles the bytes.
    fn __reduce__<'py>(&self, python: Python<'py>) -> (Bound<'py, PyType>, (Bound<'py, PyBytes>,)) {
        (python.get_type::<Self>(), (self.__bytes__(python),))
    }
}

/// Memory of another process, open in this one. It has the buffer protocol.
///
/// The memory is not reused before the object and all of its buffers are gone, or `close()` was
/// called and all of its buffers are gone.
#[pyclass(module = "umf", frozen, weakref)]
pub(crate) struct Mapping {
    pub(crate) memory: Memory<Contents>,
    pub(crate) handle: umf::Handle,
    size: usize,
    claimed: bool,
    mode: Mode,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Mode {
    Shared,
    ReadOnly,
    Private,
}

impl Mode {
    /// Returns the mode that the arguments of `open` name.
    fn of(mode: Option<&str>, readonly: bool) -> PyResult<Self> {
        match (mode, readonly) {
            (None | Some("shared"), false) => Ok(Self::Shared),
            (None, true) | (Some("readonly"), _) => Ok(Self::ReadOnly),
            (Some("private"), false) => Ok(Self::Private),
            (Some("shared" | "private"), true) => {
                Err(argument("cannot open a handle: readonly=True contradicts the mode; pass one of them"))
            }
            _ => Err(argument(
                "cannot open a handle: the mode is unknown; pass \"shared\", \"readonly\" or \"private\"",
            )),
        }
    }
}

/// What a mapping consists of.
pub(crate) enum Contents {
    Open(umf::Mapping<'static>),
    Copy(PrivateCopy),
}

impl Contents {
    /// Returns the open block.
    pub(crate) fn open(&self) -> PyResult<&umf::Mapping<'static>> {
        match self {
            Self::Open(mapping) => Ok(mapping),
            Self::Copy(_) => Err(Error::new_err(
                "the mapping is a private copy, which is not connected with its producer; open the handle with \
                 mode=\"shared\" or \"readonly\"",
            )),
        }
    }
}

impl Contents {
    /// Returns the memory, if the CPU can access it.
    fn range(&self) -> PyResult<Range> {
        match self {
            Self::Open(mapping) => {
                let view = mapping.read_view::<u8>().map_err(|error| no_buffer(error.into()))?;
                let start = view.as_ptr().expose_provenance();
                Ok(Range { start, length: view.len(), is_read_only: mapping.is_read_only() })
            }
            Self::Copy(copy) => {
                let start = copy.start().expose_provenance();
                Ok(Range { start, length: copy.length, is_read_only: false })
            }
        }
    }
}

impl KeepForChildren for Contents {
    fn keep(self, forks: Forks) {
        match self {
            Self::Open(mapping) => fork::keep_value(forks, mapping.len() as u64, mapping),
            // Each child has a copy of its own.
            Self::Copy(copy) => drop(copy),
        }
    }
}

/// A copy of a block in memory of this process.
///
/// A copy, and not a `MAP_PRIVATE` mapping of the producer's pages: those would show later writes
/// of the producer in each page that this process has not written, and keep the producer's memory
/// for as long.
pub(crate) struct PrivateCopy {
    allocation: NonNull<u8>,
    layout: Layout,
    pub(crate) length: usize,
}

/// Size of a copy from which the available memory is checked before its pages are touched.
pub(crate) const CHECKED_COPY: usize = 1 << 20;
/// Alignment of the first byte of a copy: a cache line, as blocks have.
const COPY_ALIGN: usize = 64;

// SAFETY: it owns its memory.
unsafe impl Send for PrivateCopy {}
// SAFETY: shared references give out the address only.
unsafe impl Sync for PrivateCopy {}

impl PrivateCopy {
    /// Copies a block. The device copies if the CPU cannot access the memory.
    fn of(mapping: &umf::Mapping<'static>) -> umf::Result<Self> {
        let mut copy = Self::zeroed(mapping.len())?;
        mapping.read(0, copy.bytes())?;
        Ok(copy)
    }

    /// Makes a copy of zeros, for the bytes of a block.
    fn zeroed(length: usize) -> umf::Result<Self> {
        let out_of_memory =
            || umf::MemoryError::OutOfMemory { size: length, owner: "a private copy", native: 0 };
        // Larger alignments are zeroed by hand, which would touch each page once more.
        let layout = length.checked_add(COPY_ALIGN).and_then(|size| Layout::from_size_align(size, 16).ok());
        let layout = layout.ok_or_else(out_of_memory)?;
        if length >= CHECKED_COPY {
            umf_os::AvailableMemory::find().check(length, "a private copy")?;
        }
        // SAFETY: the size is not 0.
        let allocation = NonNull::new(unsafe { alloc_zeroed(layout) }).ok_or_else(out_of_memory)?;
        Ok(Self { allocation, layout, length })
    }

    /// Returns the bytes, for filling them.
    fn bytes(&mut self) -> &mut [u8] {
        // SAFETY: the range is initialised memory of the allocation. Only `Self` has its address
        // while it is borrowed.
        unsafe { std::slice::from_raw_parts_mut(self.start(), self.length) }
    }

    /// Copies bytes out of the copy.
    pub(crate) fn read(&self, offset: usize, into: &mut [u8]) -> umf::Result<()> {
        let from = self.at(offset, into.len())?;
        // SAFETY: `at` has checked the range. Other threads may write it meanwhile, as with shared
        // memory.
        unsafe { std::ptr::copy(from, into.as_mut_ptr(), into.len()) };
        Ok(())
    }

    /// Copies bytes into the copy.
    pub(crate) fn write(&self, offset: usize, from: &[u8]) -> umf::Result<()> {
        let to = self.at(offset, from.len())?;
        // SAFETY: as in `read`.
        unsafe { std::ptr::copy(from.as_ptr(), to, from.len()) };
        Ok(())
    }

    /// Returns the address of `length` bytes at `offset`.
    fn at(&self, offset: usize, length: usize) -> umf::Result<*mut u8> {
        let is_inside = offset.checked_add(length).is_some_and(|end| end <= self.length);
        let error = umf::ipc::Error::OutOfBounds { offset, length, size: self.length };
        if is_inside { Ok(self.start().wrapping_add(offset)) } else { Err(error.into()) }
    }

    pub(crate) fn start(&self) -> *mut u8 {
        let allocation = self.allocation.as_ptr();
        allocation.map_addr(|address| address.next_multiple_of(COPY_ALIGN))
    }
}

impl Drop for PrivateCopy {
    fn drop(&mut self) {
        // SAFETY: allocated with this layout, and freed only here.
        unsafe { dealloc(self.allocation.as_ptr(), self.layout) };
    }
}

#[pymethods]
impl Mapping {
    fn __len__(&self) -> usize {
        self.size
    }

    /// The address of the first byte in this process.
    #[getter]
    fn address(&self) -> PyResult<u64> {
        self.memory.with(|contents| match contents {
            Contents::Open(mapping) => Ok(mapping.address().value()),
            Contents::Copy(copy) => Ok(copy.start().addr() as u64),
        })
    }

    /// The handle that it was opened with.
    #[getter]
    fn handle(&self) -> Handle {
        Handle(self.handle)
    }

    /// Whether writing is refused.
    #[getter]
    fn readonly(&self) -> PyResult<bool> {
        self.memory.with(|contents| match contents {
            Contents::Open(mapping) => Ok(mapping.is_read_only()),
            Contents::Copy(_) => Ok(false),
        })
    }

    /// How it was opened: "shared", "readonly" or "private".
    #[getter]
    fn mode(&self) -> &'static str {
        match self.mode {
            Mode::Shared => "shared",
            Mode::ReadOnly => "readonly",
            Mode::Private => "private",
        }
    }

    /// Whether the producer has not freed the block since.
    #[getter]
    fn is_current(&self) -> PyResult<bool> {
        self.memory.with(|contents| Ok(contents.open()?.is_current()))
    }

    /// Whether this open has claimed a message: it is one of the readers that the sender has
    /// counted.
    #[getter]
    fn claimed(&self) -> bool {
        self.claimed
    }

    /// Passes the memory on: returns a handle for a message that `readers` processes open. If too
    /// much is in transit, waits for readers for at most `timeout` seconds.
    #[pyo3(signature = (readers = NonZeroU16::MIN, *, timeout = 0.0))]
    fn send_handle(&self, python: Python<'_>, readers: NonZeroU16, timeout: f64) -> PyResult<Handle> {
        transit::send(python, timeout, || {
            self.memory.with_own(|contents| {
                Ok(contents.open()?.send_handle(&self.handle, readers).map_err(Into::into))
            })
        })
    }

    /// Closes the mapping, once no buffer of it is in use. Does nothing the second time.
    fn close(&self, python: Python<'_>) {
        python.detach(|| self.memory.close());
    }

    /// Whether `close` was called.
    #[getter]
    fn closed(&self) -> bool {
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
        self.close(python);
    }

    /// Returns an object with the buffer protocol that keeps the memory, for consumers that keep no
    /// buffer.
    fn _export(this: Bound<'_, Self>) -> PyResult<Bound<'_, Export>> {
        this.get().memory.export(this.as_any(), Contents::range)
    }

    /// # Safety
    /// Python passes a view that is valid for a write.
    unsafe fn __getbuffer__(this: Bound<'_, Self>, view: *mut ffi::Py_buffer, flags: c_int) -> PyResult<()> {
        // SAFETY: Python's view.
        unsafe { this.get().memory.fill_buffer(this.as_any(), view, flags, Contents::range) }
    }

    /// Does nothing: the buffer's `Export` keeps the memory. numpy looks for it: without it,
    /// `numpy.frombuffer` would keep this object only, and no buffer.
    ///
    /// # Safety
    /// None.
    #[expect(clippy::unused_self, reason = "a slot of the buffer protocol")]
    unsafe fn __releasebuffer__(&self, _view: *mut ffi::Py_buffer) {}

    fn __repr__(&self) -> String {
        let state = if self.memory.is_closed() { ", closed" } else { "" };
        let (size, mode, pid) = (self.size, self.mode(), self.handle.pid());
        format!("<umf.Mapping of {size} bytes of process {pid}, {mode}{state}>")
    }
}

/// Opens a handle: a `Handle` or `RemoteHandle`, its bytes, or its text.
///
/// The mode is "shared" (reading and writing), "readonly" (writing is refused; the same as
/// `readonly=True`), or "private": a copy that belongs to this process. A private copy can be
/// written even if the handle is read-only. The producer does not see its writes, it does not see
/// later writes of the producer, and it keeps no memory of the producer.
///
/// Memory of another machine can only be copied: "private" is the default for it.
#[pyfunction]
#[pyo3(signature = (handle, *, readonly = false, mode = None))]
pub(crate) fn open<'py>(
    python: Python<'py>,
    handle: &Bound<'py, PyAny>,
    readonly: bool,
    mode: Option<&str>,
) -> PyResult<Bound<'py, Mapping>> {
    let is_default = mode.is_none() && !readonly;
    let mode = Mode::of(mode, readonly)?;
    let handle = match Named::decode(handle)? {
        Named::Here(handle) => handle,
        Named::There(_) if mode != Mode::Private && !is_default => {
            return Err(NotSupportedError::new_err(
                "cannot map memory of another machine: it can only be copied; pass mode=\"private\", or use umf.fetch",
            ));
        }
        Named::There(handle) => return open_copy(python, &handle),
    };
    let opened = |mapping: umf::Mapping<'static>| {
        let claimed = mapping.has_claimed_ticket();
        (Contents::Open(mapping), claimed)
    };
    let opened = python.detach(|| match mode {
        Mode::Shared => umf::open(&handle).map(opened),
        Mode::ReadOnly => umf::open_read_only(&handle).map(opened),
        Mode::Private => {
            let mapping = umf::open_read_only(&handle)?;
            PrivateCopy::of(&mapping).map(|copy| (Contents::Copy(copy), mapping.has_claimed_ticket()))
        }
    });
    let (contents, claimed) = opened.map_err(from_umf)?;
    new_mapping(python, contents, handle, claimed, mode)
}

/// Copies a block of another machine.
fn open_copy<'py>(python: Python<'py>, handle: &umf::remote::RemoteHandle) -> PyResult<Bound<'py, Mapping>> {
    let opened = python.detach(|| {
        let remote = remote::open(handle)?;
        PrivateCopy::zeroed(remote.len()).map(|copy| (remote, copy))
    });
    let (remote, mut copy) = opened.map_err(from_umf)?;
    remote::copy_all(python, remote, copy.bytes())?;
    new_mapping(python, Contents::Copy(copy), *handle.handle(), false, Mode::Private)
}

fn new_mapping(
    python: Python<'_>,
    contents: Contents,
    handle: umf::Handle,
    claimed: bool,
    mode: Mode,
) -> PyResult<Bound<'_, Mapping>> {
    // No handle names a private copy.
    let (size, address) = match &contents {
        Contents::Open(mapping) => (mapping.len(), Some(mapping.address().value())),
        Contents::Copy(copy) => (copy.length, None),
    };
    let mapping = Mapping { memory: Memory::new(contents, address), handle, size, claimed, mode };
    let mapping = Bound::new(python, mapping)?;
    mapping.get().memory.register(mapping.as_any(), size)?;
    Ok(mapping)
}
