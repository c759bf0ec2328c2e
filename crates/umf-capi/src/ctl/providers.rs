//! `umf.provider`.

use super::path::first;
use super::registry::{self, Kind};
use super::{Asked, no_such_path};
use crate::boundary::{Failure, Handle, INVALID_CTL_PATH, Outcome};
use crate::provider::Provider;

pub(super) fn answer(asked: &Asked<'_>) -> Outcome<()> {
    let (how, rest) = first(asked.path());
    let below = asked.below(rest);
    match how {
        "by_handle" => {
            let (provider, below) = below.pointer()?;
            ask(Handle::from_ptr(provider.cast()).get()?, &below)
        }
        "by_name" => by_name(&below),
        "default" => registry::answer_default(Kind::Provider, &below),
        _ => Err(no_such_path()),
    }
}

fn ask(provider: &Provider, asked: &Asked<'_>) -> Outcome<()> {
    if asked.path().is_empty() {
        return Err(no_such_path());
    }
    let control = provider.operations.ctl.ok_or(no_such_path())?;
    asked.forward(control, provider.state)
}

fn by_name(asked: &Asked<'_>) -> Outcome<()> {
    let (name, below) = asked.name()?;
    let all = registry::named(Kind::Provider, &name);
    super::pools::each(&all, &below, |provider, asked| {
        ask(Handle::from_ptr(core::ptr::with_exposed_provenance_mut::<Provider>(provider)).get()?, asked)
    })
    .map_err(|failure| if all.is_empty() { Failure::argument("no provider has that name") } else { failure })
    .and_then(|told| if told { Ok(()) } else { Err(Failure::new(INVALID_CTL_PATH, "no provider took it")) })
}
