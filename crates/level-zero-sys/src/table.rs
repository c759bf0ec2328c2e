//! What all tables of functions have in common: filling one, from a library's symbols or for a caller of any version.

use core::ffi::{CStr, c_void};

use crate::result::ze_result_t;
use crate::version::ze_api_version_t;

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
/// The type consists of one nullable pointer to a function for each of [`Table::MEMBERS`], in order, and of nothing else.
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

    /// Fills a table with what `find` has for each function's name; a function that it has not stays absent.
    ///
    /// # Safety
    /// What `find` returns is null or the address of a function with the prototype that the specification has for that name,
    /// which stays where it is as long as the table is used.
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

    /// Puts `function` wherever there is none. It is called with the parameters of all of these, of which it has to look at
    /// none: on the systems that this crate is for the caller takes care of the space of parameters.
    fn fill_absent(&mut self, function: unsafe extern "C" fn() -> ze_result_t) {
        for index in 0..Self::MEMBERS.len() {
            if self.pointer(index).is_none() {
                let members = core::ptr::from_mut(self).cast::<*mut c_void>();
                // SAFETY: the table has that many pointers, and this is a function as they lead to.
                unsafe { members.add(index).write(function as *mut c_void) };
            }
        }
    }

    /// Writes to `target` the members that `version` has, and nothing past them: a caller made for that version has no room.
    ///
    /// # Safety
    /// `target` is valid for writes of that many pointers.
    unsafe fn fill(&self, target: *mut Self, version: ze_api_version_t) {
        let source = core::ptr::from_ref(self).cast::<*mut c_void>();
        // SAFETY: the caller's promise; a table has at least the members that one version of it has.
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
