//! Kinds of provider whose settings need more than their provider does.

mod host;
mod plugin;

pub(crate) use host::Host;
pub use host::HostSettings;
pub(crate) use plugin::Plugin;
pub use plugin::PluginSettings;
