//! What every function of a driver goes through, and what every driver has, whatever its interface.

use std::collections::HashMap;
use std::ffi::{CStr, c_char};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError, RwLock};

use crate::{Addresses, Budget, Charge, Error, Faults, Health, Result, Settings, Stream};

/// Runs a function of an interface whose answers are numbers, of which zero is success. No panic
/// leaves it.
pub fn guarded<R: From<Error>, A: From<R> + Default>(
    body: impl FnOnce() -> core::result::Result<(), R>,
) -> A {
    match catch_unwind(AssertUnwindSafe(body)) {
        Ok(Ok(())) => A::default(),
        Ok(Err(refusal)) => A::from(refusal),
        Err(_) => A::from(R::from(Error::Panicked)),
    }
}

/// Writes a result.
///
/// # Errors
/// [`Error::NullPointer`].
///
/// # Safety
/// The pointer is null or valid for a write.
pub unsafe fn put<T>(pointer: *mut T, value: T) -> Result<()> {
    if pointer.is_null() {
        return Err(Error::NullPointer);
    }
    // SAFETY: the caller's promise.
    unsafe { pointer.write_unaligned(value) };
    Ok(())
}

/// Reads an argument.
///
/// # Errors
/// [`Error::NullPointer`].
///
/// # Safety
/// The pointer is null or valid for a read.
pub unsafe fn get<T: Copy>(pointer: *const T) -> Result<T> {
    if pointer.is_null() {
        return Err(Error::NullPointer);
    }
    // SAFETY: the caller's promise.
    Ok(unsafe { pointer.read_unaligned() })
}

/// Reads a text.
///
/// # Errors
/// [`Error::NullPointer`], or [`Error::Invalid`] if it is not UTF-8.
///
/// # Safety
/// The pointer is null or leads to a text that ends with a zero.
pub unsafe fn text<'a>(pointer: *const c_char) -> Result<&'a str> {
    if pointer.is_null() {
        return Err(Error::NullPointer);
    }
    // SAFETY: the caller's promise.
    unsafe { CStr::from_ptr(pointer) }.to_str().map_err(|_| Error::Invalid)
}

/// Everything that a driver has in a process, made when it is first started. A forked child has
/// none, and gets none.
#[derive(Debug)]
pub struct Once<S>(OnceLock<Option<(S, u32)>>);

impl<S> Once<S> {
    /// Not started.
    #[expect(clippy::new_without_default, reason = "for a static")]
    pub const fn new() -> Self {
        Self(OnceLock::new())
    }

    /// Starts it unless it was. What is wrong is written to standard error: loaders say nothing of
    /// a driver that does not start.
    ///
    /// # Errors
    /// [`Error::NotStarted`].
    pub fn start(&self, library: &str, make: impl FnOnce() -> core::result::Result<S, String>) -> Result<&S> {
        self.0.get_or_init(|| match make() {
            Ok(made) => Some((made, std::process::id())),
            Err(why) => {
                eprintln!("{library}: {why}");
                None
            }
        });
        self.get()
    }

    /// Returns it, if it was started in this process.
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

/// What every driver has. `T` is what the interface keeps with memory.
#[derive(Debug)]
pub struct Core<T> {
    /// The settings that every driver has.
    pub settings: Settings,
    /// Memory at addresses of this process.
    pub addresses: Addresses<T>,
    /// The faults that are played.
    pub faults: Faults,
    /// The fds that the driver may hold.
    pub fds: Arc<Budget>,
    /// Whether the devices are there.
    pub health: Arc<Health>,
    /// Held while a handle of another process is opened: drivers look whether it is open already.
    pub opening: Mutex<()>,
}

impl<T> Core<T> {
    /// Makes it; `answer` is the number of an answer by its name.
    ///
    /// # Errors
    /// What is wrong with the faults among the settings.
    pub fn new(
        settings: Settings,
        answer: impl Fn(&str) -> Option<u32>,
    ) -> core::result::Result<Self, String> {
        let faults = Faults::default();
        faults.set(&settings.faults, answer)?;
        Ok(Self {
            fds: Budget::new(settings.fds),
            settings,
            addresses: Addresses::default(),
            faults,
            health: Arc::default(),
            opening: Mutex::default(),
        })
    }

    /// A stream of a device.
    pub fn stream(&self) -> Stream {
        Stream::new(Arc::clone(&self.health), self.settings.delay)
    }

    /// Takes what new memory of `size` bytes costs: an fd, and bytes of a device if it is of one.
    ///
    /// # Errors
    /// [`Error::OutOfFds`], [`Error::OutOfDeviceMemory`].
    pub fn charges(&self, device: &[Arc<Budget>], size: usize) -> Result<Vec<Charge>> {
        let take = |budget: &Arc<Budget>| budget.take(size as u64).ok_or(Error::OutOfDeviceMemory);
        let mut charges = device.iter().map(take).collect::<Result<Vec<_>>>()?;
        charges.push(self.charge_fd()?);
        Ok(charges)
    }

    /// Counts one more fd of the driver.
    ///
    /// # Errors
    /// [`Error::OutOfFds`].
    pub fn charge_fd(&self) -> Result<Charge> {
        self.fds.take(1).ok_or(Error::OutOfFds)
    }
}

/// No number is used twice in a process, of whatever kind.
static NEXT: AtomicUsize = AtomicUsize::new(0x5af7_0000_0040);

/// All objects of a kind, by their handles: numbers that are looked up and never followed, so that
/// one that is null, stale, of another kind or made up is an answer.
#[derive(Debug)]
pub struct Handles<T>(RwLock<HashMap<usize, Arc<T>>>);

impl<T> Default for Handles<T> {
    fn default() -> Self {
        Self(RwLock::default())
    }
}

impl<T> Handles<T> {
    /// A number for an object that is made now.
    pub fn next() -> usize {
        NEXT.fetch_add(0x40, Ordering::Relaxed)
    }

    /// Adds an object, and gives its number.
    pub fn insert(&self, object: T) -> usize {
        let handle = Self::next();
        self.insert_as(handle, object);
        handle
    }

    /// Adds an object whose number was given before.
    pub fn insert_as(&self, handle: usize, object: T) {
        self.0.write().unwrap_or_else(PoisonError::into_inner).insert(handle, Arc::new(object));
    }

    /// The object with this number.
    ///
    /// # Errors
    /// [`Error::NoHandle`].
    pub fn get(&self, handle: usize) -> Result<Arc<T>> {
        let found = self.0.read().unwrap_or_else(PoisonError::into_inner).get(&handle).cloned();
        found.ok_or(Error::NoHandle)
    }

    /// Takes an object out. It goes with its last user.
    ///
    /// # Errors
    /// [`Error::NoHandle`].
    pub fn remove(&self, handle: usize) -> Result<Arc<T>> {
        let found = self.0.write().unwrap_or_else(PoisonError::into_inner).remove(&handle);
        found.ok_or(Error::NoHandle)
    }

    /// How many there are.
    #[expect(clippy::len_without_is_empty, reason = "no driver asks")]
    pub fn len(&self) -> usize {
        self.0.read().unwrap_or_else(PoisonError::into_inner).len()
    }

    /// Takes out what is not to be kept.
    pub fn retain(&self, keep: impl Fn(&T) -> bool) {
        self.0.write().unwrap_or_else(PoisonError::into_inner).retain(|_, object| keep(object));
    }
}
