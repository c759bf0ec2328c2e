//! Entry points and state of a driver, whatever its interface: panic guard, access to arguments,
//! initialization, and tables of handles.

use std::collections::HashMap;
use std::ffi::{CStr, c_char};
use std::io::Write;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError, RwLock};

use crate::{AddressMap, Budget, Charge, Error, Faults, Health, Result, Settings, Stream};

/// Runs the body of an exported function, and converts its result to a code, of which the default
/// (zero) is success. A panic becomes [`Error::Panicked`].
pub fn guarded<R: From<Error>, A: From<R> + Default>(
    body: impl FnOnce() -> core::result::Result<(), R>,
) -> A {
    match catch_unwind(AssertUnwindSafe(body)) {
        Ok(Ok(())) => A::default(),
        Ok(Err(error)) => A::from(error),
        Err(_) => A::from(R::from(Error::Panicked)),
    }
}

/// Prints a line to standard error. Does nothing if it is closed, where `eprintln!` would panic.
pub fn print_line(line: std::fmt::Arguments<'_>) {
    let _ = writeln!(std::io::stderr(), "{line}");
}

/// Writes a result through a pointer of the application.
///
/// # Errors
/// [`Error::NullPointer`].
///
/// # Safety
/// The pointer is null or valid for a write.
pub unsafe fn write_result<T>(pointer: *mut T, value: T) -> Result<()> {
    if pointer.is_null() {
        return Err(Error::NullPointer);
    }
    // SAFETY: the caller upholds the contract.
    unsafe { pointer.write_unaligned(value) };
    Ok(())
}

/// Reads an argument through a pointer of the application.
///
/// # Errors
/// [`Error::NullPointer`].
///
/// # Safety
/// The pointer is null or valid for a read.
pub unsafe fn read_argument<T: Copy>(pointer: *const T) -> Result<T> {
    if pointer.is_null() {
        return Err(Error::NullPointer);
    }
    // SAFETY: the caller upholds the contract.
    Ok(unsafe { pointer.read_unaligned() })
}

/// Reads a C string of the application.
///
/// # Errors
/// [`Error::NullPointer`], or [`Error::Invalid`] if it is not UTF-8.
///
/// # Safety
/// The pointer is null or leads to a C string.
pub unsafe fn read_text<'a>(pointer: *const c_char) -> Result<&'a str> {
    if pointer.is_null() {
        return Err(Error::NullPointer);
    }
    // SAFETY: the caller upholds the contract.
    unsafe { CStr::from_ptr(pointer) }.to_str().map_err(|_| Error::Invalid)
}

/// The state of a driver in a process, created by the first initialization. In a forked child it is
/// neither accessible nor created again.
#[derive(Debug)]
pub struct DriverCell<S>(OnceLock<Option<(S, u32)>>);

impl<S> DriverCell<S> {
    /// Returns an empty cell.
    #[expect(clippy::new_without_default, reason = "for a static")]
    pub const fn new() -> Self {
        Self(OnceLock::new())
    }

    /// Creates the state unless it exists. An error of `make` is printed to standard error: loaders
    /// do not report a driver that fails to initialize.
    ///
    /// # Errors
    /// [`Error::NotStarted`].
    pub fn start(&self, library: &str, make: impl FnOnce() -> core::result::Result<S, String>) -> Result<&S> {
        self.0.get_or_init(|| match make() {
            Ok(made) => Some((made, std::process::id())),
            Err(why) => {
                print_line(format_args!("{library}: {why}"));
                None
            }
        });
        self.get()
    }

    /// Returns the state if it was created in this process.
    ///
    /// # Errors
    /// [`Error::NotStarted`].
    pub fn get(&self) -> Result<&S> {
        match self.0.get() {
            Some(Some((made, process))) if *process == std::process::id() => Ok(made),
            _ => Err(Error::NotStarted),
        }
    }
}

/// The state that all drivers have. `T` is the interface's description of an allocation.
#[derive(Debug)]
pub struct DriverCore<T> {
    /// The common settings.
    pub settings: Settings,
    /// The device memory of this process, by address.
    pub addresses: AddressMap<T>,
    /// The injected faults.
    pub faults: Faults,
    /// The limit of fds that the driver holds.
    pub fds: Arc<Budget>,
    /// Whether the devices are lost.
    pub health: Arc<Health>,
    /// Held while an IPC handle is opened, so that two threads do not open the same one.
    pub opening: Mutex<()>,
}

impl<T> DriverCore<T> {
    /// Creates the state. `answer` returns the number of a result by its name.
    ///
    /// # Errors
    /// A description of the invalid fault in the settings.
    pub fn new(
        settings: Settings,
        answer: impl Fn(&str) -> Option<u32>,
    ) -> core::result::Result<Self, String> {
        let faults = Faults::default();
        faults.set(&settings.faults, answer)?;
        Ok(Self {
            fds: Budget::new(settings.fds),
            settings,
            addresses: AddressMap::default(),
            faults,
            health: Arc::default(),
            opening: Mutex::default(),
        })
    }

    /// Creates a stream of a device.
    pub fn stream(&self) -> Stream {
        Stream::new(Arc::clone(&self.health), self.settings.delay)
    }

    /// Charges new memory of `size` bytes: one fd, and the bytes to each budget in `device`.
    ///
    /// # Errors
    /// [`Error::OutOfFds`], [`Error::OutOfDeviceMemory`].
    pub fn charges(&self, device: &[Arc<Budget>], size: usize) -> Result<Vec<Charge>> {
        let take = |budget: &Arc<Budget>| budget.take(size as u64).ok_or(Error::OutOfDeviceMemory);
        let mut charges = device.iter().map(take).collect::<Result<Vec<_>>>()?;
        charges.push(self.charge_fd()?);
        Ok(charges)
    }

    /// Charges one fd.
    ///
    /// # Errors
    /// [`Error::OutOfFds`].
    pub fn charge_fd(&self) -> Result<Charge> {
        self.fds.take(1).ok_or(Error::OutOfFds)
    }
}

/// The next handle. Handles of all kinds are unique in a process.
static NEXT: AtomicUsize = AtomicUsize::new(0x5af7_0000_0040);

/// The objects of a kind by handle. Handles are keys, not pointers: one that is null, stale,
/// invalid or of another kind is an error.
#[derive(Debug)]
pub struct HandleTable<T>(RwLock<HashMap<usize, Arc<T>>>);

impl<T> Default for HandleTable<T> {
    fn default() -> Self {
        Self(RwLock::default())
    }
}

impl<T> HandleTable<T> {
    /// Returns a new handle.
    pub fn next() -> usize {
        NEXT.fetch_add(0x40, Ordering::Relaxed)
    }

    /// Adds an object, and returns its handle.
    pub fn insert(&self, object: T) -> usize {
        let handle = Self::next();
        self.insert_as(handle, object);
        handle
    }

    /// Adds an object under a handle of [`HandleTable::next`].
    pub fn insert_as(&self, handle: usize, object: T) {
        self.0.write().unwrap_or_else(PoisonError::into_inner).insert(handle, Arc::new(object));
    }

    /// Returns the object of a handle.
    ///
    /// # Errors
    /// [`Error::NoHandle`].
    pub fn get(&self, handle: usize) -> Result<Arc<T>> {
        let found = self.0.read().unwrap_or_else(PoisonError::into_inner).get(&handle).cloned();
        found.ok_or(Error::NoHandle)
    }

    /// Removes an object. It is dropped with its last reference.
    ///
    /// # Errors
    /// [`Error::NoHandle`].
    pub fn remove(&self, handle: usize) -> Result<Arc<T>> {
        let found = self.0.write().unwrap_or_else(PoisonError::into_inner).remove(&handle);
        found.ok_or(Error::NoHandle)
    }

    /// Returns the number of objects.
    #[expect(clippy::len_without_is_empty, reason = "no driver needs it")]
    pub fn len(&self) -> usize {
        self.0.read().unwrap_or_else(PoisonError::into_inner).len()
    }

    /// Returns the objects for which `matches` returns true.
    pub fn all(&self, matches: impl Fn(&T) -> bool) -> Vec<Arc<T>> {
        let objects = self.0.read().unwrap_or_else(PoisonError::into_inner);
        objects.values().filter(|object| matches(object)).cloned().collect()
    }

    /// Removes the objects for which `keep` returns false.
    pub fn retain(&self, keep: impl Fn(&T) -> bool) {
        let mut objects = self.0.write().unwrap_or_else(PoisonError::into_inner);
        let removed: Vec<_> = objects.extract_if(|_, object| !keep(object)).collect();
        // Dropped without the lock: dropping a stream waits for its thread.
        drop(objects);
        drop(removed);
    }
}
