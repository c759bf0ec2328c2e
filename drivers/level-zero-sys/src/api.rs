//! All functions, opened at run time: from the loader, or from one driver without it.

use core::ffi::{CStr, c_void};
use std::ffi::OsStr;
use std::mem::ManuallyDrop;
use std::path::{Path, PathBuf};

use libloading::Library;

use crate::base::{ZE_API_VERSION_CURRENT, ze_api_version_t};
use crate::result::{ZE_RESULT_SUCCESS, ze_result_t};
use crate::tables::*;

/// The loader's name, which the system's search path resolves.
pub const LOADER: &str = "libze_loader.so.1";

/// Why there are no functions.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum OpenError {
    /// The library cannot be opened.
    #[error("cannot open the Level Zero library {}: {reason}; install the loader (Debian: libze1), or name one that is there", path.display())]
    Library {
        /// What was opened.
        path: PathBuf,
        /// What the dynamic linker says.
        reason: String,
    },
    /// The library is neither loader nor driver.
    #[error("{} has no function {function}: it is no Level Zero {expected}", path.display())]
    Other {
        /// What was opened.
        path: PathBuf,
        /// What it should have.
        function: &'static str,
        /// What it was taken for.
        expected: &'static str,
    },
    /// The driver does not give its functions away at the version asked for.
    #[error("the Level Zero driver {} refuses {function}: {result}", path.display())]
    Refused {
        /// What was opened.
        path: PathBuf,
        /// The function that refused.
        function: &'static str,
        /// Its answer.
        result: ze_result_t,
    },
}

/// That a set of functions has a table of this type.
pub trait Has<T> {
    /// The table.
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
                // SAFETY: the library was opened as a driver; its functions fill tables of the
                // version that they are told.
                unsafe { Ok(Self { $($name: driver_table(path, library, version)?,)* path: path.to_owned() }) }
            }
        }

        $(impl Has<$table> for Api {
            fn table(&self) -> &$table {
                &self.$name
            }
        })*
    };
}

api! {
    /// Starting drivers.
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
    /// There is none, or it is not what it should be.
    ///
    /// # Safety
    /// As for [`Api::load_from`].
    pub unsafe fn load() -> Result<Self, OpenError> {
        // SAFETY: the caller's promise.
        unsafe { Self::load_from(LOADER) }
    }

    /// Opens a loader.
    ///
    /// # Errors
    /// It cannot be opened, or is none.
    ///
    /// # Safety
    /// The library's own code runs when it is opened, and its functions are called by the
    /// specification's prototypes: it has to be a Level Zero loader that the caller trusts.
    pub unsafe fn load_from(path: impl AsRef<OsStr>) -> Result<Self, OpenError> {
        let path = Path::new(path.as_ref());
        // SAFETY: the caller's promise.
        let library = unsafe { open(path) }?;
        let function = "zeInit";
        if symbol(&library, c"zeInit").is_null() {
            return Err(OpenError::Other { path: path.to_owned(), function, expected: "loader" });
        }
        // SAFETY: it is a loader, and is never closed.
        Ok(unsafe { Self::from_symbols(path, &library) })
    }

    /// Opens a driver without a loader between. Its tables are asked for at the newest version that
    /// it has.
    ///
    /// # Errors
    /// It cannot be opened, is none, or refuses.
    ///
    /// # Safety
    /// As for [`Api::load_from`], for a driver.
    pub unsafe fn load_driver(path: impl AsRef<OsStr>) -> Result<Self, OpenError> {
        // SAFETY: the caller's promise.
        unsafe { Self::load_driver_at(path, ZE_API_VERSION_CURRENT) }
    }

    /// As [`Api::load_driver`], with the tables of a version: what came later is absent.
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
        // SAFETY: the caller's promise.
        let library = unsafe { open(path) }?;
        // SAFETY: it is a driver, and is never closed.
        unsafe { Self::from_driver(path, &library, version) }
    }

    /// What was opened.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }
}

/// Opens a library for good.
unsafe fn open(path: &Path) -> Result<ManuallyDrop<Library>, OpenError> {
    // SAFETY: the caller trusts the library's code to run.
    let opened = unsafe { Library::new(path) };
    opened.map(ManuallyDrop::new).map_err(|error| {
        let reason = std::error::Error::source(&error).map_or_else(|| error.to_string(), ToString::to_string);
        OpenError::Library { path: path.to_owned(), reason }
    })
}

/// The address of a symbol; null if there is none.
fn symbol(library: &Library, name: &CStr) -> *mut c_void {
    // SAFETY: only its address is taken.
    unsafe { library.get::<*mut c_void>(name).ok().and_then(|symbol| symbol.try_as_raw_ptr()) }
        .unwrap_or(core::ptr::null_mut())
}

/// A driver's table; empty if it is none that a driver must have.
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
    // SAFETY: the table has room for what any version up to the current one has.
    match unsafe { get(ze_api_version_t(version.0.min(ZE_API_VERSION_CURRENT.0)), &raw mut table) } {
        ZE_RESULT_SUCCESS => Ok(table),
        result if is_needed => Err(OpenError::Refused { path: path.to_owned(), function, result }),
        _ => Ok(T::default()),
    }
}

/// A member of a table.
#[derive(Clone, Copy, Debug)]
pub struct Member {
    /// The version of the specification that brought it.
    pub since: u32,
    /// Its name in the table.
    pub name: &'static str,
    /// The function that it points to.
    pub function: &'static CStr,
}

/// A table of functions, filled by a driver.
///
/// # Safety
/// The type consists of one nullable pointer to a function for each of [`Table::MEMBERS`], in
/// order, and of nothing else.
pub unsafe trait Table: Copy + Default {
    /// The function of a driver that fills it.
    const GET: &'static CStr;
    /// Its members. Members are only ever added at the end, so what a version has is a prefix.
    const MEMBERS: &'static [Member];

    /// How many of the members `version` has.
    #[must_use]
    fn known_at(version: ze_api_version_t) -> usize {
        Self::MEMBERS.iter().take_while(|member| member.since <= version.0).count()
    }

    /// Fills a table with what `find` has for each function's name; a function that it has not
    /// stays absent.
    ///
    /// # Safety
    /// What `find` returns is null or the address of a function with the prototype that the
    /// specification has for that name, which stays where it is as long as the table is used.
    unsafe fn from_symbols(find: &mut dyn FnMut(&'static CStr) -> *mut c_void) -> Self {
        let mut table = Self::default();
        let members = (&raw mut table).cast::<*mut c_void>();
        for (index, member) in Self::MEMBERS.iter().enumerate() {
            // SAFETY: the table has that many pointers; the caller says what the new one leads to.
            unsafe { members.add(index).write(find(member.function)) };
        }
        table
    }

    /// The address of the function that a member points to, by the member's place.
    #[must_use]
    fn pointer(&self, index: usize) -> Option<*mut c_void> {
        let members = core::ptr::from_ref(self).cast::<*mut c_void>();
        // SAFETY: the table has that many pointers.
        let found = (index < Self::MEMBERS.len()).then(|| unsafe { members.add(index).read() })?;
        (!found.is_null()).then_some(found)
    }

    /// Puts `function` wherever there is none. It is called with the parameters of all of these, of
    /// which it has to look at none: on the systems that this crate is for the caller takes care of
    /// the space of parameters.
    fn fill_absent(&mut self, function: unsafe extern "C" fn() -> ze_result_t) {
        for index in 0..Self::MEMBERS.len() {
            if self.pointer(index).is_none() {
                let members = core::ptr::from_mut(self).cast::<*mut c_void>();
                // SAFETY: the table has that many pointers, and this is a function as they lead to.
                unsafe { members.add(index).write(function as *mut c_void) };
            }
        }
    }

    /// Writes to `target` the members that `version` has, and nothing past them: a caller made for
    /// that version has no room.
    ///
    /// # Safety
    /// `target` is valid for writes of that many pointers.
    unsafe fn fill(&self, target: *mut Self, version: ze_api_version_t) {
        let source = core::ptr::from_ref(self).cast::<*mut c_void>();
        // SAFETY: the caller's promise; a table has at least the members that one version of it
        // has.
        unsafe { core::ptr::copy_nonoverlapping(source, target.cast(), Self::known_at(version)) };
    }
}

/// A literal that ends with a zero, as a C string.
pub(crate) const fn c_name(literal: &'static str) -> &'static CStr {
    match CStr::from_bytes_with_nul(literal.as_bytes()) {
        Ok(name) => name,
        // Reached by the compiler at most.
        Err(_) => panic!("the literal has no zero at its end"),
    }
}
