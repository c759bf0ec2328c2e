//! What this crate declares, as lists: for the tests that hold it against the specification's own header.

use core::ffi::CStr;

use crate::table::Member;

/// A name and its number.
pub type Constant = (&'static str, u32);

/// A structure as this crate lays it out.
#[derive(Clone, Copy, Debug)]
pub struct Structure {
    /// Its name.
    pub name: &'static str,
    /// Its size in bytes.
    pub size: usize,
    /// Each member and its offset in bytes.
    pub members: &'static [(&'static str, usize)],
}

/// A table of functions.
#[derive(Clone, Copy, Debug)]
pub struct Table {
    /// Its name.
    pub name: &'static str,
    /// The function of a driver that fills it.
    pub get: &'static CStr,
    /// Its members.
    pub members: &'static [Member],
}

impl Table {
    pub(crate) const fn of<T: crate::table::Table>(name: &'static str) -> Self {
        Self { name, get: T::GET, members: T::MEMBERS }
    }
}

/// All enumerators and flags.
pub fn constants() -> impl Iterator<Item = Constant> {
    let enums = [
        crate::device::ENUMS,
        crate::device_ext::ENUMS,
        crate::list::ENUMS,
        crate::memory::ENUMS,
        crate::queue::ENUMS,
        crate::result::ENUMS,
        crate::structure_type::ENUMS,
        crate::version::ENUMS,
        crate::virtual_memory::ENUMS,
    ];
    let flags = [
        crate::device::FLAGS,
        crate::driver::FLAGS,
        crate::event::FLAGS,
        crate::external::FLAGS,
        crate::list::FLAGS,
        crate::memory::FLAGS,
        crate::queue::FLAGS,
        crate::virtual_memory::FLAGS,
    ];
    enums.into_iter().chain(flags).flatten().copied()
}

/// All structures.
pub fn structures() -> impl Iterator<Item = Structure> {
    [
        crate::base::PLAIN,
        crate::device::CHAINED,
        crate::device::PLAIN,
        crate::device_ext::CHAINED,
        crate::device_ext::PLAIN,
        crate::driver::CHAINED,
        crate::driver::PLAIN,
        crate::event::CHAINED,
        crate::event::PLAIN,
        crate::external::CHAINED,
        crate::list::CHAINED,
        crate::list::PLAIN,
        crate::memory::CHAINED,
        crate::memory::PLAIN,
        crate::queue::CHAINED,
        crate::virtual_memory::CHAINED,
    ]
    .into_iter()
    .flatten()
    .copied()
}

/// All tables.
pub fn tables() -> impl Iterator<Item = Table> {
    [
        crate::tables::execution::TABLES,
        crate::tables::memory::TABLES,
        crate::tables::other::TABLES,
        crate::tables::setup::TABLES,
        crate::tables::synchronization::TABLES,
    ]
    .into_iter()
    .flatten()
    .copied()
}
