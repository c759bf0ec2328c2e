//! [`control`]: the one function by which the tables of this library's providers and pools answer for their control trees.

use core::ffi::{c_char, c_void};

use umf::plugin::ops::State;

use super::Asked;
use crate::boundary::{Code, Outcome, call};

/// What has a control tree below it.
pub(crate) trait Answers {
    /// The object behind the state of a table that has [`control`] of this type.
    ///
    /// # Errors
    /// There is none.
    fn behind<'a>(state: State) -> Outcome<&'a Self>;

    /// Answers a query.
    ///
    /// # Errors
    /// There is no such path, or it is not for that.
    fn answer(&self, asked: &Asked<'_>) -> Outcome<()>;
}

/// `ext_ctl` of a table.
pub(crate) extern "C" fn control<T: Answers>(
    state: State,
    source: i32,
    name: *const c_char,
    argument: *mut c_void,
    size: usize,
    query: i32,
    more: *mut c_void,
) -> Code {
    call("ext_ctl", || T::behind(state)?.answer(&Asked::new(source, name, argument, size, query, more)?))
}
