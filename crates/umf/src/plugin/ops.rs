//! The C table of functions that a plugin exports: UMF's provider ops, versions 1.0, 1.1 and 1.2.
//!
//! Each version adds members at the end. What is read of a table is exactly what its version has: behind that
//! there may be anything. The members are copied, so that a table that changes later changes nothing here.

use core::ffi::{c_char, c_void};

use super::error::TableFault;

/// What the plugin returns from `initialize` and is handed back in every call; opaque, and may be NULL for one that
/// keeps no state.
pub type State = *mut c_void;
/// `umf_result_t`.
pub type Code = i32;

/// The exported function.
pub type GetTable = unsafe extern "C" fn() -> *const u32;

pub type Initialize = unsafe extern "C" fn(params: *const c_void, state: *mut State) -> Code;
pub type Finalize = unsafe extern "C" fn(State) -> Code;
pub type Alloc = unsafe extern "C" fn(State, size: usize, align: usize, memory: *mut *mut c_void) -> Code;
/// Of `free`, `ext_purge_lazy`, `ext_purge_force` and `ext_close_ipc_handle`.
pub type OnRange = unsafe extern "C" fn(State, memory: *mut c_void, size: usize) -> Code;
pub type LastNativeError = unsafe extern "C" fn(State, message: *mut *const c_char, native: *mut i32) -> Code;
pub type RecommendedPageSize = unsafe extern "C" fn(State, size: usize, page: *mut usize) -> Code;
pub type MinPageSize = unsafe extern "C" fn(State, memory: *const c_void, page: *mut usize) -> Code;
pub type GetName = unsafe extern "C" fn(State, name: *mut *const c_char) -> Code;
pub type Merge = unsafe extern "C" fn(State, low: *mut c_void, high: *mut c_void, total: usize) -> Code;
pub type Split = unsafe extern "C" fn(State, memory: *mut c_void, total: usize, first: usize) -> Code;
/// Of `ext_get_ipc_handle_size` and `get_cache_line_size`.
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

/// `umf_memory_provider_ops_t` as of version 1.0.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct Table1_0 {
    pub version: u32,
    pub initialize: Option<Initialize>,
    pub finalize: Option<Finalize>,
    pub alloc: Option<Alloc>,
    pub free: Option<OnRange>,
    pub get_last_native_error: Option<LastNativeError>,
    pub get_recommended_page_size: Option<RecommendedPageSize>,
    pub get_min_page_size: Option<MinPageSize>,
    pub get_name: Option<GetName>,
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
}

/// What version 1.1 adds.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct Table1_1 {
    pub base: Table1_0,
    pub ext_get_allocation_properties: Option<GetProperty>,
    pub ext_get_allocation_properties_size: Option<GetPropertySize>,
}

/// What version 1.2 adds.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct Table1_2 {
    pub base: Table1_1,
    pub get_cache_line_size: Option<GetSize>,
}

const _: () = {
    use core::mem::{align_of, offset_of, size_of};
    assert!(size_of::<Table1_0>() == 152 && size_of::<Table1_1>() == 168 && size_of::<Table1_2>() == 176);
    assert!(align_of::<Table1_2>() == 8);
    assert!(offset_of!(Table1_0, initialize) == 8);
    assert!(offset_of!(Table1_0, get_name) == 64);
    assert!(offset_of!(Table1_0, ext_purge_lazy) == 72);
    assert!(offset_of!(Table1_0, ext_allocation_merge) == 88);
    assert!(offset_of!(Table1_0, ext_get_ipc_handle_size) == 104);
    assert!(offset_of!(Table1_0, ext_ctl) == 144);
    assert!(offset_of!(Table1_1, ext_get_allocation_properties) == 152);
    assert!(offset_of!(Table1_2, get_cache_line_size) == 168);
};

/// The functions of a table that was found good.
#[derive(Clone, Copy)]
pub struct Operations {
    pub minor: u16,
    pub initialize: Initialize,
    pub finalize: Finalize,
    pub alloc: Alloc,
    pub free: OnRange,
    pub get_last_native_error: LastNativeError,
    pub get_recommended_page_size: RecommendedPageSize,
    pub get_min_page_size: MinPageSize,
    pub get_name: GetName,
    pub purge_lazy: Option<OnRange>,
    pub purge_force: Option<OnRange>,
    pub split_merge: Option<SplitMergeOperations>,
    pub ipc: Option<IpcOperations>,
    pub ctl: Option<Ctl>,
    pub properties: Option<PropertyOperations>,
    pub get_cache_line_size: Option<GetSize>,
}

/// Both or neither.
#[derive(Clone, Copy)]
pub struct SplitMergeOperations {
    pub split: Split,
    pub merge: Merge,
}

/// All or none.
#[derive(Clone, Copy)]
pub struct IpcOperations {
    pub size: GetSize,
    pub get: GetIpcHandle,
    pub put: PutIpcHandle,
    pub open: OpenIpcHandle,
    pub close: OnRange,
}

/// Both or neither.
#[derive(Clone, Copy)]
pub struct PropertyOperations {
    pub get: GetProperty,
    pub size: GetPropertySize,
}

impl Operations {
    /// Reads and checks a table.
    ///
    /// # Safety
    /// `table` is NULL, misaligned, or points to a table that is as long as its version says.
    pub unsafe fn read(table: *const u32) -> Result<Self, TableFault> {
        if table.is_null() {
            return Err(TableFault::Null);
        }
        if !table.cast::<Table1_2>().is_aligned() {
            return Err(TableFault::Misaligned);
        }
        // SAFETY: every version begins with its number.
        let version = unsafe { table.read() };
        let (major, minor) = ((version >> 16) as u16, (version & 0xffff) as u16);
        if major != 1 || minor > 2 {
            return Err(TableFault::Version { major, minor });
        }
        // SAFETY: every version 1 has the members of 1.0.
        let base = unsafe { table.cast::<Table1_0>().read() };
        let (mut property, mut property_size, mut cache_line) = (None, None, None);
        if minor >= 1 {
            // SAFETY: versions from 1.1 on have these members.
            let more = unsafe { table.cast::<Table1_1>().read() };
            property = more.ext_get_allocation_properties;
            property_size = more.ext_get_allocation_properties_size;
        }
        if minor >= 2 {
            // SAFETY: version 1.2 has this member.
            cache_line = unsafe { table.cast::<Table1_2>().read() }.get_cache_line_size;
            if cache_line.is_none() {
                return Err(TableFault::Missing { operation: "get_cache_line_size" });
            }
        }
        let needed = |operation| TableFault::Missing { operation };
        Ok(Self {
            minor,
            initialize: base.initialize.ok_or(needed("initialize"))?,
            finalize: base.finalize.ok_or(needed("finalize"))?,
            alloc: base.alloc.ok_or(needed("alloc"))?,
            free: base.free.ok_or(needed("free"))?,
            get_last_native_error: base.get_last_native_error.ok_or(needed("get_last_native_error"))?,
            get_recommended_page_size: base
                .get_recommended_page_size
                .ok_or(needed("get_recommended_page_size"))?,
            get_min_page_size: base.get_min_page_size.ok_or(needed("get_min_page_size"))?,
            get_name: base.get_name.ok_or(needed("get_name"))?,
            purge_lazy: base.ext_purge_lazy,
            purge_force: base.ext_purge_force,
            split_merge: match (base.ext_allocation_split, base.ext_allocation_merge) {
                (Some(split), Some(merge)) => Some(SplitMergeOperations { split, merge }),
                (None, None) => None,
                _ => {
                    return Err(TableFault::Incomplete {
                        operations: "ext_allocation_split, ext_allocation_merge",
                    });
                }
            },
            ipc: Self::ipc_of(&base)?,
            ctl: base.ext_ctl,
            properties: match (property, property_size) {
                (Some(get), Some(size)) => Some(PropertyOperations { get, size }),
                (None, None) => None,
                _ => {
                    return Err(TableFault::Incomplete {
                        operations: "ext_get_allocation_properties, ext_get_allocation_properties_size",
                    });
                }
            },
            get_cache_line_size: cache_line,
        })
    }

    fn ipc_of(base: &Table1_0) -> Result<Option<IpcOperations>, TableFault> {
        let five = (
            base.ext_get_ipc_handle_size,
            base.ext_get_ipc_handle,
            base.ext_put_ipc_handle,
            base.ext_open_ipc_handle,
            base.ext_close_ipc_handle,
        );
        match five {
            (Some(size), Some(get), Some(put), Some(open), Some(close)) => {
                Ok(Some(IpcOperations { size, get, put, open, close }))
            }
            (None, None, None, None, None) => Ok(None),
            _ => Err(TableFault::Incomplete {
                operations: "ext_get_ipc_handle_size, ext_get_ipc_handle, ext_put_ipc_handle, ext_open_ipc_handle, \
                             ext_close_ipc_handle",
            }),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// As many words as the longest table has, and one behind.
    const WORDS: usize = 23;
    const V1_0: u64 = 0x1_0000;
    /// Something that is not NULL, and that nobody may call.
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

    fn read(table: &[u64; WORDS]) -> Result<Operations, TableFault> {
        // SAFETY: the array is longer than any version; its members are NULL or not, and never called.
        unsafe { Operations::read(table.as_ptr().cast()) }
    }

    const MANDATORY: [usize; 8] = [1, 2, 3, 4, 5, 6, 7, 8];

    #[test]
    fn versions_that_are_not_known_are_refused() {
        for (version, major, minor) in [(0x2_0000, 2, 0), (0x1_0003, 1, 3), (0, 0, 0), (0x0_0009, 0, 9)] {
            let fault = read(&table(version, &MANDATORY)).err();
            assert!(
                matches!(fault, Some(TableFault::Version { major: m, minor: n }) if (m, n) == (major, minor)),
                "{version:#x}: {fault:?}"
            );
        }
        let text = TableFault::Version { major: 2, minor: 7 }.to_string();
        assert!(text.contains("2.7") && text.contains("1.0, 1.1 and 1.2"), "{text}");
    }

    #[test]
    fn what_a_version_does_not_have_is_not_read() {
        // Members of 1.1 and 1.2 are junk that would be an error: one of a pair.
        let old = read(&table(V1_0, &[1, 2, 3, 4, 5, 6, 7, 8, 19, 21, 22])).ok().unwrap();
        assert!(old.properties.is_none() && old.get_cache_line_size.is_none() && old.minor == 0);
        let newer = read(&table(V1_0 + 1, &[1, 2, 3, 4, 5, 6, 7, 8, 19, 20, 21])).ok().unwrap();
        assert!(newer.properties.is_some() && newer.get_cache_line_size.is_none());
        let newest = read(&table(V1_0 + 2, &[1, 2, 3, 4, 5, 6, 7, 8, 21])).ok().unwrap();
        assert!(newest.properties.is_none() && newest.get_cache_line_size.is_some());
    }

    #[test]
    fn mandatory_members_are_mandatory() {
        for missing in MANDATORY {
            let others: Vec<_> = MANDATORY.into_iter().filter(|&word| word != missing).collect();
            assert!(matches!(read(&table(V1_0, &others)), Err(TableFault::Missing { .. })), "{missing}");
        }
        let fault = read(&table(V1_0 + 2, &MANDATORY)).err();
        assert!(matches!(fault, Some(TableFault::Missing { operation: "get_cache_line_size" })));
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
                assert!(matches!(with(&rest), Err(TableFault::Incomplete { .. })), "{missing}");
            }
        }
        assert!(with(&[9]).is_ok_and(|table| table.purge_lazy.is_some() && table.purge_force.is_none()));
    }

    #[test]
    fn no_table_is_an_error() {
        // SAFETY: neither pointer is read through.
        let (null, odd) = unsafe {
            (Operations::read(core::ptr::null()), Operations::read(core::ptr::without_provenance(4)))
        };
        assert!(matches!(null, Err(TableFault::Null)));
        assert!(matches!(odd, Err(TableFault::Misaligned)));
    }
}
