//! The control tree: what can be read, set and run by path. `umfCtlGet`, `umfCtlSet`, `umfCtlExec`,
//! `UMF_CONF`.
//!
//! Nodes are separated by dots; `{}` stands for the next variable argument. What lies below a
//! provider or a pool is asked of its table of functions, ours as foreign ones.

mod asked;
pub(crate) mod registry;

pub(crate) use asked::{Answers, Asked, Query, Value, control, forward_none, no_such_path, object_of};

use core::ffi::{c_char, c_void};

use umf::settings::LogLevel;

use crate::boundary::{Code, Failure, Handle, INVALID_CTL_PATH, Outcome, call};
use crate::log;
use crate::pool::Pool;
use crate::provider::Provider;

use asked::first;
use registry::{Entry, Kind};

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
        "logger" => logger(&below),
        "pool" => objects(&below, Kind::Pool, ask_pool, pools_by_name),
        "provider" => objects(&below, Kind::Provider, ask_provider, providers_by_name),
        _ => Err(no_such_path()),
    }
}

/// Answers for `umf.pool` and `umf.provider`.
fn objects<T>(
    asked: &Asked<'_>,
    kind: Kind,
    by_handle: impl FnOnce(*mut T, &Asked<'_>) -> Outcome<()>,
    by_name: impl FnOnce(&Asked<'_>) -> Outcome<()>,
) -> Outcome<()> {
    let (how, rest) = first(asked.path());
    let below = asked.below(rest);
    match how {
        "by_handle" => {
            let (object, below) = below.pointer()?;
            by_handle(object.cast(), &below)
        }
        "by_name" => by_name(&below),
        "default" => registry::answer_default(kind, &below),
        _ => Err(no_such_path()),
    }
}

fn ask_pool(pool: *mut Pool, asked: &Asked<'_>) -> Outcome<()> {
    let pool = Handle::from_ptr(pool).get()?;
    match asked.path() {
        "" => Err(no_such_path()),
        "stats.alloc_count" => asked.read_only(Value::Size(pool.live_blocks())),
        _ => asked.forward(pool.functions.ext_ctl.ok_or(no_such_path())?, pool.state),
    }
}

fn pools_by_name(asked: &Asked<'_>) -> Outcome<()> {
    let (name, below) = asked.name()?;
    let all = registry::named(Kind::Pool, &name);
    if all.is_empty() {
        return Err(Failure::argument("no pool has that name"));
    }
    if below.path() == "count" {
        return below.read_only(Value::Size(all.len()));
    }
    each(&all, &below, |pool, asked| ask_pool(core::ptr::with_exposed_provenance_mut(pool), asked))
        .map(|_| ())
}

/// Asks the one with the index that the path begins with, or all. Reading is of one. Whether anyone
/// was asked.
fn each(
    all: &[Entry],
    asked: &Asked<'_>,
    mut ask: impl FnMut(usize, &Asked<'_>) -> Outcome<()>,
) -> Outcome<bool> {
    if let Some((index, below)) = asked.index()? {
        let one = all.get(index).ok_or(Failure::argument("there are not as many of that name"))?;
        return one.ask(|object| ask(object, &below)).transpose().map(|told| told.is_some());
    }
    if asked.query() == Query::Read && all.len() > 1 {
        return Err(Failure::argument("several have that name: add an index behind it to read from one"));
    }
    let mut told = false;
    for entry in all {
        told |= entry.ask(|object| ask(object, asked)).transpose()?.is_some();
    }
    Ok(told)
}

fn ask_provider(provider: *mut Provider, asked: &Asked<'_>) -> Outcome<()> {
    let provider = Handle::from_ptr(provider).get()?;
    if asked.path().is_empty() {
        return Err(no_such_path());
    }
    let control = provider.functions.ext_ctl.ok_or(no_such_path())?;
    asked.forward(control, provider.state)
}

fn providers_by_name(asked: &Asked<'_>) -> Outcome<()> {
    let (name, below) = asked.name()?;
    let all = registry::named(Kind::Provider, &name);
    each(&all, &below, |provider, asked| {
        ask_provider(core::ptr::with_exposed_provenance_mut(provider), asked)
    })
    .map_err(|failure| if all.is_empty() { Failure::argument("no provider has that name") } else { failure })
    .and_then(|told| if told { Ok(()) } else { Err(Failure::new(INVALID_CTL_PATH, "no provider took it")) })
}

/// Answers for `umf.logger`.
fn logger(asked: &Asked<'_>) -> Outcome<()> {
    match asked.path() {
        "timestamp" => truth(asked, |form| &mut form.timestamp),
        "pid" => truth(asked, |form| &mut form.pid),
        "level" => level(asked, |form| &mut form.level),
        "flush_level" => level(asked, |form| &mut form.flush),
        "output" => output(asked),
        _ => Err(no_such_path()),
    }
}

const NOT_RUN: Failure = Failure::argument("the log's settings are read or set");

fn truth(asked: &Asked<'_>, part: impl Fn(&mut log::Form) -> &mut bool) -> Outcome<()> {
    match asked.query() {
        // The documents say int, the original has one byte: each gets what it has room for.
        Query::Read => {
            let value = i32::from(log::change(|form| *part(form)));
            asked.give(Value::Int(value)).or_else(|_| asked.give_bytes(&[u8::try_from(value).unwrap_or(0)]))
        }
        Query::Write => {
            let value = asked.new_bool()?;
            log::change(|form| *part(form) = value);
            Ok(())
        }
        Query::Run => Err(NOT_RUN),
    }
}

fn level(asked: &Asked<'_>, part: impl Fn(&mut log::Form) -> &mut LogLevel) -> Outcome<()> {
    match asked.query() {
        Query::Read => asked.give(Value::Int(log::change(|form| *part(form) as i32))),
        Query::Write => {
            let text = asked.text_if_configured()?;
            let level = match text.and_then(|text| text.parse().ok()) {
                Some(level) => Some(level),
                None => log::level_numbered(asked.new_int()?),
            };
            let level = level.ok_or(Failure::argument("a log level is 0 (debug) to 4 (fatal)"))?;
            log::change(|form| *part(form) = level);
            Ok(())
        }
        Query::Run => Err(NOT_RUN),
    }
}

fn output(asked: &Asked<'_>) -> Outcome<()> {
    match asked.query() {
        Query::Read => asked.give(Value::Text(&log::output_name())),
        Query::Write => log::set_output(asked.text()?),
        Query::Run => Err(NOT_RUN),
    }
}
