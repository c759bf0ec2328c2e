//! The boundary between C and Rust: result codes, pointers that C passes, and calls that neither
//! unwind nor lose their error.
//!
//! # What C promises
//! Everything here rests on what UMF's headers ask of a caller: a pointer is NULL or points to what
//! its type says for the time of the call; a handle is NULL or one that this library made and did
//! not destroy (the latest destroyed ones are known); a string ends with a NUL. The types [`Out`],
//! [`Text`], [`List`] and [`Handle`] are such pointers, and check what can be checked.

mod pointer;
mod result;
mod tombstones;

pub(crate) use pointer::{Handle, List, Out, Taken, Text};
pub(crate) use result::*;

/// Defines the C functions that create, destroy and change settings.
///
/// `create` has the arguments of the C function, and a block that makes the settings. A setter has
/// the settings and its arguments, and a block that changes the settings. Blocks may fail with `?`.
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
