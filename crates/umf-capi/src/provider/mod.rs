//! Providers behind C handles: tables of functions, of this library and of programs, and what pools
//! get of them.

mod counted;
mod functions;
mod handle;
mod native;
mod regions;

pub(crate) use counted::{Counted, Protection};
pub(crate) use functions::create;
pub(crate) use handle::Provider;
pub(crate) use native::{Device, DeviceProperty, Start, short_name, start, table, table_of_device};
pub(crate) use regions::part_around;
