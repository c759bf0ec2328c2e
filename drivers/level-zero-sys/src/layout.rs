//! The macros for declarations, and lists of all declared items, which tests compare with the
//! specification's header.

use core::ffi::CStr;

use crate::api::Member;

/// Declares handles: pointers that only the driver dereferences.
macro_rules! handles {
    ($($(#[$doc:meta])* $name:ident;)*) => {
        $(
            $(#[$doc])*
            #[repr(transparent)]
            #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
            pub struct $name(pub *mut core::ffi::c_void);

            impl $name {
                /// The handle of nothing.
                pub const NULL: Self = Self(core::ptr::null_mut());

                /// Returns whether this is the null handle.
                #[must_use]
                pub fn is_null(self) -> bool {
                    self.0.is_null()
                }
            }

            impl Default for $name {
                fn default() -> Self {
                    Self::NULL
                }
            }

            // SAFETY: a handle is only passed to functions, which are unsafe to call.
            unsafe impl Send for $name {}
            // SAFETY: as above.
            unsafe impl Sync for $name {}
        )*
    };
}

/// Declares enumerations. They are not Rust enums, since a driver may return numbers without a
/// name.
macro_rules! enums {
    ($($(#[$doc:meta])* $name:ident { $($value:ident = $number:expr,)* })*) => {
        $(
            $(#[$doc])*
            #[repr(transparent)]
            #[derive(Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
            pub struct $name(pub u32);

            $(#[allow(missing_docs, reason = "the specification's name and meaning")]
            pub const $value: $name = $name($number);)*

            impl $name {
                /// The specification's name of this value, if it has one.
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
                        None => write!(formatter, "{}({:#x})", stringify!($name), self.0),
                    }
                }
            }
        )*

        pub(crate) const ENUMS: &[crate::layout::Constant] = &[$($((stringify!($value), $number)),*),*];
    };
}

/// Declares sets of flags, which are combined with `|`.
macro_rules! flags {
    ($($(#[$doc:meta])* $name:ident { $($value:ident = $number:expr,)* })*) => {
        $(
            $(#[$doc])*
            pub type $name = u32;
            $(#[allow(missing_docs, reason = "the specification's name and meaning")]
            pub const $value: $name = $number;)*
        )*

        pub(crate) const FLAGS: &[crate::layout::Constant] = &[$($((stringify!($value), $number)),*),*];
    };
}

/// Declares a structure with the layout of C, and a list of the offsets of its members.
macro_rules! structure {
    ($(#[$doc:meta])* $name:ident { $($member:ident: $type:ty,)* }) => {
        $(#[$doc])*
        #[allow(missing_docs, reason = "members have the names and the meaning of the specification")]
        #[repr(C)]
        #[derive(Clone, Copy, Debug)]
        pub struct $name {
            $(pub $member: $type,)*
        }

        impl $name {
            pub(crate) const LAYOUT: crate::layout::Structure = crate::layout::Structure {
                name: stringify!($name),
                size: size_of::<Self>(),
                members: &[$((stringify!($member), core::mem::offset_of!(Self, $member))),*],
            };

            fn zeroed() -> Self {
                // SAFETY: all members are numbers, pointers, arrays of them, or structures of them.
                unsafe { core::mem::zeroed() }
            }
        }
    };
}

/// Declares structures without a type member. `Default` is all zero.
macro_rules! plain {
    ($($(#[$doc:meta])* $name:ident { $($members:tt)* })*) => {
        $(
            structure! { $(#[$doc])* $name { $($members)* } }

            impl Default for $name {
                fn default() -> Self {
                    Self::zeroed()
                }
            }
        )*

        pub(crate) const PLAIN: &[crate::layout::Structure] = &[$($name::LAYOUT),*];
    };
}

/// Declares structures that begin with their type and a pointer to the next in the chain. `Default`
/// is all zero except the type.
macro_rules! chained {
    ($($(#[$doc:meta])* $name:ident: $stype:ident { $($members:tt)* })*) => {
        $(
            structure! { $(#[$doc])* $name { stype: crate::base::ze_structure_type_t, $($members)* } }

            impl Default for $name {
                fn default() -> Self {
                    Self { stype: crate::base::$stype, ..Self::zeroed() }
                }
            }

            // SAFETY: the structure begins with its type, which is this, and the pointer to the
            // next.
            unsafe impl crate::base::chain::Chained for $name {
                const TYPE: crate::base::ze_structure_type_t = crate::base::$stype;
            }
        )*

        pub(crate) const CHAINED: &[crate::layout::Structure] = &[$($name::LAYOUT),*];
    };
}

/// The return type of a function: `ze_result_t` by default.
macro_rules! returned {
    () => {
        crate::result::ze_result_t
    };
    ($type:ty) => {
        $type
    };
}

/// Declares tables of functions: the minor version that added a member, its name, the function's
/// name, and the parameters. This crate does not call functions without parameters here.
macro_rules! tables {
    ($($(#[$doc:meta])* $table:ident from $get:ident {
        $($since:literal $member:ident = $function:ident
            $(( $($parameter:ident: $type:ty),* $(,)? ) $(-> $returned:ty)?)?;)*
    })*) => {
        $(
            $(#[$doc])*
            #[allow(missing_docs, reason = "members are called as the functions that they point to")]
            #[repr(C)]
            #[derive(Clone, Copy, Debug, Default)]
            pub struct $table {
                $(pub $member: Option<unsafe extern "C" fn($($($parameter: $type),*)?) -> returned!($($($returned)?)?)>,)*
            }

            // SAFETY: the table has one function pointer per member.
            unsafe impl crate::api::Table for $table {
                const GET: &'static core::ffi::CStr = crate::api::c_name(concat!(stringify!($get), "\0"));
                const MEMBERS: &'static [crate::api::Member] = &[$(crate::api::Member {
                    since: crate::base::make_version(1, $since),
                    name: stringify!($member),
                    function: crate::api::c_name(concat!(stringify!($function), "\0")),
                }),*];
            }

            impl crate::api::Api {
                $($(
                    #[doc = concat!("Calls `", stringify!($function), "`.")]
                    ///
                    /// # Errors
                    /// The driver's result if it is not success, or that the function is missing.
                    ///
                    /// # Safety
                    /// The requirements of the specification: handles are live; pointers are valid
                    /// for their type, or null where that is allowed; structures have their type in
                    /// `stype`.
                    pub unsafe fn $function(
                        &self,
                        $($parameter: $type),*
                    ) -> Result<<returned!($($returned)?) as crate::result::ReturnValue>::Value, crate::result::Failure> {
                        let table: &$table = crate::api::HasTable::table(self);
                        let Some(function) = table.$member else {
                            return Err(crate::result::Failure::Absent { function: stringify!($function) });
                        };
                        // SAFETY: the caller upholds the contract.
                        let answer = unsafe { function($($parameter),*) };
                        crate::result::ReturnValue::checked(answer, stringify!($function))
                    }
                )?)*
            }
        )*

        pub(crate) const TABLES: &[crate::layout::Table] = &[$(crate::layout::Table::of::<$table>(stringify!($table))),*];
    };
}

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
    pub(crate) const fn of<T: crate::api::Table>(name: &'static str) -> Self {
        Self { name, get: T::GET, members: T::MEMBERS }
    }
}

/// All enumerators and flags.
pub fn constants() -> impl Iterator<Item = Constant> {
    [
        crate::base::ENUMS,
        crate::context::ENUMS,
        crate::device::ENUMS,
        crate::result::ENUMS,
        crate::context::FLAGS,
        crate::device::FLAGS,
    ]
    .into_iter()
    .flatten()
    .copied()
}

/// All structures.
pub fn structures() -> impl Iterator<Item = Structure> {
    [
        crate::base::PLAIN,
        crate::context::PLAIN,
        crate::device::PLAIN,
        crate::context::CHAINED,
        crate::device::CHAINED,
    ]
    .into_iter()
    .flatten()
    .copied()
}

/// All tables.
pub fn tables() -> impl Iterator<Item = Table> {
    crate::tables::TABLES.iter().copied()
}
