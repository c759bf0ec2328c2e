//! The control tree: what can be read, set and run by path. `umfCtlGet`, `umfCtlSet`, `umfCtlExec`, `UMF_CONF`.
//!
//! Nodes are separated by dots; `{}` stands for the next variable argument. What lies below a provider or a pool is asked of its
//! table of functions, ours as foreign ones.

mod answers;
mod asked;
mod config;
mod logger;
mod path;
mod pools;
mod providers;
pub(crate) mod registry;
mod variadic;

pub(crate) use answers::{Answers, control};
pub(crate) use asked::{Asked, Query, Value, no_such_path};
pub(crate) use config::apply as apply_config;
pub(crate) use variadic::{forward_none, forward_raw};

use core::ffi::{c_char, c_void};

use crate::boundary::{Code, Failure, Outcome, call};

use path::first;

const PROGRAMMATIC: i32 = 1;

/// What the three functions with variable arguments call (`c/variadic.c`).
#[unsafe(no_mangle)]
extern "C" fn umf_capi_query(
    path: *const c_char,
    argument: *mut c_void,
    size: usize,
    query: i32,
    more: *mut c_void,
) -> Code {
    call("umfCtl", || {
        crate::base::ensure();
        let asked = Asked::new(PROGRAMMATIC, path, argument, size, query, more)?;
        let turns_log_off = asked.path() == "umf.logger.output" && asked.query() == Query::Write;
        if asked.query() != Query::Run && (argument.is_null() || size == 0) && !turns_log_off {
            return Err(Failure::argument("reading and setting take an argument and its size"));
        }
        dispatch(&asked)
    })
}

/// Answers a query from the root.
fn dispatch(asked: &Asked<'_>) -> Outcome<()> {
    let (root, rest) = first(asked.path());
    let (branch, rest) = match root {
        "umf" => first(rest),
        _ => return Err(no_such_path()),
    };
    let below = asked.below(rest);
    match branch {
        "logger" => logger::answer(&below),
        "pool" => pools::answer(&below),
        "provider" => providers::answer(&below),
        _ => Err(no_such_path()),
    }
}
