//! The control tree: `umfCtlGet`, `umfCtlSet`, `umfCtlExec`, `UMF_CONF`.
//!
//! Dots separate the nodes of a path. `{}` stands for the next variable argument. Queries below a
//! provider or pool go to its table of functions, native or foreign.

mod query;
pub(crate) mod registry;

pub(crate) use query::{CtlAccess, CtlQuery, CtlTree, Value, control, forward_none, no_such_path, object_of};

use core::ffi::{c_char, c_void};

use umf::settings::LogLevel;

use crate::boundary::{Code, Failure, Handle, INVALID_CTL_PATH, Outcome, call};
use crate::log;
use crate::pool::Pool;
use crate::provider::Provider;

use registry::{Entry, Kind};

const PROGRAMMATIC: i32 = 1;

/// Entry point of the three variadic functions (`c/variadic.c`).
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
        let query = CtlQuery::new(PROGRAMMATIC, path, argument, size, query, more)?;
        let turns_log_off = query.access() == CtlAccess::Write
            && query.path().matches('.').count() == 2
            && query.peek_path().is_some_and(|path| path == "umf.logger.output");
        if query.access() != CtlAccess::Run && (argument.is_null() || size == 0) && !turns_log_off {
            return Err(Failure::argument("reading and setting take an argument and its size"));
        }
        dispatch(&query)
    })
}

/// Answers a query from the root.
fn dispatch(query: &CtlQuery<'_>) -> Outcome<()> {
    let (root, query) = query.name()?;
    if root != "umf" {
        return Err(no_such_path());
    }
    let (branch, below) = query.name()?;
    match &*branch {
        "logger" => logger(&below),
        "pool" => objects(&below, Kind::Pool, ask_pool, pools_by_name),
        "provider" => objects(&below, Kind::Provider, ask_provider, providers_by_name),
        _ => Err(no_such_path()),
    }
}

/// Answers queries below `umf.pool` and `umf.provider`.
fn objects<T>(
    query: &CtlQuery<'_>,
    kind: Kind,
    by_handle: impl FnOnce(*mut T, &CtlQuery<'_>) -> Outcome<()>,
    by_name: impl FnOnce(&CtlQuery<'_>) -> Outcome<()>,
) -> Outcome<()> {
    let (selector, below) = query.name()?;
    match &*selector {
        "by_handle" => {
            let (object, below) = below.pointer()?;
            by_handle(object.cast(), &below)
        }
        "by_name" => by_name(&below),
        "default" => registry::answer_default(kind, &below),
        _ => Err(no_such_path()),
    }
}

fn ask_pool(pool: *mut Pool, query: &CtlQuery<'_>) -> Outcome<()> {
    let pool = Handle::from_ptr(pool).get()?;
    match query.path() {
        "" => Err(no_such_path()),
        _ if is_alloc_count(query) => query.read_only(Value::Size(pool.live_blocks())),
        _ => query.forward(pool.functions.ext_ctl.ok_or(no_such_path())?, pool.state),
    }
}

/// Returns whether the query is for the number of live blocks, which all pools have. Any other
/// query, with its wildcards, is for the pool's own functions. A wildcard of theirs may stand for a
/// number, so only those of the two nodes of this path are looked at.
fn is_alloc_count(query: &CtlQuery<'_>) -> bool {
    const PATH: &str = "stats.alloc_count";
    match query.path() {
        PATH => true,
        "stats.{}" | "{}.alloc_count" | "{}.{}" => query.peek_path().is_some_and(|path| path == PATH),
        _ => false,
    }
}

fn pools_by_name(query: &CtlQuery<'_>) -> Outcome<()> {
    let (name, below) = query.name()?;
    let all = registry::named(Kind::Pool, &name);
    if all.is_empty() {
        return Err(Failure::argument("no pool has that name"));
    }
    if below.path() == "count" {
        return below.read_only(Value::Size(all.len()));
    }
    let handled =
        each(&all, &below, |pool, query| ask_pool(core::ptr::with_exposed_provenance_mut(pool), query))?;
    // All of them were destroyed meanwhile.
    if handled { Ok(()) } else { Err(Failure::argument("no pool has that name")) }
}

/// Forwards the query to the entry with the index at the start of the path, or to all. A read needs
/// a single entry. Returns whether an entry was queried.
fn each(
    all: &[Entry],
    query: &CtlQuery<'_>,
    mut ask: impl FnMut(usize, &CtlQuery<'_>) -> Outcome<()>,
) -> Outcome<bool> {
    if let Some((index, below)) = query.index()? {
        let one = all.get(index).ok_or(Failure::argument("there are not as many of that name"))?;
        return one.ask(|object| ask(object, &below)).transpose().map(|handled| handled.is_some());
    }
    if query.access() == CtlAccess::Read && all.len() > 1 {
        return Err(Failure::argument("several have that name: add an index behind it to read from one"));
    }
    let mut handled = false;
    for entry in all {
        handled |= entry.ask(|object| ask(object, query)).transpose()?.is_some();
    }
    Ok(handled)
}

fn ask_provider(provider: *mut Provider, query: &CtlQuery<'_>) -> Outcome<()> {
    let provider = Handle::from_ptr(provider).get()?;
    if query.path().is_empty() {
        return Err(no_such_path());
    }
    let control = provider.functions.ext_ctl.ok_or(no_such_path())?;
    query.forward(control, provider.state)
}

fn providers_by_name(query: &CtlQuery<'_>) -> Outcome<()> {
    let (name, below) = query.name()?;
    let all = registry::named(Kind::Provider, &name);
    each(&all, &below, |provider, query| {
        ask_provider(core::ptr::with_exposed_provenance_mut(provider), query)
    })
    .map_err(|failure| if all.is_empty() { Failure::argument("no provider has that name") } else { failure })
    .and_then(
        |handled| if handled { Ok(()) } else { Err(Failure::new(INVALID_CTL_PATH, "no provider took it")) },
    )
}

/// Answers queries below `umf.logger`.
fn logger(query: &CtlQuery<'_>) -> Outcome<()> {
    let (setting, below) = query.name()?;
    if !below.path().is_empty() {
        return Err(no_such_path());
    }
    match &*setting {
        "timestamp" => truth(query, |form| &mut form.timestamp),
        "pid" => truth(query, |form| &mut form.pid),
        "level" => level(query, |form| &mut form.level),
        "flush_level" => level(query, |form| &mut form.flush),
        "output" => output(query),
        _ => Err(no_such_path()),
    }
}

const NOT_RUN: Failure = Failure::argument("the log's settings are read or set");

fn truth(query: &CtlQuery<'_>, part: impl Fn(&mut log::LogFormat) -> &mut bool) -> Outcome<()> {
    match query.access() {
        // Documented as an int, and one byte in the original: fills the size that the caller
        // passed.
        CtlAccess::Read => {
            let value = i32::from(log::change(|form| *part(form)));
            query.give(Value::Int(value)).or_else(|_| query.give_bytes(&[u8::try_from(value).unwrap_or(0)]))
        }
        CtlAccess::Write => {
            let value = query.new_bool()?;
            log::change(|form| *part(form) = value);
            Ok(())
        }
        CtlAccess::Run => Err(NOT_RUN),
    }
}

fn level(query: &CtlQuery<'_>, part: impl Fn(&mut log::LogFormat) -> &mut LogLevel) -> Outcome<()> {
    match query.access() {
        CtlAccess::Read => query.give(Value::Int(log::change(|form| *part(form) as i32))),
        CtlAccess::Write => {
            let text = query.text_if_configured()?;
            let level = match text.and_then(|text| text.parse().ok()) {
                Some(level) => Some(level),
                None => log::level_numbered(query.new_int()?),
            };
            let level = level.ok_or(Failure::argument("a log level is 0 (debug) to 4 (fatal)"))?;
            log::change(|form| *part(form) = level);
            Ok(())
        }
        CtlAccess::Run => Err(NOT_RUN),
    }
}

fn output(query: &CtlQuery<'_>) -> Outcome<()> {
    match query.access() {
        CtlAccess::Read => query.give(Value::Text(&log::output_name())),
        CtlAccess::Write => log::set_output(query.text()?),
        CtlAccess::Run => Err(NOT_RUN),
    }
}
