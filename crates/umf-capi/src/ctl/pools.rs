//! `umf.pool`.

use super::asked::Query;
use super::path::first;
use super::registry::{self, Entry, Kind};
use super::{Asked, Value, no_such_path};
use crate::boundary::{Failure, Handle, Outcome};
use crate::pool::Pool;

pub(super) fn answer(asked: &Asked<'_>) -> Outcome<()> {
    let (how, rest) = first(asked.path());
    let below = asked.below(rest);
    match how {
        "by_handle" => {
            let (pool, below) = below.pointer()?;
            ask(Handle::from_ptr(pool.cast()).get()?, &below)
        }
        "by_name" => by_name(&below),
        "default" => registry::answer_default(Kind::Pool, &below),
        _ => Err(no_such_path()),
    }
}

fn ask(pool: &Pool, asked: &Asked<'_>) -> Outcome<()> {
    match asked.path() {
        "" => Err(no_such_path()),
        "stats.alloc_count" => asked.read_only(Value::Size(pool.live_blocks())),
        _ => asked.forward(pool.operations.ctl.ok_or(no_such_path())?, pool.state),
    }
}

fn by_name(asked: &Asked<'_>) -> Outcome<()> {
    let (name, below) = asked.name()?;
    let all = registry::named(Kind::Pool, &name);
    if all.is_empty() {
        return Err(Failure::argument("no pool has that name"));
    }
    if below.path() == "count" {
        return below.read_only(Value::Size(all.len()));
    }
    each(&all, &below, |pool, asked| {
        ask(Handle::from_ptr(core::ptr::with_exposed_provenance_mut::<Pool>(pool)).get()?, asked)
    })
    .map(|_| ())
}

/// Asks the one with the index that the path begins with, or all. Reading is of one. Whether anyone was asked.
pub(super) fn each(
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
