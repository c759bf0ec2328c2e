//! [`Library`]: the functions of libfabric itself, of a library that is opened, or of one that the
//! process has loaded already.

use core::ffi::{CStr, c_char, c_int, c_void};
use std::ffi::{CString, OsStr};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use crate::enums::{fi_log_level, fi_log_subsys, fi_param_type};
use crate::info::{fi_fabric_attr, fi_info};
use crate::layout::make_version;
use crate::objects::fid_fabric;
use crate::provider::{fi_fabric, fi_getinfo, fi_provider};

/// The name of the library in the system's search path, of all versions from 1.0 to 2.x.
pub const LIBRARY: &str = "libfabric.so.1";

/// The error of finding a library.
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum OpenError {
    /// The library cannot be opened.
    #[error("cannot open libfabric {}: {reason}; install it (Debian: libfabric1), or set the path of one", path.display())]
    Library {
        /// The path that was opened.
        path: PathBuf,
        /// The dynamic linker's error.
        reason: String,
    },
    /// The library is not libfabric.
    #[error("{} has no function {function}: it is not libfabric; set the path of one", path.display())]
    Other {
        /// The path that was opened.
        path: PathBuf,
        /// The missing function.
        function: &'static str,
    },
    /// The library is too old for this crate.
    #[error("libfabric {} has version {}.{}, older than 1.17: install a newer one", path.display(), version >> 16, version & 0xffff)]
    Old {
        /// The path that was opened.
        path: PathBuf,
        /// Its version.
        version: u32,
    },
}

/// Declares the functions, by the names of their symbols.
macro_rules! functions {
    ($($(#[$doc:meta])* $name:ident: $type:ty;)*) => {
        /// The functions of a library.
        #[derive(Clone, Copy, Debug)]
        pub struct Functions {
            $($(#[$doc])* pub $name: $type,)*
        }

        impl Functions {
            /// Returns the functions at the addresses that `find` returns, or the name of a
            /// missing one.
            ///
            /// # Safety
            /// `find` returns null or the address of libfabric's function of that name.
            unsafe fn from_symbols(find: impl Fn(&CStr) -> *mut c_void) -> Result<Self, &'static str> {
                Ok(Self {
                    $($name: {
                        let name = CStr::from_bytes_with_nul(concat!(stringify!($name), "\0").as_bytes());
                        let address = find(name.unwrap_or_default());
                        // SAFETY: null becomes `None`. By the caller's contract, any other address
                        // is this function.
                        unsafe { core::mem::transmute::<*mut c_void, Option<$type>>(address) }
                            .ok_or(stringify!($name))?
                    },)*
                })
            }
        }
    };
}

functions! {
    /// Lists what there is.
    fi_getinfo: fi_getinfo;
    /// Frees a list.
    fi_freeinfo: unsafe extern "C" fn(info: *mut fi_info);
    /// Copies an entry, or allocates an empty one if the argument is null.
    fi_dupinfo: unsafe extern "C" fn(info: *const fi_info) -> *mut fi_info;
    /// Opens a fabric.
    fi_fabric: fi_fabric;
    /// Returns the library's version.
    fi_version: unsafe extern "C" fn() -> u32;
    /// Returns the text of a positive error number.
    fi_strerror: unsafe extern "C" fn(errnum: c_int) -> *const c_char;
    /// Writes a value as text into a buffer.
    fi_tostr_r: unsafe extern "C" fn(
        buf: *mut c_char, len: usize, data: *const c_void, datatype: crate::fi_type,
    ) -> *mut c_char;
    /// Declares a variable of a provider, which is read from the environment as
    /// `FI_PROVIDER_NAME`. The help is a format of printf.
    fi_param_define: unsafe extern "C" fn(
        provider: *const fi_provider, name: *const c_char, kind: fi_param_type, help: *const c_char, ...
    ) -> c_int;
    /// Reads a variable: a `*const c_char`, `c_int` or `usize`, as its kind says.
    fi_param_get: unsafe extern "C" fn(
        provider: *mut fi_provider, name: *const c_char, value: *mut c_void,
    ) -> c_int;
    /// Returns whether such messages are logged.
    fi_log_enabled: unsafe extern "C" fn(
        provider: *const fi_provider, level: fi_log_level, part: fi_log_subsys,
    ) -> c_int;
    /// Logs a message, whatever is enabled. The message is a format of printf.
    fi_log: unsafe extern "C" fn(
        provider: *const fi_provider, level: fi_log_level, part: fi_log_subsys,
        function: *const c_char, line: c_int, format: *const c_char, ...
    );
}

/// The functions of a libfabric in this process.
///
/// # Symbol versions
///
/// `fi_getinfo`, `fi_dupinfo` and `fi_freeinfo` exist once for each layout of [`fi_info`]:
/// `FABRIC_1.0` to `FABRIC_1.3` in libfabric 1.17, also `FABRIC_1.7` (from 1.20 on), `FABRIC_1.8`
/// (2.0) and `FABRIC_1.9` (2.5). `fi_fabric` has `FABRIC_1.0` and `FABRIC_1.1`. All other functions
/// have one version. A lookup without a version, as by this crate, finds the library's newest one:
/// `FABRIC_1.3` in 1.17, `FABRIC_1.9` in 2.5. So structures have the layout of
/// [`version`](Self::version).
///
/// A library passes structures to providers in its newest layout, also if the application uses an
/// older symbol version: the older functions convert hints.
#[derive(Debug)]
pub struct Library {
    functions: Functions,
    path: PathBuf,
}

impl Library {
    /// Opens the library of this name or path, such as [`LIBRARY`]. It is never unloaded: its
    /// providers have threads, and its objects outlive the value.
    ///
    /// # Errors
    /// [`OpenError`].
    ///
    /// # Safety
    /// The library is libfabric. Opening a library executes its code.
    pub unsafe fn open(name: impl AsRef<OsStr>) -> Result<Self, OpenError> {
        let path = Path::new(name.as_ref());
        // SAFETY: the caller upholds the contract.
        let library = unsafe { libloading::Library::new(path) }
            .map_err(|error| OpenError::Library { path: path.to_owned(), reason: error.to_string() })?;
        let find = |symbol: &CStr| {
            // SAFETY: the symbol is only looked up as an address.
            unsafe { library.get::<*mut c_void>(symbol.to_bytes_with_nul()) }
                .map_or(core::ptr::null_mut(), |symbol| *symbol)
        };
        // SAFETY: the caller guarantees that the library is libfabric.
        let functions = unsafe { Functions::from_symbols(find) }
            .map_err(|function| OpenError::Other { path: path.to_owned(), function })?;
        let opened = Self { functions, path: path.to_owned() };
        if opened.version() < make_version(1, 17) {
            return Err(OpenError::Old { path: path.to_owned(), version: opened.version() });
        }
        core::mem::forget(library);
        Ok(opened)
    }

    /// Returns each libfabric that the process has loaded, the oldest version first. A provider
    /// calls this to find the library that has loaded it, since all that `getinfo` returns must come
    /// from `fi_dupinfo`.
    ///
    /// All loaded objects are searched. A lookup in the global scope (`RTLD_DEFAULT`) does not find
    /// a library that was loaded as a dependency of a plugin or of a Python module.
    ///
    /// With several libraries, allocate with the last one and read added members up to the version
    /// of the first one: that is right whichever library is the caller. (Each calls `fi_prov_ini`,
    /// and writes into the `fi_provider` that it gets.)
    ///
    /// The libraries are not kept loaded. A provider is unloaded before its library.
    #[must_use]
    pub fn loaded() -> Vec<Self> {
        let mut libraries: Vec<Self> = Vec::new();
        for name in objects() {
            let path = if name.is_empty() { core::ptr::null() } else { name.as_ptr() };
            // SAFETY: the path is null or ends with a zero. Nothing is loaded.
            let handle = unsafe { libc::dlopen(path, libc::RTLD_LAZY | libc::RTLD_NOLOAD) };
            if handle.is_null() {
                continue;
            }
            // SAFETY: the handle is open and the name ends with a zero.
            let find = |symbol: &CStr| unsafe { libc::dlsym(handle, symbol.as_ptr()) };
            // The search includes the dependencies of the object: a library is found several times.
            let first = find(c"fi_dupinfo");
            let known = |library: &Self| library.functions.fi_dupinfo as usize == first.addr();
            if !first.is_null() && !libraries.iter().any(known) {
                // SAFETY: an object that exports these names is libfabric.
                let functions = unsafe { Functions::from_symbols(find) };
                libraries.extend(functions.ok().map(|functions| Self { functions, path: object_of(first) }));
            }
            // SAFETY: the handle is open.
            unsafe { libc::dlclose(handle) };
        }
        libraries.sort_by_key(Self::version);
        libraries
    }

    /// Returns the functions of the library.
    #[must_use]
    pub const fn functions(&self) -> &Functions {
        &self.functions
    }

    /// Returns the name or path that was opened, or the path of the object that was found.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Returns the version of the library, as [`make_version`] makes it. Members of later versions
    /// do not exist in structures of this library.
    #[must_use]
    pub fn version(&self) -> u32 {
        // SAFETY: the function has no requirements.
        unsafe { (self.functions.fi_version)() }
    }

    /// Returns the library's text for an error number, positive or negative.
    #[must_use]
    pub fn text_of(&self, error: c_int) -> String {
        // SAFETY: the function returns a static text, or one of `strerror`.
        unsafe { CStr::from_ptr((self.functions.fi_strerror)(error.saturating_abs())) }
            .to_string_lossy()
            .into_owned()
    }

    /// Lists what there is for the hints, or everything if they are null. The application's version
    /// is at most the library's. Free the list with [`fi_freeinfo`](Self::fi_freeinfo).
    ///
    /// # Safety
    /// `node` and `service` are null or end with a zero. `hints` is null or of this library. `info`
    /// is valid for a write.
    pub unsafe fn fi_getinfo(
        &self,
        version: u32,
        node: *const c_char,
        service: *const c_char,
        flags: u64,
        hints: *const fi_info,
        info: *mut *mut fi_info,
    ) -> c_int {
        // SAFETY: the caller upholds the contract.
        unsafe { (self.functions.fi_getinfo)(version, node, service, flags, hints, info) }
    }

    /// Frees a list and all that it points to.
    ///
    /// # Safety
    /// `info` is null or of this library, and not used any more.
    pub unsafe fn fi_freeinfo(&self, info: *mut fi_info) {
        // SAFETY: the caller upholds the contract.
        unsafe { (self.functions.fi_freeinfo)(info) }
    }

    /// Copies an entry without the ones after it. Returns null if there is no memory.
    ///
    /// # Safety
    /// `info` is null or of this library.
    pub unsafe fn fi_dupinfo(&self, info: *const fi_info) -> *mut fi_info {
        // SAFETY: the caller upholds the contract.
        unsafe { (self.functions.fi_dupinfo)(info) }
    }

    /// Allocates an entry and its attributes, all zero. Returns null if there is no memory.
    #[must_use]
    pub fn fi_allocinfo(&self) -> *mut fi_info {
        // SAFETY: null is permitted.
        unsafe { (self.functions.fi_dupinfo)(core::ptr::null()) }
    }

    /// Opens a fabric. Close it with [`fi_close`](crate::fi_close).
    ///
    /// # Safety
    /// `attr` is of this library. `fabric` is valid for a write.
    pub unsafe fn fi_fabric(
        &self,
        attr: *mut fi_fabric_attr,
        fabric: *mut *mut fid_fabric,
        context: *mut c_void,
    ) -> c_int {
        // SAFETY: the caller upholds the contract.
        unsafe { (self.functions.fi_fabric)(attr, fabric, context) }
    }
}

/// Returns the names of all objects of the process. The program itself has an empty name.
fn objects() -> Vec<CString> {
    unsafe extern "C" fn add(info: *mut libc::dl_phdr_info, _: usize, names: *mut c_void) -> c_int {
        // SAFETY: the dynamic linker passes a valid structure, and the pointer of the call below.
        let (name, names) = unsafe { ((*info).dlpi_name, &mut *names.cast::<Vec<CString>>()) };
        if !name.is_null() {
            // SAFETY: a name ends with a zero.
            names.push(unsafe { CStr::from_ptr(name) }.to_owned());
        }
        0
    }
    let mut names = Vec::new();
    // SAFETY: the function gets the pointer as its last argument, during this call only.
    unsafe { libc::dl_iterate_phdr(Some(add), (&raw mut names).cast()) };
    names
}

/// Returns the path of the object that has this address.
fn object_of(address: *const c_void) -> PathBuf {
    // SAFETY: all members are numbers and pointers.
    let mut info: libc::Dl_info = unsafe { core::mem::zeroed() };
    // SAFETY: the structure is valid for a write.
    if unsafe { libc::dladdr(address, &raw mut info) } == 0 || info.dli_fname.is_null() {
        return PathBuf::new();
    }
    // SAFETY: the name ends with a zero, and its object is loaded.
    OsStr::from_bytes(unsafe { CStr::from_ptr(info.dli_fname) }.to_bytes()).into()
}
