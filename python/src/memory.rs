//! [`Memory`]: the memory of a block or mapping, which outlives a call of `free` or `close` while a
//! buffer of it is in use. [`Registered`] and [`find`]: the objects by the addresses of their memory.

use std::collections::BTreeMap;
use std::ffi::{c_int, c_void};
use std::mem::ManuallyDrop;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use pyo3::exceptions::PyBufferError;
use pyo3::ffi;
use pyo3::prelude::*;
use pyo3::types::{PyWeakref, PyWeakrefMethods, PyWeakrefReference};

use umf_sync::Lock;

use crate::errors::{ClosedError, Error, ForkError};
use crate::fork::{self, Forks, KeepForChildren};

/// Memory that buffers (`memoryview`, numpy arrays) use. `T` keeps it.
///
/// A buffer keeps the Python object alive, and with it this. If the object is closed while it has
/// buffers, the memory is kept until the last of them ends. New buffers and calls are refused from
/// then on.
pub(crate) struct Memory<T: KeepForChildren> {
    state: Lock<State<T>>,
}

struct State<T: KeepForChildren> {
    /// `None` once the memory was released.
    keeper: Option<Arc<Keeper<T>>>,
    is_closed: bool,
    /// Number of buffers.
    buffers: usize,
}

/// Releases the memory when it is dropped, or once the children of the forks since then have ended. In
/// a forked child the memory is the parent's: dropping it there does nothing.
struct Keeper<T: KeepForChildren> {
    value: ManuallyDrop<T>,
    process: u32,
    /// The latest fork when it was made.
    fork: u64,
}

impl<T: KeepForChildren> Keeper<T> {
    fn is_of_this_process(&self) -> bool {
        self.process == umf_sync::fork::generation()
    }
}

impl<T: KeepForChildren> Drop for Keeper<T> {
    fn drop(&mut self) {
        if !self.is_of_this_process() {
            return;
        }
        // SAFETY: the value is taken once, as the keeper is dropped once.
        let value = unsafe { ManuallyDrop::take(&mut self.value) };
        match Forks::since(self.fork) {
            Some(forks) => value.keep(forks),
            None => drop(value),
        }
    }
}

/// Where a buffer begins, its length, and whether it may be written.
pub(crate) struct Range {
    pub(crate) start: *mut c_void,
    pub(crate) length: usize,
    pub(crate) is_read_only: bool,
}

impl<T: KeepForChildren> Memory<T> {
    pub(crate) fn new(value: T) -> Self {
        let process = umf_sync::fork::generation();
        let keeper = Keeper { value: ManuallyDrop::new(value), process, fork: fork::latest() };
        Self { state: Lock::new(State { keeper: Some(Arc::new(keeper)), is_closed: false, buffers: 0 }) }
    }

    /// Returns the memory, and counts a buffer of it if `is_buffer`.
    fn get(&self, is_buffer: bool) -> PyResult<Arc<Keeper<T>>> {
        let mut state = self.state.lock();
        match &state.keeper {
            Some(keeper) if !state.is_closed => {
                let keeper = Arc::clone(keeper);
                state.buffers += usize::from(is_buffer);
                Ok(keeper)
            }
            _ => Err(ClosedError::new_err(
                "the memory was freed or closed; keep the object open as long as it is used",
            )),
        }
    }

    /// Calls `use_it` with the memory, which is not released meanwhile.
    ///
    /// # Errors
    /// `ClosedError` after [`Memory::close`].
    pub(crate) fn with<R>(&self, use_it: impl FnOnce(&T) -> PyResult<R>) -> PyResult<R> {
        use_it(&self.get(false)?.value)
    }

    /// As [`Memory::with`], for what a forked child cannot do with memory of its parent.
    ///
    /// # Errors
    /// `ForkError` in a forked child of the process that made it.
    pub(crate) fn with_own<R>(&self, use_it: impl FnOnce(&T) -> PyResult<R>) -> PyResult<R> {
        let keeper = self.get(false)?;
        if keeper.is_of_this_process() {
            return use_it(&keeper.value);
        }
        Err(ForkError::new_err(
            "the memory belongs to the parent process, from which this process was forked; copy it to memory \
             of this process (umf.array), or let the parent send the handle",
        ))
    }

    /// Releases the memory, or marks it for release at the end of its last buffer. Returns `false` if
    /// it was closed before.
    pub(crate) fn close(&self) -> bool {
        let mut state = self.state.lock();
        let was_open = !std::mem::replace(&mut state.is_closed, true);
        let keeper = if state.buffers == 0 { state.keeper.take() } else { None };
        drop(state);
        // Without the lock: it may unmap.
        drop(keeper);
        was_open
    }

    pub(crate) fn is_closed(&self) -> bool {
        self.state.lock().is_closed
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
        // SAFETY: the caller guarantees a valid view.
        unsafe { (*view).obj = std::ptr::null_mut() };
        // Counted first, so that the memory is not released meanwhile.
        let filled = self.get(true).and_then(|keeper| {
            let filled = range(&keeper.value).and_then(|range| {
                // SAFETY: the view is valid, and the range is memory of the caller.
                unsafe { fill_view(object, view, flags, &range) }
            });
            filled.inspect_err(|_| self.release_buffer())
        });
        filled
    }

    /// Ends a buffer.
    pub(crate) fn release_buffer(&self) {
        let mut state = self.state.lock();
        state.buffers = state.buffers.saturating_sub(1);
        let keeper = if state.buffers == 0 && state.is_closed { state.keeper.take() } else { None };
        drop(state);
        drop(keeper);
    }
}

/// Fills a view with a range.
///
/// # Safety
/// `view` is valid for a write, and the range is memory that `object` keeps.
unsafe fn fill_view(
    object: &Bound<'_, PyAny>,
    view: *mut ffi::Py_buffer,
    flags: c_int,
    range: &Range,
) -> PyResult<()> {
    if range.is_read_only && flags & ffi::PyBUF_WRITABLE != 0 {
        return Err(PyBufferError::new_err("the memory is read-only: open it for writing"));
    }
    let length = ffi::Py_ssize_t::try_from(range.length)
        .map_err(|_| Error::new_err("the memory is larger than a buffer can be"))?;
    let read_only = c_int::from(range.is_read_only);
    // SAFETY: the view is valid, the object lives, and the range is its memory.
    let filled =
        unsafe { ffi::PyBuffer_FillInfo(view, object.as_ptr(), range.start, length, read_only, flags) };
    if filled == 0 { Ok(()) } else { Err(PyErr::fetch(object.py())) }
}

/// Objects with memory, by the address of its first byte. Several mappings can have one address.
static OBJECTS: Lock<BTreeMap<(u64, u64), Entry>> = Lock::new(BTreeMap::new());

struct Entry {
    length: usize,
    object: Py<PyWeakref>,
}

/// Returns whether this process has no object with memory.
pub(crate) fn are_none() -> bool {
    OBJECTS.lock().is_empty()
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
        OBJECTS.lock().insert((self.0, self.1), Entry { length, object: weak.unbind() });
        Ok(())
    }
}

impl Drop for Registered {
    fn drop(&mut self) {
        let removed = OBJECTS.lock().remove(&(self.0, self.1));
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
    let objects = OBJECTS.lock();
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
