//! The macros that declare handles, enumerations and functions.

/// Declares handles: pointers that only the driver dereferences.
macro_rules! handles {
    ($($(#[$doc:meta])* $name:ident;)*) => {
        $(
            $(#[$doc])*
            #[repr(transparent)]
            #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
            pub struct $name(pub *mut core::ffi::c_void);

            impl $name {
                /// The null handle.
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

            $(#[allow(missing_docs, reason = "the interface's name and meaning")]
            pub const $value: $name = $name($number);)*

            impl $name {
                /// The named values, with their names.
                pub const NAMES: &[(&str, u32)] = &[$((stringify!($value), $number)),*];

                /// Returns the interface's name of this value.
                #[must_use]
                pub fn name(self) -> Option<&'static str> {
                    Self::NAMES.iter().find(|(_, number)| *number == self.0).map(|(name, _)| *name)
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
    };
}

/// Declares functions by the interface's name and the library's symbol.
macro_rules! functions {
    ($($name:ident = $symbol:ident ( $($parameter:ident: $type:ty),* $(,)? );)*) => {
        /// The functions of a library; `None` for those that it lacks.
        #[derive(Clone, Copy, Debug, Default)]
        #[allow(missing_docs, reason = "members are called as the functions that they point to")]
        pub struct Functions {
            $(pub $name: Option<unsafe extern "C" fn($($type),*) -> crate::CUresult>,)*
        }

        /// The names of all functions, and their symbols in the library.
        pub const NAMES: &[(&str, &str)] = &[$((stringify!($name), stringify!($symbol))),*];

        impl Functions {
            /// Returns the functions at the addresses that `find` returns.
            ///
            /// # Safety
            /// `find` returns null or the address of a function with the interface's prototype for
            /// that symbol. The function stays loaded as long as the value is used.
            pub unsafe fn from_symbols(mut find: impl FnMut(&'static core::ffi::CStr) -> *mut core::ffi::c_void) -> Self {
                let name = |literal: &'static str| {
                    core::ffi::CStr::from_bytes_with_nul(literal.as_bytes()).unwrap_or_default()
                };
                Self {
                    $($name: {
                        let address = find(name(concat!(stringify!($symbol), "\0")));
                        // SAFETY: null becomes `None`. By the caller's contract, any other address
                        // is this function.
                        unsafe { core::mem::transmute::<*mut core::ffi::c_void, Option<unsafe extern "C" fn($($type),*) -> crate::CUresult>>(address) }
                    },)*
                }
            }
        }

        impl crate::Api {
            $(
                #[doc = concat!("Calls `", stringify!($name), "`.")]
                ///
                /// # Errors
                /// The driver's result if it is not success, or that the function is missing.
                ///
                /// # Safety
                /// The requirements of the interface: handles are live; pointers are valid for
                /// their type, or null where that is allowed.
                #[allow(clippy::too_many_arguments, reason = "the interface's functions")]
                pub unsafe fn $name(&self, $($parameter: $type),*) -> Result<(), crate::Failure> {
                    let Some(function) = self.functions().$name else {
                        return Err(crate::Failure::Absent { function: stringify!($name) });
                    };
                    // SAFETY: the caller upholds the contract.
                    match unsafe { function($($parameter),*) } {
                        crate::CUDA_SUCCESS => Ok(()),
                        result => Err(crate::Failure::Refused { function: stringify!($name), result }),
                    }
                }
            )*
        }
    };
}
