//! [`Api`]: all functions, loaded at run time from the loader, or from a driver without a loader.

use core::ffi::{CStr, c_void};
use std::ffi::OsStr;
use std::mem::ManuallyDrop;
use std::path::{Path, PathBuf};

use libloading::Library;

use crate::base::{ZE_API_VERSION_CURRENT, ze_api_version_t};
use crate::result::{ZE_RESULT_SUCCESS, ze_result_t};
use crate::tables::*;

/// The name of the loader's library in the system's search path.
pub const LOADER: &str = "libze_loader.so.1";

/// The error of loading a loader or a driver.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum OpenError {
    /// The library cannot be opened.
    #[error("cannot open the Level Zero library {}: {reason}; install the loader (Debian: libze1), or set the path of one", path.display())]
    Library {
        /// The path that was opened.
        path: PathBuf,
        /// The dynamic linker's error.
        reason: String,
    },
    /// The library is neither loader nor driver.
    #[error("{} has no function {function}: it is no Level Zero {expected}", path.display())]
    Other {
        /// The path that was opened.
        path: PathBuf,
        /// The missing function.
        function: &'static str,
        /// The expected kind of library.
        expected: &'static str,
    },
    /// The driver does not return its function tables for the requested version.
    #[error("the Level Zero driver {} failed in {function}: {result}; it is older than this interface", path.display())]
    Refused {
        /// The path that was opened.
        path: PathBuf,
        /// The function that failed.
        function: &'static str,
        /// Its result.
        result: ze_result_t,
    },
}

/// A set of functions that includes the table `T`.
pub trait HasTable<T> {
    /// Returns the table.
    fn table(&self) -> &T;
}

macro_rules! api {
    ($($(#[$doc:meta])* $name:ident: $table:ident,)*) => {
        /// All functions of a loader or a driver. Each may be absent; calling one that is absent is
        /// an error value.
        ///
        /// The functions may be called from any thread, as far as the specification allows it. The
        /// library stays open as long as the process lives: drivers keep threads, and handles
        /// outlive the `Api`.
        #[derive(Clone, Debug)]
        pub struct Api {
            $($(#[$doc])* pub $name: $table,)*
            path: PathBuf,
        }

        impl Api {
            unsafe fn from_symbols(path: &Path, library: &Library) -> Self {
                let mut find = |name: &CStr| symbol(library, name);
                // SAFETY: the library was opened as a loader, whose symbols are the specification's
                // functions; it stays open.
                unsafe { Self { $($name: $table::from_symbols(&mut find),)* path: path.to_owned() } }
            }

            unsafe fn from_driver(
                path: &Path,
                library: &Library,
                version: ze_api_version_t,
            ) -> Result<Self, OpenError> {
                // SAFETY: the library was opened as a driver; its functions fill the members of
                // the requested version.
                unsafe { Ok(Self { $($name: driver_table(path, library, version)?,)* path: path.to_owned() }) }
            }
        }

        $(impl HasTable<$table> for Api {
            fn table(&self) -> &$table {
                &self.$name
            }
        })*
    };
}

api! {
    /// Initialization of drivers.
    global: ze_global_dditable_t,
    /// Drivers.
    driver: ze_driver_dditable_t,
    /// Devices.
    device: ze_device_dditable_t,
    /// Contexts.
    context: ze_context_dditable_t,
    /// Queues.
    command_queue: ze_command_queue_dditable_t,
    /// Command lists.
    command_list: ze_command_list_dditable_t,
    /// Allocations.
    mem: ze_mem_dditable_t,
    /// Allocations, experimental.
    mem_exp: ze_mem_exp_dditable_t,
    /// Reserved addresses.
    virtual_mem: ze_virtual_mem_dditable_t,
    /// Pools of events.
    event_pool: ze_event_pool_dditable_t,
    /// Events.
    event: ze_event_dditable_t,
    /// Fences.
    fence: ze_fence_dditable_t,
}

impl Api {
    /// Opens the system's loader, [`LOADER`].
    ///
    /// # Errors
    /// The loader cannot be opened, or is not a loader.
    ///
    /// # Safety
    /// As for [`Api::load_from`].
    pub unsafe fn load() -> Result<Self, OpenError> {
        // SAFETY: the caller upholds the contract.
        unsafe { Self::load_from(LOADER) }
    }

    /// Opens a loader.
    ///
    /// # Errors
    /// The library cannot be opened, or is not a loader.
    ///
    /// # Safety
    /// The library is a trusted Level Zero loader: opening it executes its code, and its functions
    /// are called with the specification's prototypes.
    pub unsafe fn load_from(path: impl AsRef<OsStr>) -> Result<Self, OpenError> {
        let path = Path::new(path.as_ref());
        // SAFETY: the caller upholds the contract.
        let library = unsafe { open(path) }?;
        let function = "zeInit";
        if symbol(&library, c"zeInit").is_null() {
            return Err(OpenError::Other { path: path.to_owned(), function, expected: "loader" });
        }
        // SAFETY: it is a loader, and is never closed.
        Ok(unsafe { Self::from_symbols(path, &library) })
    }

    /// Opens a driver without a loader, with the tables of the current version.
    ///
    /// # Errors
    /// The library cannot be opened, is not a driver, or does not return its tables.
    ///
    /// # Safety
    /// As for [`Api::load_from`], for a driver.
    pub unsafe fn load_driver(path: impl AsRef<OsStr>) -> Result<Self, OpenError> {
        // SAFETY: the caller upholds the contract.
        unsafe { Self::load_driver_at(path, ZE_API_VERSION_CURRENT) }
    }

    /// Opens a driver as [`Api::load_driver`] does, with the tables of `version`. Later functions
    /// are missing.
    ///
    /// # Errors
    /// As for [`Api::load_driver`].
    ///
    /// # Safety
    /// As for [`Api::load_driver`].
    pub unsafe fn load_driver_at(
        path: impl AsRef<OsStr>,
        version: ze_api_version_t,
    ) -> Result<Self, OpenError> {
        let path = Path::new(path.as_ref());
        // SAFETY: the caller upholds the contract.
        let library = unsafe { open(path) }?;
        // SAFETY: it is a driver, and is never closed.
        unsafe { Self::from_driver(path, &library, version) }
    }

    /// Returns the path of the library.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }
}

/// Opens a library that is never unloaded.
unsafe fn open(path: &Path) -> Result<ManuallyDrop<Library>, OpenError> {
    // SAFETY: the caller trusts the library's code to run.
    let opened = unsafe { Library::new(path) };
    opened.map(ManuallyDrop::new).map_err(|error| {
        let reason = std::error::Error::source(&error).map_or_else(|| error.to_string(), ToString::to_string);
        OpenError::Library { path: path.to_owned(), reason }
    })
}

/// Returns the address of a symbol, or null.
fn symbol(library: &Library, name: &CStr) -> *mut c_void {
    // SAFETY: only its address is taken.
    unsafe { library.get::<*mut c_void>(name).ok().and_then(|symbol| symbol.try_as_raw_ptr()) }
        .unwrap_or(core::ptr::null_mut())
}

/// Returns a table of a driver. An optional table that is missing is empty.
unsafe fn driver_table<T: Table>(
    path: &Path,
    library: &Library,
    version: ze_api_version_t,
) -> Result<T, OpenError> {
    type Get<T> = unsafe extern "C" fn(ze_api_version_t, *mut T) -> ze_result_t;
    let mut table = T::default();
    let function = T::GET.to_str().unwrap_or_default();
    let is_needed = function == "zeGetGlobalProcAddrTable";
    // SAFETY: the specification's prototype.
    let Ok(get) = (unsafe { library.get::<Get<T>>(T::GET) }) else {
        return match is_needed {
            true => Err(OpenError::Other { path: path.to_owned(), function, expected: "driver" }),
            false => Ok(table),
        };
    };
    // SAFETY: the table has the members of every version up to the current one.
    match unsafe { get(ze_api_version_t(version.0.min(ZE_API_VERSION_CURRENT.0)), &raw mut table) } {
        ZE_RESULT_SUCCESS => Ok(table),
        result if is_needed => Err(OpenError::Refused { path: path.to_owned(), function, result }),
        _ => Ok(T::default()),
    }
}

/// A member of a table.
#[derive(Clone, Copy, Debug)]
pub struct Member {
    /// The version of the specification that added it.
    pub since: u32,
    /// Its name in the table.
    pub name: &'static str,
    /// The function that it points to.
    pub function: &'static CStr,
}

/// A table of functions that a driver fills.
///
/// # Safety
/// The type consists of one nullable function pointer for each of [`Table::MEMBERS`], in order.
pub unsafe trait Table: Copy + Default {
    /// The function of a driver that fills it.
    const GET: &'static CStr;
    /// Its members. Versions only append members, so that those of a version are a prefix.
    const MEMBERS: &'static [Member];

    /// Returns the number of members that `version` has.
    #[must_use]
    fn known_at(version: ze_api_version_t) -> usize {
        Self::MEMBERS.iter().take_while(|member| member.since <= version.0).count()
    }

    /// Returns a table with the functions at the addresses that `find` returns for their names.
    ///
    /// # Safety
    /// `find` returns null or the address of a function with the specification's prototype for that
    /// name. The function stays loaded as long as the table is used.
    unsafe fn from_symbols(find: &mut dyn FnMut(&'static CStr) -> *mut c_void) -> Self {
        let mut table = Self::default();
        let members = (&raw mut table).cast::<*mut c_void>();
        for (index, member) in Self::MEMBERS.iter().enumerate() {
            // SAFETY: the table has that many pointers; by the contract, the new one is valid.
            unsafe { members.add(index).write(find(member.function)) };
        }
        table
    }

    /// Returns the function that the member at an index points to.
    #[must_use]
    fn pointer(&self, index: usize) -> Option<*mut c_void> {
        let members = core::ptr::from_ref(self).cast::<*mut c_void>();
        // SAFETY: the table has that many pointers.
        let found = (index < Self::MEMBERS.len()).then(|| unsafe { members.add(index).read() })?;
        (!found.is_null()).then_some(found)
    }

    /// Sets every null member to `function`, which is then called with arguments that it ignores.
    /// In the supported calling conventions the caller cleans up the arguments.
    fn fill_absent(&mut self, function: unsafe extern "C" fn() -> ze_result_t) {
        for index in 0..Self::MEMBERS.len() {
            if self.pointer(index).is_none() {
                let members = core::ptr::from_mut(self).cast::<*mut c_void>();
                // SAFETY: the table has that many function pointers, and this is a function.
                unsafe { members.add(index).write(function as *mut c_void) };
            }
        }
    }

    /// Writes the members that `version` has to `target`, and nothing past them: a caller of that
    /// version has a smaller table.
    ///
    /// # Safety
    /// `target` is valid for writes of that many pointers.
    unsafe fn fill(&self, target: *mut Self, version: ze_api_version_t) {
        let source = core::ptr::from_ref(self).cast::<*mut c_void>();
        // SAFETY: the caller upholds the contract; a table has at least the members of each
        // version.
        unsafe { core::ptr::copy_nonoverlapping(source, target.cast(), Self::known_at(version)) };
    }
}

/// Converts a zero-terminated literal to a C string.
pub(crate) const fn c_name(literal: &'static str) -> &'static CStr {
    match CStr::from_bytes_with_nul(literal.as_bytes()) {
        Ok(name) => name,
        // Evaluated at compile time.
        Err(_) => panic!("the literal has no zero at its end"),
    }
}
