//! [`Table`]: the table of C functions of a provider, `umf_memory_provider_ops_t`, in versions 1.0, 1.1 and 1.2.
//!
//! Each version adds members at the end. [`Table::read`] reads only the members of the table's
//! version, because the memory after them is undefined. It copies them, so that later changes of
//! the table have no effect.

use core::ffi::{c_char, c_void};

use super::error::TableError;

/// The state that `initialize` returns, and that is passed to every function. Opaque; NULL for a
/// provider without state.
pub type State = *mut c_void;
/// `umf_result_t`.
pub type Code = i32;

/// The type of the exported function.
pub type GetTable = unsafe extern "C" fn() -> *const u32;

pub type Initialize = unsafe extern "C" fn(params: *const c_void, state: *mut State) -> Code;
pub type Finalize = unsafe extern "C" fn(State) -> Code;
pub type Alloc = unsafe extern "C" fn(State, size: usize, align: usize, memory: *mut *mut c_void) -> Code;
/// The type of `free`, `ext_purge_lazy`, `ext_purge_force` and `ext_close_ipc_handle`.
pub type OnRange = unsafe extern "C" fn(State, memory: *mut c_void, size: usize) -> Code;
pub type LastNativeError = unsafe extern "C" fn(State, message: *mut *const c_char, native: *mut i32) -> Code;
pub type RecommendedPageSize = unsafe extern "C" fn(State, size: usize, page: *mut usize) -> Code;
pub type MinPageSize = unsafe extern "C" fn(State, memory: *const c_void, page: *mut usize) -> Code;
pub type GetName = unsafe extern "C" fn(State, name: *mut *const c_char) -> Code;
pub type Merge = unsafe extern "C" fn(State, low: *mut c_void, high: *mut c_void, total: usize) -> Code;
pub type Split = unsafe extern "C" fn(State, memory: *mut c_void, total: usize, first: usize) -> Code;
/// The type of `ext_get_ipc_handle_size` and `get_cache_line_size`.
pub type GetSize = unsafe extern "C" fn(State, size: *mut usize) -> Code;
pub type GetIpcHandle =
    unsafe extern "C" fn(State, memory: *const c_void, size: usize, handle: *mut c_void) -> Code;
pub type PutIpcHandle = unsafe extern "C" fn(State, handle: *mut c_void) -> Code;
pub type OpenIpcHandle = unsafe extern "C" fn(State, handle: *mut c_void, memory: *mut *mut c_void) -> Code;
/// The last parameter is a `va_list`, which every 64-bit Linux ABI passes as one pointer.
pub type Ctl = unsafe extern "C" fn(
    State,
    source: i32,
    name: *const c_char,
    argument: *mut c_void,
    size: usize,
    query: i32,
    more: *mut c_void,
) -> Code;
pub type GetProperty =
    unsafe extern "C" fn(State, memory: *const c_void, property: i32, value: *mut c_void) -> Code;
pub type GetPropertySize = unsafe extern "C" fn(State, property: i32, size: *mut usize) -> Code;

/// `umf_memory_provider_ops_t`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct Table {
    pub version: u32,
    pub functions: Functions,
}

/// The members of a table. Members that its version lacks are `None`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct Functions {
    pub initialize: Initialize,
    pub finalize: Finalize,
    pub alloc: Alloc,
    pub free: OnRange,
    pub get_last_native_error: LastNativeError,
    pub get_recommended_page_size: RecommendedPageSize,
    pub get_min_page_size: MinPageSize,
    pub get_name: GetName,
    pub ext_purge_lazy: Option<OnRange>,
    pub ext_purge_force: Option<OnRange>,
    pub ext_allocation_merge: Option<Merge>,
    pub ext_allocation_split: Option<Split>,
    pub ext_get_ipc_handle_size: Option<GetSize>,
    pub ext_get_ipc_handle: Option<GetIpcHandle>,
    pub ext_put_ipc_handle: Option<PutIpcHandle>,
    pub ext_open_ipc_handle: Option<OpenIpcHandle>,
    pub ext_close_ipc_handle: Option<OnRange>,
    pub ext_ctl: Option<Ctl>,
    /// From version 1.1 on.
    pub ext_get_allocation_properties: Option<GetProperty>,
    pub ext_get_allocation_properties_size: Option<GetPropertySize>,
    /// From version 1.2 on.
    pub get_cache_line_size: Option<GetSize>,
}

/// A function of any type.
type Member = Option<unsafe extern "C" fn()>;
const MEMBERS: usize = size_of::<Functions>() / size_of::<Member>();

const _: () = {
    use core::mem::offset_of;
    assert!(size_of::<Table>() == 176 && align_of::<Table>() == 8 && MEMBERS == 21);
    assert!(offset_of!(Table, functions) == 8);
    assert!(offset_of!(Functions, get_name) == 56);
    assert!(offset_of!(Functions, ext_ctl) == 136);
    assert!(offset_of!(Functions, get_cache_line_size) == 160);
};

/// The mandatory members, which come first.
const MANDATORY: [&str; 8] = [
    "initialize",
    "finalize",
    "alloc",
    "free",
    "get_last_native_error",
    "get_recommended_page_size",
    "get_min_page_size",
    "get_name",
];

/// Groups of members of which a table has all or none.
const GROUPS: [(core::ops::Range<usize>, &str); 3] = [
    (10..12, "ext_allocation_merge, ext_allocation_split"),
    (
        12..17,
        "ext_get_ipc_handle_size, ext_get_ipc_handle, ext_put_ipc_handle, ext_open_ipc_handle, \
         ext_close_ipc_handle",
    ),
    (18..20, "ext_get_allocation_properties, ext_get_allocation_properties_size"),
];

impl Table {
    /// The newest version, whose tables have all members.
    pub const NEWEST: u32 = 0x1_0002;

    /// Copies and validates a table.
    ///
    /// # Safety
    /// `table` is NULL, misaligned, or points to a table that has all members of its version.
    pub unsafe fn read(table: *const u32) -> Result<Self, TableError> {
        if table.is_null() {
            return Err(TableError::Null);
        }
        if !table.cast::<Self>().is_aligned() {
            return Err(TableError::Misaligned);
        }
        // SAFETY: every table begins with its version.
        let version = unsafe { table.read() };
        let (major, minor) = ((version >> 16) as u16, (version & 0xffff) as u16);
        let count = match (major, minor) {
            (1, 0) => 18,
            (1, 1) => 20,
            (1, 2) => MEMBERS,
            _ => return Err(TableError::Version { major, minor }),
        };
        let mut members = [Member::None; MEMBERS];
        // SAFETY: a table of this version has `count` members, from the second word on.
        unsafe { core::ptr::copy_nonoverlapping(table.cast::<Member>().add(1), members.as_mut_ptr(), count) };
        let missing = MANDATORY.iter().zip(&members).find(|(_, member)| member.is_none());
        if let Some((operation, _)) = missing {
            return Err(TableError::Missing { operation });
        }
        if minor >= 2 && members[MEMBERS - 1].is_none() {
            return Err(TableError::Missing { operation: "get_cache_line_size" });
        }
        for (group, operations) in GROUPS {
            let present = members[group.clone()].iter().flatten().count();
            if present != 0 && present != group.len() {
                return Err(TableError::Incomplete { operations });
            }
        }
        // SAFETY: `Functions` has as many function pointers, and the mandatory ones are not NULL.
        // By the caller's contract each has the type of its member.
        let functions = unsafe { core::mem::transmute::<[Member; MEMBERS], Functions>(members) };
        Ok(Self { version, functions })
    }

    /// Returns whether a table has version 1.1 or a newer one.
    #[must_use]
    pub const fn is_1_1(&self) -> bool {
        self.version & 0xffff >= 1
    }
}

impl Functions {
    /// Returns whether both have the same functions, apart from `initialize`. Then a state of one
    /// is a state of the other.
    #[must_use]
    pub fn have_states_of(&self, other: &Self) -> bool {
        self.addresses()[1..] == other.addresses()[1..]
    }

    fn addresses(&self) -> [usize; MEMBERS] {
        // SAFETY: all members are function pointers, and a `Member` may be NULL.
        let members = unsafe { core::mem::transmute::<Self, [Member; MEMBERS]>(*self) };
        members.map(|member| member.map_or(0, |function| function as usize))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// As many words as the longest table has, and one behind.
    const WORDS: usize = 23;
    const V1_0: u64 = 0x1_0000;
    /// Something that is not NULL, and is never called.
    const JUNK: u64 = 0xdead_beef;

    /// A table with `version` in which the members at `words` are set.
    fn table(version: u64, words: &[usize]) -> [u64; WORDS] {
        let mut table = [0; WORDS];
        table[0] = version;
        for &word in words {
            table[word] = JUNK;
        }
        table
    }

    fn read(table: &[u64; WORDS]) -> Result<Functions, TableError> {
        // SAFETY: the array is longer than any version; its members are NULL or not, and never
        // called.
        unsafe { Table::read(table.as_ptr().cast()) }.map(|table| table.functions)
    }

    const MANDATORY: [usize; 8] = [1, 2, 3, 4, 5, 6, 7, 8];

    #[test]
    fn versions_that_are_not_known_are_refused() {
        for (version, major, minor) in [(0x2_0000, 2, 0), (0x1_0003, 1, 3), (0, 0, 0), (0x0_0009, 0, 9)] {
            let fault = read(&table(version, &MANDATORY)).err();
            assert!(
                matches!(fault, Some(TableError::Version { major: m, minor: n }) if (m, n) == (major, minor)),
                "{version:#x}: {fault:?}"
            );
        }
        let text = TableError::Version { major: 2, minor: 7 }.to_string();
        assert!(text.contains("2.7") && text.contains("1.0, 1.1 and 1.2"), "{text}");
    }

    #[test]
    fn what_a_version_does_not_have_is_not_read() {
        // Members of 1.1 and 1.2 are junk that would be an error: one of a pair.
        let old = read(&table(V1_0, &[1, 2, 3, 4, 5, 6, 7, 8, 19, 21, 22])).ok().unwrap();
        assert!(old.ext_get_allocation_properties.is_none() && old.get_cache_line_size.is_none());
        let newer = read(&table(V1_0 + 1, &[1, 2, 3, 4, 5, 6, 7, 8, 19, 20, 21])).ok().unwrap();
        assert!(newer.ext_get_allocation_properties.is_some() && newer.get_cache_line_size.is_none());
        let newest = read(&table(V1_0 + 2, &[1, 2, 3, 4, 5, 6, 7, 8, 21])).ok().unwrap();
        assert!(newest.ext_get_allocation_properties.is_none() && newest.get_cache_line_size.is_some());
    }

    #[test]
    fn mandatory_members_are_mandatory() {
        for missing in MANDATORY {
            let others: Vec<_> = MANDATORY.into_iter().filter(|&word| word != missing).collect();
            assert!(matches!(read(&table(V1_0, &others)), Err(TableError::Missing { .. })), "{missing}");
        }
        let fault = read(&table(V1_0 + 2, &MANDATORY)).err();
        assert!(matches!(fault, Some(TableError::Missing { operation: "get_cache_line_size" })));
    }

    #[test]
    fn groups_are_complete_or_absent() {
        let with = |more: &[usize]| {
            let mut words = MANDATORY.to_vec();
            words.extend(more);
            read(&table(V1_0 + 1, &words))
        };
        for group in [&[11, 12][..], &[13, 14, 15, 16, 17], &[19, 20]] {
            assert!(with(group).is_ok());
            for &missing in group {
                let rest: Vec<_> = group.iter().copied().filter(|&word| word != missing).collect();
                assert!(matches!(with(&rest), Err(TableError::Incomplete { .. })), "{missing}");
            }
        }
        assert!(
            with(&[9]).is_ok_and(|table| table.ext_purge_lazy.is_some() && table.ext_purge_force.is_none())
        );
    }

    #[test]
    fn no_table_is_an_error() {
        // SAFETY: neither pointer is read through.
        let (null, odd) =
            unsafe { (Table::read(core::ptr::null()), Table::read(core::ptr::without_provenance(4))) };
        assert!(matches!(null, Err(TableError::Null)));
        assert!(matches!(odd, Err(TableError::Misaligned)));
    }

    #[test]
    fn every_member_but_initialize_decides_whose_states_are_taken() {
        let all: Vec<_> = (1..22).collect();
        let one = read(&table(V1_0 + 2, &all)).unwrap();
        for member in 1..22 {
            let mut words = table(V1_0 + 2, &all);
            words[member] += 1;
            assert_eq!(read(&words).unwrap().have_states_of(&one), member == 1, "{member}");
        }
    }
}
