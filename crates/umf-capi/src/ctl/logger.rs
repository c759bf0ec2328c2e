//! `umf.logger`.

use super::asked::Query;
use super::{Asked, Value, no_such_path};
use crate::boundary::{Failure, Outcome};
use crate::log::{self, Level};

pub(super) fn answer(asked: &Asked<'_>) -> Outcome<()> {
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

fn level(asked: &Asked<'_>, part: impl Fn(&mut log::Form) -> &mut Level) -> Outcome<()> {
    match asked.query() {
        Query::Read => asked.give(Value::Int(log::change(|form| part(form).number()))),
        Query::Write => {
            let text = asked.text_if_configured()?;
            let level = match text.and_then(Level::named) {
                Some(level) => Some(level),
                None => Level::numbered(asked.new_int()?),
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
