//! Provider handles: tables of functions, of this library and of programs, and the provider objects
//! that pools get from them.

mod functions;
mod handle;
mod instrumented;
mod native;
mod regions;

pub(crate) use functions::create;
pub(crate) use handle::Provider;
pub(crate) use instrumented::{InstrumentedProvider, Protection};
pub(crate) use native::{Device, DeviceProperty, NativeParts, NativeTable, short_name, table};
pub(crate) use regions::part_around;
