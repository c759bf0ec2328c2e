//! `umf_memory_pool_ops_t`, versions 1.0 and 1.1.

use core::ffi::{c_char, c_void};

use umf_provider_plugin::table::{Ctl, State};

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

/// The table in the layout of version 1.1.
#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct PoolTable {
    version: u32,
    functions: Functions,
}

/// The members of a table.
#[repr(C)]
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
    pub(crate) ext_ctl: Option<Ctl>,
    /// Since version 1.1.
    pub(crate) ext_trim_memory: Option<Trim>,
}

/// A function pointer of any type.
type Member = Option<unsafe extern "C" fn()>;
const MEMBERS: usize = size_of::<Functions>() / size_of::<Member>();
/// Number of mandatory members, which come first.
const MANDATORY: usize = 10;

const _: () = assert!(MEMBERS == 12 && size_of::<PoolTable>() == 104);

impl PoolTable {
    /// Creates the table of a pool of this library.
    pub(crate) const fn of(functions: Functions) -> Self {
        Self { version: 0x1_0001, functions }
    }
}

/// Reads and validates a table from C.
pub(super) fn read(table: *const PoolTable) -> Outcome<Functions> {
    if table.is_null() || !table.is_aligned() {
        return Err(Failure::argument("the table of a pool is NULL or not aligned"));
    }
    // SAFETY: C guarantees that the table is as long as its version requires. Each version begins
    // with its number.
    let count = match unsafe { table.cast::<u32>().read() } {
        0x1_0000 => MEMBERS - 1,
        0x1_0001 => MEMBERS,
        _ => {
            let why = "the table of a pool has a version that is neither 1.0 nor 1.1";
            return Err(Failure::unsupported(why));
        }
    };
    let mut members = [Member::None; MEMBERS];
    // SAFETY: C guarantees that `count` members follow the first word.
    unsafe { core::ptr::copy_nonoverlapping(table.cast::<Member>().add(1), members.as_mut_ptr(), count) };
    if members[..MANDATORY].iter().any(Option::is_none) {
        return Err(Failure::argument("the table of a pool lacks a function that is mandatory"));
    }
    // SAFETY: `Functions` consists of as many function pointers, and the mandatory ones are not
    // NULL. C guarantees the type of each.
    Ok(unsafe { core::mem::transmute::<[Member; MEMBERS], Functions>(members) })
}

impl Functions {
    /// Returns whether both tables have the same functions apart from `initialize`. They then share
    /// the type of the state.
    pub(super) fn have_states_of(&self, other: &Self) -> bool {
        self.addresses()[1..] == other.addresses()[1..]
    }

    fn addresses(&self) -> [usize; MEMBERS] {
        // SAFETY: `Functions` consists of nullable and non-null function pointers, all valid as
        // `Member`.
        let members = unsafe { core::mem::transmute::<Self, [Member; MEMBERS]>(*self) };
        members.map(|member| member.map_or(0, |function| function as usize))
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
        assert!(read_words(words).is_ok_and(|functions| functions.ext_trim_memory.is_some()));
        words[0] = 0x1_0000;
        // Members that version 1.0 lacks are not read.
        assert!(read_words(words).is_ok_and(|functions| functions.ext_trim_memory.is_none()));
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
