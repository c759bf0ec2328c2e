//! Providers behind C handles: tables of functions, ours and foreign ones, and what pools get of them.

mod counted;
mod driver_error;
mod foreign;
mod handle;
mod native;
mod native_error;
mod own;
mod regions;
mod said;
mod tracking;

pub(crate) use counted::{Counted, Protection};
pub(crate) use driver_error::{refused, remember};
pub(crate) use foreign::Foreign;
pub(crate) use handle::{Provider, last_failed};
pub(crate) use native::{Native, Start, short_name, start, table, table_of_device};
pub(crate) use native_error::Flavour;
pub(crate) use own::{Own, Told};
pub(crate) use said::explain;
pub(crate) use tracking::Tracking;
