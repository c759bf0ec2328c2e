//! `umf_memory_pool_ops_t`, versions 1.0 and 1.1.

use core::ffi::{c_char, c_void};

use umf::plugin::ops::{Ctl, State};

use crate::boundary::{Code, Failure, Handle, Outcome};
use crate::provider::Provider;

pub(crate) type Initialize =
    unsafe extern "C" fn(Handle<Provider>, params: *const c_void, state: *mut State) -> Code;
pub(crate) type OnState = unsafe extern "C" fn(State) -> Code;
pub(crate) type Malloc = unsafe extern "C" fn(State, usize) -> *mut c_void;
pub(crate) type Calloc = unsafe extern "C" fn(State, count: usize, size: usize) -> *mut c_void;
pub(crate) type Realloc = unsafe extern "C" fn(State, *mut c_void, usize) -> *mut c_void;
pub(crate) type AlignedMalloc = unsafe extern "C" fn(State, size: usize, align: usize) -> *mut c_void;
pub(crate) type UsableSize = unsafe extern "C" fn(State, *const c_void, *mut usize) -> Code;
pub(crate) type Free = unsafe extern "C" fn(State, *mut c_void) -> Code;
pub(crate) type GetName = unsafe extern "C" fn(State, *mut *const c_char) -> Code;
pub(crate) type Trim = unsafe extern "C" fn(State, usize) -> Code;

/// What every version begins with.
pub(crate) type PoolVersion = u32;

/// The table as of version 1.0.
#[repr(C)]
#[derive(Clone, Copy)]
struct Table1_0 {
    version: PoolVersion,
    initialize: Option<Initialize>,
    finalize: Option<OnState>,
    malloc: Option<Malloc>,
    calloc: Option<Calloc>,
    realloc: Option<Realloc>,
    aligned_malloc: Option<AlignedMalloc>,
    malloc_usable_size: Option<UsableSize>,
    free: Option<Free>,
    get_last_allocation_error: Option<OnState>,
    get_name: Option<GetName>,
    ext_ctl: Option<Ctl>,
}

/// The table as of version 1.1.
#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct PoolTable {
    base: Table1_0,
    ext_trim_memory: Option<Trim>,
}

const _: () = assert!(size_of::<Table1_0>() == 96 && size_of::<PoolTable>() == 104);

/// The functions of a pool of this library.
#[derive(Clone, Copy)]
pub(crate) struct Functions {
    pub(crate) initialize: Initialize,
    pub(crate) finalize: OnState,
    pub(crate) malloc: Malloc,
    pub(crate) calloc: Calloc,
    pub(crate) realloc: Realloc,
    pub(crate) aligned_malloc: AlignedMalloc,
    pub(crate) malloc_usable_size: UsableSize,
    pub(crate) free: Free,
    pub(crate) get_last_allocation_error: OnState,
    pub(crate) get_name: GetName,
    pub(crate) ctl: Option<Ctl>,
    pub(crate) trim: Option<Trim>,
}

impl PoolTable {
    /// The table of a pool of this library.
    pub(crate) const fn of(functions: &Functions) -> Self {
        Self {
            base: Table1_0 {
                version: 0x1_0001,
                initialize: Some(functions.initialize),
                finalize: Some(functions.finalize),
                malloc: Some(functions.malloc),
                calloc: Some(functions.calloc),
                realloc: Some(functions.realloc),
                aligned_malloc: Some(functions.aligned_malloc),
                malloc_usable_size: Some(functions.malloc_usable_size),
                free: Some(functions.free),
                get_last_allocation_error: Some(functions.get_last_allocation_error),
                get_name: Some(functions.get_name),
                ext_ctl: functions.ctl,
            },
            ext_trim_memory: functions.trim,
        }
    }
}

/// Reads and checks a table that C gave.
pub(super) fn read(table: *const PoolTable) -> Outcome<Functions> {
    if table.is_null() || !table.is_aligned() {
        return Err(Failure::argument("the table of a pool is NULL or not aligned"));
    }
    // SAFETY: C promises that the table is as long as its version says; every version begins with its number.
    let version = unsafe { table.cast::<PoolVersion>().read() };
    let (major, minor) = (version >> 16, version & 0xffff);
    if major != 1 || minor > 1 {
        return Err(Failure::unsupported("the table of a pool has a version that is neither 1.0 nor 1.1"));
    }
    // SAFETY: as above.
    let base = unsafe { table.cast::<Table1_0>().read() };
    // SAFETY: as above; version 1.1 has this member.
    let trim = if minor >= 1 { unsafe { table.read() }.ext_trim_memory } else { None };
    let lacks = Failure::argument("the table of a pool lacks a function that is mandatory");
    let all = || {
        Some(Functions {
            initialize: base.initialize?,
            finalize: base.finalize?,
            malloc: base.malloc?,
            calloc: base.calloc?,
            realloc: base.realloc?,
            aligned_malloc: base.aligned_malloc?,
            malloc_usable_size: base.malloc_usable_size?,
            free: base.free?,
            get_last_allocation_error: base.get_last_allocation_error?,
            get_name: base.get_name?,
            ctl: base.ext_ctl,
            trim,
        })
    };
    all().ok_or(lacks)
}

impl Functions {
    /// Whether both are the same functions, for all that allocates and frees.
    pub(super) fn allocates_as(&self, other: &Self) -> bool {
        use core::ptr::fn_addr_eq;
        fn_addr_eq(self.malloc, other.malloc)
            && fn_addr_eq(self.aligned_malloc, other.aligned_malloc)
            && fn_addr_eq(self.free, other.free)
            && fn_addr_eq(self.finalize, other.finalize)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::boundary::{INVALID_ARGUMENT, NOT_SUPPORTED};

    fn read_words(words: [u64; 14]) -> Result<Functions, Code> {
        read(words.as_ptr().cast()).map_err(|failure| failure.code())
    }

    #[test]
    fn versions_and_members_are_checked() {
        let junk = 0xdead_beef;
        let mut words = [junk; 14];
        words[0] = 0x1_0001;
        assert!(read_words(words).is_ok_and(|functions| functions.trim.is_some()));
        words[0] = 0x1_0000;
        // What version 1.0 does not have is not read.
        assert!(read_words(words).is_ok_and(|functions| functions.trim.is_none()));
        for version in [0x1_0002, 0x2_0000, 0] {
            words[0] = version;
            assert_eq!(read_words(words).err(), Some(NOT_SUPPORTED), "{version:#x}");
        }
        words[0] = 0x1_0001;
        for missing in 1..=10 {
            let mut words = words;
            words[missing] = 0;
            assert_eq!(read_words(words).err(), Some(INVALID_ARGUMENT), "{missing}");
        }
        words[11] = 0;
        words[12] = 0;
        assert!(read_words(words).is_ok());
        assert_eq!(read(core::ptr::null()).err().map(|failure| failure.code()), Some(INVALID_ARGUMENT));
    }
}
