//! The macros for declarations, and lists of all declared items, which tests compare with
//! libfabric's headers.

use core::ffi::{c_char, c_int};

/// The version number `major.minor`, as `fi_version` returns it.
#[must_use]
pub const fn make_version(major: u32, minor: u32) -> u32 {
    major << 16 | minor
}

/// A constant and its value, converted to 64 bits as C does it.
#[derive(Clone, Copy, Debug)]
pub struct Constant {
    /// The name in the header.
    pub name: &'static str,
    /// The value.
    pub value: u64,
    /// The first version that has it, or 0 if all supported versions have it.
    pub since: u32,
    /// The first version that has it no longer, or has it with another meaning.
    pub until: u32,
}

/// A member of a structure or table.
#[derive(Clone, Copy, Debug)]
pub struct Member {
    /// The name in the header.
    pub name: &'static str,
    /// The offset in bytes.
    pub offset: usize,
    /// The size in bytes.
    pub size: usize,
    /// The first version that has it, or 0 if all supported versions have it.
    pub since: u32,
}

/// A structure or a table of functions as this crate lays it out.
#[derive(Clone, Copy, Debug)]
pub struct Structure {
    /// The name in the header.
    pub name: &'static str,
    /// The size in bytes, with all members.
    pub size: usize,
    /// The alignment in bytes.
    pub align: usize,
    /// The members.
    pub members: &'static [Member],
    /// The first version that has it, or 0 if all supported versions have it.
    pub since: u32,
}

/// What an operation returns that a provider does not implement.
pub(crate) trait Unsupported {
    const VALUE: Self;
}

impl Unsupported for c_int {
    const VALUE: Self = -libc::ENOSYS;
}

impl Unsupported for isize {
    const VALUE: Self = -(libc::ENOSYS as isize);
}

impl Unsupported for u64 {
    const VALUE: Self = 0;
}

impl Unsupported for *const c_char {
    const VALUE: Self = core::ptr::null();
}

/// A version, or a default without one.
macro_rules! version {
    ($default:expr;) => {
        $default
    };
    ($default:expr; $major:literal, $minor:literal) => {
        $crate::layout::make_version($major, $minor)
    };
}

/// Declares constants of one type.
macro_rules! constants {
    ($list:ident; $($type:ty { $(
        $(#[$doc:meta])* $name:ident = $value:expr
        $(, since($major:literal, $minor:literal))? $(, until($end_major:literal, $end_minor:literal))?;
    )* })*) => {
        $($(
            $(#[$doc])*
            $(#[doc = concat!("\n\nSince libfabric ", $major, ".", $minor, ".")])?
            $(#[doc = concat!("\n\nUntil libfabric ", $end_major, ".", $end_minor, ", exclusive.")])?
            #[allow(missing_docs, reason = "the interface's name and meaning")]
            pub const $name: $type = $value;
        )*)*

        pub(crate) const $list: &[$crate::layout::Constant] = &[$($($crate::layout::Constant {
            name: stringify!($name),
            value: $name as u64,
            since: version!(0; $($major, $minor)?),
            until: version!(u32::MAX; $($end_major, $end_minor)?),
        }),*),*];
    };
}

/// Declares enumerations. They are not Rust enums, since the other side may pass numbers without a
/// name.
macro_rules! enums {
    ($list:ident; $($(#[$doc:meta])* $name:ident { $(
        $(#[$value_doc:meta])* $value:ident = $number:expr $(, since($major:literal, $minor:literal))?;
    )* })*) => {
        $(
            $(#[$doc])*
            #[repr(transparent)]
            #[derive(Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
            pub struct $name(pub u32);

            $(
                $(#[$value_doc])*
                $(#[doc = concat!("\n\nSince libfabric ", $major, ".", $minor, ".")])?
                #[allow(missing_docs, reason = "the interface's name and meaning")]
                pub const $value: $name = $name($number);
            )*

            impl $name {
                /// Returns the interface's name of this value.
                #[must_use]
                pub fn name(self) -> Option<&'static str> {
                    const NAMES: &[(&str, u32)] = &[$((stringify!($value), $number)),*];
                    NAMES.iter().find(|(_, number)| *number == self.0).map(|(name, _)| *name)
                }
            }

            impl core::fmt::Debug for $name {
                fn fmt(&self, formatter: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
                    match self.name() {
                        Some(name) => formatter.write_str(name),
                        None => write!(formatter, "{}({})", stringify!($name), self.0),
                    }
                }
            }
        )*

        pub(crate) const $list: &[$crate::layout::Constant] = &[$($($crate::layout::Constant {
            name: stringify!($value),
            value: $number as u64,
            since: version!(0; $($major, $minor)?),
            until: u32::MAX,
        }),*),*];
    };
}

/// Declares structures with the layout of C, of which all zero is a value. `as` gives the name in
/// the header, `base` a member that stands for the structure's first members.
macro_rules! structures {
    ($list:ident; $(
        $(#[$doc:meta])* $name:ident as $c_name:ident
        $(since($since_major:literal, $since_minor:literal))? {
        $([base: $base:ty])?
        $($(#[$member_doc:meta])* $member:ident: $type:ty $(, since($major:literal, $minor:literal))?;)*
    })*) => {
        $(
            $(#[$doc])*
            $(#[doc = concat!("\n\nSince libfabric ", $since_major, ".", $since_minor, ".")])?
            #[allow(missing_docs, reason = "members have the names and the meaning of the interface")]
            #[repr(C)]
            #[derive(Clone, Copy)]
            pub struct $name {
                $(
                    /// The members that all supported versions have.
                    pub base: $base,
                )?
                $(
                    $(#[$member_doc])*
                    $(#[doc = concat!("\n\nSince libfabric ", $major, ".", $minor, ".")])?
                    pub $member: $type,
                )*
            }

            impl $name {
                /// The value of which each byte is zero.
                // SAFETY: all members are numbers, pointers, or structures of them.
                pub const ZERO: Self = unsafe { core::mem::zeroed() };
            }

            impl Default for $name {
                fn default() -> Self {
                    Self::ZERO
                }
            }
        )*

        pub(crate) const $list: &[$crate::layout::Structure] = &[$($crate::layout::Structure {
            name: stringify!($c_name),
            size: size_of::<$name>(),
            align: align_of::<$name>(),
            members: &[$($crate::layout::Member {
                name: stringify!($member),
                offset: core::mem::offset_of!($name, $member),
                size: size_of::<$type>(),
                since: version!(0; $($major, $minor)?),
            }),*],
            since: version!(0; $($since_major, $since_minor)?),
        }),*];
    };
}

/// Declares the function that calls an operation, if it has a name.
macro_rules! operation {
    ([] $($rest:tt)*) => {};
    (
        [$function:ident] $table:ident $op:ident $owner:ident $field:ident [$(#[$doc:meta])*]
        ($object:ident: $object_type:ty $(, $parameter:ident: $type:ty)*) -> $result:ty
    ) => {
        #[doc = concat!("Calls `", stringify!($op), "` of [`", stringify!($table), "`].")]
        ///
        $(#[$doc])*
        ///
        /// Returns `-FI_ENOSYS` (0 or null where no error is returned) if the provider does not have
        /// the operation.
        ///
        /// # Safety
        /// The object is live and of this kind, and its provider allows the call now. The other
        /// arguments are valid as the interface requires.
        pub unsafe fn $function($object: $object_type $(, $parameter: $type)*) -> $result {
            // SAFETY: the object is live by the caller's contract, and so is its table. A member
            // below `size` exists.
            let operation = unsafe {
                let table = (*$object.cast::<$owner>()).$field;
                if table.is_null() || (*table).size <= core::mem::offset_of!($table, $op) {
                    None
                } else {
                    (*table).$op
                }
            };
            match operation {
                // SAFETY: the caller upholds the contract.
                Some(operation) => unsafe { operation($object $(, $parameter)*) },
                None => <$result as $crate::layout::Unsupported>::VALUE,
            }
        }
    };
}

/// Declares tables of operations, and the functions that call them. `in` names the object and its
/// member that points to the table; `as` names the function that calls the operation, as the inline
/// function of the header does.
macro_rules! tables {
    ($($(#[$doc:meta])* $table:ident in $owner:ident.$field:ident { $(
        $(#[$op_doc:meta])* $op:ident $(as $function:ident)?
            ($object:ident: $object_type:ty $(, $parameter:ident: $type:ty)* $(,)?) -> $result:ty
            $(, since($major:literal, $minor:literal))?;
    )* })*) => {
        $(
            $(#[$doc])*
            ///
            /// The table of another library may be shorter: members at `size` and beyond do not
            /// exist. A reference to such a table is not valid. Call its operations with the
            /// functions of this crate, which check `size`.
            #[allow(missing_docs, reason = "members have the names and the meaning of the interface")]
            #[repr(C)]
            #[derive(Clone, Copy, Debug)]
            pub struct $table {
                /// The size of the table in bytes.
                pub size: usize,
                $(
                    $(#[$op_doc])*
                    $(#[doc = concat!("\n\nSince libfabric ", $major, ".", $minor, ".")])?
                    pub $op: Option<unsafe extern "C" fn($object_type $(, $type)*) -> $result>,
                )*
            }

            impl $table {
                /// A table whose operations fail with `-FI_ENOSYS` (return 0 or null where they
                /// return no error). Applications call most operations without looking whether they
                /// are null: begin with this table.
                pub const UNSUPPORTED: Self = Self {
                    size: size_of::<Self>(),
                    $($op: {
                        unsafe extern "C" fn unsupported(_: $object_type $(, _: $type)*) -> $result {
                            <$result as $crate::layout::Unsupported>::VALUE
                        }
                        Some(unsupported)
                    },)*
                };

                /// Returns the pointer that objects hold. The interface does not write to a table.
                #[must_use]
                pub const fn as_table(&'static self) -> *mut Self {
                    core::ptr::from_ref(self).cast_mut()
                }
            }

            $(operation! {
                [$($function)?] $table $op $owner $field [$(#[$op_doc])*]
                ($object: $object_type $(, $parameter: $type)*) -> $result
            })*
        )*

        pub(crate) const TABLES: &[$crate::layout::Structure] = &[$($crate::layout::Structure {
            name: stringify!($table),
            size: size_of::<$table>(),
            align: align_of::<$table>(),
            members: &[
                $crate::layout::Member { name: "size", offset: 0, size: size_of::<usize>(), since: 0 },
                $($crate::layout::Member {
                    name: stringify!($op),
                    offset: core::mem::offset_of!($table, $op),
                    size: size_of::<usize>(),
                    since: version!(0; $($major, $minor)?),
                }),*
            ],
            since: 0,
        }),*];
    };
}

/// All constants.
pub fn constants() -> impl Iterator<Item = Constant> {
    [crate::constants::FLAGS, crate::constants::NUMBERS, crate::errors::ERRORS, crate::enums::ENUMS]
        .into_iter()
        .flatten()
        .copied()
}

/// All structures and tables.
pub fn structures() -> impl Iterator<Item = Structure> {
    [
        crate::info::STRUCTURES,
        crate::objects::STRUCTURES,
        crate::messages::STRUCTURES,
        crate::provider::STRUCTURES,
        crate::tables::TABLES,
        crate::transfers::TABLES,
    ]
    .into_iter()
    .flatten()
    .copied()
}
