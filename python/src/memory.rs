//! [`Memory`]: the memory of a block or mapping, which outlives a call of `free` or `close` while a
//! buffer of it is in use. [`Registered`] and [`find`]: the objects by the addresses of their memory.

use std::collections::BTreeMap;
use std::ffi::{c_int, c_void};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use pyo3::exceptions::PyBufferError;
use pyo3::ffi;
use pyo3::prelude::*;
use pyo3::types::{PyWeakref, PyWeakrefMethods, PyWeakrefReference};

use crate::errors::{ClosedError, Error};

/// Memory that buffers (`memoryview`, numpy arrays) use. `T` keeps it.
///
/// A buffer keeps the Python object alive, and with it this. If the object is closed while it has
/// buffers, the memory is kept until the last of them ends. New buffers and calls are refused from
/// then on.
pub(crate) struct Memory<T> {
    state: Mutex<State<T>>,
}

struct State<T> {
    /// `None` once the memory was released. Tensors and calls in progress share it.
    keeper: Option<Arc<T>>,
    is_closed: bool,
    /// Number of buffers.
    buffers: usize,
    /// Whether consumers without buffers use the memory until the object dies.
    is_pinned: bool,
}

impl<T> State<T> {
    fn open(&self) -> PyResult<&Arc<T>> {
        self.keeper.as_ref().filter(|_| !self.is_closed).ok_or_else(|| {
            ClosedError::new_err("the memory was freed or closed; keep the object open as long as it is used")
        })
    }
}

/// Where a buffer begins, its length, and whether it may be written.
pub(crate) struct Range {
    pub(crate) start: *mut c_void,
    pub(crate) length: usize,
    pub(crate) is_read_only: bool,
}

impl<T> Memory<T> {
    pub(crate) fn new(keeper: T) -> Self {
        let (keeper, is_closed, is_pinned) = (Some(Arc::new(keeper)), false, false);
        Self { state: Mutex::new(State { keeper, is_closed, buffers: 0, is_pinned }) }
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, State<T>> {
        self.state.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
    }

    /// Calls `use_it` with the memory.
    ///
    /// # Errors
    /// `ClosedError` after [`Memory::close`].
    pub(crate) fn with<R>(&self, use_it: impl FnOnce(&T) -> PyResult<R>) -> PyResult<R> {
        let state = self.lock();
        use_it(state.open()?)
    }

    /// Returns a share of the memory: it is released once all shares are dropped, even if it is closed
    /// before. A share needs no Python object, so that any thread may drop it at any time.
    ///
    /// # Errors
    /// `ClosedError` after [`Memory::close`].
    pub(crate) fn share(&self) -> PyResult<Arc<T>> {
        Ok(Arc::clone(self.lock().open()?))
    }

    /// Keeps the memory until the Python object dies, even if it is closed before: for consumers that
    /// keep the object and no buffer.
    ///
    /// # Errors
    /// `ClosedError` after [`Memory::close`].
    pub(crate) fn pin(&self) -> PyResult<()> {
        let mut state = self.lock();
        state.open()?;
        if !std::mem::replace(&mut state.is_pinned, true) {
            state.buffers += 1;
        }
        Ok(())
    }

    /// Closes the memory as [`Memory::close`] does, and returns it if nothing else uses it.
    pub(crate) fn take(&self) -> Option<T> {
        let mut state = self.lock();
        state.is_closed = true;
        let keeper = if state.buffers == 0 { state.keeper.take() } else { None };
        drop(state);
        Arc::try_unwrap(keeper?).ok()
    }

    /// Releases the memory, or marks it for release at the end of its last buffer. Returns `false` if
    /// it was closed before.
    pub(crate) fn close(&self) -> bool {
        let mut state = self.lock();
        let was_open = !std::mem::replace(&mut state.is_closed, true);
        let keeper = if state.buffers == 0 { state.keeper.take() } else { None };
        drop(state);
        // Without the lock: it may unmap.
        drop(keeper);
        was_open
    }

    pub(crate) fn is_closed(&self) -> bool {
        self.lock().is_closed
    }

    /// Fills a buffer request of Python for `object`, which has this memory.
    ///
    /// # Safety
    /// `view` is valid for a write, or null. `range` returns memory that is readable (and writable,
    /// unless it is read-only) as long as the keeper exists.
    pub(crate) unsafe fn fill_buffer(
        &self,
        object: &Bound<'_, PyAny>,
        view: *mut ffi::Py_buffer,
        flags: c_int,
        range: impl FnOnce(&T) -> PyResult<Range>,
    ) -> PyResult<()> {
        if view.is_null() {
            return Err(PyBufferError::new_err("a buffer request without a view"));
        }
        let range = self.with(range)?;
        if range.is_read_only && flags & ffi::PyBUF_WRITABLE != 0 {
            // SAFETY: the caller guarantees a valid view.
            unsafe { (*view).obj = std::ptr::null_mut() };
            return Err(PyBufferError::new_err("the memory is read-only: open it for writing"));
        }
        let length = ffi::Py_ssize_t::try_from(range.length)
            .map_err(|_| Error::new_err("the memory is larger than a buffer can be"))?;
        let read_only = c_int::from(range.is_read_only);
        // SAFETY: the view is valid, the object lives, and the range is memory of the caller.
        let filled =
            unsafe { ffi::PyBuffer_FillInfo(view, object.as_ptr(), range.start, length, read_only, flags) };
        if filled != 0 {
            return Err(PyErr::fetch(object.py()));
        }
        self.lock().buffers += 1;
        Ok(())
    }

    /// Ends a buffer.
    pub(crate) fn release_buffer(&self) {
        let mut state = self.lock();
        state.buffers = state.buffers.saturating_sub(1);
        let keeper = if state.buffers == 0 && state.is_closed { state.keeper.take() } else { None };
        drop(state);
        drop(keeper);
    }
}

/// Objects with memory, by the address of its first byte. Several mappings can have one address.
static OBJECTS: Mutex<BTreeMap<(u64, u64), Entry>> = Mutex::new(BTreeMap::new());

struct Entry {
    length: usize,
    object: Py<PyWeakref>,
}

fn objects() -> std::sync::MutexGuard<'static, BTreeMap<(u64, u64), Entry>> {
    OBJECTS.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
}

/// The entry of an object in the table. Dropping it removes the entry.
pub(crate) struct Registered(u64, u64);

impl Registered {
    /// Returns the key of an object with memory at `address`, which [`Registered::register`] enters.
    pub(crate) fn new(address: u64) -> Self {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        Self(address, NEXT.fetch_add(1, Ordering::Relaxed))
    }

    /// Enters an object with this key and `length` bytes of memory.
    pub(crate) fn register(&self, object: &Bound<'_, PyAny>, length: usize) -> PyResult<()> {
        let weak = PyWeakrefReference::new(object)?.into_any().cast_into::<PyWeakref>()?;
        objects().insert((self.0, self.1), Entry { length, object: weak.unbind() });
        Ok(())
    }
}

impl Drop for Registered {
    fn drop(&mut self) {
        let removed = objects().remove(&(self.0, self.1));
        // Without the lock: it may run Python code.
        drop(removed);
    }
}

/// Starts of memory that are looked at before an address: memory may lie within other memory, for
/// example a block in an opened region.
const STARTS: usize = 8;

/// Returns the object whose memory contains `length` bytes at `address`, and their offset in it.
#[pyfunction]
pub(crate) fn find(python: Python<'_>, address: u64, length: usize) -> Option<(Py<PyAny>, u64)> {
    let end = address.checked_add(length as u64)?;
    let objects = objects();
    let mut starts = 0;
    let mut last = None;
    for (&(start, _), entry) in objects.range(..=(address, u64::MAX)).rev() {
        if last != Some(start) {
            last = Some(start);
            starts += 1;
            if starts > STARTS {
                return None;
            }
        }
        if end <= start + entry.length as u64
            && let Some(object) = entry.object.bind(python).upgrade()
        {
            return Some((object.unbind(), address - start));
        }
    }
    None
}
