//! The macros that declarations are written with.

/// Handles: pointers that only the driver looks behind.
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

                /// Whether this is the handle of nothing.
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

            // SAFETY: a name; what is done with it is said at each function, which is unsafe to
            // call.
            unsafe impl Send for $name {}
            // SAFETY: as above.
            unsafe impl Sync for $name {}
        )*
    };
}

/// Enumerations: numbers with names. A driver may answer with a number that has none yet, so they
/// are no Rust enums.
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
                /// All values that have a name, with it.
                pub const NAMES: &[(&str, u32)] = &[$((stringify!($value), $number)),*];

                /// The interface's name of this value, if it has one.
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

/// Functions, as the library exports them; called by the interface's name.
macro_rules! functions {
    ($($name:ident = $symbol:ident ( $($parameter:ident: $type:ty),* $(,)? );)*) => {
        /// The functions of a library, those that it has.
        #[derive(Clone, Copy, Debug, Default)]
        #[allow(missing_docs, reason = "members are called as the functions that they point to")]
        pub struct Functions {
            $(pub $name: Option<unsafe extern "C" fn($($type),*) -> crate::CUresult>,)*
        }

        /// What the functions are called, and the symbols that they are found by.
        pub const NAMES: &[(&str, &str)] = &[$((stringify!($name), stringify!($symbol))),*];

        impl Functions {
            /// Those that `find` has an address for.
            ///
            /// # Safety
            /// What `find` returns is null or the address of the function of that symbol, with the
            /// parameters that the interface has for it, which stays where it is as long as this is
            /// used.
            pub unsafe fn from_symbols(mut find: impl FnMut(&'static core::ffi::CStr) -> *mut core::ffi::c_void) -> Self {
                let name = |literal: &'static str| {
                    core::ffi::CStr::from_bytes_with_nul(literal.as_bytes()).unwrap_or_default()
                };
                Self {
                    $($name: {
                        let address = find(name(concat!(stringify!($symbol), "\0")));
                        // SAFETY: null is nothing, and of anything else the caller says that it is
                        // this function.
                        unsafe { core::mem::transmute::<*mut core::ffi::c_void, Option<unsafe extern "C" fn($($type),*) -> crate::CUresult>>(address) }
                    },)*
                }
            }
        }

        impl crate::Api {
            $(
                #[doc = concat!("`", stringify!($name), "`, as the interface has it.")]
                ///
                /// # Errors
                /// What the driver answers, other than success; that there is no such function.
                ///
                /// # Safety
                /// What the interface asks of callers: handles are live, pointers are null only
                /// where that is allowed and lead to enough memory of their type.
                #[allow(clippy::too_many_arguments, reason = "the interface's functions")]
                pub unsafe fn $name(&self, $($parameter: $type),*) -> Result<(), crate::Failure> {
                    let Some(function) = self.functions().$name else {
                        return Err(crate::Failure::Absent { function: stringify!($name) });
                    };
                    // SAFETY: the caller's promise.
                    match unsafe { function($($parameter),*) } {
                        crate::CUDA_SUCCESS => Ok(()),
                        result => Err(crate::Failure::Refused { function: stringify!($name), result }),
                    }
                }
            )*
        }
    };
}
