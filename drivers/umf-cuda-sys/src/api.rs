//! All functions, opened at run time.

use core::ffi::{CStr, c_char};
use std::ffi::OsStr;
use std::mem::ManuallyDrop;
use std::path::{Path, PathBuf};

use libloading::Library;

use crate::{CUresult, Functions};

/// The driver's name, which the system's search path resolves.
pub const LIBRARY: &str = "libcuda.so.1";

/// Why there are no functions.
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum OpenError {
    /// The library cannot be opened.
    #[error("cannot open the CUDA driver {}: {reason}; install NVIDIA's driver, or name a library that is there", path.display())]
    Library {
        /// What was opened.
        path: PathBuf,
        /// What the dynamic linker says.
        reason: String,
    },
    /// The library is something else.
    #[error("{} has no function {function}: it is no CUDA driver", path.display())]
    Other {
        /// What was opened.
        path: PathBuf,
        /// What it should have.
        function: &'static str,
    },
}

/// The functions of a driver. The library stays open for good: a driver has threads, and what it made outlives any owner.
#[derive(Debug)]
pub struct Api {
    functions: Functions,
    path: PathBuf,
    _library: ManuallyDrop<Library>,
}

impl Api {
    /// Opens `libcuda.so.1`.
    ///
    /// # Errors
    /// [`OpenError`].
    ///
    /// # Safety
    /// The library that the system finds by that name is a CUDA driver. (Opening a library executes its code.)
    pub unsafe fn load() -> Result<Self, OpenError> {
        // SAFETY: the caller's promise.
        unsafe { Self::load_from(LIBRARY) }
    }

    /// Opens the driver at `path`.
    ///
    /// # Errors
    /// [`OpenError`].
    ///
    /// # Safety
    /// As [`Api::load`], for that library.
    pub unsafe fn load_from(path: impl AsRef<OsStr>) -> Result<Self, OpenError> {
        let path = Path::new(path.as_ref());
        // SAFETY: the caller's promise.
        let library = unsafe { Library::new(path) }
            .map_err(|error| OpenError::Library { path: path.to_owned(), reason: error.to_string() })?;
        let find = |symbol: &'static CStr| {
            // SAFETY: the symbol is looked up as an address, and is what its name says by the caller's promise.
            unsafe { library.get::<*mut core::ffi::c_void>(symbol.to_bytes_with_nul()) }
                .map_or(core::ptr::null_mut(), |symbol| *symbol)
        };
        // SAFETY: as above.
        let functions = unsafe { Functions::from_symbols(find) };
        if functions.cuInit.is_none() {
            return Err(OpenError::Other { path: path.to_owned(), function: "cuInit" });
        }
        Ok(Self { functions, path: path.to_owned(), _library: ManuallyDrop::new(library) })
    }

    /// The functions that the library has.
    #[must_use]
    pub const fn functions(&self) -> &Functions {
        &self.functions
    }

    /// What was opened.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The driver's name and text for an answer; empty where it has none.
    #[must_use]
    pub fn text_of(&self, result: CUresult) -> String {
        let ask = |function: Option<unsafe extern "C" fn(CUresult, *mut *const c_char) -> CUresult>| {
            let mut text = core::ptr::null();
            // SAFETY: the place is valid for a write; what is written is null or a text of the library's, which stays open.
            unsafe {
                function?(result, &raw mut text);
                (!text.is_null()).then(|| CStr::from_ptr(text).to_string_lossy().into_owned())
            }
        };
        match (ask(self.functions.cuGetErrorName), ask(self.functions.cuGetErrorString)) {
            (Some(name), Some(text)) => format!("{name}: {text}"),
            (name, text) => name.or(text).unwrap_or_default(),
        }
    }
}
