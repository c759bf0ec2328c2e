//! [`Memory`]: the memory of a block or mapping, which outlives a call of `free` or `close` while a
//! buffer of it is in use. [`Registered`] and [`find`]: the objects by the addresses of their
//! memory.

use std::any::Any;
use std::collections::BTreeMap;
use std::ffi::c_int;
use std::mem::ManuallyDrop;
use std::ops::Deref;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use pyo3::exceptions::PyBufferError;
use pyo3::ffi;
use pyo3::prelude::*;
use pyo3::types::{PyWeakref, PyWeakrefMethods, PyWeakrefReference};
use umf_sync::Lock;

use crate::errors::{ClosedError, Error, ForkError};
use crate::fork::{self, Forks, KeepForChildren};

/// Memory that buffers (`memoryview`, numpy arrays, torch tensors) use. `T` keeps it.
///
/// Each buffer shares the keeper, by an [`Export`]. If the object is closed while it has buffers,
/// the memory is kept until the last of them ends. New buffers and calls are refused from then on.
pub(crate) struct Memory<T: KeepForChildren> {
    /// `None` once the object was closed.
    keeper: Lock<Option<Arc<Keeper<T>>>>,
    /// The keeper, if consumers without buffers use the memory until the object dies.
    pinned: Lock<Option<Arc<Keeper<T>>>>,
}

/// Releases the memory when it is dropped, or once the children of the forks since then have ended.
/// In a forked child the memory is the parent's: dropping it there does nothing.
pub(crate) struct Keeper<T: KeepForChildren> {
    value: ManuallyDrop<T>,
    process: u32,
    /// The latest fork whose children cannot have the memory.
    fork: u64,
    /// The entry of the object for [`find`]. `None` for memory that no handle names.
    registered: Option<Registered>,
}

impl<T: KeepForChildren> Keeper<T> {
    fn is_of_this_process(&self) -> bool {
        self.process == umf_sync::fork::generation()
    }
}

impl<T: KeepForChildren> Deref for Keeper<T> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.value
    }
}

impl<T: KeepForChildren> Drop for Keeper<T> {
    fn drop(&mut self) {
        drop(self.registered.take());
        if !self.is_of_this_process() {
            return;
        }
        fork::note_end();
        // SAFETY: the value is taken once, as the keeper is dropped once.
        let value = unsafe { ManuallyDrop::take(&mut self.value) };
        match Forks::since(self.fork) {
            Some(forks) => value.keep(forks),
            None => drop(value),
        }
    }
}

/// The object that a buffer keeps (`Py_buffer.obj`), and with it the memory. It has the buffer
/// protocol itself.
///
/// It is not the block or mapping, because consumers such as `torch.frombuffer` and
/// `numpy.ndarray(buffer=..)` keep an object and release its buffer at once: the memory would end
/// with a call of `free` under a live tensor.
#[pyclass(module = "umf", name = "_Export", frozen)]
pub(crate) struct Export {
    _memory: Arc<dyn Any + Send + Sync>,
    /// Keeps the block or mapping registered, for [`find`].
    _object: Py<PyAny>,
    range: Range,
}

#[pymethods]
impl Export {
    /// # Safety
    /// Python passes a view that is valid for a write.
    unsafe fn __getbuffer__(this: Bound<'_, Self>, view: *mut ffi::Py_buffer, flags: c_int) -> PyResult<()> {
        if view.is_null() {
            return Err(PyBufferError::new_err("a buffer request without a view"));
        }
        // SAFETY: Python's view. An error leaves it without an object.
        unsafe { (*view).obj = std::ptr::null_mut() };
        let Range { start, length, is_read_only } = this.get().range;
        if is_read_only && flags & ffi::PyBUF_WRITABLE != 0 {
            return Err(PyBufferError::new_err(
                "the memory is read-only: open it for writing, or as a private copy (mode=\"private\")",
            ));
        }
        let length = ffi::Py_ssize_t::try_from(length)
            .map_err(|_| Error::new_err("the memory is larger than a buffer can be"))?;
        let (start, read_only) = (std::ptr::with_exposed_provenance_mut(start), c_int::from(is_read_only));
        // SAFETY: the view is valid, and the range is memory that the object keeps.
        let filled = unsafe { ffi::PyBuffer_FillInfo(view, this.as_ptr(), start, length, read_only, flags) };
        if filled == 0 { Ok(()) } else { Err(PyErr::fetch(this.py())) }
    }
}

/// The address at which a buffer begins, its length, and whether it is read-only.
#[derive(Clone, Copy)]
pub(crate) struct Range {
    pub(crate) start: usize,
    pub(crate) length: usize,
    pub(crate) is_read_only: bool,
}

impl<T: KeepForChildren + Sync + 'static> Memory<T> {
    /// `address`: that of the first byte, if a handle names the memory.
    pub(crate) fn new(value: T, address: Option<u64>) -> Self {
        let process = umf_sync::fork::generation();
        let (value, registered) = (ManuallyDrop::new(value), address.map(Registered::new));
        let keeper = Keeper { value, process, fork: fork::note_keeper(), registered };
        Self { keeper: Lock::new(Some(Arc::new(keeper))), pinned: Lock::new(None) }
    }

    /// Returns a share of the memory: it is released once all shares are dropped, even if it is
    /// closed before. A share needs no Python object, so that any thread may drop it at any time.
    ///
    /// # Errors
    /// `ClosedError` after [`Memory::close`].
    pub(crate) fn share(&self) -> PyResult<Arc<Keeper<T>>> {
        self.keeper.lock().clone().ok_or_else(|| {
            ClosedError::new_err("the memory was freed or closed; keep the object open as long as it is used")
        })
    }

    /// Lets [`find`] know the object with this memory, of `length` bytes, until the memory ends.
    pub(crate) fn register(&self, object: &Bound<'_, PyAny>, length: usize) -> PyResult<()> {
        match &self.share()?.registered {
            Some(registered) => registered.register(object, length),
            None => Ok(()),
        }
    }

    /// Calls `use_it` with the memory, which is not released meanwhile.
    ///
    /// # Errors
    /// `ClosedError` after [`Memory::close`].
    pub(crate) fn with<R>(&self, use_it: impl FnOnce(&T) -> PyResult<R>) -> PyResult<R> {
        use_it(&*self.share()?)
    }

    /// As [`Memory::with`], for what a forked child cannot do with memory of its parent.
    ///
    /// # Errors
    /// `ForkError` in a forked child of the process that made it.
    pub(crate) fn with_own<R>(&self, use_it: impl FnOnce(&T) -> PyResult<R>) -> PyResult<R> {
        let keeper = self.share()?;
        if keeper.is_of_this_process() {
            return use_it(&keeper);
        }
        Err(ForkError::new_err(
            "the memory belongs to the parent process, from which this process was forked; copy it to memory \
             of this process (umf.array), or let the parent send the handle",
        ))
    }

    /// Releases the memory at once, or at the end of its last buffer. Returns `false` if it was
    /// closed before.
    pub(crate) fn close(&self) -> bool {
        let keeper = self.keeper.lock().take();
        // Dropped without the lock: it may unmap.
        keeper.is_some()
    }

    /// Keeps the memory until the Python object dies, even if it is closed before: for consumers
    /// that keep the object and no buffer.
    ///
    /// # Errors
    /// `ClosedError` after [`Memory::close`].
    pub(crate) fn pin(&self) -> PyResult<()> {
        let keeper = self.share()?;
        let replaced = self.pinned.lock().replace(keeper);
        drop(replaced);
        Ok(())
    }

    /// Closes the memory as [`Memory::close`] does, and returns it if nothing else uses it;
    /// otherwise what keeps it.
    pub(crate) fn take(&self) -> Result<T, Option<Arc<Keeper<T>>>> {
        let keeper = self.keeper.lock().take().ok_or(None)?;
        if !keeper.is_of_this_process() || Forks::since(keeper.fork).is_some() {
            return Err(Some(keeper));
        }
        let mut keeper = ManuallyDrop::new(Arc::try_unwrap(keeper).map_err(Some)?);
        drop(keeper.registered.take());
        fork::note_end();
        // SAFETY: the value is taken once, as the keeper is not dropped.
        Ok(unsafe { ManuallyDrop::take(&mut keeper.value) })
    }

    pub(crate) fn is_closed(&self) -> bool {
        self.keeper.lock().is_none()
    }

    /// Returns an object that keeps the memory of `object`, which has this memory. `range` returns
    /// memory that is readable (and writable, unless it is read-only) as long as the keeper exists.
    pub(crate) fn export<'py>(
        &self,
        object: &Bound<'py, PyAny>,
        range: impl FnOnce(&T) -> PyResult<Range>,
    ) -> PyResult<Bound<'py, Export>> {
        let keeper = self.share()?;
        let range = range(&keeper)?;
        Bound::new(object.py(), Export { _memory: keeper, _object: object.clone().unbind(), range })
    }

    /// Fills a buffer request of Python for `object`, which has this memory. `range` as for
    /// [`Memory::export`].
    ///
    /// # Safety
    /// `view` is valid for a write, or null.
    pub(crate) unsafe fn fill_buffer(
        &self,
        object: &Bound<'_, PyAny>,
        view: *mut ffi::Py_buffer,
        flags: c_int,
        range: impl FnOnce(&T) -> PyResult<Range>,
    ) -> PyResult<()> {
        if !view.is_null() {
            // SAFETY: the caller guarantees a valid view. An error leaves it without an object.
            unsafe { (*view).obj = std::ptr::null_mut() };
        }
        // SAFETY: the caller's view.
        unsafe { Export::__getbuffer__(self.export(object, range)?, view, flags) }
    }
}

/// Objects with memory, by the address of its first byte. Several mappings can have one address.
static OBJECTS: Lock<BTreeMap<(u64, u64), Entry>> = Lock::new(BTreeMap::new());

struct Entry {
    length: usize,
    object: Py<PyWeakref>,
}

/// The entry of an object in the table. Dropping it removes the entry.
#[derive(Debug)]
struct Registered(u64, u64);

impl Registered {
    /// Returns the key of an object with memory at `address`, which [`Registered::register`]
    /// enters.
    fn new(address: u64) -> Self {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        Self(address, NEXT.fetch_add(1, Ordering::Relaxed))
    }

    /// Enters an object with this key and `length` bytes of memory.
    fn register(&self, object: &Bound<'_, PyAny>, length: usize) -> PyResult<()> {
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
    let mut starts = 0;
    let mut last = None;
    let mut candidates = Vec::new();
    for (&(start, _), entry) in OBJECTS.lock().range(..=(address, u64::MAX)).rev() {
        if last != Some(start) {
            last = Some(start);
            starts += 1;
            if starts > STARTS {
                break;
            }
        }
        if end <= start + entry.length as u64 {
            candidates.push((start, entry.object.clone_ref(python)));
        }
    }
    // Without the lock, as `upgrade` may wait for other threads in free-threaded CPython.
    let upgrade = |(start, object): (u64, Py<PyWeakref>)| Some((object.bind(python).upgrade()?, start));
    candidates.into_iter().find_map(upgrade).map(|(object, start)| (object.unbind(), address - start))
}
