//! Calls across the C boundary: result codes, pointers from C, and panics, which must not unwind
//! into C.
//!
//! # Contract with C
//! This module relies on what the UMF headers require of a caller. A pointer is NULL, or valid for
//! its type during the call. A handle is NULL, or was created by this library and not destroyed.
//! (The latest destroyed handles are detected.) A string ends with a NUL. [`Out`], [`Text`],
//! [`List`] and [`Handle`] wrap such pointers, and check what can be checked.

mod pointer;
mod result;
mod tombstones;

pub(crate) use pointer::{Handle, List, Out, Taken, Text};
pub(crate) use result::*;

/// Defines the C functions that create, destroy and change settings.
///
/// `create` has the arguments of the C function, and a block that makes the settings. A setter has
/// the settings, its arguments, and a block that changes the settings. Blocks may fail with `?`.
macro_rules! settings_functions {
    ($settings:ty;
     create fn $create:ident($($given:ident: $given_type:ty),*) $make:block
     $(destroy fn $destroy:ident;)?
     $(fn $set:ident($params:ident $(, $argument:ident: $type:ty)*) $change:block)*
    ) => {
        #[unsafe(no_mangle)]
        extern "C" fn $create($($given: $given_type,)* place: Out<Handle<$settings>>) -> Code {
            call(stringify!($create), || {
                let place = place.check()?;
                place.set(Handle::new($make))
            })
        }

        $(#[unsafe(no_mangle)]
        extern "C" fn $destroy(settings: Handle<$settings>) -> Code {
            call(stringify!($destroy), || {
                drop(settings.take()?);
                Ok(())
            })
        })?

        $(#[unsafe(no_mangle)]
        extern "C" fn $set($params: Handle<$settings> $(, $argument: $type)*) -> Code {
            call(stringify!($set), || {
                let $params = $params.get_mut()?;
                $change
                Ok(())
            })
        })*
    };
}
pub(crate) use settings_functions;
